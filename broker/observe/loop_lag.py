"""How late the broker's loop is: a task that wants to run ten times a second notes how much later
it did.

Everything in a broker runs in one loop, so what holds one task up (a large answer, a slow read of
the disk, many partitions at once) holds up all of them, heartbeats too. The tail of these figures
says so.
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
        """Look, for ever."""
        while True:
            wanted = trio.current_time() + INTERVAL_S
            await trio.sleep_until(wanted)
            self._lateness.record(trio.current_time() - wanted)

    def statistics(self) -> Distribution:
        """All looks since the start."""
        return self._lateness.statistics()
