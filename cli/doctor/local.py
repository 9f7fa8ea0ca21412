"""What `minibroker doctor` sees from this machine: the metadata store, and a data directory.

Nothing is left behind: the directory's disk is tried with a file that has no name, and of a store
there is only reading.
"""

import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Final

from minibroker.cli.broker.stores import ETCD, MEMORY, SQLITE, etcd_access, open_store, store_name
from minibroker.cli.doctor.findings import Finding, Level, listed, of_disk, of_files

if TYPE_CHECKING:
    from minibroker.broker.config import Config

READS: Final = 5
READ_MS_HIGH: Final = 100
# Versions of etcd (docs/operations.md, "A cluster over several machines").
ETCD_UNSOUND: Final = ((3, 5, 0), (3, 5, 2))
ETCD_GOOD: Final = (3, 5, 13)

SYNCS: Final = 20
SYNC_MS_HIGH: Final = 50
WRITTEN_BYTES: Final = 16 << 20
WRITE_MB_S_LOW: Final = 20


# -- the metadata store


@dataclass(frozen=True, slots=True)
class StoreSeen:
    """A store from here. `is_named`: to this command, and not only by a broker.

    A read took `read_ms`, or there was a `failure`. Each endpoint of an etcd has its version, or
    what failed there, in `versions` or `failures`.
    """

    name: str
    is_named: bool = True
    failure: str = ""
    read_ms: float = 0.0
    versions: Mapping[str, str] = field(default_factory=dict)
    failures: Mapping[str, str] = field(default_factory=dict)


def look_at_store(config: "Config", *, is_named: bool) -> StoreSeen | None:
    """Read from it a few times; None of a store that lies in a broker's memory, or in a file that
    only a broker has named: that may be of another machine."""
    import trio

    from minibroker.broker.metadata.store import StoreError
    from minibroker.cli.cluster.export import export_store
    from minibroker.cli.terminal import Failure

    name = store_name(config)
    seen = StoreSeen(name, is_named)
    if name == MEMORY or (name.startswith(SQLITE) and not is_named):
        return None
    try:
        if name.startswith(ETCD):
            return trio.run(_etcd_seen, config, seen)
        path = Path(name.removeprefix(SQLITE))
        export_store(path)  # the first time much is loaded
        began = time.perf_counter()
        export_store(path)
        return replace(seen, read_ms=(time.perf_counter() - began) * 1000)
    except (OSError, StoreError, Failure) as error:
        return replace(seen, failure=str(error))


async def _etcd_seen(config: "Config", seen: StoreSeen) -> StoreSeen:
    from random import Random

    from minibroker.broker.controller.entries import CLUSTER_ID
    from minibroker.broker.metadata.etcd_gateway import Gateway
    from minibroker.broker.metadata.store import StoreError

    access = etcd_access(config)
    versions, failures = {}, {}
    for endpoint in access.endpoints:
        gateway = Gateway(replace(access, endpoints=[endpoint]))
        try:
            status = await gateway.call("maintenance/status", {})
            versions[endpoint] = str(status.get("version", "?"))
        except StoreError as error:
            failures[endpoint] = str(error)
        finally:
            await gateway.close()
    seen = replace(seen, versions=versions, failures=failures)
    store = await open_store(config, Random())
    times = []
    try:
        for _ in range(READS):
            began = time.perf_counter()
            found = await store.get(CLUSTER_ID)
            times.append((time.perf_counter() - began) * 1000)
    except StoreError as error:
        return replace(seen, failure=str(error))
    finally:
        await store.close()
    if not found.entries:
        prefix = config.metadata_store_prefix
        return replace(seen, failure=f"it knows of no cluster under the prefix {prefix!r}")
    return replace(seen, read_ms=median(times))


def of_store(seen: StoreSeen) -> Iterator[Finding]:
    """Whether it can be reached, how fast, and whether it is one to rely on."""
    if seen.failure:
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
    """What is known of old ones."""
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


# -- a data directory


@dataclass(frozen=True, slots=True)
class DirectorySeen:
    """A directory that lies here, its disk as it was tried, and this user's limit of open files.

    An append of 4 KiB was on disk after `sync_ms`, as the median.
    """

    path: Path
    failure: str = ""
    free_bytes: int = -1
    total_bytes: int = -1
    sync_ms: float = 0.0
    write_mb_s: float = 0.0
    open_files_max: int = -1


def look_at_directory(path: Path) -> DirectorySeen:
    """Write into an unnamed file there, sync it, and time both."""
    import resource  # not on Windows, where this module is loaded for the doctor's help

    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]  # a broker raises its own as far as that
    seen = DirectorySeen(path, open_files_max=-1 if limit == resource.RLIM_INFINITY else limit)
    try:
        disk = shutil.disk_usage(path)
        seen = replace(seen, free_bytes=disk.free, total_bytes=disk.total)
        with tempfile.TemporaryFile(dir=path, buffering=0) as file:
            times = []
            for _ in range(SYNCS):
                began = time.perf_counter()
                file.write(bytes(4096))
                os.fsync(file.fileno())
                times.append((time.perf_counter() - began) * 1000)
            if disk.free < 4 * WRITTEN_BYTES:
                return replace(seen, sync_ms=median(times), write_mb_s=float("inf"))
            began = time.perf_counter()
            file.write(os.urandom(WRITTEN_BYTES))
            os.fsync(file.fileno())
            speed = WRITTEN_BYTES / 1e6 / (time.perf_counter() - began)
    except OSError as error:
        return replace(seen, failure=error.strerror or str(error))
    return replace(seen, sync_ms=median(times), write_mb_s=speed)


def of_directory(seen: DirectorySeen) -> Iterator[Finding]:
    """Whether a broker can live there, and how well."""
    if seen.failure:
        yield Finding(
            Level.PROBLEM,
            f"{seen.path} cannot be written: {seen.failure}",
            "a broker needs a directory of its own that its user may write to; run this as that"
            " user",
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
