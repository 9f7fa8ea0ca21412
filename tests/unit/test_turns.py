"""Long computations in turns of the loop."""

import trio

from minibroker.broker.turns import Turn, Turns, at_once, take_turns, without_pause


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
