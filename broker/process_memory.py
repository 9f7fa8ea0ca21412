"""The memory of the broker's process: what the garbage collector scans, and what the system gets
back.

Free memory is given back because the C library keeps it otherwise: small objects that stay lie
between the pieces of large requests and answers. After a million fuzzed frames that was 118 MB.
"""

import ctypes
import gc
import os
from typing import Final

REGROWTH_BYTES: Final = 8 << 20  # above the floor, from which on memory is given back
FLOOR_RISE_BYTES: Final = 1 << 20  # by which the floor follows what is held for long, at each time
_STATM: Final = "/proc/self/statm"


class ProcessMemory:
    """See the head of this file. The floor is what the process holds between its peaks, about."""

    def __init__(self) -> None:
        self._floor_bytes = 0
        self._trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of glibc

    def settle(self) -> None:
        """Exclude the existing objects, which mostly stay, from garbage collection.

        A full collection would otherwise block the broker for 50 ms, with 10,000 partitions for
        half a second.
        """
        gc.collect(1)
        gc.freeze()

    def release(self) -> None:
        """Give free memory back to the system, if the process has grown above the floor, and if the
        C library can do that on demand. Takes some milliseconds, in which other threads can hardly
        allocate.

        Large requests may be served meanwhile. So what is held after it may be a peak, and the
        floor rises slowly.
        """
        if self._trim is None:
            return
        before = resident_bytes()
        if before >= self._floor_bytes + REGROWTH_BYTES:
            self._trim(0)
            rise = FLOOR_RISE_BYTES if self._floor_bytes else before
            self._floor_bytes = min(resident_bytes(), self._floor_bytes + rise)
        self._floor_bytes = min(before, self._floor_bytes)


def resident_bytes() -> int:
    """Return the memory that this process holds (Linux)."""
    with open(_STATM) as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
