"""Walks the records of a batch without reading keys, values and headers.

A broker looks up times, and checks what a producer sends. Both need the numbers at the beginning of
each record at most, so nothing is copied: the walk works on any buffer. `columns.py` reads records
in full.
"""

from collections.abc import Iterator
from typing import Final

from minibroker.protocol.constants import INT64_MAX
from minibroker.protocol.records.batch import RECORD_BYTES_MIN, BatchHeader
from minibroker.protocol.records.columns import fit_timestamp
from minibroker.protocol.records.varint import (
    VARINT_BYTES_MAX,
    VARLONG_BYTES_MAX,
    decode_unsigned,
)
from minibroker.protocol.types import Buffer

# The numbers of one record, without its length: its smallest size, in zig-zag form.
_SIZE_MIN: Final = (RECORD_BYTES_MIN - 1) << 1


def iterate_times(body: Buffer, header: BatchHeader) -> Iterator[tuple[int, int]]:
    """Yield the offset and timestamp (ms) of each record in the unpacked records of a batch.

    Raises ValueError at the first record that cannot be there. Records behind the ones that were
    asked for are not looked at.
    """
    base_offset, base_timestamp = header.base_offset, header.base_timestamp
    at, last_delta, delta_max = 0, -1, header.last_offset_delta << 1  # in zig-zag form
    end_of_body = len(body)
    try:
        for _ in range(header.record_count):
            size_at = at
            if (size := body[at]) > 0x7F:
                size += (body[at := at + 1] << 7) - 0x80
                if size > 0x3FFF:
                    size, at = decode_unsigned(body, size_at, VARINT_BYTES_MAX)
                    at -= 1
            time_at = at + 2  # behind the attributes
            end = at + 1 + (size >> 1)
            if size & 1 or size < _SIZE_MIN or end > end_of_body:
                raise ValueError("a record's length is wrong")
            at = time_at
            if (time := body[at]) > 0x7F:
                time += (body[at := at + 1] << 7) - 0x80
                if time > 0x3FFF:
                    time, at = decode_unsigned(body, time_at, VARLONG_BYTES_MAX)
                    at -= 1
            delta_at = at = at + 1
            if (delta := body[at]) > 0x7F:
                delta += (body[at := at + 1] << 7) - 0x80
                if delta > 0x3FFF:
                    delta, at = decode_unsigned(body, delta_at, VARINT_BYTES_MAX)
            if delta & 1 or not last_delta < delta <= delta_max:
                raise ValueError("offsets do not ascend")
            last_delta = delta
            time_ms = base_timestamp + (time >> 1 ^ -(time & 1))
            if not -INT64_MAX <= time_ms <= INT64_MAX:
                time_ms = fit_timestamp(time_ms)
            yield base_offset + (delta >> 1), time_ms
            at = end
    except IndexError:
        raise ValueError("the records are cut short") from None
