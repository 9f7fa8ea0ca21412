"""What a broker can say cheaply about the records of a batch that a producer sent.

A batch with a right CRC may still be one that no client can decode: a compressed block that is
none, a count that is not the count, a record that ends elsewhere than its length says. Every reader
would stop in front of it, so the broker refuses it. To read every record would cost several times
what the append itself costs. So a batch is unpacked, and its first and its last record are read in
full. The last one is found without a walk if it has the batch's largest timestamp, as it nearly
always has: its first bytes are then known, and its length leads exactly to the end. Otherwise the
check walks from length to length.

That finds what faulty clients were seen to send. Nonsense inside a record in the middle is not
found. Neither is what is beyond the `Budget` of a turn, which bounds the time that it takes: the
caller asks again in another turn, and has a batch that is larger than a whole budget examined by a
worker (`examine_large`).

The header's largest timestamp is compared in the same way. If the last record has it, and the first
is not later, it counts as the batch's. Otherwise the walk computes it: some clients leave it at -1
or 0, and retention and look-ups by time go by it.
"""

from typing import Final, NamedTuple

from minibroker.protocol.constants import BATCH_HEADER_BYTES, INT64_MAX
from minibroker.protocol.records.batch import COMPRESSION_MASK, RECORD_BYTES_MIN, BatchHeader
from minibroker.protocol.records.compression import (
    NONE,
    UNPACKED_BYTES_MAX,
    CorruptBlock,
    TooLargeUnpacked,
    unpack,
)
from minibroker.protocol.records.varint import (
    SMALL_COUNT,
    VARINT,
    VARINT_BYTES_MAX,
    VARLONG_BYTES_MAX,
    decode_unsigned,
    decode_varint,
    encode_varint,
)
from minibroker.protocol.types import Buffer

UNPACKED_BYTES: Final = 4 * 1024 * 1024  # in one turn: some milliseconds
WALKED_RECORDS: Final = 65_536  # in one turn: some milliseconds
_HEADER_COST: Final = 4  # a header takes as long as that many records of a walk, or longer
_TAIL_BYTES_MIN: Final = 512
_GUESSES: Final = 4
_NULL: Final = 1  # the length -1, as a varint
_OF_ONE_BYTE: Final = [byte >> 1 ^ -(byte & 1) for byte in range(0x80)]  # the varints


class Budget:
    """How much may still be unpacked and walked in one turn of a request."""

    __slots__ = ("bytes", "records")

    def __init__(self, unpacked: int = UNPACKED_BYTES, records: int = WALKED_RECORDS) -> None:
        self.bytes = unpacked
        self.records = records


class Examined(NamedTuple):
    """What was found in a batch: why no client can decode its records ("" if nothing is seen), and
    the largest timestamp of its records (ms), None if that is not known. `is_unpacked` is False if
    that would have cost more than is left of the budget, so that nothing else is known. `keyless`
    is the number of the first record without a key, if it was looked for."""

    flaw: str = ""
    max_timestamp: int | None = None
    is_unpacked: bool = True
    keyless: int | None = None


def examine(
    batch: Buffer, header: BatchHeader, budget: Budget, *, needs_keys: bool = False
) -> Examined:
    """Return what is found in the records of a batch, within the budget. With `needs_keys` a record
    without a key is looked for.

    The header is valid for the batch. The answer is worth nothing if the CRC is wrong.
    """
    body: Buffer = batch[BATCH_HEADER_BYTES:]
    if needs_keys:
        if header.record_count > budget.records:
            return Examined(is_unpacked=False)
        budget.records -= header.record_count
    if header.attributes & COMPRESSION_MASK:
        if budget.bytes <= 0:
            return Examined(is_unpacked=False)
        try:
            body = unpack(header.compression, body, budget.bytes)
        except TooLargeUnpacked:
            budget.bytes = 0
            return Examined(is_unpacked=False)
        except CorruptBlock as error:
            return Examined(str(error))
        budget.bytes -= len(body)
    return _examine_unpacked(body, header, budget, needs_keys)


def examine_large(batch: Buffer, header: BatchHeader, needs_keys: bool = False) -> Examined:
    """Do what `examine` does for a batch of any unpacked size. Takes up to some 100 ms, and the
    memory of the unpacked records: that is for a worker."""
    body: Buffer = batch[BATCH_HEADER_BYTES:]
    try:
        if header.compression != NONE:
            body = unpack(header.compression, body, UNPACKED_BYTES_MAX)
    except CorruptBlock as error:  # or larger than any reader takes
        return Examined(str(error))
    return _examine_unpacked(body, header, Budget(), needs_keys)


def _examine_unpacked(
    body: Buffer, header: BatchHeader, budget: Budget, needs_keys: bool
) -> Examined:
    try:
        found = _examine_ends(body, header, budget)
        if needs_keys and not found.flaw:
            return found._replace(keyless=_find_keyless(body, header.record_count))
        return found
    except IndexError:
        return Examined("the records are cut short")
    except ValueError as error:  # a number too large, a name that is no UTF-8
        return Examined(str(error))


def _examine_ends(body: Buffer, header: BatchHeader, budget: Budget) -> Examined:
    count, size, base_timestamp = header.record_count, len(body), header.base_timestamp
    if count * RECORD_BYTES_MIN > size:
        return Examined(f"{count} records in {size} bytes")
    end, newest = _read_record(body, 0, 0, base_timestamp, budget)
    if count > 1:
        at = -1 if newest > header.max_timestamp else _find_last(body, header, end)
        if at >= 0:
            _read_contents(body, at, size, budget)
            newest, end = header.max_timestamp, size
        elif count > budget.records:
            return Examined()
        else:
            budget.records -= count
            last, newest_between = _walk_to_last(body, end, count)
            newest = max(newest, base_timestamp + newest_between)
            _check_timestamp(newest)
            end, timestamp = _read_record(body, last, count - 1, base_timestamp, budget)
            newest = max(newest, timestamp)
    if end != size:
        return Examined(f"{size - end} bytes behind the last of {count} records")
    # Not by its own `__new__`, a call more.
    return tuple.__new__(Examined, ("", newest, True, None))


