"""Long computations in turns, so that they do not hold up the other tasks of the loop.

A computation over all partitions is a generator that yields after some hundred of them, and returns
its result. It has no I/O; its caller decides whether other tasks run where it yields.
"""

from collections.abc import Generator, Iterable, Iterator
from typing import Final, TypeAlias, TypeVar

import trio

Item = TypeVar("Item")
Result = TypeVar("Result")

# A computation that yields where other tasks may run, and returns a result.
Turns: TypeAlias = Generator[None, None, Result]

AT_ONCE: Final = 500  # partitions, in one turn: some milliseconds


def at_once(items: Iterable[Item], count: int = AT_ONCE) -> Iterator[list[Item]]:
    """Yield the items in lists of `count`, each for one turn."""
    some: list[Item] = []
    for item in items:
        some.append(item)
        if len(some) == count:
            yield some
            some = []
    if some:
        yield some


async def take_turns(computation: Turns[Result]) -> Result:
    """Run a computation to its result; other tasks run where it yields."""
    while True:
        try:
            next(computation)
        except StopIteration as end:
            result: Result = end.value
            return result
        await trio.lowlevel.checkpoint()


def without_pause(computation: Turns[Result]) -> Result:
    """Run a computation to its result without letting other tasks run."""
    while True:
        try:
            next(computation)
        except StopIteration as end:
            result: Result = end.value
            return result
