"""Runs of batches that a segment gives out, without being read: from where, and up to where.

A run is given out only if its first and its last batch are the ones that were written: by the index
or the memory, which were made at that time, and by a walk from there. So a reader begins where it
asked and ends where the next answer begins, and takes damage neither for the end of what there is
nor for a gap. What lies between costs nothing here, and is compared by who reads it: a follower
looks at all of it, a consumer at offsets and checksums.
"""

from collections import deque
from typing import NamedTuple

from minibroker.broker.log.scan import BadBytes, chained_batches, is_followed, is_intact
from minibroker.broker.log.segment import Segment
from minibroker.protocol.records.batch import BatchHeader


class Run(NamedTuple):
    """Whole batches, from `start` to `end` of a segment, and where the last one begins."""

    start: int
    end: int
    first: BatchHeader
    last_position: int
    last: BatchHeader


def find_run(segment: Segment, offset: int, end_offset: int | None, bytes_max: int) -> Run | None:
    """The batches from the one that holds `offset` on, below `end_offset` if there is one; at most
    `bytes_max` bytes, but the first whatever its size. None if that one is not below it.

    They end before the first that is found to be damaged. Raises BadBytes if it is the first.
    """
    found = segment.find(offset)
    if found is None:
        raise BadBytes(offset, segment.size, "it is not there")
    start, first = found
    try:
        end = _end(segment, found, end_offset, bytes_max)
        last_position, last = _last(segment, found, end)
    except BadBytes as bad:
        if bad.position <= start:
            raise segment.bounded(bad) from None
        end = bad.position
        last_position, last = _last(segment, found, end)
    return Run(start, end, first, last_position, last) if end > start else None


def _end(
    segment: Segment, found: tuple[int, BatchHeader], end_offset: int | None, bytes_max: int
) -> int:
    start, first = found
    end = segment.size
    if end_offset is not None:
        end = segment.position_of(end_offset)
        if end <= start:
            _require_intact(segment, found)
            return start
    limit = start + bytes_max
    if end <= limit:
        return end
    index = segment.offset_index
    if index.lookup_position(limit).position <= start:
        batches = chained_batches(segment.file, start, first.base_offset, segment.size)
    else:
        batches = segment.batches_from(lambda: index.lookup_position(limit))
    for position, header in batches:
        if position + header.size > limit:
            if position > start:
                return position
            break
    # Nobody but the first batch itself says how long it is.
    if not is_followed(segment.file, start, first):
        _require_intact(segment, found)
    return start + first.size


def _require_intact(segment: Segment, found: tuple[int, BatchHeader]) -> None:
    position, header = found
    if not is_intact(segment.file, position, header):
        raise BadBytes(header.base_offset, position, "the checksum is wrong")


def _last(segment: Segment, found: tuple[int, BatchHeader], end: int) -> tuple[int, BatchHeader]:
    """Position and header of the last batch of a run. Raises BadBytes."""
    start, first = found
    if end in (start, start + first.size):
        return found
    place = segment.recent_before(end)
    if place is not None and place.position > start:
        header = segment.header_at(place)
        if header is not None and place.position + header.size == end:
            return place.position, header
    index = segment.offset_index
    if index.lookup_position(end - 1).position <= start:
        batches = chained_batches(segment.file, start, first.base_offset, end)
    else:
        batches = segment.batches_from(lambda: index.lookup_position(end - 1), end)
    (last,) = deque(batches, maxlen=1)
    return last
