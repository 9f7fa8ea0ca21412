"""The budget of file descriptors: how many of the process's limit each part of a broker may hold.

The limit (RLIMIT_NOFILE) is a fact of the machine, and nothing that a client does may reach it. So
it is divided:

* the reserve is for everything else: standard streams, listeners, the metadata store, connections
  to other brokers, HTTP, and the files that are open only for a moment (checkpoints, indexes,
  snapshots, fsync);
* each log holds one descriptor, of its active segment;
* each client connection holds one;
* sealed segments are opened when they are read. They stay open only while the process uses less
  than three quarters of its limit; the last quarter is for logs and connections.

Logs and connections share the rest of the limit: neither may take the part that is kept for the
other. Where there is no room for a log it is not created (KAFKA_STORAGE_ERROR, tried again later).
Where there is no room for a connection accepting pauses.

This object counts, and decides nothing else. Without a known limit there is always room.
"""

import errno
from collections.abc import Callable
from typing import Final, NamedTuple

NOT_LIMITED: Final = -1
RESERVE_MIN, RESERVE_MAX = 64, 256  # of a limit of 1,024 or less, of 4,096 or more
SEALED_MIN: Final = 8  # open sealed segments, even where everything else is used
# The process or the machine has no file descriptor left.
NO_DESCRIPTORS: Final = frozenset({errno.EMFILE, errno.ENFILE})
ADVICE: Final = "raise the limit of open files (ulimit -n)"
NO_DESCRIPTOR: Final = f"no file descriptor is free: {ADVICE}"


class DescriptorStatistics(NamedTuple):
    """The limit (-1: none is known), the reserve, and how many descriptors each part holds."""

    limit: int
    reserve: int
    logs: int
    sealed: int
    connections: int


class DescriptorBudget:
    """See the head of this file. `logs`, `sealed` and `connections` are what each part holds.

    `on_pressure` is called when a log or a connection needs what sealed segments hold.
    """

    def __init__(self, limit: int = NOT_LIMITED) -> None:
        self.logs = 0
        self.sealed = 0
        self.connections = 0
        self.on_pressure: Callable[[], None] = lambda: None
        self._limit = limit
        self._reserve = 0
        if limit >= 0:
            self._reserve = min(limit // 4, max(RESERVE_MIN, min(RESERVE_MAX, limit // 16)))
        self._shared = limit - self._reserve

    def has_room_for_log(self) -> bool:
        """Whether one more log may be open: an eighth of the budget is kept for connections."""
        return self._logs_left() > 0

    def has_too_many_logs(self) -> bool:
        """Whether more logs are open than may be, as after a start with a lower limit."""
        return self._logs_left() < 0

    def _logs_left(self) -> int:
        if self._limit < 0:
            return 1
        kept = max(self.connections, self._shared // 8)
        return self._shared - SEALED_MIN - kept - self.logs

    def has_room_for_connection(self) -> bool:
        """Whether one more connection may be open: half of the budget is kept for logs."""
        if self._limit < 0:
            return True
        is_fair = self.connections < max(1, self._shared // 2)
        return is_fair and self.connections + self.logs + SEALED_MIN < self._shared

    @property
    def sealed_max(self) -> int:
        """How many sealed segments may be open now."""
        if self._limit < 0:
            return 1 << 30
        used = self._reserve + self.logs + self.connections
        return max(SEALED_MIN, 3 * self._limit // 4 - used)

    def hold_log(self) -> None:
        """Count one more open log."""
        self.logs += 1
        self._make_way()

    def hold_connection(self) -> None:
        """Count one more open connection."""
        self.connections += 1
        self._make_way()

    def _make_way(self) -> None:
        if self.sealed > self.sealed_max:
            self.on_pressure()

    def statistics(self) -> DescriptorStatistics:
        """Return the parts now."""
        return DescriptorStatistics(
            self._limit, self._reserve, self.logs, self.sealed, self.connections
        )
