"""Reading: slices of whole batches, and what is readable (rows LOG-11, LOG-12, A17)."""

import pytest

from minibroker.broker.errors import Refused
from minibroker.broker.log.file_slice import FileSlice
from minibroker.broker.turns import without_pause
from minibroker.protocol.constants import ErrorCode
from minibroker.protocol.records.batch import read_header, stamp, write_header
from minibroker.protocol.types import StaleSlice
from tests.unit.log.workbench import NOW, Bench, encode, stored

SIZE = len(encode())


def read(bench: Bench, offset: int, bytes_max: int, **options: bool) -> list[tuple[int, int]]:
    """Position and size of the slices up to the log's end."""
    slices = bench.log.read(offset, bytes_max, bench.log.log_end, **options)
    return [(part.position, len(part)) for part in slices]


def filled(count: int = 6, **limits) -> Bench:
    """A log of batches of one record."""
    bench = Bench(**limits)
    for _ in range(count):
        bench.append()
    return bench


def test_out_of_range():
    """Outside of log start and log end is OFFSET_OUT_OF_RANGE, the end is empty (LOG-11)."""
    bench = filled()
    assert read(bench, 6, 1000) == []
    bench.log.log_start = 2
    for offset in (7, 1):
        with pytest.raises(Refused) as caught:
            read(bench, offset, 1000)
        assert caught.value.code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_the_middle_of_a_batch_gives_the_whole_batch():
    """A read from inside a batch starts at its first byte (LOG-11)."""
    bench = Bench()
    bench.append(3)
    bench.append(3)
    assert bench.offsets(4) == [3]
    assert bench.offsets(2) == [0, 3]


def test_limits_end_at_batches():
    """As many whole batches as fit; at least one only if asked for (LOG-12)."""
    bench = filled()
    assert read(bench, 1, SIZE - 1) == [(SIZE, SIZE)]
    assert read(bench, 1, SIZE - 1, at_least_one=False) == []
    assert read(bench, 1, SIZE) == [(SIZE, SIZE)]
    assert read(bench, 1, 3 * SIZE - 1) == [(SIZE, 2 * SIZE)]
    assert read(bench, 0, 1 << 40) == [(0, 6 * SIZE)]


def test_one_slice_per_segment():
    """A read goes on into the next segments, under one limit for all."""
    bench = filled(segment_bytes=2 * SIZE)
    assert read(bench, 1, 4 * SIZE) == [(SIZE, SIZE), (0, 2 * SIZE), (0, SIZE)]
    assert read(bench, 1, SIZE) == [(SIZE, SIZE)]
    assert read(bench, 1, SIZE + 1) == [(SIZE, SIZE)]


@pytest.mark.parametrize("interval", [0, 300, 4096])
def test_every_offset_and_end(interval):
    """Whatever the offset, the end and the index, a read gives the batches between them."""
    bench = Bench(index_interval_bytes=interval, segment_bytes=50 * SIZE)
    for _ in range(120):
        bench.append()
    for reopen in (lambda: bench.log, bench.reopen_clean, bench.reopen_killed):
        log = reopen()
        for offset in range(0, 121, 7):
            for end_offset in range(offset, 121, 11):
                slices = log.read(offset, 1 << 40, end_offset)
                assert sum(map(len, slices)) == (end_offset - offset) * SIZE
                readable = log.readable_bytes(offset, end_offset)
                slack = 2 * (interval + 2 * SIZE)
                assert sum(map(len, slices)) <= readable <= sum(map(len, slices)) + slack


def test_readable_bytes_are_exact_near_the_end_and_read_nothing():
    """Who waits at the end of the log is told the truth without the disk being asked (A17)."""
    bench = filled(100)
    bench.files.fail("read", times=1000)
    for offset in range(75, 101):
        for end_offset in range(offset, 101):
            assert bench.log.readable_bytes(offset, end_offset) == (end_offset - offset) * SIZE
    assert bench.log.readable_bytes(100, 100) == 0
    assert bench.log.readable_bytes(101, 100) == 0


def test_reads_stop_below_the_end_that_is_given():
    """No record at or above the end is shown, be it inside a batch (FET-01)."""
    bench = Bench()
    bench.append(3)
    bench.append(3)
    assert [len(part) for part in bench.log.read(0, 1000, 5)] == [len(encode(3))]
    assert bench.log.read(0, 1000, 2) == []


