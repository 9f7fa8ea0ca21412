"""Finding the first record of a time or later, in steps that each take a millisecond or two.

The headers say which batch can hold the record; only that batch is unpacked, in a worker thread,
and its records are walked up to the first match. A compressed batch may unpack to a hundred times
its size, and a log may have any number of batches between two entries of its time index. So the
look-up pauses after some hundred headers or records. It also pauses where headers are not in the
page cache, until a worker thread has read them (`cached_reads.py`).

While it pauses, the log changes. Appended batches do no harm. Segments that retention deletes stay
readable for a while, but their records do not count once the log start has passed them. A
truncation, or a closed file, makes what the look-up has read stale: it raises `StaleSlice`.

A header is what a producer claims. Where no record of the batch is as late as its header, the
look-up goes on with the next batch. Where the records cannot be read, it answers with the batch as
a whole: its first offset, and the time of its header.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Final

from minibroker.broker.log.cached_reads import reading_ahead
from minibroker.broker.log.file_slice import FileSlice
from minibroker.broker.log.outcomes import OffsetAtTime
from minibroker.broker.log.scan import chained_batches
from minibroker.broker.log.segment import Segment
from minibroker.broker.turns import Steps
from minibroker.protocol.constants import BATCH_HEADER_BYTES
from minibroker.protocol.records.batch import BatchHeader
from minibroker.protocol.records.compression import (
    NONE,
    UNPACKED_BYTES_MAX,
    CorruptBlock,
    unpack,
)
from minibroker.protocol.records.walk import iterate_times
from minibroker.protocol.types import Buffer, StaleSlice

HEADERS_AT_ONCE: Final = 512  # in one turn
RECORDS_AT_ONCE: Final = 1024


def find_time(
    segments: Iterable[Segment], timestamp_ms: int, end_offset: int, log_start: Callable[[], int]
) -> Steps[OffsetAtTime | None]:
    """Return the first record of that time or later, from the log start on, below `end_offset`.

    Raises BadBytes for damage before it: the record may be among the damaged ones. Raises
    StaleSlice if the log was truncated or closed meanwhile.
    """
    for segment in segments:
        if segment.max_timestamp < timestamp_ms:
            continue
        batches = _Batches(segment, timestamp_ms)
        for count in itertools.count(1):
            following = yield from batches.next()
            if following is None:
                break
            position, header = following
            if header.base_offset >= end_offset:
                return None
            if header.max_timestamp >= timestamp_ms and header.last_offset >= log_start():
                part = segment.slice(position, position + header.size)
                found = yield from _find_in_batch(part, header, timestamp_ms, log_start)
                if found is not None:
                    return found if found.offset < end_offset else None
            if not count % HEADERS_AT_ONCE:
                yield None
    return None


class _Batches:
    """The batches of a segment, from a place on before which none is of a time (ms) or later."""

    def __init__(self, segment: Segment, timestamp_ms: int) -> None:
        self._segment = segment
        self._generation = segment.generation
        self._timestamp_ms = timestamp_ms
        self._batches: Iterator[tuple[int, BatchHeader]] | None = None
        self._last: tuple[int, BatchHeader] | None = None

    def next(self) -> Steps[tuple[int, BatchHeader] | None]:
        """Return position and header of the next batch, None at the end. Raises BadBytes, and
        StaleSlice if the log was truncated or closed meanwhile."""
        return (yield from reading_ahead(self._next))

    def _next(self, may_block: bool) -> tuple[int, BatchHeader] | None:
        _require_same(self._segment, self._generation)
        batches, self._batches = self._batches, None  # a generator that raised is at its end
        if batches is None:
            batches = self._begin(may_block)
        self._last = next(batches, None)
        self._batches = batches
        return self._last

    def _begin(self, may_block: bool) -> Iterator[tuple[int, BatchHeader]]:
        """Return the batches behind the last one."""
        segment = self._segment
        file = segment.reads(may_block=may_block)
        if self._last is None:
            return segment.batches_since(self._timestamp_ms, file)
        position, header = self._last
        batches = chained_batches(file, position, header.base_offset, segment.size)
        next(batches, None)  # if it is damaged, that is seen with the one behind it
        return batches


def _require_same(segment: Segment, generation: int) -> None:
    if segment.generation != generation:
        raise StaleSlice("the log was cut or closed during a look-up")


def _find_in_batch(
    part: FileSlice, header: BatchHeader, timestamp_ms: int, log_start: Callable[[], int]
) -> Steps[OffsetAtTime | None]:
    whole = OffsetAtTime(header.max_timestamp, header.base_offset, header.leader_epoch)
    if header.is_log_append_time:
        return _from(whole, log_start())
    try:
        body: Buffer = yield partial(_read_records, part, header)
        for count, (offset, time_ms) in enumerate(iterate_times(body, header), 1):
            if time_ms >= timestamp_ms and offset >= log_start():
                return OffsetAtTime(time_ms, offset, header.leader_epoch)
            if not count % RECORDS_AT_ONCE:
                yield None
    except ValueError:
        return _from(whole, log_start())
    return None


def _from(whole: OffsetAtTime, log_start: int) -> OffsetAtTime:
    return whole._replace(offset=max(whole.offset, log_start))


def _read_records(part: FileSlice, header: BatchHeader) -> Buffer:
    """Read a batch from its file, and return its records, unpacked. Runs in a worker thread.

    Raises StaleSlice, and CorruptBlock, which is a ValueError.
    """
    packed = memoryview(part.read())[BATCH_HEADER_BYTES:]
    if header.compression == NONE:
        return packed
    return unpack(header.compression, packed, UNPACKED_BYTES_MAX)


assert issubclass(CorruptBlock, ValueError)
