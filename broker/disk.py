"""The operating system's files, and worker threads for calls that block.

`RealFiles` is the operating system's form of `broker.log.files.Files`. Only this module knows what
differs between Linux and macOS (fdatasync, RWF_NOWAIT). `in_worker` runs a blocking function in a
thread. Fsync, recovery at start-up and SQLite use it; nothing on the append path does. A follower's
fetches have threads of their own (`replication/fetch_thread.py`).

A file object keeps the file's size and appends at that position, so that another process cannot
move an append. A short write is continued in a loop. If the loop ends in an error, `size` tells how
far the file grew, and the caller truncates it.

Only regular files are opened, and no symbolic link is followed in the place of a file or of a
partition's directory: a link could lead out of the data directory, and recovery truncates files.
The data directory itself may be a link. New files and directories are for this user alone, whatever
the umask allows: they hold records.
"""

import contextlib
import errno
import fcntl
import os
import shutil
import stat
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import PurePath
from typing import Protocol, TypeVar, TypeVarTuple

import trio

from minibroker.broker.log.files import File, Lock
from minibroker.broker.private_files import FILE_MODE, make_private_dir
from minibroker.protocol.types import Buffer

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")

SENDS_AT_ONCE = 8  # whose records are read by a worker
# The distance of the bytes that `is_cached` probes: the kernel reads ahead at least so much.
CACHE_PROBE_BYTES = 128 * 1024
SMALL_FILE_BYTES_MAX = 256 << 20  # a checkpoint of a million partitions has less
# The flag of a read that does not wait for the disk, where the system has it.
NO_WAIT: int | None = getattr(os, "RWF_NOWAIT", None)
# The kernel or the file system cannot tell whether a page is cached.
CANNOT_TELL = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)


class InWorker(Protocol):
    """The type of `in_worker`; a simulation has another implementation, on virtual time."""

    async def __call__(
        self, function: Callable[[*Arguments], T], /, *arguments: *Arguments
    ) -> T: ...


async def in_worker(function: Callable[[*Arguments], T], *arguments: *Arguments) -> T:
    """Run a blocking function in a thread and wait for it, even if the wait is cancelled."""
    return await trio.to_thread.run_sync(function, *arguments)


class Workers:
    """Runs blocking functions in threads, at most `count` at a time, apart from those of
    `in_worker`: readers of a slow disk keep no thread from what syncs files."""

    def __init__(self, count: int) -> None:
        self._limiter = trio.CapacityLimiter(count)

    async def __call__(self, function: Callable[[*Arguments], T], *arguments: *Arguments) -> T:
        """Run a function and wait for it, even if the wait is cancelled."""
        return await trio.to_thread.run_sync(function, *arguments, limiter=self._limiter)


def _sync_descriptor(descriptor: int) -> None:
    if sys.platform == "darwin":
        # fsync of macOS stops at the drive's cache.
        fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
    else:
        os.fdatasync(descriptor)


def _sync_and_close(descriptor: int) -> None:
    try:
        _sync_descriptor(descriptor)
    finally:
        os.close(descriptor)


def open_regular(path: PurePath, flags: int) -> int:
    """Open a regular file, and return its descriptor.

    Raises OSError: ELOOP for a symbolic link, EISDIR for a directory, ENODEV for a pipe, a socket
    or a device.
    """
    # Without O_NONBLOCK the opening of a pipe would wait for its other end.
    flags |= os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        descriptor = os.open(path, flags, FILE_MODE)
    except OSError as error:
        number = errno.ENODEV if error.errno == errno.ENXIO else error.errno  # a pipe or a socket
        raise OSError(number, error.strerror, str(path)) from None
    kind = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(kind):
        os.close(descriptor)
        number = errno.EISDIR if stat.S_ISDIR(kind) else errno.ENODEV
        raise OSError(number, os.strerror(number), str(path))
    return descriptor


