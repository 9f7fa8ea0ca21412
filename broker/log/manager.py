"""All logs of a broker, in one log directory or several.

The manager owns the log directories (`log_directory.py`) and knows in which one each log is. It
decides nothing about partitions: its callers know who leads, what is committed and what is to be
deleted. A new log goes to the directory with the fewest logs, as in Apache Kafka.

The first directory is the broker's own: its id is the one that the controller knows, and an I/O
error in it ends the broker, as with a single one. An error in another takes off that directory
alone (`guarded_files.py`): its logs are *offline* until a start finds them again, and the other
directories go on.

A log that is offline is never made anew in another directory: it could lead, empty. After a failure
its name is known. A start without a directory knows from `known_directories.py` which logs were in
it, but for the newest. So until the controller has sent all roles (`settle`), a log that is not
found counts as offline, too, if any directory is.

`lock`, `start` and `close` block and run in a worker. Other calls are quick, except for the fsync
of a checkpoint; those over all logs take turns (`broker/turns.py`).
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from itertools import chain
from pathlib import PurePath
from typing import NamedTuple

from minibroker.broker.descriptors import DescriptorBudget
from minibroker.broker.errors import Refused
from minibroker.broker.log.directory import (
    NO_MARKS,
    DataDirectory,
    DataDirectoryError,
    RunMarks,
    explaining,
)
from minibroker.broker.log.disk_room import NOT_KNOWN, DiskRoom, RoomStatistics
from minibroker.broker.log.files import Files
from minibroker.broker.log.guarded_files import DirectoryOffline
from minibroker.broker.log.known_directories import NAME, KnownDirectories, KnownDirectory
from minibroker.broker.log.log import Log
from minibroker.broker.log.log_directory import LogDirectory
from minibroker.broker.log.log_moves import LogMoves
from minibroker.broker.log.outcomes import SHORTAGES, LogLimits, shortage_text
from minibroker.broker.log.sealed_files import SealedFiles
from minibroker.broker.turns import Steps, Turns
from minibroker.protocol.constants import ErrorCode
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


class DiskSpace(NamedTuple):
    """The bytes of the disk of a log directory; -1 where they are not known."""

    free_bytes: int = NOT_KNOWN
    total_bytes: int = NOT_KNOWN


class DirectoryState(NamedTuple):
    """A log directory: its path, and why it is offline ("" if it is not)."""

    path: str
    failure: str = ""


class Whose(NamedTuple):
    """The machine's boot, and the owner of the directories."""

    boot_id: str
    cluster_id: str
    node_id: int


