"""What compaction costs: a million updates of 10,000 keys, and a million commits of 1,000.

The yardstick of the cleaning is a plain read of the same log that checks and decodes every batch,
in the processor time of this process, by turns with it. What an answer waits for while a broker
compacts is measured on a broker, by turns with the same broker at rest.
"""

import random
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import trio

from minibroker.broker.coordination.replay import read_chunks
from minibroker.broker.disk import RealFiles
from minibroker.broker.groups.offsets import OffsetTable
from minibroker.broker.groups.records import (
    CommittedOffset,
    OffsetKey,
    decode,
    encode_key,
    encode_value,
)
from minibroker.broker.log.cleaning import _Cursor, read_keys
from minibroker.broker.log.log import Log
from minibroker.broker.log.newest_offsets import NewestOffsets
from minibroker.broker.log.outcomes import LogLocation
from minibroker.broker.turns import without_pause
from minibroker.client import Admin, NewTopic
from minibroker.protocol.constants import ACKS_LEADER, ApiKey
from minibroker.protocol.messages.produce import PartitionProduce, ProduceRequest
from minibroker.protocol.messages.replicas import CompactionDescription, DescribeReplicasRequest
from minibroker.protocol.records.columns import decode_columns
from minibroker.protocol.records.record import RecordToSend, encode_batch
from minibroker.protocol.types import TopicPartition
from tests.bench.raw import PRODUCES_IN_FLIGHT, RawClient
from tests.bench.rounds import (
    Row,
    by_turns,
    fresh_broker,
    median_of,
    megabytes,
    milliseconds,
    seconds,
)
from tests.unit.log.workbench import NOW, UNLIMITED

UPDATES: Final = 1_000_000
KEYS: Final = 10_000
COMMITS: Final = 1_000_000
GROUPS, PARTITIONS = 10, 100
AT_ONCE: Final = 130  # records of a batch: about 16 KB
SEGMENT_BYTES: Final = 16 << 20
COMMITS_SEGMENT_BYTES: Final = 8 << 20
MAP_BYTES: Final = 128 << 20
CLEANING_RATIO_MIN: Final = 0.5
P99_RATIO_MAX: Final = 1.2
PACE_S: Final = 0.002  # between two requests whose answers are timed
STARTS_WITHIN_S: Final = 0.3
MEASURED_S: Final = 5.0
P99_ROUNDS: Final = 5
COMPACTED_S_MAX: Final = 60.0

Draw = Callable[[random.Random], tuple[bytes, bytes]]


def _of_one_size(rng: random.Random) -> tuple[bytes, bytes]:
    return b"key-%06d" % rng.randrange(KEYS), b"v" * 100


def _of_all_sizes(rng: random.Random) -> tuple[bytes, bytes]:
    return b"key-%d" % rng.randrange(KEYS), b"v" * rng.randrange(50, 150)


def _batches(count: int, draw: Draw) -> Iterator[bytearray]:
    rng = random.Random(1)
    for first in range(0, count, AT_ONCE):
        rows = [draw(rng) for _ in range(min(AT_ONCE, count - first))]
        yield encode_batch([(NOW, key, value, ()) for key, value in rows])


@contextmanager
def _log_of(batches: Iterator[bytearray], segment_bytes: int) -> Iterator[Log]:
    """A log on this machine's disk."""
    with TemporaryDirectory(prefix="minibroker-bench-") as directory:
        location = LogLocation(RealFiles(), Path(directory) / "t-0", TopicPartition("t", 0))
        limits = replace(UNLIMITED, segment_bytes=segment_bytes, is_compacted=True)
        log = Log.open(location, limits, now_ms=NOW)
        for batch in batches:
            log.append_as_leader(memoryview(batch), 0, NOW)
        try:
            yield log
        finally:
            log.abandon()


def _clean(log: Log) -> float:
    """Compact it; return bytes per second of processor time."""
    found = log.compaction.find_cleanable(log.log_end, NOW)
    began = time.process_time()
    without_pause(log.compaction.clean(found, MAP_BYTES, NOW))
    return found.dirty_size / (time.process_time() - began)


def _read(log: Log) -> float:
    """Read and decode what would be compacted; return bytes per second of processor time."""
    size = 0
    began = time.process_time()
    for segment in [*log._segments][:-1]:
        cursor = _Cursor(segment, segment.base_offset)
        while not cursor.is_at_end:
            for batch, header in cursor.read():
                decode_columns(batch, header)
        size += segment.size
    return size / (time.process_time() - began)


