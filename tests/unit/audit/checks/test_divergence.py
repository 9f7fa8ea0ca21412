"""Which replicas are wrong where logs part: a table of what they hold, and what that proves."""

from collections.abc import Mapping, Sequence
from itertools import combinations

import pytest

from minibroker.audit.checks.divergence import Batch, Pair, find_divergences

END = 100
CANNOT = "and which is right cannot be told"
DAMAGED = -1
ABSENT = -2


def batch(content: int) -> Batch | None:
    """A batch of offset 10; each of its contents is a number."""
    return None if content == ABSENT else Batch(19, content, 0, content != DAMAGED, 0, 500)


def pairs(held: Mapping[int, int]) -> list[Pair]:
    """Each with each; equal where they hold the same."""
    return [
        Pair((one, other), 0, END)
        if held[one] == held[other]
        else Pair((one, other), 0, END, 10, (batch(held[one]), batch(held[other])), 1)
        for one, other in combinations(sorted(held), 2)
    ]


# What each broker holds at offset 10, who is not in sync, of whom the ledgers say that it is right
# or wrong; and then who is named, and why.
CASES: Mapping[
    str, tuple[Mapping[int, int], Sequence[int], Mapping[int, bool], Sequence[int], str]
] = {
    "all the same": ({1: 7, 2: 7, 3: 7}, [], {}, [], ""),
    "one of three": ({1: 7, 2: 7, 3: 8}, [], {}, [3], "1 and 2 agree, 3 differs"),
    "the first of three": ({1: 8, 2: 7, 3: 7}, [], {}, [1], "2 and 3 agree, 1 differs"),
    "two of five": (
        {1: 7, 2: 7, 3: 8, 4: 9, 5: 7},
        [],
        {},
        [3, 4],
        "1, 2 and 5 agree, 3 and 4 differ",
    ),
    "one against one": ({1: 7, 2: 8}, [], {}, [1, 2], f"1 differs, 2 differs, {CANNOT}"),
    "two against two": (
        {1: 7, 2: 8, 3: 7, 4: 8},
        [],
        {},
        [1, 2, 3, 4],
        f"1 and 3 agree, 2 and 4 agree, {CANNOT}",
    ),
    "each another": (
        {1: 7, 2: 8, 3: 9},
        [],
        {},
        [1, 2, 3],
        f"1 differs, 2 differs, 3 differs, {CANNOT}",
    ),
    "a damaged one proves nothing": ({1: DAMAGED, 2: 8}, [], {}, [1], "of 1 and 2 only 2 is whole"),
    "nor do two": ({1: DAMAGED, 2: DAMAGED, 3: 8}, [], {}, [1, 2], "of 1, 2 and 3 only 3 is whole"),
    "two are whole": (
        {1: 8, 2: DAMAGED, 3: 8},
        [],
        {},
        [2],
        "of 1, 2 and 3 only 1 and 3 are whole",
    ),
    "nor does an absent one": ({1: 7, 2: ABSENT}, [], {}, [2], "of 1 and 2 only 1 is whole"),
    "damaged, and two that differ": (
        {1: DAMAGED, 2: 8, 3: 9},
        [],
        {},
        [1, 2, 3],
        f"1 differs, 2 differs, 3 differs, {CANNOT}",
    ),
    "none is whole": (
        {1: DAMAGED, 2: ABSENT},
        [],
        {},
        [1, 2],
        f"1 differs, 2 differs, {CANNOT}",
    ),
    "one that is not in sync": ({1: 7, 2: 8}, [2], {}, [2], "1 is in sync, 2 differs"),
    "two that are in sync": (
        {1: 7, 2: 8, 3: 7, 4: 8},
        [2, 4],
        {},
        [2, 4],
        "1 and 3 are in sync, 2 and 4 differ",
    ),
    "two that are not agree against the one that is": (
        {1: 7, 2: 8, 3: 8},
        [2, 3],
        {},
        [1, 2, 3],
        f"2 and 3 agree, 1 differs, {CANNOT}",
    ),
    "the ledgers know: against the majority": (
        {1: 7, 2: 7, 3: 8},
        [],
        {1: False, 2: False, 3: True},
        [1, 2],
        "what clients were told is on 3",
    ),
    "the ledgers know: of two": (
        {1: 7, 2: 8},
        [],
        {1: True, 2: False},
        [2],
        "what clients were told is on 1",
    ),
    "the ledgers agree with all: a time or a header differs": (
        {1: 7, 2: 8},
        [],
        {1: True, 2: True},
        [1, 2],
        f"1 differs, 2 differs, {CANNOT}",
    ),
    "the ledgers agree with none": (
        {1: 7, 2: 8, 3: 8},
        [],
        {1: False, 2: False, 3: False},
        [1],
        "2 and 3 agree, 1 differs",
    ),
}


