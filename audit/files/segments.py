"""The batches of one segment file as tables: one row per batch.

Every byte of a file is in exactly one row of BATCHES: `position` and `size` of the rows of a file
tile it. Bytes that are not a batch are one torn row, up to where the next sound batch begins.

* A *batch* is a header of format 2 whose length leads to another such header or to the end of the
  file; or, wherever it leads, one whose CRC is right. If only the CRC is wrong, the row has both
  CRCs.
* After bytes that are not a batch, the next batch with a right CRC is searched for. This also finds
  a damaged length: it leads nowhere.
* Offset and leader epoch lie outside the CRC. The row has the stored values; the checks decide
  whether they are possible.
* Of a control batch the row has the type of its marker, too: the only content of a batch that is
  read. Whether a window has control batches is seen in all of its headers at once.

No content of a disk raises here. A file is read with `pread` and not mapped: a live broker may
truncate it, and access to a vanished page of a map kills the process. One window is reused for all
reads, so that it stays in the processor's cache. The work for each batch is a few calls, because
with batches of 1 KB there are a million in a GB: the headers are collected as bytes, and split into
fields a column at a time.
"""

import os
import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
from crc32c import crc32c
from numpy.typing import NDArray
from xxhash import xxh3_64, xxh3_64_digest

from minibroker.audit.arrow import compute as pc
from minibroker.audit.files.checkpoints import explain
from minibroker.audit.files.directories import Replica, SegmentFile
from minibroker.audit.files.regular import open_file
from minibroker.audit.model import BATCHES
from minibroker.protocol.constants import (
    BATCH_HEADER_BYTES,
    BATCH_OVERHEAD_BYTES,
    FRAME_BYTES_MAX,
    MAGIC,
)
from minibroker.protocol.records.batch import CONTROL, BatchHeader, read_header
from minibroker.protocol.records.control import ABORT, COMMIT, read_end_marker

ROWS_MAX: Final = 8192
WINDOW_BYTES: Final = 1 << 20
HOP_BYTES: Final = 16 << 10
# How many bytes a search in one file may read for checksums that turn out wrong; then it gives up.
SEARCH_BYTES_MAX: Final = 256 << 20

_LENGTH_AT = 8
_LENGTH_AND_MAGIC = struct.Struct(">i4xb")  # from _LENGTH_AT on
_LENGTH_MIN = BATCH_HEADER_BYTES - BATCH_OVERHEAD_BYTES
_MAGIC_AT = 16  # the identity covers everything from here on
_CRC_AT = 17
_CRC = struct.Struct(">I")
_ATTRIBUTES_AT = 21  # the CRC covers everything from here on
_ATTRIBUTES_MAX = 0x7F
_TYPES = ("i8", "i4", "i4", "i1", "u4", "i2", "i4", "i8", "i8", "i8", "i2", "i4", "i4")
_HEADER = np.dtype(
    [(name, f">{kind}") for name, kind in zip(BatchHeader._fields, _TYPES, strict=True)]
)
_INT64 = np.iinfo(np.int64)

assert _HEADER.itemsize == BATCH_HEADER_BYTES


class Located(NamedTuple):
    """The batches of a file, in the order of positions."""

    position: NDArray[np.int64]
    last_offset: NDArray[np.int64]
    max_timestamp: NDArray[np.int64]


