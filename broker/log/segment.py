"""One segment: a file of batches end to end, its two indexes, and its aborted transactions.

A segment knows the positions and timestamps of its batches. Its log decides which offsets come
next, when to roll and what to delete. Batches arrive here validated and stamped.

Exact positions of the last few batches are kept in memory, because nearly every read and every
waiting fetch is at the end of a log: such a read needs neither the disk nor the index.

An index may be wrong after a crash or a disk error. So a read checks that the batch at an index
entry's position is the one that the entry names. If it is not, the segment rebuilds the indexes
from the batches, and the read continues.

Batches may be corrupt, too: no checksum covers the offset, length and leader epoch of a batch, and
a look-up computes no checksum. So each walk from one batch to the next compares offsets. If they do
not follow each other, or a batch is not the one that the index or the memory knows, the walk raises
`BadBytes` with the lost range and where reading can continue.

A read returns slices of the file (`file_slice.py`). Every truncation and the closing of the file
raise the segment's generation, which makes older slices stale.

The file of the active segment stays open. The files of sealed ones are opened when they are read
(`sealed_files.py`), which changes no generation.
"""

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import PurePath

from minibroker.broker.log.cached_reads import CachedReads, Readable
from minibroker.broker.log.file_slice import FileSlice
from minibroker.broker.log.files import File, Files
from minibroker.broker.log.index import (
    OFFSET_MAX,
    RELATIVE_OFFSET_MAX,
    TIME_ENTRY,
    OffsetIndex,
    OffsetPosition,
    TimeIndex,
)
from minibroker.broker.log.scan import (
    BadBytes,
    batch_headers,
    chained_batches,
    find_batch,
    sound_batches,
)
from minibroker.broker.log.sealed_files import SealedFile, SealedFiles
from minibroker.broker.log.transaction_index import TransactionIndex
from minibroker.protocol.constants import BATCH_HEADER_BYTES, MAGIC, NO_TIMESTAMP
from minibroker.protocol.records.batch import BatchHeader, read_header
from minibroker.protocol.records.control import EndMarker, read_end_marker
from minibroker.protocol.types import Buffer

RECENT_BATCHES = 32
DELETED_SUFFIX = ".deleted"


def file_name(base_offset: int, suffix: str) -> str:
    """Return Kafka's name for a file: 20 digits of the base offset, then the suffix."""
    return f"{base_offset:020}{suffix}"


def offsets_in(names: Iterable[str], suffix: str) -> list[int]:
    """Return the offsets in the names of one kind of file, ascending. Ignores other names."""
    stems = (name.removesuffix(suffix) for name in names if name.endswith(suffix))
    is_ours = re.compile(r"[0-9]{20}").fullmatch
    return sorted(int(stem) for stem in stems if is_ours(stem) and int(stem) <= OFFSET_MAX)


