"""The part of `minibroker doctor` that runs on this machine: the metadata store, a data directory.

Nothing is left behind: the test of the disk uses a file without a name, and the store is only read.
"""

import os
import shutil
import stat
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Final

from minibroker.broker.findings.storage import DirectorySeen, StoreSeen
from minibroker.cli.broker.stores import (
    ETCD,
    MEMORY,
    SQLITE,
    check_store,
    etcd_access,
    open_store,
    store_name,
)

if TYPE_CHECKING:
    from minibroker.broker.config import Config

READS: Final = 5
SYNCS: Final = 20
WRITTEN_BYTES: Final = 16 << 20
OPEN_MAX: Final = 10  # files that others may read, to be named


# -- the metadata store


def inspect_store(config: "Config", *, is_named: bool) -> StoreSeen | None:
    """Read the store a few times and return the result.

    None for a store in a broker's memory, or in a file that only a broker has named: that path may
    be of another machine. A file that a broker's first start will make is no failure.
    """
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
            return trio.run(_inspect_etcd, config, seen)
        path = Path(name.removeprefix(SQLITE))
        if not path.exists() or not path.stat().st_size:
            check_store(config)
            return replace(seen, is_there=False)
        export_store(path)  # the first call imports much
        began = time.perf_counter()
        export_store(path)
        return replace(seen, read_ms=(time.perf_counter() - began) * 1000)
    except (OSError, StoreError, Failure) as error:
        return replace(seen, failure=str(error))


async def _inspect_etcd(config: "Config", seen: StoreSeen) -> StoreSeen:
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


# -- a data directory


def open_files(root: Path) -> tuple[Path, ...]:
    """Return the first files below a directory that every user of this machine may read."""
    found: list[Path] = []
    for directory, names, files in os.walk(root, onerror=None):
        if not os.stat(directory).st_mode & stat.S_IXOTH:
            names.clear()
            continue
        names.sort()
        paths = (Path(directory) / name for name in sorted(files))
        found += [path for path in paths if path.lstat().st_mode & stat.S_IROTH]
        if len(found) >= OPEN_MAX:
            break
    return tuple(found[:OPEN_MAX])


def _is_reachable(root: Path) -> bool:
    """Whether every user may enter the directories above one."""
    return all(path.stat().st_mode & stat.S_IXOTH for path in root.absolute().parents)


def inspect_directory(path: Path) -> DirectorySeen:
    """Write into an unnamed file in a directory, sync it, and time both. If there is no directory
    yet, use the one in which a broker would make it."""
    import resource  # not on Windows, where this module is imported for the doctor's help

    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]  # a broker raises its soft limit to it
    place = next(each for each in (path, *path.absolute().parents) if os.path.lexists(each))
    seen = DirectorySeen(
        path,
        open_files_max=-1 if limit == resource.RLIM_INFINITY else limit,
        is_there=place == path,
    )
    try:
        if seen.is_there and _is_reachable(path):
            seen = replace(seen, open_files=open_files(path))
        disk = shutil.disk_usage(place)
        seen = replace(seen, free_bytes=disk.free, total_bytes=disk.total)
        with tempfile.TemporaryFile(dir=place, buffering=0) as file:
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
