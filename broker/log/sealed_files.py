"""The files of sealed segments, which are opened when they are used and closed again.

A segment that is not the newest is only read, seldom, and a log may have thousands of them. So its
file is open only after a use, until others were used since and the budget of descriptors
(`broker/descriptors.py`) wants one back: the least recently used file is closed first.

Rules:

* A descriptor is closed only while no call uses it. A worker thread may read a slice, so each use
  is counted, under a lock. A read of an open file is not: it is repeated if the file was closed
  meanwhile. `fileno` lends the descriptor to its caller until the next call of it:
  the caller sends from it before it waits. So a slice holds no descriptor while it waits behind a
  slow client.
* A file with bytes that were not synced since they were written is synced before it is closed: the
  kernel may forget a failed write-back of a file that nobody has open. Such a file is closed only
  where there is no other. If the sync fails, the file stays open, and every later sync fails, too.
* The path may change: a deleted segment or topic is renamed. A file that is open does not notice
  that; the next opening uses the new path.
* The active segment has a file of its own, which stays open. Only where no descriptor is left for
  it, after a start with more logs than descriptors, its file is one of these.
"""

import errno
import os
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from pathlib import PurePath
from typing import TypeVar

from minibroker.broker.descriptors import NO_DESCRIPTORS, DescriptorBudget
from minibroker.broker.log.files import OFFLINE, File, Files
from minibroker.protocol.types import Buffer

LOOKED_AT = 64  # files, for one that needs no sync
Result = TypeVar("Result")


class SealedFile:
    """See the head of this file, and `broker.log.files.File`. Made and used by `SealedFiles`."""

    __slots__ = (
        "_files",
        "_pool",
        "_size",
        "failure",
        "is_closed",
        "open",
        "path",
        "synced_writes",
        "users",
        "was_read",
        "writes",
    )

    def __init__(
        self, pool: "SealedFiles", files: Files, path: PurePath, *, is_synced: bool
    ) -> None:
        self.path = path
        self.open: File | None = None
        self.is_closed = False
        self.users = 0
        self.was_read = False  # since it was looked at for closing
        self.writes = 0 if is_synced else 1
        self.synced_writes = 0
        self.failure: OSError | None = None  # of a sync
        self._files = files
        self._pool = pool
        self._size: int | None = None  # before the first opening

    def adopt(self, file: File) -> None:
        """Take over an open file."""
        self.open, self._size = file, file.size

    def reopen(self) -> File:
        """Open the file. Raises OSError."""
        self.adopt(self._files.open(self.path))
        assert self.open is not None
        return self.open

    @property
    def is_dirty(self) -> bool:
        """Whether bytes were written since the last sync."""
        return self.writes != self.synced_writes

    @property
    def size(self) -> int:
        if self._size is None:
            self._use(lambda file: None)
        assert self._size is not None
        return self._size

    def _use(self, function: Callable[[File], Result]) -> Result:
        file = self._pool.acquire(self)
        try:
            return function(file)
        finally:
            self._size = file.size
            self._pool.release(self)

    def append(self, buffers: Sequence[Buffer]) -> None:
        self.writes += 1
        self._use(lambda file: file.append(buffers))

    def read(self, position: int, size: int) -> bytes:
        # Without the lock, as most reads find the file open: what was read counts if it still is.
        open_file = self.open
        if open_file is not None:
            self.was_read = True
            try:
                data = open_file.read(position, size)
            except OSError:
                if self.open is open_file:
                    raise
            else:
                if self.open is open_file:
                    return data
        return self._use(lambda file: file.read(position, size))

    def read_cached(self, position: int, size: int) -> bytes | bytearray | None:
        # A file that is not open counts as not cached: a worker opens it.
        open_file = self.open
        if open_file is None:
            return None
        self.was_read = True
        try:
            data = open_file.read_cached(position, size)
        except OSError:
            if self.open is open_file:
                raise
            return None
        return data if self.open is open_file else None

    def truncate(self, size: int) -> None:
        self.writes += 1
        self._use(lambda file: file.truncate(size))

    def is_cached(self, position: int, size: int) -> bool:
        if self.open is None:  # a worker opens it
            return False
        return self._use(lambda file: file.is_cached(position, size))

    def fileno(self) -> int:
        return -1 if self.is_closed else self._pool.lend(self)

    async def sync(self) -> None:
        if self._is_synced():
            return
        file, writes = self._pool.acquire(self), self.writes
        try:
            await file.sync()
        finally:
            self._pool.release(self)
        self.synced_writes = max(self.synced_writes, writes)

    def sync_now(self) -> None:
        if self._is_synced():
            return
        writes = self.writes
        self._use(lambda file: file.sync_now())
        self.synced_writes = max(self.synced_writes, writes)

    def _is_synced(self) -> bool:
        if self.failure is not None:
            raise self.failure
        return self.is_closed or not self.is_dirty

    def close(self) -> None:
        self.is_closed = True
        self._pool.close(self)


