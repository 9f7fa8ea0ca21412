"""Appending: offsets, what is refused, rolls, full disks (rows LOG-01 to LOG-08, PID-02)."""

import errno

import pytest

from minibroker.broker.config import Config
from minibroker.broker.errors import Refused
from minibroker.broker.log.admission import UnexpectedOffset
from minibroker.protocol.constants import ErrorCode
from minibroker.protocol.records.batch import (
    InvalidBatch,
    has_valid_crc,
    read_header,
    write_header,
)
from minibroker.protocol.records.record import decode_records
from tests.unit.log.workbench import NOW, Bench, encode, stored


def refusal(bench: Bench, batch: bytes, now_ms: int = NOW) -> ErrorCode:
    """The code of a refused append; nothing was written."""
    before = (bench.log.log_end, bench.log.size)
    with pytest.raises(Refused) as caught:
        bench.log.append_as_leader(memoryview(bytearray(batch)), 0, now_ms)
    assert (bench.log.log_end, bench.log.size) == before
    return caught.value.code


def test_a_leader_gives_offsets_and_its_epoch():
    """Batches of 2 and 3 records get offsets 0-1 and 2-4 and the leader's epoch (LOG-01)."""
    bench = Bench()
    assert bench.append(2, epoch=7)[:2] == (0, 1)
    assert bench.append(3, epoch=7) == (2, 4, -1, False)
    assert bench.log.log_end == 5
    headers = bench.headers()
    assert [(h.base_offset, h.last_offset, h.leader_epoch) for h in headers] == [
        (0, 1, 7),
        (2, 4, 7),
    ]
    assert bench.log.epochs.entries == ((7, 0),)


def test_a_client_sends_base_offset_0():
    """Any other base offset is refused (LOG-02)."""
    assert refusal(Bench(), stored(1)) == ErrorCode.INVALID_RECORD


def test_a_flipped_byte_is_refused():
    """A batch that fails its CRC is not written (LOG-03)."""
    batch = encode()
    batch[-1] ^= 1
    assert refusal(Bench(), batch) == ErrorCode.CORRUPT_MESSAGE


def test_sizes_at_and_above_the_limits():
    """A batch of exactly the limit is taken, one byte more is not (LOG-04)."""
    batch = encode(3)
    bench = Bench(batch_bytes_max=len(batch), segment_bytes=len(batch))
    bench.append(3)
    assert refusal(bench, encode(3, value=b"vv")) == ErrorCode.MESSAGE_TOO_LARGE
    bench = Bench(segment_bytes=len(batch))
    bench.append(3)
    assert refusal(bench, encode(3, value=b"vv")) == ErrorCode.RECORD_LIST_TOO_LARGE


def test_timestamps_outside_the_window_are_refused():
    """Create times may lie so far before and after the broker's clock, and no further."""
    bench = Bench(timestamp_before_max_ms=100, timestamp_after_max_ms=50)
    bench.append(time_ms=NOW - 100)
    bench.append(time_ms=NOW + 50)
    assert refusal(bench, encode(time_ms=NOW - 101)) == ErrorCode.INVALID_TIMESTAMP
    assert refusal(bench, encode(time_ms=NOW + 51)) == ErrorCode.INVALID_TIMESTAMP


def test_an_hour_ahead_is_the_default_and_the_refusal_says_what_to_look_at():
    """Nanoseconds given as milliseconds are refused, as in Kafka since 4.0; the past is not."""
    limits = Config().for_topic().limits()
    assert (limits.timestamp_after_max_ms, limits.timestamp_before_max_ms) == (3_600_000, 2**63 - 1)
    bench = Bench(timestamp_after_max_ms=3_600_000, timestamp_before_max_ms=2**63 - 1)
    bench.append(time_ms=0)
    batch = memoryview(bytearray(encode(time_ms=NOW * 1_000_000)))
    with pytest.raises(Refused, match="milliseconds since 1970") as caught:
        bench.log.append_as_leader(batch, 0, NOW)
    assert caught.value.code == ErrorCode.INVALID_TIMESTAMP
    assert "message.timestamp.after.max.ms is 3600000" in str(caught.value)


def test_append_time():
    """With LogAppendTime the broker's clock is the batch's time, and its CRC is right again."""
    bench = Bench(timestamp_type="LogAppendTime")
    assert bench.append(2, time_ms=5, now_ms=NOW + 9).append_time_ms == NOW + 9
    [part] = bench.log.read(0, 1000, 2)
    [header] = bench.headers()
    assert has_valid_crc(part.read(), header)
    assert [record.timestamp for record in decode_records(part.read(), header)] == [NOW + 9] * 2


