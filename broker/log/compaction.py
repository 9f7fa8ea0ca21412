"""Compaction of one log, from what is due to the files: see `cleaning.py` for the rules.

The copy of a group of segments is written to a `.cleaned` file, which a start removes. Once it is
whole and synced it is renamed to `.swap`; from then on a start finishes what a crash cuts short
(`loading.py`): the segments whose offsets the copy has are removed, and it takes their place. A
slice of a replaced segment stays readable until the segment's files are removed.

The rename to `.swap` is the border between what a failing disk leaves as it was, and what it may
leave half done: see `_swap`.

The log may change while a computation pauses. Appends do no harm, nor does a higher log start. If
the log was truncated (a key that was read may be gone), if segments that it reads were deleted or
closed, the log's directory was renamed, or its topic is compacted no more, it raises `Interrupted`.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import PurePath
from typing import NamedTuple

from minibroker.broker.log.cleaning import (
    AbortedBatches,
    CannotCompact,
    Cleanable,
    Cleaned,
    Copier,
    Interrupted,
    Needed,
    Traffic,
    Transactions,
    copy_group,
    find_cleanable,
    groups,
    read_keys,
)
from minibroker.broker.log.durability import Durability
from minibroker.broker.log.files import OFFLINE, Files
from minibroker.broker.log.log_segments import (
    CLEANED_SUFFIX,
    SWAP_SUFFIX,
    DeletedSegments,
    LogSegments,
)
from minibroker.broker.log.newest_offsets import NewestOffsets
from minibroker.broker.log.outcomes import (
    SHORTAGES,
    LogLimits,
    LogLocation,
    require_descriptors,
)
from minibroker.broker.log.producers import ProducerStates
from minibroker.broker.log.segment import Segment
from minibroker.broker.turns import Steps
from minibroker.protocol.constants import INT64_MAX

logger = logging.getLogger(__name__)


class LastRun(NamedTuple):
    """How a compaction ended, at a time of the broker's clock: the bytes, or what stopped it."""

    at: float
    bytes_read: int = 0
    bytes_freed: int = 0
    stopped: str = ""


class HalfSwapped(Exception):
    """A copy could neither take the place of its segments, nor leave it to them: the broker ends,
    and its next start finishes the swap."""


