"""Long computations in turns of the loop: so that many partitions hold nobody up.

A computation over all partitions is a generator that yields where it may pause, after some hundred
of them, and returns its result. It stays as pure as a function, and who runs it decides whether
others run in between.
"""

from collections.abc import Generator, Iterable, Iterator
from typing import Final, TypeAlias, TypeVar

import trio

Item = TypeVar("Item")
Result = TypeVar("Result")

# Yields where it may pause.
Turns: TypeAlias = Generator[None, None, Result]

AT_ONCE: Final = 500  # partitions, in one turn: some milliseconds


def at_once(items: Iterable[Item], count: int = AT_ONCE) -> Iterator[list[Item]]:
    """The items, so many for one turn."""
    some: list[Item] = []
    for item in items:
        some.append(item)
        if len(some) == count:
            yield some
            some = []
    if some:
        yield some


async def take_turns(computation: Turns[Result]) -> Result:
    """Run it, and let others run where it pauses."""
    while True:
        try:
            next(computation)
        except StopIteration as end:
            result: Result = end.value
            return result
        await trio.lowlevel.checkpoint()


def without_pause(computation: Turns[Result]) -> Result:
    """Run it through."""
    while True:
        try:
            next(computation)
        except StopIteration as end:
            result: Result = end.value
            return result
