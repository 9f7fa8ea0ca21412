"""What checks share is made once, whoever asks first."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Event

from minibroker.audit.checks.once import once

ASKING = 8


def test_several_threads_get_one_result() -> None:
    """All who ask at a time get what the first one made; a new argument makes it anew."""
    made: list[str] = []
    barrier = Barrier(ASKING)

    @once
    def make(argument: str) -> object:
        made.append(argument)
        Event().wait(0.05)  # time enough for another to begin, if it may
        return object()

    def ask(argument: str) -> object:
        barrier.wait()
        return make(argument)

    with ThreadPoolExecutor(ASKING) as pool:
        first = set(pool.map(ask, ["a"] * ASKING))
        second = set(pool.map(ask, ["b"] * ASKING))
    assert made == ["a", "b"]
    assert (len(first), len(second)) == (1, 1)
    assert first != second
