"""Compaction of one log: the last record of each key stays, with its offset.

A log has a *clean* part, which was compacted before, then a *dirty* one. Compaction ends below the
last stable offset (so it reads no transaction that may be open, or whose marker is not committed),
below the active segment, and below the first segment with a record that is younger than
`min.compaction.lag.ms`. It is worth while once enough of it is dirty
(`min.cleanable.dirty.ratio`), or the oldest dirty record is older than `max.compaction.lag.ms`.

It reads the dirty part once, for the newest offset of each key, and then copies the log from its
beginning. Of the dirty part it decodes only batches that have one of these offsets. It leaves out

* records of which a newer one has the same key;
* tombstones (records without a value) whose delete horizon has passed: `delete.retention.ms` after
  the compaction that met them first;
* records without a key, which only a topic has that was not compacted before;
* all records of aborted transactions, also above what it has read: so the copy of a segment needs
  no list of aborted transactions;
* the markers of transactions of which the log has had no batch left for `delete.retention.ms`.

A producer's last batch stays, empty if its records go, so that a restart knows its sequence. In the
place of all other batches of which nothing stays comes a filler (`protocol.records.retained`): a
compacted log has no gaps, and its batches keep their leader epochs.

Segments that are small after that are merged, up to `segment.bytes`. What takes long is yielded to
a worker thread, in pieces of some kilobytes (`Steps`). `compaction.py` does this to a log.
"""

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from itertools import compress as select
from itertools import pairwise
from typing import Final, NamedTuple

from minibroker.broker.log.cached_reads import reading_ahead
from minibroker.broker.log.files import File
from minibroker.broker.log.index import RELATIVE_OFFSET_MAX
from minibroker.broker.log.log_segments import LogSegments, is_believable
from minibroker.broker.log.newest_offsets import NewestOffsets
from minibroker.broker.log.outcomes import LogLimits
from minibroker.broker.log.scan import BadBytes
from minibroker.broker.log.segment import Segment
from minibroker.broker.log.transaction_index import AbortedEntry
from minibroker.broker.turns import Steps
from minibroker.protocol.constants import (
    BATCH_HEADER_BYTES,
    INT64_MAX,
    NO_TIMESTAMP,
    ErrorCode,
)
from minibroker.protocol.records.batch import (
    BatchHeader,
    InvalidBatch,
    has_valid_crc,
    read_header,
)
from minibroker.protocol.records.columns import Columns, decode_columns, decode_keys
from minibroker.protocol.records.control import read_end_marker
from minibroker.protocol.records.retained import (
    COMPACTED_RECORDS_MAX,
    OFFSETS_MAX,
    empty,
    filler,
    retain,
)
from minibroker.protocol.types import Buffer

BYTES_AT_ONCE: Final = 16 * 1024  # read and copied in one step


class Interrupted(Exception):
    """The log changed in the middle of its compaction, which is to be done anew."""


class CannotCompact(Exception):
    """The disk failed while a log was read or its copy written; the log is as it was."""


class Cleanable(NamedTuple):
    """What of a log may be compacted: segments below the offset `end`, of `clean_size` and
    `dirty_size` bytes. The dirty part begins at `first_dirty`."""

    first_dirty: int
    end: int
    clean_size: int
    dirty_size: int
    is_overdue: bool

    @property
    def dirty_share(self) -> float:
        """How much of it is dirty, from 0 to 1."""
        size = self.clean_size + self.dirty_size
        return self.dirty_size / size if size else 0.0

    def is_due(self, limits: LogLimits) -> bool:
        """Whether to compact it now."""
        return self.dirty_size > 0 and (
            self.is_overdue or self.dirty_share >= limits.cleanable_dirty_ratio_min
        )


class Cleaned(NamedTuple):
    """A compaction: the log is clean below `end`; bytes before and after."""

    end: int
    bytes_read: int
    bytes_left: int


