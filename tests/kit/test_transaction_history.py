"""`check_exactly_once` finds each history of transactions that breaks the promise, and passes one
that keeps it."""

from collections.abc import Sequence

import pytest

from minibroker.testing import History, PromiseBroken
from tests.kit.test_history import without_facts

Event = tuple[object, ...]

ORDERS: list[Event] = [
    event
    for number in range(3)
    for event in (("sent", f"o{number}"), ("acknowledged", f"o{number}"))
]


def polls(*numbers: int) -> list[Event]:
    """The program polls these orders."""
    return [("polled", f"o{number}", "orders", 0, number) for number in numbers]


def bills(transaction: str, *numbers: int, offset: int = -1) -> list[Event]:
    """The program transforms these orders in a transaction, and commits the offset behind them, if
    not another one; 0: none."""
    events: list[Event] = []
    for number in numbers:
        events.append(("sent", f"b{number}", None, transaction))
        events.append(("processed", f"o{number}", transaction))
    if offset:
        last = max(numbers) + 1 if offset < 0 else offset
        events.append(("committed", "g", "orders", 0, last, transaction))
    return events


def reads(*numbers: int, first: int = 0) -> list[Event]:
    """A consumer polls these bills, one behind the other."""
    return [("polled", f"b{number}", "bills", 0, first + at) for at, number in enumerate(numbers)]


def commit(transaction: str) -> Event:
    """It is committed."""
    return ("transaction_committed", transaction)


def abort(transaction: str) -> Event:
    """It is aborted."""
    return ("transaction_aborted", transaction)


def history(*events: Sequence[object]) -> History:
    """A history of these events: a method's name and its arguments each, the transaction last."""
    made = History()
    for name, *arguments in events:
        method = getattr(made, str(name))
        count = {"sent": 2, "processed": 1, "committed": 4}.get(str(name), 9)
        given = {"transaction": arguments[count]} if len(arguments) > count else {}
        method(*arguments[:count], **given)
    return made


SOUND: dict[str, list[Event]] = {
    "in one": [*polls(0, 1, 2), *bills("t", 0, 1, 2), commit("t"), *reads(0, 1, 2)],
    "in two": [
        *polls(0, 1, 2),
        *bills("t", 0),
        commit("t"),
        *bills("u", 1, 2),
        commit("u"),
        *reads(0, 1, 2),
    ],
    "again after an abort": [
        *polls(0, 1, 2),
        *bills("t", 0, 1, 2),
        abort("t"),
        *polls(0, 1, 2),
        *bills("u", 0, 1, 2),
        commit("u"),
        *reads(0, 1, 2, first=4),
    ],
    "again after a crash": [
        *polls(0, 1, 2),
        *bills("t", 0, 1),
        *polls(0, 1, 2),
        *bills("u", 0, 1, 2),
        commit("u"),
        *reads(0, 1, 2),
    ],
    "a crash after the commit": [
        *polls(0, 1, 2),
        *bills("t", 0, 1),
        *polls(2),
        *bills("u", 2),
        commit("u"),
        *reads(0, 1, 2),
    ],
    "a crash without bills": [
        *polls(0, 1, 2),
        ("processed", "o0", "t"),
        ("committed", "g", "orders", 0, 1, "t"),
        *polls(1, 2),
        *bills("u", 1, 2),
        commit("u"),
        *reads(1, 2),
    ],
    "the offset as the group has it": [
        *polls(0, 1, 2),
        *bills("t", 0, 1, 2),
        commit("t"),
        *reads(0, 1, 2),
        ("committed", "g", "orders", 0, 3),
    ],
    "a reader that reads again": [
        *polls(0, 1, 2),
        *bills("t", 0, 1, 2),
        commit("t"),
        *reads(0, 1, 2),
        *reads(0, 1, 2),
    ],
}