class Segment:
    """See the head of this file. `generation` grows when bytes are truncated or the file closes.

    `max_timestamp` and `first_timestamp` are ms, NO_TIMESTAMP for an empty segment or batches
    without one; `created_ms` is when it was made or opened.
    """

    __slots__ = (
        "_bytes_since_entry",
        "_files",
        "_max_timestamp_offset",
        "_recent",
        "_sealed_files",
        "aborted",
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
        sealed_files: SealedFiles,
        *,
        synced: bool | None = None,
    ) -> None:
        """Create the file of an active segment. With `synced` the file exists, and tells whether
        its bytes are known to be synced: the segment is sealed, and needs `load` or recovery."""
        self.base_offset = base_offset
        self.created_ms = created_ms
        self.index_interval_bytes = index_interval_bytes
        self.path = directory / file_name(base_offset, ".log")
        self._files = files
        self._sealed_files = sealed_files
        self.file: File = (
            sealed_files.open_active(files, self.path)
            if synced is None
            else sealed_files.at(files, self.path, is_synced=synced)
        )
        self.offset_index = OffsetIndex(files, self.path.with_suffix(".index"), base_offset)
        self.time_index = TimeIndex(files, self.path.with_suffix(".timeindex"), base_offset)
        self.aborted = TransactionIndex(files, self.path.with_suffix(".txnindex"), base_offset)
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
    def index_paths(self) -> tuple[PurePath, ...]:
        """The paths of the index files; that of the aborted transactions may not exist."""
        return self.offset_index.path, self.time_index.path, self.aborted.path

    @property
    def paths(self) -> tuple[PurePath, ...]:
        """The paths of all files to remove with the segment: the snapshot at its base, too."""
        others = (".index", ".timeindex", ".txnindex", ".snapshot")
        return (self.path, *(self.path.with_suffix(suffix) for suffix in others))

    # -- appending

    def write(self, records: Buffer) -> int:
        """Append bytes, and return their position. After an error none of them stays."""
        position = self.file.size
        try:
            self.file.append([records])
        except OSError:
            self.file.truncate(position)
            raise
        return position

    def index_batch(self, header: BatchHeader, position: int) -> None:
        """Add a batch that was written at `position` to the indexes."""
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
        # Not by its own `__new__`, a call more.
        self._recent.append(tuple.__new__(OffsetPosition, (last_offset, position)))

    def has_room_for(self, header: BatchHeader, index_bytes_max: int) -> bool:
        """Whether 32 bits hold a batch's offsets, and the indexes another entry.

        There is at most one time entry for each offset entry, and it is the larger one. A marker
        aborts at most one transaction.
        """
        return (
            header.base_offset + header.last_offset_delta - self.base_offset <= RELATIVE_OFFSET_MAX
            and (len(self.offset_index) + 1) * TIME_ENTRY.size <= index_bytes_max
            and not (header.is_control and self.aborted.size >= index_bytes_max)
        )

    # -- looking up

    def reads(self, *, may_block: bool) -> Readable:
        """Return the file for a look-up. Where that must not wait for the disk, its reads raise
        NotCached."""
        return self.file if may_block else CachedReads(self)

    def batches_from(
        self, look_up: Callable[[], OffsetPosition], file: Readable
    ) -> Iterator[tuple[int, BatchHeader]]:
        """Iterate over batches from an index entry on, read by `reads`. Raises BadBytes for damage,
        and NotCached as they do."""
        if isinstance(file, CachedReads):
            self.offset_index.require_cached()
        return chained_batches(file, *self._anchor(look_up, file), self.size)

    def _anchor(self, look_up: Callable[[], OffsetPosition], file: Readable) -> tuple[int, int]:
        """Position and base offset of the batch that an index entry names; it is that one."""
        entry = look_up()
        if entry.position == 0:
            return 0, self.base_offset
        header = _header_at(file, entry)
        if header is not None:
            return entry.position, header.base_offset
        if isinstance(file, CachedReads):
            file.require(0, self.size)
        self.rebuild_indexes()
        entry = look_up()
        header = _header_at(file, entry) if entry.position else None
        return (0, self.base_offset) if header is None else (entry.position, header.base_offset)

    def _recent_place(self, offset: int) -> tuple[OffsetPosition, int] | None:
        """The batch that holds an offset, and where it ends, if it is a recent one; an empty one
        at the end if none holds it."""
        end = self.size
        found = OffsetPosition(offset, end)
        for place in reversed(self._recent):
            if place.offset < offset:
                return found, end
            end = end if place is self._recent[-1] else found.position
            found = place
        return (found, end) if found.position == 0 else None

    def modified_ms(self) -> int:
        """Return when batches were last written or cut, by the wall clock (ms). Raises OSError."""
        return self._files.modified_ms(self.path)

    def find(self, offset: int, file: Readable) -> tuple[int, BatchHeader] | None:
        """Return position and header of the batch that holds `offset`; None beyond the last batch.

        For an offset below the base: the first batch. `file` is what `reads` returned. Raises
        BadBytes if the batch is damaged, and NotCached as the reads do.
        """
        offset = max(offset, self.base_offset)
        recent = self._recent_place(offset)
        if recent is not None:
            place, end = recent
            if place.position == self.size:
                return None
            header = _header_at(file, place)
            is_sound = header is not None and place.position + header.size == end
            if header is not None and is_sound and header.base_offset <= offset:
                return place.position, header
        try:
            batches = self.batches_from(lambda: self.offset_index.lookup(offset), file)
            return _holding(batches, offset)
        except BadBytes as bad:
            return self._find_behind(bad, offset, file)

    def _find_behind(
        self, bad: BadBytes, offset: int, file: Readable
    ) -> tuple[int, BatchHeader] | None:
        """Do what `find` does, after the walk has met damaged bytes."""
        while True:
            bad = bounded(bad, file)
            if bad.next_offset is None or bad.next_offset > offset:
                raise bad
            try:
                return _holding(chained_batches(file, bad.end, bad.next_offset, self.size), offset)
            except BadBytes as next_one:
                bad = next_one

    def position_of(self, offset: int) -> int:
        """Return the position of the first batch with `offset` or a later one; `size` without one.

        Raises BadBytes if that batch is damaged.
        """
        if offset <= self.base_offset:
            return 0
        recent = self._recent_place(offset)
        if recent is not None:
            return recent[0].position
        found = self.find(offset, self.file)
        return self.size if found is None else found[0]

    def truncation_point(self, offset: int) -> tuple[int, int]:
        """Where the first batch begins that holds `offset` or a later one, and the offset that
        comes next once it and all behind it are gone. Raises BadBytes for damage before it."""
        end = self.base_offset
        try:
            for position, header in self.batches_from(
                lambda: self.offset_index.lookup(offset - 1), self.file
            ):
                if header.last_offset >= offset:
                    return position, header.base_offset
                end = header.next_offset
        except BadBytes as bad:
            if bad.offset < offset:
                raise
            return bad.position, bad.offset
        return self.size, end

    def position_near(self, offset: int, *, is_end: bool) -> int:
        """Estimate `position_of` without a disk read: exact near the end, else within an interval
        if the index is in memory, and else within the segment.

        The error is to the safe side: too low, or with `is_end` too high.
        """
        if offset <= self.base_offset:
            return 0
        recent = self._recent_place(offset)
        if recent is not None:
            return recent[0].position
        if not self.offset_index.is_in_memory:
            return self.size if is_end else 0
        if is_end:
            entry = self.offset_index.lookup_at_least(offset)
            return self.size if entry is None else entry.position
        return self.offset_index.lookup(offset).position

    def batch_at(self, position: int) -> BatchHeader | None:
        """Return the header of the batch that begins at a position; None at the end."""
        found = next(batch_headers(self.file, position, self.size), None)
        return None if found is None else found[1]

    def sound_from(self, offset: int) -> Iterator[tuple[int, BatchHeader]]:
        """Iterate over positions and headers from the batch with `offset` on, without damaged
        batches."""
        anchor = self._anchor(lambda: self.offset_index.lookup(offset), self.file)
        for position, header in sound_batches(self.file, *anchor):
            if header.last_offset >= offset:
                yield position, header

    def read_marker(self, position: int, header: BatchHeader) -> EndMarker | None:
        """Return the content of the marker at a position; None if that batch is no marker."""
        if not header.is_control:
            return None
        return read_end_marker(self.file.read(position, header.size), header)

    def batches_since(self, timestamp: int, file: Readable) -> Iterator[tuple[int, BatchHeader]]:
        """Iterate over the batches from a place on, before which none is of `timestamp` (ms) or
        later. `file` is what `reads` returned. Raises BadBytes, and NotCached as the reads do."""
        if isinstance(file, CachedReads):
            self.time_index.require_cached()
        offset = self.time_index.lookup(timestamp)
        return self.batches_from(lambda: self.offset_index.lookup(offset), file)

    def slice(self, position: int, end: int) -> FileSlice:
        """Return the bytes from `position` to `end`."""
        return FileSlice(self, position, end - position)

    # -- opening, truncating, closing

    def has_sound_indexes(self) -> bool:
        """Whether the index files exist and their last entries are possible in this segment."""
        size = self.size
        is_sound = self.offset_index.is_sound(size) and self.time_index.is_sound(size)
        if not (is_sound and self.aborted.is_sound()):
            return False
        # A complete time index ends with the newest batch.
        first = self.batch_at(0)
        return first is None or self.time_index.read_last().timestamp >= first.max_timestamp

    def load(self) -> None:
        """Read the timestamps from the index files, without reading the batches."""
        newest = self.time_index.read_last()
        self.max_timestamp, self._max_timestamp_offset = newest
        first = self.batch_at(0)
        self.first_timestamp = NO_TIMESTAMP if first is None else first.max_timestamp

    def load_tail(self) -> tuple[int, BatchHeader | None]:
        """Walk from the last index entry on; return the end of the sound batches, and the header of
        the last one."""
        batches = self.batches_from(self.offset_index.last, self.file)
        # The entry is read after that, because a wrong index is rebuilt.
        entry = self.offset_index.last()
        self.max_timestamp, self._max_timestamp_offset = self.time_index.last()
        self._recent.clear()
        end, last = entry.position, None
        try:
            for position, header in batches:
                if position == 0:
                    self.first_timestamp = header.max_timestamp
                if header.max_timestamp > self.max_timestamp:
                    self.max_timestamp = header.max_timestamp
                    self._max_timestamp_offset = header.last_offset
                self._recent.append(OffsetPosition(header.last_offset, position))
                end, last = position + header.size, header
        except BadBytes as bad:
            # The opening of the log sees that it ends before its file, and checks it.
            end = min(end, bad.position)
        if entry.position:
            self.first_timestamp = getattr(self.batch_at(0), "max_timestamp", NO_TIMESTAMP)
        self._bytes_since_entry = end - entry.position
        return end, last

    def forget_indexes(self) -> None:
        """Empty the indexes of offsets and times, so that every batch can be added again."""
        self.offset_index.clear()
        self.time_index.clear()
        self.max_timestamp = NO_TIMESTAMP
        self.first_timestamp = NO_TIMESTAMP
        self._max_timestamp_offset = self.base_offset
        self._bytes_since_entry = 0
        self._recent.clear()

    def rebuild_indexes(self) -> None:
        """Rebuild the indexes from the batches, without damaged ones."""
        self.forget_indexes()
        for position, header in sound_batches(self.file, 0, self.base_offset):
            self.index_batch(header, position)

    def truncate(self, position: int, end_offset: int) -> int:
        """Cut the bytes from a batch boundary on, and return the offset that comes next.

        `end_offset` is the offset of the batch that begins at the boundary, or would.
        """
        self.generation += 1
        self.file.truncate(position)
        self.offset_index.truncate(end_offset)
        self.time_index.truncate(end_offset)
        self.aborted.truncate(end_offset)
        _, last = self.load_tail()
        return self.base_offset if last is None else last.next_offset

    def write_indexes(self) -> None:
        """Write the index files: when the segment is sealed, and when the log is closed."""
        self.time_index.append_if_newer(self.max_timestamp, self._max_timestamp_offset)
        self.aborted.write()  # first: where the others are whole, this one is
        self.offset_index.write()
        self.time_index.write()

    def release_indexes(self) -> None:
        """Free the memory of a sealed segment's indexes until they are needed again."""
        self.offset_index.release()
        self.time_index.release()
        self.aborted.release()

    def seal(self) -> None:
        """Let the file be closed and opened on demand: the segment is not written any more."""
        if not isinstance(self.file, SealedFile):
            self.file = sealed = self._sealed_files.adopt(self._files, self.path, self.file)
            # Not before: a slice that finds its file closed looks for another file here.
            self._sealed_files.seal(sealed)

    def rest(self) -> None:
        """Seal the file of an active segment if there are too many: then each write opens it."""
        if self._sealed_files.budget.has_too_many_logs():
            self.seal()

    def activate(self) -> None:
        """Keep the file open, to write to the segment. If no descriptor is free for that, it stays
        sealed, and each write opens it."""
        if not isinstance(self.file, SealedFile):
            return
        sealed = self.file
        file = self._sealed_files.activate(sealed)
        if file is not None:
            self.file = file
            self._sealed_files.hand_over(sealed)

    def move_file(self, directory: PurePath, suffix: str = "") -> None:
        """Record where the file of a sealed segment is now: the directory, and what was added to
        its name. Close it until it is read again."""
        assert isinstance(self.file, SealedFile), "a file that is moved is written no more"
        self.file.path = directory / (self.file.path.name + suffix)
        self._sealed_files.close(self.file)

    def move_to(self, directory: PurePath) -> None:
        """Record that the log's directory was renamed; its files stay in use."""
        self.path = directory / self.path.name
        for index in (self.offset_index, self.time_index, self.aborted):
            index.path = directory / index.path.name
        if isinstance(self.file, SealedFile):
            self.file.path = self.path

    def return_file(self) -> None:
        """Record that the file of a sealed segment has its first name again."""
        assert isinstance(self.file, SealedFile)
        self.file.path = self.path
        self._sealed_files.close(self.file)

    def close(self) -> None:
        """Close the file; its slices become stale. May be called twice."""
        self.generation += 1
        if isinstance(self.file, SealedFile):
            self.file.close()
        else:
            self.file = self._sealed_files.close_active(self._files, self.path, self.file)