def test_a_batch_sent_again_is_not_stored_again():
    """A repetition is answered with its first offsets, after a restart too (PID-02, PID-13)."""
    bench = Bench()
    bench.append(2)
    sent = {"producer": (9, 0, 0)}
    first = bench.append(3, **sent)
    assert first == (2, 4, -1, False)
    assert bench.append(3, **sent) == (2, 4, -1, True)
    bench.reopen_clean()
    assert bench.append(3, **sent) == (2, 4, -1, True)
    bench.reopen_killed()
    assert bench.append(3, **sent) == (2, 4, -1, True)
    assert bench.log.log_end == 5


def test_a_follower_does_not_go_back():
    """A first offset below the log end, or a step back inside, is refused whole (LOG-06)."""
    bench = Bench()
    bench.append(5)
    for batches, error in (
        ([stored(4)], UnexpectedOffset),
        ([stored(5), stored(9), stored(7)], InvalidBatch),
    ):
        with pytest.raises(error):
            bench.follow(*batches)
        assert bench.log.log_end == 5
        assert bench.offsets() == [0]


def test_a_follower_takes_no_gaps():
    """No log is compacted, so that an offset too far is one that rotted (LOG-06)."""
    bench = Bench()
    bench.follow(stored(0, 3))
    for batches in ([stored(4)], [stored(3), stored(5)]):
        with pytest.raises(InvalidBatch, match=r"instead of [34]"):
            bench.follow(*batches)
    assert bench.offsets() == [0]


def test_a_follower_leaves_an_unfinished_batch_alone():
    """Only whole batches of an answer are appended."""
    bench = Bench()
    bench.follow(stored(0), stored(1)[:-1])
    assert bench.log.log_end == 1


def test_a_follower_rolls_as_a_leader_does():
    """Batches of one answer may go into several segments."""
    size = len(encode())
    bench = Bench(segment_bytes=2 * size)
    bench.follow(*(stored(offset) for offset in range(5)))
    assert bench.bases() == [0, 2, 4]
    assert bench.offsets() == [0, 1, 2, 3, 4]


def test_rolls_by_size():
    """A segment takes a batch as long as it stays within segment.bytes (LOG-08)."""
    size = len(encode())
    bench = Bench(segment_bytes=3 * size)
    for _ in range(4):
        bench.append()
    assert bench.bases() == [0, 3]
    bench = Bench(segment_bytes=3 * size - 1)
    for _ in range(4):
        bench.append()
    assert bench.bases() == [0, 2]


def test_rolls_by_the_time_of_the_records():
    """A batch more than segment.ms newer than the segment's first one begins a new one (LOG-08)."""
    bench = Bench(segment_ms=100)
    bench.append(time_ms=NOW)
    bench.append(time_ms=NOW + 100)
    assert bench.bases() == [0]
    bench.append(time_ms=NOW + 101)
    assert bench.bases() == [0, 2]


def test_rolls_by_the_clock_without_timestamps():
    """Records without a time age by the broker's clock (LOG-08)."""
    bench = Bench(segment_ms=100)
    bench.append(time_ms=-1, now_ms=NOW + 100)
    bench.append(time_ms=-1, now_ms=NOW + 100)
    assert bench.bases() == [0]
    bench.append(time_ms=-1, now_ms=NOW + 101)
    assert bench.bases() == [0, 2]


def test_a_time_that_would_be_refused_does_not_roll():
    """A follower may hold a batch that is stamped beyond what the log allows: it ages by the clock,
    so that not each of many such batches makes a segment (LOG-08)."""
    bench = Bench(segment_ms=100, timestamp_after_max_ms=50)
    bench.follow(*(stored(offset, time_ms=NOW + 1000 * offset) for offset in range(10)))
    assert bench.bases() == [0]
    bench.append(time_ms=NOW + 101, now_ms=NOW + 101)
    assert bench.bases() == [0, 10]


def test_times_in_any_order_roll_once():
    """A segment's first time only grows from one segment to the next: old and new records by turns
    do not roll each time (LOG-08)."""
    bench = Bench(segment_ms=100, timestamp_after_max_ms=50)
    for turn in range(10):
        bench.append(time_ms=NOW - 1000 * (turn % 2 == 0))
    assert bench.bases() == [0, 1]


