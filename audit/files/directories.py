"""The data directories at some paths: their brokers, logs and segments.

A path given by the user is a data directory, or a directory of data directories (a cluster's root:
`broker-1`, `broker-2`, ...). The listing describes one moment: the size of a segment is that of the
listing, and later reads go no further, even if a live broker appends.

How its broker ended decides what state the files must be in:

* `live`: another process holds its `.lock`. The check takes the lock shared for a moment.
* `stopped`: `clean-shutdown` exists, so everything is written, the last segment's indexes too.
* `killed`: neither. The last segment may end in a torn batch and its index files may be stale.

Whatever cannot be listed or read is collected in `problems`, never raised: the audit continues with
the rest, and its verdict says that not all was checked. Only paths that cannot be audited raise
`UsageError`.
"""

import fcntl
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple, TypedDict

from minibroker.audit.files.checkpoints import (
    EPOCH_STARTS,
    META,
    PARTITION_METADATA,
    Unreadable,
    explain,
    parse_offset_name,
    read_meta,
    read_run,
    read_topic_id,
)
from minibroker.audit.files.swaps import SWAP_SUFFIX, replaced_by
from minibroker.audit.model import Finding, Severity

STOPPED: Final = "stopped"
KILLED: Final = "killed"
LIVE: Final = "live"
UNKNOWN_BROKER: Final = -1

_LOG_NAME = re.compile(r"([a-zA-Z0-9._-]{1,249})-(0|[1-9][0-9]{0,9})")
_NODE_MAX = (1 << 31) - 1
_LOCK = ".lock"
_CLEAN_SHUTDOWN = "clean-shutdown"
_LOG_FILES = frozenset({PARTITION_METADATA, EPOCH_STARTS, "moved"})
_INDEXES = frozenset({"index", "timeindex", "txnindex"})
_SUFFIXES = _INDEXES | {"log", "snapshot"}
_ON_THEIR_WAY = (".tmp", ".deleted", ".cleaned", ".swap")
_NAMED_MAX = 5  # foreign files, in a finding


class UsageError(Exception):
    """Paths that cannot be audited; the text says why."""


class _Columns(TypedDict):
    broker: int
    topic: str
    partition: int


class Replica(NamedTuple):
    """The name of a log: its broker, topic and partition."""

    broker: int
    topic: str
    partition: int

    @property
    def columns(self) -> "_Columns":
        """The name as keyword arguments, for a Finding."""
        return {"broker": self.broker, "topic": self.topic, "partition": self.partition}


class SegmentFile(NamedTuple):
    """A `.log` file as it was listed; `size` is in bytes.

    `is_indexed`: its index files must be complete, since it is sealed or its broker stopped
    cleanly. `written_ms` is when the file was last written. `inode` is its device and number: names
    with the same are links to one file.
    """

    path: Path
    base_offset: int
    size: int
    is_indexed: bool
    written_ms: int = 0
    inode: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class LogDirectory:
    """One log. `topic_id` is hex, or "" if unknown; `segments` ascend.

    `names` are those of all files in the directory.
    """

    broker: int
    topic: str
    partition: int
    path: Path
    topic_id: str
    segments: tuple[SegmentFile, ...]
    problems: tuple[Finding, ...]
    names: tuple[str, ...] = ()

    @property
    def replica(self) -> Replica:
        """Its name in every table."""
        return Replica(self.broker, self.topic, self.partition)

    @property
    def written_ms(self) -> int:
        """When a segment was last written."""
        return max((segment.written_ms for segment in self.segments), default=0)


@dataclass(frozen=True, slots=True)
class BrokerDirectory:
    """One data directory. `ignored` are the names in it that are not logs.

    `broker` is UNKNOWN_BROKER if it cannot be read; then there are no logs, and a problem.
    `directory_id` is "" if it has none; `run` counts its starts, None if that cannot be read.
    `hidden` are the logs whose directories cannot be listed; they are among the problems, too.
    """

    path: Path
    broker: int
    cluster_id: str
    state: str
    logs: tuple[LogDirectory, ...]
    ignored: tuple[str, ...]
    problems: tuple[Unreadable, ...]
    directory_id: str = ""
    run: int | None = None
    hidden: tuple[Replica, ...] = ()


