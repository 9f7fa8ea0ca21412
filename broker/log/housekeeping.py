"""When the recurring duties of a broker are due: a table of deadlines.

`now` is monotonic seconds; the caller sleeps until `next_deadline` and performs what `due` returns.
A duty that was missed (a pause, a busy loop) is due once, not once for each missed interval.
Rolling by age is no duty: each append checks it.
"""

from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple


class Duty(Enum):
    """The recurring duties."""

    HIGH_WATERMARKS = "checkpoint the high watermarks"
    RECOVERY_POINTS = "checkpoint the recovery points"
    LOG_STARTS = "checkpoint the log starts"
    RETENTION = "delete segments that are too old or too many"
    DELETED_FILES = "remove files of deleted segments and topics"
    PRODUCERS = "forget idle producers"
    UNCREATED_LOGS = "make the logs for which there was no room"


class Interval(NamedTuple):
    """Seconds until a duty's first time, and between two times."""

    first_s: float
    every_s: float


class Housekeeping:
    """The deadlines of all duties."""

    def __init__(self, intervals: Mapping[Duty, Interval], now: float) -> None:
        self._intervals = dict(intervals)
        self._deadlines = {duty: now + interval.first_s for duty, interval in intervals.items()}

    @property
    def next_deadline(self) -> float:
        """When (monotonic seconds) the next duty is due."""
        return min(self._deadlines.values())

    def due(self, now: float) -> list[Duty]:
        """Return the duties that are due; each is next due an interval from now."""
        duties = [duty for duty, deadline in self._deadlines.items() if deadline <= now]
        for duty in duties:
            self._deadlines[duty] = now + self._intervals[duty].every_s
        return duties
