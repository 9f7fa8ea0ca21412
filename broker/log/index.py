"""The two indexes of a segment: offset to position, and timestamp to offset.

Both are sparse, and only an optimisation: whatever they say is checked against the batches they
point at, and they can be built again from the segment. So their files are written when a segment is
sealed or its log closed, never on the append path. Nothing is lost when a broker stops before that:
recovery reads the active segment anyway and builds them again.

File form (Kafka's, big-endian): `.index` holds 4 bytes offset relative to the segment's base and 4
bytes position; `.timeindex` 8 bytes timestamp in ms and 4 bytes relative offset. An entry names the
*last* offset of a batch. In memory an offset index is one array of 64-bit numbers (relative offset
in the high half, position in the low), which `bisect` searches without a line of Python; a time
index, which is searched rarely, stays as the bytes of its file.

Memory: an index is read from its file at its first use, and `release` frees it again, so a sealed
segment that nobody reads costs nothing. What must not wait for the disk calls `require_cached`
before.
"""

import bisect
import struct
import sys
from abc import ABC, abstractmethod
from array import array
from contextlib import suppress
from pathlib import PurePath
from typing import NamedTuple

from minibroker.broker.log.cached_reads import NotCached
from minibroker.broker.log.files import Files
from minibroker.protocol.constants import NO_TIMESTAMP

OFFSET_ENTRY_BYTES = 8
TIME_ENTRY = struct.Struct(">qi")
POSITION_BITS = 32
POSITION_MASK = (1 << POSITION_BITS) - 1
# Kafka reads relative offsets as signed.
RELATIVE_OFFSET_MAX = (1 << 31) - 1
OFFSET_MAX = (1 << 63) - 1


class OffsetPosition(NamedTuple):
    """The last offset of a batch, and the position of its first byte in the segment."""

    offset: int
    position: int


class TimestampOffset(NamedTuple):
    """The largest timestamp (ms) of a batch, and its last offset."""

    timestamp: int
    offset: int


class IndexFile(ABC):
    """The common part of both indexes: a file of fixed-size entries, and the entries in memory.

    Invariant: the first `_written` bytes of the file are the first entries in memory.
    """

    entry_bytes: int

    def __init__(self, files: Files, path: PurePath, base_offset: int) -> None:
        self.path = path
        self._files = files
        self._base_offset = base_offset
        self._written = 0
        self._was_read_ahead = False  # since it was in memory last

    @property
    @abstractmethod
    def is_in_memory(self) -> bool:
        """Whether the next use reads no file."""

    def require_cached(self) -> None:
        """Raise NotCached unless the index is in memory, or a worker has just read its file."""
        if not self.is_in_memory and not self._was_read_ahead:
            raise NotCached(self.path.name, lambda size: self._read_ahead)

    def _read_ahead(self) -> None:
        # A file that was renamed or removed meanwhile is not the one that is needed.
        with suppress(FileNotFoundError):
            self._files.read_bytes(self.path)
        self._was_read_ahead = True

    def _read_file(self) -> bytes:
        self._was_read_ahead = False
        data = self._files.read_bytes(self.path) if self._files.exists(self.path) else b""
        self._written = len(data) - len(data) % self.entry_bytes
        return data[: self._written]

    def _read_last(self) -> bytes | None:
        """Return the last entry in the file, b"" if it has none; None for a missing file or odd
        size."""
        if not self._files.exists(self.path):
            return None
        file = self._files.open(self.path)
        try:
            if file.size % self.entry_bytes:
                return None
            return file.read(max(0, file.size - self.entry_bytes), self.entry_bytes)
        finally:
            file.close()

    def _write_rest(self, rest: bytes) -> None:
        """Write the entries that the file lacks; the next call removes what was written before an
        error."""
        file = self._files.open(self.path, create=True)
        try:
            if file.size > self._written:
                file.truncate(self._written)
            if rest:
                file.append([rest])
                self._written += len(rest)
        finally:
            file.close()


