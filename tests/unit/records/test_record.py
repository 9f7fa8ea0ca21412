"""Records come back as they were sent, and bytes that are no records are refused."""

import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker.protocol.constants import ErrorCode
from minibroker.protocol.records.batch import InvalidBatch, has_valid_crc, read_header
from minibroker.protocol.records.record import (
    RecordToSend,
    decode_records,
    encode_batch,
    encode_batch_in_turns,
    encode_values,
)

contents = st.one_of(st.none(), st.binary(max_size=200))
records = st.tuples(
    st.integers(-(2**62), 2**62) | st.integers(1000, 1100),
    contents,
    contents,
    st.lists(st.tuples(st.text(max_size=9), contents), max_size=3).map(tuple),
)


def sent(batch):
    """What was sent, read back from the batch."""
    header = read_header(batch)
    return [(r.timestamp, r.key, r.value, tuple(r.headers)) for r in decode_records(batch, header)]


@given(st.lists(records, min_size=1, max_size=30), st.integers(0, 4))
def test_what_is_sent_comes_back(batch_records, compression):
    """Any keys, values, headers and times, with every codec."""
    batch = encode_batch(batch_records, compression=compression)
    header = read_header(batch)
    assert has_valid_crc(batch, header)
    assert header.max_timestamp == max(record[0] for record in batch_records)
    assert header.base_timestamp == batch_records[0][0]
    assert sent(batch) == batch_records


@pytest.mark.parametrize("size", [0, 1, 63, 64, 8180, 8191, 8192, 8193, 1_100_000])
def test_sizes_around_each_varint_length(size):
    """Keys and values at the borders between one, two, three and four bytes of length."""
    content = bytes(size)
    batch_records = [(1, key, content, ()) for key in (None, b"k", content)]
    batch_records += [(1, content, b"v", ()), (1, content, None, ())]
    assert sent(encode_batch(batch_records)) == batch_records


def test_more_records_than_the_tables_have():
    """Offsets beyond two bytes, and times beyond two bytes, in one batch."""
    batch_records = [(n * 3, None, b"%d" % n, ()) for n in range(20_000)]
    batch = encode_batch(batch_records)
    assert sent(batch) == batch_records
    assert decode_records(batch, read_header(batch))[-1].offset == 19_999


def test_times_may_go_back():
    """Deltas are signed: a record older than the first one keeps its time."""
    batch_records = [(t, None, b"v", ()) for t in (10_000, 9_000, 20_000_000, 10_000, -1, 0)]
    assert sent(encode_batch(batch_records)) == batch_records


def test_a_compacted_batch_may_have_gaps():
    """After compaction a batch has fewer records than offsets; each keeps its own."""
    batch = bytearray(encode_batch([(1, None, b"a", ()), (1, None, b"b", ())]))
    batch[61 + 8 + 3] = 10  # the second record's offset delta: 5
    struct.pack_into(">i", batch, 23, 7)
    header = read_header(batch)
    assert [record.offset for record in decode_records(batch, header)] == [0, 5]
    assert header.next_offset == 8


def refusal(batch: bytes | bytearray) -> ErrorCode:
    with pytest.raises(InvalidBatch) as caught:
        decode_records(batch, read_header(batch))
    assert caught.value.message
    return caught.value.code


def with_body(*body: int, count: int = 1) -> bytearray:
    """A batch of `count` records whose records are these bytes."""
    batch = encode_batch([(1, None, b"", ())] * count)[:61] + bytes(body)
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    return batch


