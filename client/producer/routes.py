"""From a topic and a key to a lane, also before the cluster has told which partitions there are.

A `Route` is what the producer looks up for every record, so it is two attribute reads away from
the lane: `sticky` for records without a key, `by_key` for those with one. `by_key` remembers where
keys went, because murmur2 in Python costs more than all the rest; it is emptied when it has grown
large.

A program may send before the topic's metadata are known. Such a route is an orphan: its records
gather, in the order in which they come, in a lane that is no partition's (number -1), which no
drain ever serves. When the partitions are learnt, whole batches of records without keys move to a
partition each, and all others are placed one by one, in that order: so each partition gets its
records as they were sent. If the topic turns out not to exist they fail with that reason.
"""

from collections.abc import Callable
from typing import Final

from minibroker.client.producer.accumulator import Accumulator
from minibroker.client.producer.batches import (
    NO_BATCH,
    Batch,
    Lane,
    Watcher,
)
from minibroker.client.producer.partitioner import next_partition, partition_for_key
from minibroker.client.producer.raw_record import RawRecord, record_bytes
from minibroker.protocol.constants import NO_TIMESTAMP
from minibroker.protocol.records.batch import read_header
from minibroker.protocol.records.columns import decode_columns
from minibroker.protocol.records.record import decode_records
from minibroker.protocol.types import TopicPartition

ORPHANS: Final = -1

# Keys whose partition a route remembers; about 20 MB a topic at most for short keys.
KEYS_REMEMBERED_MAX: Final = 100_000


class Route:
    """Where a topic's records go."""

    __slots__ = ("by_key", "lanes", "sticky", "topic")

    def __init__(self, topic: str, sticky: Lane) -> None:
        self.topic = topic
        self.sticky = sticky  # takes the records without a key
        self.by_key: dict[bytes, Lane] = {}
        self.lanes: dict[int, Lane] = {}  # by partition; empty until the topic is known

    @property
    def is_orphan(self) -> bool:
        """Whether the topic's partitions are not known yet."""
        return not self.lanes