def compaction_throughput() -> Iterator[Row]:
    """Of a dirty log, beside a plain read."""
    for name, draw in (("one size", _of_one_size), ("all sizes", _of_all_sizes)):

        def ours(draw: Draw = draw) -> float:
            with _log_of(_batches(UPDATES, draw), SEGMENT_BYTES) as log:
                return _clean(log)

        def theirs(draw: Draw = draw) -> float:
            with _log_of(_batches(UPDATES, draw), SEGMENT_BYTES) as log:
                return _read(log)

        pair = by_turns(ours, theirs)
        yield Row(
            f"compacting {UPDATES:,} updates of {KEYS:,} keys, values of {name}, a CPU second",
            megabytes(pair.ours),
            "a plain read that decodes the same",
            megabytes(pair.theirs),
            f"{pair.ratio:.2f}",
            f"ratio >= {CLEANING_RATIO_MIN}",
            pair.ratio >= CLEANING_RATIO_MIN,
        )


def compaction_memory() -> Iterator[Row]:
    """Of the newest offsets of keys."""
    for keys in (KEYS, 500_000):
        numbers = iter(range(keys))
        batches = _batches(keys, lambda _: (b"key-%016d" % next(numbers), b""))  # noqa: B023
        with _log_of(batches, SEGMENT_BYTES) as log:
            log.append_as_leader(memoryview(encode_batch([(NOW, b"k", b"", ())])), 0, NOW)
            tracemalloc.start()
            newest = NewestOffsets(1 << 40, 0)
            without_pause(read_keys([*log._segments], newest, lambda: None))
            held, _ = tracemalloc.get_traced_memory()
            without_pause(newest.sort())
            _, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
        yield Row(
            f"the map of {keys:,} keys of 20 bytes ({megabytes(held)} before it is sorted)",
            megabytes(peak),
            "what its limit counts for it",
            megabytes(newest.size),
            f"{peak / newest.size:.2f}",
            "<= 1",
            peak <= newest.size,
        )


def compaction_replay() -> Iterator[Row]:
    """How long a coordinator replays a partition of the offsets topic."""
    with _log_of(_commits(), COMMITS_SEGMENT_BYTES) as log:
        size = log.size
        before, told = _replay_s(log), _committed(log)
        _clean(log)
        assert _committed(log) == told
        after = median_of(lambda: _replay_s(log))
    yield Row(
        f"replaying {COMMITS:,} commits of {GROUPS * PARTITIONS:,} partitions, compacted"
        f" ({megabytes(log.size)})",
        seconds(after),
        f"before the compaction ({megabytes(size)})",
        seconds(before),
        f"{after / before:.3f}",
    )


def _commits() -> Iterator[bytearray]:
    """Each of a group for all its partitions in turn."""
    for number in range(0, COMMITS, PARTITIONS):
        group = f"group-{number // PARTITIONS % GROUPS}"
        records: list[RecordToSend] = []
        for partition in range(PARTITIONS):
            key = encode_key(OffsetKey(group, "events", partition))
            value = encode_value(CommittedOffset(number, 3, "", NOW))
            records.append((NOW, key, value, ()))
        yield encode_batch(records)


def _replay(log: Log) -> OffsetTable:
    table, offset = OffsetTable(), log.log_start
    while offset < log.log_end:
        for chunk in read_chunks(log, offset, log.log_end):
            for at, _, key, value, _ in chunk.records:
                decoded = decode(key, value)
                assert isinstance(decoded, tuple)
                table.replay(at, *decoded)
            offset = chunk.next_offset
    return table


def _replay_s(log: Log) -> float:
    began = time.process_time()
    _replay(log)
    return time.process_time() - began


def _committed(log: Log) -> list[object]:
    table = _replay(log)
    return [dict(table.offsets(f"group-{number}")) for number in range(GROUPS)]