def find_brokers(paths: Sequence[Path]) -> tuple[BrokerDirectory, ...]:
    """Return all data directories at or right below these paths, by broker. Raises UsageError."""
    roots: dict[Path, None] = {}
    for path in paths:
        roots.update(dict.fromkeys(_find_roots(path)))
    brokers = sorted(map(_read_broker, roots), key=lambda found: (found.broker, found.path))
    _refuse_mixtures(brokers)
    return tuple(brokers)


def _find_roots(path: Path) -> Iterator[Path]:
    """Yield the data directories that a path stands for."""
    try:
        if not path.is_dir():
            raise UsageError(f"{path} is not there, or no directory")
        if _is_data_directory(path):
            yield path.resolve()
            return
        below = sorted(child for child in path.iterdir() if child.is_dir())
    except OSError:
        yield path.resolve()  # reading it says what is wrong
        return
    roots = [child for child in below if _may_be_data_directory(child)]
    if not roots:
        raise UsageError(
            f"{path} is no data directory of a broker, and holds none: {META} is in neither it"
            " nor a directory right below"
        )
    yield from (root.resolve() for root in roots)


def _is_data_directory(path: Path) -> bool:
    """Whether a broker has used this directory, even if its `meta.properties` was removed."""
    return not {META, _LOCK, _CLEAN_SHUTDOWN}.isdisjoint(os.listdir(path))


def _may_be_data_directory(path: Path) -> bool:
    try:
        return _is_data_directory(path)
    except OSError:
        return path.name != "lost+found"  # every file system has one


def _refuse_mixtures(brokers: Sequence[BrokerDirectory]) -> None:
    seen: dict[int, BrokerDirectory] = {}
    known = [found for found in brokers if found.broker != UNKNOWN_BROKER]
    for found in known:
        other = seen.setdefault(found.broker, found)
        if other is not found:
            raise UsageError(
                f"{other.path} and {found.path} are both of broker {found.broker}"
                f" (clusters {other.cluster_id} and {found.cluster_id}): audit one of them"
            )
        if found.cluster_id != known[0].cluster_id:
            raise UsageError(
                f"{known[0].path} is of cluster {known[0].cluster_id} and {found.path} of"
                f" {found.cluster_id}: audit one cluster at a time"
            )


def _read_broker(root: Path) -> BrokerDirectory:
    meta = read_meta(root)
    if isinstance(meta, Unreadable):
        return BrokerDirectory(root, UNKNOWN_BROKER, "", KILLED, (), (), (meta,))
    run = read_run(root)
    state, names = KILLED, list[str]()
    logs: list[LogDirectory] = []
    ignored: list[str] = []
    problems: list[Unreadable] = []
    hidden: list[Replica] = []
    try:
        names = sorted(os.listdir(root))
        state = _read_state(root)
    except OSError as error:
        problems.append(Unreadable(root, explain(error)))
    for name in names:
        path, replica = root / name, _parse_log_name(meta.broker, name)
        log = None if replica is None or os.path.isfile(path) else _read_log(replica, path, state)
        if isinstance(log, LogDirectory):
            logs.append(log)
        elif isinstance(log, Unreadable):
            assert replica is not None
            hidden.append(replica)
            problems.append(log)
        elif os.path.isdir(path) or replica is not None:
            ignored.append(name.encode(errors="backslashreplace").decode())
    return BrokerDirectory(
        root,
        meta.broker,
        meta.cluster_id,
        state,
        tuple(logs),
        tuple(ignored),
        tuple(problems),
        meta.directory_id,
        run if isinstance(run, int) else None,
        tuple(hidden),
    )


