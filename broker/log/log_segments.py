"""The segments of one log, in order: finding, reading, measuring, rolling, retention, deletion.

Invariant: there is always at least one; bases grow; all but the last (the active one) are sealed,
which means that they are not written any more and their index files are complete.

Reads return file slices, one per segment, cut at batch boundaries: a reader gets whole batches
only, so no bytes are sent that it would have to throw away. The offsets and the leader epochs where
a slice begins and ends are checked.

A log rolls to a new segment before an append, by size, age or full indexes (`must_roll`). Retention
deletes the oldest segments by age, by size, or because they lie below the log start
(`expired_segments`). The files of a deleted segment are renamed at once and removed after
`file.delete.delay.ms` (`DeletedSegments`). Until then a slice of the segment, which may still be on
its way to a slow client, can be read: its file is opened again under the new name.
"""

import bisect
import zlib
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import PurePath
from typing import NamedTuple

from minibroker.broker.log.cached_reads import NotCached
from minibroker.broker.log.file_slice import FileSlice
from minibroker.broker.log.files import Files
from minibroker.broker.log.outcomes import LogLimits
from minibroker.broker.log.runs import find_run
from minibroker.broker.log.scan import BadBytes
from minibroker.broker.log.segment import DELETED_SUFFIX, Segment
from minibroker.broker.log.transaction_index import AbortedEntry
from minibroker.broker.turns import Steps
from minibroker.protocol.constants import INT64_MAX, NO_TIMESTAMP
from minibroker.protocol.epoch_history import EpochHistory
from minibroker.protocol.records.batch import BatchHeader

CLEANED_SUFFIX = ".cleaned"  # of a copy that compaction is writing
SWAP_SUFFIX = ".swap"  # of a whole copy, until it has the place of its segments


