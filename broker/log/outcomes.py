"""Values of a log: its settings, the state it is opened with, and its operations' results."""

import errno
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import NamedTuple

from minibroker.broker.descriptors import NO_DESCRIPTOR, NO_DESCRIPTORS
from minibroker.broker.errors import Refused
from minibroker.broker.log.disk_room import DiskRoom
from minibroker.broker.log.files import OFFLINE, File, Files
from minibroker.broker.log.sealed_files import SealedFiles
from minibroker.protocol.constants import INT64_MAX, NO_OFFSET, ErrorCode
from minibroker.protocol.types import TopicPartition


@dataclass(frozen=True, slots=True)
class LogLimits:
    """The settings of one log: the topic's own where it has them, else the broker's.

    Sizes in bytes, times in milliseconds; a retention of -1 keeps everything.
    """

    segment_bytes: int
    segment_ms: int
    segment_jitter_ms: int
    index_interval_bytes: int
    index_bytes_max: int
    batch_bytes_max: int
    retention_ms: int
    retention_bytes: int
    file_delete_delay_ms: int
    producer_expiration_ms: int
    timestamp_type: str  # CreateTime or LogAppendTime
    timestamp_before_max_ms: int
    timestamp_after_max_ms: int
    is_compacted: bool = False
    compaction_lag_min_ms: int = 0
    compaction_lag_max_ms: int = INT64_MAX
    cleanable_dirty_ratio_min: float = 0.5
    delete_retention_ms: int = 0


@dataclass(frozen=True, slots=True)
class LogLocation:
    """The directory of a log, and its partition; the topic id is b"" if it is unknown.

    `files` is the disk. Shared by all logs: `sealed_files` opens the sealed segments on it, and
    `room` knows how much it still takes.
    """

    files: Files
    directory: PurePath
    topic_partition: TopicPartition
    topic_id: bytes = b""
    sealed_files: SealedFiles = field(default_factory=SealedFiles)
    room: DiskRoom = field(default_factory=DiskRoom)


@dataclass(frozen=True, slots=True)
class LastKnownState:
    """The state of a log by the checkpoints and the last stop, before its files are read.

    `same_boot`: the machine has not stopped since the last append, so the page cache lost nothing.
    `log_start` is -1 if nothing is known of it.
    """

    is_clean: bool = False
    recovery_point: int = 0
    log_start: int = NO_OFFSET
    high_watermark: int = 0
    same_boot: bool = False

    @property
    def promised_end(self) -> int:
        """The offset up to which the log must still have its records."""
        return max(self.recovery_point, self.believable_high_watermark)

    @property
    def believable_high_watermark(self) -> int:
        """The high watermark, as far as the bytes below it are certain to be the committed ones.

        After a power cut only synced bytes are certain: the disk may have undone a truncation
        beyond them, so that old records are back.
        """
        if self.is_clean or self.same_boot:
            return self.high_watermark
        return min(self.high_watermark, self.recovery_point)


DISK_IS_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
# A roll, a creation, a truncation: the log, an index or a checkpoint, its directory; and one more.
DESCRIPTORS_AT_ONCE = 4
DISK_FULL_TEXT = "the disk is full"
# What meets one of these is refused, or done later; no record is lost. Any other OSError ends the
# broker.
SHORTAGES = DISK_IS_FULL | NO_DESCRIPTORS | {OFFLINE}


def shortage_text(error: OSError) -> str:
    """Say what is short, for one of `SHORTAGES`."""
    if error.errno == OFFLINE:
        return str(error.strerror)
    return NO_DESCRIPTOR if error.errno in NO_DESCRIPTORS else DISK_FULL_TEXT


def refusal_of(error: OSError) -> Exception:
    """Return what a call raises that met an error: `Refused` for a shortage, else the error."""
    if error.errno not in SHORTAGES:
        return error
    return Refused(ErrorCode.KAFKA_STORAGE_ERROR, shortage_text(error))


def require_descriptors(files: Files, path: PurePath) -> None:
    """Raise OSError if fewer descriptors are free than one step may open; `path` is any file."""
    probes: list[File] = []
    try:
        for _ in range(DESCRIPTORS_AT_ONCE):
            probes.append(files.open(path))  # noqa: PERF401 -- those that were opened are closed
    finally:
        for probe in probes:
            probe.close()


NEW_LOG = LastKnownState(is_clean=True)


class Damage(NamedTuple):
    """A loss of records: from `offset` on the log does not hold what was written.

    The bytes found there are kept beside the log in `*.damaged` files.
    """

    offset: int
    reason: str


class Appended(NamedTuple):
    """The offsets of an appended batch; `append_time_ms` is -1 without LogAppendTime."""

    base_offset: int
    last_offset: int
    append_time_ms: int
    is_duplicate: bool


class OffsetAtTime(NamedTuple):
    """The first record of a time or later; timestamp in ms."""

    timestamp: int
    offset: int
    leader_epoch: int


class Flush(NamedTuple):
    """The files and directories to sync before `end_offset` counts as durable.

    The driver awaits `file.sync()` for each of `files` (once, for some are open only for their
    turn), then runs `Files.sync_dir` for each of `directories` (a worker may: it is only there
    after a roll or a creation), then calls `Log.finish_flush`.
    """

    files: Iterator[File]
    directories: tuple[PurePath, ...]
    end_offset: int
    generation: int
    name_changes: int


@dataclass(frozen=True, slots=True)
class LogStatistics:
    """The statistics of a log at one moment: offsets, and sizes in bytes."""

    log_start: int
    log_end: int
    recovery_point: int
    size: int
    segment_count: int
    generation: int
    producer_count: int
    is_damaged: bool
