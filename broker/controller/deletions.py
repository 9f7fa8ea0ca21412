"""Deleted topics: which brokers hold nothing of them any more, and whose tombstones can go.

A tombstone stays until every broker that held a replica has deleted it (CTL-15). A broker says it
anew in each registration, and an operator may have it forgotten.
"""

from collections.abc import Mapping

from minibroker.broker.controller.state import Tombstone


class Deletions:
    """See the head of this module. `done` are the ids of topics whose tombstones can go."""

    def __init__(self) -> None:
        self.done: dict[bytes, None] = {}
        self._stopped: dict[bytes, set[int]] = {}

    def record(self, node_id: int, topic_id: bytes, tombstones: Mapping[bytes, Tombstone]) -> None:
        """A broker holds nothing of a deleted topic any more."""
        if topic_id in tombstones and topic_id not in self.done:
            self._stopped.setdefault(topic_id, set()).add(node_id)
            self._review(topic_id, tombstones)

    def review(self, tombstones: Mapping[bytes, Tombstone]) -> None:
        """The tombstones have changed: fewer brokers may be waited for."""
        for topic_id in list(self._stopped):
            self._review(topic_id, tombstones)

    def _review(self, topic_id: bytes, tombstones: Mapping[bytes, Tombstone]) -> None:
        tombstone = tombstones.get(topic_id)
        if tombstone is None:
            del self._stopped[topic_id]
        elif self._stopped[topic_id].issuperset(tombstone.holders):
            del self._stopped[topic_id]
            self.done[topic_id] = None

    def pop_done(self) -> dict[bytes, None]:
        """Those that are `done`, for the only time."""
        done, self.done = self.done, {}
        return done
