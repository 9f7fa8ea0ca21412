"""Real brokers with many partitions: the work of coming back costs nobody a session.

`python -m tests.many_partitions 1000` shows the same scenarios with their figures.
"""

from pathlib import Path

import pytest

from tests.many_partitions import (
    GATHER,
    SCENARIOS,
    ManyPartitions,
    Size,
    live_through,
    many_partitions,
)
from tests.support.crowd import CrowdSize

# How often each partition may be elected. A broker that goes gives its partitions away once; when
# all go one after the other, so does the next one, and the last takes up what it left.
EPOCHS_MAX = {"roll": 3, "stop and start of all": 5}
AT_REST_S = 5.0
LATE_S_MAX = 0.02  # of a loop at rest, 99 times of 100


def live(many: ManyPartitions, *names: str) -> None:
    """Let it happen: all are in sync in the end, and stay as they are."""
    for name in names:
        with many.measuring() as costs:
            live_through(many, name, costs)
        print(f"{many.size}: {name}: {costs.figures()}")
        assert costs.epochs <= EPOCHS_MAX.get(name, 1), name
        assert costs.sessions_lost == 0, name


def test_a_cluster_with_many_partitions_heals(tmp_path: Path) -> None:
    """1,000 partitions: the controller is killed and comes back, all stop and start."""
    with many_partitions(tmp_path, Size.of("1000"), away_s=1.0) as many:
        live(many, "create", "kill -9 of the controller", "stop and start of all")


@pytest.mark.soak
@pytest.mark.parametrize("size", ["5000", "5000x1"])
@pytest.mark.parametrize("store", ["sqlite", "etcd"])
def test_there_is_no_storm(tmp_path: Path, size: str, store: str) -> None:
    """5,000 partitions: every scenario of `tests.many_partitions`, one after the other."""
    with many_partitions(tmp_path, Size.of(size), store) as many:
        live(many, *SCENARIOS)


@pytest.mark.soak
def test_no_call_holds_up_a_loop(tmp_path: Path) -> None:
    """10,000 partitions at rest: the loops are in time, by their own figure."""
    with many_partitions(tmp_path, Size.of("10000")) as many:
        live(many, "create")
        with many.measuring() as costs:
            many.rest()
        assert costs.lags.bound(0.99) <= LATE_S_MAX, costs.lags


@pytest.mark.soak
def test_clients_outlive_it(tmp_path: Path) -> None:
    """1,000 partitions, 500 connections and 100 groups: all of them are there after each scenario,
    and each group reads on."""
    with many_partitions(tmp_path, Size.of("1000"), crowd=CrowdSize(500, 100)) as many:
        live(many, "create", GATHER, "kill -9", "kill -9 of the controller", "restart")
