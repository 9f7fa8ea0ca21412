"""Rotted bytes and foreign files: what they may cost, and that they stop no broker."""

import contextlib
import struct

import pytest

from minibroker.broker.log import runs
from minibroker.broker.log.outcomes import LastKnownState
from minibroker.broker.log.scan import BadBytes
from minibroker.broker.turns import without_pause
from minibroker.protocol.records.batch import read_header, write_header
from tests.unit.log.workbench import DIRECTORY, NOW, Bench, encode

SIZE = len(encode())
EPOCH_SIGN = (12, 7)  # byte and bit, in a batch


def filled(count: int = 7) -> Bench:
    """Segments of 3 batches of one record each."""
    bench = Bench(segment_bytes=3 * SIZE, index_interval_bytes=0)
    for step in range(count):
        bench.append(epoch=step // 2, time_ms=NOW + step)
    return bench


def read_everywhere(bench: Bench, damaged: int) -> None:
    """Reads of all kinds, from every offset. Only those of the damaged batch raise BadBytes."""
    for offset in range(bench.log.log_end):
        for bytes_max in (1, 2 * SIZE, 1 << 20):
            named = None
            try:
                parts = bench.log.read(offset, bytes_max, bench.log.log_end)
                assert read_header(parts[0].read()).base_offset == offset
            except BadBytes as bad:
                named = (bad.offset, bad.next_offset)
            assert named is None or named == (offset, offset + 1) == (damaged, damaged + 1)
        bench.log.readable_bytes(offset, bench.log.log_end)
        with contextlib.suppress(BadBytes):
            bench.offset_at(NOW + offset, bench.log.log_end)


@pytest.mark.parametrize("bit", range(8))
@pytest.mark.parametrize("position", range(16))
def test_no_answer_holds_a_header_that_rotted(position: int, bit: int):
    """Whoever gets it need not check offsets, lengths and epochs: it ends before the bad batch, or
    that is named."""
    bench = Bench()
    for step in range(9):
        bench.append(epoch=step // 2, time_ms=NOW + step)
    bench.files.flip(bench.path(0), 4 * SIZE + position, bit)
    for offset in range(4):
        parts = bench.log.read(offset, 1 << 20, bench.log.log_end)
        data = b"".join(part.read() for part in parts)
        assert len(data) == (4 - offset) * SIZE
        at = range(0, len(data), SIZE)
        assert [read_header(data, each).base_offset for each in at] == list(range(offset, 4))
    with pytest.raises(BadBytes, match="from offset 4 on are damaged"):
        bench.log.read(4, 1 << 20, bench.log.log_end)


def test_an_answer_of_small_batches_ends_soon(monkeypatch):
    """Comparing their headers must not hold the loop up."""
    monkeypatch.setattr(runs, "BATCHES_MAX", 3)
    bench = Bench()
    for step in range(8):
        bench.append(epoch=1, time_ms=NOW + step)
    ends = [sum(map(len, bench.log.read(start, 1 << 20, 8))) // SIZE for start in (0, 3, 6)]
    assert ends == [3, 3, 2]


@pytest.mark.parametrize("recovery_point", [0, 5])
def test_an_impossible_epoch_in_the_first_checked_batch(recovery_point):
    """The segment is cut where it is bad; the one before it is not touched (REC-03)."""
    bench = filled()
    first = recovery_point // 3 * 3
    bench.files.flip(bench.path(first), *EPOCH_SIGN)
    bench.open(LastKnownState(same_boot=True, recovery_point=recovery_point))
    assert bench.log.damage.offset == first
    assert bench.offsets() == list(range(first))


@pytest.mark.parametrize("bit", range(8))
@pytest.mark.parametrize("position", range(12))
def test_a_rotted_offset_or_length_in_a_sealed_segment_stops_no_reader(position, bit):
    """Offsets lie outside the CRC; a read of what was not checked must not fail over one."""
    bench = filled()
    bench.reopen_clean()
    bench.files.flip(bench.path(0), SIZE + position, bit)
    read_everywhere(bench, 1)
    without_pause(bench.log.apply_retention(7, NOW))
    read_everywhere(bench, 1)


@pytest.mark.parametrize("is_clean", [True, False])
def test_a_segment_that_is_missing_in_the_middle_is_no_gap(is_clean):
    """After a kill recovery finds it. After a clean stop nobody looks, and who reads is told which
    records are missing, and gets what lies on both sides."""
    bench = filled(9)
    bench.log.close()
    for suffix in (".log", ".index", ".timeindex"):
        bench.files.remove(bench.path(3, suffix))
    if not is_clean:
        bench.open(LastKnownState(same_boot=True, recovery_point=0))
        assert bench.log.damage.offset == 3
        assert bench.offsets() == [0, 1, 2]
        return
    bench.open(LastKnownState(is_clean=True, recovery_point=9))
    assert (bench.offsets(0), bench.offsets(6)) == ([0, 1, 2], [6, 7, 8])
    for offset in (3, 5):
        with pytest.raises(BadBytes, match=rf"from offset {offset} on .* again from offset 6 on"):
            bench.log.read(offset, 1 << 20, 9)


def test_an_index_made_anew_knows_what_lies_behind_damage():
    """A batch without a length costs the index itself, and none of the entries behind it."""
    bench = filled(9)
    bench.reopen_clean()
    bench.files.flip(bench.path(3), SIZE + 8, 7)
    segment = [*bench.log._segments][1]
    segment.rebuild_indexes()
    assert [entry >> 32 for entry in segment.offset_index._loaded()] == [2]
    with pytest.raises(BadBytes, match=r"from offset 4 on .*again from offset 5"):
        bench.offsets(4)
    assert bench.offsets(5) == [5, 6, 7, 8]


@pytest.mark.parametrize("bit", range(4))
def test_a_cut_near_a_damaged_batch_cuts_nothing_else(bit):
    """What stays must be sound: else it is refused, and the log is as it was (REC-03)."""
    bench = filled(3)
    bench.files.flip(bench.path(0), 7, bit)  # the offset of the first batch
    bench.log._segments.active.rebuild_indexes()
    with pytest.raises(BadBytes, match="from offset 0 on"):
        bench.log.truncate_to(1, NOW)
    assert bench.log.log_end == 3
    bench.log.truncate_to(0, NOW)
    assert (bench.log.log_end, bench.offsets()) == (0, [])


def test_a_wrong_index_outlives_retention():
    """An index that was made anew in memory is kept there until its file is right."""
    bench = filled()
    bench.log.close()
    path = bench.path(0, ".index")
    data = bench.files.read_bytes(path)
    bench.files.write_atomic(path, struct.pack(">II", 1, 5) + data[8:])
    bench.open(LastKnownState(is_clean=True, recovery_point=7))
    assert bench.offsets(1) == [1, 2, 3, 4, 5, 6]
    without_pause(bench.log.apply_retention(7, NOW))
    assert bench.offsets(2) == [2, 3, 4, 5, 6]


def test_a_log_that_became_shorter_after_a_clean_stop_is_damaged():
    """Whole batches that vanished are missed: the recovery point was the end (REC-03)."""
    bench = filled(2)
    bench.log.close()
    bench.files.open(bench.path(0)).truncate(SIZE)
    bench.open(LastKnownState(is_clean=True, recovery_point=2))
    assert (bench.log.log_end, bench.log.damage.offset) == (1, 1)


def test_a_last_offset_that_rotted_after_a_clean_stop_is_damage():
    """The log does not go on at an offset that nobody gave (REC-03)."""
    bench = filled(2)
    bench.log.close()
    bench.files.flip(bench.path(0), SIZE + 1, 3)
    bench.open(LastKnownState(is_clean=True, recovery_point=2))
    assert (bench.log.log_end, bench.log.damage.offset) == (1, 1)


def test_a_batch_without_readable_records_is_found_by_its_header():
    """A producer may send nonsense under a good CRC; a look-up by time must survive it."""
    bench = Bench()
    bench.append(time_ms=NOW)
    batch = bytearray(encode(time_ms=NOW + 5))
    batch[61:] = b"\xff" * (len(batch) - 61)
    write_header(batch, read_header(batch))
    bench.log.append_as_leader(memoryview(batch), 0, NOW)
    assert bench.offset_at(NOW, 2) == (NOW, 0, 0)
    assert bench.offset_at(NOW + 1, 2) == (NOW + 5, 1, 0)


@pytest.mark.parametrize(
    "name",
    [
        f"{'²':0>20}.log",
        f"{'²':0>20}.snapshot",
        "99999999999999999999.log",
        "5.log",
        "5.snapshot",
        "notes.damaged",
        "notes.log",
        "readme",
    ],
)
@pytest.mark.parametrize("is_clean", [True, False])
def test_foreign_files_are_passed_over(name, is_clean):
    """A file that is no part of a log neither stops it nor changes it."""
    bench = filled()
    bench.log.close()
    bench.files.write_atomic(DIRECTORY / name, b"foreign")
    bench.open(LastKnownState(is_clean=is_clean, recovery_point=7))
    assert bench.log.damage is None
    assert bench.append(epoch=9).base_offset == 7
    bench.log.close()
    assert bench.files.read_bytes(DIRECTORY / name) == b"foreign"