class Compaction:
    """See the head of this file. What is below `first_dirty` was compacted. `last_run` is the last
    one since the start, which the caller of `clean` records; `traffic` counts the bytes of all.

    `location` returns where the log is now. `limits` are the log's settings.
    """

    def __init__(
        self,
        segments: LogSegments,
        deleted: DeletedSegments,
        durability: Durability,
        producers: ProducerStates,
        limits: Callable[[], LogLimits],
        location: Callable[[], LogLocation],
    ) -> None:
        self.first_dirty = 0
        self.traffic = Traffic()
        self.last_run: LastRun | None = None
        self._segments = segments
        self._deleted = deleted
        self._durability = durability
        self._producers = producers
        self._get_limits = limits
        self._get_location = location

    @property
    def _limits(self) -> LogLimits:
        return self._get_limits()

    @property
    def _files(self) -> Files:
        return self._get_location().files

    @property
    def segment_count(self) -> int:
        """How many segments `find_cleanable` looks at, at most."""
        return len(self._segments)

    def truncate_to(self, offset: int) -> None:
        """Record that the log is truncated. What is written there next may have an older record
        below, before which its tombstone must not go."""
        self.first_dirty = min(self.first_dirty, offset)

    def find_cleanable(self, last_stable: int, now_ms: int) -> Cleanable:
        """Return what of the log may be compacted now, below the last stable offset; `now_ms` is
        the wall clock."""
        return find_cleanable(self._segments, self._limits, self.first_dirty, last_stable, now_ms)

    def find_sealed(self, last_stable: int) -> Cleanable:
        """Return what of the log may be compacted once it is old enough."""
        return self.find_cleanable(last_stable, INT64_MAX)

    def clean(self, found: Cleanable, map_bytes_max: int, now_ms: int) -> Steps[Cleaned]:
        """Compact what was found, with about so many bytes for the newest offsets of keys.

        Raises Interrupted; BadBytes and InvalidBatch for batches that cannot be read; CannotCompact
        if the disk fails; OSError for a full disk, or where no file descriptor is free; HalfSwapped
        if the broker must end. What was compacted until then stays so.
        """
        segments = list(self._segments)[: self._segments.index_of(found.end)]
        dirty = segments[self._segments.index_of(found.first_dirty) :]
        newest = NewestOffsets(map_bytes_max, found.first_dirty)
        read, left = sum([segment.size for segment in dirty]), 0
        with self._watch(dirty) as require_unchanged:
            span = self._segments.aborted(newest.end, found.end)
            aborted = yield partial(AbortedBatches, span)
            require_unchanged()
            yield from read_keys(dirty, newest, aborted, self.traffic, require_unchanged)
            yield from newest.sort()
            segments = segments[: self._segments.index_of(newest.end - 1) + 1]
            base_offset = segments[0].base_offset
            span = self._segments.aborted(base_offset, found.end)
            aborted = yield partial(AbortedBatches, span)
            require_unchanged()
        needed = Needed(self._producers.last_offsets(), self._producers.last_markers())
        transactions = Transactions(aborted, set())
        for group in groups(segments, self._limits.segment_bytes, found.end):
            read += sum([segment.size for segment in group])
            copier = Copier(newest, self._limits, needed, transactions, now_ms)
            left += yield from self._clean_group(group, copier, now_ms)
        self.first_dirty = max(self.first_dirty, newest.end)
        return Cleaned(newest.end, read, left)

    @contextmanager
    def _watch(self, segments: Sequence[Segment]) -> Iterator[Callable[[], None]]:
        """Return a function that raises Interrupted once these segments are no more as they are
        now. What a step raises because of that is replaced by Interrupted, and what it raises
        because the disk fails by CannotCompact."""
        generations = [segment.generation for segment in segments]
        directory, truncations = self._get_location().directory, self._durability.generation

        def require_unchanged() -> None:
            start = self._segments.index_of(segments[0].base_offset)
            is_unchanged = (
                self._limits.is_compacted
                and self._durability.generation == truncations
                and self._get_location().directory == directory
                and [*self._segments][start : start + len(segments)] == segments
                and [segment.generation for segment in segments] == generations
            )
            if not is_unchanged:
                raise Interrupted

        try:
            yield require_unchanged
        except OSError as error:
            require_unchanged()
            if error.errno in SHORTAGES:
                raise
            raise CannotCompact(str(error)) from error

    def _clean_group(self, group: Sequence[Segment], copier: Copier, now_ms: int) -> Steps[int]:
        """Copy the segments of a group, and put the copy in their place if it differs; return the
        size."""
        copied = self._new_segment(group[0].base_offset, now_ms)
        path = copied.path.with_name(copied.path.name + CLEANED_SUFFIX)
        with self._watch(group) as require_unchanged:
            try:
                size = yield from self._copy(group, path, copied, copier, require_unchanged)
                is_needed = copier.has_changed or len(group) > 1
                if is_needed:
                    self._swap(group, copied, path, now_ms)
                else:
                    self._files.remove(path)
            except Exception:
                self._drop(path)
                raise
        if is_needed:
            self._write_indexes(copied)
        return size

    def _copy(
        self,
        group: Sequence[Segment],
        path: PurePath,
        copied: Segment,
        copier: Copier,
        require_unchanged: Callable[[], None],
    ) -> Steps[int]:
        """Write the copy of a group to a file, synced if it is needed; return its size."""
        self._files.remove(path)
        target = self._files.open(path, create=True)
        try:
            yield from copy_group(group, target, copied, copier, self.traffic, require_unchanged)
            if copier.has_changed or len(group) > 1:
                yield target.sync_now
                require_unchanged()
            return target.size
        finally:
            target.close()

    def _drop(self, path: PurePath) -> None:
        """Remove a copy that is of no use; if the disk refuses that, the next compaction of these
        segments does it, or the next start."""
        try:
            self._files.remove(path)
        except OSError as error:
            logger.warning("%s cannot be removed now: %s", path, error)

    def _new_segment(self, base_offset: int, now_ms: int) -> Segment:
        """Return the segment of a copy, with empty indexes. Its file is there after `_replace`."""
        location = self._get_location()
        segment = Segment(
            location.files,
            location.directory,
            base_offset,
            now_ms,
            self._limits.index_interval_bytes,
            location.sealed_files,
            synced=True,
        )
        segment.forget_indexes()
        segment.aborted.clear()
        return segment

    def _swap(self, group: Sequence[Segment], copied: Segment, path: PurePath, now_ms: int) -> None:
        """Put a synced copy in the place of its segments, without a pause.

        The first rename is the border: until it is done, an error leaves the log as it was. After
        it a start would finish the swap. So an error there is first undone, name by name, and only
        where the disk refuses that, too, the broker must end (`HalfSwapped`).
        """
        require_descriptors(self._files, path)
        swap = copied.path.with_name(copied.path.name + SWAP_SUFFIX)
        self._files.rename(path, swap)
        self._durability.record_name_change()
        try:
            for segment in group:
                self._deleted.add(segment, now_ms, self._limits.file_delete_delay_ms)
            self._files.rename(swap, copied.path)
        except OSError as error:
            self._undo(group, swap, error)
            raise
        self._segments.replace(self._segments.index_of(copied.base_offset), len(group), copied)

    def _undo(self, group: Sequence[Segment], swap: PurePath, error: OSError) -> None:
        try:
            for segment in reversed(group):
                self._deleted.take_back(segment)
            self._files.remove(swap)
        except OSError as second:
            if second.errno == OFFLINE:  # the next start with the directory finishes the swap
                raise
            raise HalfSwapped(f"{swap}: {error}, and then {second}") from second

    def _write_indexes(self, copied: Segment) -> None:
        try:
            copied.write_indexes()
        except OSError as error:
            what = "%s: its index cannot be written, and stays in memory until the next start: %s"
            logger.warning(what, copied.path, error.strerror)
        copied.release_indexes()