class LogSegments:
    """See the head of this file."""

    def __init__(self) -> None:
        self._bases: list[int] = []
        self._list: list[Segment] = []

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._list)

    def __len__(self) -> int:
        return len(self._list)

    def __getitem__(self, index: int) -> Segment:
        return self._list[index]

    @property
    def active(self) -> Segment:
        """The newest segment, to which batches are appended."""
        return self._list[-1]

    @property
    def first(self) -> Segment:
        """The oldest segment."""
        return self._list[0]

    @property
    def size(self) -> int:
        """The size of all segments in bytes."""
        return sum(segment.size for segment in self._list)

    def add(self, segment: Segment) -> None:
        """Add a segment; its base is above all others."""
        assert not self._bases or segment.base_offset > self._bases[-1]
        self._bases.append(segment.base_offset)
        self._list.append(segment)

    def pop_first(self, count: int) -> list[Segment]:
        """Take out the oldest segments, and return them; at least one stays."""
        assert count < len(self._list)
        popped = self._list[:count]
        del self._list[:count], self._bases[:count]
        return popped

    def pop_from(self, index: int) -> list[Segment]:
        """Take out the segment at `index` and all newer ones, and return them."""
        popped = self._list[index:]
        del self._list[index:], self._bases[index:]
        return popped

    def replace(self, index: int, count: int, segment: Segment) -> list[Segment]:
        """Put a segment in the place of `count` others with the same offsets; return these."""
        replaced = self._list[index : index + count]
        assert replaced[0].base_offset == segment.base_offset
        self._list[index : index + count] = [segment]
        self._bases[index : index + count] = [segment.base_offset]
        return replaced

    def remove_from(self, index: int, files: Files) -> None:
        """Remove the files of these segments at once, newest first, to leave no gap."""
        for segment in reversed(self.pop_from(index)):
            segment.close()
            for path in segment.paths:
                files.remove(path)

    def index_of(self, offset: int) -> int:
        """Return the index of the segment that holds an offset; 0 for offsets below all."""
        return max(0, bisect.bisect_right(self._bases, offset) - 1)

    def from_offset(self, offset: int) -> list[Segment]:
        """Return the segment that holds `offset`, and the newer ones."""
        return self._list[self.index_of(offset) :]

    def end_of(self, index: int, log_end: int) -> int:
        """Return the offset after the last of a segment: the base of the next segment."""
        return self._bases[index + 1] if index + 1 < len(self._bases) else log_end

    # -- reading

    def read(
        self,
        offset: int,
        bytes_max: int,
        end_offset: int,
        at_least_one: bool,
        epochs: EpochHistory,
        *,
        may_block: bool = True,
    ) -> tuple[list[FileSlice], int]:
        """Return whole batches below `end_offset`, beginning with the one that holds `offset`, and
        the offset that follows them.

        They end before a damaged batch. Raises BadBytes if the first batch is damaged, so that no
        reader takes damage for the end of the log. Unless it `may_block`, it raises NotCached where
        it would wait for the disk, but ends before a segment for which it would.
        """
        slices: list[FileSlice] = []
        room = bytes_max
        for index in range(self.index_of(offset), self.index_of(end_offset - 1) + 1):
            segment, behind = self._list[index], self.end_of(index, end_offset + 1)
            try:
                run = find_run(segment, offset, end_offset, room, epochs, may_block=may_block)
            except NotCached:
                if slices:
                    break
                raise
            except BadBytes as bad:
                if slices:
                    break
                if bad.next_offset is None and behind < end_offset:
                    raise bad.until(behind, bad.end) from None
                raise
            if run is None:
                break
            size = run.end - run.start
            if size > room and (slices or not at_least_one):
                break
            slices.append(segment.slice(run.start, run.end))
            room -= size
            offset = run.next_offset
            if room <= 0 or run.end < segment.size or offset != behind:
                break
        return slices, offset

    def readable_bytes(self, offset: int, end_offset: int) -> int:
        """Estimate the bytes between two offsets, without a disk read.

        Exact near the end of the log; elsewhere too many by at most an index interval and a batch
        at each side, or the rest of a segment whose index is not in memory; never too few.
        """
        if offset >= end_offset:
            return 0
        first, last = self.index_of(offset), self.index_of(end_offset - 1)
        end = self._list[last].position_near(end_offset, is_end=True)
        between = sum(segment.size for segment in self._list[first:last])
        return between + end - self._list[first].position_near(offset, is_end=False)

    def batches(self, offset: int, end_offset: int) -> Iterator[tuple[Segment, int, BatchHeader]]:
        """Segment, position and header of every batch from the one that holds `offset` on, up to
        `end_offset`, but for damaged ones."""
        for segment in self.from_offset(offset):
            for position, header in segment.sound_from(offset):
                if header.base_offset >= end_offset:
                    return
                yield segment, position, header

    def aborted(
        self, offset: int, end_offset: int, *, may_block: bool = True
    ) -> Iterator[AbortedEntry]:
        """The aborted transactions with records between two offsets, in the order of their markers.
        All transactions that begin below `end_offset` must have ended. Raises NotCached unless it
        `may_block`."""
        for segment in self.from_offset(offset):
            if not may_block:
                segment.aborted.require_cached()
            for entry in segment.aborted.ending_from(offset):
                if entry.first_offset < end_offset:
                    yield entry
                if entry.last_stable >= end_offset:
                    return


class Extent(NamedTuple):
    """The offsets that bound a log, and how much of it is committed."""

    log_start: int
    high_watermark: int
    log_end: int


class ExpiredSegments(NamedTuple):
    """The oldest segments of a log, which retention deletes for one `reason`. They end before the
    offset `end`; the largest timestamp is in milliseconds, NO_TIMESTAMP without one."""

    reason: str
    segments: int
    end: int
    size: int
    max_timestamp: int

    def __str__(self) -> str:
        time = f"{self.max_timestamp} ms"
        with suppress(ValueError, OverflowError, OSError):  # a year that the calendar lacks
            moment = datetime.fromtimestamp(self.max_timestamp / 1000, UTC)
            time = moment.isoformat(timespec="milliseconds")
        count = "1 segment" if self.segments == 1 else f"{self.segments} segments"
        return (
            f"{count}, up to offset {self.end - 1}, of {self.size} bytes, largest"
            f" timestamp {time}: {self.reason}"
        )