@pytest.mark.parametrize(
    ("held", "out_of_sync", "told", "named", "said"), CASES.values(), ids=CASES
)
def test_who_is_wrong(
    held: Mapping[int, int],
    out_of_sync: Sequence[int],
    told: Mapping[int, bool],
    named: Sequence[int],
    said: str,
) -> None:
    """A replica is named alone only where something proves that it is the wrong one."""
    in_sync = {broker: broker not in out_of_sync for broker in held}
    found = find_divergences(
        pairs(held), in_sync, {(10, node): is_it for node, is_it in told.items()}
    )
    assert [each.broker for each in found] == list(named)
    assert {each.said for each in found} == ({said} if named else set())
    assert {each.offset for each in found} <= {10}
    for each in found:
        assert held[each.other_broker] != held[each.broker]


# What each broker holds, whose log has other damage, what ledgers say; who is named, and why.
DOUBTFUL: Mapping[
    str, tuple[Mapping[int, int], Sequence[int], Mapping[int, bool], Sequence[int], str]
] = {
    "the majority has lost something": (
        {1: 7, 2: 7, 3: 8},
        [1, 2],
        {},
        [1, 2],
        "1 and 2 have other damage in this log, 3 has none",
    ),
    "one of two has": (
        {1: 7, 2: 8},
        [1],
        {},
        [1],
        "1 has other damage in this log, 2 has none",
    ),
    "one of the majority has": ({1: 7, 2: 7, 3: 8}, [1], {}, [3], "1 and 2 agree, 3 differs"),
    "all have": ({1: 7, 2: 7, 3: 8}, [1, 2, 3], {}, [3], "1 and 2 agree, 3 differs"),
    "but ledgers know better": (
        {1: 7, 2: 7, 3: 8},
        [1, 2],
        {1: True, 2: True, 3: False},
        [3],
        "what clients were told is on 1 and 2",
    ),
}


@pytest.mark.parametrize(
    ("held", "doubtful", "told", "named", "said"), DOUBTFUL.values(), ids=DOUBTFUL
)
def test_who_has_lost_something_has_no_vote(
    held: Mapping[int, int],
    doubtful: Sequence[int],
    told: Mapping[int, bool],
    named: Sequence[int],
    said: str,
) -> None:
    """A majority with other damage in the log does not accuse a sound replica."""
    in_sync = dict.fromkeys(held, True)
    ledgers = {(10, node): is_it for node, is_it in told.items()}
    found = find_divergences(pairs(held), in_sync, ledgers, doubtful)
    assert [each.broker for each in found] == list(named)
    assert {each.said for each in found} == {said}


def test_each_is_named_where_it_parts() -> None:
    """One parts at 10 and another at 50; who has parted before has no say any more."""
    one, two = batch(7), batch(8)
    found = find_divergences(
        [
            Pair((1, 2), 0, END, 10, (two, one)),
            Pair((1, 3), 0, END, 10, (two, one)),
            Pair((1, 4), 0, END, 10, (two, one)),
            Pair((2, 3), 0, END, 50, (one, two)),
            Pair((2, 4), 0, END),
            Pair((3, 4), 0, END, 50, (two, one)),
        ],
        dict.fromkeys((1, 2, 3, 4), True),
        {},
    )
    assert [(each.broker, each.offset, each.said) for each in found] == [
        (1, 10, "2, 3 and 4 agree, 1 differs"),
        (3, 50, "2 and 4 agree, 3 differs"),
    ]


def test_who_was_not_compared_there_has_no_say() -> None:
    """A log that begins behind the place does not support either side."""
    one, two = batch(7), batch(8)
    found = find_divergences(
        [Pair((1, 2), 0, END, 10, (two, one)), Pair((1, 3), 60, END), Pair((2, 3), 60, END)],
        dict.fromkeys((1, 2, 3), True),
        {},
    )
    assert [each.broker for each in found] == [1, 2]
