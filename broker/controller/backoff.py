"""The random pause before a broker tries again; each failure makes it longer.

A broker pauses before it becomes a candidate again after it resigned as controller because too few
brokers answered it, and before it registers again after it lost two sessions in a short time.

The first attempt has no pause. Each failure doubles the pause, up to eight times the first. A
pause is drawn from half of its length up, so that brokers that fail together do not come back
together.
"""

from random import Random
from typing import Final

LONGEST: Final = 8  # of the pauses, as a multiple of the first


class Backoff:
    """See the head of this module. `first_s` is the pause after the first failure, in seconds."""

    def __init__(self, first_s: float, rng: Random) -> None:
        self._first_s = first_s
        self._rng = rng
        self._pause_s = 0.0

    def on_failure(self) -> None:
        """Make the next pause twice as long."""
        self._pause_s = min(2 * self._pause_s or self._first_s, LONGEST * self._first_s)

    def on_success(self) -> None:
        """Let the next attempt come without a pause."""
        self._pause_s = 0.0

    def draw_pause_s(self) -> float:
        """Return how long to wait before the next attempt, in seconds; 0 after a success."""
        return self._pause_s and self._rng.uniform(self._pause_s / 2, self._pause_s)
