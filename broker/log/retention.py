"""Which of the oldest segments may go: by age, by size, or because they lie below the log start."""

from typing import NamedTuple

from minibroker.broker.log.limits import LogLimits
from minibroker.broker.log.segments import Segments
from minibroker.protocol.constants import NO_TIMESTAMP


class Extent(NamedTuple):
    """The offsets that bound a log, and how much of it is committed."""

    log_start: int
    high_watermark: int
    log_end: int


def expired_count(segments: Segments, limits: LogLimits, extent: Extent, now_ms: int) -> int:
    """How many segments, counted from the oldest, are to be deleted.

    Only those that end at or below the high watermark, never an empty active one.
    Age: the newest record is older than `retention_ms`; a segment without timestamps has no age.
    Size: the log keeps at least `retention_bytes` without the segment.
    """
    left = segments.size
    count = 0
    for index, segment in enumerate(segments):
        end = segments.end_of(index, extent.log_end)
        if end > extent.high_watermark or segment.size == 0:
            break
        is_old = (
            limits.retention_ms >= 0
            and segment.max_timestamp != NO_TIMESTAMP
            and now_ms - segment.max_timestamp > limits.retention_ms
        )
        is_too_much = 0 <= limits.retention_bytes <= left - segment.size
        is_below_start = end <= extent.log_start
        if not (is_old or is_too_much or is_below_start):
            break
        left -= segment.size
        count += 1
    return count
