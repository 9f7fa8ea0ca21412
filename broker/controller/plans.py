"""Plans: the result of a decision, which is an answer, the next state, and the writes to the store.

Deciding is pure: nothing waits, and nothing is kept between calls. If the transaction of a plan
fails, or its controller dies, a plan is made again from the store's contents at that time.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, Generic, NamedTuple, TypeVar

from minibroker.broker.controller import entries
from minibroker.broker.controller.state import (
    Admission,
    BrokerRegistration,
    PartitionRecord,
    State,
    Tombstone,
    TopicRecord,
)
from minibroker.broker.metadata.store import Delete, Put
from minibroker.broker.turns import Turns, at_once
from minibroker.protocol.types import TopicPartition

Answer = TypeVar("Answer")


class Report(NamedTuple):
    """A line to log when a plan was carried out; `level` is one of logging's."""

    level: int
    text: str


class Change(NamedTuple):
    """The difference between two states, which the brokers must be told."""

    topics: tuple[str, ...] = ()  # new, or with other settings, or with more partitions
    deleted: tuple[tuple[str, bytes], ...] = ()
    partitions: tuple[TopicPartition, ...] = ()
    has_other_brokers: bool = False


NO_CHANGE: Final = Change()


@dataclass(frozen=True, slots=True)
class Plan(Generic[Answer]):
    """What to do for a request. Without `writes` the answer is all.

    If a store does not take all writes in one transaction, it gets them in parts. Their order lets
    a controller that finds only the first parts continue from there: a broker's admission is
    written last; a topic exists when its own entry is written, after the partitions that it counts;
    and a topic is deleted when its tombstone is written, before the rest of it is removed.
    `entries.leftovers` finds what an unfinished plan has left.
    """

    answer: Answer
    state: State
    writes: tuple[Put | Delete, ...] = ()
    reports: tuple[Report, ...] = ()
    change: Change = NO_CHANGE