def find_cleanable(
    segments: LogSegments, limits: LogLimits, first_dirty: int, last_stable: int, now_ms: int
) -> Cleanable:
    """Return what of a log may be compacted now, which may be nothing."""
    end = segments.first.base_offset
    first_dirty = max(first_dirty, end)
    clean_size = dirty_size = 0
    is_overdue = False
    for segment, following in pairwise(segments):
        if following.base_offset > last_stable:
            break
        newest, lag_ms = segment.max_timestamp, limits.compaction_lag_min_ms
        if lag_ms and is_believable(newest, limits, now_ms) and newest > now_ms - lag_ms:
            break
        end = following.base_offset
        if end <= first_dirty:
            clean_size += segment.size
            continue
        if not dirty_size:
            oldest = segment.first_timestamp
            is_overdue = NO_TIMESTAMP < oldest < now_ms - limits.compaction_lag_max_ms
        dirty_size += segment.size
    return Cleanable(min(first_dirty, end), end, clean_size, dirty_size, is_overdue)


def groups(segments: Sequence[Segment], bytes_max: int, log_end: int) -> Iterator[list[Segment]]:
    """Yield the segments in groups that become one segment each: together not larger than
    `bytes_max`, unless one alone is, and of offsets that fit an index."""
    group: list[Segment] = []
    size = 0
    bases = [*(segment.base_offset for segment in segments[1:]), log_end]
    for segment, end in zip(segments, bases, strict=True):
        is_full = group and (
            size + segment.size > bytes_max or end - group[0].base_offset > RELATIVE_OFFSET_MAX
        )
        if is_full:
            yield group
            group, size = [], 0
        group.append(segment)
        size += segment.size
    if group:
        yield group


class Traffic:
    """Counts the bytes that compactions of a log have read and written."""

    def __init__(self) -> None:
        self.bytes = 0


class AbortedBatches:
    """Tells the batches of aborted transactions, by the transactions' entries."""

    def __init__(self, entries: Iterable[AbortedEntry] = ()) -> None:
        self._spans: dict[int, list[tuple[int, int]]] = {}
        for entry in entries:
            spans = self._spans.setdefault(entry.producer_id, [])
            spans.append((entry.first_offset, entry.last_offset))

    def has(self, header: BatchHeader) -> bool:
        """Whether a batch belongs to one of these transactions."""
        if not header.is_transactional or header.is_control:
            return False
        spans = self._spans.get(header.producer_id)
        if spans is None:
            return False
        at = bisect_right(spans, (header.base_offset, INT64_MAX)) - 1
        return at >= 0 and header.base_offset < spans[at][1]


class _Cursor:
    """Reads the batches of a segment in chunks, from one with a known offset on. Everything but
    its making runs in a worker thread."""

    def __init__(self, segment: Segment, offset: int, may_block: bool = True) -> None:
        self._file = segment.file
        self._end = segment.size
        self.position, self._next_offset = 0, segment.base_offset
        file = segment.reads(may_block=may_block)
        if offset > segment.base_offset and (found := segment.find(offset, file)):
            self.position, header = found
            self._next_offset = header.base_offset

    @property
    def is_at_end(self) -> bool:
        """Whether all batches were read."""
        return self.position >= self._end

    def read(self) -> Iterator[tuple[memoryview, BatchHeader]]:
        """Yield the batches of the next chunk, at least one. Raises BadBytes for a damaged one."""
        size = min(BYTES_AT_ONCE, self._end - self.position)
        data = memoryview(self._file.read(self.position, size))
        at = 0
        while at < len(data):
            header, batch = self._batch(data[at:])
            if batch is None:
                if at:
                    return
                data = memoryview(self._file.read(self.position, header.size))
                header, batch = self._batch(data)
            is_next = header.base_offset == self._next_offset
            if batch is None or not is_next or not has_valid_crc(batch, header):
                raise BadBytes(self._next_offset, self.position, "the checksum is wrong")
            self.position += header.size
            self._next_offset = header.next_offset
            at += header.size
            yield batch, header

    def _batch(self, data: memoryview) -> tuple[BatchHeader, memoryview | None]:
        """Return the batch that begins with the data; without its bytes if the data are too few."""
        if len(data) < BATCH_HEADER_BYTES:
            data = memoryview(self._file.read(self.position, BATCH_HEADER_BYTES))
        if len(data) < BATCH_HEADER_BYTES:
            raise BadBytes(self._next_offset, self.position, "no whole batch is there")
        header = read_header(data)
        if not BATCH_HEADER_BYTES <= header.size <= self._end - self.position:
            raise BadBytes(self._next_offset, self.position, "no whole batch is there")
        return header, data[: header.size] if header.size <= len(data) else None