@pytest.mark.parametrize(
    "body",
    [
        pytest.param((), id="nothing"),
        pytest.param((12, 0, 0, 0, 1, 1, 0, 9), id="bytes behind the last"),
        pytest.param((14, 0, 0, 0, 1, 1, 0), id="record longer than its fields"),
        pytest.param((10, 0, 0, 0, 1, 1, 0), id="record shorter than its fields"),
        pytest.param((13, 0, 0, 0, 1, 1, 0), id="negative length of a record"),
        pytest.param((12, 0, 0, 1, 1, 1, 0), id="negative offset delta"),
        pytest.param((12, 0, 0, 0, 3, 1, 0), id="negative length of a key"),
        pytest.param((12, 0, 0, 0, 1, 3, 0), id="negative length of a value"),
        pytest.param((14, 0, 0, 0, 1, 0x81, 1, 0), id="long negative length of a value"),
        pytest.param((12, 0, 0, 0, 1, 1, 1), id="negative number of headers"),
        pytest.param((16, 0, 0, 0, 1, 1, 2, 1, 1), id="header without a name"),
        pytest.param((18, 0, 0, 0, 1, 1, 2, 2, 0xFF, 1), id="name that is no UTF-8"),
        pytest.param((12, 0, 0, 0, 1, 200, 1), id="value beyond the end"),
        pytest.param((12, 0, 0, 0, 100, 1, 0), id="key beyond the end"),
        pytest.param((12, 0, 0x80, 0x80, 0x80), id="number cut short"),
        pytest.param((0xFF,) * 11, id="number without an end"),
        pytest.param((0xFF, 0xFF, 0xFF, 0xFF, 0x1F), id="length of 33 bits"),
    ],
)
def test_malformed_records_are_corrupt(body):
    """Whatever cannot be read is CORRUPT_MESSAGE, and never another exception."""
    assert refusal(with_body(*body)) == ErrorCode.CORRUPT_MESSAGE


def test_offsets_must_ascend():
    """Two records of one offset are refused: one offset, two values is never shown."""
    record = (12, 0, 0, 0, 1, 1, 0)
    assert refusal(with_body(*record, *record, count=2)) == ErrorCode.CORRUPT_MESSAGE


def test_an_offset_beyond_the_batch_is_refused():
    """A record must not claim an offset that belongs to the next batch."""
    assert refusal(with_body(12, 0, 0, 2, 1, 1, 0)) == ErrorCode.INVALID_RECORD


def test_a_count_that_lies_is_refused():
    """More records claimed than there are; it costs no more than those that are there."""
    batch = encode_batch([(1, None, b"v", ())])
    struct.pack_into(">i", batch, 57, 2**31 - 1)
    assert refusal(batch) == ErrorCode.CORRUPT_MESSAGE


def test_a_batch_beyond_its_buffer_is_refused():
    """The header claims more bytes than there are, or fewer than a header."""
    batch = encode_batch([(1, None, b"v", ())])
    assert refusal(batch[:-1]) == ErrorCode.CORRUPT_MESSAGE
    struct.pack_into(">i", batch, 8, -100)
    assert refusal(batch) == ErrorCode.CORRUPT_MESSAGE


def test_another_format_is_refused():
    """Old message formats are named as such."""
    batch = encode_batch([(1, None, b"v", ())])
    batch[16] = 1
    assert refusal(batch) == ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT


def test_what_follows_the_batch_is_not_read():
    """A fetched run of batches is decoded one after the other, from views into one buffer."""
    batch = encode_batch([(1, None, b"v", ())])
    assert len(decode_records(memoryview(batch + b"more"), read_header(batch))) == 1


def test_an_empty_batch_has_no_records():
    """Compaction may leave a batch without records, to keep its offsets."""
    batch = with_body()
    struct.pack_into(">i", batch, 57, 0)
    assert decode_records(batch, read_header(batch)) == []


@pytest.mark.parametrize("size", [0, 1, 63, 64, 8170, 8175, 8176, 8192, 100_000])
@pytest.mark.parametrize("count", [1, 63, 64, 65])
def test_values_alone_make_the_same_batch(size, count):
    """The short way for values of one time and the long way for any records agree to the byte."""
    values = [bytes(max(0, size - n % 2)) for n in range(count)]
    long_way = encode_batch([(7, None, value, ()) for value in values])
    assert encode_values(values, 7) == long_way


def test_more_values_than_the_tables_have():
    """Offsets of three bytes, and a codec, by the short way too."""
    values = [b"%d" % n for n in range(20_000)]
    assert sent(encode_values(values, 7, compression=4)) == [(7, None, v, ()) for v in values]


@pytest.mark.parametrize("size", [1, 3, 5000])
def test_a_batch_encoded_in_turns_is_the_same(size: int) -> None:
    """However many records each turn encodes, beyond the numbers that tables hold, too."""
    records: list[RecordToSend] = [
        (1000 + number % 7, b"k" * (number % 3) or None, b"v" * (number % 5) or None, ())
        for number in range(9000)
    ]
    encoding = encode_batch_in_turns(records[at : at + size] for at in range(0, 9000, size))
    pauses = 0
    while True:
        try:
            next(encoding)
        except StopIteration as end:
            batch = end.value
            break
        pauses += 1
    assert batch == encode_batch(records)
    assert pauses == math.ceil(9000 / size)
