"""What a follower's log takes from a leader, and what it does not believe (LOG-06, FOL-14)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker.broker.log.admission import UnexpectedOffset, check_batches
from minibroker.protocol.constants import INT64_MAX, ErrorCode
from minibroker.protocol.records.batch import InvalidBatch, read_header, write_header
from tests.unit.log.workbench import NOW, Bench, stored


def made(base_offset: int = 0, **fields: int) -> bytes:
    """A stored batch with other header fields, and the checksum that belongs to them."""
    batch = bytearray(stored(base_offset))
    write_header(batch, tuple(read_header(batch)._replace(**fields)))
    return bytes(batch)


@pytest.mark.parametrize(
    ("records", "reason"),
    [
        (made(magic=1), "format 1"),
        (made(last_offset_delta=-1), "last offset delta -1"),
        (made(leader_epoch=-1), "leader epoch -1"),
        (made(leader_epoch=-7), "leader epoch -7"),
        (made(base_offset=-1), "offset -1"),
        (made(base_offset=INT64_MAX), f"offset {INT64_MAX}"),
        (made(base_offset=INT64_MAX - 1, last_offset_delta=1), f"offset {INT64_MAX - 1}"),
        (made(batch_length=-1), "11 bytes"),
        (made(batch_length=INT64_MAX >> 33), "no whole batch"),
        (made()[:-1], "no whole batch"),
        (made()[:60], "no whole batch"),
        (stored(5) + stored(4), "offset 4 instead of 6"),
        (stored(0, 3) + stored(2), "offset 2 instead of 3"),
        (stored(0, epoch=4) + stored(1, epoch=3), "leader epoch 3 after 4"),
        (stored(0) + stored(1)[:-1] + b"?", "checksum of the batch at offset 1"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_no_batch_is_refused_whole(records, reason):
    """Offsets, epochs and sizes are believed only as far as they are possible (FOL-14)."""
    with pytest.raises(InvalidBatch, match=reason) as caught:
        check_batches(memoryview(records))
    assert caught.value.code == ErrorCode.CORRUPT_MESSAGE


def test_an_epoch_older_than_the_logs_newest_is_refused():
    """It would drop the newer epochs; the leader cannot have sent it (A9)."""
    bench = Bench()
    bench.follow(stored(0, epoch=3))
    with pytest.raises(InvalidBatch, match="leader epoch 2 after 3"):
        bench.follow(stored(1, epoch=2))
    assert bench.log.log_end == 1
    assert bench.log.epochs.entries == ((3, 0),)


SOUND = stored(0, 2, epoch=1) + stored(2, epoch=1, value=b"more") + stored(3, 3, epoch=2)


@given(st.lists(st.integers(0, len(SOUND) * 8 - 1), min_size=1, max_size=4))
def test_flipped_bits_never_hurt_the_log(flips):
    """Either they are refused and nothing is written, or the log is one that can be read again."""
    records = bytearray(SOUND)
    for bit in flips:
        records[bit // 8] ^= 1 << bit % 8
    bench = Bench()
    try:
        bench.follow(bytes(records))
    except (InvalidBatch, UnexpectedOffset):
        assert bench.log.log_end == 0
    else:
        headers = bench.headers()
        assert bench.log.log_end == headers[-1].next_offset
        bench.log.truncate_to(headers[-1].base_offset, NOW)
        bench.reopen_killed()
        assert bench.headers() == headers[:-1]
