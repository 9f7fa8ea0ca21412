"""What several checks of one audit need is made by the first that asks; the others wait for it.

Checks run side by side, in threads. Only the result for the last argument is kept: one audit
follows on another.
"""

from collections.abc import Callable
from functools import lru_cache, wraps
from threading import Lock
from typing import TypeVar

Argument = TypeVar("Argument")
Result = TypeVar("Result")


def once(make: Callable[[Argument], Result]) -> Callable[[Argument], Result]:
    """The function, which is not called again while its argument stays the same."""
    lock = Lock()
    cached = lru_cache(maxsize=1)(make)

    @wraps(make)
    def made(argument: Argument) -> Result:
        with lock:
            return cached(argument)

    return made
