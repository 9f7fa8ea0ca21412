"""When a broker stands for election: at once, unless it resigned because it heard too few brokers.

A controller that hears fewer than half of the brokers resigns, and the others stand at once. The
broker that resigned waits first, since it would most likely resign again: it stands only if the
controllership then stays vacant for a pause. Each such resignation doubles the pause. It is drawn
from half of its length up, so that brokers that are all cut off from each other take different
times.
"""

from random import Random
from typing import Final

LONGEST: Final = 8  # of the pauses, as a multiple of the first


class Candidacy:
    """See the head of this module. `first_s` is the first pause, in seconds."""

    def __init__(self, first_s: float, rng: Random) -> None:
        self._first_s = first_s
        self._rng = rng
        self._pause_s = 0.0

    def on_isolation(self) -> None:
        """This broker was controller and heard too few others."""
        longest_s = LONGEST * self._first_s
        self._pause_s = min(2 * self._pause_s or self._first_s, longest_s)

    def on_contact(self) -> None:
        """This broker is heard by another controller, or was one that heard enough of the others
        to the end of its term."""
        self._pause_s = 0.0

    def draw_pause_s(self) -> float:
        """How long the controllership must stay vacant before this broker stands."""
        return self._pause_s and self._rng.uniform(self._pause_s / 2, self._pause_s)
