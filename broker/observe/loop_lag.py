"""How late tasks of the broker's loop run: a task wakes ten times a second and records how late it
was.

All tasks of a broker run in one loop. A task that computes for long (a large answer, a slow read
from the disk, many partitions at once) delays all others, heartbeats too. The largest values here
show it.
"""

from typing import Final

import trio

from minibroker.broker.histogram import LAG_BOUNDS_S, Distribution, Histogram

INTERVAL_S: Final = 0.1


class LoopLag:
    """See the head of this module."""

    def __init__(self) -> None:
        self._lateness = Histogram(LAG_BOUNDS_S)

    async def run(self) -> None:
        """Measure until cancelled."""
        while True:
            wanted = trio.current_time() + INTERVAL_S
            await trio.sleep_until(wanted)
            self._lateness.record(trio.current_time() - wanted)

    def statistics(self) -> Distribution:
        """Return all measurements since the start."""
        return self._lateness.statistics()