def expired_segments(
    segments: LogSegments, limits: LogLimits, extent: Extent, now_ms: int
) -> list[ExpiredSegments]:
    """Return the segments that are to be deleted, from the oldest on.

    Only those that end at or below the high watermark, never an empty active one.
    Age: the newest record is older than `retention_ms`. Where the largest timestamp is none, or
    one that the log would refuse now, the time counts at which the file was last written: one
    record with a wrong time keeps no segment for ever, nor those behind it.
    Size: the log keeps at least `retention_bytes` without the segment. Raises OSError.
    """
    left = segments.size
    found: list[ExpiredSegments] = []
    for index, segment in enumerate(segments):
        end = segments.end_of(index, extent.log_end)
        if end > extent.high_watermark or segment.size == 0:
            break
        max_timestamp = segment.max_timestamp
        if end <= extent.log_start:
            reason = "below the log start"
        elif age := _age_beyond(segment, limits, now_ms):
            reason = age
        elif 0 <= limits.retention_bytes <= left - segment.size:
            reason = f"the log keeps retention.bytes={limits.retention_bytes} without that"
        else:
            break
        left -= segment.size
        one = ExpiredSegments(reason, 1, end, segment.size, max_timestamp)
        if found and found[-1].reason == reason:
            last = found.pop()
            newest = max(last.max_timestamp, max_timestamp)
            one = ExpiredSegments(reason, last.segments + 1, end, last.size + segment.size, newest)
        found.append(one)
    return found


def _age_beyond(segment: Segment, limits: LogLimits, now_ms: int) -> str:
    """Say why a segment is too old to be kept; "" if it is not. Raises OSError."""
    if limits.retention_ms < 0:
        return ""
    newest, by_what = _newest_ms(segment, limits, now_ms)
    is_old = now_ms - newest > limits.retention_ms
    return f"older than retention.ms={limits.retention_ms}{by_what}" if is_old else ""


def _newest_ms(segment: Segment, limits: LogLimits, now_ms: int) -> tuple[int, str]:
    """Return the time (ms) from which the age of a segment counts, and why it is not its largest
    timestamp; "" if it is. Raises OSError."""
    newest = segment.max_timestamp
    if is_believable(newest, limits, now_ms):
        return newest, ""
    what = "it has no timestamps" if newest == NO_TIMESTAMP else "that timestamp is wrong"
    return segment.modified_ms(), f" since its last append ({what})"


class OldestSegment(NamedTuple):
    """The segment that retention deletes next, and when. `first_timestamp` (ms) is of its first
    batch, NO_TIMESTAMP without one. It goes by age when `due_ms` is over, and by size after
    `bytes_left` more bytes of batches; NEVER without that limit."""

    first_timestamp: int
    size: int
    due_ms: int
    bytes_left: int


NEVER = -1


def oldest_segment(
    segments: LogSegments, limits: LogLimits, extent: Extent, now_ms: int
) -> OldestSegment:
    """Return the oldest segment as `expired_segments` looks at it. What is not committed stays
    longer. An active segment goes by size only after the roll to the next one. NEVER by age, too,
    where the time of its last append cannot be read."""
    segment = segments.first
    first, size = segment.first_timestamp, segment.size
    if size == 0:
        return OldestSegment(NO_TIMESTAMP, 0, NEVER, NEVER)
    if segments.end_of(0, extent.log_end) <= extent.log_start:
        return OldestSegment(first, size, now_ms, 0)
    due_ms = bytes_left = NEVER
    if limits.retention_ms >= 0:
        with suppress(OSError):
            newest, _ = _newest_ms(segment, limits, now_ms)
            due_ms = min(newest + limits.retention_ms, INT64_MAX)
    if limits.retention_bytes >= 0:
        bytes_left = max(0, limits.retention_bytes - (segments.size - size))
        if bytes_left and segment is segments.active:
            bytes_left += max(0, limits.segment_bytes - size)
        bytes_left = min(bytes_left, INT64_MAX)
    return OldestSegment(first, size, due_ms, bytes_left)