def read_keys(
    segments: Sequence[Segment],
    newest: NewestOffsets,
    aborted: AbortedBatches,
    traffic: Traffic,
    require_unchanged: Callable[[], None],
) -> Steps[None]:
    """Read the newest offsets of the keys from `newest.end` on, as far as they fit, without those
    of aborted transactions. Raises BadBytes for a damaged batch, and InvalidBatch for one that
    cannot be decoded."""
    for segment in segments:
        cursor = yield from _cursor_at(segment, newest.end, require_unchanged)
        while not cursor.is_at_end:
            position = cursor.position
            do_fit = yield partial(_add_keys, cursor, newest, aborted)
            require_unchanged()
            traffic.bytes += cursor.position - position
            if not do_fit:
                return


def _cursor_at(
    segment: Segment, offset: int, require_unchanged: Callable[[], None]
) -> Steps[_Cursor]:
    def begin(may_block: bool) -> _Cursor:
        require_unchanged()
        return _Cursor(segment, offset, may_block)

    return (yield from reading_ahead(begin))


def _add_keys(cursor: _Cursor, newest: NewestOffsets, aborted: AbortedBatches) -> bool:
    """Add the keys of a chunk; return False once they do not fit. Runs in a worker thread."""
    for batch, header in cursor.read():
        keys: Sequence[bytes | None] = ()
        offsets: Sequence[int] = ()
        if header.record_count and not header.is_control and not aborted.has(header):
            _check_count(header)
            offsets, keys = decode_keys(batch, header)
        if not newest.add(keys, offsets, header.next_offset):
            return False
    return True


def _check_count(header: BatchHeader) -> None:
    """Raise InvalidBatch for a batch with more records than a compacted topic takes: from before
    the topic was one."""
    if header.record_count > COMPACTED_RECORDS_MAX:
        what = (
            f"the batch at offset {header.base_offset} has {header.record_count} records;"
            f" {COMPACTED_RECORDS_MAX} can be compacted"
        )
        raise InvalidBatch(ErrorCode.MESSAGE_TOO_LARGE, what)


class Needed(NamedTuple):
    """What the producers' states need: the last offsets of their last batches, and the offsets of
    the last markers of those of which only markers are known."""

    last_offsets: Collection[int]
    last_markers: Collection[int]


class Transactions(NamedTuple):
    """The batches of aborted transactions, and the producers with a batch since their last marker:
    these are recorded from segment to segment."""

    aborted: AbortedBatches
    begun: set[int]