def test_jitter_rolls_earlier_and_the_same_each_time():
    """With jitter a segment may roll earlier than segment.ms, never later."""
    bases = []
    for _ in range(2):
        bench = Bench(segment_ms=100, segment_jitter_ms=90)
        for step in range(101):
            bench.append(time_ms=NOW + step)
        bench.append(time_ms=NOW + 101)
        bases.append(bench.bases())
    assert len(bases[0]) > 1
    assert bases[0] == bases[1]


def test_an_empty_segment_does_not_roll():
    """Neither age nor size rolls a segment without batches (LOG-08)."""
    bench = Bench(segment_ms=100)
    bench.append(time_ms=-1, now_ms=NOW + 5000)
    assert bench.bases() == [0]


def test_rolls_when_an_index_is_full():
    """A segment has no more entries than its index files may hold (LOG-08)."""
    bench = Bench(index_interval_bytes=0, index_bytes_max=36)
    for _ in range(6):
        bench.append()
    # The first batch has no entry, three entries of 12 bytes fit.
    assert bench.bases() == [0, 4]


def test_rolls_when_an_offset_does_not_fit_32_bits():
    """Offsets relative to a base stay below 2^31 (LOG-08)."""
    bench = Bench()
    wide = bytearray(stored(1))
    write_header(wide, read_header(wide)._replace(last_offset_delta=2**31 - 2))
    bench.follow(stored(0), bytes(wide))
    assert (bench.bases(), bench.log.log_end) == ([0], 2**31)
    bench.follow(stored(2**31))
    assert bench.bases() == [0, 2**31]
    bench.reopen_killed()
    assert bench.offsets() == [0, 1, 2**31]


@pytest.mark.parametrize("room", [0, 1, 60, 75])
def test_a_full_disk_is_refused_and_gone_when_there_is_space(room):
    """What had been written of the batch is cut; the log goes on when there is space again."""
    bench = Bench()
    bench.append()
    bench.files.space_bytes = 1 << 40
    bench.files.space_bytes -= bench.files.room() - room
    assert refusal(bench, encode(5)) == ErrorCode.KAFKA_STORAGE_ERROR
    assert bench.offsets() == [0]
    bench.files.space_bytes = None
    assert bench.append(5).base_offset == 1
    bench.reopen_killed()
    assert bench.offsets() == [0, 1]


def test_a_full_disk_is_told_to_the_operator_once(caplog):
    """One log line when the disk is full, however many batches it refuses, and one at its end."""
    caplog.set_level("INFO")
    bench = Bench()
    bench.append()
    bench.files.space_bytes = 0
    for _ in range(3):
        refusal(bench, encode(5))
    bench.files.space_bytes = None
    bench.append()
    bench.append()
    assert [record.levelname for record in caplog.records] == ["ERROR", "INFO"]
    assert "the disk is full" in caplog.records[0].getMessage()


def test_a_full_disk_at_a_roll():
    """A roll that found no space is made again; nothing is lost or doubled."""
    bench = Bench(segment_bytes=2 * len(encode()), index_interval_bytes=0)
    bench.append(producer=(1, 0, 0))
    bench.append(producer=(1, 0, 1))
    bench.files.space_bytes = 1 << 40
    bench.files.space_bytes -= bench.files.room() - 10
    assert refusal(bench, encode()) == ErrorCode.KAFKA_STORAGE_ERROR
    bench.files.space_bytes = None
    bench.append()
    bench.reopen_clean()
    assert bench.offsets() == [0, 1, 2]
    assert bench.bases() == [0, 2]


def test_other_errors_leave_the_broker():
    """An append that meets EIO raises it, and keeps nothing of the batch."""
    bench = Bench()
    bench.append()
    bench.files.fail("append", number=errno.EIO)
    with pytest.raises(OSError, match="error"):
        bench.append()
    assert bench.offsets() == [0]


def test_a_leader_records_its_epoch_before_it_writes():
    """An epoch's start is in the file even if nothing is ever written in it (A9)."""
    bench = Bench()
    bench.append(2, epoch=1)
    bench.log.assign_epoch(4, 2)
    assert bench.files.read_bytes(bench.location.directory / "leader-epoch-checkpoint") == (
        b"0\n2\n1 0\n4 2\n"
    )
