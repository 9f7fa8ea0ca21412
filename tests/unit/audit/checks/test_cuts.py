"""Where a log is cut to the leader's epochs, and which epochs of a log are believed."""

import pytest

from minibroker.audit.checks.log_ends import EpochEnd, LogFacts, ascending, kept_end
from tests.unit.audit.checks.logs import log

CUTS = {
    "the same": (log((1, 10), (2, 20)), log((1, 10), (2, 20)), 20),
    "a shorter one": (log((1, 10), (2, 15)), log((1, 10), (2, 20)), 15),
    "the leader's is shorter": (log((1, 10), (2, 25)), log((1, 10), (2, 20)), 20),
    "the leader went on in later epochs": (
        log((1, 10), (2, 15)),
        log((1, 10), (2, 20), (4, 30)),
        15,
    ),
    "an epoch that the leader's ended earlier": (
        log((1, 10), (2, 25)),
        log((1, 10), (2, 20), (4, 30)),
        20,
    ),
    "an epoch that the leader never saw": (
        log((1, 10), (3, 25)),
        log((1, 10), (2, 20), (4, 30)),
        10,
    ),
    "two rounds": (log((1, 10), (3, 12), (5, 25)), log((1, 8), (2, 9), (4, 30)), 8),
    "all epochs are newer": (log((5, 25), first=3), log((1, 10), (2, 20)), 3),
    "all epochs are older": (log((1, 25)), log((4, 30), first=20), 20),
    "nothing here": (LogFacts.empty(7), log((4, 30)), 7),
    "nothing there": (log((4, 30)), LogFacts.empty(7), 7),
}


@pytest.mark.parametrize(("own", "leader", "end"), CUTS.values(), ids=CUTS)
def test_where_a_log_is_cut(own: LogFacts, leader: LogFacts, end: int) -> None:
    """A log is cut where its follower would cut it, by the epochs alone."""
    assert kept_end(own, leader) == end


def test_a_flipped_bit_has_no_say_over_epochs() -> None:
    """Of epochs that contradict each other those with the most records are believed."""
    sound = [EpochEnd(2, 300, 300), EpochEnd(4, 1000, 700)]
    assert ascending(reversed(sound)) == tuple(sound)
    assert ascending([*sound, EpochEnd(1 << 30, 501, 1)]) == tuple(sound)
    assert ascending([*sound, EpochEnd(0, 501, 1), EpochEnd(-7, 20, 1)]) == tuple(sound)
    assert ascending([]) == ()
