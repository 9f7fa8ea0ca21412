"""Random lives of a log against a naive model: a Python list of batches.

One life is a few dozen steps drawn from a seed: appends (plain, idempotent, sent again, as a
follower, onto a full disk), reads, flushes, cuts, retention, clean restarts, kills and power cuts.
After each restart the log must hold what the model says:

* after a clean stop or a kill: exactly all of it;
* after a power cut: all that was synced, and of the rest a part from the front, unchanged; where a
  cut had not been synced, it may be undone (the epochs tell such a tail from the new one).

A failure names its seed; `python -m pytest tests/sim/test_log_model.py -k "seed_17-"` repeats it.
"""

import random
from pathlib import PurePath
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from minibroker.broker.errors import Refused
from minibroker.broker.log.admission import check_batches
from minibroker.broker.log.log import Log
from minibroker.broker.log.manager import LogManager
from minibroker.broker.log.outcomes import Flush, LogLimits
from minibroker.broker.turns import without_pause
from minibroker.protocol.constants import ErrorCode
from minibroker.protocol.records.batch import (
    NO_PRODUCER,
    ProducerStamp,
    has_valid_crc,
    iterate_headers,
    stamp,
)
from minibroker.protocol.records.record import encode_batch
from minibroker.protocol.types import TopicPartition
from minibroker.testing.disk import SimulatedFiles

ROOT = PurePath("/data")
NAME = TopicPartition("orders", 3)
LIVES = 300
STEPS = 60
EVERYTHING = 1 << 30
FORGOTTEN = (ErrorCode.UNKNOWN_PRODUCER_ID, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)


class Batch(NamedTuple):
    """What the model knows of a batch: its offsets and its bytes as stored."""

    base_offset: int
    next_offset: int
    data: bytes


class Producer:
    """One idempotent producer of the model, with the last batch it sent."""

    def __init__(self, producer_id: int) -> None:
        self.producer_id = producer_id
        self.epoch = 0
        self.sequence = 0
        self.last: tuple[bytearray, int] | None = None


def limits_for(rng: random.Random) -> LogLimits:
    """Small segments and indexes, so that a short life meets every roll."""
    return LogLimits(
        segment_bytes=rng.choice((1000, 2500, 100_000)),
        segment_ms=rng.choice((50, 10_000_000)),
        segment_jitter_ms=0,
        index_interval_bytes=rng.choice((0, 200, 4096)),
        index_bytes_max=rng.choice((24, 10_000)),
        batch_bytes_max=100_000,
        retention_ms=rng.choice((-1, 40)),
        retention_bytes=rng.choice((-1, 2000)),
        file_delete_delay_ms=20,
        producer_expiration_ms=1 << 40,
        timestamp_type=rng.choice(("CreateTime", "LogAppendTime")),
        timestamp_before_max_ms=1 << 50,
        timestamp_after_max_ms=1 << 50,
    )