class LogManager:
    """See the head of this file. `limits` hold for a log until its own are set; `descriptors` is
    the budget of open files, `room` says how much may be written, and `others` are the log
    directories after the first."""

    def __init__(
        self,
        files: Files,
        root: PurePath,
        limits: LogLimits,
        descriptors: DescriptorBudget | None = None,
        room: DiskRoom | None = None,
        others: Sequence[PurePath] = (),
    ) -> None:
        self.room = DiskRoom() if room is None else room
        self.descriptors = DescriptorBudget() if descriptors is None else descriptors
        self._sealed_files = sealed = SealedFiles(self.descriptors, files.new_lock())
        self._first = LogDirectory(files, root, limits, sealed, self.room)
        self._others = tuple(
            LogDirectory(files, other, limits, sealed, self.room.of_other_disk(), is_guarded=True)
            for other in others
        )
        self.directories = (self._first, *self._others)
        self.moves = LogMoves(self.directories)
        self._known = KnownDirectories(files, root)
        self._rows: dict[str, KnownDirectory] = {}  # by path
        self._offline: dict[TopicPartition, str] = {}
        self._noted: set[LogDirectory] = set()  # directories that have failed
        self._gone: list[TopicPartition] = []  # logs that have gone offline with them
        self._written_changes: list[int] = []
        self._is_settled = False

    # -- starting

    def lock(self) -> None:
        """Lock the first directory for this process, before anything else in it is read.

        Raises DataDirectoryError. `start` does it too; may be called twice.
        """
        with explaining(self._first.root):
            self.directory.acquire()

    def start(
        self, boot_id: str, cluster_id: str, node_id: int, now_ms: int, marks: RunMarks = NO_MARKS
    ) -> None:
        """Lock the directories and open all logs in them. Raises DataDirectoryError."""
        try:
            self.lock()
            whose = Whose(boot_id, cluster_id, node_id)
            with explaining(self._first.root):
                self.directory.begin(*whose, marks)
                self._begin_others(whose, marks)
            self._require_one_of_each()
            for directory in self._healthy():
                with explaining(directory.root), suppress(DirectoryOffline):
                    directory.open_logs(now_ms)
            self.take_off_failed()
            with explaining(self._first.root):
                self.write_known()
        except BaseException:
            self.abandon()
            raise

    def _begin_others(self, whose: Whose, marks: RunMarks) -> None:
        """Lock and check the other directories, and remember them."""
        rows = {row.path: row for row in self._known.read()}
        ids = {directory: self._peek(directory) for directory in self._others}
        found = {self.directory.directory_id: self._first}
        for directory, directory_id in ids.items():
            same = found.setdefault(directory_id, directory) if directory_id else directory
            if same is not directory:
                raise DataDirectoryError(
                    f"log directories {same.root} and {directory.root} have the same directory.id:"
                    " one is a copy of the other; take it out of log.dirs"
                )
        missing = [row for row in rows.values() if row.directory_id not in found]
        by_id = {row.directory_id: row for row in rows.values()}
        for row in missing:
            self._miss(row, whose, marks)
        for directory, directory_id in ids.items():
            path = str(directory.root)
            told = by_id.get(directory_id)
            if not directory.failure:
                self._begin(directory, told, whose, marks)
            if not directory.failure:
                mark = directory.marks
                told = KnownDirectory(mark.directory_id, mark.run, False, path)
            if (known := told or rows.get(path)) is None:
                raise DataDirectoryError(
                    f"log directory {path} cannot be used: {directory.failure}; mend it, or take it"
                    " out of log.dirs, since it has no logs of this broker"
                )
            self._rows[path] = known._replace(path=path)
        if self._others or rows:
            for row in self._rows.values():
                if self._known.read_logs(row.directory_id) is None:
                    self._known.write_logs(row.directory_id, ())
            self._known.write([*self._rows.values()])
            for row in missing:
                if row.path not in self._rows:
                    self._known.forget(row.directory_id)

    def _peek(self, directory: LogDirectory) -> str:
        """Return the id of a directory; "" for a new one and for one that cannot be read."""
        with explaining(directory.root), suppress(DirectoryOffline):
            if directory.files.exists(directory.root / NAME):
                raise DataDirectoryError(
                    f"log directory {directory.root} was the first of a broker: name it first in"
                    " log.dirs"
                )
            return directory.marks.peek()[0]
        return ""

    def _miss(self, row: KnownDirectory, whose: Whose, marks: RunMarks) -> None:
        """Take a directory that is not there offline, or refuse the start, unless an operator has
        said that it is lost: then the controller learns that this broker has lost logs."""
        logs = self._known.read_logs(row.directory_id)
        path = self._known.logs_path(row.directory_id)
        configured = [one for one in self._others if str(one.root) == row.path]
        if configured and logs is not None:
            configured[0].guard.fail(
                f"it is not the directory that has this broker's logs (directory.id"
                f" {row.directory_id}): mount its disk; if that is lost, remove {path}"
            )
        elif logs:
            raise DataDirectoryError(
                f"log.dirs lacks {row.path}, which has {len(logs)} logs of this broker: name it"
                f" again; if it is lost, remove {path}"
            )
        else:
            LOGGER.warning("log directory %s is lost, with the logs in it", row.path)
            name = f"{row.directory_id} is lost"
            self.directory.renew_id(whose.cluster_id, whose.node_id, _derived(marks, name))

    def _begin(
        self, directory: LogDirectory, row: KnownDirectory | None, whose: Whose, marks: RunMarks
    ) -> None:
        """Begin a run in another directory. What it has is not trusted if it is not known, if it
        failed, or if it is an old copy."""
        mark = directory.marks
        with explaining(directory.root), suppress(DirectoryOffline):
            mark.acquire()
            is_trusted = not directory.find_logs()
            if row is not None:
                is_trusted = not row.has_failed and mark.peek()[1] >= row.run
            if not is_trusted:
                LOGGER.warning("The ends of the logs in %s may be lost", directory.root)
                mark.distrust_tail()
            new_id = _derived(marks, str(directory.root))
            mark.begin(*whose, marks._replace(new_directory_id=new_id))

    def _require_one_of_each(self) -> None:
        """Raise DataDirectoryError if a partition is in two directories, unless a crash has cut the
        end of a move short: then the former log goes."""
        found: dict[TopicPartition, LogDirectory] = {}
        for directory in self._healthy():
            with explaining(directory.root), suppress(DirectoryOffline):
                for name in directory.find_logs():
                    other = found.setdefault(name, directory)
                    if other is directory:
                        continue
                    former = [one for one in (other, directory) if not one.has_moved_here(name)]
                    if len(former) != 1:
                        raise DataDirectoryError(
                            f"partition {name} is in two log directories, {other.root} and"
                            f" {directory.root}: move the older one away"
                        )
                    former[0].remove_found(name)
                    found[name] = directory if former[0] is other else other

    def settle(self) -> None:
        """From now on a log that is not here is a new one: all roles that this broker had were
        sent."""
        self._is_settled = True
        for future, target in self.moves.wanted():
            name = future.topic_partition
            if name not in self._offline and self.moves.source_of(name) in (None, target):
                self.moves.cancel(name, 0)

    # -- how the last runs ended

    @property
    def directory(self) -> DataDirectory:
        """The marks in the first directory."""
        return self._first.marks

    @property
    def tail_safe(self) -> bool:
        """Whether the way in which the last runs ended cannot have lost an append."""
        return all(one.marks.tail_safe for one in self._healthy())

    @property
    def was_synced(self) -> bool:
        """Whether it cannot have lost an acknowledged one with `flush=always`."""
        return all(one.marks.was_synced or one.marks.tail_safe for one in self._healthy())

    def forget_lost_tail(self) -> None:
        """Forget the unsafe tail: the controller, which decides what it means, was told."""
        for directory in self._healthy():
            with suppress(DirectoryOffline):
                directory.marks.forget_lost_tail()

    def distrust_tail(self) -> None:
        """Remember that a fsync failed (`DataDirectory.distrust_tail`)."""
        for directory in self._healthy():
            directory.marks.distrust_tail()

    # -- directories that fail

    def _healthy(self) -> Iterator[LogDirectory]:
        return (one for one in self.directories if not one.failure)

    def states(self) -> list[DirectoryState]:
        """Return the state of each directory, as they are named in `log.dirs`."""
        return [DirectoryState(str(one.root), one.failure) for one in self.directories]

    @property
    def offline(self) -> frozenset[TopicPartition]:
        """The logs that are in a directory that is offline, as far as they are known."""
        return frozenset(self._offline)

    def why_offline(self, name: TopicPartition) -> str:
        """Return why a log is offline; "" if it is not known to be."""
        return self._offline.get(name, "")

    def take_off_failed(self) -> list[TopicPartition]:
        """Give up the directories that have failed since the last call; return the logs that went
        offline with them."""
        self._note_failures()
        gone, self._gone = self._gone, []
        for directory in self._noted:
            directory.abandon()
        return gone

    def _note_failures(self) -> None:
        for directory in self._others:
            if directory.failure and directory not in self._noted:
                self._noted.add(directory)
                names = self._logs_of_failed(directory)
                self._offline.update(dict.fromkeys(names, _offline_text(directory)))
                self._gone += names

    def _logs_of_failed(self, directory: LogDirectory) -> list[TopicPartition]:
        path = str(directory.root)
        if path in self._rows and directory.marks.directory_id:
            self._rows[path] = self._rows[path]._replace(has_failed=True)
        if directory.is_open:
            return [*directory.logs]
        row, elsewhere = self._rows.get(path), self.logs
        names = {*directory.logs}
        if row is not None:
            names.update(self._known.read_logs(row.directory_id) or ())
        return sorted(name for name in names if name not in elsewhere)

    @property
    def has_news(self) -> bool:
        """Whether a directory has failed, or has other logs, since `write_known`."""
        return bool(self._rows) and self._changes() != self._written_changes

    def _changes(self) -> list[int]:
        return [-1 if one.failure else one.changes for one in self._others]

    def write_known(self) -> None:
        """Write which directories there are and what is in them. In a shortage the files stay as
        they were. May run in a worker."""
        try:
            self._write_known()
        except OSError as error:
            if error.errno not in SHORTAGES:
                raise
            LOGGER.warning("%s stays as it was: %s", self._known.path, shortage_text(error))

    def _write_known(self) -> None:
        if not self._rows:
            return
        changes = self._changes()
        for directory in self._others:
            row = self._rows[str(directory.root)]
            if not directory.failure:
                self._known.write_logs(row.directory_id, directory.logs)
        self._known.write([*self._rows.values()])
        self._written_changes = changes

    # -- the table of logs

    def _directory_of(self, name: TopicPartition) -> LogDirectory | None:
        return self.moves.source_of(name)

    def get(self, topic_partition: TopicPartition) -> Log | None:
        """Return the log of a partition, if this broker has one that is not offline."""
        directory = self._directory_of(topic_partition)
        return None if directory is None else directory.get(topic_partition)

    @property
    def logs(self) -> dict[TopicPartition, Log]:
        """A copy of the table."""
        return dict(chain.from_iterable(one.logs.items() for one in self._healthy()))

    def observe_disks(self, disks: Sequence[DiskSpace]) -> Turns[None]:
        """Tell the logs how much room each directory's disk has now."""
        log_bytes = 0
        if self.room.needs_log_bytes:
            for directory in self._healthy():
                log_bytes += yield from directory.log_bytes()
        for directory, space in zip(self.directories, disks, strict=False):
            directory.observe_disk(*space, log_bytes)

    def room_statistics(self) -> RoomStatistics:
        """Return the limits and what is used of them, where the least is free."""
        found = [one.room.statistics() for one in self._healthy()]
        tightest = min(found, key=lambda one: one.free_bytes - one.free_bytes_min)
        return tightest._replace(
            log_bytes=max(one.log_bytes for one in found),
            is_short=any(one.is_short for one in found),
        )

    def create(
        self, topic_partition: TopicPartition, topic_id: bytes, limits: LogLimits, now_ms: int
    ) -> Log:
        """Create a log where it was wanted, else in the directory with the fewest. Raises Refused
        in a shortage, or if the log is offline or may be; and OSError."""
        self._note_failures()
        if not self._is_settled:
            for directory in self._noted:
                self._offline.setdefault(topic_partition, _offline_text(directory))
        if reason := self._offline.get(topic_partition, ""):
            raise Refused(ErrorCode.KAFKA_STORAGE_ERROR, reason)
        assert self._directory_of(topic_partition) is None, "there is a log of that name"
        fewest = min(self._healthy(), key=len)
        directory = self.moves.take_preferred(topic_partition, fewest)
        return directory.create(topic_partition, topic_id, limits, now_ms)

    def claim(self, topic_partition: TopicPartition, topic_id: bytes) -> None:
        """Give a log without a topic id the topic's (`LogDirectory.claim`). Raises Refused in a
        shortage."""
        self._require(topic_partition).claim(topic_partition, topic_id)

    def delete(self, topic_partition: TopicPartition, now_ms: int) -> None:
        """Delete a log: its name is free at once, its files are removed after the delay. One that
        is offline is set aside when it is found again."""
        self._offline.pop(topic_partition, None)
        self.moves.cancel(topic_partition, now_ms)
        if directory := self._directory_of(topic_partition):
            with suppress(DirectoryOffline):
                directory.delete(topic_partition, now_ms)

    def set_aside(self, topic_partition: TopicPartition) -> None:
        """Keep the bytes of a log that the metadata does not know, under another name."""
        self.moves.cancel(topic_partition, 0)
        with suppress(DirectoryOffline):
            self._require(topic_partition).set_aside(topic_partition)

    def _require(self, name: TopicPartition) -> LogDirectory:
        directory = self._directory_of(name)
        assert directory is not None, f"there is no log of {name}"
        return directory

    # -- duties

    def apply_retention(self, name: TopicPartition, high_watermark: int, now_ms: int) -> Turns[int]:
        """Delete a log's expired segments below the high watermark; return how many."""
        if directory := self._directory_of(name):
            return (yield from directory.apply_retention(name, high_watermark, now_ms))
        return 0

    def remove_deleted_files(self, now_ms: int) -> Steps[None]:
        """Remove the files of deleted segments and logs whose delay has passed, in workers: the
        removal of a large file takes long."""
        for directory in self._healthy():
            with suppress(DirectoryOffline):
                yield from directory.remove_deleted_files(now_ms)

    def expire_producers(self, now_ms: int) -> Turns[None]:
        """Expire idle producers in all logs."""
        for directory in self._healthy():
            yield from directory.expire_producers(now_ms)

    def sync_dir(self, path: PurePath) -> None:
        """Make the names in a log's directory, or in a log directory, durable. Raises OSError. May
        run in a worker."""
        for directory in self.directories:
            if directory.root in (path, path.parent):
                directory.files.sync_dir(path)

    # -- checkpoints

    def record_high_watermarks(self, high_watermarks: Mapping[TopicPartition, int]) -> None:
        """Set high watermarks for the next checkpoint; other partitions keep their last ones."""
        for directory in self._healthy():
            directory.record_high_watermarks(high_watermarks)

    def _write(self, write: Callable[[LogDirectory], bool]) -> bool:
        """Write a checkpoint of each directory; False in a shortage of one."""
        written = [write(one) or bool(one.failure) for one in self._healthy()]
        return all(written)

    def checkpoint_high_watermarks(self) -> bool:
        """Write the high watermarks set last; False in a shortage. May run in a worker."""
        return self._write(LogDirectory.checkpoint_high_watermarks)

    def checkpoint_recovery_points(self) -> bool:
        """Write the recovery points; False in a shortage. May run in a worker."""
        return self._write(LogDirectory.checkpoint_recovery_points)

    def checkpoint_log_starts(self) -> bool:
        """Write the log starts; False in a shortage. May run in a worker."""
        return self._write(LogDirectory.checkpoint_log_starts)

    def checkpoint_first_dirty(self) -> bool:
        """Write up to where logs were compacted; False in a shortage. May run in a worker."""
        return self._write(LogDirectory.checkpoint_first_dirty)

    # -- ending

    def close(self, high_watermarks: Mapping[TopicPartition, int], now_ms: int = 0) -> bool:
        """Close all logs, checkpoint them, and mark the stop as clean. May be called twice.

        In a shortage there is no mark, and the next start reads more. Other errors are raised.
        Returns whether all directories were marked that are not offline.
        """
        try:
            self.write_known()
            closed = [one.close(high_watermarks, now_ms) for one in self._healthy()]
            return all(closed)
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Close all files and unlock the directories, without writing anything. May be called
        twice."""
        for directory in self.directories:
            directory.abandon()

    @property
    def damaged(self) -> tuple[TopicPartition, ...]:
        """The logs that have lost records."""
        return tuple(chain.from_iterable(one.damaged for one in self._healthy()))

    def statistics(self) -> ManagerStatistics:
        """Return the sums over all logs."""
        healthy = [*self._healthy()]
        return ManagerStatistics(
            log_count=sum(map(len, healthy)),
            damaged=self.damaged,
            strays=tuple(chain.from_iterable(one.strays() for one in healthy)),
            deleting_count=sum(one.deleting_count for one in healthy),
            tail_safe=self.tail_safe,
        )


def _offline_text(directory: LogDirectory) -> str:
    return f"log directory {directory.root} is offline: {directory.failure}"


def _derived(marks: RunMarks, name: str) -> bytes:
    """Return an id for another directory than the first."""
    return sha256(marks.new_directory_id + name.encode()).digest()[: len(marks.new_directory_id)]
