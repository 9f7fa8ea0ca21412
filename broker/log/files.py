"""The file operations that the log needs.

They have two implementations: `broker/disk.py` (the real one) and `testing/disk.py` (a disk that
loses its unsynced tail, tears a write, fills up, answers EIO). One contract suite tests both.

Everything but `sync` is synchronous and runs in the loop: a 16 KiB write into the page cache costs
5 us, the same through a worker thread 148 us. Errors are `OSError`s with their errno; ENOSPC is the
one that callers handle (docs/architecture.md, "What stops what").
"""

import errno
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import PurePath
from typing import Final, Protocol

from minibroker.protocol.types import Buffer

# The errno of every call on a log directory that has failed (`guarded_files`); no disk answers it.
OFFLINE: Final = errno.ESHUTDOWN


class File(Protocol):
    """An open file. Positions and sizes are bytes."""

    @property
    def size(self) -> int:
        """The position of the next append."""

    def append(self, buffers: Sequence[Buffer]) -> None:
        """Write all of them at the end. If it raises, the file may have grown by a part."""

    def read(self, position: int, size: int) -> bytes:
        """Return up to `size` bytes; fewer at the end of the file."""

    def read_cached(self, position: int, size: int) -> bytes | bytearray | None:
        """Do what `read` does if that does not wait for the disk; else return None.

        Where the system cannot tell what is in the page cache, it reads.
        """

    def truncate(self, size: int) -> None:
        """Cut to `size` bytes; never longer than it was."""

    def is_cached(self, position: int, size: int) -> bool:
        """Whether a read would not wait for the disk (True where that cannot be known)."""

    def fileno(self) -> int:
        """Return the descriptor, for `sendfile`; -1 on a simulated disk."""

    async def sync(self) -> None:
        """Make what was written before the call durable. Never retried after it failed.

        A file that was closed meanwhile is not synced: its owner no longer needs it.
        """

    def sync_now(self) -> None:
        """Do what `sync` does, blocking: for start-up, shutdown and small files only."""

    def close(self) -> None:
        """Close the file. May be called twice."""


class Lock(Protocol):
    """A held lock on a data directory; it ends with the process."""

    def release(self) -> None:
        """Release the lock. May be called twice."""


class Files(Protocol):
    """A disk. Paths are absolute.

    Only regular files are opened: a symbolic link, a directory, a pipe or a device in the place of
    one is an OSError.
    """

    def open(self, path: PurePath, *, create: bool = False) -> File:
        """Open for reading and appending; without `create` it must exist."""

    def list(self, path: PurePath) -> "list[str]":
        """Return the names in a directory, sorted."""

    def exists(self, path: PurePath) -> bool:
        """Whether there is a file or directory."""

    def modified_ms(self, path: PurePath) -> int:
        """Return when a file was last written, by the wall clock (ms since 1970)."""

    def is_dir(self, path: PurePath) -> bool:
        """Whether there is a directory. A symbolic link is an OSError (ELOOP)."""

    def make_dir(self, path: PurePath) -> None:
        """Create a directory and its parents; no error if it exists."""

    def rename(self, source: PurePath, target: PurePath) -> None:
        """Rename a file or directory; a target file is replaced."""

    def remove(self, path: PurePath) -> None:
        """Remove a file; no error if it does not exist."""

    def remove_tree(self, path: PurePath) -> None:
        """Remove a directory and its contents; no error if it does not exist."""

    def read_bytes(self, path: PurePath) -> bytes:
        """Return the contents of a small file."""

    def write_atomic(self, path: PurePath, data: bytes, *, sync: bool = True) -> None:
        """Replace a small file: temporary file, fsync, rename, directory fsync.

        Without `sync` neither fsync is done: readers still see the old file or the new one, but
        after a power cut it may be either, or empty.
        """

    def one_writer(self) -> AbstractContextManager[object]:
        """Return a lock between threads, for files that both a worker and the loop replace."""

    def new_lock(self) -> AbstractContextManager[object]:
        """Return a lock between threads, for what both a worker and the loop use."""

    def sync_dir(self, path: PurePath) -> None:
        """Make the names in a directory durable."""

    def lock(self, path: PurePath) -> Lock:
        """Take an exclusive lock on a file; `BlockingIOError` if another holder lives."""
