"""What several checks of one audit need: the first that asks makes it, the others wait for it.

Checks run side by side, in threads. A result is kept with the object that it was made of, and goes
when that goes: two audits in one session know nothing of each other.
"""

from collections.abc import Callable
from functools import wraps
from threading import Lock
from typing import Final, Generic, TypeVar

Argument = TypeVar("Argument")
Result = TypeVar("Result")

_KEPT: Final = "_made_once"
_keeping = Lock()  # held only to find, or make, what is kept with an object


class _Made(Generic[Result]):
    """A result, once there is one."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.results: list[Result] = []


def memoize_per_run(make: Callable[[Argument], Result]) -> Callable[[Argument], Result]:
    """The function, which is called only once for an argument, which must have a `__dict__`."""

    @wraps(make)
    def made(argument: Argument) -> Result:
        with _keeping:
            kept = vars(argument).setdefault(_KEPT, {})
            mine = kept.setdefault(make, _Made())
        with mine.lock:
            if not mine.results:
                mine.results.append(make(argument))
            result: Result = mine.results[0]
            return result

    return made
