"""What compaction keeps of a batch: its records, its header, and what stands for the rest."""

from itertools import compress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker.protocol.records.batch import (
    NO_PRODUCER,
    BatchHeader,
    ProducerStamp,
    has_valid_crc,
    read_header,
    stamp,
    stamp_append_time,
)
from minibroker.protocol.records.columns import decode_columns
from minibroker.protocol.records.compression import CODEC_NAMES
from minibroker.protocol.records.record import decode_records, encode_batch
from minibroker.protocol.records.retained import empty, filler, retain

TEXTS = st.one_of(st.none(), st.binary(max_size=300))
HEADERS = st.lists(st.tuples(st.text(max_size=3), TEXTS), max_size=2)
RECORDS = st.lists(st.tuples(st.integers(0, 2**41), TEXTS, TEXTS, HEADERS), min_size=1, max_size=30)


def batch_of(records, codec: int = 0) -> tuple[bytes, BatchHeader]:
    batch = encode_batch(records, compression=codec, producer=ProducerStamp(7, 1, 40))
    stamp(batch, 1_000, 3)
    return bytes(batch), read_header(batch)


@given(RECORDS, st.data(), st.sampled_from(range(len(CODEC_NAMES))), st.booleans())
def test_what_is_kept_is_as_it_was(records, data, codec, has_horizon):
    """The kept records have their offsets, times, keys, values and headers; the batch has its
    offsets, epoch, producer, sequence and codec, and a right checksum."""
    batch, header = batch_of(records, codec)
    some = st.lists(st.booleans(), min_size=len(records), max_size=len(records)).filter(any)
    is_kept = data.draw(some)
    horizon = 2**40 if has_horizon else None
    kept = bytes(retain(header, decode_columns(batch, header), is_kept, horizon))
    after = read_header(kept)
    expected = [*compress(decode_records(batch, header), is_kept)]
    assert [tuple(one) for one in decode_records(kept, after)] == [tuple(one) for one in expected]
    assert has_valid_crc(kept, after)
    assert after.size == len(kept)
    same = ("base_offset", "last_offset", "leader_epoch", "producer_id", "producer_epoch")
    for name in (*same, "base_sequence", "last_sequence", "compression"):
        assert getattr(after, name) == getattr(header, name), name
    assert after.max_timestamp == max(one.timestamp for one in expected)
    assert after.record_count == sum(is_kept)
    assert after.delete_horizon_ms == horizon
    again = retain(after, decode_columns(kept, after), [True] * sum(is_kept))
    assert read_header(again).delete_horizon_ms == horizon


def test_a_batch_with_the_time_of_its_append_keeps_it():
    """LogAppendTime: all records have the batch's time, with a delete horizon, too."""
    batch = bytearray(encode_batch([(5, b"k", None, ()), (6, b"l", b"v", ())]))
    stamp_append_time(batch, 9_000)
    header = read_header(batch)
    kept = retain(header, decode_columns(batch, header), [True, False], 50_000)
    (record,) = decode_records(kept, read_header(kept))
    assert (record.timestamp, record.value) == (9_000, None)


def test_an_empty_batch_stands_for_its_producer():
    """It has no records, and the offsets and sequences of the batch."""
    _, header = batch_of([(5, b"k", b"v", ())] * 4, codec=2)
    stub = empty(header)
    after = read_header(stub)
    assert (after.record_count, after.size, after.compression) == (0, len(stub), 0)
    assert (after.next_offset, after.last_sequence) == (1_004, 43)
    assert has_valid_crc(stub, after)
    assert decode_records(stub, after) == []


@pytest.mark.parametrize("last", [7, 8, 2**31 + 6])
def test_a_filler_covers_offsets(last: int):
    """It has no records, no producer and no time."""
    covering = filler(7, last, 5)
    after = read_header(covering)
    assert (after.base_offset, after.last_offset, after.leader_epoch) == (7, last, 5)
    assert (after.producer_id, after.producer_epoch, after.base_sequence) == NO_PRODUCER
    assert (after.max_timestamp, after.record_count) == (-1, 0)
    assert has_valid_crc(covering, after)
    assert decode_records(covering, after) == []
