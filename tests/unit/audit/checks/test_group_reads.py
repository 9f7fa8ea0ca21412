"""What a group has left out, from what ledgers show that it has read and committed."""

from collections.abc import Sequence

import pytest

from minibroker.audit.checks.group_reads import (
    HOLES_MAX,
    FirstCommit,
    Hole,
    Island,
    Reads,
    findings_of,
    holes_of,
)
from minibroker.audit.model import Severity


def islands(*spans: tuple[int, int]) -> list[Island]:
    """Offsets that were all read, first and last."""
    return [Island(*span, twice=0) for span in spans]


def commits(*offsets: int, unread: Sequence[int] = ()) -> list[FirstCommit]:
    """Commits, of which some came without the record before them."""
    return [FirstCommit(each, "L", each not in unread, each not in unread) for each in offsets]


@pytest.mark.parametrize(
    ("read", "made", "holes"),
    [
        (islands((0, 99)), commits(50, 100), []),
        (islands((40, 99)), commits(50, 100), []),  # it began there
        (islands((0, 9), (20, 29)), commits(30), [(10, 20)]),
        (islands((0, 9), (20, 29)), commits(10), []),  # not committed past it yet
        (islands((0, 9), (20, 29)), commits(20, unread=[20]), [(10, 20)]),
        (islands((0, 9), (20, 29)), commits(15, 30, unread=[15]), [(10, 20)]),
        (islands((0, 9)), commits(10, 50, unread=[50]), [(10, 50)]),
        (islands((20, 29)), commits(10, 30, unread=[10]), [(9, 10)]),
        ([], commits(10, unread=[10]), [(9, 10)]),
        (islands((0, 9), (20, 29), (40, 49)), commits(30, 50), [(10, 20), (30, 40)]),
    ],
)
def test_what_was_left_out(
    read: list[Island], made: list[FirstCommit], holes: list[tuple[int, int]]
) -> None:
    """Holes between readings below a commit, and what lies right before a commit."""

    def none(_begin: int, _end: int) -> bool:
        return False

    assert [hole[:2] for hole in holes_of(read, made, (), 0, none)] == holes


def test_where_reading_has_begun() -> None:
    """A position that was set says it: what lies from there to the first reading is left out."""

    def none(_begin: int, _end: int) -> bool:
        return False

    read, made = islands((20, 29)), commits(30)
    assert [hole[:2] for hole in holes_of(read, made, [0], 0, none)] == [(0, 20)]
    assert [hole[:2] for hole in holes_of(read, made, [0, 15], 0, none)] == [(15, 20)]
    assert not holes_of(read, made, [0, 20], 0, none)
    assert [hole[:2] for hole in holes_of([], commits(9, unread=[9]), [3], 0, none)] == [(3, 9)]
    assert not holes_of([], commits(9, unread=[9]), [9], 0, none)


def test_what_explains_a_hole() -> None:
    """A position that was set behind it, a log that begins behind it, and a client without a
    ledger that has committed there."""
    read, made = islands((0, 9), (20, 29)), commits(30)

    def holes(jumps: Sequence[int] = (), log_start: int = 0, others: Sequence[int] = ()) -> object:
        def is_other(begin: int, end: int) -> bool:
            return any(begin <= offset <= end for offset in others)

        return [hole[:2] for hole in holes_of(read, made, jumps, log_start, is_other)]

    assert holes() == holes(jumps=[19, 21]) == holes(others=[10, 21]) == [(10, 20)]
    assert (
        holes(jumps=[20]) == holes(log_start=20) == holes(others=[11]) == holes(others=[20]) == []
    )
    assert holes(log_start=15) == [(15, 20)]


def test_how_a_hole_is_told() -> None:
    """Each with its place and what to do, the first few of many; a commit that came too early is a
    warning, since nothing was left out."""
    many = [Hole(10 * at, 10 * at + 5, "L line 7") for at in range(1, HOLES_MAX + 3)]
    early = [FirstCommit(7, "L line 3", is_read=True, is_read_before=False)]
    reads = Reads(100, 0, many, early, 0, "", 0)
    assert reads.skipped == 5 * (HOLES_MAX + 2)
    *holes, last = findings_of(("g", "t", 3), reads, Severity.ERROR)
    assert [each.offset for each in holes] == [hole.start for hole in many[:HOLES_MAX]]
    assert {each.severity for each in holes} == {"error"}
    assert holes[0].detail == (
        "group g has skipped 5 records from offset 10 to 14; no ledger of a member shows that they"
        " were read, and the group has committed past them (L line 7); to do: minibroker group seek"
        " g --topic t:3 --to-offset 10"
    )
    assert holes[-1].detail.endswith("; and 2 more")
    assert (last.severity, last.offset) == ("warning", 7)
    assert last.detail == (
        "group g has committed 7 (L line 3) before a member had read the record before it, which"
        " one did later; so did 1 commit in all"
    )
