"""What a broker checks on append, and what it writes in place (LOG-02, LOG-03, LOG-04, PRO-09)."""

import struct

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from minibroker.protocol.constants import SEQUENCE_MAX, ErrorCode
from minibroker.protocol.records.batch import (
    InvalidBatch,
    ProducerStamp,
    decrement_sequence,
    has_valid_crc,
    increment_sequence,
    iterate_headers,
    read_header,
    stamp,
    stamp_append_time,
    stamp_producer,
    validate_batch,
)
from minibroker.protocol.records.record import decode_records, encode_batch

RECORDS = [(1000 + n, b"key", b"value %d" % n, ()) for n in range(3)]
PRODUCER = ProducerStamp(producer_id=9, producer_epoch=1, base_sequence=4)
LARGE = 1_000_000


def write(batch: bytearray, position: int, form: str, value: int) -> bytearray:
    """Overwrite one header field and make the checksum right again."""
    struct.pack_into(form, batch, position, value)
    struct.pack_into(">I", batch, 17, crc32c(memoryview(batch)[21:]))
    return batch


def refusal(data: bytes | bytearray, size_max: int = LARGE) -> ErrorCode:
    with pytest.raises(InvalidBatch) as caught:
        validate_batch(memoryview(data), size_max)
    assert caught.value.message
    return caught.value.code


def test_a_good_batch_passes():
    """With and without a producer, the header comes back."""
    for producer in (ProducerStamp(-1, -1, -1), PRODUCER, ProducerStamp(0, 0, 0)):
        batch = encode_batch(RECORDS, producer=producer)
        header = validate_batch(memoryview(batch), len(batch))
        assert header == read_header(batch)
        assert header[9:12] == producer


def test_size_limit_is_inclusive():
    """LOG-04: exactly max.message.bytes is taken, one byte more is MESSAGE_TOO_LARGE."""
    batch = encode_batch(RECORDS)
    validate_batch(memoryview(batch), len(batch))
    assert refusal(batch, len(batch) - 1) == ErrorCode.MESSAGE_TOO_LARGE


@pytest.mark.parametrize("position", range(17, 61))
def test_a_flipped_bit_is_seen(position):
    """LOG-03: a changed bit in the checksum or anything it covers is CORRUPT_MESSAGE."""
    batch = encode_batch(RECORDS)
    batch[position] ^= 0x10
    assert refusal(batch) == ErrorCode.CORRUPT_MESSAGE


def test_a_flipped_bit_in_the_records_is_seen():
    """LOG-03: the checksum covers the last byte too."""
    batch = encode_batch(RECORDS)
    batch[-1] ^= 1
    assert refusal(batch) == ErrorCode.CORRUPT_MESSAGE
    assert not has_valid_crc(batch, read_header(batch))


def test_exactly_one_batch():
    """PRO-09: no batch, or more than one, is INVALID_RECORD."""
    batch = encode_batch(RECORDS)
    assert refusal(b"") == ErrorCode.INVALID_RECORD
    assert refusal(batch + batch) == ErrorCode.INVALID_RECORD
    assert refusal(batch + b"x") == ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("size", [1, 12, 60, 61, 80])
def test_a_cut_batch_is_corrupt(size):
    """A batch that claims more than is there is CORRUPT_MESSAGE."""
    assert refusal(encode_batch(RECORDS)[:size]) == ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize("length", [-(2**31), -13, -1, 0, 48])
def test_a_length_below_the_header_is_corrupt(length):
    """A lying length never makes a batch shorter than its header."""
    batch = encode_batch(RECORDS)
    struct.pack_into(">i", batch, 8, length)
    assert refusal(batch) == ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize("magic", [0, 1, 3, -1])
def test_other_formats_are_refused(magic):
    """Only format 2 is stored."""
    batch = write(encode_batch(RECORDS), 16, ">b", magic)
    assert refusal(batch) == ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT


def test_base_offset_must_be_zero():
    """LOG-02: a client batch with a base offset is INVALID_RECORD."""
    for offset in (1, -1, 2**40):
        assert refusal(write(encode_batch(RECORDS), 0, ">q", offset)) == ErrorCode.INVALID_RECORD


