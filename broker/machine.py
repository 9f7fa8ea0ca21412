"""Facts about the broker's machine and process: disk space, open files, versions.

`broker.app.serve` takes a function that returns the present `MachineFacts`, so a simulation gives
its own; by default nothing is known. `RealMachine` reads the real ones.
"""

import os
import platform
import resource
import shutil
from contextlib import suppress
from pathlib import Path, PurePath
from typing import Final, NamedTuple

from minibroker import __version__

NOT_KNOWN: Final = -1
# The open files of this process, one name each: Linux, and macOS.
DESCRIPTORS: Final = Path("/proc/self/fd")
DEVICE_DESCRIPTORS: Final = Path("/dev/fd")


class MachineFacts(NamedTuple):
    """The facts at one moment; -1 and "" where one is not known.

    `store` names the metadata store, without secrets. The disk is that of the data directory.
    `open_files_max` is the limit of this process.
    """

    software_version: str = ""
    python_version: str = ""
    store: str = ""
    disk_free_bytes: int = NOT_KNOWN
    disk_total_bytes: int = NOT_KNOWN
    open_files: int = NOT_KNOWN
    open_files_max: int = NOT_KNOWN


class RealMachine:
    """Reads the facts at each call: of this process, and of the disk that `directory` is on."""

    def __init__(self, directory: PurePath, store: str) -> None:
        self._directory = directory
        self._unchanging = MachineFacts(__version__, platform.python_version(), store)

    def __call__(self) -> MachineFacts:
        free = total = NOT_KNOWN
        with suppress(OSError):  # it may have been unmounted; the logs notice that
            total, _, free = shutil.disk_usage(self._directory)
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return self._unchanging._replace(
            disk_free_bytes=free,
            disk_total_bytes=total,
            open_files=_open_files(),
            open_files_max=NOT_KNOWN if limit == resource.RLIM_INFINITY else limit,
        )


def _open_files() -> int:
    with suppress(OSError):  # no descriptor may be free to list them
        return _count_open_files()
    return NOT_KNOWN


def _count_open_files() -> int:
    if DESCRIPTORS.is_dir():
        # From Linux 6.2 on the size is their number; in older ones it is 0.
        return DESCRIPTORS.stat().st_size or len(os.listdir(DESCRIPTORS))
    return len(os.listdir(DEVICE_DESCRIPTORS)) if DEVICE_DESCRIPTORS.is_dir() else NOT_KNOWN
