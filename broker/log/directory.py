"""A broker's data directory: its lock, its owner, how the last run ended, and the names in it.

The marks, and the reasons for their order:

* `.lock` is held while a broker runs; a second one is refused.
* `meta.properties` says to which cluster and node the directory belongs, and has its
  `directory.id`: a directory that comes back empty gets another one. Its `version` is also that of
  the marks below, which have none of their own.
* `run` counts the starts, durably before anything else happens. If the cluster knows a later run
  than this file, the directory was restored from a copy. It also says whether that run syncs
  appends before it acknowledges them (`flush=always`), and at which wall clock time it began.
* `clean-shutdown` is written last at a clean stop, and removed before any log is opened, so that a
  crash while opening counts as unclean. It has the wall clock time of the stop.
* `boot-id` is the id of the machine's boot. If it is the same as at the last start, the page cache
  lost nothing, however the process ended.
* `tail-unsafe` is set by a start that found neither a clean stop nor the same boot, until the
  controller was told (`forget_lost_tail`): a second crash in between must not hide the lost tail.
  It says whether it is about a run with `flush=always`. A failed fsync sets it as well, because the
  page cache may then have what the disk lacks, and the same boot proves nothing.

Logs are directories named TOPIC-PARTITION; a deleted or stray log's directory has a suffix. Only
names of exactly this form are used. A data directory may also hold other files; the broker neither
reads nor removes them, however similar their names are.
"""

import errno
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import PurePath
from typing import NamedTuple

from minibroker.broker.descriptors import NO_DESCRIPTOR, NO_DESCRIPTORS
from minibroker.broker.log.files import Files, Lock
from minibroker.protocol.types import TopicPartition

LOCK = ".lock"
META = "meta.properties"
DIRECTORY_ID = "directory.id"
RUN = "run"
CLEAN_SHUTDOWN = "clean-shutdown"
BOOT_ID = "boot-id"
TAIL_UNSAFE = "tail-unsafe"
FORMAT_VERSION = "1"
SYNCED = b"synced"  # in RUN and TAIL_UNSAFE
AT = b"at="  # before a wall clock time in ms, in RUN and CLEAN_SHUTDOWN

DELETE_SUFFIX = "-delete"
STRAY_SUFFIX = "-stray"
NAME_BYTES_MAX = 255
_LOG = re.compile(r"([a-zA-Z0-9._-]{1,249})-(0|[1-9][0-9]{0,9})")
_DELETED = re.compile(r"[a-zA-Z0-9._-]+\.[0-9a-f]{32}[0-9]*-delete")

NOT_A_DIRECTORY = frozenset({errno.ENOTDIR, errno.EEXIST})
NOT_A_FILE = {
    errno.EISDIR: "a directory in the place of a file",
    errno.ELOOP: "a symbolic link, and a broker follows none",
    errno.ENODEV: "no regular file",
    errno.EFBIG: "far larger than a broker makes such a file",
}
NOT_WRITABLE = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})


class DataDirectoryError(Exception):
    """The data directory cannot be used; the text says what to do."""


@contextmanager
def explaining(root: PurePath) -> Iterator[None]:
    """Turn an OSError at the start into a DataDirectoryError."""
    try:
        yield
    except BlockingIOError:
        raise DataDirectoryError(
            f"data directory {root} is in use by another broker: stop that one,"
            " or choose another with --data-dir"
        ) from None
    except OSError as error:
        where = error.filename or root
        if error.errno in NOT_A_DIRECTORY:
            text = f"{where} is in the way, it is not a directory: choose another with --data-dir"
        elif error.errno in NOT_A_FILE:
            text = f"{where} is {NOT_A_FILE[error.errno]}: put back what was there, or move it away"
        elif error.errno in NOT_WRITABLE:
            text = f"it cannot be written: change its owner or mount, or choose another: {where}"
        elif error.errno in (errno.ENOSPC, errno.EDQUOT):
            text = f"the disk is full: make room, or choose another: {where}"
        elif error.errno in NO_DESCRIPTORS:
            text = f"{NO_DESCRIPTOR}: {where}"
        else:
            text = f"it cannot be used: {where}"
        reason = error.strerror or str(error)
        raise DataDirectoryError(f"data directory {root}: {text} ({reason})") from error


