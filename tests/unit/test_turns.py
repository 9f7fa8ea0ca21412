"""Long computations in turns of the loop."""

from collections.abc import Callable
from functools import partial

import trio

from minibroker.broker.turns import (
    Steps,
    Turn,
    Turns,
    at_once,
    take_steps,
    take_turns,
    without_pause,
)


def counting(count: int, seen: list[str]) -> Turns[int]:
    """Pauses behind each number."""
    for number in range(count):
        seen.append(str(number))
        yield
    return count


async def test_others_run_in_between() -> None:
    """Where a computation pauses, and nowhere else."""
    seen: list[str] = []

    async def other() -> None:
        while True:
            seen.append("other")
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(other)
        assert await take_turns(counting(4, seen)) == 4
        nursery.cancel_scope.cancel()
    numbers = [at for at, each in enumerate(seen) if each != "other"]
    assert [seen[at] for at in numbers] == ["0", "1", "2", "3"]
    assert seen[numbers[0] : numbers[-1]].count("other") >= 2


def test_without_pause_is_the_same() -> None:
    """For who has nobody else to let run."""
    assert without_pause(counting(3, [])) == 3


def test_the_items_of_one_turn() -> None:
    """All of them, in order, so many at once."""
    assert list(at_once(range(7), 3)) == [[0, 1, 2], [3, 4, 5], [6]]
    assert list(at_once([], 3)) == []


def test_a_turn_is_over_by_work() -> None:
    """One large item ends it as well as many small ones; the next one begins with nothing."""
    turn = Turn(10)
    assert [turn.is_over() for _ in range(11)] == [False] * 9 + [True, False]
    assert turn.is_over(100)
    assert not turn.is_over(9)


async def test_steps_are_done_by_a_worker_or_here() -> None:
    """A computation gets what the function returns, and is told what it raises."""

    def computation() -> Steps[list[object]]:
        found: list[object] = [(yield None), (yield lambda: 1)]
        try:
            yield partial(int, "x")
        except ValueError as error:
            found.append(type(error))
        found.append((yield lambda: 2))
        return found

    async def in_worker(function: Callable[[], object]) -> object:
        await trio.lowlevel.checkpoint()
        return function()

    assert await take_steps(computation(), in_worker) == [None, 1, ValueError, 2]

    def harmless() -> Steps[list[object]]:
        return [(yield None), (yield lambda: 1)]

    assert without_pause(harmless()) == [None, 1]
