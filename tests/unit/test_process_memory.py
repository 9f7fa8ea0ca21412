"""Free memory is given back to the system."""

import gc
import subprocess
import sys
from time import perf_counter

import pytest

from minibroker.broker.process_memory import (
    COLLECT_PAUSE,
    COLLECT_S,
    HELD_BYTES_MAX,
    PUT_OFF_S_MAX,
    REGROWTH_BYTES,
    ProcessMemory,
    resident_bytes,
)

PIECES = 1000
PIECE = 64 * 1024

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="it needs glibc and /proc")


def test_memory_between_small_objects_is_given_back() -> None:
    """Pieces of a large answer were freed, and small objects between them stay."""
    pieces, small = [], []
    for _ in range(PIECES):
        pieces.append(bytearray(PIECE))
        small.append(bytearray(1024))
    grown = resident_bytes()
    del pieces
    ProcessMemory(perf_counter).release(0)
    assert resident_bytes() < grown - PIECES * PIECE // 2
    assert len(small) == PIECES


def test_a_peak_while_memory_is_given_back_is_no_floor(monkeypatch: pytest.MonkeyPatch) -> None:
    """A large request that is served at that moment would keep all that it took for good."""
    readings = iter([76 << 20, 76 << 20, 180 << 20, 170 << 20, 160 << 20, 90 << 20])
    monkeypatch.setattr("minibroker.broker.process_memory.resident_bytes", lambda: next(readings))
    memory = ProcessMemory(perf_counter)
    trims: list[int] = []
    monkeypatch.setattr(memory, "_trim", trims.append)
    for _ in range(3):
        memory.release(HELD_BYTES_MAX + 1)
    assert len(trims) == 3


def test_what_a_long_load_has_left_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The floor rises as long as requests hold much, and may be above what is held after them."""
    resident = [76 << 20]
    monkeypatch.setattr("minibroker.broker.process_memory.resident_bytes", lambda: resident[0])
    memory = ProcessMemory(perf_counter)
    trims: list[int] = []
    monkeypatch.setattr(memory, "_trim", trims.append)
    memory.release(0)
    resident[0] = 200 << 20
    for _ in range(200):
        memory.release(HELD_BYTES_MAX + 1)
    count = len(trims)
    assert 100 < count < 200
    resident[0] = 120 << 20
    memory.release(HELD_BYTES_MAX + 1)
    assert len(trims) == count
    memory.release(HELD_BYTES_MAX)
    memory.release(HELD_BYTES_MAX)
    assert len(trims) == count + 1


def test_memory_of_threads_is_given_back() -> None:
    """The C library would keep the free memory of an arena of their own, the more of it the larger
    a piece was that was once freed."""
    code = (
        "import threading; from time import perf_counter;"
        "from minibroker.broker.process_memory import ProcessMemory, resident_bytes;"
        "memory = ProcessMemory(perf_counter); pieces = [bytearray(30 << 20)];"
        "pieces.clear(); is_over, is_full = threading.Event(), threading.Event();"
        "fill = lambda: [pieces.append(bytearray(1 << 16)) for _ in range(1000)];"
        "thread = threading.Thread(target=lambda: (fill(), is_full.set(), is_over.wait()));"
        "before = resident_bytes(); thread.start(); is_full.wait(); full = resident_bytes();"
        "assert full > before + (50 << 20); pieces.clear(); memory.release(0);"
        "left = resident_bytes(); is_over.set(); assert left < before + (8 << 20), left - before"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_process_that_has_not_grown_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The call takes milliseconds, in which others can hardly allocate."""
    resident = [100 << 20]
    monkeypatch.setattr("minibroker.broker.process_memory.resident_bytes", lambda: resident[0])
    memory = ProcessMemory(perf_counter)
    trims: list[int] = []
    monkeypatch.setattr(memory, "_trim", trims.append)
    memory.release(0)
    memory.release(0)
    resident[0] += REGROWTH_BYTES - 1
    memory.release(0)
    assert len(trims) == 1
    resident[0] += 1
    memory.release(0)
    assert len(trims) == 2


class FullCollections:
    """Counts them in place of the collector; each takes so many seconds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, took_s: float = 0.0) -> None:
        self.count, self._took_s, self._clock_s = 0, took_s, 0.0
        monkeypatch.setattr(gc, "collect", self._collect)
        monkeypatch.setattr(gc, "get_count", lambda: (0, 0, 1))
        self.memory = ProcessMemory(lambda: self._clock_s)

    def _collect(self) -> int:
        self.count += 1
        self._clock_s += self._took_s
        return 0

    def until(self, start: int, end: int, held_bytes: int = 0) -> int:
        """The full collections from one second to another."""
        before = self.count
        for now in range(start, end):
            self.memory.collect(float(now), held_bytes)
        return self.count - before


def test_a_full_collection_comes_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not at each call, and more rarely if it takes long."""
    assert FullCollections(monkeypatch).until(0, 100) == 100 / COLLECT_S
    assert FullCollections(monkeypatch, took_s=0.02).until(0, 100) == 100 / (COLLECT_PAUSE * 0.02)


def test_a_full_collection_is_put_off_while_requests_hold_much(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Their objects would be walked; but garbage is not kept for ever."""
    collections = FullCollections(monkeypatch)
    assert collections.until(0, 1) == 1
    first_put_off = int(COLLECT_S + PUT_OFF_S_MAX)
    assert collections.until(1, first_put_off, HELD_BYTES_MAX + 1) == 0
    assert collections.until(first_put_off, first_put_off + 1, HELD_BYTES_MAX + 1) == 1
    assert collections.until(first_put_off + 1, first_put_off + 8, HELD_BYTES_MAX) == 1


def test_garbage_is_collected_by_no_other_than_the_broker() -> None:
    """A collection of its own would come when a large request has made many objects."""
    code = (
        "import gc; from time import perf_counter;"
        "from minibroker.broker.process_memory import ProcessMemory;"
        "memory = ProcessMemory(perf_counter); memory.settle(); seen = [];"
        "gc.callbacks.append(lambda phase, info: seen.append(info['generation']));"
        "kept = [[n] for n in range(500_000)]; assert 1 in seen and 2 not in seen, set(seen);"
        "memory.collect(0.0, 0); assert 2 in seen; gc.unfreeze()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
