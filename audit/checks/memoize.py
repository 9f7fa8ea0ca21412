"""Results that several checks of one audit share: the first caller computes, the others wait.

Checks run side by side, in threads. A result is stored on the object that it was computed from and
is freed with it, so two audits in one session share nothing.
"""

from collections.abc import Callable
from functools import wraps
from threading import Lock
from typing import Final, Generic, TypeVar

Argument = TypeVar("Argument")
Result = TypeVar("Result")

_KEPT: Final = "_made_once"
_keeping = Lock()  # held only to find, or create, what is stored on an object


class _Made(Generic[Result]):
    """A result, once there is one."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.results: list[Result] = []


def memoize_per_run(make: Callable[[Argument], Result]) -> Callable[[Argument], Result]:
    """Return the function so that it runs once per argument, which must have a `__dict__`."""

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