def compaction_latency() -> Iterator[Row]:
    """How long a produce request waits for its answer while the broker compacts another topic."""
    options = ["log.cleaner.backoff.ms=100", "log.retention.ms=-1"]  # records are of 1970
    with fresh_broker(*(word for option in options for word in ("--set", option))) as broker:
        trio.run(_create, broker.address, NewTopic("measured", 1))
        rounds = [_latencies(broker.address, f"table-{number}") for number in range(P99_ROUNDS)]
    for name, share in (("p50", 0.5), ("p99", 0.99)):
        quiet = sorted(_quantile(at_rest, share) for at_rest, _ in rounds)
        busy = sorted(_quantile(at_work, share) for _, at_work in rounds)
        ratios = sorted(
            _quantile(at_work, share) / _quantile(at_rest, share) for at_rest, at_work in rounds
        )
        ours, theirs, ratio = (each[len(each) // 2] for each in (busy, quiet, ratios))
        is_wanted = name == "p99"
        yield Row(
            f"an acknowledgement, acks=1, {1 / PACE_S:.0f} a second, while it compacts, {name}",
            milliseconds(ours * 1000),
            "the same broker at rest",
            milliseconds(theirs * 1000),
            f"{ratio:.2f}",
            f"ratio <= {P99_RATIO_MAX}" if is_wanted else "",
            ratio <= P99_RATIO_MAX if is_wanted else None,
        )


async def _create(address: str, topic: NewTopic) -> None:
    async with Admin(address) as admin:
        await admin.create_topics(topic)


async def _compact(address: str, topic: str) -> None:
    async with Admin(address) as admin:
        await admin.alter_configs({topic: {"cleanup.policy": "compact"}})


def _quantile(times: Sequence[float], share: float) -> float:
    return sorted(times)[int(len(times) * share)]


def _latencies(address: str, table: str) -> tuple[list[float], list[float]]:
    """The times of answers, in seconds: at rest, and while a topic is compacted."""
    configs = {"segment.bytes": str(SEGMENT_BYTES)}
    trio.run(_create, address, NewTopic(table, 1, configs=configs))
    with RawClient(address) as client:
        _fill(client, table)
        time.sleep(1.0)  # the flush of what was written
        at_rest = [took for _, took in _answers(client)]
        trio.run(_compact, address, table)
        began = time.perf_counter()
        measured = _answers(client)
        ended = _end_of_compaction(client, table)
    return at_rest, [took for at, took in measured if began + STARTS_WITHIN_S < at < ended]


def _fill(client: RawClient, topic: str) -> None:
    under_way = 0
    for batch in _batches(UPDATES, _of_one_size):
        produce = ProduceRequest(ACKS_LEADER, 30_000, (PartitionProduce(topic, 0, bytes(batch)),))
        client.send(ApiKey.PRODUCE, produce)
        under_way += 1
        if under_way == PRODUCES_IN_FLIGHT:
            _receive(client)
            under_way -= 1
    for _ in range(under_way):
        _receive(client)


def _receive(client: RawClient) -> None:
    answer = client.receive(ApiKey.PRODUCE)
    assert all(one.error == 0 for one in answer.partitions), answer  # type: ignore[attr-defined]


def _answers(client: RawClient) -> list[tuple[float, float]]:
    """When each request of ten records was due, and how long after that its answer came."""
    batch = bytes(encode_batch([(NOW, b"k", b"v" * 100, ())] * 10))
    request = ProduceRequest(ACKS_LEADER, 30_000, (PartitionProduce("measured", 0, batch),))
    found = []
    due = time.perf_counter()
    until = due + MEASURED_S
    while due < until:
        time.sleep(max(0.0, due - time.perf_counter()))
        client.send(ApiKey.PRODUCE, request)
        _receive(client)
        found.append((due, time.perf_counter() - due))
        due += PACE_S
    return found


def _end_of_compaction(client: RawClient, topic: str) -> float:
    """When it ended; waits for that."""
    until = time.perf_counter() + COMPACTED_S_MAX
    while time.perf_counter() < until:
        answer = client.call(ApiKey.DESCRIBE_REPLICAS, DescribeReplicasRequest((topic,)))
        [replica] = answer.replicas  # type: ignore[attr-defined]
        told = replica.compaction
        assert isinstance(told, CompactionDescription)
        assert not told.stopped, told
        if told.run_age_ms >= 0:
            return time.perf_counter() - told.run_age_ms / 1000
        time.sleep(0.2)
    raise AssertionError(f"{topic} is not compacted after {COMPACTED_S_MAX:g} s")


MEASURES = (
    compaction_throughput,
    compaction_memory,
    compaction_replay,
    compaction_latency,
)
