"""One segment: a file of batches end to end, and its two indexes.

A segment knows where its batches lie and how new they are; which offsets come next, when to roll
and what may go is its log's business. Batches arrive here validated and stamped.

Exact positions of the last few batches are kept in memory, because nearly every read and every
waiting fetch is at the end of a log: there neither the disk nor the index is asked.

An index may be wrong after a crash or a bad disk. So the first batch that an index entry points at
must be the one it names; if not, the indexes are made anew from the batches, and the read goes on.
"""

import re
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import PurePath

from minibroker.broker.log.files import Files
from minibroker.broker.log.index import (
    OFFSET_MAX,
    RELATIVE_OFFSET_MAX,
    TIME_ENTRY,
    OffsetIndex,
    OffsetPosition,
    TimeIndex,
)
from minibroker.broker.log.scan import batch_headers, is_sound
from minibroker.broker.log.slices import FileSlice
from minibroker.protocol.constants import NO_TIMESTAMP
from minibroker.protocol.records.batch import BatchHeader
from minibroker.protocol.types import Buffer

RECENT_BATCHES = 32
DELETED_SUFFIX = ".deleted"


def file_name(base_offset: int, suffix: str) -> str:
    """Kafka's: 20 digits of the base offset, then what it is."""
    return f"{base_offset:020}{suffix}"


def offsets_in(names: Iterable[str], suffix: str) -> list[int]:
    """The offsets that name the files of one kind, ascending; foreign names are passed over."""
    stems = (name.removesuffix(suffix) for name in names if name.endswith(suffix))
    is_ours = re.compile(r"[0-9]{20}").fullmatch
    return sorted(int(stem) for stem in stems if is_ours(stem) and int(stem) <= OFFSET_MAX)


