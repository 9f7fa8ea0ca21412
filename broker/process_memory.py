"""The memory of the broker's process: what the garbage collector scans, and what the system gets
back.

A full collection walks all objects that are not excluded: it takes 20 to 60 ms while a request with
some ten thousand elements is served. Left to itself, the collector begins one just then, since such
a request makes so many objects. So the broker begins them: now and then, and when requests hold
little.

Free memory is given back because the C library keeps it otherwise: small objects that stay lie
between the pieces of large requests and answers. After a million fuzzed frames that was 118 MB. Of
the arenas that glibc gives to threads it can be asked for the first one only, so all threads share
that one: six workers kept 8 MB each. Python's threads allocate one after the other anyway.
"""

import ctypes
import gc
import os
from collections.abc import Callable
from math import inf
from typing import Final

REGROWTH_BYTES: Final = 8 << 20  # above the floor, from which on memory is given back
FLOOR_RISE_BYTES: Final = 1 << 20  # by which the floor follows what is held for long, at each time
COLLECT_S: Final = 5.0  # between two full collections, or longer:
COLLECT_PAUSE: Final = 1000  # times what the last one took
HELD_BYTES_MAX: Final = 1 << 20  # by requests: with more, a full collection is put off
PUT_OFF_S_MAX: Final = 60.0
_NEVER: Final = 2**31 - 1  # a collector's threshold
_M_ARENA_MAX: Final = -8  # of malloc.h
_STATM: Final = "/proc/self/statm"


class ProcessMemory:
    """See the head of this file. The floor is what the process holds between its peaks, about."""

    def __init__(self, seconds: Callable[[], float]) -> None:
        """Let threads that are started from now on share the memory of the main thread. `seconds`
        is a clock, by which it is measured how long a collection takes."""
        self._seconds = seconds
        self._collect_at = -inf
        self._floor_bytes = 0
        self._is_floor_sure = True  # it was taken while requests held little
        library = ctypes.CDLL(None)
        self._trim = getattr(library, "malloc_trim", None)  # of glibc
        if self._trim is not None:
            library.mallopt(_M_ARENA_MAX, 1)

    def settle(self) -> None:
        """Exclude the existing objects, which mostly stay, from garbage collection, and let no full
        collection begin by itself from now on.

        A full collection would otherwise block the broker for 50 ms, with 10,000 partitions for
        half a second.
        """
        young, middle, _ = gc.get_threshold()
        gc.set_threshold(young, middle, _NEVER)
        gc.collect(1)
        gc.freeze()

    def collect(self, now: float, held_bytes: int) -> None:
        """Do a full collection if it is due at a time (s), and requests hold no more bytes than
        `HELD_BYTES_MAX`. It is not put off for longer than `PUT_OFF_S_MAX`.

        The longer it takes, the rarer it is.
        """
        if now < self._collect_at or not gc.get_count()[2]:
            return
        if held_bytes > HELD_BYTES_MAX and now < self._collect_at + PUT_OFF_S_MAX:
            return
        began = self._seconds()
        gc.collect()
        took = self._seconds() - began
        self._collect_at = now + max(COLLECT_S, COLLECT_PAUSE * took)

    def release(self, held_bytes: int) -> None:
        """Give free memory back to the system, if the process has grown above the floor, and if the
        C library can do that on demand. Takes some milliseconds, in which other threads can hardly
        allocate.

        While requests hold more bytes than `HELD_BYTES_MAX` what is left may be a peak, so the
        floor rises slowly, and is found again once they hold little.
        """
        if self._trim is None:
            return
        before = resident_bytes()
        is_sure = held_bytes <= HELD_BYTES_MAX
        if before >= self._floor_bytes + REGROWTH_BYTES or (is_sure and not self._is_floor_sure):
            self._trim(0)
            rise = FLOOR_RISE_BYTES if self._floor_bytes else before
            floor = inf if is_sure else self._floor_bytes + rise
            self._floor_bytes = int(min(resident_bytes(), floor))
            self._is_floor_sure = is_sure
        self._floor_bytes = min(before, self._floor_bytes)


def resident_bytes() -> int:
    """Return the memory that this process holds (Linux)."""
    with open(_STATM) as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