BROKEN: dict[str, tuple[list[Event], list[str]]] = {
    "aborted and read": (
        [
            *polls(0, 1, 2),
            *bills("t", 0),
            abort("t"),
            *bills("u", 0, 1, 2),
            commit("u"),
            *reads(0),
            *reads(0, 1, 2, first=2),
        ],
        [
            "'b0' was polled at bills-0, offset 0 and at bills-0, offset 2,"
            " and sent in 't' (aborted) and in 'u' (committed)"
        ],
    ),
    "aborted, read, and never again": (
        [
            *polls(0, 1, 2),
            *bills("t", 0),
            abort("t"),
            *bills("u", 1, 2),
            commit("u"),
            *reads(0, 1, 2),
        ],
        [
            "'o0' was acknowledged and never processed except in 't' (aborted)",
            "'b0' was polled at bills-0, offset 0, and sent in 't' (aborted)",
            "group 'g' has committed 3 of orders-0 in 'u' before 'o0' at 0 was processed",
        ],
    ),
    "committed and not read": (
        [*polls(0, 1, 2), *bills("t", 0, 1, 2), commit("t"), *reads(0, 2)],
        ["'b1' was sent in 't' (committed), and never polled"],
    ),
    "committed in part": (
        [*polls(0, 1, 2), *bills("t", 0, 1), *bills("u", 2), commit("u"), *reads(0, 2)],
        ["of 't' (its end is not known), 'b0' was polled and 'b1' was not"],
    ),
    "twice": (
        [
            *polls(0, 1, 2),
            *bills("t", 0),
            commit("t"),
            *bills("u", 0, 1, 2),
            commit("u"),
            *reads(0),
            *reads(0, 1, 2, first=2),
        ],
        [
            "'o0' was processed 2 times: in 't' and in 'u'",
            "'b0' was polled at bills-0, offset 0 and at bills-0, offset 2,"
            " and sent in 't' (committed) and in 'u' (committed)",
        ],
    ),
    "a commit in doubt, taken for an abort": (
        [
            *polls(0, 1, 2),
            *bills("t", 0),
            *bills("u", 0, 1, 2),
            commit("u"),
            *reads(0),
            *reads(0, 1, 2, first=2),
        ],
        [
            "'o0' was processed 2 times: in 'u' and in 't'",
            "'b0' was polled at bills-0, offset 0 and at bills-0, offset 2,"
            " and sent in 't' (its end is not known) and in 'u' (committed)",
        ],
    ),
    "skipped": (
        [*polls(0, 1, 2), *bills("t", 0, 2), commit("t"), *reads(0, 2)],
        [
            "'o1' was acknowledged and never processed",
            "group 'g' has committed 3 of orders-0 in 't' before 'o1' at 1 was processed",
        ],
    ),
    "without an offset": (
        [
            *polls(0, 1, 2),
            *bills("t", 0, 1, 2, offset=0),
            commit("t"),
            *reads(0, 1, 2),
            ("committed", "g", "orders", 0, 3),
        ],
        [
            f"'o{number}' at orders-0, offset {number} was processed in 't' (committed),"
            " and no offset behind it is in it"
            for number in range(3)
        ],
    ),
    "the offset of the last record in place of the next one": (
        [*polls(0, 1, 2), *bills("t", 0, 1, 2, offset=2), commit("t"), *reads(0, 1, 2)],
        [
            "'o2' at orders-0, offset 2 was processed in 't' (committed),"
            " and no offset behind it is in it"
        ],
    ),
    "an offset that is not there": (
        [
            *polls(0, 1, 2),
            *bills("t", 0, 1, 2),
            commit("t"),
            *reads(0, 1, 2),
            ("committed", "g", "orders", 0, 1),
        ],
        ["group 'g' has committed 1 of orders-0 after 3"],
    ),
    "an offset of an aborted transaction": (
        [
            *polls(0, 1, 2),
            *bills("t", 0, 1, 2),
            abort("t"),
            ("committed", "g", "orders", 0, 3),
            *bills("u", 0, 1, 2),
            commit("u"),
            *reads(0, 1, 2),
        ],
        [
            f"group 'g' has committed 3 of orders-0 before 'o{number}' at {number} was processed"
            for number in range(3)
        ],
    ),
}


