"""Free memory is given back to the system."""

import sys

import pytest

from minibroker.broker.process_memory import REGROWTH_BYTES, ProcessMemory, resident_bytes

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
    ProcessMemory().release()
    assert resident_bytes() < grown - PIECES * PIECE // 2
    assert len(small) == PIECES


def test_a_peak_while_memory_is_given_back_is_no_floor(monkeypatch: pytest.MonkeyPatch) -> None:
    """A large request that is served at that moment would keep all that it took for good."""
    readings = iter([76 << 20, 76 << 20, 180 << 20, 170 << 20, 160 << 20, 90 << 20])
    monkeypatch.setattr("minibroker.broker.process_memory.resident_bytes", lambda: next(readings))
    memory = ProcessMemory()
    trims: list[int] = []
    monkeypatch.setattr(memory, "_trim", trims.append)
    for _ in range(3):
        memory.release()
    assert len(trims) == 3


def test_a_process_that_has_not_grown_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The call takes milliseconds, in which others can hardly allocate."""
    resident = [100 << 20]
    monkeypatch.setattr("minibroker.broker.process_memory.resident_bytes", lambda: resident[0])
    memory = ProcessMemory()
    trims: list[int] = []
    monkeypatch.setattr(memory, "_trim", trims.append)
    memory.release()
    memory.release()
    resident[0] += REGROWTH_BYTES - 1
    memory.release()
    assert len(trims) == 1
    resident[0] += 1
    memory.release()
    assert len(trims) == 2
