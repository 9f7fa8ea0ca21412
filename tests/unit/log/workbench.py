"""What the tests of the log share: a log on a simulated disk, and short ways to feed and ask it."""

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import PurePath
from typing import TypeVar

from minibroker.broker.log.admission import check_batches
from minibroker.broker.log.log import Log
from minibroker.broker.log.outcomes import (
    NEW_LOG,
    Appended,
    Flush,
    LastKnownState,
    LogLimits,
    LogLocation,
    OffsetAtTime,
)
from minibroker.broker.turns import Steps
from minibroker.protocol.records.batch import (
    NO_PRODUCER,
    BatchHeader,
    ProducerStamp,
    iterate_headers,
    stamp,
)
from minibroker.protocol.records.record import encode_batch
from minibroker.protocol.types import TopicPartition
from minibroker.testing.disk import SimulatedFiles

Result = TypeVar("Result")

NAME = TopicPartition("t", 0)
DIRECTORY = PurePath("/data/t-0")
NOW = 1_000_000
FOREVER = 1 << 60
UNLIMITED = LogLimits(
    segment_bytes=1 << 30,
    segment_ms=FOREVER,
    segment_jitter_ms=0,
    index_interval_bytes=4096,
    index_bytes_max=10 << 20,
    batch_bytes_max=1 << 20,
    retention_ms=-1,
    retention_bytes=-1,
    file_delete_delay_ms=1000,
    producer_expiration_ms=FOREVER,
    timestamp_type="CreateTime",
    timestamp_before_max_ms=FOREVER,
    timestamp_after_max_ms=FOREVER,
)


def encode(count: int = 1, *, time_ms: int = NOW, value: bytes = b"v", producer=NO_PRODUCER):
    """A batch as a producer sends it; its records are `time_ms`, `time_ms` + 1, ..."""
    records = [(time_ms + index, None, value, ()) for index in range(count)]
    return encode_batch(records, producer=ProducerStamp(*producer))


def stored(base_offset: int, count: int = 1, *, epoch: int = 0, **encoding) -> bytes:
    """A batch as a leader stored it."""
    batch = encode(count, **encoding)
    stamp(batch, base_offset, epoch)
    return bytes(batch)


def finish(steps: Steps[Result], counted: list[object] | None = None) -> Result:
    """The result of a computation in steps; `counted` gets each step that it took."""
    take, argument = steps.send, None
    while True:
        try:
            step = take(argument)
        except StopIteration as end:
            return end.value
        if counted is not None:
            counted.append(step)
        take, argument = steps.send, None
        if step is not None:
            try:
                argument = step()
            except Exception as error:
                take, argument = steps.throw, error


class Bench:
    """One log on a simulated disk; keyword arguments change its limits."""

    def __init__(self, name: TopicPartition = NAME, **limits: object) -> None:
        self.files = SimulatedFiles(random.Random(1))
        self.files.clock_ms = lambda: NOW
        self.limits = replace(UNLIMITED, **limits)
        self.location = LogLocation(self.files, DIRECTORY, name)
        self.truncations: list[int] = []
        self.before_truncation: Callable[[int], None] = self.truncations.append
        self.open(NEW_LOG)

    def open(self, opening: LastKnownState, now_ms: int = NOW) -> Log:
        """Open the log, new or again."""

        def before_truncation(_: TopicPartition, offset: int) -> None:
            self.before_truncation(offset)

        self.log = Log.open(self.location, self.limits, opening, before_truncation, now_ms=now_ms)
        return self.log

    def reopen_clean(self) -> Log:
        """Close, and open with the mark of a clean stop."""
        self.log.close()
        return self.open(LastKnownState(is_clean=True, recovery_point=self.log.log_end))

    def reopen_killed(self, **opening: object) -> Log:
        """Open after a kill; the machine went on."""
        self.files.kill()
        return self.open(LastKnownState(**{"same_boot": True, **opening}))

    def append(self, count: int = 1, *, epoch: int = 0, now_ms: int = NOW, **encoding) -> Appended:
        """Append as a leader."""
        batch = encode(count, **encoding)
        return self.log.append_as_leader(memoryview(batch), epoch, now_ms)

    def offset_at(self, timestamp_ms: int, end_offset: int | None = None) -> OffsetAtTime | None:
        """The first record of that time or later."""
        log = self.log
        return finish(
            log.find_time(timestamp_ms, log.log_end if end_offset is None else end_offset)
        )

    def follow(self, *batches: bytes) -> None:
        """Append as a follower."""
        self.log.append_as_follower(check_batches(memoryview(b"".join(batches))), NOW)

    def headers(self, offset: int | None = None) -> list[BatchHeader]:
        """The header of every batch that a read of everything gives."""
        start = self.log.log_start if offset is None else offset
        slices = self.log.read(start, 1 << 40, self.log.log_end)
        return [header for part in slices for _, header in iterate_headers(part.read())]

    def offsets(self, offset: int | None = None) -> list[int]:
        """The base offset of every batch."""
        return [header.base_offset for header in self.headers(offset)]

    def names(self, suffix: str = "") -> list[str]:
        """The files in the log's directory."""
        names = self.files.list(DIRECTORY)
        return [name for name in names if name.endswith(suffix)]

    def bases(self) -> list[int]:
        """The base offsets of the segments, by their files."""
        return [int(name.removesuffix(".log")) for name in self.names(".log")]

    def path(self, base_offset: int, suffix: str = ".log") -> PurePath:
        """A file of a segment."""
        return DIRECTORY / f"{base_offset:020}{suffix}"

    def flush(self) -> None:
        """A whole flush."""
        self.sync(self.log.start_flush())

    def sync(self, flush: Flush) -> None:
        """The second half of a flush."""
        for file in flush.files:
            file.sync_now()
        for directory in flush.directories:
            self.files.sync_dir(directory)
        self.log.finish_flush(flush)
