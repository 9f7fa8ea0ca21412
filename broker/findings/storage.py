"""Findings about the metadata store and a broker's disk."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from minibroker.broker.findings import Finding, Level, listed

READ_MS_HIGH: Final = 100
# Versions of etcd (docs/operations.md, "A cluster over several machines").
ETCD_UNSOUND: Final = ((3, 5, 0), (3, 5, 2))
ETCD_GOOD: Final = (3, 5, 13)

SYNC_MS_HIGH: Final = 50
WRITE_MB_S_LOW: Final = 20
FREE_PERCENT_LOW, FREE_PERCENT_MIN = 15, 5
FREE_BYTES_MIN: Final = 1 << 30
NEAR: Final = 2  # times the limit of free bytes is a note
LOG_PERCENT_HIGH: Final = 90
HAVE_DELETED: Final = (
    "have records deleted: `minibroker topic delete TOPIC`, `minibroker topic trim TOPIC PARTITION"
    " OFFSET`, `minibroker topic alter TOPIC --config retention.ms=MS`"
)
FILES_PERCENT_MAX: Final = 75  # open sealed segments alone use no more (broker/descriptors.py)
FILES_LOW: Final = 4_096  # of a limit
GIB: Final = 1 << 30


# -- the metadata store


@dataclass(frozen=True, slots=True)
class StoreSeen:
    """The metadata store as this machine reads it. `is_named`: this command was told of it; else
    only a broker has named it. Without `is_there` the first broker to start will make it.

    A read took `read_ms`, or there was a `failure`. Each endpoint of an etcd has an entry, its
    version in `versions` or an error in `failures`.
    """

    name: str
    is_named: bool = True
    failure: str = ""
    read_ms: float = 0.0
    versions: Mapping[str, str] = field(default_factory=dict)
    failures: Mapping[str, str] = field(default_factory=dict)
    is_there: bool = True


def of_store(seen: StoreSeen) -> Iterator[Finding]:
    """Check that the store can be read, how fast, and that its version has no known faults."""
    if not seen.is_there:
        yield Finding(
            Level.NOTE,
            f"{seen.name} is not there yet: the first broker that starts makes it",
            "nothing before the first start; else metadata.store names another file than before",
        )
    elif seen.failure:
        level = Level.PROBLEM if seen.is_named else Level.NOTE
        whose = "" if seen.is_named else ", which the brokers use,"
        advice = "see whether it runs and can be reached; metadata.store names it"
        if not seen.is_named:
            advice = "nothing, if it is for the brokers alone; --config or --set says how to get in"
        yield Finding(level, f"{seen.name}{whose} cannot be read here: {seen.failure}", advice)
    elif seen.read_ms > READ_MS_HIGH:
        text = f"{seen.name} takes {seen.read_ms:.0f} ms to be read from here"
        yield Finding(Level.NOTE, text, "look at its disk, and at the network on the way to it")
    else:
        yield Finding(Level.OK, f"{seen.name} can be read from here in {seen.read_ms:.1f} ms")
    for endpoint, failure in () if seen.failure else seen.failures.items():
        yield Finding(
            Level.PROBLEM if seen.is_named else Level.NOTE,
            f"of the etcd, {endpoint} does not answer here: {failure}",
            "start that member again: the etcd bears the loss of fewer than half of them",
        )
    yield from of_etcd_versions(seen.versions)


def of_etcd_versions(versions: Mapping[str, str]) -> Iterator[Finding]:
    """Report versions of etcd with known faults, and members of different versions."""
    upgrade = "upgrade it, one member after another, to 3.5.13 or later"
    for endpoint, version in versions.items():
        number = tuple(map(int, re.findall(r"\d+", version)[:3]))
        low, high = ETCD_UNSOUND
        if low <= number <= high:
            text = f"etcd {version} at {endpoint} may lose its consistency in a crash"
            yield Finding(Level.PROBLEM, text, upgrade)
        elif number < ETCD_GOOD:
            text = f"etcd {version} at {endpoint} may end leases that were renewed, after a stall"
            yield Finding(Level.NOTE, text, upgrade)
    if len(kinds := sorted(set(versions.values()))) > 1:
        yield Finding(Level.NOTE, f"the etcd's members differ: {listed(kinds)}", upgrade)


# -- a data directory and its disk


@dataclass(frozen=True, slots=True)
class DirectorySeen:
    """A directory of this machine, measurements of its disk, and this user's limit of open files.

    `sync_ms` is the median time until an append of 4 KiB was on the disk. `open_files` are some of
    the files that every user of the machine may read. Without `is_there` a broker will make the
    directory, and the measurements are those of the one above.
    """

    path: Path
    failure: str = ""
    free_bytes: int = -1
    total_bytes: int = -1
    sync_ms: float = 0.0
    write_mb_s: float = 0.0
    open_files_max: int = -1
    open_files: tuple[Path, ...] = ()
    is_there: bool = True


def of_directory(seen: DirectorySeen) -> Iterator[Finding]:
    """Check that a broker can use the directory, and that its disk is fast enough."""
    if seen.failure:
        yield Finding(
            Level.PROBLEM,
            f"{seen.path} cannot be {'written' if seen.is_there else 'made'}: {seen.failure}",
            "a broker needs a directory of its own that its user may write to; run this as that"
            " user",
        )
    elif not seen.is_there:
        yield Finding(
            Level.NOTE,
            f"{seen.path} is not there yet: a broker that starts makes it",
            "nothing before the first start; else log.dirs names another directory than before",
        )
    if seen.open_files:
        yield Finding(
            Level.NOTE,
            f"every user of this machine may read {listed(map(str, seen.open_files))}",
            f"chmod -R go= {seen.path}: there are records in it; what a broker makes is its own"
            " user's alone",
        )
    yield from of_disk(str(seen.path), seen.free_bytes, seen.total_bytes)
    yield from of_files("a broker started here", -1, seen.open_files_max)
    if seen.failure:
        return
    if seen.sync_ms > SYNC_MS_HIGH:
        yield Finding(
            Level.NOTE,
            f"{seen.path}: 4 KiB are on the disk after {seen.sync_ms:.0f} ms",
            "with flush=always every acknowledgement waits for that: take a faster disk, or"
            " flush=interval",
        )
    if seen.write_mb_s < WRITE_MB_S_LOW:
        yield Finding(
            Level.NOTE,
            f"{seen.path}: its disk takes {seen.write_mb_s:.0f} MB a second",
            "no more can be produced for long; take a faster disk",
        )
    if seen.sync_ms <= SYNC_MS_HIGH and seen.write_mb_s >= WRITE_MB_S_LOW:
        text = f"4 KiB are on the disk after {seen.sync_ms:.1f} ms"
        yield Finding(Level.OK, f"{seen.path}: {text}; it takes {seen.write_mb_s:.0f} MB a second")


def of_disk(
    directory: str, free_bytes: int, total_bytes: int, free_bytes_min: int = -1
) -> Iterator[Finding]:
    """Check the free space of a disk; yield nothing if `total_bytes` is unknown (-1). A broker on
    it refuses records below `free_bytes_min`, if there is one."""
    if total_bytes <= 0:
        return
    percent = 100 * free_bytes / total_bytes
    text = f"{directory} has {free_bytes / GIB:.1f} GiB free, {percent:.0f} % of its disk"
    advice = f"give it room, or {HAVE_DELETED}"
    if free_bytes < free_bytes_min:
        text += f": below {free_bytes_min / GIB:.1f} GiB no records are taken"
        yield Finding(Level.PROBLEM, text, f"{advice}; log.dirs.min.free.bytes is the limit")
    elif percent < FREE_PERCENT_MIN or free_bytes < FREE_BYTES_MIN:
        yield Finding(Level.PROBLEM, text, f"{advice}; a broker on a full disk takes no records")
    elif percent < FREE_PERCENT_LOW or free_bytes < NEAR * free_bytes_min:
        yield Finding(Level.NOTE, text, advice)
    else:
        yield Finding(Level.OK, text)


def of_log_bytes(directory: str, log_bytes: int, log_bytes_max: int) -> Iterator[Finding]:
    """Check the bytes of a broker's logs against their limit; yield nothing without one (-1)."""
    if log_bytes_max < 0:
        return
    share = f"{log_bytes / GIB:.1f} of {log_bytes_max / GIB:.1f} GiB (log.dirs.max.bytes)"
    text = f"the logs in {directory} have {share}"
    advice = f"raise it if the disk has room, or {HAVE_DELETED}"
    if log_bytes >= log_bytes_max:
        yield Finding(Level.PROBLEM, f"{text}: no records are taken", advice)
    elif 100 * log_bytes >= LOG_PERCENT_HIGH * log_bytes_max:
        yield Finding(Level.NOTE, text, f"{advice}; at the limit no records are taken")
    else:
        yield Finding(Level.OK, text)


def of_files(who: str, used: int, limit: int) -> Iterator[Finding]:
    """Check the limit of open files; yield nothing without a known limit. `used` is -1 if no broker
    runs."""
    if limit <= 0:
        return
    advice = "raise the limit: ulimit -n, LimitNOFILE= of systemd, ulimits: of a compose file"
    text = f"{who} may open {limit} files" + (f", and has {used} open" if used >= 0 else "")
    if 100 * used > FILES_PERCENT_MAX * limit:
        full = "; at the limit connections wait, and no log or segment is made"
        yield Finding(Level.PROBLEM, text, advice + full)
    elif limit < FILES_LOW:
        yield Finding(Level.NOTE, text, advice)
    else:
        yield Finding(Level.OK, text)