def test_a_slice_dies_with_a_cut():
    """After a truncation no byte of a new epoch is sent as one of the old."""
    bench = filled(segment_bytes=2 * SIZE)
    slices = bench.log.read(0, 1000, 6)
    bench.log.truncate_to(3, NOW)
    bench.append(epoch=1)
    assert [part.is_valid() for part in slices] == [True, False, False]
    assert len(slices[0].read()) == 2 * SIZE
    with pytest.raises(StaleSlice):
        slices[1].read()


def test_a_slice_of_a_deleted_segment_stays_readable_until_its_file_goes():
    """Retention renames at once and closes after the delay (LOG-14)."""
    bench = filled(segment_bytes=2 * SIZE, retention_bytes=2 * SIZE, file_delete_delay_ms=10)
    [part, *_] = bench.log.read(0, 1000, 6)
    assert without_pause(bench.log.apply_retention(6, NOW)) == 2
    assert len(part.read()) == 2 * SIZE
    assert without_pause(bench.log.remove_deleted_files(NOW + 9)) == NOW + 10
    assert part.is_valid()
    assert without_pause(bench.log.remove_deleted_files(NOW + 10)) is None
    assert not part.is_valid()


def test_cached_is_asked_of_the_file():
    """A slice knows whether its bytes are in memory, and has no descriptor on a simulated disk."""
    bench = filled()
    [part] = bench.log.read(0, 1000, 6)
    assert part.is_cached()
    assert part.fileno() == -1
    bench.files.evict()
    assert not part.is_cached()


def test_the_offset_of_a_time():
    """The first record of a time or later, exact to the record, below the end."""
    bench = Bench(segment_bytes=300, index_interval_bytes=0)
    for step in range(8):
        bench.append(3, epoch=step, time_ms=NOW + 10 * step)
    for reopen in (lambda: bench.log, bench.reopen_clean, bench.reopen_killed):
        reopen()
        assert bench.offset_at(0, 24) == (NOW, 0, 0)
        assert bench.offset_at(NOW + 2, 24) == (NOW + 2, 2, 0)
        assert bench.offset_at(NOW + 3, 24) == (NOW + 10, 3, 1)
        assert bench.offset_at(NOW + 71, 24) == (NOW + 71, 22, 7)
        assert bench.offset_at(NOW + 71, 22) is None
        assert bench.offset_at(NOW + 73, 24) is None


def test_times_that_go_back():
    """An older record behind a newer one is found only after it: the first one counts."""
    bench = Bench(index_interval_bytes=0)
    for time_ms in (50, 10, 60, 20):
        bench.append(time_ms=time_ms)
    assert bench.offset_at(15, 4) == (50, 0, 0)
    assert bench.offset_at(55, 4) == (60, 2, 0)


class Closing:
    """A segment that the loop closes while a worker reads: after the first look at it."""

    def __init__(self, file):
        self.file = file
        self._generations = iter((0, 0, 1))

    @property
    def generation(self):
        return next(self._generations)


def test_a_slice_whose_file_closes_under_a_worker_is_stale():
    """That is no error of the disk, which would end the broker."""
    bench = Bench()
    bench.append()
    file = bench.files.open(bench.path(0))
    file.close()
    with pytest.raises(StaleSlice):
        FileSlice(Closing(file), 0, SIZE).read()


def test_a_time_beyond_64_bits_is_passed_over():
    """A record whose base timestamp and delta have no sum in 64 bits has no timestamp: a look-up
    finds the record behind it. The answer once could not be encoded, which ended the broker."""
    bench = Bench()
    batch = bytearray(encode(2))
    batch[27:35] = (2**63 - 1).to_bytes(8, "big")
    write_header(batch, read_header(batch))
    stamp(batch, 1, 0)
    bench.follow(stored(0), batch, stored(3, time_ms=NOW + 9))
    assert bench.offset_at(NOW + 1, 4) == (2**63 - 1, 1, 0)
    bench.log.raise_start(2)
    assert bench.offset_at(NOW + 1, 4) == (NOW + 9, 3, 0)