@pytest.mark.parametrize("name", SOUND)
def test_what_a_sound_program_does_passes(name: str) -> None:
    """Also after aborts and crashes, and the checks of programs without transactions pass, too."""
    made = history(*ORDERS, *SOUND[name])
    made.check_exactly_once()
    made.check_at_least_once()
    made.check_nothing_is_lost()
    made.check_stored_once()
    made.check_order_per_key()
    made.check_commit_after_processing()
    made.check_commits_never_go_back()


@pytest.mark.parametrize("name", BROKEN)
def test_what_breaks_the_promise_is_told(name: str) -> None:
    """With the records and the transactions."""
    events, sentences = BROKEN[name]
    with pytest.raises(PromiseBroken) as caught:
        history(*ORDERS, *events).check_exactly_once()
    assert without_facts(str(caught.value)).splitlines() == sentences


def test_a_chain_of_programs() -> None:
    """The second one transforms what the first one has sent in transactions: none may be left
    out."""
    events = [*polls(0, 1, 2), *bills("t", 0, 1, 2), commit("t"), *reads(0, 1, 2)]
    letters: list[Event] = [("sent", "l0", None, "u"), ("processed", "b0", "u")]
    letters += [("committed", "h", "bills", 0, 1, "u"), commit("u"), ("polled", "l0", "mail", 0, 0)]
    history(*ORDERS, *events).check_exactly_once()
    with pytest.raises(PromiseBroken) as caught:
        history(*ORDERS, *events, *letters).check_exactly_once()
    assert without_facts(str(caught.value)).splitlines() == [
        f"'b{number}' was acknowledged and never processed" for number in (1, 2)
    ]


def test_the_order_of_a_key_is_that_of_the_last_sends() -> None:
    """What was sent again after an abort comes behind what was sent meanwhile."""
    made = history(
        ("sent", "a", "k", "t"),
        ("sent", "b", "k", "t"),
        abort("t"),
        ("sent", "b", "k", "u"),
        ("sent", "a", "k", "u"),
        commit("u"),
        ("polled", "b", "x", 0, 0),
        ("polled", "a", "x", 0, 1),
    )
    made.check_order_per_key()


def test_what_no_history_can_be_is_refused() -> None:
    """A value twice in a transaction, or in one and outside; an event of one that has ended."""
    with pytest.raises(ValueError, match="'a' was sent before in 't'"):
        history(("sent", "a", None, "t"), ("sent", "a", None, "t"))
    for events in (
        [("sent", "a"), ("sent", "a", None, "t")],
        [("sent", "a", None, "t"), ("sent", "a")],
    ):
        with pytest.raises(
            ValueError, match="'a' was sent before; a history needs each value once"
        ):
            history(*events)
    with pytest.raises(ValueError, match="transaction 't' has ended: it was committed"):
        history(commit("t"), ("sent", "a", None, "t"))
    with pytest.raises(ValueError, match="transaction 't' has ended: it was aborted"):
        history(abort("t"), commit("t"))


def test_a_value_that_was_refused_was_not_sent() -> None:
    """It may be sent in the same transaction again."""
    made = History()
    made.sent("a", transaction="t")
    made.forget("a", transaction="t")
    made.sent("a", transaction="t")
    made.transaction_committed("t")
    with pytest.raises(PromiseBroken, match=r"'a' was sent in 't' \(committed\), and never polled"):
        made.check_exactly_once()


def test_names_of_transactions() -> None:
    """Each has another one."""
    made = History()
    assert [made.name_transaction(each) for each in ("a", "a", "b")] == ["a #1", "a #2", "b #1"]
