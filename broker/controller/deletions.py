"""Deleted topics: which brokers have deleted their replicas, and which tombstones can be removed.

A tombstone stays until every broker that held a replica has deleted it (CTL-15). Each broker says
so in each of its registrations. An operator may unregister a broker that does not come back. In the
same way a partition's former replicas stay in the store until their brokers have deleted them.
"""

from collections.abc import Mapping

from minibroker.broker.controller.reassignments import FormerReplica
from minibroker.broker.controller.state import Tombstone


class Deletions:
    """See the head of this module. `done` are the ids of topics whose tombstones can be removed,
    `removed` the former replicas that can be forgotten."""

    def __init__(self) -> None:
        self.done: dict[bytes, None] = {}
        self.removed: dict[FormerReplica, None] = {}
        self._stopped: dict[bytes, set[int]] = {}

    def record(self, node_id: int, topic_id: bytes, tombstones: Mapping[bytes, Tombstone]) -> None:
        """Record that a broker holds no replica of a deleted topic any more."""
        if topic_id in tombstones and topic_id not in self.done:
            self._stopped.setdefault(topic_id, set()).add(node_id)
            self._review(topic_id, tombstones)

    def review(self, tombstones: Mapping[bytes, Tombstone]) -> None:
        """Handle a change of the tombstones: some may wait for fewer brokers than before."""
        for topic_id in list(self._stopped):
            self._review(topic_id, tombstones)

    def _review(self, topic_id: bytes, tombstones: Mapping[bytes, Tombstone]) -> None:
        tombstone = tombstones.get(topic_id)
        if tombstone is None:
            del self._stopped[topic_id]
        elif self._stopped[topic_id].issuperset(tombstone.holders):
            del self._stopped[topic_id]
            self.done[topic_id] = None

    def record_removed(self, replica: FormerReplica) -> None:
        """Record that a broker has deleted a former replica."""
        self.removed[replica] = None

    def pop_removed(self) -> dict[FormerReplica, None]:
        """Return the former replicas that are `removed`, and forget them."""
        removed, self.removed = self.removed, {}
        return removed

    def pop_done(self) -> dict[bytes, None]:
        """Return the topics that are `done`, and forget them."""
        done, self.done = self.done, {}
        return done