class Copier:
    """Copies batches without what compaction removes. `newest` are the newest offsets, `needed` is
    what producers' states need, `transactions` what is known of the batches before; `now_ms` is the
    wall clock."""

    def __init__(
        self,
        newest: NewestOffsets,
        limits: LogLimits,
        needed: Needed,
        transactions: Transactions,
        now_ms: int,
    ) -> None:
        self._newest = newest
        self._needed = needed
        self._transactions = transactions
        self._now_ms = now_ms
        self._new_horizon_ms = now_ms + limits.delete_retention_ms
        self._gone: tuple[int, int, int] | None = None  # first and last offset, leader epoch
        self.has_changed = False

    def copy(self, cursor: _Cursor) -> list[Buffer]:
        """Return what is kept of a chunk, and fillers, as batches. Runs in a worker thread."""
        kept: list[Buffer] = []
        for batch, header in cursor.read():
            copied = self._keep(batch, header)
            if copied is None:
                kept += self._cover(header)
            else:
                kept += self.finish()
                kept.append(copied)
        return kept

    def finish(self) -> list[Buffer]:
        """Return the filler for the batches before, if there were any of which nothing stays."""
        gone, self._gone = self._gone, None
        return [] if gone is None else [filler(*gone)]

    def _cover(self, header: BatchHeader) -> list[Buffer]:
        """Record that nothing of a batch is kept; return the filler that it does not continue."""
        gone = self._gone
        done: list[Buffer] = []
        if gone is not None:
            first, _, epoch = gone
            if epoch == header.leader_epoch and header.next_offset - first <= OFFSETS_MAX:
                self._gone = (first, header.last_offset, epoch)
                self.has_changed = True
                return []
            done = self.finish()
        self._gone = (header.base_offset, header.last_offset, header.leader_epoch)
        return done

    def _keep(self, batch: memoryview, header: BatchHeader) -> Buffer | None:
        """Return what is kept of a batch; None for nothing."""
        if header.is_control:
            return self._keep_marker(batch, header)
        is_needed = header.has_producer and header.last_offset in self._needed.last_offsets
        if header.is_transactional:
            self._transactions.begun.add(header.producer_id)
            if header.record_count and self._transactions.aborted.has(header):
                self.has_changed = True
                return empty(header) if is_needed else None
        if header.base_offset >= self._newest.end:
            return batch
        if not header.record_count:
            return batch if is_needed else None
        kept = self._newest.kept_in(header.base_offset, header.next_offset)
        if kept is not None and not kept:
            self.has_changed = True
            return empty(header) if is_needed else None
        _check_count(header)
        columns = decode_columns(batch, header)
        horizon_ms = header.delete_horizon_ms
        is_over = horizon_ms is not None and horizon_ms <= self._now_ms
        is_kept = self._are_kept(columns, kept, is_over)
        if not any(is_kept):
            self.has_changed = True
            return empty(header) if is_needed else None
        has_tombstones = None in columns.values and None in select(columns.values, is_kept)
        new_horizon_ms = self._new_horizon_ms if has_tombstones and horizon_ms is None else None
        if all(is_kept) and new_horizon_ms is None:
            return batch
        self.has_changed = True
        return retain(header, columns, is_kept, new_horizon_ms)

    def _keep_marker(self, batch: memoryview, header: BatchHeader) -> Buffer | None:
        """Return what is kept of a control batch. The marker of a transaction without batches gets
        a delete horizon, and goes when that has passed."""
        begun, producer_id = self._transactions.begun, header.producer_id
        if read_end_marker(batch, header) is None:
            return batch
        has_batches = producer_id in begun
        begun.discard(producer_id)
        is_needed = header.last_offset in self._needed.last_markers
        if has_batches or is_needed or header.base_offset >= self._newest.end:
            return batch
        horizon_ms = header.delete_horizon_ms
        if horizon_ms is None:
            self.has_changed = True
            return retain(header, decode_columns(batch, header), (True,), self._new_horizon_ms)
        if horizon_ms > self._now_ms:
            return batch
        self.has_changed = True
        return None

    def _are_kept(
        self, columns: Columns, kept: Collection[int] | None, is_over: bool
    ) -> list[bool]:
        """Return for each record whether it stays. `kept` are the offsets of the newest records of
        keys, if they are known; `is_over`: the tombstones' time is over."""
        if kept is not None:
            is_kept = [*map({*kept}.__contains__, columns.offsets)]
        else:
            keys = [b"" if key is None else key for key in columns.keys]
            is_kept = self._newest.are_newest(keys, columns.offsets)
        if None in columns.keys or (is_over and None in columns.values):
            is_kept = [
                kept and key is not None and not (value is None and is_over)
                for kept, key, value in zip(is_kept, columns.keys, columns.values, strict=True)
            ]
        return is_kept


def copy_group(
    group: Sequence[Segment],
    target: File,
    copied: Segment,
    copier: Copier,
    traffic: Traffic,
    require_unchanged: Callable[[], None],
) -> Steps[None]:
    """Copy the segments of a group to a new file, and index them in `copied`."""
    for segment in group:
        cursor = _Cursor(segment, segment.base_offset)
        while not cursor.is_at_end:
            position, size = cursor.position, target.size
            kept = yield partial(copier.copy, cursor)
            require_unchanged()
            _write(target, copied, kept)
            traffic.bytes += cursor.position - position + target.size - size
    _write(target, copied, copier.finish())


def _write(target: File, copied: Segment, batches: Sequence[Buffer]) -> None:
    for batch in batches:
        position = target.size
        target.append([batch])
        copied.index_batch(read_header(batch), position)
