"""Each check finds the history that breaks its promise, and passes one that does not."""

import re
import time
from collections.abc import Callable

import pytest

from minibroker.testing import History, PromiseBroken

CHECKS: dict[str, Callable[[History], None]] = {
    "lost": History.check_nothing_is_lost,
    "order": History.check_order_per_key,
    "at least once": History.check_at_least_once,
    "exactly once": History.check_exactly_once,
    "stored once": History.check_stored_once,
    "commit after": History.check_commit_after_processing,
    "commits": History.check_commits_never_go_back,
}


def history(*events: tuple[object, ...]) -> History:
    """A history of these events: a method's name and its arguments each."""
    made = History()
    for name, *arguments in events:
        getattr(made, str(name))(*arguments)
    return made


def without_facts(text: str) -> str:
    """The sentences without what they tell of times, in parentheses."""
    return re.sub(r" \(\d\d:\d\d:\d\d\.\d{3} .*\)$", "", text, flags=re.MULTILINE)


def sends(*values: str) -> list[tuple[object, ...]]:
    """Values of one key, sent and acknowledged."""
    return [event for value in values for event in (("sent", value, "k"), ("acknowledged", value))]


def reads(*values: str, first: int = 0) -> list[tuple[object, ...]]:
    """Values polled one after another, and not processed."""
    return [("polled", value, "t", 0, first + at) for at, value in enumerate(values)]


def test_what_a_sound_program_does_passes_all_checks() -> None:
    """It sends, reads, processes, commits, and after a crash begins at its commit."""
    sound = history(
        *sends("a", "b", "c"),
        ("sent", "lost on the way", "k"),
        *reads("a"),
        ("processed", "a"),
        ("committed", "g", "t", 0, 1),
        *reads("b", "c", first=1),
        *reads("b", "c", first=1),
        ("processed", "b"),
        ("processed", "c"),
        ("committed", "g", "t", 0, 3),
        ("committed", "other", "t", 0, 0),
    )
    for check in CHECKS.values():
        check(sound)


@pytest.mark.parametrize(
    ("events", "checks", "said"),
    [
        (
            [*sends("a", "b"), *reads("a"), ("processed", "a"), ("processed", "b")],
            {"lost"},
            "'b' was acknowledged and never polled",
        ),
        (
            [*sends("a", "b"), *reads("b", "a"), ("processed", "b"), ("processed", "a")],
            {"order"},
            "of key 'k', 'a' was sent before 'b' and polled after",
        ),
        (
            [*sends("a"), *reads("a")],
            {"at least once", "exactly once"},
            "'a' was acknowledged and never processed",
        ),
        (
            [*sends("a"), *reads("a"), ("processed", "a"), ("processed", "a")],
            {"exactly once"},
            "'a' was processed 2 times",
        ),
        (
            [*sends("a"), *reads("a", "a"), ("processed", "a")],
            {"stored once"},
            "'a' is at t-0, offset 0 and at t-0, offset 1",
        ),
        (
            [*sends("a"), *reads("a"), ("committed", "g", "t", 0, 1), ("processed", "a")],
            {"commit after"},
            "group 'g' has committed 1 of t-0 before 'a' at 0 was processed",
        ),
        (
            [
                *sends("a"),
                *reads("a"),
                ("processed", "a"),
                ("committed", "g", "t", 0, 5),
                ("committed", "g", "t", 0, 4),
            ],
            {"commits"},
            "group 'g' has committed 4 of t-0 after 5",
        ),
    ],
    ids=["lost", "order", "skipped", "twice", "stored twice", "commit before", "commit back"],
)
def test_what_breaks_a_promise_is_told(
    events: list[tuple[object, ...]], checks: set[str], said: str
) -> None:
    """By the check of that promise, and by no other."""
    made = history(*events)
    broken = {}
    for name, check in CHECKS.items():
        try:
            check(made)
        except PromiseBroken as error:
            broken[name] = without_facts(str(error))
    assert broken == dict.fromkeys(checks, said)


def test_sentences_have_offsets_and_times() -> None:
    """Of what happened to the record, in the order of the times; the commit is among them."""
    made, day = History(), time.mktime((2026, 11, 29, 12, 0, 0, 0, 0, -1))
    made.sent("a", at=day)
    made.acknowledged("a", at=day + 1)
    made.processed("a", at=day + 2.5)
    made.polled("a", "t", 0, 7, at=day + 1.25)
    made.committed("g", "t", 0, 8, at=day + 2, by="client 'c'")
    with pytest.raises(PromiseBroken) as caught:
        made.check_commit_after_processing()
    assert str(caught.value) == (
        "group 'g' has committed 8 of t-0 before 'a' at 7 was processed (12:00:00.000 sent;"
        " 12:00:01.000 acknowledged; 12:00:01.250 polled at t-0, offset 7;"
        " 12:00:02.000 committed 8 by client 'c'; 12:00:02.500 processed)"
    )
    made.committed("g", "t", 0, 3, at=day + 9)
    with pytest.raises(PromiseBroken) as caught:
        made.check_commits_never_go_back()
    assert str(caught.value) == (
        "group 'g' has committed 3 of t-0 after 8"
        " (12:00:02.000 committed 8 by client 'c'; 12:00:09.000 committed 3)"
    )
    assert [(each.offset, each.by) for each in made.commits()] == [(8, "client 'c'"), (3, "")]


def test_events_with_times_are_ordered_by_them() -> None:
    """A program's database is read after its commits, and has the times of its rows."""
    made = History()
    made.appended("a", "t", 0, 0, at=1)
    made.committed("g", "t", 0, 1, at=3)
    made.processed("a", at=2)
    made.check_commit_after_processing()
    made.check_exactly_once()
    made.committed("g", "t", 0, 0, at=1)
    made.check_commits_never_go_back()
    assert [each.offset for each in made.commits()] == [0, 1]


def test_a_clock_that_is_set_back_does_not_change_the_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Events without a time of their own are in the order of their calls."""
    clock = iter(range(100, 0, -1))
    monkeypatch.setattr(time, "time", lambda: float(next(clock)))
    made = history(*sends("a"), *reads("a"), ("committed", "g", "t", 0, 1), ("processed", "a"))
    with pytest.raises(PromiseBroken, match="before 'a' at 0 was processed"):
        made.check_commit_after_processing()


def test_a_history_without_acknowledgements_shows_nothing() -> None:
    """The test has not connected it to the program."""
    for check in (History.check_nothing_is_lost, History.check_at_least_once):
        with pytest.raises(PromiseBroken, match="the history has no acknowledgement"):
            check(history(("sent", "a")))


def test_many_sentences_are_cut() -> None:
    """The first ten, and how many more there are."""
    with pytest.raises(PromiseBroken) as caught:
        history(*sends(*map(str, range(25)))).check_nothing_is_lost()
    lines = str(caught.value).splitlines()
    assert len(lines) == 11
    assert lines[-1] == "and 15 more"


def test_what_no_history_can_be_is_refused() -> None:
    """A value twice, and an acknowledgement of what was not sent."""
    with pytest.raises(ValueError, match="'a' was sent before"):
        history(("sent", "a"), ("sent", "a"))
    with pytest.raises(ValueError, match="the history has no send of it"):
        history(("acknowledged", "a"))
