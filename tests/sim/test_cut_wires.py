"""The matrix of cut wires (`cut_wires.py`): while a majority of the in-sync replicas reach each
other and the store, no record with acks=all waits for longer than `STALL_S_MAX`, nor to be shown.

Two kinds of wires are none of the cluster's business, and have limits of their own. What only
clients cannot reach serves them again when the wire is mended. A follower that only its leader does
not hear is in sync for as long as `replica.lag.time.max.ms`; `LAG_S` is less than that of clusters
on one machine, which `test_who_waits_for_the_lag_time` has.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from minibroker.testing.cluster import simulate
from tests.sim.cut_wires import BROKERS, CLIENTS, Cut, Served, Times, cuts, measure
from tests.sim.trial import SEED

STALL_S_MAX = 5.0
LAG_S = 2.0
LASTS_S = 8.0
USUAL = Times(lag_s=LAG_S, lasts_s=LASTS_S)
ON_ONE_MACHINE = Times(lag_s=10.0, lasts_s=LASTS_S)  # as `cluster up` sets it
CASES = ["the leader governs", "another governs"]


def served(cut: Cut, times: Times, *, is_controller: bool) -> Served:
    """What becomes of a cluster."""
    return simulate(partial(measure, cut, is_controller=is_controller, times=times), SEED)


def is_between_leader_and_clients(cut: Cut) -> bool:
    """Whether what it cuts off is only the leader, and only from those that are to be served."""
    return (cut.one, cut.other) == ("leader", CLIENTS)


def cells(*, is_long: bool) -> Iterator[Any]:
    """The matrix, in two parts: one that is held in both directions is much like one that is held
    in one, and clients that do not reach a follower miss nothing."""
    for cut in cuts():
        for is_controller, case in zip((True, False), CASES, strict=True):
            is_follower = cut.other == CLIENTS and cut.one != "leader"
            if (cut.how == "hold both" or (is_follower and is_controller)) == is_long:
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
@pytest.mark.parametrize("how", ["cut", "hold there"])
@pytest.mark.parametrize("one", ["other", "third"])
def test_nobody_waits_for_a_follower_that_nobody_hears(
    one: str, how: str, is_controller: bool
) -> None:
    """The controller has fenced it, and its leader does not hear it either: so the leader does not
    wait for the lag time, which is twice as long here as records may wait."""
    found = served(Cut(one, BROKERS, how), ON_ONE_MACHINE, is_controller=is_controller)
    assert found.acknowledged_s <= STALL_S_MAX
    assert found.leader == "leader"


def test_who_waits_for_the_lag_time() -> None:
    """The controller hears a follower that its leader does not hear: such a follower may be slow,
    and has the lag time; the leader looks every half of it."""
    cut = Cut("leader", "third", "hold back")
    found = served(cut, ON_ONE_MACHINE._replace(lasts_s=20.0), is_controller=False)
    assert ON_ONE_MACHINE.lag_s <= found.acknowledged_s <= 1.5 * ON_ONE_MACHINE.lag_s + 1
