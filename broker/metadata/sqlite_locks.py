"""SQLite's locks of other processes, as Linux lists them; and a pause that holds none.

A process that is stopped (SIGSTOP) inside of a write holds the write lock of the metadata store for
as long as it stands still: no other broker of the cluster can write, so none becomes the leader of
anything. That is true of a process that hangs there, too, but it is not what a test means that
pauses one broker of three. So those who pause a broker on purpose use `pause_between_writes`.

On other systems the locks cannot be listed, and a pause may hold one.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

LOCKS: Final = Path("/proc/locks")
PAUSES_MAX: Final = 500  # of a process that stands inside of a write each time
GO_ON_S: Final = 0.005  # a write takes about as long


class WriteLock(NamedTuple):
    """A lock that excludes all others: who holds it, on which file, from which byte on."""

    pid: int
    inode: int
    first_byte: int


def write_locks() -> list[WriteLock]:
    """Return the locks of SQLite's kind (POSIX) on this machine. Raises `OSError` where the system
    does not list them."""
    # 1: POSIX  ADVISORY  WRITE 4711 fe:00:10027927 120 120; one that waits has "->" in it.
    lines = [line.split() for line in LOCKS.read_text().splitlines()]
    return [
        WriteLock(int(line[4]), int(line[5].rpartition(":")[2]), int(line[6]))
        for line in lines
        if line[1] == "POSIX" and line[3] == "WRITE"
    ]


def pause_between_writes(pid: int, stop: Callable[[], None], go_on: Callable[[], None]) -> None:
    """Stop a process, and let it go on and stop it again as long as it stands inside of a write.

    `stop` returns when the process stands still. Raises `TimeoutError` if it is inside of a write
    each time; it stands still then, too.
    """
    stop()
    for _ in range(PAUSES_MAX):
        if not _is_writing(pid):
            return
        go_on()
        time.sleep(GO_ON_S)
        stop()
    raise TimeoutError(
        f"process {pid} holds a write lock of its metadata store whenever it is paused: no other"
        " broker can write until it goes on"
    )


def _is_writing(pid: int) -> bool:
    try:
        return any(lock.pid == pid for lock in write_locks())
    except OSError:
        return False
