"""Encodes the records of a batch for a producer and decodes them for a consumer.

The encoding loop runs for every record, in clients only. So it calls no function in the common
case: numbers come from tables, and only rare records (headers, huge values, negative deltas) take a
slower path. Measured per 100-byte record: 0.25 us. `encode_values` is for the most common batch,
values with one timestamp and without keys: its loop runs inside the interpreter, one column of
pieces at a time, and takes 0.12 us. The decoding is in columns.py.
"""

from collections.abc import Generator, Iterable, Iterator, Sequence
from itertools import chain, count, islice, repeat
from typing import NamedTuple, TypeAlias

from minibroker.protocol.constants import (
    BATCH_HEADER_BYTES,
    BATCH_OVERHEAD_BYTES,
    MAGIC,
    NO_EPOCH,
    NO_TIMESTAMP,
)
from minibroker.protocol.records.batch import (
    NO_PRODUCER,
    BatchHeader,
    ProducerStamp,
    write_header,
)
from minibroker.protocol.records.columns import Headers, decode_columns
from minibroker.protocol.records.compression import NONE, compress
from minibroker.protocol.records.varint import (
    ONE_BYTE_COUNT,
    SMALL_COUNT,
    VARINT,
    encode_varint,
)
from minibroker.protocol.types import Buffer

# timestamp (ms), key, value, headers
RecordToSend: TypeAlias = tuple[int, bytes | None, bytes | None, Headers]


