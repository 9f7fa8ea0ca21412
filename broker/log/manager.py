"""All logs of a broker: opened at start, created and deleted by name, closed in order.

The manager owns the data directory, the four checkpoint files and the table of logs. It decides
nothing about partitions: its callers know who leads, what is committed and what is to be deleted. A
log that the metadata does not know is never deleted: it is renamed `*-stray` and reported. A
deleted log is renamed `*-delete` at once, so that its name is free, and removed after a delay.
Directories that are no logs are left alone.

`start` and `close` block and run in a worker. Other calls are quick, except for the fsync of a
checkpoint; those over all logs take turns (`broker/turns.py`).

`Housekeeping` says when the recurring duties are due: a table of deadlines. `now` is monotonic
seconds; the caller sleeps until `next_deadline` and performs what `due` returns. A duty that was
missed (a pause, a busy loop) is due once, not once for each missed interval. Rolling by age is no
duty: each append checks it.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from pathlib import PurePath
from typing import NamedTuple

from minibroker.broker.descriptors import NO_DESCRIPTOR, NO_DESCRIPTORS, DescriptorBudget
from minibroker.broker.errors import Refused
from minibroker.broker.log.checkpoints import (
    FIRST_DIRTY,
    HIGH_WATERMARKS,
    LOG_STARTS,
    PARTITION_METADATA,
    RECOVERY_POINTS,
    Checkpoint,
    read_topic_id,
    write_topic_id,
)
from minibroker.broker.log.directory import (
    DELETE_SUFFIX,
    META,
    NO_MARKS,
    STRAY_SUFFIX,
    DataDirectory,
    RunMarks,
    explaining,
    is_among_deleted,
    is_deleted_name,
    name_aside,
    parse_log_name,
)
from minibroker.broker.log.disk_room import DiskRoom
from minibroker.broker.log.files import Files
from minibroker.broker.log.log import Log
from minibroker.broker.log.log_segments import is_delay_over
from minibroker.broker.log.outcomes import (
    DISK_IS_FULL,
    SHORTAGES,
    LastKnownState,
    LogLimits,
    LogLocation,
    refusal_of,
    require_descriptors,
    shortage_text,
)
from minibroker.broker.log.recovery import (
    DAMAGED_SUFFIX,
    UNKNOWN_TOPIC,
    UNKNOWN_TOPIC_ACCEPTED,
    check_owner,
)
from minibroker.broker.log.sealed_files import SealedFiles
from minibroker.broker.log.segment import file_name, offsets_in
from minibroker.broker.turns import Steps, Turns, at_once
from minibroker.protocol.constants import NO_OFFSET, ErrorCode
from minibroker.protocol.types import TopicPartition

LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ManagerStatistics:
    """Sums over all logs."""

    log_count: int
    damaged: tuple[TopicPartition, ...]
    strays: tuple[str, ...]
    deleting_count: int
    tail_safe: bool


def _start_to_checkpoint(log: Log) -> int:
    """The log start to checkpoint: while a loss is not accepted, the old one, since the lost
    records may be restored."""
    return log.log_start if log.damage is None else min(log.log_start, log.damage.offset)


class LogManager:
    """See the head of this file. `limits` hold for a log until its own are set; `descriptors` is
    the budget of open files, and `room` says how much may be written."""

    def __init__(
        self,
        files: Files,
        root: PurePath,
        limits: LogLimits,
        descriptors: DescriptorBudget | None = None,
        room: DiskRoom | None = None,
    ) -> None:
        self._files = files
        self.room = DiskRoom() if room is None else room
        self.descriptors = DescriptorBudget() if descriptors is None else descriptors
        self._sealed_files = SealedFiles(self.descriptors, files.new_lock())
        self._root = root
        self._limits = limits
        self.directory = DataDirectory(files, root)  # its owner, and how the last runs ended
        self._logs: dict[TopicPartition, Log] = {}
        self._high_watermarks: dict[TopicPartition, int] = {}
        self._deleted: dict[Log, int] = {}  # when to remove their files, in wall clock ms
        self._is_closed = False
        self._recovery_point_file = Checkpoint(
            files,
            root / RECOVERY_POINTS,
            lambda: {name: log.recovery_point for name, log in self.logs.items()},
        )
        self._log_start_file = Checkpoint(
            files,
            root / LOG_STARTS,
            lambda: {name: _start_to_checkpoint(log) for name, log in self.logs.items()},
        )
        self._high_watermark_file = Checkpoint(
            files, root / HIGH_WATERMARKS, lambda: dict(self._high_watermarks)
        )
        self._first_dirty_file = Checkpoint(
            files,
            root / FIRST_DIRTY,
            lambda: {
                name: log.compaction.first_dirty
                for name, log in self.logs.items()
                if log.compaction.first_dirty
            },
        )

    # -- starting

    def lock(self) -> None:
        """Lock the directory for this process, before anything else in it is read.

        Raises DataDirectoryError. `start` does it too; may be called twice.
        """
        with explaining(self._root):
            self.directory.acquire()

    def start(
        self, boot_id: str, cluster_id: str, node_id: int, now_ms: int, marks: RunMarks = NO_MARKS
    ) -> None:
        """Lock the directory and open all logs in it. Raises DataDirectoryError."""
        try:
            self.lock()
            with explaining(self._root):
                self.directory.begin(boot_id, cluster_id, node_id, marks)
                self._open_logs(now_ms)
        except BaseException:
            self.abandon()
            raise

    @property
    def tail_safe(self) -> bool:
        """Whether the way in which the last runs ended cannot have lost an append."""
        return self.directory.tail_safe

    def forget_lost_tail(self) -> None:
        """Forget the unsafe tail: the controller, which decides what it means, was told."""
        self.directory.forget_lost_tail()

    def _open_logs(self, now_ms: int) -> None:
        recovery_points = self._recovery_point_file.read()
        log_starts = self._log_start_file.read()
        high_watermarks = self._high_watermark_file.read()
        first_dirty = self._first_dirty_file.read()
        unnamed_start = 0 if self._log_start_file.is_known else NO_OFFSET
        last_known_states = {
            name: LastKnownState(
                is_clean=self.directory.is_clean,
                recovery_point=recovery_points.get(name, 0),
                log_start=log_starts.get(name, unnamed_start),
                high_watermark=high_watermarks.get(name, 0),
                same_boot=self.directory.same_boot,
            )
            for name in sorted({*recovery_points, *log_starts, *high_watermarks})
        }
        unknown = LastKnownState(
            is_clean=self.directory.is_clean, same_boot=self.directory.same_boot
        )
        names = self._files.list(self._root)
        deleted = [name for name in names if is_deleted_name(name) and self._is_dir(name)]
        for name in names:
            topic_partition = parse_log_name(name)
            is_log = topic_partition is not None and self._is_dir(name)
            if topic_partition is not None and is_log and self._is_log(self._root / name):
                self._open(topic_partition, last_known_states.get(topic_partition, unknown), now_ms)
        # After a clean stop no checkpoint has a log that was deleted before it.
        self._open_missing(last_known_states, () if self.directory.is_clean else deleted, now_ms)
        if not self.directory.is_clean or self.damaged:
            # The losses of the unclean stop are known (or kept as damage). From here on nothing is
            # missing, and the next start must not think so.
            self.checkpoint_recovery_points()
            self.checkpoint_high_watermarks()
            self.checkpoint_log_starts()
        elif not self._log_start_file.is_known:
            self.checkpoint_log_starts()
        for log in self._logs.values():
            log.compaction.first_dirty = min(first_dirty.get(log.topic_partition, 0), log.log_end)
        for name in deleted:
            self._files.remove_tree(self._root / name)

    def _open_missing(
        self,
        last_known_states: Mapping[TopicPartition, LastKnownState],
        deleted: Sequence[str],
        now_ms: int,
    ) -> None:
        """Open logs that were here and were removed by others: damaged, with nothing left in
        them."""
        for name, last_known in last_known_states.items():
            is_gone = name not in self._logs and not is_among_deleted(name, deleted)
            if is_gone and last_known.promised_end > 0 and parse_log_name(str(name)) == name:
                LOGGER.error("%s is gone", self._root / str(name))
                self._open(
                    name, replace(last_known, log_start=max(0, last_known.log_start)), now_ms
                )

    def _open(self, name: TopicPartition, last_known: LastKnownState, now_ms: int) -> None:
        directory = self._root / str(name)
        topic_id = read_topic_id(self._files, directory)
        location = self._location(name, topic_id)
        before = self._before_truncation
        log = Log.open(location, self._limits, last_known, before, now_ms=now_ms)
        has_records = max(log.log_end, last_known.promised_end) > 0
        unowned = check_owner(location, log.log_start, has_records=has_records)
        log.damage = min((one for one in (log.damage, unowned) if one), default=None)
        self._adopt(log)

    def _location(self, name: TopicPartition, topic_id: bytes) -> LogLocation:
        directory = self._root / str(name)
        return LogLocation(self._files, directory, name, topic_id, self._sealed_files, self.room)

    def _is_dir(self, name: str) -> bool:
        return self._files.is_dir(self._root / name)

    def _adopt(self, log: Log) -> None:
        self._logs[log.topic_partition] = log
        self._high_watermarks[log.topic_partition] = log.checkpointed_high_watermark

    def _is_log(self, directory: PurePath) -> bool:
        """Whether a directory with a log's name is one; remove what an interrupted creation
        left."""
        names = self._files.list(directory)
        marks = (PARTITION_METADATA, UNKNOWN_TOPIC, UNKNOWN_TOPIC_ACCEPTED)
        if not {*marks}.isdisjoint(names) or offsets_in(names, DAMAGED_SUFFIX):
            return True
        logs = [file_name(base_offset, ".log") for base_offset in offsets_in(names, ".log")]
        if any(self._has_bytes(directory / name) for name in logs):
            return True
        if {*names} <= {*logs, f"{PARTITION_METADATA}.tmp"}:
            self._files.remove_tree(directory)
        else:
            LOGGER.warning("%s has the name of a log and is none: it is left alone", directory)
        return False

    def _has_bytes(self, path: PurePath) -> bool:
        file = self._files.open(path)
        file.close()
        return file.size > 0

    # -- the table of logs

    def get(self, topic_partition: TopicPartition) -> Log | None:
        """Return the log of a partition, if this broker has one."""
        return self._logs.get(topic_partition)

    @property
    def logs(self) -> dict[TopicPartition, Log]:
        """A copy of the table."""
        return dict(self._logs)

    def observe_disk(self, free_bytes: int, total_bytes: int) -> Turns[None]:
        """Tell the logs how much room the disk has now; -1 if it is not known."""
        log_bytes = 0
        for logs in at_once(list(self._logs.values()) if self.room.needs_log_bytes else []):
            log_bytes += sum(log.size for log in logs)
            yield
        if line := self.room.observe(free_bytes, total_bytes, log_bytes):
            LOGGER.warning("%s: %s", self._root, line)

    def create(
        self, topic_partition: TopicPartition, topic_id: bytes, limits: LogLimits, now_ms: int
    ) -> Log:
        """Create a log. Raises Refused in a shortage, and OSError."""
        assert topic_partition not in self._logs, "there is a log of that name"
        directory = self._root / str(topic_partition)
        location = self._location(topic_partition, topic_id)
        if shortage := self._forget(topic_partition):
            raise Refused(ErrorCode.KAFKA_STORAGE_ERROR, shortage)
        try:
            self._require_descriptors()
            if self._files.exists(directory):
                # Not a log of ours, which would be in the table.
                self._files.rename(
                    directory,
                    name_aside(self._files, self._root, topic_partition, b"", STRAY_SUFFIX),
                )
            self._files.make_dir(directory)
            write_topic_id(self._files, directory, topic_id)
            before = self._before_truncation
            log = Log.open(location, limits, before_truncation=before, now_ms=now_ms)
        except OSError as error:
            if error.errno in DISK_IS_FULL:
                self._files.remove_tree(directory)
            raise refusal_of(error) from None
        self._adopt(log)
        return log

    def claim(self, topic_partition: TopicPartition, topic_id: bytes) -> None:
        """Give a log without a topic id the topic's. It is empty, or damaged until it is
        replicated again, or an operator has said that its records are the topic's. Raises Refused
        in a shortage."""
        log = self._logs[topic_partition]
        accepted = log.directory / UNKNOWN_TOPIC_ACCEPTED
        try:
            is_accepted = self._files.exists(accepted)
            write_topic_id(self._files, log.directory, topic_id, sync=is_accepted)
            if is_accepted:  # no longer, if the id is lost again
                self._files.remove(accepted)
        except OSError as error:
            raise refusal_of(error) from error
        log.topic_id = topic_id

    def _require_descriptors(self) -> None:
        """Raise Refused if the budget has no descriptor for a new log, and OSError if the process
        has too few: a creation should not be left half done."""
        if not self.descriptors.has_room_for_log():
            raise Refused(ErrorCode.KAFKA_STORAGE_ERROR, NO_DESCRIPTOR)
        require_descriptors(self._files, self._root / META)

    def delete(self, topic_partition: TopicPartition, now_ms: int) -> None:
        """Delete a log: its name is free at once, its files are removed after the delay."""
        log = self._remove(topic_partition)
        self._put_aside(log, DELETE_SUFFIX)
        self._deleted[log] = now_ms + log.limits.file_delete_delay_ms

    def set_aside(self, topic_partition: TopicPartition) -> None:
        """Keep the bytes of a log that the metadata does not know, under another name."""
        log = self._remove(topic_partition)
        self._forget(topic_partition)
        self._put_aside(log, STRAY_SUFFIX)
        log.abandon()
        LOGGER.warning("%s is unknown to the metadata, kept in %s", topic_partition, log.directory)

    def _remove(self, topic_partition: TopicPartition) -> Log:
        del self._high_watermarks[topic_partition]
        return self._logs.pop(topic_partition)

    def _put_aside(self, log: Log, suffix: str) -> None:
        name = log.topic_partition
        log.move_to(name_aside(self._files, self._root, name, log.topic_id, suffix))

    def _forget(self, topic_partition: TopicPartition) -> str:
        """Remove a log that does not exist any more from the checkpoints; return why it could not
        be done, "" if it was.

        Otherwise the next start would miss it, and apply its offsets to a new log of that name.
        """
        for file in (
            self._recovery_point_file,
            self._high_watermark_file,
            self._log_start_file,
            self._first_dirty_file,
        ):
            if not file.lower(topic_partition, NO_OFFSET):
                return file.shortage
        return ""

    # -- duties

    def apply_retention(self, name: TopicPartition, high_watermark: int, now_ms: int) -> Turns[int]:
        """Delete a log's expired segments below the high watermark; return how many."""
        try:
            return (yield from self._logs[name].apply_retention(high_watermark, now_ms))
        except Refused as refused:
            text = refused.message
        except OSError as error:
            if error.errno not in SHORTAGES:
                raise
            text = shortage_text(error)
        LOGGER.warning("%s keeps expired segments: %s", name, text)
        return 0

    def remove_deleted_files(self, now_ms: int) -> Steps[None]:
        """Remove the files of deleted segments and logs whose delay has passed, in workers: the
        removal of a large file takes long."""
        for logs in at_once(list(self._logs.values())):
            for log in logs:
                yield from log.remove_deleted_files(now_ms)
            yield None
        over = [
            log
            for log, due_ms in self._deleted.items()
            if is_delay_over(due_ms, log.limits.file_delete_delay_ms, now_ms)
        ]
        for log in over:
            yield from self._remove_deleted(log)

    def _remove_deleted(self, log: Log) -> Steps[None]:
        yield partial(self._forget, log.topic_partition)
        log.abandon()
        try:
            yield partial(self._files.remove_tree, log.directory)
        except OSError as error:
            if error.errno not in NO_DESCRIPTORS:
                raise
            LOGGER.warning("%s is removed later: %s", log.directory, NO_DESCRIPTOR)
        else:
            del self._deleted[log]

    def expire_producers(self, now_ms: int) -> Turns[None]:
        """Expire idle producers in all logs."""
        for logs in at_once(list(self._logs.values())):
            for log in logs:
                log.expire_producers(now_ms)
            yield

    # -- checkpoints

    def record_high_watermarks(self, high_watermarks: Mapping[TopicPartition, int]) -> None:
        """Set high watermarks for the next checkpoint; other partitions keep their last ones."""
        for name, high_watermark in high_watermarks.items():
            if name in self._high_watermarks:
                self._high_watermarks[name] = high_watermark

    def checkpoint_high_watermarks(self) -> bool:
        """Write the high watermarks set last; False in a shortage. May run in a worker."""
        return self._high_watermark_file.write()

    def checkpoint_recovery_points(self) -> bool:
        """Write the recovery points; False in a shortage. May run in a worker."""
        return self._recovery_point_file.write()

    def checkpoint_log_starts(self) -> bool:
        """Write the log starts; False in a shortage. May run in a worker."""
        return self._log_start_file.write()

    def checkpoint_first_dirty(self) -> bool:
        """Write up to where logs were compacted; False in a shortage. May run in a worker."""
        return self._first_dirty_file.write()

    def _before_truncation(self, topic_partition: TopicPartition, offset: int) -> None:
        """Lower the checkpoints of a log to its start and `offset`, before it is truncated.

        Raises Refused in a shortage, but for the log start only if no file descriptor is free:
        retention makes room on a full disk.
        """
        before = self._high_watermarks[topic_partition]
        self._high_watermarks[topic_partition] = min(before, offset)
        for file in (self._recovery_point_file, self._high_watermark_file, self._first_dirty_file):
            if not file.lower(topic_partition, offset):
                raise Refused(ErrorCode.KAFKA_STORAGE_ERROR, file.shortage)
        log_start = _start_to_checkpoint(self._logs[topic_partition])
        if not self._log_start_file.ensure(topic_partition, log_start):
            raise Refused(ErrorCode.KAFKA_STORAGE_ERROR, NO_DESCRIPTOR)

    # -- ending

    def close(self, high_watermarks: Mapping[TopicPartition, int], now_ms: int = 0) -> bool:
        """Close all logs, checkpoint them, and mark the stop as clean. May be called twice.

        In a shortage there is no mark, and the next start reads more. Other errors are raised.
        Returns whether the mark was made.
        """
        if self._is_closed:
            return False
        is_written = False
        try:
            for log in self._logs.values():
                log.close()
            self.record_high_watermarks(high_watermarks)
            is_written = (
                self.checkpoint_high_watermarks()
                and self.checkpoint_recovery_points()
                and self.checkpoint_log_starts()
            )
            if is_written:
                self.directory.end_clean(now_ms)
        except OSError as error:
            if error.errno not in SHORTAGES:
                raise
            is_written = False
            LOGGER.warning("The stop is not marked clean: %s", shortage_text(error))
        finally:
            self.abandon()
        return is_written

    def abandon(self) -> None:
        """Close all files and unlock the directory, without writing anything. May be called
        twice."""
        self._is_closed = True
        for log in [*self._logs.values(), *self._deleted]:
            log.abandon()
        self.directory.release()

    @property
    def damaged(self) -> tuple[TopicPartition, ...]:
        """The logs that have lost records."""
        return tuple(name for name, log in self._logs.items() if log.damage is not None)

    def statistics(self) -> ManagerStatistics:
        """Return the sums over all logs."""
        strays = [name for name in self._files.list(self._root) if name.endswith(STRAY_SUFFIX)]
        return ManagerStatistics(
            log_count=len(self._logs),
            damaged=self.damaged,
            strays=tuple(strays),
            deleting_count=len(self._deleted),
            tail_safe=self.tail_safe,
        )


