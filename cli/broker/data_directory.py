"""The checks of a broker's log directories: they are writable, and they outlive a container."""

import os
from collections.abc import Mapping
from itertools import permutations
from pathlib import Path
from typing import Final

from minibroker.cli.terminal import Failure

# Our image sets this to the path where its volume is mounted; it is not set elsewhere.
VOLUME_VARIABLE: Final = "MINIBROKER_VOLUME"


def log_directories(first: Path, *others: Path) -> tuple[Path, ...]:
    """Return the directories as absolute paths; create the first if it does not exist. The broker
    creates the others, unless it remembers them: then a disk is missing.

    Raises `Failure` if the first cannot be created or written, if two are the same, or if one is in
    another.
    """
    paths = (data_directory(first), *(other.absolute() for other in others))
    resolved = [path.resolve() for path in paths]
    for one, other in permutations(range(len(paths)), 2):
        if resolved[one].is_relative_to(resolved[other]):
            is_same = resolved[one] == resolved[other]
            how = "are the same" if is_same else "lie one in the other"
            raise Failure(f"the log directories {paths[other]} and {paths[one]} {how}: name others")
    return paths


def data_directory(root: Path) -> Path:
    """Return the directory as an absolute path; create it if it does not exist.

    Raises `Failure` if it cannot be created, or if this user may not write to it.
    """
    from minibroker.broker.private_files import make_private_dir

    try:
        make_private_dir(root)
    except (FileExistsError, NotADirectoryError) as error:
        raise Failure(
            f"{error.filename or root} is a file, so {root} cannot be the data directory;"
            " name another one with --data-dir"
        ) from None
    except PermissionError:
        raise _not_permitted(root) from None
    except OSError as error:
        raise Failure(f"cannot make the data directory {root}: {error.strerror}") from None
    if os.statvfs(root).f_flag & os.ST_RDONLY:
        raise Failure(f"{root} is on a file system that is mounted read-only: mount it writable")
    if not os.access(root, os.R_OK | os.W_OK | os.X_OK, effective_ids=_HAS_EFFECTIVE_IDS):
        raise _not_permitted(root)
    return root.absolute()


_HAS_EFFECTIVE_IDS: Final = os.access in os.supports_effective_ids


def _not_permitted(root: Path) -> Failure:
    """Return the failure, which names both users and the remedy."""
    there = root
    while not os.path.lexists(there) and there != there.parent:
        there = there.parent
    uid, gid = os.geteuid(), os.getegid()
    try:
        owner = there.stat()
    except OSError:
        return Failure(f"user {uid} may not enter {there}: name another directory with --data-dir")
    return Failure(
        f"{there} belongs to user {owner.st_uid}, and this broker runs as user {uid}, which may not"
        f" keep its data there: chown -R {uid}:{gid} {there}, or run the broker as user"
        f" {owner.st_uid} (docker run --user {owner.st_uid}:{owner.st_gid})"
    )


def volume_warning(root: Path, environ: Mapping[str, str], top: Path = Path("/")) -> str:
    """Return a warning if the data in `root` would be lost with the container, else "".

    In a container of our image, everything on the file system of `top` is removed with it.
    """
    volume = environ.get(VOLUME_VARIABLE)
    if not volume or not root.exists() or root.stat().st_dev != top.stat().st_dev:
        return ""
    return (
        f"log.dirs={root} is not on a volume: the data will be lost with this container; mount a"
        f" volume there, or leave KAFKA_LOG_DIRS at {volume}, where the image has one"
    )
