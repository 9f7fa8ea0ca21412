"""Facts about the broker's machine and process: disk space, open files, versions.

`broker.app.serve` takes a function that returns the present `MachineFacts`, so a simulation gives
its own; by default nothing is known. `RealMachine` reads the real ones.
"""

import os
import platform
import resource
import shutil
from collections.abc import Sequence
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

    `store` names the metadata store, without secrets. The disk is that of the first log directory,
    `other_disks` are those of the others: the free bytes and all bytes of each. `open_files_max` is
    the limit of this process.
    """

    software_version: str = ""
    python_version: str = ""
    store: str = ""
    disk_free_bytes: int = NOT_KNOWN
    disk_total_bytes: int = NOT_KNOWN
    open_files: int = NOT_KNOWN
    open_files_max: int = NOT_KNOWN
    other_disks: tuple[tuple[int, int], ...] = ()

    @property
    def disks(self) -> tuple[tuple[int, int], ...]:
        """The free bytes and all bytes of the disk of each log directory."""
        return (self.disk_free_bytes, self.disk_total_bytes), *self.other_disks


class RealMachine:
    """Reads the facts at each call: of this process, and of the disks that `directories` are on."""

    def __init__(self, directories: Sequence[PurePath], store: str) -> None:
        self._directories = directories
        self._unchanging = MachineFacts(__version__, platform.python_version(), store)

    def __call__(self) -> MachineFacts:
        (free, total), *others = map(_space_of, self._directories)
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return self._unchanging._replace(
            disk_free_bytes=free,
            disk_total_bytes=total,
            open_files=_open_files(),
            open_files_max=NOT_KNOWN if limit == resource.RLIM_INFINITY else limit,
            other_disks=tuple(others),
        )


def _space_of(directory: PurePath) -> tuple[int, int]:
    with suppress(OSError):  # it may have been unmounted; the logs notice that
        total, _, free = shutil.disk_usage(directory)
        return free, total
    return NOT_KNOWN, NOT_KNOWN


def _open_files() -> int:
    with suppress(OSError):  # no descriptor may be free to list them
        return _count_open_files()
    return NOT_KNOWN


def _count_open_files() -> int:
    if DESCRIPTORS.is_dir():
        # From Linux 6.2 on the size is their number; in older ones it is 0.
        return DESCRIPTORS.stat().st_size or len(os.listdir(DESCRIPTORS))
    return len(os.listdir(DEVICE_DESCRIPTORS)) if DEVICE_DESCRIPTORS.is_dir() else NOT_KNOWN
