"""A crash before every single operation on the disk, and again while the broker recovers from it.

A script of a few dozen steps, drawn from a seed, is run again and again; each time the process or
the machine dies one operation later. Then the directory is opened (where it may die once more) and
compared with what the script had promised:

* after a kill every record that was appended is there, whatever was half done is done or undone;
* after a power cut every record that was synced is there, and of the rest a part from the front;
* nothing is damaged, doubled, changed or missing in the middle, a batch that is sent again is
  recognised if it is there, and the epochs are those of the batches;
* the log goes on from there, and a clean restart gives the same.
"""

import random
from contextlib import suppress
from pathlib import PurePath
from typing import NamedTuple

import pytest

from minibroker.broker.log.log import Log
from minibroker.broker.log.manager import LogManager
from minibroker.broker.log.outcomes import LogLimits
from minibroker.broker.turns import without_pause
from minibroker.protocol.records.batch import ProducerStamp, has_valid_crc, iterate_headers
from minibroker.protocol.records.record import encode_batch
from minibroker.protocol.types import TopicPartition
from minibroker.testing.disk import SimulatedFiles, Stopped
from tests.support.seeds import rest_in_soak

ROOT = PurePath("/data")
NAME = TopicPartition("orders-eu", 3)
SEEDS = range(12)
RUNS_PER_SEED = 60
STEPS = 30
EVERYTHING = 1 << 30


class Stored(NamedTuple):
    """A batch as it lies in the log."""

    base_offset: int
    next_offset: int
    data: bytes


def limits_for(rng: random.Random) -> LogLimits:
    """Small enough that a short script meets rolls, full indexes and retention."""
    return LogLimits(
        segment_bytes=rng.choice((400, 900, 100_000)),
        segment_ms=1 << 40,
        segment_jitter_ms=0,
        index_interval_bytes=rng.choice((0, 200)),
        index_bytes_max=rng.choice((24, 10_000)),
        batch_bytes_max=100_000,
        retention_ms=-1,
        retention_bytes=rng.choice((-1, 900)),
        file_delete_delay_ms=0,
        producer_expiration_ms=1 << 40,
        timestamp_type="CreateTime",
        timestamp_before_max_ms=1 << 50,
        timestamp_after_max_ms=1 << 50,
    )


