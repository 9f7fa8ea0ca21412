"""One log directory: its logs, opened at start, created and deleted by name, closed in order.

A directory has its marks, its lock, the four checkpoint files and the logs. It decides nothing
about partitions. A log that the metadata does not know is never deleted: it is renamed `*-stray`
and reported. A deleted log is renamed `*-delete` at once, so that its name is free, and removed
after a delay. Directories that are no logs are left alone.

`begin`, `open_logs` and `close` block and run in a worker. Other calls are quick, except for the
fsync of a checkpoint; those over all logs take turns (`broker/turns.py`).
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import PurePath

from minibroker.broker.descriptors import NO_DESCRIPTOR, NO_DESCRIPTORS
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
    STRAY_SUFFIX,
    DataDirectory,
    is_among_deleted,
    is_deleted_name,
    name_aside,
    parse_log_name,
)
from minibroker.broker.log.disk_room import DiskRoom
from minibroker.broker.log.files import Files
from minibroker.broker.log.future_logs import MOVED, FutureLog, FutureLogs
from minibroker.broker.log.guarded_files import Guard, GuardedFiles
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


def _start_to_checkpoint(log: Log) -> int:
    """The log start to checkpoint: while a loss is not accepted, the old one, since the lost
    records may be restored."""
    return log.log_start if log.damage is None else min(log.log_start, log.damage.offset)


class LogDirectory:
    """See the head of this file. `limits` hold for a log until its own are set; `sealed_files` are
    those of all logs, and `room` says how much may be written.

    `is_guarded`: an I/O error takes the directory offline (`failure`) instead of ending the broker.
    """

    def __init__(
        self,
        files: Files,
        root: PurePath,
        limits: LogLimits,
        sealed_files: SealedFiles,
        room: DiskRoom,
        *,
        is_guarded: bool = False,
    ) -> None:
        self.guard = Guard(root)
        self.files: Files = GuardedFiles(files, self.guard) if is_guarded else files
        self.room = room
        self.root = root
        self._sealed_files = sealed_files
        self._limits = limits
        self.marks = DataDirectory(self.files, root)  # its owner, and how the last runs ended
        self._logs: dict[TopicPartition, Log] = {}
        self._high_watermarks: dict[TopicPartition, int] = {}
        self._deleted: dict[Log, int] = {}  # when to remove their files, in wall clock ms
        self._moved_away: dict[TopicPartition, Log] = {}  # to another directory, but not durably
        self.futures = FutureLogs(self.files, root, self._location, self._before_truncation)
        self.changes = 0  # of the table of logs
        self.is_open = False  # all of its logs are known
        self._is_closed = False
        self._recovery_point_file = Checkpoint(
            self.files,
            root / RECOVERY_POINTS,
            lambda: {name: log.recovery_point for name, log in self.logs.items()},
        )
        self._log_start_file = Checkpoint(
            self.files,
            root / LOG_STARTS,
            lambda: {
                **self.futures.log_starts(),  # before they take the place of the former logs
                **{name: _start_to_checkpoint(log) for name, log in self.logs.items()},
            },
        )
        self._high_watermark_file = Checkpoint(
            self.files, root / HIGH_WATERMARKS, lambda: dict(self._high_watermarks)
        )
        self._first_dirty_file = Checkpoint(
            self.files,
            root / FIRST_DIRTY,
            lambda: {
                name: log.compaction.first_dirty
                for name, log in self.logs.items()
                if log.compaction.first_dirty
            },
        )

    # -- starting

    @property
    def failure(self) -> str:
        """Why the directory is offline; "" if it is not."""
        return self.guard.failure

    def find_logs(self) -> list[TopicPartition]:
        """Return the partitions that have a directory here, before they are opened."""
        names = map(parse_log_name, self.files.list(self.root))
        return [name for name in names if name is not None and self._is_dir(str(name))]

    def open_logs(self, now_ms: int) -> None:
        """Open all logs, after `marks.begin`. Raises OSError."""
        recovery_points = self._recovery_point_file.read()
        log_starts = self._log_start_file.read()
        high_watermarks = self._high_watermark_file.read()
        first_dirty = self._first_dirty_file.read()
        unnamed_start = 0 if self._log_start_file.is_known else NO_OFFSET
        last_known_states = {
            name: LastKnownState(
                is_clean=self.marks.is_clean,
                recovery_point=recovery_points.get(name, 0),
                log_start=log_starts.get(name, unnamed_start),
                high_watermark=high_watermarks.get(name, 0),
                same_boot=self.marks.same_boot,
            )
            for name in sorted({*recovery_points, *log_starts, *high_watermarks})
        }
        unknown = LastKnownState(is_clean=self.marks.is_clean, same_boot=self.marks.same_boot)
        names = self.files.list(self.root)
        self.futures.find(names)
        deleted = [name for name in names if is_deleted_name(name) and self._is_dir(name)]
        for name in names:
            topic_partition = parse_log_name(name)
            is_log = topic_partition is not None and self._is_dir(name)
            if topic_partition is not None and is_log and self._is_log(self.root / name):
                self._open(topic_partition, last_known_states.get(topic_partition, unknown), now_ms)
        # After a clean stop no checkpoint has a log that was deleted before it.
        self._open_missing(last_known_states, () if self.marks.is_clean else deleted, now_ms)
        if not self.marks.is_clean or self.damaged:
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
            self.files.remove_tree(self.root / name)
        self.is_open = True

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
                LOGGER.error("%s is gone", self.root / str(name))
                self._open(
                    name, replace(last_known, log_start=max(0, last_known.log_start)), now_ms
                )

    def _open(self, name: TopicPartition, last_known: LastKnownState, now_ms: int) -> None:
        directory = self.root / str(name)
        topic_id = read_topic_id(self.files, directory)
        self.files.remove(directory / MOVED)
        location = self._location(name, topic_id, directory)
        before = self._before_truncation
        log = Log.open(location, self._limits, last_known, before, now_ms=now_ms)
        has_records = max(log.log_end, last_known.promised_end) > 0
        unowned = check_owner(location, log.log_start, has_records=has_records)
        log.damage = min((one for one in (log.damage, unowned) if one), default=None)
        self._adopt(log)

    def _location(self, name: TopicPartition, topic_id: bytes, directory: PurePath) -> LogLocation:
        return LogLocation(self.files, directory, name, topic_id, self._sealed_files, self.room)

    def _is_dir(self, name: str) -> bool:
        return self.files.is_dir(self.root / name)

    def _adopt(self, log: Log) -> None:
        self.changes += 1
        self._logs[log.topic_partition] = log
        self._high_watermarks[log.topic_partition] = log.checkpointed_high_watermark

    def _is_log(self, directory: PurePath) -> bool:
        """Whether a directory with a log's name is one; remove what an interrupted creation
        left."""
        names = self.files.list(directory)
        marks = (PARTITION_METADATA, UNKNOWN_TOPIC, UNKNOWN_TOPIC_ACCEPTED)
        if not {*marks}.isdisjoint(names) or offsets_in(names, DAMAGED_SUFFIX):
            return True
        logs = [file_name(base_offset, ".log") for base_offset in offsets_in(names, ".log")]
        if any(self._has_bytes(directory / name) for name in logs):
            return True
        if {*names} <= {*logs, f"{PARTITION_METADATA}.tmp"}:
            self.files.remove_tree(directory)
        else:
            LOGGER.warning("%s has the name of a log and is none: it is left alone", directory)
        return False

    def _has_bytes(self, path: PurePath) -> bool:
        file = self.files.open(path)
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

    def __len__(self) -> int:
        return len(self._logs)

    def log_bytes(self) -> Turns[int]:
        """Return the size of all logs."""
        log_bytes = 0
        for logs in at_once(list(self._logs.values())):
            log_bytes += sum(log.size for log in logs)
            yield
        return log_bytes

    def observe_disk(self, free_bytes: int, total_bytes: int, log_bytes: int) -> None:
        """Tell the logs how much room the disk has now, and the size of all logs of the broker; -1
        if it is not known."""
        if line := self.room.observe(free_bytes, total_bytes, log_bytes):
            LOGGER.warning("%s: %s", self.root, line)

    def create(
        self, topic_partition: TopicPartition, topic_id: bytes, limits: LogLimits, now_ms: int
    ) -> Log:
        """Create a log. Raises Refused in a shortage, and OSError."""
        assert topic_partition not in self._logs, "there is a log of that name"
        directory = self.root / str(topic_partition)
        location = self._location(topic_partition, topic_id, directory)
        self.remove_moved_away(topic_partition, now_ms)
        if shortage := self._forget(topic_partition):
            raise Refused(ErrorCode.KAFKA_STORAGE_ERROR, shortage)
        try:
            self._require_descriptors()
            self._make_way(topic_partition)
            self.files.make_dir(directory)
            write_topic_id(self.files, directory, topic_id)
            before = self._before_truncation
            log = Log.open(location, limits, before_truncation=before, now_ms=now_ms)
        except OSError as error:
            if error.errno in DISK_IS_FULL:
                self.files.remove_tree(directory)
            raise refusal_of(error) from None
        self._adopt(log)
        return log

    def _make_way(self, topic_partition: TopicPartition) -> None:
        """Rename what has the name of a new log. It is no log of ours, which would be in the
        table."""
        directory = self.root / str(topic_partition)
        if self.files.exists(directory):
            aside = name_aside(self.files, self.root, topic_partition, b"", STRAY_SUFFIX)
            self.files.rename(directory, aside)

    def claim(self, topic_partition: TopicPartition, topic_id: bytes) -> None:
        """Give a log without a topic id the topic's. It is empty, or damaged until it is
        replicated again, or an operator has said that its records are the topic's. Raises Refused
        in a shortage."""
        log = self._logs[topic_partition]
        accepted = log.directory / UNKNOWN_TOPIC_ACCEPTED
        try:
            is_accepted = self.files.exists(accepted)
            write_topic_id(self.files, log.directory, topic_id, sync=is_accepted)
            if is_accepted:  # no longer, if the id is lost again
                self.files.remove(accepted)
        except OSError as error:
            raise refusal_of(error) from error
        log.topic_id = topic_id

    def _require_descriptors(self) -> None:
        """Raise Refused if the budget has no descriptor for a new log, and OSError if the process
        has too few: a creation should not be left half done."""
        if not self._sealed_files.budget.has_room_for_log():
            raise Refused(ErrorCode.KAFKA_STORAGE_ERROR, NO_DESCRIPTOR)
        require_descriptors(self.files, self.root / META)

    def delete(self, topic_partition: TopicPartition, now_ms: int) -> None:
        """Delete a log: its name is free at once, its files are removed after the delay."""
        self._remove_later(self._remove(topic_partition), now_ms)

    def _remove_later(self, log: Log, now_ms: int) -> None:
        self._put_aside(log, DELETE_SUFFIX)
        self._deleted[log] = now_ms + log.limits.file_delete_delay_ms

    # -- moves between directories (`log_moves.py`)

    def has_moved_here(self, topic_partition: TopicPartition) -> bool:
        """Whether the log of this name has taken the place of one in another directory, which may
        still be there."""
        return self.files.exists(self.root / str(topic_partition) / MOVED)

    def forget_move(self, topic_partition: TopicPartition) -> None:
        """Record that the former log of a log that has moved here is gone. Runs in a worker."""
        directory = self.root / str(topic_partition)
        if self.files.exists(directory):
            self.files.remove(directory / MOVED)
            self.files.sync_dir(directory)

    def begin_future(
        self, future: FutureLog, limits: LogLimits, log_start: int, now_ms: int
    ) -> None:
        """Make a future log, empty, from `log_start` on. Runs in a worker. Raises Refused in a
        shortage, and OSError."""
        try:
            self._require_descriptors()
            self.futures.begin(future, limits, log_start, now_ms)
        except OSError as error:
            raise refusal_of(error) from None

    def prepare_future(self, future: FutureLog) -> None:
        """Make durable what must be there before a future log takes the place of the present one:
        the mark, and its start. Runs in a worker. Raises Refused in a shortage, and OSError."""
        assert future.log is not None
        try:
            self.files.write_atomic(future.directory / MOVED, b"")
        except OSError as error:
            raise refusal_of(error) from None
        if not self._log_start_file.ensure(future.topic_partition, future.log.log_start):
            raise Refused(ErrorCode.KAFKA_STORAGE_ERROR, self._log_start_file.shortage)

    def take_in(self, future: FutureLog, high_watermark: int) -> Log:
        """Make a future log the log of its partition, under its name. Raises OSError, and then
        nothing has changed."""
        name, log = future.topic_partition, future.log
        assert log is not None
        self._make_way(name)
        log.rename_to(self.root / str(name))
        self.futures.take_out(name)
        self._adopt(log)
        self._high_watermarks[name] = high_watermark
        return log

    def let_go(self, topic_partition: TopicPartition) -> None:
        """Take a log out of the table that another directory has taken in. Its files stay as they
        are until `remove_moved_away`."""
        self._moved_away[topic_partition] = self._remove(topic_partition)

    def remove_moved_away(self, topic_partition: TopicPartition, now_ms: int) -> None:
        """Delete a log that was let go, if there is one."""
        log = self._moved_away.pop(topic_partition, None)
        if log is not None:
            self._remove_later(log, now_ms)

    def remove_found(self, topic_partition: TopicPartition) -> None:
        """Rename a log whose successor is in another directory, at a start."""
        directory = self.root / str(topic_partition)
        topic_id = read_topic_id(self.files, directory)
        args = self.files, self.root, topic_partition, topic_id, DELETE_SUFFIX
        self.files.rename(directory, name_aside(*args))
        self.files.sync_dir(self.root)

    def cancel_future(self, topic_partition: TopicPartition, now_ms: int) -> None:
        """End the move of a log to this directory, if there is one."""
        future = self.futures.take_out(topic_partition)
        if future is not None:
            future.is_cancelled = True
            if not future.is_in_use:
                self.discard(future, now_ms)

    def discard(self, future: FutureLog, now_ms: int) -> None:
        """Remove a future log that is not in use."""
        if future.log is None:
            self.files.remove_tree(future.directory)
        else:
            self._remove_later(future.log, now_ms)

    def set_aside(self, topic_partition: TopicPartition) -> None:
        """Keep the bytes of a log that the metadata does not know, under another name."""
        log = self._remove(topic_partition)
        self._forget(topic_partition)
        self._put_aside(log, STRAY_SUFFIX)
        log.abandon()
        LOGGER.warning("%s is unknown to the metadata, kept in %s", topic_partition, log.directory)

    def _remove(self, topic_partition: TopicPartition) -> Log:
        self.changes += 1
        del self._high_watermarks[topic_partition]
        return self._logs.pop(topic_partition)

    def _put_aside(self, log: Log, suffix: str) -> None:
        name = log.topic_partition
        log.move_to(name_aside(self.files, self.root, name, log.topic_id, suffix))

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
            yield partial(self.files.remove_tree, log.directory)
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
        if topic_partition not in self._logs:
            return  # a future log, which no checkpoint has
        before = self._high_watermarks[topic_partition]
        self._high_watermarks[topic_partition] = min(before, offset)
        for file in (self._recovery_point_file, self._high_watermark_file, self._first_dirty_file):
            if not file.lower(topic_partition, offset):
                raise Refused(ErrorCode.KAFKA_STORAGE_ERROR, file.shortage)
        log_start = _start_to_checkpoint(self._logs[topic_partition])
        if not self._log_start_file.ensure(topic_partition, log_start):
            raise Refused(ErrorCode.KAFKA_STORAGE_ERROR, self._log_start_file.shortage)

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
                self.marks.end_clean(now_ms)
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
        for log in [*self._logs.values(), *self._moved_away.values(), *self._deleted]:
            log.abandon()
        self.futures.abandon()
        self.marks.release()

    @property
    def damaged(self) -> tuple[TopicPartition, ...]:
        """The logs that have lost records."""
        return tuple(name for name, log in self._logs.items() if log.damage is not None)

    def strays(self) -> list[str]:
        """Return the directories of logs that were set aside."""
        return [name for name in self.files.list(self.root) if name.endswith(STRAY_SUFFIX)]

    @property
    def deleting_count(self) -> int:
        """How many deleted logs still have files."""
        return len(self._deleted)
