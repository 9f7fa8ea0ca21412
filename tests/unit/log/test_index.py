"""The two index files: sparse, in Kafka's form, and never trusted (rows LOG-10, REC-05)."""

import struct
from pathlib import PurePath

import pytest

from minibroker.broker.log.index import OffsetIndex, TimeIndex
from minibroker.broker.turns import without_pause
from tests.unit.log.workbench import DIRECTORY, NOW, Bench, encode

SIZE = len(encode())


def offset_index(bench: Bench) -> OffsetIndex:
    """A new index of base 100."""
    return OffsetIndex(bench.files, DIRECTORY / "x.index", 100)


def test_offset_lookup():
    """The greatest entry that is not larger, or (base, 0) (LOG-10)."""
    index = offset_index(Bench())
    assert index.lookup(105) == (100, 0)
    for offset, position in ((103, 50), (107, 90), (120, 400)):
        index.append(offset, position)
    assert [index.lookup(offset) for offset in (99, 102, 103, 106, 107, 119, 500)] == [
        *[(100, 0)] * 2,
        *[(103, 50)] * 2,
        *[(107, 90)] * 2,
        (120, 400),
    ]
    assert index.lookup_at_least(104) == (107, 90)
    assert index.lookup_at_least(121) is None


def test_offsets_only_grow():
    """An offset that is not larger than the last one is a programmer's error (LOG-10)."""
    index = offset_index(Bench())
    index.append(103, 50)
    for offset in (103, 102):
        with pytest.raises(AssertionError):
            index.append(offset, 60)


def test_offset_index_file():
    """Big-endian pairs of relative offset and position; what lacks is appended, cuts are cut."""
    bench = Bench()
    index = offset_index(bench)
    index.append(103, 50)
    index.write()
    index.append(107, 90)
    index.write()
    index.write()
    assert bench.files.read_bytes(index.path) == struct.pack(">4i", 3, 50, 7, 90)
    again = offset_index(bench)
    assert (again.lookup(200), len(again)) == ((107, 90), 2)
    again.truncate(107)
    again.append(110, 95)
    again.write()
    again.release()
    assert again.lookup(200) == (110, 95)
    assert bench.files.read_bytes(index.path) == struct.pack(">4i", 3, 50, 10, 95)


def test_a_torn_write_of_an_index_is_mended():
    """What a full disk left of a write is cut by the next one."""
    bench = Bench()
    index = offset_index(bench)
    index.append(103, 50)
    index.append(107, 90)
    bench.files.space_bytes = 1 << 40
    bench.files.space_bytes -= bench.files.room() - 11
    with pytest.raises(OSError, match="space"):
        index.write()
    bench.files.space_bytes = None
    index.write()
    assert bench.files.read_bytes(index.path) == struct.pack(">4i", 3, 50, 7, 90)


def test_time_lookup_and_file():
    """The newest entry that is not newer; entries only for newer times; 12 bytes each."""
    bench = Bench()
    index = TimeIndex(bench.files, DIRECTORY / "x.timeindex", 100)
    assert index.lookup(5) == 100
    for timestamp, offset in ((1000, 103), (1000, 105), (990, 106), (2000, 109)):
        index.append_if_newer(timestamp, offset)
    assert [index.lookup(time) for time in (999, 1000, 1999, 5000)] == [100, 103, 103, 109]
    index.write()
    assert bench.files.read_bytes(index.path) == struct.pack(">qiqi", 1000, 3, 2000, 9)
    again = TimeIndex(bench.files, index.path, 100)
    assert again.read_last() == (2000, 109)
    assert again.last() == (2000, 109)
    again.truncate(109)
    assert again.last() == (1000, 103)
    again.append_if_newer(1500, 110)
    again.write()
    assert bench.files.read_bytes(index.path) == struct.pack(">qiqi", 1000, 3, 1500, 10)


def test_entries_are_sparse():
    """An entry is made only after more than index.interval.bytes since the last one (LOG-10)."""
    bench = Bench(index_interval_bytes=2 * SIZE)
    for step in range(9):
        bench.append(time_ms=NOW + step)
    bench.log.close()
    entries = struct.unpack(">4i", bench.files.read_bytes(bench.path(0, ".index")))
    assert entries == (3, 3 * SIZE, 6, 6 * SIZE)
    times = struct.unpack(">qiqiqi", bench.files.read_bytes(bench.path(0, ".timeindex")))
    assert times == (NOW + 3, 3, NOW + 6, 6, NOW + 8, 8)


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("how", ["missing", "empty", "odd", "zeros"])
def test_an_unsound_index_is_made_anew(suffix, how):
    """A missing or impossible index is rebuilt, after a clean stop too (REC-05)."""
    bench = Bench(index_interval_bytes=0, segment_bytes=4 * SIZE)
    for step in range(7):
        bench.append(time_ms=NOW + step)
    bench.log.close()
    path = bench.path(0, suffix)
    good = bench.files.read_bytes(path)
    damaged = {"empty": b"", "odd": good[:-1], "zeros": bytes(len(good))}
    if how == "missing":
        bench.files.remove(path)
    else:
        bench.files.write_atomic(path, damaged[how])
    bench.reopen_clean()
    assert bench.log.damage is None
    assert [bench.offsets(offset)[0] for offset in range(7)] == list(range(7))
    assert bench.offset_at(NOW + 2, 7) == (NOW + 2, 2, 0)
    if how != "empty":
        bench.log.close()
        assert bench.files.read_bytes(path) == good


def test_a_lying_index_is_found_out_and_made_anew():
    """An entry that does not point at the batch it names is not believed."""
    bench = Bench(index_interval_bytes=0)
    for _ in range(100):
        bench.append()
    bench.log.close()
    path = bench.path(0, ".index")
    data = bytearray(bench.files.read_bytes(path))
    data[40 * 8 + 7] ^= 1
    bench.files.write_atomic(path, bytes(data))
    bench.reopen_clean()
    assert [bench.offsets(offset)[0] for offset in range(100)] == list(range(100))


def test_indexes_without_a_segment_are_removed():
    """An index whose log is gone is deleted (REC-05)."""
    bench = Bench()
    bench.append()
    bench.log.close()
    for suffix in (".index", ".timeindex"):
        bench.files.write_atomic(PurePath(bench.path(77, suffix)), b"12345678")
    bench.reopen_clean()
    assert not [name for name in bench.names() if name.startswith(f"{77:020}")]


def test_a_sealed_segment_gives_its_index_memory_back():
    """After retention ran, sealed segments' indexes are read from their files when needed."""
    bench = Bench(index_interval_bytes=0, segment_bytes=5 * SIZE)
    for _ in range(12):
        bench.append()
    without_pause(bench.log.apply_retention(12, NOW))
    assert [bench.offsets(offset)[0] for offset in range(12)] == list(range(12))