class Record(NamedTuple):
    """One record of a partition; `timestamp` is ms since the epoch."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers


# -- writing

_NULL = encode_varint(-1)
_NO_ATTRIBUTES = b"\x00"
_NO_HEADERS = b"\x00"
# Indexed by a record's length: length, attributes. Indexed by a value's length: no key, length.
_START = [number + _NO_ATTRIBUTES for number in VARINT]
_KEYLESS = [_NULL + number for number in VARINT]
# For values up to this size, the record's length is in the table too.
_TABLE_SIZE_MAX = SMALL_COUNT - 16


class _KeylessStart(dict[int, bytes]):
    """Maps a value's size to the end of one record and the start of the next: no headers; length,
    attributes and time delta 0.

    It is for records without key and headers whose offset takes `offset_size` bytes. It is filled
    on first use of a size, because most programs use few sizes and a broker uses none.
    """

    def __init__(self, offset_size: int) -> None:
        self._offset_size = offset_size

    def __missing__(self, size: int) -> bytes:
        time = VARINT[0]
        length = len(_NO_ATTRIBUTES + time + _KEYLESS[size] + _NO_HEADERS) + self._offset_size
        self[size] = made = _NO_HEADERS + _START[length + size] + time
        return made


_KEYLESS_START = (_KeylessStart(1), _KeylessStart(2))


def encode_batch(
    records: Sequence[RecordToSend],
    *,
    compression: int = NONE,
    producer: ProducerStamp = NO_PRODUCER,
    with_crc: bool = True,
) -> bytearray:
    """Return a batch of at least one record, as a producer sends it.

    Without `with_crc` it has no valid CRC until `stamp_producer` has computed it.
    """
    assert records, "a batch has at least one record"
    parts, max_timestamp = encode_records(records, records[0][0], _count_up())
    times = (records[0][0], max_timestamp)
    return _join(
        parts, len(records), times, compression=compression, producer=producer, with_crc=with_crc
    )


def encode_batch_in_turns(
    lists: Iterable[Sequence[RecordToSend]],
) -> Generator[None, None, bytearray]:
    """Return a batch as `encode_batch` does, of the records in all lists; pause after each list."""
    parts: list[bytes] = []
    count, first_timestamp, max_timestamp = 0, NO_TIMESTAMP, NO_TIMESTAMP
    for records in lists:
        if not count:
            first_timestamp = records[0][0]
        encoded, newest = encode_records(records, first_timestamp, _count_up(count))
        parts.append(b"".join(encoded))
        count, max_timestamp = count + len(records), max(max_timestamp, newest)
        yield
    assert count, "a batch has at least one record"
    times = (first_timestamp, max_timestamp)
    return _join(parts, count, times, compression=NONE, with_crc=True)


def encode_values(
    values: Sequence[bytes], timestamp_ms: int, *, compression: int = NONE, with_crc: bool = True
) -> bytearray:
    """Return the batch of at least one value, all with one timestamp, without keys and headers."""
    sizes = list(map(len, values))
    if len(values) > SMALL_COUNT or max(sizes) > _TABLE_SIZE_MAX:
        records: list[RecordToSend] = [(timestamp_ms, None, value, ()) for value in values]
        return encode_batch(records, compression=compression, with_crc=with_crc)
    start, start_behind = _KEYLESS_START
    parts: list[bytes] = [_NO_HEADERS] * (4 * len(values) + 1)  # the last one stays
    parts[0:-1:4] = [
        *map(start.__getitem__, sizes[:ONE_BYTE_COUNT]),
        *map(start_behind.__getitem__, sizes[ONE_BYTE_COUNT:]),
    ]
    parts[0] = parts[0].removeprefix(_NO_HEADERS)  # no record is before it
    parts[1::4] = VARINT[: len(values)]
    parts[2::4] = map(_KEYLESS.__getitem__, sizes)
    parts[3::4] = values
    times = (timestamp_ms, timestamp_ms)
    return _join(parts, len(values), times, compression=compression, with_crc=with_crc)


def _join(
    parts: list[bytes],
    count: int,
    times: tuple[int, int],
    *,
    compression: int,
    producer: ProducerStamp = NO_PRODUCER,
    with_crc: bool,
) -> bytearray:
    """Return the batch of `count` encoded records; `times`: first and largest timestamp."""
    if compression != NONE:
        parts = [compress(compression, b"".join(parts))]
    parts.insert(0, bytes(BATCH_HEADER_BYTES))
    batch = bytearray().join(parts)
    size = len(batch) - BATCH_OVERHEAD_BYTES
    # A plain tuple in the order of BatchHeader: creating a BatchHeader takes 2 us.
    header = (0, size, NO_EPOCH, MAGIC, 0, compression, count - 1, *times, *producer, count)
    write_header(batch, header, with_crc=with_crc)
    return batch


def _count_up(first: int = 0) -> Iterator[bytes]:
    """Return the encoded offset deltas of records that follow each other."""
    return chain(islice(VARINT, first, None), map(encode_varint, count(max(first, SMALL_COUNT))))


def encode_records(
    records: Sequence[RecordToSend], base: int, offsets: Iterable[bytes]
) -> tuple[list[bytes], int]:
    """Return the bytes of all records, in pieces, and their largest timestamp, at least `base`.

    `base` is the base timestamp of the batch, `offsets` are the encoded offset deltas.
    """
    varint, start, keyless = VARINT, _START, _KEYLESS
    last = newest = base
    time = varint[0]
    parts: list[bytes] = []
    for (timestamp, key, value, headers), offset in zip(records, offsets, strict=False):
        if timestamp != last:
            last, delta = timestamp, timestamp - base
            time = varint[delta] if 0 <= delta < SMALL_COUNT else encode_varint(delta)
            newest = max(newest, timestamp)
        try:
            if headers or value is None:
                parts += _encode_record(key, value, headers, time + offset)
            elif key is None:
                size = len(value)
                sizes = keyless[size]
                length = len(time) + len(offset) + len(sizes) + size + 2
                parts += (start[length], time, offset, sizes, value, _NO_HEADERS)
            else:
                value_size = varint[len(value)]
                deltas = time + offset + varint[len(key)]
                length = len(deltas) + len(key) + len(value_size) + len(value) + 2
                parts += (start[length], deltas, key, value_size, value, _NO_HEADERS)
        except IndexError:  # a length beyond the tables
            parts += _encode_record(key, value, headers, time + offset)
    return parts, newest


def _encode_record(
    key: bytes | None, value: bytes | None, headers: Headers, deltas: bytes
) -> list[bytes]:
    """Return the bytes of one record, in pieces; for all records, but slower."""
    parts = [_NO_ATTRIBUTES, deltas, *_encode_bytes(key), *_encode_bytes(value)]
    parts.append(encode_varint(len(headers)))
    for name, content in headers:
        parts += (*_encode_bytes(name.encode()), *_encode_bytes(content))
    return [encode_varint(sum(map(len, parts))), *parts]


def _encode_bytes(content: bytes | None) -> tuple[bytes, ...]:
    return (_NULL,) if content is None else (encode_varint(len(content)), content)


# -- reading


def decode_records(batch: Buffer, header: BatchHeader) -> list[Record]:
    """Return the records of the batch that starts at byte 0 of `batch`; its CRC is not checked.

    Raises InvalidBatch: CORRUPT_MESSAGE for bytes that cannot be read, INVALID_RECORD for records
    that contradict the header.
    """
    # Creating each tuple in C takes a third of the time of calling the class.
    rows = zip(*decode_columns(batch, header), strict=True)
    return list(map(tuple.__new__, repeat(Record), rows))