class Life:
    """One log, its model, and the steps that `rng` draws; `disk_seed` is the disk's own chance."""

    def __init__(self, rng: random.Random, disk_seed: int) -> None:
        self.rng = rng
        self.files = SimulatedFiles(random.Random(disk_seed))
        self.limits = limits_for(self.rng)
        self.now_ms = 1000
        self.boot = 0
        self.epoch = 0
        self.batches: list[Batch] = []
        self.log_start = 0
        self.log_end = 0
        self.high_watermark = 0
        # What the log was before cuts that are not synced yet.
        self.ghosts: list[list[Batch]] = []
        self.producers = [Producer(7), Producer(8)]
        self.pending: Flush | None = None
        self.start()
        self.log = self.manager.create(NAME, bytes(16), self.limits, self.now_ms)
        self.log.assign_epoch(self.epoch, 0)
        self.flush_whole()

    def start(self) -> None:
        self.manager = LogManager(self.files, ROOT, self.limits)
        self.manager.start(f"boot-{self.boot}", "cluster", 1, self.now_ms)
        self.manager.forget_lost_tail()

    def run(self) -> None:
        steps = [
            *[self.append] * 8,
            *[self.append_idempotent] * 4,
            *[self.send_again] * 2,
            *[self.append_as_follower] * 2,
            *[self.read_somewhere] * 4,
            *[self.flush_half] * 2,
            self.flush_whole,
            self.append_to_full_disk,
            self.commit,
            self.cut,
            self.retain,
            self.restart_clean,
            self.kill,
            self.lose_power,
        ]
        for _ in range(STEPS):
            self.now_ms += self.rng.randint(0, 15)
            self.rng.choice(steps)()
            assert self.log.log_end == self.log_end
        self.restart_clean()

    # -- appending

    def encode(self, stamp: ProducerStamp = NO_PRODUCER) -> bytearray:
        count = self.rng.randint(1, 4)
        value = self.rng.randbytes(self.rng.choice((3, 40, 200)))
        records = [(self.now_ms - self.rng.randint(0, 30), None, value, ())] * count
        return encode_batch(records, producer=stamp)

    def store(self, data: bytearray) -> None:
        """The batch was taken: the model has it too, at the end."""
        (_, header), *_ = iterate_headers(data)
        assert header.base_offset >= self.log_end
        self.batches.append(Batch(header.base_offset, header.next_offset, bytes(data)))
        self.log_end = header.next_offset

    def append(self) -> None:
        data = self.encode()
        appended = self.log.append_as_leader(memoryview(data), self.epoch, self.now_ms)
        assert (appended.base_offset, appended.is_duplicate) == (self.log_end, False)
        self.store(data)

    def append_idempotent(self) -> None:
        producer = self.rng.choice(self.producers)
        data = self.encode(ProducerStamp(producer.producer_id, producer.epoch, producer.sequence))
        sent = bytearray(data)
        try:
            appended = self.log.append_as_leader(memoryview(data), self.epoch, self.now_ms)
        except Refused as refused:
            # Only if its batches were cut or lost; a client goes on in a new epoch.
            if producer.last is not None or refused.code not in FORGOTTEN:
                raise
            producer.epoch += 1
            producer.sequence = 0
            return
        assert not appended.is_duplicate
        producer.last = (sent, appended.base_offset)
        producer.sequence += appended.last_offset - appended.base_offset + 1
        self.store(data)

    def send_again(self) -> None:
        producer = self.rng.choice(self.producers)
        if producer.last is None:
            return
        sent, base_offset = producer.last
        appended = self.log.append_as_leader(memoryview(bytearray(sent)), self.epoch, self.now_ms)
        assert (appended.base_offset, appended.is_duplicate) == (base_offset, True)

    def append_as_follower(self) -> None:
        parts = []
        next_offset = self.log_end
        for _ in range(self.rng.randint(1, 3)):
            data = self.encode()
            stamp(data, next_offset, self.epoch)
            (_, header), *_ = iterate_headers(data)
            next_offset = header.next_offset
            parts.append(data)
        batches = check_batches(memoryview(b"".join(parts)))
        self.log.append_as_follower(batches, self.now_ms)
        for data in parts:
            self.store(data)

    def append_to_full_disk(self) -> None:
        self.files.space_bytes = 1 << 40
        used = self.files.space_bytes - self.files.room()
        # A roll may free a few bytes, when a snapshot is replaced by a smaller one.
        self.files.space_bytes = used - self.rng.randint(0, 600)
        data = self.encode()
        try:
            with pytest.raises(Refused, match="KAFKA_STORAGE_ERROR"):
                self.log.append_as_leader(memoryview(data), self.epoch, self.now_ms)
        finally:
            self.files.space_bytes = None

    # -- the rest of a life

    def read_somewhere(self) -> None:
        offset = self.rng.randint(self.log_start, self.log_end)
        end_offset = self.rng.choice((self.log_end, self.high_watermark))
        bytes_max = self.rng.choice((1, 300, 2000, EVERYTHING))
        wanted = self.expected(offset, bytes_max, end_offset)
        readable = self.log.readable_bytes(offset, end_offset)
        slices = self.log.read(offset, bytes_max, end_offset)
        assert b"".join(part.read() for part in slices) == wanted
        assert readable >= len(wanted)
        assert (readable > 0) == (offset < end_offset and offset < self.log_end)

    def expected(self, offset: int, bytes_max: int, end_offset: int) -> bytes:
        data = b""
        for batch in self.batches:
            if batch.next_offset <= offset:
                continue
            is_too_much = data and len(data) + len(batch.data) > bytes_max
            if batch.next_offset > end_offset or is_too_much or len(data) >= bytes_max:
                break
            data += batch.data
        return data

    def flush_half(self) -> None:
        """A flush that spans other steps."""
        if self.pending is None:
            self.pending = self.log.start_flush()
        else:
            self.sync(self.pending)
            self.pending = None

    def flush_whole(self) -> None:
        self.pending = None
        self.sync(self.log.start_flush())
        assert self.log.durable_end == self.log_end
        self.ghosts.clear()
        self.manager.checkpoint_recovery_points()

    def sync(self, flush: Flush) -> None:
        for file in flush.files:
            file.sync_now()
        for directory in flush.directories:
            self.files.sync_dir(directory)
        self.log.finish_flush(flush)

    def commit(self) -> None:
        boundaries = [batch.next_offset for batch in self.batches] or [self.log_start]
        self.high_watermark = max(self.high_watermark, self.rng.choice(boundaries))
        self.manager.record_high_watermarks({NAME: self.high_watermark})
        self.manager.checkpoint_high_watermarks()

    def cut(self) -> None:
        """What a follower does when its leader's log parts from its own."""
        offset = self.rng.choice([batch.next_offset for batch in self.batches] or [self.log_end])
        self.pending = None
        self.ghosts.append(self.batches)
        self.log.truncate_to(offset, self.now_ms)
        self.batches = [batch for batch in self.batches if batch.next_offset <= offset]
        self.log_end = self.log.log_end
        assert self.log_end == offset
        self.log_start = min(self.log_start, offset)
        self.high_watermark = min(self.high_watermark, offset)
        self.epoch += 1
        self.log.assign_epoch(self.epoch, offset)
        self.forget_producers()

    def forget_producers(self) -> None:
        """The log may have lost what they sent last: what comes next is not sure."""
        for producer in self.producers:
            producer.last = None

    def retain(self) -> None:
        before = self.log.log_start
        without_pause(self.log.apply_retention(self.high_watermark, self.now_ms))
        assert before <= self.log.log_start <= max(self.high_watermark, before)
        self.log_start = self.log.log_start
        without_pause(self.log.remove_deleted_files(self.now_ms))
        self.manager.checkpoint_log_starts()

    # -- restarts

    def reopen(self) -> None:
        self.pending = None
        self.start()
        log = self.manager.get(NAME)
        assert log is not None
        self.log: Log = log
        assert self.log.damage is None, self.log.damage

    def begin_epoch(self) -> None:
        self.epoch += 1
        self.log.assign_epoch(self.epoch, self.log_end)

    def stored(self) -> list[Batch]:
        """What is in the log now, checked to be whole."""
        found = []
        slices = self.log.read(self.log.log_start, EVERYTHING, self.log.log_end)
        for part in slices:
            data = part.read()
            for position, header in iterate_headers(data):
                batch = data[position : position + header.size]
                assert has_valid_crc(batch, header)
                found.append(Batch(header.base_offset, header.next_offset, batch))
        return found

    def restart_clean(self) -> None:
        producers = self.log.producers.dump()
        epochs = tuple(each for each in self.log.epochs.entries if each.offset < self.log_end)
        self.manager.close({NAME: self.high_watermark})
        self.ghosts.clear()
        self.boot += self.rng.randint(0, 1)
        self.reopen()
        assert self.manager.tail_safe
        assert self.log.producers.dump() == producers
        assert self.log.epochs.entries == epochs
        assert self.log.durable_end == self.log_end
        assert self.log.checkpointed_high_watermark == self.high_watermark
        self.compare_all()

    def kill(self) -> None:
        states = [(self.log.producers.get(each.producer_id)) for each in self.producers]
        self.files.kill()
        self.reopen()
        assert self.manager.tail_safe
        for producer, state in zip(self.producers, states, strict=True):
            found = self.log.producers.get(producer.producer_id)
            assert (found is None) == (state is None)
            if found is not None and state is not None:
                assert (found.epoch, found.batches) == (state.epoch, state.batches)
        self.compare_all()

    def compare_all(self) -> None:
        assert (self.log.log_start, self.log.log_end) == (self.log_start, self.log_end)
        kept = [batch for batch in self.batches if batch.next_offset > self.log_start]
        stored = self.stored()
        assert stored[len(stored) - len(kept) :] == kept
        self.begin_epoch()

    def lose_power(self) -> None:
        durable_end = self.log.durable_end
        self.files.power_off()
        self.boot += 1
        self.reopen()
        assert self.log.log_end >= durable_end, "what was synced must survive"
        # Deleted segments may be there again, and so may the old start if a cut was undone.
        log_start = max(self.log_start, self.log.log_start)
        assert log_start == self.log_start or self.ghosts or self.log.log_end == self.log_start
        stored = [batch for batch in self.stored() if batch.next_offset > log_start]
        histories = [self.batches, *self.ghosts]
        assert any(self.is_part(stored, log_start, history) for history in histories)
        older = [batch for batch in self.batches if batch.next_offset <= log_start]
        self.batches = older + stored
        self.log_start = self.log.log_start
        self.log_end = self.log.log_end
        self.high_watermark = self.log.checkpointed_high_watermark
        self.forget_producers()
        self.ghosts.clear()
        self.begin_epoch()

    def is_part(self, stored: list[Batch], log_start: int, history: list[Batch]) -> bool:
        """Whether a log is a part of a history, from `log_start` on."""
        wanted = [batch for batch in history if batch.next_offset > log_start]
        return stored == wanted[: len(stored)]


@pytest.mark.parametrize("seed", range(LIVES), ids=lambda seed: f"seed_{seed}-")
def test_a_log_is_what_the_model_says(seed: int) -> None:
    """Through appends, cuts and crashes a log holds what was promised (LOG, REC, PID)."""
    Life(random.Random(seed), seed + 1).run()


@settings(max_examples=150, suppress_health_check=list(HealthCheck))
@given(rng=st.randoms(use_true_random=False), disk_seed=st.integers(0, 1 << 32))
def test_a_log_is_what_the_model_says_of_the_shortest_life(
    rng: random.Random, disk_seed: int
) -> None:
    """The same with steps that Hypothesis draws: what fails is shrunk to its shortest form."""
    Life(rng, disk_seed).run()