def scan_segment(
    replica: Replica, segment: SegmentFile, rows_max: int = ROWS_MAX, begin: int = 0
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of BATCHES for one file, in the order of positions, about `rows_max` a table.

    The bytes from `begin` up to the segment's size are read; a batch begins at `begin`. A file that
    cannot be read, or is shorter than when it was listed, ends with a torn row for the missing
    bytes.
    """
    rows = _Rows(replica, segment.base_offset, begin)
    problem = None
    try:
        with open_file(segment.path) as descriptor:
            yield from _Scan(_Window(descriptor, segment.size), rows).run(rows_max)
    except OSError as error:
        problem = explain(error)
    if rows.count:
        yield rows.pop_table()
    if rows.end < segment.size:
        problem = problem or "gone: the file became shorter while it was read"
    if problem is not None:
        yield rows.tear(segment.size, problem)


class _Window:
    """Bytes of a file, read into one reused buffer: the next `read` invalidates a view.

    `end` is where reading ends, at most the size with which the file was listed.
    """

    def __init__(self, descriptor: int, end: int) -> None:
        self.end = end
        self._descriptor = descriptor
        self._buffer = memoryview(bytearray(min(WINDOW_BYTES, end)))

    def read(self, position: int, size: int = WINDOW_BYTES) -> memoryview:
        """Return up to `size` bytes, fewer only at the end. Raises OSError."""
        view = self._buffer[: min(size, self.end - position)]
        filled = 0
        while filled < len(view):
            count = os.preadv(self._descriptor, [view[filled:]], position + filled)
            if count == 0:
                self.end = position + filled
                break
            filled += count
        return view[:filled]


class _Rows:
    """Collects batches for a table. `end` is the position behind the last row."""

    def __init__(self, replica: Replica, segment: int, begin: int) -> None:
        self.end = begin
        self._fixed = {**replica.columns, "segment": segment}
        self._begin()

    def _begin(self) -> None:
        self.headers = bytearray()
        self.identities = bytearray()
        self.crcs: list[int] = []
        self._markers: dict[int, int] = {}  # by row

    @property
    def count(self) -> int:
        return len(self.crcs)

    @property
    def is_last_right(self) -> bool:
        """Whether the CRC of the last batch matches its header; there must be one."""
        at = len(self.headers) - BATCH_HEADER_BYTES + _CRC_AT
        return _CRC.unpack_from(self.headers, at) == (self.crcs[-1],)

    def drop_wrong(self) -> None:
        """Drop the last batches while their CRC is wrong: the bytes after them are not a batch."""
        while self.count and not self.is_last_right:
            self.end -= (
                BATCH_OVERHEAD_BYTES
                + _LENGTH_AND_MAGIC.unpack_from(
                    self.headers, len(self.headers) - BATCH_HEADER_BYTES + _LENGTH_AT
                )[0]
            )
            del self.headers[-BATCH_HEADER_BYTES:], self.identities[-8:], self.crcs[-1]
            self._markers.pop(self.count, None)

    def read_markers(self, view: memoryview, first: int) -> None:
        """Record the types of the markers among the batches from the row `first` on, with whose
        first byte the view begins."""
        if first == self.count:
            return
        fields = np.frombuffer(self.headers, _HEADER, offset=first * BATCH_HEADER_BYTES)
        control = np.flatnonzero(fields["attributes"] & CONTROL)
        if not len(control):
            return
        ends = np.cumsum(fields["batch_length"].astype(np.int64) + BATCH_OVERHEAD_BYTES)
        for row in map(int, control):
            batch = view[int(ends[row - 1]) if row else 0 : int(ends[row])]
            header = read_header(batch)
            is_right = header.crc == self.crcs[first + row]
            marker = read_end_marker(batch, header) if is_right else None
            if marker is not None:
                self._markers[first + row] = COMMIT if marker.is_commit else ABORT

    def pop_table(self) -> pa.RecordBatch:
        """Return the table of the collected batches, and start a new one."""
        fields = np.frombuffer(self.headers, _HEADER)
        sizes = fields["batch_length"].astype(np.int64) + BATCH_OVERHEAD_BYTES
        known = {
            **self._fixed,
            "position": self.end - np.cumsum(sizes[::-1])[::-1],
            "size": sizes,
            "last_offset": _add_offsets(fields["base_offset"], fields["last_offset_delta"]),
            "count": fields["record_count"],
            "crc_stored": fields["crc"],
            "crc_computed": np.array(self.crcs, np.int64),
            "identity": np.frombuffer(self.identities, ">i8"),
            "torn": False,
            "problem": None,
            "marker": None,
        }
        if self._markers:
            kinds = [self._markers.get(row) for row in range(len(fields))]
            known["marker"] = pa.array(kinds, pa.int8())
        columns = [
            _column(
                known[field.name] if field.name in known else fields[field.name], field, len(fields)
            )
            for field in BATCHES
        ]
        self._begin()
        return pa.RecordBatch.from_arrays(columns, schema=BATCHES)

    def tear(self, end: int, problem: str) -> pa.RecordBatch:
        """Return the row for the bytes up to `end`, which are not a batch. No batch is pending."""
        size = end - self.end
        row = {**self._fixed, "position": self.end, "size": size, "torn": True, "problem": problem}
        self.end = end
        return pa.RecordBatch.from_pylist([row], schema=BATCHES)


def _column(values: object, field: pa.Field, count: int) -> pa.Array:
    if isinstance(values, pa.Array):
        return values
    if isinstance(values, np.ndarray):
        return pa.array(values.astype(field.type.to_pandas_dtype(), copy=False))
    return pa.repeat(pa.scalar(values, field.type), count)


def _add_offsets(base: NDArray[np.int64], delta: NDArray[np.int32]) -> NDArray[np.int64]:
    """Return the sums, saturated at 64 bits."""
    start, length = base.astype(np.int64), delta.astype(np.int64)
    total = start + length
    total[(length > 0) & (total < start)] = _INT64.max
    total[(length < 0) & (total > start)] = _INT64.min
    return total


class _Scan:
    """One pass over a file."""

    def __init__(self, window: _Window, rows: _Rows) -> None:
        self._window = window
        self._rows = rows
        self._search_bytes = 0

    def run(self, rows_max: int) -> Iterator[pa.RecordBatch]:
        """Yield tables of whole batches and of torn rows; the last ones may stay in the rows."""
        rows, window = self._rows, self._window
        while rows.end < window.end:
            before, first = rows.end, rows.count
            view = window.read(before)
            self._walk(view)
            rows.read_markers(view, first)
            if rows.end == before and not self._collect_large(view):
                problem = self._explain(view)
                rows.drop_wrong()
                if rows.end < before:
                    problem = "its checksum is wrong, and it leads to no batch"
                end = self._find(rows.end + 1)
                if rows.count:
                    yield rows.pop_table()
                yield rows.tear(end, problem)
            elif rows.count >= rows_max and rows.is_last_right:
                yield rows.pop_table()

    def _walk(self, view: memoryview) -> None:
        """Collect the batches that are complete in a view, which begins after the last one."""
        rows = self._rows
        headers, start = rows.headers, rows.end
        identities, add_crc = rows.identities, rows.crcs.append
        unpack = _LENGTH_AND_MAGIC.unpack_from
        at, end = 0, len(view)
        last = end - BATCH_HEADER_BYTES
        while at <= last:
            length, magic = unpack(view, at + _LENGTH_AT)
            behind = at + BATCH_OVERHEAD_BYTES + length
            if magic != MAGIC or length < _LENGTH_MIN or behind > end:
                break
            headers += view[at : at + BATCH_HEADER_BYTES]
            add_crc(crc32c(view[at + _ATTRIBUTES_AT : behind]))
            identities += xxh3_64_digest(view[at + _MAGIC_AT : behind])
            at = behind
        rows.end = start + at

    def _collect_large(self, view: memoryview) -> bool:
        """Collect the batch at the start of a view that is too small for it; False if none is."""
        rows, start = self._rows, self._rows.end
        if len(view) < BATCH_HEADER_BYTES:
            return False
        length, magic = _LENGTH_AND_MAGIC.unpack_from(view, _LENGTH_AT)
        end = start + BATCH_OVERHEAD_BYTES + length
        if magic != MAGIC or length < _LENGTH_MIN or end > self._window.end:
            return False
        header = bytes(view[:BATCH_HEADER_BYTES])
        crc, identity = self._digest(start, end)
        if end > self._window.end:
            return False
        rows.headers += header
        rows.crcs.append(crc)
        rows.identities += identity
        rows.end = end
        return True

    def _digest(self, start: int, end: int) -> tuple[int, bytes]:
        """Return CRC and identity of a batch of any size, read a window at a time."""
        crc, identity = 0, xxh3_64()
        position = start + _ATTRIBUTES_AT
        identity.update(self._window.read(start + _MAGIC_AT, _ATTRIBUTES_AT - _MAGIC_AT))
        while position < min(end, self._window.end):
            view = self._window.read(position, end - position)
            crc = crc32c(view, crc)
            identity.update(view)
            position += len(view)
        return crc, identity.digest()

    def _explain(self, view: memoryview) -> str:
        """Return why no batch begins at the start of a view."""
        if len(view) < BATCH_HEADER_BYTES:
            return f"{len(view)} bytes at the end are no whole header"
        length, magic = _LENGTH_AND_MAGIC.unpack_from(view, _LENGTH_AT)
        if magic != MAGIC:
            return f"format {magic} where {MAGIC} must be"
        size = BATCH_OVERHEAD_BYTES + length
        return f"a batch of {size} bytes where {self._window.end - self._rows.end} are left"

    def _find(self, position: int) -> int:
        """Return where the next batch with a right CRC begins, from `position` on; else the end."""
        while len(view := self._window.read(position)) >= BATCH_HEADER_BYTES:
            step = len(view) - BATCH_HEADER_BYTES + 1
            for at, size, crc in _find_headers(view, self._window.end - position):
                if self._search_bytes > SEARCH_BYTES_MAX:
                    return self._window.end
                start = position + at
                if self._digest(start, start + size)[0] == crc:
                    return start
                self._search_bytes += size
            position += step
        return self._window.end


def is_sound_batch(descriptor: int, position: int, end: int) -> bool:
    """Whether a batch with a right CRC begins at a position of a file, and ends by `end`.

    Raises OSError.
    """
    header = os.pread(descriptor, BATCH_HEADER_BYTES, position)
    if len(header) < BATCH_HEADER_BYTES:
        return False
    length, magic = _LENGTH_AND_MAGIC.unpack_from(header, _LENGTH_AT)
    size = BATCH_OVERHEAD_BYTES + length
    if magic != MAGIC or length < _LENGTH_MIN or size > min(FRAME_BYTES_MAX, end - position):
        return False
    batch = os.pread(descriptor, size, position)
    return len(batch) == size and _CRC.unpack_from(batch, _CRC_AT) == (
        crc32c(memoryview(batch)[_ATTRIBUTES_AT:]),
    )


def locate_batches(segment: SegmentFile) -> Located:
    """Return the batches of a file by their headers alone; their records are not read.

    Raises OSError. A file with bytes that are not a batch is scanned as a whole, and its batches
    are those of `scan_segment`.
    """
    with open_file(segment.path) as descriptor:
        located = _hop(_Window(descriptor, segment.size))
    if located is None:
        nobody = Replica(0, "", 0)
        found = pa.Table.from_batches(scan_segment(nobody, segment), BATCHES)
        found = found.filter(pc.invert(found["torn"]))
        located = Located(*(found[name].to_numpy() for name in Located._fields))
    return located


def _hop(window: _Window) -> Located | None:
    """Return the batches by their headers; None if a header leads nowhere."""
    headers = bytearray()
    unpack = _LENGTH_AND_MAGIC.unpack_from
    start, size = 0, HOP_BYTES
    while start < window.end:
        view = window.read(start, size)
        at, last = 0, len(view) - BATCH_HEADER_BYTES
        while at <= last:
            length, magic = unpack(view, at + _LENGTH_AT)
            if magic != MAGIC or length < _LENGTH_MIN:
                return None
            headers += view[at : at + BATCH_HEADER_BYTES]
            at += BATCH_OVERHEAD_BYTES + length
        start += at
        if at == 0 or start > window.end:
            return None
        size = HOP_BYTES if at < 2 * HOP_BYTES else BATCH_HEADER_BYTES
    fields = np.frombuffer(headers, _HEADER)
    last_offset = _add_offsets(fields["base_offset"], fields["last_offset_delta"])
    sizes = fields["batch_length"].astype(np.int64) + BATCH_OVERHEAD_BYTES
    return Located(np.cumsum(sizes) - sizes, last_offset, fields["max_timestamp"].astype("i8"))


def _find_headers(view: memoryview, room: int) -> Iterator[tuple[int, int, int]]:
    """Yield where in a view headers may begin, with the size and the CRC that they contain.

    `room` is how many bytes of the file are left from the view on. Cheap tests exclude only what
    cannot be a header: of random bytes all but one position in 300 million.
    """
    data = np.array(view)  # computing a checksum invalidates the view
    count = len(data) - BATCH_HEADER_BYTES + 1
    is_header = data[_MAGIC_AT : _MAGIC_AT + count] == MAGIC
    is_header &= data[_ATTRIBUTES_AT : _ATTRIBUTES_AT + count] == 0
    all_starts = np.flatnonzero(is_header)
    for first in range(0, len(all_starts), ROWS_MAX):
        starts = all_starts[first : first + ROWS_MAX]
        headers = data[starts[:, None] + np.arange(BATCH_HEADER_BYTES)].view(_HEADER)[:, 0]
        size = headers["batch_length"].astype(np.int64) + BATCH_OVERHEAD_BYTES
        delta = headers["last_offset_delta"].astype(np.int64)
        good = (size >= BATCH_HEADER_BYTES) & (size <= np.minimum(room - starts, FRAME_BYTES_MAX))
        good &= (headers["attributes"] <= _ATTRIBUTES_MAX) & (delta >= 0)
        good &= (headers["record_count"] >= 0) & (headers["record_count"] <= delta + 1)
        good &= (headers["producer_id"] >= -1) & (headers["producer_epoch"] >= -1)
        good &= headers["base_sequence"] >= -1
        found = (starts[good], size[good], headers["crc"][good])
        yield from zip(*(column.tolist() for column in found), strict=True)