@pytest.mark.parametrize(
    ("attributes", "code"),
    [
        (5, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        (7, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        (0x08, ErrorCode.INVALID_TIMESTAMP),
        (0x10, ErrorCode.INVALID_RECORD),
        (0x20, ErrorCode.INVALID_RECORD),
        (0x40, ErrorCode.INVALID_RECORD),
        (0x80, ErrorCode.INVALID_RECORD),
        (-0x8000, ErrorCode.INVALID_RECORD),
    ],
)
def test_attributes_that_no_client_may_set(attributes, code):
    """PRO-09: unknown codecs, append time, transactions, control and unknown bits are refused."""
    assert refusal(write(encode_batch(RECORDS), 21, ">h", attributes)) == code


@pytest.mark.parametrize(("count", "delta"), [(3, 3), (3, 1), (0, -1), (-1, -2), (2**31 - 1, 2)])
def test_count_must_fit_the_offsets(count, delta):
    """PRO-09: the record count is the last offset delta + 1, and at least 1."""
    batch = write(write(encode_batch(RECORDS), 23, ">i", delta), 57, ">i", count)
    assert refusal(batch) == ErrorCode.INVALID_RECORD


@pytest.mark.parametrize(
    "producer", [(5, -1, 0), (5, 0, -1), (5, -1, -1), (-2, -1, -1), (-2, 0, 0)]
)
def test_producer_fields_go_together(producer):
    """PRO-09: with a producer id, epoch and sequence are there."""
    batch = encode_batch(RECORDS, producer=ProducerStamp(*producer))
    assert refusal(batch) == ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("numbers", [(-1, 0), (0, 0), (-1, 1), (7, -1)])
def test_without_a_producer_id_epoch_and_sequence_mean_nothing(numbers):
    """PRO-09: the batches of aiokafka (sequence 0) and kafkajs (epoch and sequence 0) are accepted
    without idempotence, and are not numbered."""
    batch = encode_batch(RECORDS, producer=ProducerStamp(-1, *numbers))
    header = validate_batch(batch, len(batch))
    assert not header.has_producer
    assert header.last_sequence == -1


@pytest.mark.parametrize("compression", range(5))
def test_a_count_that_cannot_be(compression):
    """Seven bytes a record, and no codec packs without limit: two thousand million offsets in 60
    bytes are refused by the header alone."""
    for count, is_possible in ((1, True), (2**31 - 1, False), (20_000_000, False)):
        batch = encode_batch([(1, None, b"v" * 99, ())], compression=compression)
        batch = write(write(batch, 23, ">i", count - 1), 57, ">i", count)
        if is_possible:
            assert validate_batch(batch, len(batch)).record_count == count
        else:
            assert refusal(batch) == ErrorCode.INVALID_RECORD


def test_stamping_keeps_the_checksum():
    """LOG-01: base offset and epoch are written in place, and nothing else changes."""
    batch = encode_batch(RECORDS, producer=PRODUCER)
    before = bytes(batch)
    stamp(memoryview(batch), 2**40, 77)
    header = read_header(batch)
    assert (header.base_offset, header.leader_epoch) == (2**40, 77)
    assert (header.last_offset, header.next_offset) == (2**40 + 2, 2**40 + 3)
    assert has_valid_crc(batch, header)
    assert batch[8:12] + batch[16:] == before[8:12] + before[16:]
    assert [record.offset for record in decode_records(batch, header)] == [
        2**40 + n for n in range(3)
    ]


def test_append_time_is_every_records_time():
    """With log-append time, all records read back with the broker's time."""
    batch = encode_batch(RECORDS, compression=4)
    stamp_append_time(memoryview(batch), 5_000)
    header = read_header(batch)
    assert header.is_log_append_time
    assert header.compression == 4
    assert (header.base_timestamp, header.max_timestamp) == (1000, 5_000)
    assert has_valid_crc(batch, header)
    assert {record.timestamp for record in decode_records(batch, header)} == {5_000}


def test_renumbering_gives_the_bytes_of_a_new_batch():
    """A batch stamped with another producer is the batch that was encoded with it."""
    batch = encode_batch(RECORDS)
    stamp_producer(batch, PRODUCER)
    assert batch == encode_batch(RECORDS, producer=PRODUCER)


def test_headers_are_iterated_up_to_a_cut_tail():
    """Whole batches are found with their positions, whatever part of the last one is missing."""
    batch = encode_batch(RECORDS)
    data = bytes(batch * 3)
    for size in range(len(batch) * 2, len(data)):
        found = list(iterate_headers(memoryview(data)[:size]))
        assert found == [(0, read_header(batch)), (len(batch), read_header(batch))]
    assert len(list(iterate_headers(data))) == 3
    assert list(iterate_headers(b"")) == []


def test_iterating_stops_at_an_impossible_length():
    """A length that would not move forward raises instead of looping."""
    with pytest.raises(InvalidBatch) as caught:
        list(iterate_headers(bytes(100)))
    assert caught.value.code == ErrorCode.CORRUPT_MESSAGE


def test_a_view_does_not_outlive_its_use():
    """Nothing keeps a view of the receive buffer, so that the buffer can grow again."""
    batch = encode_batch(RECORDS)
    view = memoryview(batch)
    header = validate_batch(view, LARGE)
    decode_records(view, header)
    stamp(view, 1, 1)
    stamp_append_time(view, 1)
    list(iterate_headers(view))
    view.release()
    batch.append(0)


def test_sequences_wrap_to_zero():
    """A14: the sequence after 2147483647 is 0, and before 0 it is 2147483647."""
    assert increment_sequence(SEQUENCE_MAX, 1) == 0
    assert increment_sequence(SEQUENCE_MAX - 1, 3) == 1
    assert increment_sequence(-1, 1) == 0
    assert decrement_sequence(0, 1) == SEQUENCE_MAX
    assert decrement_sequence(2, 5) == SEQUENCE_MAX - 2


@given(st.integers(0, SEQUENCE_MAX), st.integers(0, SEQUENCE_MAX))
def test_sequence_arithmetic_is_the_definition(sequence, count):
    """A14: `inc(s, n) = s + n if it fits, else n - (MAX - s) - 1`, and dec undoes it."""
    total = sequence + count
    expected = total if total <= SEQUENCE_MAX else count - (SEQUENCE_MAX - sequence) - 1
    assert increment_sequence(sequence, count) == expected
    assert decrement_sequence(expected, count) == sequence


def test_a_batch_without_a_producer_has_no_sequence():
    """-1 stays -1; it is no number to count from."""
    header = read_header(encode_batch(RECORDS))
    assert not header.has_producer
    assert header.last_sequence == -1
