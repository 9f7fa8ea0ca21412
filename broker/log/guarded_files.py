"""The files of a log directory whose failure does not end the broker.

The first error that is no shortage takes the whole directory offline, as in Apache Kafka. This one
and every later call raise `DirectoryOffline`, and the disk is not used any more: a failed fsync is
not retried, and no later write follows a lost one. Its errno `OFFLINE` counts among the shortages
(`outcomes.SHORTAGES`), so a log refuses what needs the disk with KAFKA_STORAGE_ERROR, and duties go
on with other logs, as on a full disk.

Two errors are no failure of a disk: a small file that is not there, and a closed descriptor, which
a reader in a worker may meet.
"""

import errno
import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import PurePath
from typing import Final, TypeVar

from minibroker.broker.errors import Refused
from minibroker.broker.log.files import OFFLINE, File, Files, Lock
from minibroker.broker.log.outcomes import SHORTAGES
from minibroker.protocol.constants import ErrorCode
from minibroker.protocol.types import Buffer

logger = logging.getLogger(__name__)

NO_FAILURE: Final = SHORTAGES | {errno.EBADF, errno.EAGAIN}
Result = TypeVar("Result")


class DirectoryOffline(Refused, OSError):
    """A call needs a log directory that has failed: a request is refused, a duty is not done."""

    def __init__(self, text: str) -> None:
        super().__init__(ErrorCode.KAFKA_STORAGE_ERROR, text)
        self.errno = OFFLINE
        self.strerror = text


class Guard:
    """Whether a directory has failed, and why. Workers and the loop use it."""

    def __init__(self, root: PurePath) -> None:
        self._root = root
        self.failure = ""

    def fail(self, reason: str) -> None:
        """Take the directory offline; the first reason stays."""
        if not self.failure:
            self.failure = reason
            logger.error("log directory %s is offline: %s", self._root, reason)

    def check(self) -> None:
        """Raise OSError if the directory is offline."""
        if self.failure:
            raise self._offline()

    def on_error(self, error: OSError) -> OSError:
        """Return what to raise for an error."""
        if error.errno in NO_FAILURE:
            return error
        where = f": {error.filename}" if error.filename else ""
        self.fail(f"{error.strerror or error}{where}")
        return self._offline()

    def call(self, function: Callable[[], Result]) -> Result:
        """Use the disk, if the directory is not offline."""
        self.check()
        try:
            return function()
        except OSError as error:
            raise self.on_error(error) from None

    def _offline(self) -> OSError:
        return DirectoryOffline(f"log directory {self._root} is offline: {self.failure}")


class GuardedFile:
    """One open file; see `broker.log.files.File`."""

    __slots__ = ("_file", "_guard")

    def __init__(self, file: File, guard: Guard) -> None:
        self._file = file
        self._guard = guard

    @property
    def size(self) -> int:
        return self._file.size

    def append(self, buffers: Sequence[Buffer]) -> None:
        self._guard.call(lambda: self._file.append(buffers))

    def read(self, position: int, size: int) -> bytes:
        return self._guard.call(lambda: self._file.read(position, size))

    def read_cached(self, position: int, size: int) -> bytes | bytearray | None:
        return self._guard.call(lambda: self._file.read_cached(position, size))

    def truncate(self, size: int) -> None:
        self._guard.call(lambda: self._file.truncate(size))

    def is_cached(self, position: int, size: int) -> bool:
        return self._guard.call(lambda: self._file.is_cached(position, size))

    def fileno(self) -> int:
        self._guard.check()
        return self._file.fileno()

    async def sync(self) -> None:
        self._guard.check()
        try:
            await self._file.sync()
        except OSError as error:
            raise self._guard.on_error(error) from None

    def sync_now(self) -> None:
        self._guard.call(self._file.sync_now)

    def close(self) -> None:
        self._file.close()


class GuardedFiles:
    """See the head of this file, and `broker.log.files.Files`."""

    def __init__(self, files: Files, guard: Guard) -> None:
        self._files = files
        self._guard = guard

    def open(self, path: PurePath, *, create: bool = False) -> File:
        file = self._guard.call(lambda: self._files.open(path, create=create))
        return GuardedFile(file, self._guard)

    def list(self, path: PurePath) -> list[str]:
        return self._guard.call(lambda: self._files.list(path))

    def exists(self, path: PurePath) -> bool:
        return self._guard.call(lambda: self._files.exists(path))

    def modified_ms(self, path: PurePath) -> int:
        return self._guard.call(lambda: self._files.modified_ms(path))

    def is_dir(self, path: PurePath) -> bool:
        return self._guard.call(lambda: self._files.is_dir(path))

    def make_dir(self, path: PurePath) -> None:
        self._guard.call(lambda: self._files.make_dir(path))

    def rename(self, source: PurePath, target: PurePath) -> None:
        self._guard.call(lambda: self._files.rename(source, target))

    def remove(self, path: PurePath) -> None:
        self._guard.call(lambda: self._files.remove(path))

    def remove_tree(self, path: PurePath) -> None:
        self._guard.call(lambda: self._files.remove_tree(path))

    def read_bytes(self, path: PurePath) -> bytes:
        self._guard.check()
        try:
            return self._files.read_bytes(path)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise self._guard.on_error(error) from None

    def write_atomic(self, path: PurePath, data: bytes, *, sync: bool = True) -> None:
        self._guard.call(lambda: self._files.write_atomic(path, data, sync=sync))

    def one_writer(self) -> AbstractContextManager[object]:
        return self._files.one_writer()

    def new_lock(self) -> AbstractContextManager[object]:
        return self._files.new_lock()

    def sync_dir(self, path: PurePath) -> None:
        self._guard.check()
        try:
            self._files.sync_dir(path)
        except FileNotFoundError:  # of a log that was deleted meanwhile
            raise
        except OSError as error:
            raise self._guard.on_error(error) from None

    def lock(self, path: PurePath) -> Lock:
        return self._guard.call(lambda: self._files.lock(path))
