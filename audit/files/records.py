"""The records of a segment, decoded: one row per record of each batch whose CRC is right.

The memory used is bounded: about `ROWS_MAX` rows or `BYTES_MAX` bytes go into one table, and only
one whole batch is in memory while it is read. Left out are damaged batches, batches whose records
cannot be decoded although the CRC is right (a broker stores what a producer sent without decoding
it), and control batches, which hold no records of users.
"""

import os
import struct
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from minibroker.audit.arrow import compute as pc
from minibroker.audit.files.directories import Replica, SegmentFile
from minibroker.audit.files.regular import open_file
from minibroker.audit.files.segments import scan_segment
from minibroker.audit.model import RECORDS
from minibroker.protocol.records.batch import CONTROL, BatchHeader, InvalidBatch, read_header
from minibroker.protocol.records.columns import Columns, Headers, decode_columns
from minibroker.protocol.records.compression import NONE

ROWS_MAX: Final = 65536
BYTES_MAX: Final = 16 << 20
OFFSET_END: Final = 1 << 63


def read_records(
    replica: Replica,
    segment: SegmentFile,
    start: int = 0,
    end: int = OFFSET_END,
    begin: int = 0,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of RECORDS for one file from the position `begin` on, for the offsets from
    `start` to below `end`.

    A file that cannot be read, or vanishes meanwhile, yields no more rows; `scan_segment` reports
    it.
    """
    rows = _Rows(replica)
    try:
        with open_file(segment.path) as descriptor:
            for position, size in find_batches(replica, segment, start, end, begin):
                rows.add(os.pread(descriptor, size, position), start, end)
                if rows.count >= ROWS_MAX or rows.bytes >= BYTES_MAX:
                    yield rows.pop_table()
    except OSError:
        pass
    if rows.count:
        yield rows.pop_table()


def find_batches(
    replica: Replica,
    segment: SegmentFile,
    start: int = 0,
    end: int = OFFSET_END,
    begin: int = 0,
) -> Iterator[tuple[int, int]]:
    """Yield position and size of the batches that must be decoded. Raises OSError."""
    names = ["position", "size", "attributes", "base_offset", "last_offset"]
    for table in scan_segment(replica, segment, begin=begin):
        is_right = pc.equal(table["crc_stored"], table["crc_computed"])  # null where torn
        batches = table.select(names).filter(is_right).columns
        for position, size, attributes, base_offset, last_offset in zip(
            *(column.to_pylist() for column in batches), strict=True
        ):
            if base_offset < end and last_offset >= start and not attributes & CONTROL:
                yield position, size


class NoRecords(ValueError):
    """The bytes of a batch are not records; the text says why."""


def decode_batch(batch: bytes) -> tuple[BatchHeader, Columns]:
    """Decode a batch whose CRC is right. Raises NoRecords; `struct.error` if it is cut short."""
    header = read_header(batch)
    if len(batch) < header.size:
        raise struct.error
    try:
        columns = decode_columns(batch, header)
    except InvalidBatch as error:
        raise NoRecords(str(error)) from None
    if header.last_offset >= OFFSET_END:
        raise NoRecords("an offset that 64 bits do not hold")
    return header, columns


class _Rows:
    """Collects records for a table. `bytes` is about how much memory they take."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._begin()

    def _begin(self) -> None:
        self.bytes = 0
        self._columns: list[list[Any]] = [[] for _ in Columns._fields]

    @property
    def count(self) -> int:
        """The number of collected records."""
        return len(self._columns[0])

    def add(self, batch: bytes, start: int, end: int) -> None:
        """Decode a batch and collect its records of these offsets; nothing if it is unreadable."""
        try:
            header, columns = decode_batch(batch)
        except (NoRecords, struct.error):  # the latter: the file was truncated since the scan
            return
        self.bytes += header.size if header.compression == NONE else _count_bytes(columns)
        first, behind = (bisect_left(columns.offsets, offset) for offset in (start, end))
        wanted: Sequence[Sequence[Any]] = columns
        for collected, column in zip(self._columns, wanted, strict=True):
            collected.extend(column[first:behind])

    def pop_table(self) -> pa.RecordBatch:
        """Return the table of the collected records, and start a new one."""
        columns, count = self._columns, self.count
        self._begin()
        fixed = [
            pa.repeat(pa.scalar(value, kind), count)
            for value, kind in zip(self._replica, RECORDS.types, strict=False)
        ]
        read = [
            pa.array(column, kind)
            for column, kind in zip(columns[:4], RECORDS.types[3:], strict=False)
        ]
        return pa.RecordBatch.from_arrays([*fixed, *read, _to_headers(columns[-1])], schema=RECORDS)


def _count_bytes(columns: Columns) -> int:
    return sum(len(field) for column in (columns.keys, columns.values) for field in column if field)


def _to_headers(rows: Sequence[Headers]) -> pa.Array:
    """Return the column of headers; nearly always they are empty."""
    flat = [header for headers in rows for header in headers]
    names, contents = zip(*flat, strict=True) if flat else ((), ())
    kind = RECORDS.field("headers").type
    pairs = [
        pa.array(column, field.type)
        for column, field in zip((names, contents), kind.value_type, strict=True)
    ]
    ends = np.cumsum([0, *map(len, rows)], dtype=np.int32)
    structs = pa.StructArray.from_arrays(pairs, fields=list(kind.value_type))
    return pa.ListArray.from_arrays(ends, structs, type=kind)