class RunMarks(NamedTuple):
    """What a run records of itself.

    `new_directory_id`: 16 random bytes, for a directory that has no id yet. `is_synced`: appends
    are synced before they are acknowledged (the broker's `flush` is `always`). `began_ms`: the wall
    clock.
    """

    new_directory_id: bytes = bytes(16)
    is_synced: bool = False
    began_ms: int = 0


NO_MARKS = RunMarks()


class DataDirectory:
    """The marks in one directory. These attributes are known after `begin`.

    `tail_safe`: the way in which the last runs ended cannot have lost an append, synced or not.
    `was_synced`: it cannot have lost an acknowledged one with `flush=always`. `directory_id`: 32
    hex digits. `run`: this run's number, 1 for the first. `last_run_ms`: the latest wall clock time
    at which a broker is known to have run here before, 0 if none is.
    """

    def __init__(self, files: Files, root: PurePath) -> None:
        self.root = root
        self.is_clean = False
        self.same_boot = False
        self.tail_safe = False
        self.was_synced = False
        self.directory_id = ""
        self.run = 0
        self.last_run_ms = 0
        self._files = files
        self._lock: Lock | None = None

    def acquire(self) -> None:
        """Make the directory if needed and lock it. May be called twice."""
        if self._lock is None:
            missing = [
                path for path in (self.root, *self.root.parents) if not self._files.exists(path)
            ]
            self._files.make_dir(self.root)
            for path in missing:
                self._files.sync_dir(path.parent)
            self._lock = self._files.lock(self.root / LOCK)

    def release(self) -> None:
        """Unlock the directory. May be called twice."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def peek(self) -> tuple[str, int]:
        """Return the directory's id and the number of its last run, before `begin`; "" and 0 for a
        new one."""
        path = self.root / META
        found = _parse(self._files.read_bytes(path)) if self._files.exists(path) else {}
        return found.get(DIRECTORY_ID, ""), self._read_run()[0]

    def begin(self, boot_id: str, cluster_id: str, node_id: int, marks: RunMarks) -> None:
        """Check whose directory it is, read how the last run ended, and begin a new one."""
        self._claim(cluster_id, node_id, marks.new_directory_id)
        root, files = self.root, self._files
        has_logs = any(parse_log_name(name) for name in files.list(root))
        is_new = not (files.exists(root / BOOT_ID) or has_logs)
        self.is_clean = is_new or files.exists(root / CLEAN_SHUTDOWN)
        last_boot_id = self._read_boot_id()
        last_run, last_synced = self._read_run()
        self.last_run_ms = max(self._read_time(RUN), self._read_time(CLEAN_SHUTDOWN))
        was_reported = not files.exists(root / TAIL_UNSAFE)
        self.same_boot = last_boot_id == boot_id and was_reported
        self.tail_safe = (self.is_clean or self.same_boot) and was_reported
        self.was_synced = last_synced and (was_reported or self._was_unreported_tail_synced())
        if not self.tail_safe and was_reported:
            files.write_atomic(root / TAIL_UNSAFE, SYNCED if last_synced else b"")
        self.run = last_run + 1
        # A run without syncs before its acknowledgements may have left records in the page cache;
        # they do not become durable by this run's promise.
        owes_syncs = last_boot_id == boot_id and not (self.is_clean or last_synced)
        self._write_run(marks.is_synced and not owes_syncs, marks.began_ms)
        if last_boot_id != boot_id:
            files.write_atomic(root / BOOT_ID, boot_id.encode())
        files.remove(root / CLEAN_SHUTDOWN)
        files.sync_dir(root)

    def _read_run(self) -> tuple[int, bool]:
        """Return the number of the last run, and whether it synced before its acknowledgements."""
        path = self.root / RUN
        words = self._files.read_bytes(path).split() if self._files.exists(path) else []
        number = int(words[0]) if words and words[0].isdigit() else 0
        return number, SYNCED in words[1:]

    def _read_time(self, name: str) -> int:
        """Return the wall clock time in a mark; 0 for one of an earlier version, which has none."""
        path = self.root / name
        words = self._files.read_bytes(path).split() if self._files.exists(path) else []
        times = [word.removeprefix(AT) for word in words if word.startswith(AT)]
        return int(times[0]) if times and times[0].isdigit() else 0

    def _write_run(self, is_synced: bool, began_ms: int) -> None:
        words = [b"%d" % self.run, SYNCED if is_synced else b"", AT + b"%d" % began_ms]
        self._files.write_atomic(self.root / RUN, b" ".join(filter(None, words)) + b"\n")

    def _was_unreported_tail_synced(self) -> bool:
        return self._files.read_bytes(self.root / TAIL_UNSAFE) == SYNCED

    def _read_boot_id(self) -> str | None:
        path = self.root / BOOT_ID
        if not self._files.exists(path):
            return None
        return self._files.read_bytes(path).decode(errors="replace")

    def forget_lost_tail(self) -> None:
        """Remove the mark: the controller, which decides what it means, was told (or the tail is
        safe)."""
        self._files.remove(self.root / TAIL_UNSAFE)
        self._files.sync_dir(self.root)

    def distrust_tail(self) -> None:
        """Set the mark after a failed fsync: what is not known to be durable may be lost on this
        boot, too.

        Raises nothing, because the same disk may be unable to store the mark.
        """
        with suppress(OSError):
            self._files.write_atomic(self.root / TAIL_UNSAFE, b"")

    def end_clean(self, now_ms: int) -> None:
        """Write the clean mark: all logs are closed and durable."""
        self._files.write_atomic(self.root / CLEAN_SHUTDOWN, AT + b"%d\n" % now_ms)

    def _claim(self, cluster_id: str, node_id: int, new_directory_id: bytes) -> None:
        path = self.root / META
        ours = {"version": FORMAT_VERSION, "cluster.id": cluster_id, "node.id": str(node_id)}
        theirs = _parse(self._files.read_bytes(path)) if self._files.exists(path) else ours
        version = theirs.get("version", "")
        if version != FORMAT_VERSION:
            raise DataDirectoryError(
                f"data directory {self.root} has version {version[:99]!r} in {META}, and this"
                f" minibroker reads only {FORMAT_VERSION!r}: start the version of minibroker that"
                " wrote it, or choose another with --data-dir"
            )
        for name, value in ours.items():
            if theirs.get(name) != value:
                raise DataDirectoryError(
                    f"data directory {self.root} has {name} {theirs.get(name)!r} in {META}, this"
                    f" broker has {value!r}: it belongs to another broker or cluster; choose"
                    " another with --data-dir"
                )
        self.directory_id = theirs.get(DIRECTORY_ID, "")
        if not self.directory_id:
            self._write_meta(ours, new_directory_id)

    def renew_id(self, cluster_id: str, node_id: int, new_directory_id: bytes) -> None:
        """Give the directory another id: the controller then knows that logs were lost."""
        ours = {"version": FORMAT_VERSION, "cluster.id": cluster_id, "node.id": str(node_id)}
        self._write_meta(ours, new_directory_id)

    def _write_meta(self, ours: dict[str, str], new_directory_id: bytes) -> None:
        self.directory_id = ours[DIRECTORY_ID] = new_directory_id.hex()
        text = "".join(f"{name}={value}\n" for name, value in ours.items())
        self._files.write_atomic(self.root / META, text.encode())


def _parse(data: bytes) -> dict[str, str]:
    lines = data.decode(errors="replace").splitlines()
    pairs = [line.partition("=") for line in lines if not line.startswith("#")]
    return {name.strip(): value.strip() for name, _, value in pairs}


def parse_log_name(name: str) -> TopicPartition | None:
    """Return the partition of a directory's name; None if it is not a log's."""
    found = _LOG.fullmatch(name)
    return None if found is None else TopicPartition(found[1], int(found[2]))


def is_deleted_name(name: str) -> bool:
    """Whether `name_aside` named a directory for removal."""
    return _DELETED.fullmatch(name) is not None


def is_among_deleted(topic_partition: TopicPartition, deleted: Sequence[str]) -> bool:
    """Whether one of these directories, named by `name_aside`, was the log of a partition."""
    name = str(topic_partition)
    for path in deleted:
        start, _, _ = path.rpartition(".")
        if start == name or (len(path) == NAME_BYTES_MAX and name.startswith(start)):
            return True
    return False


def name_aside(
    files: Files, root: PurePath, topic_partition: TopicPartition, topic_id: bytes, suffix: str
) -> PurePath:
    """Return a free name for a log's directory that is to make room for another of its name."""
    for number in count():
        ending = f".{topic_id.hex()}{number or ''}{suffix}"
        path = root / (str(topic_partition)[: NAME_BYTES_MAX - len(ending)] + ending)
        if not files.exists(path):
            return path
    raise AssertionError("the numbers ended")