def _find_keyless(body: Buffer, count: int) -> int | None:
    """Return the number of the first record without a key; None if all have one."""
    at = 0
    for number in range(count):
        size, at = _read_number(body, at)
        end = at + size
        at += 1  # behind the attributes
        for _ in range(2):  # time and offset
            while body[at] > 0x7F:
                at += 1
            at += 1
        if body[at] & 1:
            return number
        if size < 0 or end <= at:
            raise ValueError("a record's length is wrong")
        at = end
    return None


def _read_record(
    body: Buffer, at: int, expected_delta: int, base_timestamp: int, budget: Budget
) -> tuple[int, int]:
    """Return the position behind a record, and its timestamp. Raises ValueError or IndexError for
    what is none."""
    size, at = _read_number(body, at)
    end = at + size
    time, at = decode_varint(body, at + 1, VARLONG_BYTES_MAX) if body[at + 1] else (0, at + 2)
    if time:
        _check_timestamp(base_timestamp + time)
    delta, at = _read_number(body, at)
    if delta != expected_delta:
        raise ValueError(f"offset delta {delta} where {expected_delta} belongs")
    _read_contents(body, at, end, budget)
    return end, base_timestamp + time


def _read_contents(body: Buffer, at: int, end: int, budget: Budget) -> None:
    """Read key, value and headers of a record that ends at `end`. Raises as `_read_record`."""
    for _ in range(2):  # key and value
        if body[at] == _NULL:
            at += 1
            continue
        length, at = _read_number(body, at)
        if length < -1:
            raise ValueError("a negative length")
        if length > 0:
            at += length
    if at < end and body[at]:
        at = _read_headers(body, at, end, budget)
    else:
        at += 1
    if at != end or end > len(body):
        raise ValueError("a record's length is wrong")


def _check_timestamp(timestamp: int) -> None:
    if not -INT64_MAX - 1 <= timestamp <= INT64_MAX:
        raise ValueError("a timestamp that 64 bits do not hold")


def _read_number(body: Buffer, at: int) -> tuple[int, int]:
    """Return a varint and the position behind it. Nearly every one has one byte or two."""
    if (number := body[at]) <= 0x7F:
        return _OF_ONE_BYTE[number], at + 1
    if (high := body[at + 1]) <= 0x7F:
        number += (high << 7) - 0x80
        return number >> 1 ^ -(number & 1), at + 2
    return decode_varint(body, at, VARINT_BYTES_MAX)


def _read_headers(body: Buffer, at: int, end: int, budget: Budget) -> int:
    """Return the position behind the headers of a record that ends at `end`, which it is taken for
    if there are too many."""
    header_count, at = _read_number(body, at)
    if header_count < 0 or header_count * 2 > end - at:
        raise ValueError(f"{header_count} headers in {end - at} bytes")
    if header_count * _HEADER_COST > budget.records:
        return end
    budget.records -= header_count * _HEADER_COST
    for _ in range(header_count):
        size, at = _read_number(body, at)
        if size < 0:
            raise ValueError("a header without a name")
        bytes(body[at : at + size]).decode()
        size, at = _read_number(body, at + size)
        if size < -1:
            raise ValueError("a negative length")
        at += max(0, size)
    return at


def _find_last(body: Buffer, header: BatchHeader, first_size: int) -> int:
    """Return where the last record's contents begin if it has the largest timestamp; -1 if that is
    not known.

    Its first bytes are then known: the attributes, time and offset; before them is its length.
    """
    time = header.max_timestamp - header.base_timestamp
    delta = header.record_count - 1
    start = (
        b"\x00"
        + (VARINT[time] if 0 <= time < SMALL_COUNT else encode_varint(time))
        + (VARINT[delta] if delta < SMALL_COUNT else encode_varint(delta))
    )
    size = len(body)
    tail_at = max(0, size - _TAIL_BYTES_MIN - 2 * first_size)
    tail = bytes(body[tail_at:])
    found = len(tail)
    for _ in range(_GUESSES):
        found = tail.rfind(start, 0, found)
        if found < 0:
            return -1
        length = len(tail) - found
        encoded = VARINT[length] if length < SMALL_COUNT else encode_varint(length)
        if tail.endswith(encoded, 0, found):
            return tail_at + found + len(start)
    return -1


def _walk_to_last(body: Buffer, at: int, count: int) -> tuple[int, int]:
    """Return where the last of `count` records begins, by the lengths, and the largest time of the
    records before it, as a delta; the second record is at `at`, and its delta counts from 0."""
    newest = -INT64_MAX
    for _ in range(count - 2):
        start = at
        if (size := body[at]) > 0x7F:
            size += (body[at := at + 1] << 7) - 0x80
            if size > 0x3FFF:
                size, at = decode_unsigned(body, start, VARINT_BYTES_MAX)
                at -= 1
        if size & 1:
            raise ValueError("a negative length")
        if (time := body[at + 2]) > 0x7F:
            time += (body[at + 3] << 7) - 0x80
            if time > 0x3FFF:
                time, _behind = decode_unsigned(body, at + 2, VARLONG_BYTES_MAX)
        if (delta := time >> 1 ^ -(time & 1)) > newest:
            newest = delta
        at += 1 + (size >> 1)
    return at, newest
