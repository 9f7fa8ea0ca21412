"""The task that compacts logs: which one, how fast, and what it does with errors."""

import errno
from dataclasses import replace

import pytest
import trio

from minibroker.broker.log.compaction import HalfSwapped
from minibroker.broker.log.outcomes import DISK_FULL_TEXT
from minibroker.broker.replication.log_cleaner import CleanerLimits, LogCleaner
from minibroker.protocol.records.record import encode_batch
from minibroker.protocol.types import TopicPartition
from tests.unit.log.workbench import NOW, Bench

NAME = TopicPartition("t", 0)
OTHER = TopicPartition("u", 0)


class Replica:
    """A partition with a log, all of which is committed."""

    def __init__(self, name: TopicPartition, records: int, segment_bytes: int = 300) -> None:
        limits = {
            "segment_bytes": segment_bytes,
            "is_compacted": True,
            "cleanable_dirty_ratio_min": 0.4,
        }
        self.bench = Bench(name, **limits)
        self.topic_partition = name
        self.put(records)

    @property
    def log(self):
        return self.bench.log

    @property
    def last_stable_offset(self) -> int:
        return self.log.log_end

    def put(self, records: int, value_size: int = 1) -> None:
        for number in range(records):
            value = b"%0*d" % (value_size, number)
            batch = memoryview(encode_batch([(NOW, b"k", value, ())]))
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
    last = first.log.compaction.last_run
    assert (last.bytes_freed, last.stopped) == (before[0] - first.log.size, "")
    assert last.bytes_read > before[0]
    assert plain.log.compaction.last_run is None


async def test_a_damaged_log_is_reported_once_and_the_others_go_on(caplog, autojump_clock):
    """A batch that cannot be read ends the compaction of its log until the log is truncated."""
    first, second = Replica(NAME, 50), Replica(OTHER, 50)
    first.bench.files.flip(first.log._segments[2].path, 70)
    found = cleaner(first, second)
    await run(found)
    assert [*found.statistics().failed] == [NAME]
    assert "checksum" in first.log.compaction.last_run.stopped
    assert found.statistics().runs == 1
    assert len([one for one in caplog.records if "is not compacted" in one.message]) == 1
    first.log.truncate_to(first.log._segments[2].base_offset, NOW)
    first.put(50)
    await run(found)
    assert not found.statistics().failed
    assert found.statistics().runs == 2


FAILURES = [
    ("read", ""),
    ("open", "cleaned"),
    ("append", "cleaned"),
    ("sync", "cleaned"),
    ("remove", "cleaned"),
    ("rename", "cleaned"),
    ("rename", ".index"),  # of a segment that is replaced
    ("rename", ".timeindex"),
    ("rename", "swap"),
]


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC], ids=["error", "full"])
@pytest.mark.parametrize(("operation", "name"), FAILURES)
async def test_a_disk_that_fails_stops_one_compaction_and_not_the_broker(
    operation: str, name: str, number: int, autojump_clock
):
    """The log is as it was, and is named unless the disk is only full; the others are compacted."""
    first, second = Replica(NAME, 100), Replica(OTHER, 50)
    bench = first.bench
    records, size, bases = bench.offsets(), first.log.size, bench.bases()
    slices = first.log.read(0, 1 << 40, first.log.log_end)
    bench.files.fail(operation, number=number, name=name)
    found = cleaner(first, second)
    await run(found, 0.9)
    assert (bench.offsets(), first.log.size, bench.bases()) == (records, size, bases)
    assert not [name for name in bench.names() if name.endswith(("cleaned", "swap", "deleted"))]
    await run(found)
    is_named = number == errno.EIO
    assert [*found.statistics().failed] == [NAME] * is_named
    assert found.statistics().runs == 2 - is_named
    assert b"".join(part.read() for part in slices)
    bench.reopen_clean()
    assert bench.log.damage is None
    assert bench.offsets() == records or not is_named


async def test_a_copy_that_cannot_be_removed_is_removed_later(autojump_clock):
    """By the next start: the log's own files are as they were."""
    one = Replica(NAME, 100)
    records = one.bench.offsets()
    one.bench.files.fail("append", name="cleaned")
    found = cleaner(one)

    def fail_to_remove(path, remove=one.bench.files.remove):
        if path.name.endswith("cleaned") and one.bench.files.exists(path):
            raise OSError(errno.EIO, "no")
        remove(path)

    one.bench.files.remove = fail_to_remove
    await run(found)
    assert [*found.statistics().failed] == [NAME]
    assert one.bench.names("cleaned")
    del one.bench.files.remove
    one.bench.reopen_killed()
    assert one.bench.offsets() == records
    assert not one.bench.names("cleaned")


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
async def test_an_index_that_cannot_be_written_is_kept_in_memory(number, caplog, autojump_clock):
    """The log is compacted then, and the next start makes the index again."""
    one = Replica(NAME, 100)
    one.bench.files.fail("append", number=number, name="index", times=1000)
    found = cleaner(one)
    await run(found)
    assert not found.statistics().failed
    assert found.statistics().runs == 1
    assert "cannot be written" in caplog.text
    records = one.bench.offsets()
    assert len(records) < 100
    one.bench.reopen_killed()
    assert one.bench.offsets() == records


async def test_a_swap_that_can_neither_be_done_nor_undone_ends_the_broker(autojump_clock):
    """After the copy has its name only a start knows what to do, and it finishes the swap."""
    one = Replica(NAME, 100)
    end, second_base = one.log.log_end, one.log._segments[1].base_offset

    def rename(source, target, rename=one.bench.files.rename):
        if source.name.endswith(("index", "deleted")):
            raise OSError(errno.ENOSPC, "no")
        rename(source, target)

    one.bench.files.rename = rename
    with pytest.raises(HalfSwapped):
        await run(cleaner(one))
    del one.bench.files.rename
    one.bench.reopen_killed()
    assert one.log.damage is None
    assert (one.log.log_start, one.log.log_end) == (0, end)
    first = one.bench.headers()[0]
    assert (first.record_count, first.next_offset) == (0, second_base)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EMFILE])
async def test_a_shortage_is_waited_for(number: int, caplog, autojump_clock):
    """With a full disk, or no descriptor, the log stays as it is and is compacted later."""
    one = Replica(NAME, 50)
    found = cleaner(one)
    one.bench.files.fail("open", number=number, times=3)
    await run(found, 2.5)
    assert one.log.size > 1000
    assert one.log.compaction.last_run.stopped
    assert "is compacted later" in caplog.text
    await run(found)
    assert found.statistics().runs == 1
    assert DISK_FULL_TEXT in caplog.text or number != errno.ENOSPC


@pytest.mark.parametrize("value_size", [10, 100_000])
async def test_it_keeps_to_its_rate(value_size, autojump_clock):
    """A compaction takes as long as log.cleaner.io.max.bytes.per.second wants, whatever the size of
    its batches: all is read twice, and what is left is written."""
    times = []
    rate = 10 * value_size
    for bytes_per_s in (1e12, rate):
        one = Replica(NAME, 0, 300 + 3 * value_size)
        one.put(100, value_size)
        size = one.log.size
        found = cleaner(one, bytes_per_s=bytes_per_s)
        finished = trio.Event()
        found._checkpoint = finished.set
        began_at = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(found.run)
            await finished.wait()
            nursery.cancel_scope.cancel()
        times.append(trio.current_time() - began_at)
    assert times[0] < 1
    assert times[1] > 2 * size / rate * 0.9
