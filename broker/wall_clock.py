"""A watch over the wall clock: by which time records, producers and offsets expire.

What expires by the wall clock is gone for good: segments by `retention.ms`, the sequences of idle
producers, the offsets of empty groups. A wall clock can be set wrong, so the watch compares it with
the monotonic clock. If the two part by more than `JUMP_S`, the wall clock has jumped, forward or
back. From then on things expire by the latest time that is not after any of the clocks seen: the
one before the jump, carried on by the monotonic clock, or the present one if that is behind it. So
nothing stops, and nothing expires because of the jump. Once the wall clock has run for `SETTLE_S`
without another jump, it is believed.

* A machine that slept looks the same: the monotonic clock stands still while it sleeps. What
  expired meanwhile goes an hour later.
* Between a stop and a start the wall clock is believed, since a broker may be down for a week. A
  start before the time of the last run is reported like a jump back.
* A clock that drifts by less than `JUMP_S` in `SETTLE_S` is normal; NTP corrects up to 1.8 s an
  hour without a step. Steps of a few seconds move nothing that matters.

A jump is logged when it is seen, but no more than one a minute.
"""

import logging
import math
from typing import Final, NamedTuple

JUMP_S: Final = 10.0
# Producers that are at work, and members that commit, have marked themselves with the present
# clock by then, and an operator has had the time to correct it.
SETTLE_S: Final = 3600.0
LOG_INTERVAL_S: Final = 60.0

logger = logging.getLogger(__name__)


class ClockStatistics(NamedTuple):
    """How often the wall clock has jumped since the start; while it is not believed, by how much it
    jumped last (negative: back), and in how many milliseconds it will be."""

    jumps: int = 0
    jump_ms: int = 0
    settles_in_ms: int = 0


class ClockWatch:
    """See the head of this module. `now` is always the monotonic clock in seconds, `wall_ms` the
    wall clock in milliseconds, read at the same moment.

    `last_run_ms` is a wall clock time at which this broker ran before; 0 if unknown.
    """

    def __init__(self, wall_ms: int, now: float, last_run_ms: int = 0) -> None:
        # Offsets are wall clock minus monotonic clock. `_lowest_ms` is the lowest one seen since
        # the wall clock was believed; it is at most `_offset_ms` if that jumped forward.
        self._offset_ms = self._lowest_ms = wall_ms - now * 1000
        self._offset_since = now
        self._settles_at = -math.inf  # no jump is unsettled
        self._logged_at = -math.inf
        self._jumps = 0
        self._jump_ms = 0
        if wall_ms < last_run_ms - JUMP_S * 1000:
            self._record_jump(wall_ms, wall_ms - last_run_ms, now)

    def observe(self, wall_ms: int, now: float) -> None:
        """Compare the clocks. To be called every second or so, to tell a jump from a drift."""
        offset_ms = wall_ms - now * 1000
        by_ms = round(offset_ms - self._offset_ms)
        if abs(by_ms) > JUMP_S * 1000:
            self._offset_ms, self._offset_since = offset_ms, now
            self._lowest_ms = min(self._lowest_ms, offset_ms)
            self._record_jump(wall_ms, by_ms, now)
        elif now - self._offset_since >= SETTLE_S:
            self._offset_ms, self._offset_since = offset_ms, now
        if -math.inf < self._settles_at <= now:
            self._settle(now)

    def expiry_ms(self, wall_ms: int, now: float) -> int:
        """Return the time, as a wall clock in milliseconds, by which things expire now."""
        self.observe(wall_ms, now)
        if now >= self._settles_at:
            return wall_ms
        return min(wall_ms, math.floor(now * 1000 + self._lowest_ms))

    def statistics(self, now: float) -> ClockStatistics:
        """Return what is known about jumps."""
        if now >= self._settles_at:
            return ClockStatistics(self._jumps)
        return ClockStatistics(
            self._jumps, self._jump_ms, math.ceil((self._settles_at - now) * 1000)
        )

    def _record_jump(self, wall_ms: int, by_ms: int, now: float) -> None:
        self._jumps += 1
        self._jump_ms = by_ms
        self._settles_at = now + SETTLE_S
        if now - self._logged_at < LOG_INTERVAL_S:
            return
        self._logged_at = now
        logger.warning(
            "The wall clock jumped by %+.1f s, from %d to %d ms since 1970. Records, producers and"
            " offsets expire by the earlier clock until it has run for %.0f s without a jump: if"
            " the time is wrong, correct it before that",
            by_ms / 1000,
            wall_ms - by_ms,
            wall_ms,
            SETTLE_S,
        )

    def _settle(self, now: float) -> None:
        self._settles_at = -math.inf
        self._lowest_ms = self._offset_ms
        logger.info(
            "The wall clock has run for %.0f s without a jump: records, producers and offsets"
            " expire by it again",
            SETTLE_S,
        )