class Script:
    """One run of a seed's steps up to the crash, and what it promised until then."""

    def __init__(self, seed: int, disk_seed: int) -> None:
        self.rng = random.Random(seed)
        self.files = SimulatedFiles(random.Random(disk_seed))
        self.limits = limits_for(self.rng)
        self.now_ms = 1000
        self.boot = 0
        self.epoch = -1
        self.topic = 0  # the incarnation: its id
        self.sequence = 0
        self.sent: bytes | None = None  # being appended
        # Of this incarnation: the log now, and what it may be again after a power cut.
        self.batches: list[Stored] = []
        self.ghosts: list[list[Stored]] = []
        self.log_start = 0
        self.durable_end = 0
        self.must_exist = False
        self.is_cutting = False
        self.log: Log | None = None

    def run(self) -> None:
        self.open()
        self.create()
        steps = [
            *[self.append] * 10,
            *[self.flush] * 4,
            *[self.checkpoint] * 2,
            *[self.retain] * 2,
            self.cut,
            self.restart,
            self.recreate,
        ]
        for _ in range(STEPS):
            self.now_ms += 1
            self.rng.choice(steps)()
        self.manager.close({NAME: self.log_end})

    @property
    def log_end(self) -> int:
        return self.batches[-1].next_offset if self.batches else 0

    def open(self) -> None:
        self.manager = LogManager(self.files, ROOT, self.limits)
        self.manager.start(f"boot-{self.boot}", "cluster", 1, self.now_ms)
        self.manager.forget_lost_tail()
        self.log = self.manager.get(NAME)
        # A log whose topic id was never synced has no owner after a power cut.
        is_unowned = self.log is not None and not self.log.topic_id and not self.durable_end
        assert is_unowned or self.manager.statistics().damaged == ()

    def begin_epoch(self) -> None:
        self.epoch += 1
        assert self.log is not None
        self.log.assign_epoch(self.epoch, self.log.log_end)

    # -- the steps

    def create(self) -> None:
        self.topic += 1
        self.batches, self.ghosts = [], []
        self.log_start = self.durable_end = 0
        self.sequence = 0
        topic_id = self.topic.to_bytes(16, "big")
        self.log = self.manager.create(NAME, topic_id, self.limits, self.now_ms)
        self.must_exist = True
        self.begin_epoch()

    def append(self) -> None:
        assert self.log is not None
        records = [(self.now_ms, None, self.rng.randbytes(20), ())] * self.rng.randint(1, 3)
        data = encode_batch(records, producer=ProducerStamp(7, 0, self.sequence))
        self.sent = bytes(data)
        appended = self.log.append_as_leader(memoryview(data), self.epoch, self.now_ms)
        self.sent = None
        self.sequence += len(records)
        self.batches.append(Stored(appended.base_offset, appended.last_offset + 1, bytes(data)))

    def flush(self) -> None:
        assert self.log is not None
        flush = self.log.start_flush()
        for file in flush.files:
            file.sync_now()
        for directory in flush.directories:
            self.files.sync_dir(directory)
        self.log.finish_flush(flush)
        self.durable_end = self.log.durable_end
        assert self.durable_end == self.log_end
        self.ghosts.clear()

    def checkpoint(self) -> None:
        self.manager.record_high_watermarks({NAME: self.log_end})
        self.manager.checkpoint_high_watermarks()
        self.manager.checkpoint_recovery_points()
        self.manager.checkpoint_log_starts()

    def retain(self) -> None:
        assert self.log is not None
        before = self.log.log_start
        self.log_start = 1 << 60  # may be anywhere while it is at it
        without_pause(self.log.apply_retention(self.log_end, self.now_ms))
        assert self.log.log_start >= before
        self.log_start = self.log.log_start
        without_pause(self.manager.remove_deleted_files(self.now_ms))

    def cut(self) -> None:
        assert self.log is not None
        kept = [batch for batch in self.batches if batch.base_offset >= self.log_start]
        if not kept:
            return
        end = self.rng.choice(kept).base_offset
        self.ghosts.append(self.batches)
        self.batches = [batch for batch in self.batches if batch.next_offset <= end]
        self.durable_end = min(self.durable_end, end)
        self.is_cutting = True
        self.log.truncate_to(end, self.now_ms)
        self.is_cutting = False
        self.log_start = min(self.log_start, self.log.log_start)
        self.begin_epoch()
        self.resume()

    def resume(self) -> None:
        """Go on with the sequence that comes next in the log."""
        assert self.log is not None
        entry = self.log.producers.get(7)
        self.sequence = 0 if entry is None else entry.last_sequence + 1

    def restart(self) -> None:
        self.manager.close({NAME: self.log_end})
        self.durable_end = self.log_end
        self.ghosts.clear()
        self.boot += self.rng.randint(0, 1)
        self.open()
        self.begin_epoch()
        self.resume()

    def recreate(self) -> None:
        self.must_exist = False
        self.manager.delete(NAME, self.now_ms)
        self.create()

    # -- the crash

    def recover(self, *, is_power_cut: bool, again_at: int | None) -> None:
        self.crash(is_power_cut)
        if again_at is not None:
            self.files.stop_at(again_at)
            with suppress(Stopped):
                self.open()
            self.crash(is_power_cut)
        self.open()
        log = self.log
        if log is None or log.topic_id != self.topic.to_bytes(16, "big"):
            if not is_power_cut:
                assert not self.must_exist, "the log is gone"
            assert not (self.must_exist and self.durable_end), "a synced log is gone"
            return
        self.compare(log, is_power_cut)
        self.go_on(log)

    def crash(self, is_power_cut: bool) -> None:
        if is_power_cut:
            self.files.power_off()
            self.boot += 1
        else:
            self.files.kill()

    def compare(self, log: Log, is_power_cut: bool) -> None:
        stored = content(log)
        is_whole = self.sent is not None and stored and stored[-1].data[16:] == self.sent[16:]
        if is_whole and stored[-1].base_offset == self.log_end:
            self.batches = [*self.batches, stored[-1]]
        histories = [self.batches, *self.ghosts]
        assert any(is_run(stored, history) for history in histories), "not what was written"
        end = self.log_end if not (is_power_cut or self.is_cutting) else self.durable_end
        assert log.log_end >= end, "records are missing"
        assert log.log_start <= max(self.log_start, end)
        known = [(entry.epoch, entry.offset) for entry in log.epochs.entries]
        for batch in stored:
            (_, header), *_ = iterate_headers(batch.data)
            covering = [epoch for epoch, start in known if start <= batch.base_offset]
            assert covering[-1:] == [header.leader_epoch]

    def go_on(self, log: Log) -> None:
        stored = content(log)
        self.epoch += 1
        if stored:
            (_, header), *_ = iterate_headers(stored[-1].data)
            again = bytearray(stored[-1].data)
            again[:8] = bytes(8)
            appended = log.append_as_leader(memoryview(again), self.epoch, self.now_ms)
            assert appended[:2] == (header.base_offset, header.last_offset)
            assert appended.is_duplicate
        self.batches = stored
        self.resume()
        log.assign_epoch(self.epoch, log.log_end)
        for _ in range(5):
            self.append()
        self.manager.close({NAME: log.log_end})
        before = content_of_batches(self.batches)
        self.open()
        assert self.log is not None
        assert content_of_batches(content(self.log)) == before
        self.manager.close({})


def content(log: Log) -> list[Stored]:
    """All whole batches of a log, checked."""
    found = []
    for part in log.read(log.log_start, EVERYTHING, log.log_end):
        data = part.read()
        for position, header in iterate_headers(data):
            batch = data[position : position + header.size]
            assert has_valid_crc(batch, header)
            found.append(Stored(header.base_offset, header.next_offset, batch))
    return found


def content_of_batches(batches: list[Stored]) -> list[bytes]:
    return [batch.data for batch in batches]


def is_run(stored: list[Stored], history: list[Stored]) -> bool:
    """Whether these are neighbours in a history."""
    if not stored:
        return True
    if stored[0] not in history:
        return False
    at = history.index(stored[0])
    return history[at : at + len(stored)] == stored


def operations_of(seed: int) -> int:
    script = Script(seed, seed)
    script.run()
    return script.files.operation_count


@pytest.mark.parametrize("is_power_cut", [False, True], ids=["kill", "power"])
@pytest.mark.parametrize("seed", rest_in_soak(SEEDS))
def test_a_crash_at_any_operation_loses_nothing_promised(seed, is_power_cut):
    """See the head of this file (REC, REC-09, REC-11, EPO, PID-13)."""
    total = operations_of(seed)
    rng = random.Random(seed)
    for count in sorted(rng.sample(range(total), min(RUNS_PER_SEED, total))):
        crash(seed, count, is_power_cut, rng.choice((None, rng.randint(0, 12))))


def crash(seed: int, count: int, is_power_cut: bool, again_at: int | None) -> None:
    """One run; what it was is in the traceback of a failure."""
    script = Script(seed, count)
    script.files.stop_at(count)
    try:
        script.run()
    except Stopped:
        script.recover(is_power_cut=is_power_cut, again_at=again_at)
