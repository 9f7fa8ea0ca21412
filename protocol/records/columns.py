"""The records of a batch, read into columns: all offsets, all timestamps, all keys and so on.

Columns, because most of them need no work for a record: offsets nearly always count up, times are
often one time, keys and headers are often missing. They begin as what is usual, and only what
differs is written. Who wants rows zips them, straight into the tuple wanted.

One loop goes over the records, and calls no function on its way while numbers take one byte or
two. Where records of one shape follow each other (the same lengths), the rest of such a run is
compared and cut a column at a time, inside the interpreter. Measured per 100-byte record, with the
row: 0.7 us, in a run 0.25 us.

Reading trusts nothing: lengths are checked against the record, the record against the batch, and
whatever is wrong raises `InvalidBatch`, never another exception. Memory for the columns is taken
only for as many records as could be there.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple, NoReturn, TypeAlias

from minibroker.protocol.constants import BATCH_HEADER_BYTES, MAGIC, ErrorCode
from minibroker.protocol.records.batch import BatchHeader, InvalidBatch
from minibroker.protocol.records.compression import NONE, decompress
from minibroker.protocol.records.varint import (
    ONE_BYTE_COUNT,
    SMALL_COUNT,
    VARINT,
    VARINT_BYTES_MAX,
    VARLONG_BYTES_MAX,
    decode_unsigned,
    decode_varint,
)
from minibroker.protocol.types import Buffer

Headers: TypeAlias = Sequence[tuple[str, bytes | None]]

RECORD_BYTES_MIN: Final = 7  # one each: length, attributes, time, offset, key, value, headers
RUN_COUNT_MIN: Final = 8  # fewer are read faster one by one
# The bytes of the offset deltas 0, 1, 2 ...; of the first few, which take one byte, FIRST is all.
_FIRST: Final = bytes(number[0] for number in VARINT)
_LAST: Final = bytes(number[-1] for number in VARINT)
_HIGH: Final = bytes(range(0x80, 0x100))


class Columns(NamedTuple):
    """The fields of all records of a batch, in order; timestamps are ms since the epoch."""

    offsets: list[int]
    timestamps: list[int]
    keys: list[bytes | None]
    values: list[bytes | None]
    headers: list[Headers]


class _Shape(NamedTuple):
    """Where in the data a record and its parts begin; `end` is behind it."""

    start: int
    time_at: int  # behind the length and the attributes
    delta_at: int
    key_at: int  # its length
    value_at: int  # its content
    end: int


def decode_columns(batch: Buffer, header: BatchHeader) -> Columns:
    """The records of the batch that starts at byte 0 of `batch`; its CRC is not looked at.

    Raises InvalidBatch: CORRUPT_MESSAGE for bytes that cannot be read, INVALID_RECORD for records
    that contradict the header.
    """
    if header.magic != MAGIC:
        raise InvalidBatch(
            ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, f"format {header.magic}, only 2 is read"
        )
    if not BATCH_HEADER_BYTES <= header.size <= len(batch):
        _refuse(f"a batch of {header.size} bytes in {len(batch)}")
    packed = memoryview(batch)[BATCH_HEADER_BYTES : header.size]
    try:
        if header.compression == NONE:
            body = bytes(packed)
        else:
            body = decompress(header.compression, packed)
        columns = _decode_body(body, header)
    except IndexError:
        _refuse("the records are cut short")
    except ValueError as error:  # a number too large, a name that is no UTF-8, a corrupt block
        _refuse(str(error))
    if columns.offsets and columns.offsets[-1] > header.last_offset:
        raise InvalidBatch(
            ErrorCode.INVALID_RECORD,
            f"offset {columns.offsets[-1]} in a batch that ends at {header.last_offset}",
        )
    if header.is_log_append_time:
        columns = columns._replace(timestamps=[header.max_timestamp] * header.record_count)
    return columns


def _refuse(message: str) -> NoReturn:
    raise InvalidBatch(ErrorCode.CORRUPT_MESSAGE, message) from None


def _decode_body(data: bytes, header: BatchHeader) -> Columns:
    """All records. A number has one byte or two, which are added in place; rarely it has more."""
    count, base_timestamp = header.record_count, header.base_timestamp
    columns = _expect(data, header)
    offsets, timestamps, keys, values, headers = columns
    long = _decode_long
    at = index = size = 0
    last_delta = -1
    while index < count:
        start, size_before = at, size
        if (size := data[at]) > 0x7F and (size := size + (data[at := at + 1] << 7) - 0x80) > 0x3FFF:
            size, at = long(data, start, VARINT_BYTES_MAX)
        time_at = at = at + 2  # the attributes between mean nothing
        if (time := data[at]) > 0x7F and (time := time + (data[at := at + 1] << 7) - 0x80) > 0x3FFF:
            time, at = long(data, time_at, VARLONG_BYTES_MAX)
        if time:
            timestamps[index] = base_timestamp + (time >> 1 ^ -(time & 1))
        delta_at = at = at + 1
        if (pair := data[at]) > 0x7F and (pair := pair + (data[at := at + 1] << 7) - 0x80) > 0x3FFF:
            pair, at = long(data, delta_at, VARINT_BYTES_MAX)
        if (delta := pair >> 1) <= last_delta or pair & 1:
            raise ValueError("offsets do not ascend")
        if delta != index:
            offsets[index] += delta - index
        last_delta = delta
        key_at = at = at + 1
        if (pair := data[at]) > 0x7F:
            pair, at = long(data, at, VARINT_BYTES_MAX)
        at += 1
        if not pair & 1:
            keys[index] = data[at : (at := at + (pair >> 1))]
        elif pair != 1:
            raise ValueError("a negative length")
        if (pair := data[at]) > 0x7F and (pair := pair + (data[at := at + 1] << 7) - 0x80) > 0x3FFF:
            pair, at = long(data, at - 1, VARINT_BYTES_MAX)
        value_at = at = at + 1
        if not pair & 1:
            values[index] = data[at : (at := at + (pair >> 1))]
        elif pair != 1:
            raise ValueError("a negative length")
        if data[at]:
            headers[index], at = _decode_headers(data, at)
        else:
            at += 1
        if (at - time_at + 1) << 1 != size:
            raise ValueError("a record's length is wrong")
        index += 1
        if size == size_before:
            shape = _Shape(start, time_at, delta_at, key_at, value_at, at)
            run = _fill_run(data, columns, shape, index, base_timestamp)
            index, at, last_delta = index + run, at + run * (at - start), last_delta + run
    if at != len(data):
        raise ValueError("bytes behind the last record")
    return columns


def _expect(data: bytes, header: BatchHeader) -> Columns:
    """What the columns are where nothing is said: offsets count up, one time, no key."""
    count = header.record_count
    if count < 0 or count * RECORD_BYTES_MIN > len(data):
        raise ValueError(f"{count} records in {len(data)} bytes")
    return Columns(
        offsets=[*range(header.base_offset, header.base_offset + count)],
        timestamps=[header.base_timestamp] * count,
        keys=[None] * count,
        values=[None] * count,
        headers=[()] * count,
    )


def _decode_long(data: bytes, at: int, bytes_max: int) -> tuple[int, int]:
    """A number of any length, and the position of its last byte."""
    number, behind = decode_unsigned(data, at, bytes_max)
    return number, behind - 1


def _decode_headers(data: bytes, at: int) -> tuple[Headers, int]:
    """The headers of one record, and the position behind them."""
    header_count, at = decode_varint(data, at, VARINT_BYTES_MAX)
    if header_count < 0:
        raise ValueError("a negative number of headers")
    headers = []
    for _ in range(header_count):
        name, at = _decode_bytes(data, at)
        if name is None:
            raise ValueError("a header without a name")
        content, at = _decode_bytes(data, at)
        headers.append((name.decode(), content))
    return headers, at


def _decode_bytes(data: bytes, at: int) -> tuple[bytes | None, int]:
    """A name or a content, and the position behind it."""
    size, at = decode_varint(data, at, VARINT_BYTES_MAX)
    if size < -1:
        raise ValueError("a negative length")
    return (None, at) if size < 0 else (data[at : at + size], at + size)


# -- runs


class _Run:
    """The records from `index` on, all of the shape of the one before: how to cut columns."""

    def __init__(self, data: bytes, shape: _Shape, count: int) -> None:
        self.data = data
        self.stride = shape.end - shape.start
        self.count = count

    def column(self, position: int) -> bytes:
        """The bytes at a position of the shape, one of each record."""
        first = position + self.stride
        return self.data[first : first + self.count * self.stride : self.stride]

    def shorten(self, position: int) -> None:
        """End the run where that byte differs from what it is in the shape."""
        column = self.column(position)
        self.count -= len(column.lstrip(self.data[position : position + 1]))

    def pieces(self, position: int, size: int) -> list[bytes | None]:
        """The `size` bytes from a position of the shape on, of each record."""
        data, stride = self.data, self.stride
        first = position + stride
        return [data[at : at + size] for at in range(first, first + self.count * stride, stride)]


def _fill_run(data: bytes, columns: Columns, shape: _Shape, index: int, base_timestamp: int) -> int:
    """Read the records from `index` on that have the same lengths; how many they are.

    `shape` is that of the record before them, which is the last one read. All bytes of a run but
    attributes, times, keys and values must be what they are there, and offsets count up.
    """
    start, time_at, delta_at, key_at, value_at, end = shape
    stride = end - start
    sample = data[end : end + RUN_COUNT_MIN * stride : stride]
    if sample != data[start : start + 1] * RUN_COUNT_MIN:
        return 0
    key, value = columns.keys[index - 1], columns.values[index - 1]
    key_end = key_at + 1 + len(key or b"")
    if value is None or end - 1 != value_at + len(value) or data[key_at] > 0x7F:
        return 0
    if data[delta_at:key_at] != VARINT[min(index, SMALL_COUNT) - 1]:
        return 0
    count_max = ONE_BYTE_COUNT if key_at - delta_at == 1 else SMALL_COUNT
    count = min(len(columns.values), count_max) - index
    run = _Run(data, shape, min(count, (len(data) - end) // stride))
    for position in (*range(start, time_at - 1), key_at, *range(key_end, value_at), end - 1):
        run.shorten(position)
    times = _read_times(run, time_at, delta_at - time_at)
    until = index + run.count
    deltas = _FIRST[index:until], _LAST[index:until]
    if times is None or deltas != (run.column(delta_at), run.column(key_at - 1)):
        return 0
    if any(times):
        columns.timestamps[index:until] = [base_timestamp + (n >> 1 ^ -(n & 1)) for n in times]
    if key is not None:
        columns.keys[index:until] = run.pieces(key_at + 1, len(key))
    columns.values[index:until] = run.pieces(value_at, len(value))
    return run.count


def _read_times(run: _Run, time_at: int, size: int) -> Sequence[int] | None:
    """The times of a run as they are written; None if they do not all have that many bytes."""
    first, last = run.column(time_at), run.column(time_at + size - 1)
    if not last.isascii():
        return None
    if size == 1:
        return first
    if size > 2 or first.translate(None, _HIGH):
        return None
    return [low + (high << 7) - 0x80 for low, high in zip(first, last, strict=True)]