class RealFile:
    """One open file; see `broker.log.files.File`."""

    __slots__ = ("_descriptor", "_size")

    def __init__(self, path: PurePath, create: bool) -> None:
        self._descriptor = open_regular(path, os.O_RDWR | (os.O_CREAT if create else 0))
        self._size = os.fstat(self._descriptor).st_size

    @property
    def size(self) -> int:
        return self._size

    def append(self, buffers: Sequence[Buffer]) -> None:
        for buffer in buffers:
            written = os.pwrite(self._descriptor, buffer, self._size)
            self._size += written
            if written < len(buffer):
                self._append_rest(memoryview(buffer)[written:])

    def _append_rest(self, rest: memoryview) -> None:
        while rest:
            written = os.pwrite(self._descriptor, rest, self._size)
            self._size += written
            rest = rest[written:]

    def read(self, position: int, size: int) -> bytes:
        data = os.pread(self._descriptor, size, position)
        if len(data) == size or not data:
            return data
        # One call returns at most 2 GiB, and fewer bytes on some file systems.
        return data + self.read(position + len(data), size - len(data))

    def read_cached(self, position: int, size: int) -> bytes | bytearray | None:
        rest = self._size - position
        if size > rest:
            size = max(0, rest)
        if NO_WAIT is None:
            return self.read(position, size)
        data = bytearray(size)
        try:
            count = os.preadv(self._descriptor, (data,), position, NO_WAIT)
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno in CANNOT_TELL:
                return self.read(position, size)
            raise
        return data if count == size else None

    def truncate(self, size: int) -> None:
        assert 0 <= size <= self._size, "a log file is never made longer than what was written"
        os.ftruncate(self._descriptor, size)
        self._size = size

    def is_cached(self, position: int, size: int) -> bool:
        if NO_WAIT is None or size <= 0:
            return True
        probe = bytearray(1)
        last = min(position + size, self._size) - 1
        for at in (*range(position, last, CACHE_PROBE_BYTES), last):
            try:
                os.preadv(self._descriptor, [probe], at, NO_WAIT)
            except BlockingIOError:
                return False
            except OSError as error:
                if error.errno in CANNOT_TELL:
                    return True
                raise
        return True

    def fileno(self) -> int:
        return self._descriptor

    async def sync(self) -> None:
        if self._descriptor < 0:
            return
        # A descriptor of its own: the log may close the file while the worker is still at it.
        await in_worker(_sync_and_close, os.dup(self._descriptor))

    def sync_now(self) -> None:
        if self._descriptor >= 0:
            _sync_descriptor(self._descriptor)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class RealLock:
    """A held `flock`; see `broker.log.files.Lock`."""

    def __init__(self, path: PurePath) -> None:
        self._descriptor = open_regular(path, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class RealFiles:
    """The operating system's disk; see `broker.log.files.Files`."""

    def __init__(self) -> None:
        self._writing = threading.Lock()

    def open(self, path: PurePath, *, create: bool = False) -> File:
        return RealFile(path, create)

    def list(self, path: PurePath) -> list[str]:
        return sorted(os.listdir(path))

    def exists(self, path: PurePath) -> bool:
        return os.path.lexists(path)

    def modified_ms(self, path: PurePath) -> int:
        return os.lstat(path).st_mtime_ns // 1_000_000

    def is_dir(self, path: PurePath) -> bool:
        try:
            kind = os.lstat(path).st_mode
        except FileNotFoundError:
            return False
        if stat.S_ISLNK(kind):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
        return stat.S_ISDIR(kind)

    def make_dir(self, path: PurePath) -> None:
        make_private_dir(path)

    def rename(self, source: PurePath, target: PurePath) -> None:
        os.replace(source, target)

    def remove(self, path: PurePath) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.remove(path)

    def remove_tree(self, path: PurePath) -> None:
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(path)

    def read_bytes(self, path: PurePath) -> bytes:
        with open(open_regular(path, os.O_RDONLY), "rb") as file:
            data = file.read(SMALL_FILE_BYTES_MAX + 1)
        if len(data) > SMALL_FILE_BYTES_MAX:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
        return data

    def write_atomic(self, path: PurePath, data: bytes, *, sync: bool = True) -> None:
        temporary = path.with_name(path.name + ".tmp")
        self.remove(temporary)  # whatever it is: only a new file is written
        with open(open_regular(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as file:
            file.write(data)
            if sync:
                file.flush()
                _sync_descriptor(file.fileno())
        os.replace(temporary, path)
        if sync:
            self.sync_dir(path.parent)

    def one_writer(self) -> threading.Lock:
        return self._writing

    def new_lock(self) -> threading.Lock:
        return threading.Lock()

    def sync_dir(self, path: PurePath) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def lock(self, path: PurePath) -> Lock:
        return RealLock(path)