def is_believable(timestamp: int, limits: LogLimits, now_ms: int) -> bool:
    """Whether a timestamp is one, and no further ahead of the wall clock than the log allows."""
    return 0 <= timestamp <= now_ms + limits.timestamp_after_max_ms


def must_roll(segment: Segment, header: BatchHeader, limits: LogLimits, now_ms: int) -> bool:
    """Whether a batch must not go into this segment; into an empty one it always may.

    Age is the span between the first batch's time and this one's. Where one of them is no
    timestamp, or one that the log would refuse now, it is the time (wall clock, ms) since the
    segment was made or opened.
    """
    size = segment.file.size
    if size == 0:
        return False
    if not segment.has_room_for(header, limits.index_bytes_max):
        return True
    newest, first = header.max_timestamp, segment.first_timestamp
    if 0 <= newest <= (latest := now_ms + limits.timestamp_after_max_ms) and 0 <= first <= latest:
        age_ms = newest - first
    else:
        age_ms = now_ms - segment.created_ms
    return size + header.size > limits.segment_bytes or age_ms > limits.segment_ms - (
        _jitter_ms(segment, limits.segment_jitter_ms) if limits.segment_jitter_ms else 0
    )


def _jitter_ms(segment: Segment, jitter_ms_max: int) -> int:
    """Return by how much earlier a segment rolls, so that logs do not all roll at once."""
    return zlib.crc32(str(segment.path).encode()) % (jitter_ms_max + 1)


def is_delay_over(due_ms: int, delay_ms: int, now_ms: int) -> bool:
    """Whether a delay has passed, by a wall clock that may jump: at once if it went back."""
    return not 0 < due_ms - now_ms <= delay_ms


class _Deleted(NamedTuple):
    due_ms: int
    delay_ms: int
    segment: Segment
    renamed: dict[PurePath, PurePath]  # the names before, by the present ones


class DeletedSegments:
    """Deleted segments of one log, in the order of their removal. Times are wall clock ms."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._deleted: list[_Deleted] = []

    def __len__(self) -> int:
        return len(self._deleted)

    def add(self, segment: Segment, now_ms: int, delay_ms: int) -> None:
        """Rename a segment's files; they are removed when `delay_ms` have passed. A compacted log
        may have had another segment of that name, which slices still need."""
        suffix, number = DELETED_SUFFIX, 0
        while self._files.exists(segment.path.with_name(segment.path.name + suffix)):
            number += 1
            suffix = f".{number}{DELETED_SUFFIX}"
        renamed: dict[PurePath, PurePath] = {}
        self._deleted.append(_Deleted(now_ms + delay_ms, delay_ms, segment, renamed))
        for path in segment.paths:
            if self._files.exists(path):
                target = path.with_name(path.name + suffix)
                self._files.rename(path, target)
                renamed[target] = path
                if path == segment.path:
                    segment.move_file(path.parent, suffix)

    def take_back(self, segment: Segment) -> None:
        """Undo `add`, as far as it went."""
        for deleted in [one for one in self._deleted if one.segment is segment]:
            for target, path in [*deleted.renamed.items()]:
                self._files.rename(target, path)
                del deleted.renamed[target]
            segment.return_file()
            self._deleted.remove(deleted)

    def remove_due(self, now_ms: int) -> Steps[int | None]:
        """Remove the files that are due, in workers. Return when the next are due, None if none are
        left."""
        for deleted in [item for item in self._deleted if is_delay_over(*item[:2], now_ms)]:
            deleted.segment.close()
            for path in [*deleted.renamed]:
                yield partial(self._files.remove, path)
            self._deleted.remove(deleted)
        return min((item.due_ms for item in self._deleted), default=None)

    def move_to(self, directory: PurePath) -> None:
        """Record that the log's directory was renamed."""
        for deleted in self._deleted:
            deleted.segment.move_file(directory)

    def close(self) -> None:
        """Close the files; they are removed when the log is opened again."""
        for deleted in self._deleted:
            deleted.segment.close()