class OffsetIndex(IndexFile):
    """An index of positions: entries with strictly growing offsets and positions."""

    entry_bytes = OFFSET_ENTRY_BYTES

    def __init__(self, files: Files, path: PurePath, base_offset: int) -> None:
        super().__init__(files, path, base_offset)
        self._entries: array[int] | None = None

    @property
    def is_in_memory(self) -> bool:
        """Whether the next use reads no file."""
        return self._entries is not None

    def _loaded(self) -> "array[int]":
        if self._entries is None:
            self._entries = array("Q", self._read_file())
            if sys.byteorder == "little":
                self._entries.byteswap()
        return self._entries

    def __len__(self) -> int:
        return len(self._loaded())

    def append(self, offset: int, position: int) -> None:
        """Add a batch by its last offset; it must lie after the last entry."""
        entries = self._loaded()
        entry = (offset - self._base_offset) << POSITION_BITS | position
        assert not entries or entry >> POSITION_BITS > entries[-1] >> POSITION_BITS, (
            "offsets of an index only grow"
        )
        entries.append(entry)

    def lookup(self, offset: int) -> OffsetPosition:
        """Return the greatest entry whose offset is <= `offset`, or (base offset, 0)."""
        entries = self._loaded()
        wanted = (offset - self._base_offset + 1) << POSITION_BITS
        at = bisect.bisect_left(entries, max(0, wanted))
        return self._entry(entries[at - 1]) if at else OffsetPosition(self._base_offset, 0)

    def lookup_at_least(self, offset: int) -> OffsetPosition | None:
        """Return the first entry whose offset is >= `offset`."""
        entries = self._loaded()
        at = bisect.bisect_left(entries, max(0, offset - self._base_offset) << POSITION_BITS)
        return self._entry(entries[at]) if at < len(entries) else None

    def last(self) -> OffsetPosition:
        """The last entry, or (base offset, 0)."""
        entries = self._loaded()
        return self._entry(entries[-1]) if entries else OffsetPosition(self._base_offset, 0)

    def _entry(self, entry: int) -> OffsetPosition:
        return OffsetPosition(self._base_offset + (entry >> POSITION_BITS), entry & POSITION_MASK)

    def is_sound(self, segment_bytes: int) -> bool:
        """Whether the file exists and its last entry is possible in a segment of this size."""
        last = self._read_last()
        if not last:
            return last is not None
        entry = int.from_bytes(last, "big")
        return entry & POSITION_MASK < segment_bytes and entry >> POSITION_BITS > 0

    def truncate(self, offset: int) -> None:
        """Remove the entries of `offset` and later."""
        entries = self._loaded()
        del entries[
            bisect.bisect_left(entries, max(0, offset - self._base_offset) << POSITION_BITS) :
        ]
        self._written = min(self._written, len(entries) * OFFSET_ENTRY_BYTES)

    def clear(self) -> None:
        """Remove all entries, those in the file too, to build them again."""
        self._entries = array("Q")
        self._written = 0

    def write(self) -> None:
        """Write to the file what it lacks."""
        rest = self._loaded()[self._written // OFFSET_ENTRY_BYTES :]
        if sys.byteorder == "little":
            rest.byteswap()
        self._write_rest(rest.tobytes())

    def release(self) -> None:
        """Free the memory, unless the file lacks entries."""
        if self._entries is not None and self._written == len(self._entries) * OFFSET_ENTRY_BYTES:
            self._entries = None


class TimeIndex(IndexFile):
    """An index of times: entries with strictly growing timestamps and growing offsets.

    An entry (t, o) means: up to offset o no record is newer than t.
    """

    entry_bytes = TIME_ENTRY.size

    def __init__(self, files: Files, path: PurePath, base_offset: int) -> None:
        super().__init__(files, path, base_offset)
        self._entries: bytearray | None = None
        self._last_timestamp = NO_TIMESTAMP

    @property
    def is_in_memory(self) -> bool:
        """Whether the next use reads no file."""
        return self._entries is not None

    def _loaded(self) -> bytearray:
        if self._entries is None:
            self._entries = bytearray(self._read_file())
            self._last_timestamp = self.last().timestamp
        return self._entries

    def __len__(self) -> int:
        return len(self._loaded()) // TIME_ENTRY.size

    def append_if_newer(self, timestamp: int, offset: int) -> None:
        """Add an entry unless the last one is as new."""
        entries = self._loaded()
        if timestamp > self._last_timestamp:
            entries += TIME_ENTRY.pack(timestamp, offset - self._base_offset)
            self._last_timestamp = timestamp

    def _entry(self, at: int) -> TimestampOffset:
        timestamp, relative = TIME_ENTRY.unpack_from(self._loaded(), at * TIME_ENTRY.size)
        return TimestampOffset(timestamp, self._base_offset + relative)

    def last(self) -> TimestampOffset:
        """The last entry, or (NO_TIMESTAMP, base offset)."""
        count = len(self)
        return self._entry(count - 1) if count else TimestampOffset(NO_TIMESTAMP, self._base_offset)

    def lookup(self, timestamp: int) -> int:
        """Return the offset of the newest entry that is not newer than `timestamp`, or the base."""
        at = bisect.bisect_right(
            range(len(self)), timestamp, key=lambda index: self._entry(index).timestamp
        )
        return self._entry(at - 1).offset if at else self._base_offset

    def is_sound(self, segment_bytes: int) -> bool:
        """Whether the file exists and its last entry is possible."""
        last = self._read_last()
        if not last:
            return last is not None
        timestamp, relative = TIME_ENTRY.unpack(last)
        return segment_bytes > 0 and timestamp >= 0 and relative >= 0

    def read_last(self) -> TimestampOffset:
        """Return the last entry, without loading the others."""
        if self._entries is not None:
            return self.last()
        last = self._read_last()
        if not last:
            return TimestampOffset(NO_TIMESTAMP, self._base_offset)
        timestamp, relative = TIME_ENTRY.unpack(last)
        return TimestampOffset(timestamp, self._base_offset + relative)

    def truncate(self, offset: int) -> None:
        """Remove the entries of `offset` and later."""
        entries = self._loaded()
        at = bisect.bisect_left(
            range(len(self)), offset, key=lambda index: self._entry(index).offset
        )
        del entries[at * TIME_ENTRY.size :]
        self._written = min(self._written, len(entries))
        self._last_timestamp = self.last().timestamp

    def clear(self) -> None:
        """Remove all entries, those in the file too, to build them again."""
        self._entries = bytearray()
        self._written = 0
        self._last_timestamp = NO_TIMESTAMP

    def write(self) -> None:
        """Write to the file what it lacks."""
        self._write_rest(bytes(self._loaded()[self._written :]))

    def release(self) -> None:
        """Free the memory, unless the file lacks entries."""
        if self._entries is not None and self._written == len(self._entries):
            self._entries = None
