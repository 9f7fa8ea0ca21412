"""From a topic and a key to a lane, also before the cluster has told which partitions there are.

A `Route` is what the producer looks up for every record, so it is two attribute reads away from
the lane: `sticky` for records without a key, `by_key` for those with one. `by_key` remembers where
keys went, because murmur2 in Python costs more than all the rest; it is emptied when it has grown
large.

A program may send before the topic's metadata are known. Such a route is an orphan: its records
gather in two lanes that are no partition's (numbers -1 and -2), which no drain ever serves. When
the partitions are learnt, whole batches of records without keys move to a partition each, and
records with keys are placed one by one. If the topic turns out not to exist they fail with that
reason. Either way their order within a key is kept.
"""

from collections.abc import Callable
from typing import Final

from minibroker.client.accumulator import Accumulator
from minibroker.client.batches import (
    HEADER_OVERHEAD_BYTES,
    NO_BATCH,
    RECORD_OVERHEAD_BYTES,
    Lane,
    RawRecord,
    Watcher,
)
from minibroker.client.partitioner import next_partition, partition_for_key
from minibroker.protocol.constants import NO_TIMESTAMP
from minibroker.protocol.records.batch import read_header
from minibroker.protocol.records.record import decode_records
from minibroker.protocol.types import TopicPartition

ORPHANS_WITHOUT_KEY: Final = -1
ORPHANS_WITH_KEY: Final = -2

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


def record_bytes(record: RawRecord) -> int:
    """What a record takes in a batch, about."""
    _timestamp, key, value, headers = record
    size = RECORD_OVERHEAD_BYTES + len(key or b"") + len(value or b"")
    for name, content in headers:
        size += len(name) + len(content or b"") + HEADER_OVERHEAD_BYTES
    return size


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
        if partition is not None:
            return self._lane_of_partition(route, partition)
        if key is None:
            if route.lanes and route.sticky.open.room < record_bytes(record):
                self._rotate(route)
            return route.sticky
        if route.is_orphan:
            return self.accumulator.lane(TopicPartition(topic, ORPHANS_WITH_KEY))
        lane = route.by_key.get(key)
        if lane is None:
            if len(route.by_key) >= KEYS_REMEMBERED_MAX:
                route.by_key.clear()
            lane = route.lanes[partition_for_key(key, len(route.lanes))]
            route.by_key[key] = lane
        return lane

    def _open_orphan(self, topic: str) -> Route:
        sticky = self.accumulator.lane(TopicPartition(topic, ORPHANS_WITHOUT_KEY))
        route = self.by_topic[topic] = Route(topic, sticky)
        self.orphans.add(topic)
        self.unasked.append(topic)
        return route

    def _lane_of_partition(self, route: Route, partition: int) -> Lane:
        if partition < 0 or (route.lanes and partition >= len(route.lanes)):
            raise _no_partition(route, TopicPartition(route.topic, partition))
        return self.accumulator.lane(TopicPartition(route.topic, partition))

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
        without_key = route.sticky
        if without_key.open is not NO_BATCH:
            self.accumulator.seal(without_key)
        route.lanes = {
            number: self.accumulator.lane(TopicPartition(topic, number))
            for number in range(partition_count)
        }
        route.sticky = route.lanes[start]
        while without_key.queue:
            self._rotate(route)
            self.accumulator.adopt(without_key, route.sticky)
        self._place_by_key(topic, now)
        self.accumulator.seal_all()  # what waited has lingered; later records have their own time
        for lane in self.accumulator.lanes_of(topic):
            if lane.topic_partition.partition >= partition_count:
                self.accumulator.fail_lane(lane, _no_partition(route, lane.topic_partition))

    def _place_by_key(self, topic: str, now: float) -> None:
        orphans = self.accumulator.lane(TopicPartition(topic, ORPHANS_WITH_KEY))
        for batch in self.accumulator.take_back(orphans):
            watchers = dict(batch.watchers or ())
            records = decode_records(batch.data, read_header(batch.data))
            for index, record in enumerate(records):
                raw: RawRecord = (record.timestamp, record.key, record.value, record.headers)
                lane = self.lane_for(topic, None, raw)
                watcher = watchers.get(index)
                self.append(lane, raw, now, watcher=watcher, may_overdraw=True)

    def unknown(self, topic: str, error: Exception) -> None:
        """There is no such topic: what waited for it fails, and the next record asks again."""
        del self.by_topic[topic]
        self.orphans.discard(topic)
        for lane in self.accumulator.lanes_of(topic):
            self.accumulator.fail_lane(lane, error)


def _no_partition(route: Route, topic_partition: TopicPartition) -> ValueError:
    known = f"has {len(route.lanes)} partitions, numbered from 0" if route.lanes else "is new"
    return ValueError(f"topic {route.topic!r} {known}: there is no {topic_partition}")
