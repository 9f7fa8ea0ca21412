"""Long computations in turns, so that they do not hold up the other tasks of the loop.

A computation over all partitions is a generator that yields after some hundred of them, and returns
its result. It has no I/O; its caller decides whether other tasks run where it yields. A computation
that needs a worker thread for a part of its work yields that part, as a function (`Steps`).
"""

from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator
from functools import partial
from itertools import islice
from typing import Any, Final, TypeAlias, TypeVar

import trio

Item = TypeVar("Item")
Result = TypeVar("Result")

# A computation that yields where other tasks may run, and returns a result.
Turns: TypeAlias = Generator[None, None, Result]
# A function that a worker thread is to call, or None where other tasks may run.
Step: TypeAlias = Callable[[], Any] | None
# A computation that yields steps. It is sent what the function returns, or thrown what it raises.
Steps: TypeAlias = Generator[Step, Any, Result]

AT_ONCE: Final = 200  # partitions, in one turn: a few milliseconds at most


def at_once(items: Iterable[Item], count: int = AT_ONCE) -> Iterator[list[Item]]:
    """Yield the items in lists of `count`, each for one turn."""
    rest = iter(items)
    while some := [*islice(rest, count)]:
        yield some


class Turn:
    """Counts the work of one turn, where a computation's items differ in work."""

    def __init__(self, work_max: int = AT_ONCE) -> None:
        self._work_max = work_max
        self._done = 0
        self.pauses = 0

    def is_over(self, work: int = 1) -> bool:
        """Add work, as a number of plain items; return whether to pause now."""
        self._done += work
        if self._done < self._work_max:
            return False
        self._done = 0
        self.pauses += 1
        return True


async def take_turns(computation: Turns[Result]) -> Result:
    """Run a computation to its result; other tasks run where it yields."""
    while True:
        try:
            next(computation)
        except StopIteration as end:
            result: Result = end.value
            return result
        await trio.lowlevel.checkpoint()


async def take_steps(
    computation: Steps[Result], in_worker: Callable[[Callable[[], Any]], Awaitable[Any]]
) -> Result:
    """Run a computation in steps to its result; other tasks run where it yields."""
    resume: Callable[[], Step] = computation.__next__
    while True:
        try:
            step = resume()
        except StopIteration as end:
            result: Result = end.value
            return result
        try:
            done = await do_step(step, in_worker)
        except Exception as error:  # of the function in the worker; the computation may expect it
            resume = partial(computation.throw, error)
        else:
            resume = partial(computation.send, done)


def without_pause(computation: Steps[Result]) -> Result:
    """Run a computation to its result without letting other tasks run. What a worker thread would
    do is done here."""
    resume: Callable[[], Step] = computation.__next__
    while True:
        try:
            step = resume()
        except StopIteration as end:
            result: Result = end.value
            return result
        try:
            done = None if step is None else step()
        except Exception as error:  # the computation may expect it
            resume = partial(computation.throw, error)
        else:
            resume = partial(computation.send, done)


def up_to_a_step(computation: Steps[Result]) -> Result | Steps[Result]:
    """Run a computation up to its first step. Return its result if it has none, or the rest of the
    computation, which begins with that step."""
    try:
        step = next(computation)
    except StopIteration as end:
        result: Result = end.value
        return result
    return _from_step(step, computation)


def _from_step(step: Step, computation: Steps[Result]) -> Steps[Result]:
    while True:
        try:
            done = yield step
        except Exception as error:  # of the function in the worker; the computation may expect it
            resume = partial(computation.throw, error)
        else:
            resume = partial(computation.send, done)
        try:
            step = resume()
        except StopIteration as end:
            result: Result = end.value
            return result


def finished(outcome: Result | Steps[Result]) -> Result:
    """Return the result of `up_to_a_step`, without letting other tasks run."""
    return without_pause(outcome) if isinstance(outcome, Generator) else outcome


def in_turns_if(is_long: bool, computation: Turns[Result]) -> Result | Turns[Result]:
    """Return a long computation as it is, and the result of one that takes one turn at most."""
    return computation if is_long else without_pause(computation)


async def do_step(step: Step, in_worker: Callable[[Callable[[], Any]], Awaitable[Any]]) -> Any:
    """Do what `Steps` yielded, and return the result; other tasks run meanwhile."""
    if step is None:
        return await trio.lowlevel.checkpoint()
    return await in_worker(step)
