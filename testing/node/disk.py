"""A disk that is full or slow: `broker.disk.RealFiles` with faults."""

import errno
import os
import time
from collections.abc import Sequence
from pathlib import PurePath

import trio

from minibroker.broker.disk import RealFile, RealFiles
from minibroker.protocol.types import Buffer


class DiskState:
    """The faults of the disk. The event loop and the worker threads of the broker read it."""

    def __init__(self) -> None:
        self.is_full = False
        self.delay_s = 0.0

    def check_room(self) -> None:
        """Raise the `OSError` of a full disk if the disk is full."""
        if self.is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class FaultyFile(RealFile):
    """A file on such a disk. A slow write blocks the event loop, as it does on a real disk."""

    __slots__ = ("_state",)

    def __init__(self, path: PurePath, create: bool, state: DiskState) -> None:
        super().__init__(path, create)
        self._state = state

    def append(self, buffers: Sequence[Buffer]) -> None:
        """Write the buffers at the end of the file."""
        self._state.check_room()
        time.sleep(self._state.delay_s)
        super().append(buffers)

    async def sync(self) -> None:
        """Flush what was written to the disk (fsync), in a worker thread."""
        await trio.sleep(self._state.delay_s)
        await super().sync()

    def sync_now(self) -> None:
        """Flush what was written to the disk, blocking."""
        time.sleep(self._state.delay_s)
        super().sync_now()


class FaultyFiles(RealFiles):
    """The files on such a disk."""

    def __init__(self, state: DiskState) -> None:
        super().__init__()
        self._state = state

    def open(self, path: PurePath, *, create: bool = False) -> FaultyFile:
        """Open for reading and appending."""
        return FaultyFile(path, create, self._state)

    def write_atomic(self, path: PurePath, data: bytes, *, sync: bool = True) -> None:
        """Replace a small file."""
        self._state.check_room()
        super().write_atomic(path, data, sync=sync)
