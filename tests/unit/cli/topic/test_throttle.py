"""The throttle of a plan: what it sets on topics and brokers, and what ends it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker.broker.properties.quotas import (
    FOLLOWER_RATE,
    FOLLOWER_REPLICAS,
    LEADER_RATE,
    LEADER_REPLICAS,
)
from minibroker.cli.topic.throttle import (
    PartitionMove,
    ThrottleChanges,
    ThrottleError,
    moves_of,
    removal_changes,
    throttle_changes,
)

T0, T1, U0 = ("t", 0), ("t", 1), ("u", 0)
Configs = dict[str, dict[str, str]]
Plans = dict[tuple[str, int], tuple[tuple[int, ...], tuple[int, ...]]]  # present, then planned


def applied(before: Configs, changes: ThrottleChanges) -> Configs:
    """Return the settings of topics after the changes."""
    after = {topic: {**settings} for topic, settings in before.items()}
    for topic, settings in changes.topics.items():
        for name, value in settings.items():
            after[topic].pop(name, None)
            if value is not None:
                after[topic][name] = value
    return after


def test_replicas_that_are_there_send_and_added_ones_copy() -> None:
    """As kafka-reassign-partitions lists them. What only leaves, or changes places, copies
    nothing."""
    plan = {T0: (4, 1), T1: (2, 3), U0: (2,), ("u", 1): (1,), ("gone", 0): (1,)}
    moves = moves_of(plan, {T0: (1, 2), T1: (3, 2), U0: (1, 2), ("u", 1): (3,)}, {})
    assert moves == {T0: PartitionMove((1, 2), (4,)), ("u", 1): PartitionMove((3,), (1,))}
    assert throttle_changes(moves, {"t": {}, "u": {}}, 500) == ThrottleChanges(
        {
            "t": {LEADER_REPLICAS: "0:1,0:2", FOLLOWER_REPLICAS: "0:4"},
            "u": {LEADER_REPLICAS: "1:3", FOLLOWER_REPLICAS: "1:1"},
        },
        {node: {LEADER_RATE: "500", FOLLOWER_RATE: "500"} for node in (1, 2, 3, 4)},
    )


def test_what_a_move_under_way_adds_is_not_there_yet() -> None:
    """Another rate, or another target, for a plan that is carried out already."""
    replicas, adding = {T0: (4, 1, 2)}, {T0: (4,)}
    assert moves_of({T0: (4, 1)}, replicas, adding) == {T0: PartitionMove((1, 2), (4,))}
    moves = moves_of({T0: (5, 1)}, replicas, adding)
    assert moves == {T0: PartitionMove((1, 2), (5,))}
    before = {"t": {LEADER_REPLICAS: "0:1,0:2", FOLLOWER_REPLICAS: "0:4"}}
    # Broker 4 has the rate from before: it stays listed, so that the end of the throttle finds it.
    assert throttle_changes(moves, before, 7).topics["t"][FOLLOWER_REPLICAS] == "0:4,0:5"


def test_the_end_takes_away_what_the_plan_has_set() -> None:
    """Its entries; and the rates of brokers that no other entry names."""
    configs = {
        "t": {LEADER_REPLICAS: "0:1,0:2,1:2", FOLLOWER_REPLICAS: "0:4"},
        "u": {LEADER_REPLICAS: "0:1", "retention.ms": "5"},
    }
    nothing = {LEADER_RATE: None, FOLLOWER_RATE: None}
    assert removal_changes([T0], configs) == ThrottleChanges(
        {"t": {LEADER_REPLICAS: "1:2", FOLLOWER_REPLICAS: None}}, {4: nothing}
    )
    assert removal_changes([T0, T1, U0], configs) == ThrottleChanges(
        {
            "t": {LEADER_REPLICAS: None, FOLLOWER_REPLICAS: None},
            "u": {LEADER_REPLICAS: None},
        },
        {1: nothing, 2: nothing, 4: nothing},
    )


def test_without_a_throttle_nothing_is_taken_away() -> None:
    """Not even the rates that an operator has set; nor a list of all replicas."""
    for configs in ({"t": {}}, {"t": {LEADER_REPLICAS: "*", FOLLOWER_REPLICAS: "1:2"}}, {}):
        assert removal_changes([T0], configs) == ThrottleChanges({}, {})


def test_a_topic_that_throttles_all_replicas_is_refused() -> None:
    """Whoever has said so may want it later, too."""
    moves = {T0: PartitionMove((1,), (2,))}
    with pytest.raises(
        ThrottleError, match=r"topic t has follower.*=\* already: .*--delete-config"
    ):
        throttle_changes(moves, {"t": {FOLLOWER_REPLICAS: "*"}}, 1)


NODES = st.sets(st.integers(1, 6), min_size=1, max_size=3).map(lambda nodes: tuple(sorted(nodes)))
NAMES = st.tuples(st.sampled_from("tuv"), st.integers(0, 3))
PLANS = st.dictionaries(NAMES, st.tuples(NODES, NODES), min_size=1, max_size=6)


@given(PLANS, PLANS)
def test_two_plans_do_not_end_each_others_throttle(first: Plans, second: Plans) -> None:
    """Each ends only its own entries, and no rate that the other needs; together they leave
    nothing."""
    second = {name: nodes for name, nodes in second.items() if name not in first}
    empty: Configs = {"t": {}, "u": {}, "v": {}}
    changes = throttle_changes(moves_in(first), empty, 10)
    rates = {*changes.brokers}
    configs = applied(empty, changes)
    both = throttle_changes(moves_in(second), configs, 10)
    rates |= {*both.brokers}
    ended = removal_changes(first, applied(configs, both))
    configs = applied(applied(configs, both), ended)
    alone = throttle_changes(moves_in(second), empty, 10)
    assert configs == applied(empty, alone)
    assert rates - {*ended.brokers} == {*alone.brokers}
    last = removal_changes(second, configs)
    assert applied(configs, last) == empty
    assert {*last.brokers} == {*alone.brokers}


def moves_in(plans: Plans) -> dict[tuple[str, int], PartitionMove]:
    plan = {name: target for name, (_, target) in plans.items()}
    return moves_of(plan, {name: present for name, (present, _) in plans.items()}, {})
