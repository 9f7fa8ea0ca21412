"""The task that compacts logs: which one, how fast, and what it does with errors."""

import errno
from dataclasses import replace

import pytest
import trio

from minibroker.broker.log.outcomes import DISK_FULL_TEXT
from minibroker.broker.replication.log_cleaner import CleanerLimits, LogCleaner
from minibroker.protocol.records.record import encode_batch
from minibroker.protocol.types import TopicPartition
from tests.unit.log.workbench import NOW, Bench

NAME = TopicPartition("t", 0)
OTHER = TopicPartition("u", 0)


class Replica:
    """A partition with a log, all of which is committed."""

    def __init__(self, name: TopicPartition, records: int) -> None:
        limits = {"segment_bytes": 300, "is_compacted": True, "cleanable_dirty_ratio_min": 0.4}
        self.bench = Bench(name, **limits)
        self.topic_partition = name
        self.put(records)

    @property
    def log(self):
        return self.bench.log

    @property
    def high_watermark(self) -> int:
        return self.log.log_end

    def put(self, records: int) -> None:
        for number in range(records):
            batch = memoryview(encode_batch([(NOW, b"k", b"%d" % number, ())]))
            self.log.append_as_leader(batch, 0, NOW)


def cleaner(*replicas: Replica, **limits) -> LogCleaner:
    async def in_worker(function):
        await trio.sleep(0.001)
        return function()

    given = CleanerLimits(1.0, 1e12, 1 << 20)._replace(**limits)
    table = {one.topic_partition: one for one in replicas}
    checkpoints = []
    made = LogCleaner(given, table, lambda: NOW, in_worker, lambda: checkpoints.append(1))
    made.checkpoints = checkpoints
    return made


async def run(cleaner: LogCleaner, seconds: float = 20.0) -> None:
    with trio.move_on_after(seconds):
        await cleaner.run()


async def test_the_dirtiest_log_is_compacted_and_then_the_others(autojump_clock):
    """Each due log is compacted once, and the offsets are checkpointed."""
    first, second = Replica(NAME, 50), Replica(OTHER, 100)
    plain = Replica(TopicPartition("v", 0), 50)
    plain.log.limits = replace(plain.log.limits, is_compacted=False)
    size, before = plain.log.size, [first.log.size, second.log.size]
    found = cleaner(first, second, plain)
    await run(found)
    assert found.statistics().runs == 2
    assert len(found.checkpoints) == 2
    for one, size_before in zip((first, second), before, strict=True):
        assert one.log.compaction.first_dirty > 40
        assert one.log.size < size_before / 2
    assert plain.log.size == size


async def test_a_damaged_log_is_reported_once_and_the_others_go_on(caplog, autojump_clock):
    """A batch that cannot be read ends the compaction of its log until the log is truncated."""
    first, second = Replica(NAME, 50), Replica(OTHER, 50)
    first.bench.files.flip(first.log._segments[2].path, 70)
    found = cleaner(first, second)
    await run(found)
    assert [*found.statistics().failed] == [NAME]
    assert found.statistics().runs == 1
    assert len([one for one in caplog.records if "is not compacted" in one.message]) == 1
    first.log.truncate_to(first.log._segments[2].base_offset, NOW)
    first.put(50)
    await run(found)
    assert not found.statistics().failed
    assert found.statistics().runs == 2


@pytest.mark.parametrize("operation", ["read", "append", "sync"])
async def test_a_disk_that_fails_stops_one_compaction_and_not_the_broker(
    operation: str, autojump_clock
):
    """The log is as it was, and is named; the others are compacted."""
    first, second = Replica(NAME, 100), Replica(OTHER, 50)
    records, size = first.bench.offsets(), first.log.size
    name = "" if operation == "read" else "cleaned"
    first.bench.files.fail(operation, number=errno.EIO, name=name)
    found = cleaner(first, second)
    await run(found)
    assert [*found.statistics().failed] == [NAME]
    assert found.statistics().runs == 1
    assert (first.bench.offsets(), first.log.size) == (records, size)
    names = first.bench.files.list(first.log.directory)
    assert not [one for one in names if "cleaned" in one]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EMFILE])
async def test_a_shortage_is_waited_for(number: int, caplog, autojump_clock):
    """With a full disk, or no descriptor, the log stays as it is and is compacted later."""
    one = Replica(NAME, 50)
    found = cleaner(one)
    one.bench.files.fail("open", number=number, times=3)
    await run(found, 2.5)
    assert one.log.size > 1000
    assert "is compacted later" in caplog.text
    await run(found)
    assert found.statistics().runs == 1
    assert DISK_FULL_TEXT in caplog.text or number != errno.ENOSPC


async def test_it_keeps_to_its_rate(autojump_clock):
    """A compaction takes as long as log.cleaner.io.max.bytes.per.second wants."""
    times = []
    for rate in (1e12, 64 * 1024):
        one = Replica(NAME, 100)
        found = cleaner(one, bytes_per_s=rate)
        finished = trio.Event()
        found._checkpoint = finished.set
        began_at = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(found.run)
            await finished.wait()
            nursery.cancel_scope.cancel()
        times.append(trio.current_time() - began_at)
    assert times[0] < 1
    assert times[1] > 50, "about 50 steps, of 64 KB that are read and written"