class Draft:
    """A plan in the making: the changed state so far, and the last write to each key.

    Its cost is that of the changes, except for one copy of the table of topics.
    """

    def __init__(self, state: State) -> None:
        self._before = state
        self._topics = dict(state.topics)  # this draft's own, so that it can change in place
        # Topics whose partitions change, with these lists instead of the topics' own tuples.
        self._partitions: dict[str, list[PartitionRecord]] = {}
        self._writes: dict[str, Put | Delete] = {}
        self._changed: dict[TopicPartition, None] = {}
        self._updated_topics: dict[
            str, None
        ] = {}  # topics: new, or other settings or more partitions
        self._deleted: dict[str, bytes] = {}
        self._added: list[tuple[TopicRecord, int]] = []  # topics, and their first new partition
        self._added_count = 0
        # `topics` is this draft's own table. Their partitions are as they were: see `partition`.
        self.state = replace(state, topics=self._topics)
        self.reports: list[Report] = []

    @cached_property
    def _count_before(self) -> int:
        return sum(len(topic.partitions) for topic in self._before.topics.values())

    @property
    def partition_count(self) -> int:
        """The number of partitions, with those added by this draft."""
        return self._count_before + self._added_count

    def spelled_like(self, name: str) -> str | None:
        """Return a topic whose name differs from this one only in `.` and `_`, or None."""
        return self._spellings.get(_spelled(name))

    @cached_property
    def _spellings(self) -> dict[str, str]:
        return {_spelled(name): name for name in self._topics}

    def partition(self, name: TopicPartition) -> PartitionRecord | None:
        """Return a partition with this draft's changes; None if it does not exist."""
        changed = self._partitions.get(name.topic)
        if changed is not None and 0 <= name.partition < len(changed):
            return changed[name.partition]
        return self.state.partition(name)

    def write(self, writes: Iterable[Put | Delete]) -> None:
        """Add writes; they replace earlier writes to the same keys."""
        self._writes.update((write.key, write) for write in writes)

    def set_brokers(
        self,
        brokers: Mapping[int, BrokerRegistration],
        admissions: Mapping[int, Admission],
        fenced: frozenset[int],
    ) -> None:
        """Set the live brokers, and which of them are fenced, in the state only."""
        self.state = replace(
            self.state, brokers=dict(brokers), admissions=admissions, fenced=fenced
        )

    def set_topic(self, topic: TopicRecord) -> None:
        """Replace a topic, with other settings."""
        self._topics[topic.name] = topic
        self._updated_topics[topic.name] = None
        self.write([entries.topic_put(topic)])

    def set_group(self, group_id: str, configs: Mapping[str, str]) -> None:
        """Replace a group's own settings; without any it has none."""
        groups = {**self.state.groups, group_id: configs}
        if not configs:
            del groups[group_id]
        self.state = replace(self.state, groups=groups)
        self.write([entries.group_write(group_id, configs)])

    def set_broker_configs(self, node_id: int, configs: Mapping[str, str]) -> None:
        """Replace the settings that a broker was given while it runs; without any it has none."""
        known = {**self.state.broker_configs, node_id: configs}
        if not configs:
            del known[node_id]
        self.state = replace(self.state, broker_configs=known)
        self.write([entries.broker_configs_write(node_id, configs)])

    def set_feature_level(self, level: int) -> None:
        """Finalize a level of minibroker.version."""
        self.state = replace(self.state, feature_level=level)
        self.write([entries.feature_level_put(level)])

    def add_topic(self, topic: TopicRecord) -> TopicRecord:
        """Add a topic with the next creation number; `write_added` writes it."""
        self.state = replace(self.state, creation=self.state.creation + 1)
        topic = replace(topic, creation=self.state.creation)
        self._topics[topic.name] = topic
        self._added.append((topic, 0))
        self._added_count += len(topic.partitions)
        self._spellings[_spelled(topic.name)] = topic.name
        return topic

    def add_partitions(self, topic: TopicRecord, added: Iterable[PartitionRecord]) -> TopicRecord:
        """Add partitions behind those of a topic, at most once; `write_added` writes them."""
        first = len(topic.partitions)
        topic = replace(topic, partitions=(*topic.partitions, *added))
        self._topics[topic.name] = topic
        self._added.append((topic, first))
        self._added_count += len(topic.partitions) - first
        return topic

    def write_added(self) -> Turns[None]:
        """Write the topics that were added or have more partitions, each behind its partitions."""
        for some in at_once(self._puts()):
            self.write(some)
            yield

    def _puts(self) -> Iterator[Put]:
        for topic, first in self._added:
            for record in topic.partitions[first:]:
                self._changed[TopicPartition(topic.name, record.number)] = None
                yield entries.partition_put(topic.id, record)
            self._updated_topics[topic.name] = None
            yield entries.topic_put(topic)

    def remove_topic(self, topic: TopicRecord, tombstone: Tombstone) -> None:
        """Remove a topic and leave its tombstone."""
        del self._topics[topic.name]
        self._deleted[topic.name] = topic.id
        tombstones = {**self.state.tombstones, tombstone.id: tombstone}
        self.state = replace(self.state, tombstones=tombstones)
        self.write(entries.topic_removal(topic, tombstone))

    def set_partition(self, topic: TopicRecord, record: PartitionRecord) -> None:
        """Replace a partition of a topic."""
        partitions = self._partitions.get(topic.name)
        if partitions is None:
            partitions = self._partitions[topic.name] = list(topic.partitions)
        partitions[record.number] = record
        self._changed[TopicPartition(topic.name, record.number)] = None
        self.write([entries.partition_put(topic.id, record)])

    def plan(self, answer: Answer) -> Plan[Answer]:
        """Return the plan, with this answer. The draft must not be used afterwards."""
        for name, partitions in self._partitions.items():
            topic = self._topics[name]
            self._topics[name] = replace(topic, partitions=tuple(partitions))
        before, after = self._before, self.state
        change = Change(
            tuple(name for name in self._updated_topics if name in self._topics),
            tuple(self._deleted.items()),
            tuple(self._changed),
            before.brokers != after.brokers
            or before.admissions != after.admissions
            or before.fenced != after.fenced
            or before.groups != after.groups
            or before.broker_configs != after.broker_configs
            or before.feature_level != after.feature_level,
        )
        writes = tuple(self._writes.values())
        return Plan(answer, after, writes, tuple(self.reports), change)


def _spelled(name: str) -> str:
    return name.replace(".", "_")