def _read_state(root: Path) -> str:
    """Return the state of the broker; the lock is held no longer than the check takes."""
    try:
        descriptor = os.open(root / _LOCK, os.O_RDONLY | os.O_NONBLOCK)
    except FileNotFoundError:
        pass
    else:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return LIVE
        finally:
            os.close(descriptor)
    return STOPPED if (root / _CLEAN_SHUTDOWN).exists() else KILLED


def _parse_log_name(broker: int, name: str) -> Replica | None:
    found = _LOG_NAME.fullmatch(name)
    if found is None or int(found[2]) > _NODE_MAX:
        return None
    return Replica(broker, found[1], int(found[2]))


def _read_log(replica: Replica, path: Path, state: str) -> LogDirectory | Unreadable | None:
    """Return the log in a directory with a log's name; None if no file in it is of a log."""
    try:
        names = sorted(os.listdir(path))
    except OSError as error:
        return Unreadable(path, explain(error))
    bases = _offsets_of(names, ".log")
    if not bases and _LOG_FILES.isdisjoint(names):
        return None
    swaps = replaced_by(path, _offsets_of(names, SWAP_SUFFIX), bases)
    gone = {base_offset for replaced in swaps.values() for base_offset in replaced}
    listed = [
        _list_segment(path, base_offset, ".log", base_offset < bases[-1] or state == STOPPED)
        for base_offset in bases
        if base_offset not in gone
    ]
    # A copy has no index files before it has the place of its segments.
    listed += [_list_segment(path, base_offset, SWAP_SUFFIX, False) for base_offset in swaps]
    segments = tuple(sorted(listed, key=lambda segment: segment.base_offset))
    problems = [*_find_odd_names(replica, names, bases)]
    topic_id = read_topic_id(path)
    if isinstance(topic_id, Unreadable):
        detail = f"{topic_id.path.name}: {topic_id.reason}"
        problems.append(Finding("checkpoint", Severity.WARNING, **replica.columns, detail=detail))
        topic_id = ""
    return LogDirectory(*replica, path, topic_id, segments, tuple(problems), tuple(names))


def _offsets_of(names: Iterable[str], suffix: str) -> list[int]:
    """Return the offsets in the names with a suffix, in the order of the names."""
    stems = (name.removesuffix(suffix) for name in names if name.endswith(suffix))
    return [offset for stem in stems if (offset := parse_offset_name(stem)) is not None]


def _list_segment(directory: Path, base_offset: int, suffix: str, is_indexed: bool) -> SegmentFile:
    path = directory / f"{base_offset:020}{suffix}"
    try:
        status = path.stat()
    except OSError:
        return SegmentFile(path, base_offset, 0, is_indexed)  # reading it says what is wrong
    written_ms = status.st_mtime_ns // 1_000_000
    inode = (status.st_dev, status.st_ino)
    return SegmentFile(path, base_offset, status.st_size, is_indexed, written_ms, inode)


def _find_odd_names(
    replica: Replica, names: Iterable[str], bases: Sequence[int]
) -> Iterator[Finding]:
    """Yield the files that are not part of the log, and damage that the broker itself found."""
    foreign = []
    for name in names:
        stem, _, suffix = name.partition(".")
        offset = parse_offset_name(stem)
        if offset is not None and suffix.startswith("damaged"):
            detail = f"{name}: the broker found damage here and put aside what it could not read"
            yield Finding("crc", Severity.INFO, **replica.columns, offset=offset, detail=detail)
        elif offset is not None and suffix in _INDEXES and offset not in bases:
            detail = f"{name}: an index without its segment"
            yield Finding("index", Severity.INFO, **replica.columns, segment=offset, detail=detail)
        elif not (
            name in _LOG_FILES
            or name.endswith(_ON_THEIR_WAY)
            or (offset is not None and suffix in _SUFFIXES)
        ):
            foreign.append(name)
    if foreign:
        named = ", ".join(map(repr, foreign[:_NAMED_MAX]))
        detail = f"{len(foreign)} files are no part of a log: {named}"
        yield Finding("segment-name", Severity.INFO, **replica.columns, detail=detail)