class Duty(Enum):
    """The recurring duties."""

    HIGH_WATERMARKS = "checkpoint the high watermarks"
    RECOVERY_POINTS = "checkpoint the recovery points"
    LOG_STARTS = "checkpoint the log starts"
    RETENTION = "delete segments that are too old or too many"
    DELETED_FILES = "remove files of deleted segments and topics"
    PRODUCERS = "forget idle producers"
    UNCREATED_LOGS = "make the logs for which there was no room"


class Interval(NamedTuple):
    """Seconds until a duty's first time, and between two times."""

    first_s: float
    every_s: float


class Housekeeping:
    """The deadlines of all duties."""

    def __init__(self, intervals: Mapping[Duty, Interval], now: float) -> None:
        self._intervals = dict(intervals)
        self._deadlines = {duty: now + interval.first_s for duty, interval in intervals.items()}

    @property
    def next_deadline(self) -> float:
        """When (monotonic seconds) the next duty is due."""
        return min(self._deadlines.values())

    def due(self, now: float) -> list[Duty]:
        """Return the duties that are due; each is next due an interval from now."""
        duties = [duty for duty, deadline in self._deadlines.items() if deadline <= now]
        for duty in duties:
            self._deadlines[duty] = now + self._intervals[duty].every_s
        return duties
