"""Routes from a topic and a key to a partition's queue, even before the topic's metadata are known.

The producer looks up a `Route` for every record, so it needs two attribute reads: `sticky` for
records without a key, `by_key` for those with one. `by_key` caches the queues of keys, because
murmur2 in Python takes more time than all the rest; it is emptied when it has grown large.

A program may send before the topic's metadata are known. Such a route is unassigned: its records
are collected, in order, in a queue without a partition (number -1), which is never drained. When
the metadata arrive, whole batches of records without keys move to a partition each, and all other
records are placed one by one, in that order: so each partition gets its records as they were sent.
If the topic turns out not to exist, they fail with that error.

A topic may get more partitions, which the client learns from metadata. From then on records go to
all of them: a key may have another partition than before.
"""

from collections.abc import Callable
from typing import Final

from minibroker.client.producer.accumulator import Accumulator
from minibroker.client.producer.batches import (
    NO_BATCH,
    Batch,
    PartitionQueue,
    Watcher,
)
from minibroker.client.producer.partitioner import next_partition, partition_for_key
from minibroker.client.producer.raw_record import RawRecord, record_bytes
from minibroker.protocol.constants import NO_TIMESTAMP
from minibroker.protocol.records.batch import read_header
from minibroker.protocol.records.columns import decode_columns
from minibroker.protocol.records.record import decode_records
from minibroker.protocol.types import TopicPartition

UNASSIGNED: Final = -1

# How many keys a route caches; about 20 MB a topic at most for short keys.
KEYS_REMEMBERED_MAX: Final = 100_000


class Route:
    """The queues for a topic's records."""

    __slots__ = ("by_key", "queues", "sticky", "topic")

    def __init__(self, topic: str, sticky: PartitionQueue) -> None:
        self.topic = topic
        self.sticky = sticky  # the queue for records without a key
        self.by_key: dict[bytes, PartitionQueue] = {}
        self.queues: dict[int, PartitionQueue] = {}  # by partition; empty until the topic is known

    @property
    def is_unassigned(self) -> bool:
        """Whether the topic's partitions are not known yet."""
        return not self.queues


