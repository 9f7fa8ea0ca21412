"""The matrix of cut wires (`cut_wires.py`): while a majority of the in-sync replicas reach each
other and the store, no record with acks=all waits for longer than `STALL_S_MAX`, nor to be shown.

Brokers are set as `cluster up` sets them: the lag time is twice as long as records may wait. One
kind of wire is none of the cluster's business: a leader that only clients cannot reach serves them
again when the wire is mended.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from minibroker.testing.cluster import simulate
from tests.sim.cut_wires import CLIENTS, Cut, Served, Times, cuts, measure
from tests.sim.trial import SEED

STALL_S_MAX = 5.0
LASTS_S = 8.0
USUAL = Times(lasts_s=LASTS_S)
CASES = ["the leader governs", "another governs"]


def served(cut: Cut, times: Times, *, is_controller: bool) -> Served:
    """What becomes of a cluster."""
    return simulate(partial(measure, cut, is_controller=is_controller, times=times), SEED)


def is_between_leader_and_clients(cut: Cut) -> bool:
    """Whether what it cuts off is only the leader, and only from those that are to be served."""
    return (cut.one, cut.other) == ("leader", CLIENTS)


def cells(*, is_long: bool) -> Iterator[Any]:
    """The matrix, in two parts: one that is held in both directions is much like one that is held
    in one, clients that do not reach a follower miss nothing, and where the leader governs its two
    followers are alike."""
    for cut in cuts():
        for is_controller, case in zip((True, False), CASES, strict=True):
            is_follower = cut.other == CLIENTS and cut.one != "leader"
            ends = {cut.one, cut.other}
            is_twin = is_controller and "third" in ends and "other" not in ends
            is_rest = cut.how == "hold both" or (is_follower and is_controller) or is_twin
            if is_rest == is_long:
                yield pytest.param(cut, is_controller, id=f"{cut}, {case}")


@pytest.mark.parametrize(("cut", "is_controller"), [*cells(is_long=False)])
def test_no_cut_wire_stops_a_cluster(cut: Cut, is_controller: bool) -> None:
    """Whichever it is, and however it is cut, at least two replicas and the store reach each
    other. A leader that only clients do not reach is not replaced."""
    judge(cut, is_controller=is_controller)


@pytest.mark.soak
@pytest.mark.parametrize(("cut", "is_controller"), [*cells(is_long=True)])
def test_no_wire_of_the_rest_stops_a_cluster(cut: Cut, is_controller: bool) -> None:
    """The other part of the matrix."""
    judge(cut, is_controller=is_controller)


def judge(cut: Cut, *, is_controller: bool) -> None:
    """See `test_no_cut_wire_stops_a_cluster`."""
    found = served(cut, USUAL, is_controller=is_controller)
    if is_between_leader_and_clients(cut):
        assert found.leader == "leader"
        assert found.acknowledged_s <= LASTS_S + STALL_S_MAX
    else:
        assert found.acknowledged_s <= STALL_S_MAX
        assert found.shown_s <= STALL_S_MAX


@pytest.mark.parametrize("is_controller", [True, False], ids=CASES)
@pytest.mark.parametrize("how", ["cut", "hold back"])
def test_nobody_waits_for_a_follower_that_only_its_leader_does_not_hear(
    how: str, is_controller: bool
) -> None:
    """The leader has the follower leave the in-sync set, and leads on: nobody is elected."""
    found = served(Cut("leader", "third", how), USUAL, is_controller=is_controller)
    assert found.acknowledged_s <= STALL_S_MAX / 2
    assert found.leader == "leader"