class Routes:
    """The routes of one producer."""

    def __init__(
        self, accumulator: Accumulator, has_leader: Callable[[TopicPartition], bool]
    ) -> None:
        self.accumulator = accumulator
        self._has_leader = has_leader
        self.by_topic: dict[str, Route] = {}
        self.unasked: list[str] = []  # topics that somebody must ask the cluster for
        self.orphans: set[str] = set()

    def append(
        self,
        lane: Lane,
        record: RawRecord,
        now: float,
        *,
        now_ms: int = NO_TIMESTAMP,
        watcher: Watcher | None = None,
        may_overdraw: bool = False,
    ) -> None:
        """Put a record into the lane's open batch, or open one. Raises `BufferFull`.

        `now_ms` is for records that come without a time, this one or those behind it.
        """
        size = record_bytes(record)
        batch = lane.open
        if batch.room < size:
            batch = self.accumulator.open_batch(lane, size, now, now_ms, may_overdraw=may_overdraw)
        batch.room -= size
        if watcher is not None:
            if batch.watchers is None:
                batch.watchers = []
            batch.watchers.append((len(batch.records), watcher))
        batch.append(record)

    def lane_for(self, topic: str, partition: int | None, record: RawRecord) -> Lane:
        """The lane of such a record. Raises `ValueError` for a partition that does not exist."""
        key = record[1]
        route = self.by_topic.get(topic)
        if route is None:
            route = self._open_orphan(topic)
        if partition is not None and (partition < 0 or 0 < len(route.lanes) <= partition):
            raise _no_partition(route, TopicPartition(topic, partition))
        if route.is_orphan:
            return route.sticky
        if partition is not None:
            return route.lanes[partition]
        if key is None:
            if route.sticky.open.room < record_bytes(record):
                self._rotate(route)
            return route.sticky
        lane = route.by_key.get(key)
        if lane is None:
            if len(route.by_key) >= KEYS_REMEMBERED_MAX:
                route.by_key.clear()
            lane = route.lanes[partition_for_key(key, len(route.lanes))]
            route.by_key[key] = lane
        return lane

    def holds_back(self, topic: str) -> bool:
        """Whether records of the topic wait for its partitions to be known."""
        if topic not in self.orphans:
            return False
        lane = self.by_topic[topic].sticky
        return lane.open is not NO_BATCH or bool(lane.queue)

    def _open_orphan(self, topic: str) -> Route:
        sticky = self.accumulator.lane(TopicPartition(topic, ORPHANS))
        route = self.by_topic[topic] = Route(topic, sticky)
        self.orphans.add(topic)
        self.unasked.append(topic)
        return route

    def _rotate(self, route: Route) -> None:
        """The sticky lane's batch is done: go on to the next partition."""
        if route.sticky.open is not NO_BATCH:
            self.accumulator.seal(route.sticky)
        partition = next_partition(
            route.sticky.topic_partition.partition,
            len(route.lanes),
            lambda number: self._has_leader(TopicPartition(route.topic, number)),
        )
        route.sticky = route.lanes[partition]

    def learnt(self, topic: str, partition_count: int, start: int, now: float) -> None:
        """The topic's partitions are known: place what waited. `start` is the first in turn.

        May hold more than buffer.memory for a moment, as every lane opens a batch.
        """
        route = self.by_topic[topic]
        assert route.is_orphan, "a topic is learnt once"
        self.orphans.discard(topic)
        orphans = route.sticky
        if orphans.open is not NO_BATCH:
            self.accumulator.seal(orphans)
        route.lanes = {
            number: self.accumulator.lane(TopicPartition(topic, number))
            for number in range(partition_count)
        }
        route.sticky = route.lanes[start]
        while orphans.queue:
            if _may_go_anywhere(orphans.queue[0]):
                self._rotate(route)
                self.accumulator.adopt(orphans, route.sticky)
            else:
                self._place_each(topic, self.accumulator.take_back(orphans), now)
        self.accumulator.seal_all()  # what waited has lingered; later records have their own time
        for lane in self.accumulator.lanes_of(topic):
            if lane.topic_partition.partition >= partition_count:
                self.accumulator.fail_lane(lane, _no_partition(route, lane.topic_partition))

    def _place_each(self, topic: str, batch: Batch, now: float) -> None:
        watchers = dict(batch.watchers or ())
        named = batch.named or {}
        for index, record in enumerate(decode_records(batch.data, read_header(batch.data))):
            raw: RawRecord = (record.timestamp, record.key, record.value, record.headers)
            if index in named:  # perhaps a partition that there is not, which fails later
                lane = self.accumulator.lane(TopicPartition(topic, named[index]))
            else:
                lane = self.lane_for(topic, None, raw)
            watcher = watchers.get(index)
            self.append(lane, raw, now, watcher=watcher, may_overdraw=True)

    def unknown(self, topic: str, error: Exception) -> None:
        """There is no such topic: what waited for it fails, and the next record asks again."""
        del self.by_topic[topic]
        self.orphans.discard(topic)
        for lane in self.accumulator.lanes_of(topic):
            self.accumulator.fail_lane(lane, error)

    def forget(self, topic: str) -> None:
        """The topic was deleted: drop what is kept of it, unless records wait for it. If it comes
        back it is learnt like a new one."""
        is_known = topic in self.by_topic and topic not in self.orphans
        if is_known and self.accumulator.drop_lanes(topic):
            del self.by_topic[topic]


def _may_go_anywhere(batch: Batch) -> bool:
    """Whether all its records are without a key and without a partition that was named."""
    if batch.named is not None:
        return False
    columns = decode_columns(batch.data, read_header(batch.data))
    return columns.keys.count(None) == batch.record_count


def _no_partition(route: Route, topic_partition: TopicPartition) -> ValueError:
    known = f"has {len(route.lanes)} partitions, numbered from 0" if route.lanes else "is new"
    return ValueError(f"topic {route.topic!r} {known}: there is no {topic_partition}")