def bounded(bad: BadBytes, file: Readable) -> BadBytes:
    """Return the same damage, with the start of the next sound batch."""
    position = find_batch(file, bad.position + 1, bad.offset + 1)
    if position is None:
        return bad
    header = read_header(file.read(position, BATCH_HEADER_BYTES))
    return bad.until(header.base_offset, position)


def _header_at(file: Readable, place: OffsetPosition) -> BatchHeader | None:
    """Return the header of a batch whose last offset and position are known; None if the batch is
    not there. The length in the header is unchecked."""
    data = file.read(place.position, BATCH_HEADER_BYTES)
    if len(data) < BATCH_HEADER_BYTES:
        return None
    header = read_header(data)
    is_it = header.magic == MAGIC and header.last_offset == place.offset
    return header if is_it and header.last_offset_delta >= 0 else None


def _holding(
    batches: Iterator[tuple[int, BatchHeader]], offset: int
) -> tuple[int, BatchHeader] | None:
    """The first batch that holds an offset or a later one. Raises BadBytes if it is damaged: the
    next one does not begin where this one ends, and its checksum is wrong."""
    for position, header in batches:
        if header.last_offset >= offset:
            try:
                next(batches, None)
            except BadBytes as bad:
                if bad.position <= position:
                    raise
            return position, header
    return None