class SealedFiles:
    """The sealed files of all logs, those that are open in the order of their last use.

    Without a budget they stay open once they were used.
    """

    def __init__(
        self,
        budget: DescriptorBudget | None = None,
        lock: AbstractContextManager[object] | None = None,
    ) -> None:
        self.budget = DescriptorBudget() if budget is None else budget
        self._lock = nullcontext() if lock is None else lock
        self._open: OrderedDict[SealedFile, None] = OrderedDict()
        self._lent: SealedFile | None = None
        self.budget.on_pressure = self.make_way

    def at(self, files: Files, path: PurePath, *, is_synced: bool) -> SealedFile:
        """Return the file of a path, which is not opened yet."""
        return SealedFile(self, files, path, is_synced=is_synced)

    def adopt(self, files: Files, path: PurePath, file: File) -> SealedFile:
        """Return a sealed file in the place of an active segment's, with bytes that may not be
        synced yet. It stays open until `seal`."""
        sealed = SealedFile(self, files, path, is_synced=False)
        sealed.adopt(file)
        return sealed

    def seal(self, sealed: SealedFile) -> None:
        """Let an adopted file be closed, now that its segment reads from it."""
        with self._lock:
            self.budget.logs -= 1
            self._add(sealed)
            self._make_way()

    def open_active(self, files: Files, path: PurePath) -> File:
        """Open or create the file of an active segment, at the cost of sealed ones where needed."""
        with self._lock:
            file = self._at_any_cost(lambda: files.open(path, create=True))
        self.budget.hold_log()
        return file

    def close_active(self, files: Files, path: PurePath, file: File) -> SealedFile:
        """Close the file of an active segment; return a closed one in its place."""
        closed = SealedFile(self, files, path, is_synced=True)
        closed.adopt(file)
        closed.is_closed, closed.open = True, None
        self.budget.logs -= 1
        file.close()
        return closed

    def activate(self, sealed: SealedFile) -> File | None:
        """Return an open file for an active segment in the place of a sealed one, which is in use
        until `hand_over`; None, and nothing has changed, where no descriptor is free."""
        if not self.budget.has_room_for_log():
            return None
        try:
            return self.acquire(sealed)
        except OSError as error:
            if error.errno not in NO_DESCRIPTORS:
                raise
            return None

    def hand_over(self, sealed: SealedFile) -> None:
        """Let go of a file that was activated, now that its segment reads from it."""
        with self._lock:
            sealed.open, sealed.is_closed = None, True
            self._remove(sealed)
        self.budget.hold_log()

    # -- what the files call

    def acquire(self, sealed: SealedFile) -> File:
        """Return the open file, which stays open until `release`. Raises OSError."""
        with self._lock:
            file = self._ensure_open(sealed)
            sealed.users += 1
            return file

    def release(self, sealed: SealedFile) -> None:
        """End a use."""
        with self._lock:
            sealed.users -= 1
            if sealed.is_closed and not sealed.users:
                self._close(sealed)

    def lend(self, sealed: SealedFile) -> int:
        """Return the descriptor, which stays open until the next call. Raises OSError."""
        with self._lock:
            file = self._ensure_open(sealed)
            self._lent = sealed
            return file.fileno()

    def close(self, sealed: SealedFile) -> None:
        """Close the file, once it is not used any more; it may be opened again if it is not
        `is_closed`."""
        with self._lock:
            if not sealed.users:
                self._close(sealed)

    def make_way(self) -> None:
        """Close files until no more are open than the budget permits."""
        with self._lock:
            self._make_way()

    def give_back(self, count: int) -> bool:
        """Close up to `count` files for what needs descriptors; return False if none was open."""
        with self._lock:
            closed = [self._close_one() for _ in range(count)]
        return any(closed)

    # -- under the lock

    def _ensure_open(self, sealed: SealedFile) -> File:
        if sealed.open is None:
            if sealed.is_closed:
                raise OSError(errno.EBADF, os.strerror(errno.EBADF), str(sealed.path))
            self._make_way(room=1)
            file = self._at_any_cost(sealed.reopen)
            self._add(sealed)
            return file
        self._open.move_to_end(sealed)
        return sealed.open

    def _at_any_cost(self, open_file: Callable[[], File]) -> File:
        """Open a file; if no descriptor is free, close others for it."""
        while True:
            try:
                return open_file()
            except OSError as error:
                if error.errno not in NO_DESCRIPTORS or not self._close_one():
                    raise

    def _make_way(self, room: int = 0) -> None:
        while len(self._open) + room > self.budget.sealed_max and self._close_one():
            pass

    def _close_one(self) -> bool:
        """Close a file that was not used for long; return False if all are in use."""
        free = self._free() or self._free()
        if not free:
            return False
        chosen = next((one for one in free if not one.is_dirty), free[0])
        if chosen.is_dirty:
            assert chosen.open is not None
            try:
                chosen.open.sync_now()
            except OSError as error:
                chosen.failure = error
                if error.errno != OFFLINE:
                    raise
            chosen.synced_writes = chosen.writes
        self._close(chosen)
        return True

    def _free(self) -> list[SealedFile]:
        """The files that can be closed, of those used least recently; one that was read since the
        last look becomes one of the latest."""
        free = []
        for one in list(islice(self._open, LOOKED_AT)):
            if one.was_read:
                one.was_read = False
                self._open.move_to_end(one)
            elif not one.users and one is not self._lent:
                free.append(one)
        return free

    def _close(self, sealed: SealedFile) -> None:
        file, sealed.open = sealed.open, None
        if file is not None:
            self._remove(sealed)
            file.close()

    def _add(self, sealed: SealedFile) -> None:
        self._open[sealed] = None
        self.budget.sealed = len(self._open)

    def _remove(self, sealed: SealedFile) -> None:
        del self._open[sealed]
        self.budget.sealed = len(self._open)
