"""What a decision comes to: an answer, the state that follows, and the writes that lead there.

Deciding is pure. Nothing waits and nothing is remembered between calls, so a plan that lost its
transaction, or its controller, is simply made again from what the store says then.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Generic, NamedTuple, TypeVar

from minibroker.broker.controller import entries
from minibroker.broker.controller.state import PartitionRecord, State, Tombstone, TopicRecord
from minibroker.broker.metadata.store import Delete, Put

Answer = TypeVar("Answer")


class Report(NamedTuple):
    """What is to be logged once a plan was carried out; `level` is one of logging's."""

    level: int
    text: str


@dataclass(frozen=True, slots=True)
class Plan(Generic[Answer]):
    """What to do for a request. Without `writes` there is nothing to do but answer.

    A store that does not take so much at once gets the writes in parts. So they are in such an
    order that a controller which finds only the first of them goes on from there: a broker is
    admitted last, a topic is there with its own entry, after its partitions, and it is gone with
    its tombstone, before all else of it. What is left over then `entries.leftovers` finds.
    """

    answer: Answer
    state: State
    writes: tuple[Put | Delete, ...] = ()
    reports: tuple[Report, ...] = ()


class Draft:
    """A plan in the making: the state so far, and the last write to each key."""

    def __init__(self, state: State) -> None:
        self._topics = dict(state.topics)  # this draft's own, so that it can change in place
        self._writes: dict[str, Put | Delete] = {}
        self.state = replace(state, topics=self._topics)
        self.reports: list[Report] = []

    def write(self, writes: Iterable[Put | Delete]) -> None:
        """Write these, instead of what was to be written to the same keys before."""
        self._writes.update((write.key, write) for write in writes)

    def set_topic(self, topic: TopicRecord) -> None:
        """Add or replace a topic, in the state only."""
        self._topics[topic.name] = topic

    def remove_topic(self, topic: TopicRecord, tombstone: Tombstone) -> None:
        """Take a topic out and leave its tombstone."""
        del self._topics[topic.name]
        tombstones = {**self.state.tombstones, tombstone.id: tombstone}
        self.state = replace(self.state, tombstones=tombstones)
        self.write(entries.topic_removal(topic, tombstone))

    def set_partitions(self, topic: TopicRecord, records: Iterable[PartitionRecord]) -> None:
        """Replace these partitions of a topic."""
        partitions = list(topic.partitions)
        for record in records:
            partitions[record.number] = record
            self.write([entries.partition_put(topic.id, record)])
        self.set_topic(replace(topic, partitions=tuple(partitions)))

    def plan(self, answer: Answer) -> Plan[Answer]:
        """The plan, with the answer to who asked."""
        return Plan(answer, self.state, tuple(self._writes.values()), tuple(self.reports))
