"""What checks share is made once, whoever asks first."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Event
from types import SimpleNamespace

from minibroker.audit.checks.memoize import memoize_per_run

ASKING = 8


def test_several_threads_get_one_result() -> None:
    """All who ask at a time get what the first one made; a new argument makes it anew."""
    made: list[str] = []
    first_argument, second_argument = (SimpleNamespace(name=name) for name in "ab")
    barrier = Barrier(ASKING)

    @memoize_per_run
    def make(argument: SimpleNamespace) -> object:
        made.append(argument.name)
        Event().wait(0.05)  # time enough for another to begin, if it may
        return object()

    def ask(argument: SimpleNamespace) -> object:
        barrier.wait()
        return make(argument)

    with ThreadPoolExecutor(ASKING) as pool:
        first = set(pool.map(ask, [first_argument] * ASKING))
        second = set(pool.map(ask, [second_argument] * ASKING))
    assert made == ["a", "b"]
    assert (len(first), len(second)) == (1, 1)
    assert first != second
    assert {make(first_argument)} == first, "an audit in between changes nothing"
