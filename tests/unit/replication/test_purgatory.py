"""The queue of requests that wait (rows PUR)."""

from collections.abc import Callable

import pytest
import trio
import trio.testing

from minibroker.broker.replication.purgatory import Parked, Purgatory, Watch


def answer_when(condition: Callable[[], bool], *keys: str, deadline: float = 10.0) -> Parked[str]:
    """A request that answers "done" once the condition holds."""
    return Parked(keys, lambda: deadline, lambda _: "done" if condition() else None, lambda: "late")


async def test_answers_at_once_without_waiting(autojump_clock: trio.testing.MockClock) -> None:
    """PUR-02: what can be answered at once never waits and leaves nothing behind."""
    purgatory = Purgatory()
    start = trio.current_time()
    assert await purgatory.wait_for_answer(answer_when(lambda: True, "a")) == "done"
    assert trio.current_time() == start
    assert purgatory.statistics() == 0


async def test_any_key_wakes_and_all_are_forgotten(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    """PUR-01, PUR-05: one key of several completes the wait once, and no key keeps the waiter."""
    purgatory = Purgatory()
    state: list[str] = []
    answers: list[str] = []

    async def wait() -> None:
        answers.append(
            await purgatory.wait_for_answer(answer_when(lambda: bool(state), "a", "b", "b"))
        )

    nursery.start_soon(wait)
    await trio.testing.wait_all_tasks_blocked()
    assert purgatory.statistics() == 2
    state.append("ready")
    purgatory.notify("b")
    purgatory.notify("a")
    await trio.testing.wait_all_tasks_blocked()
    assert answers == ["done"]
    assert purgatory.statistics() == 0


async def test_a_vain_attempt_goes_on_waiting(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    """A notification that changes nothing for a waiter leaves it waiting under its keys."""
    purgatory = Purgatory()
    attempts: list[float] = []

    def attempt(now: float) -> str | None:
        attempts.append(now)
        return "third" if len(attempts) == 3 else None

    answers: list[str] = []

    async def wait() -> None:
        parked = Parked(("a",), lambda: 10.0, attempt, lambda: "late")
        answers.append(await purgatory.wait_for_answer(parked))

    nursery.start_soon(wait)
    for expected in (1, 2):
        await trio.testing.wait_all_tasks_blocked()
        assert len(attempts) == expected
        purgatory.notify("a")
        purgatory.notify("a")
    await trio.testing.wait_all_tasks_blocked()
    assert answers == ["third"]


async def test_expires_at_its_deadline(autojump_clock: trio.testing.MockClock) -> None:
    """PUR-04: at the deadline the answer of `expire` is given, once, and not before."""
    purgatory = Purgatory()
    deadline = trio.current_time() + 3
    parked = answer_when(lambda: False, "a", deadline=deadline)
    assert await purgatory.wait_for_answer(parked) == "late"
    assert trio.current_time() == deadline
    assert purgatory.statistics() == 0


async def test_the_deadline_makes_a_last_attempt(autojump_clock: trio.testing.MockClock) -> None:
    """PUR-04: what has become possible by the deadline, though nobody said so, is an answer."""
    purgatory = Purgatory()
    deadline = trio.current_time() + 3
    parked = answer_when(lambda: trio.current_time() >= deadline, "a", deadline=deadline)
    assert await purgatory.wait_for_answer(parked) == "done"


async def test_an_attempt_brings_the_deadline_forward(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    """PUR-04: time is up at the deadline as the last attempt has left it."""
    purgatory = Purgatory()
    due = [10.0]
    parked = Parked(("a",), lambda: due[0], lambda _: None, lambda: "late")
    answers: list[float] = []

    async def settle() -> None:
        await purgatory.wait_for_answer(parked)
        answers.append(trio.current_time())

    nursery.start_soon(settle)
    await trio.testing.wait_all_tasks_blocked()
    due[0] = 3.0
    purgatory.notify("a")
    await trio.sleep_until(5.0)
    assert answers == [3.0]


async def test_a_failing_attempt_concerns_its_own_waiter_alone(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """PUR-09: an attempt that raises reaches neither the notifier nor the other waiters."""
    purgatory = Purgatory()
    state: list[str] = []
    answers: list[str] = []

    def fail(now: float) -> str | None:
        if state:
            raise ValueError("broken")
        return None

    async def wait_in_vain() -> None:
        with pytest.raises(ValueError, match="broken"):
            await purgatory.wait_for_answer(Parked(("a",), lambda: 10.0, fail, lambda: "late"))
        answers.append("raised")

    async def wait() -> None:
        answers.append(await purgatory.wait_for_answer(answer_when(lambda: bool(state), "a")))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait_in_vain)
        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        state.append("ready")
        purgatory.notify("a")
    assert sorted(answers) == ["done", "raised"]
    assert purgatory.statistics() == 0


async def test_cancelled_waits_leave_nothing(autojump_clock: trio.testing.MockClock) -> None:
    """PUR-07, PUR-10: a cancelled wait gives no answer and stands under no key any more."""
    purgatory = Purgatory()
    answers: list[str] = []

    async def wait() -> None:
        answers.append(await purgatory.wait_for_answer(answer_when(lambda: False, "a", "b")))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        assert purgatory.statistics() == 2
        nursery.cancel_scope.cancel()
    assert answers == []
    assert purgatory.statistics() == 0


def test_a_watch_notes_its_keys() -> None:
    """Each key once, in order, as often as the owner looks; others' watches of a key have their
    own."""
    purgatory, watch, other = Purgatory(), Watch(), Watch()
    for key in ("a", "b"):
        purgatory.watch(watch, key)
    purgatory.watch(other, "a")
    for key in ("b", "a", "c", "b"):
        purgatory.notify(key)
    assert [*watch.notified] == ["b", "a"]
    assert [*other.notified] == ["a"]
    watch.notified = {}
    purgatory.notify("a")
    assert [*watch.notified] == ["a"]


def test_what_is_watched_no_more_is_forgotten() -> None:
    """The other watches of a key stay."""
    purgatory, watch, other = Purgatory(), Watch(), Watch()
    purgatory.watch(watch, "a")
    purgatory.watch(other, "a")
    purgatory.unwatch(watch, "a")
    purgatory.notify("a")
    assert not watch.notified
    assert [*other.notified] == ["a"]
    purgatory.unwatch(other, "a")
    assert purgatory.statistics() == 0


async def test_who_waits_on_a_watch_wakes_with_any_key(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    """One key to wait on, however many are watched."""
    purgatory, watch = Purgatory(), Watch()
    for number in range(100):
        purgatory.watch(watch, number)
    answers: list[str] = []

    async def wait() -> None:
        parked = Parked((watch,), lambda: 10.0, lambda _: "done" if watch.notified else None, str)
        answers.append(await purgatory.wait_for_answer(parked))

    nursery.start_soon(wait)
    await trio.testing.wait_all_tasks_blocked()
    assert not answers
    purgatory.notify(57)
    await trio.testing.wait_all_tasks_blocked()
    assert answers == ["done"]
