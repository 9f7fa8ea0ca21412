"""How often polls raise the same failure of a partition.

A partition that cannot be read on stops the consumer until it seeks. An application may catch the
failure and go on polling. Then a poll waits before it raises the same failure again, so that the
application does not turn in a tight loop.
"""

from typing import Final

from minibroker.client.errors import PositionError

RAISE_AGAIN_S: Final = 1.0


class FailurePace:
    """Remembers which failure was raised last, and when."""

    def __init__(self) -> None:
        self._last: tuple[type, str] | None = None
        self._last_at = 0.0

    def raise_at(self, failure: PositionError, now: float, deadline: float) -> float:
        """Return when a poll with this deadline is to raise the failure: now, if it is another one
        than the last, else a while after that, or at the deadline. If that is now, it counts as
        raised."""
        what = (type(failure), str(failure))
        at = now if what != self._last else max(now, min(deadline, self._last_at + RAISE_AGAIN_S))
        if at == now:
            self._last, self._last_at = what, now
        return at