class Segment:
    """See the head of this file. `generation` grows when bytes are taken back or the file closes.

    `max_timestamp` and `first_timestamp` are ms, NO_TIMESTAMP for an empty segment or batches
    without one; `created_ms` is when it was made or opened.
    """

    __slots__ = (
        "_bytes_since_entry",
        "_max_timestamp_offset",
        "_recent",
        "base_offset",
        "created_ms",
        "file",
        "first_timestamp",
        "generation",
        "index_interval_bytes",
        "max_timestamp",
        "offset_index",
        "path",
        "time_index",
    )

    def __init__(
        self,
        files: Files,
        directory: PurePath,
        base_offset: int,
        created_ms: int,
        index_interval_bytes: int,
    ) -> None:
        """Open the files, or make them; `load` or recovery must follow unless they are new."""
        self.base_offset = base_offset
        self.created_ms = created_ms
        self.index_interval_bytes = index_interval_bytes
        self.path = directory / file_name(base_offset, ".log")
        self.file = files.open(self.path, create=True)
        self.offset_index = OffsetIndex(files, self.path.with_suffix(".index"), base_offset)
        self.time_index = TimeIndex(files, self.path.with_suffix(".timeindex"), base_offset)
        self.generation = 0
        self.max_timestamp = NO_TIMESTAMP
        self.first_timestamp = NO_TIMESTAMP
        self._max_timestamp_offset = base_offset
        self._bytes_since_entry = 0
        self._recent: deque[OffsetPosition] = deque(maxlen=RECENT_BATCHES)

    def __repr__(self) -> str:
        return f"Segment({self.base_offset}, {self.size} bytes)"

    @property
    def size(self) -> int:
        """Bytes of batches."""
        return self.file.size

    @property
    def index_paths(self) -> tuple[PurePath, PurePath]:
        """Its two index files."""
        return self.offset_index.path, self.time_index.path

    @property
    def paths(self) -> tuple[PurePath, ...]:
        """Its files; the snapshot at its base goes with it."""
        others = (".index", ".timeindex", ".snapshot")
        return (self.path, *(self.path.with_suffix(suffix) for suffix in others))

    # -- appending

    def write(self, records: Buffer) -> int:
        """Append bytes, and return their position; if that fails nothing of them stays."""
        position = self.file.size
        try:
            self.file.append([records])
        except OSError:
            self.file.truncate(position)
            raise
        return position

    def note(self, header: BatchHeader, position: int) -> None:
        """Take a batch that was written at `position` into the indexes."""
        last_offset = header.base_offset + header.last_offset_delta
        timestamp = header.max_timestamp
        if timestamp > self.max_timestamp:
            self.max_timestamp = timestamp
            self._max_timestamp_offset = last_offset
        if position == 0:
            self.first_timestamp = timestamp
        elif self._bytes_since_entry > self.index_interval_bytes:
            self.offset_index.append(last_offset, position)
            self.time_index.append_if_newer(self.max_timestamp, self._max_timestamp_offset)
            self._bytes_since_entry = 0
        self._bytes_since_entry += header.size
        self._recent.append(OffsetPosition(last_offset, position))

    def has_room_for(self, last_offset: int, index_bytes_max: int) -> bool:
        """Whether 32 bits hold the offset and the indexes another entry.

        There is at most one time entry for each offset entry, and it is the larger one.
        """
        return (
            last_offset - self.base_offset <= RELATIVE_OFFSET_MAX
            and (len(self.offset_index) + 1) * TIME_ENTRY.size <= index_bytes_max
        )

    # -- looking up

    def _batches_from(self, entry: OffsetPosition) -> Iterator[tuple[int, BatchHeader]]:
        """Batches from an index entry on; from the start if the index turns out to be wrong."""
        batches = batch_headers(self.file, entry.position, self.size)
        if entry.position == 0:
            return batches
        first = next(batches, None)
        if first is not None and first[1].last_offset == entry.offset:
            return chain((first,), batches)
        self.rebuild_indexes()
        return batch_headers(self.file, 0, self.size)

    def _recent_position(self, offset: int) -> int | None:
        found: int | None = None
        for last_offset, position in reversed(self._recent):
            if last_offset < offset:
                return self.size if found is None else found
            found = position
        return found if found == 0 else None

    def position_of(self, offset: int) -> int:
        """Where the first batch begins that holds `offset` or a later one; `size` if none does."""
        if offset <= self.base_offset:
            return 0
        recent = self._recent_position(offset)
        if recent is not None:
            return recent
        for position, header in self._batches_from(self.offset_index.lookup(offset)):
            if header.last_offset >= offset:
                return position
        return self.size

    def end_below(self, offset: int) -> int:
        """The offset that would come next if all batches went that hold `offset` or a later one."""
        end = self.base_offset
        for _, header in self._batches_from(self.offset_index.lookup(offset - 1)):
            if header.last_offset >= offset:
                break
            end = header.next_offset
        return end

    def position_near(self, offset: int, *, is_end: bool) -> int:
        """`position_of` without a disk read: exact near the end, else off by an index interval.

        Off to the safe side: too low, or with `is_end` too high.
        """
        if offset <= self.base_offset:
            return 0
        recent = self._recent_position(offset)
        if recent is not None:
            return recent
        if is_end:
            entry = self.offset_index.lookup_at_least(offset)
            return self.size if entry is None else entry.position
        return self.offset_index.lookup(offset).position

    def last_boundary(self, start: int, limit: int) -> int:
        """The largest batch boundary that is <= `limit`, counted from the boundary `start` on."""
        if limit >= self.size:
            return self.size
        entry = self.offset_index.lookup_position(limit)
        if entry.position <= start:
            batches = batch_headers(self.file, start, self.size)
        else:
            batches = self._batches_from(entry)
        for position, header in batches:
            if position + header.size > limit and position >= start:
                return position
        return self.size

    def batch_at(self, position: int) -> BatchHeader | None:
        """The header of the batch that begins there; None at the end."""
        found = next(batch_headers(self.file, position, self.size), None)
        return None if found is None else found[1]

    def batches_from(self, offset: int) -> Iterator[tuple[int, BatchHeader]]:
        """Position and header of each batch from the one that holds `offset` on."""
        return batch_headers(self.file, self.position_of(offset), self.size)

    def batches_since(self, timestamp: int) -> Iterator[tuple[int, BatchHeader]]:
        """Batches that hold a record of `timestamp` (ms) or later, in order."""
        start = self.position_of(self.time_index.lookup(timestamp))
        for position, header in batch_headers(self.file, start, self.size):
            if header.max_timestamp >= timestamp:
                yield position, header

    def slice(self, position: int, end: int) -> FileSlice:
        """The bytes from `position` to `end`."""
        return FileSlice(self, position, end - position)

    # -- opening, cutting, closing

    def has_sound_indexes(self) -> bool:
        """Whether both index files are there, and their last entries can be of this segment."""
        size = self.size
        if not (self.offset_index.is_sound(size) and self.time_index.is_sound(size)):
            return False
        # A complete time index ends with the newest batch.
        first = self.batch_at(0)
        return first is None or self.time_index.read_last().timestamp >= first.max_timestamp

    def load(self) -> None:
        """Learn the timestamps from the index files; the batches are not read."""
        newest = self.time_index.read_last()
        self.max_timestamp, self._max_timestamp_offset = newest
        first = self.batch_at(0)
        self.first_timestamp = NO_TIMESTAMP if first is None else first.max_timestamp

    def load_tail(self) -> tuple[int, BatchHeader | None]:
        """Walk from the last index entry on: where the batches end, and the last one's header."""
        batches = self._batches_from(self.offset_index.last())
        # Read after that: a wrong index was made anew.
        entry = self.offset_index.last()
        self.max_timestamp, self._max_timestamp_offset = self.time_index.last()
        self._recent.clear()
        end, last = entry.position, None
        for position, header in batches:
            if position == 0:
                self.first_timestamp = header.max_timestamp
            if header.max_timestamp > self.max_timestamp:
                self.max_timestamp = header.max_timestamp
                self._max_timestamp_offset = header.last_offset
            self._recent.append(OffsetPosition(header.last_offset, position))
            end, last = position + header.size, header
        if entry.position:
            self.first_timestamp = getattr(self.batch_at(0), "max_timestamp", NO_TIMESTAMP)
        self._bytes_since_entry = end - entry.position
        return end, last

    def forget_indexes(self) -> None:
        """Start the indexes anew: every batch will be noted again."""
        self.offset_index.clear()
        self.time_index.clear()
        self.max_timestamp = NO_TIMESTAMP
        self.first_timestamp = NO_TIMESTAMP
        self._max_timestamp_offset = self.base_offset
        self._bytes_since_entry = 0
        self._recent.clear()

    def rebuild_indexes(self) -> None:
        """Make the indexes from the batches, but for those whose offsets rotted."""
        self.forget_indexes()
        next_offset = self.base_offset
        for position, header in batch_headers(self.file, 0, self.size):
            if is_sound(header, next_offset, self.base_offset):
                self.note(header, position)
                next_offset = header.next_offset

    def cut(self, position: int) -> int:
        """Drop the bytes from a batch boundary on, and return the offset that comes next."""
        header = self.batch_at(position)
        self.generation += 1
        self.file.truncate(position)
        if header is not None:
            self.offset_index.truncate(header.base_offset)
            self.time_index.truncate(header.base_offset)
        _, last = self.load_tail()
        return self.base_offset if last is None else last.next_offset

    def write_indexes(self) -> None:
        """Bring the index files up to date: when it is sealed, and when the log is closed."""
        self.time_index.append_if_newer(self.max_timestamp, self._max_timestamp_offset)
        self.offset_index.write()
        self.time_index.write()

    def release_indexes(self) -> None:
        """Give back the memory of a sealed segment's indexes until they are needed again."""
        self.offset_index.release()
        self.time_index.release()

    def close(self) -> None:
        """Close the file; its slices become stale. May be called twice."""
        self.generation += 1
        self.file.close()