class Routes:
    """The routes of one producer."""

    def __init__(
        self, accumulator: Accumulator, has_leader: Callable[[TopicPartition], bool]
    ) -> None:
        self.accumulator = accumulator
        self._has_leader = has_leader
        self.by_topic: dict[str, Route] = {}
        self.topics_to_ask: list[str] = []  # topics whose metadata are to be requested
        self.unassigned: set[str] = set()

    def append(
        self,
        queue: PartitionQueue,
        record: RawRecord,
        size: int,
        now: float,
        *,
        now_ms: int = NO_TIMESTAMP,
        watcher: Watcher | None = None,
        may_overdraw: bool = False,
    ) -> None:
        """Append a record to the queue's open batch, or open one. Raises `BufferFull`.

        `size` is what `record_bytes` returns for it. `now_ms` is the time of records without one,
        this or later ones.
        """
        batch = queue.open_batch
        if batch.room < size:
            batch = self.accumulator.open_batch(queue, size, now, now_ms, may_overdraw=may_overdraw)
        batch.room -= size
        if watcher is not None:
            if batch.watchers is None:
                batch.watchers = []
            batch.watchers.append((len(batch.records), watcher))
            watcher.timestamp = batch.timestamp_ms if record[0] is None else record[0]
        batch.append(record)

    def queue_for(
        self, topic: str, partition: int | None, key: bytes | None, size: int
    ) -> PartitionQueue:
        """Return the queue for a record of this size. Raises `ValueError` for a partition that does
        not exist."""
        route = self.by_topic.get(topic)
        if route is None:
            route = self._open_unassigned(topic)
        if partition is not None and (partition < 0 or 0 < len(route.queues) <= partition):
            raise _no_partition(route, TopicPartition(topic, partition))
        if route.is_unassigned:
            return route.sticky
        if partition is not None:
            return route.queues[partition]
        if key is None:
            if route.sticky.open_batch.room < size:
                self._rotate(route)
            return route.sticky
        queue = route.by_key.get(key)
        if queue is None:
            if len(route.by_key) >= KEYS_REMEMBERED_MAX:
                route.by_key.clear()
            queue = route.queues[partition_for_key(key, len(route.queues))]
            route.by_key[key] = queue
        return queue

    def holds_records_of(self, topic: str) -> bool:
        """Whether records of the topic wait for its partitions to be known."""
        if topic not in self.unassigned:
            return False
        queue = self.by_topic[topic].sticky
        return queue.open_batch is not NO_BATCH or bool(queue.sealed)

    def _open_unassigned(self, topic: str) -> Route:
        sticky = self.accumulator.queue(TopicPartition(topic, UNASSIGNED))
        route = self.by_topic[topic] = Route(topic, sticky)
        self.unassigned.add(topic)
        self.topics_to_ask.append(topic)
        return route

    def _rotate(self, route: Route) -> None:
        """Go on to the next partition, because the sticky queue's batch is sealed."""
        if route.sticky.open_batch is not NO_BATCH:
            self.accumulator.seal(route.sticky)
        current = route.sticky.topic_partition
        route.sticky = route.queues[next_partition(current, len(route.queues), self._has_leader)]

    def on_partitions_known(self, topic: str, partition_count: int, start: int, now: float) -> None:
        """Place the waiting records, because the topic's partitions are known. `start` is the first
        in turn.

        This may use more than buffer.memory for a moment, because every queue opens a batch.
        """
        route = self.by_topic[topic]
        assert route.is_unassigned, "a topic is learnt once"
        self.unassigned.discard(topic)
        unassigned = route.sticky
        if unassigned.open_batch is not NO_BATCH:
            self.accumulator.seal(unassigned)
        route.queues = {
            number: self.accumulator.queue(TopicPartition(topic, number))
            for number in range(partition_count)
        }
        route.sticky = route.queues[start]
        while unassigned.sealed:
            if _may_go_anywhere(unassigned.sealed[0]):
                self._rotate(route)
                self.accumulator.move_first(unassigned, route.sticky)
            else:
                self._place_each(topic, self.accumulator.remove_first(unassigned), now)
        self.accumulator.seal_all()  # what waited has lingered; later records have their own time
        for queue in self.accumulator.queues_of(topic):
            if queue.topic_partition.partition >= partition_count:
                self.accumulator.fail_queue(queue, _no_partition(route, queue.topic_partition))

    def on_metadata(self, count_of: Callable[[str], int]) -> None:
        """Handle new metadata: topics may have more partitions than their routes."""
        for topic, route in self.by_topic.items():
            known = len(route.queues)
            added = range(known, count_of(topic)) if known else range(0)
            for number in added:
                route.queues[number] = self.accumulator.queue(TopicPartition(topic, number))
            if added:
                route.by_key.clear()

    def _place_each(self, topic: str, batch: Batch, now: float) -> None:
        watchers = dict(batch.watchers or ())
        named = batch.explicit_partitions or {}
        for index, record in enumerate(decode_records(batch.data, read_header(batch.data))):
            raw: RawRecord = (record.timestamp, record.key, record.value, record.headers)
            size = record_bytes(raw)
            if index in named:  # perhaps a partition that does not exist, which fails later
                queue = self.accumulator.queue(TopicPartition(topic, named[index]))
            else:
                queue = self.queue_for(topic, None, record.key, size)
            watcher = watchers.get(index)
            self.append(queue, raw, size, now, watcher=watcher, may_overdraw=True)

    def on_unknown_topic(self, topic: str, error: Exception) -> None:
        """Handle that the topic does not exist: its waiting records fail, and the next one asks
        again."""
        del self.by_topic[topic]
        self.unassigned.discard(topic)
        for queue in self.accumulator.queues_of(topic):
            self.accumulator.fail_queue(queue, error)

    def forget(self, topic: str) -> None:
        """Drop the route of a deleted topic, unless records wait for it. If the topic comes back,
        it is looked up like a new one."""
        is_known = topic in self.by_topic and topic not in self.unassigned
        if is_known and self.accumulator.drop_queues(topic):
            del self.by_topic[topic]


def _may_go_anywhere(batch: Batch) -> bool:
    """Whether all its records have no key and name no partition."""
    if batch.explicit_partitions is not None:
        return False
    columns = decode_columns(batch.data, read_header(batch.data))
    return columns.keys.count(None) == batch.record_count


def _no_partition(route: Route, topic_partition: TopicPartition) -> ValueError:
    known = f"has {len(route.queues)} partitions, numbered from 0" if route.queues else "is new"
    return ValueError(f"topic {route.topic!r} {known}: there is no {topic_partition}")
