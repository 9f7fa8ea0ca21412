"""Regular files, opened for reading.

A pipe in the place of a file would hold up its reader, and a device might never end: neither is
opened as a file.
"""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from stat import S_ISDIR, S_ISREG


@contextmanager
def open_file(path: str | Path) -> Iterator[int]:
    """Yield a descriptor for reading. Raises OSError, also if it is not a regular file."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # opening a pipe must not block
    try:
        mode = os.fstat(descriptor).st_mode
        if S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not S_ISREG(mode):
            raise OSError(errno.EINVAL, "not a regular file")
        yield descriptor
    finally:
        os.close(descriptor)


def read_file(path: str | Path) -> bytes:
    """Return the contents of a file. Raises OSError, also if it is not a regular file."""
    with open_file(path) as descriptor, open(descriptor, "rb", closefd=False) as file:
        return file.read()
