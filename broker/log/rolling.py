"""When a log goes on in a new segment: before an append, by size, age or full indexes."""

import zlib

from minibroker.broker.log.limits import LogLimits
from minibroker.broker.log.segment import Segment
from minibroker.protocol.records.batch import BatchHeader


def must_roll(segment: Segment, header: BatchHeader, limits: LogLimits, now_ms: int) -> bool:
    """Whether a batch must not go into this segment; into an empty one it always may.

    Age is the span between the first batch's time and this one's; without timestamps, the time
    (wall clock, ms) since the segment was made or opened.
    """
    size = segment.size
    if size == 0:
        return False
    last_offset = header.base_offset + header.last_offset_delta
    if not segment.has_room_for(last_offset, limits.index_bytes_max):
        return True
    if header.max_timestamp >= 0 and segment.first_timestamp >= 0:
        age_ms = header.max_timestamp - segment.first_timestamp
    else:
        age_ms = now_ms - segment.created_ms
    return size + header.size > limits.segment_bytes or age_ms > limits.segment_ms - (
        _jitter_ms(segment, limits.segment_jitter_ms) if limits.segment_jitter_ms else 0
    )


def _jitter_ms(segment: Segment, jitter_ms_max: int) -> int:
    """By how much earlier a segment rolls, so that not all logs of a broker do at once."""
    return zlib.crc32(str(segment.path).encode()) % (jitter_ms_max + 1)
