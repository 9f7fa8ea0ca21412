"""The placement of new partitions: over brokers, and over racks where brokers have one."""

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker.broker.config import Config
from minibroker.broker.controller.assignment import brokers_of
from minibroker.broker.controller.placement import alternating, place
from minibroker.broker.controller.topics import plan_create, plan_create_partitions
from minibroker.broker.turns import without_pause
from minibroker.protocol.messages.topics import (
    CreatePartitionsRequest,
    CreateTopicsRequest,
    NewPartitions,
    NewTopic,
)
from tests.unit.controller.test_topics import state_with

PAIRS = {1: "a", 2: "a", 3: "b", 4: "b", 5: "c", 6: "c"}


@st.composite
def clusters(draw):
    """Brokers with racks (None: without), the live ones in order of placement, those down, a
    replication factor, and how many replicas have to be live."""
    count = draw(st.integers(1, 8))
    named = st.sampled_from([None, "a", "b", "c"])
    racks = {node: draw(named) for node in range(1, count + 1)}
    down = draw(st.lists(st.sampled_from([*racks]), unique=True, max_size=count - 1))
    live = alternating([node for node in racks if node not in down], racks)
    return racks, live, tuple(down), draw(st.integers(1, count)), draw(st.integers(1, 3))


@given(clusters(), st.integers(0, 20))
def test_replicas_are_in_as_many_racks_as_possible(cluster, start):
    """A partition has distinct brokers, a live one first, and a rack twice only if each has a
    replica that could get one. Live brokers lead in turn."""
    racks, live, down, factor, live_min = cluster
    partitions = place(2 * len(live), factor, live, start, down, racks, live_min)
    for replicas in partitions:
        assert len({*replicas}) == len(replicas) == factor
        assert replicas[0] in live
        alive = [node for node in replicas if node in live]
        assert len(alive) >= min(factor, live_min, len(live))
        used = {racks[node] for node in replicas}
        if not down:
            assert len(used) == min(factor, len({*racks.values()}))
        assert len(used) >= min(factor, len({racks[node] for node in live}))
    assert {*Counter(replicas[0] for replicas in partitions).values()} == {2}


@given(clusters(), st.integers(0, 20))
def test_one_rack_is_as_good_as_none(cluster, start):
    """All brokers without a rack, or in the same one, get what they got before there were racks."""
    racks, _, down, factor, live_min = cluster
    live = tuple(node for node in racks if node not in down)
    for rack in (None, "a"):
        same = dict.fromkeys(racks, rack)
        assert alternating(live, same) == live
        placed = place(9, factor, live, start, down, same, live_min)
        assert placed == place(9, factor, live, start, down)


@pytest.mark.parametrize("factor", [1, 2, 3, 4, 6])
def test_equal_racks_hold_equally_much(factor):
    """As many replicas (give or take one where a rack has two of a partition) and leaders are on
    each broker, and what one leads has its followers on
    many others."""
    live = alternating(PAIRS, PAIRS)
    partitions = place(24, factor, live, 1, racks=PAIRS)
    held = Counter(node for one in partitions for node in one)
    assert all(abs(held[node] - 4 * factor) <= (factor == 4) for node in PAIRS)
    assert {*Counter(one[0] for one in partitions).values()} == {4}
    if factor == 2:
        assert len({one for one in partitions if one[0] == 1}) >= 3


def test_a_rack_of_which_all_are_down_gets_its_replica():
    """As in Kafka: when the rack comes back, the partition is in as many racks as it can. If too
    few replicas would be live, a rack gets a second one."""
    racks = {1: "a", 2: "a", 3: "b"}
    assert {*place(4, 2, (1, 2), 0, (3,), racks)} == {(1, 3), (2, 3)}
    assert {*place(4, 2, (1, 2), 0, (3,), racks, live_min=2)} == {(1, 2), (2, 1)}


def test_topics_and_new_partitions_are_spread_over_racks():
    """The controller takes the racks of the brokers that it admitted."""
    state = state_with(*PAIRS, racks=PAIRS)
    assert len({PAIRS[one] for one in brokers_of(state).active[:3]}) == 3
    topics = CreateTopicsRequest((NewTopic("t", 2, 3),))
    state = without_pause(plan_create(state, Config(), topics, Random(1))).state
    more = CreatePartitionsRequest((NewPartitions("t", 8),))
    state = without_pause(plan_create_partitions(state, Config(), more, Random(1))).state
    partitions = state.topics["t"].partitions
    assert [len({PAIRS[one] for one in each.replicas}) for each in partitions] == [3] * 8
    assert len({each.replicas[0] for each in partitions}) == 6
