"""Directories and files that only the broker's user may read, because they hold records.

New ones are made so whatever the umask allows. What exists keeps its mode: an operator may have
opened it; `doctor` names it.
"""

import errno
import os
from contextlib import suppress
from pathlib import PurePath
from typing import Final

FILE_MODE: Final = 0o600
DIRECTORY_MODE: Final = 0o700


def make_private_dir(path: PurePath) -> None:
    """Create a directory and its parents; no error if it exists. Raises OSError."""
    for part in reversed((path, *path.parents)):
        if not os.path.isdir(part):
            with suppress(FileExistsError):
                os.mkdir(part, DIRECTORY_MODE)
    if not os.path.isdir(path):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))


def create_private_file(path: PurePath) -> None:
    """Create an empty file; one that exists is left as it is. Raises OSError."""
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE_MODE))
