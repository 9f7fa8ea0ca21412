"""Plans of reassignments: what they keep, where the rest goes, and the JSON of Kafka's tool."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker.cli.topic.reassignment_plan import (
    PlanError,
    balanced_plan,
    drained_plan,
    plan_json,
    read_log_dirs,
    read_plan,
    replaced_plan,
    resized_plan,
)

SIX = {("t", number): (1 + number % 3, 1 + (number + 1) % 3) for number in range(6)}


def test_a_plan_spreads_replicas_and_leaders():
    """As evenly as possible, over all of the brokers and no other."""
    plan = balanced_plan(SIX, [1, 2, 3, 4])
    held = Counter(node for replicas in plan.values() for node in replicas)
    assert held == {1: 3, 2: 3, 3: 3, 4: 3}
    led = Counter(replicas[0] for replicas in plan.values())
    assert max(led.values()) - min(led.values()) <= 1
    moved = sum(len({*plan[name]} - {*SIX[name]}) for name in SIX)
    assert moved == 3
    assert all(len({*replicas}) == 2 for replicas in plan.values())


def test_a_plan_empties_a_broker():
    """What is on the others stays."""
    plan = balanced_plan(SIX, [1, 3, 4])
    assert {node for replicas in plan.values() for node in replicas} == {1, 3, 4}
    assert balanced_plan({("t", 0): (1, 2)}, [2, 1]) == {("t", 0): (1, 2)}


def test_too_few_brokers_are_named():
    """Of either kind of plan."""
    with pytest.raises(PlanError, match="2 replicas need as many brokers; there are 1"):
        balanced_plan(SIX, [1])
    with pytest.raises(PlanError, match="4 replicas need as many brokers; there are 3"):
        resized_plan(SIX, [1, 2, 3], 4)


def test_replicas_are_added_behind_and_removed_from_the_end():
    """The preferred leader stays, and a broker that is down keeps its replica."""
    plan = resized_plan(SIX, [1, 3, 4], 3)
    assert all(plan[name][:2] == replicas for name, replicas in SIX.items())
    added = Counter(replicas[2] for replicas in plan.values())
    assert {*added} <= {1, 3, 4}
    assert added[4] >= 3
    assert resized_plan(SIX, [1, 2, 3], 1) == {name: one[:1] for name, one in SIX.items()}


def test_a_plan_is_read_as_it_was_printed():
    """In the form that kafka-reassign-partitions reads and prints; it may say more."""
    assert read_plan(plan_json(SIX)) == SIX
    more = (
        '{"version":1,"partitions":[{"topic":"t","partition":1,"replicas":[3],"log_dirs":["any"]}]}'
    )
    assert read_plan(more) == {("t", 1): (3,)}
    assert read_log_dirs(more) == {}


def test_the_log_directories_of_a_plan_are_read():
    """One for each replica, and `any` for those that may be anywhere."""
    wanted = {("t", 0, 1): "/a", ("t", 2, 3): "/b"}
    assert read_log_dirs(plan_json(SIX, wanted)) == wanted
    assert read_log_dirs('{"partitions":[{"topic":"t","partition":1,"replicas":[3]}]}') == {}


@pytest.mark.parametrize(
    ("log_dirs", "text"),
    [
        ("[]", "t-0 has 0 log_dirs for 2 replicas: give each one, or 'any'"),
        ('["any"]', "t-0 has 1 log_dirs for 2 replicas"),
        ('["any", 3]', "log_dirs of t-0 is no list of paths"),
        ('"any"', "log_dirs of t-0 is no list of paths"),
    ],
)
def test_log_directories_that_fit_no_replicas_are_refused(log_dirs: str, text: str):
    """Kafka's tool refuses them, too."""
    partition = '{"topic": "t", "partition": 0, "replicas": [1, 2], "log_dirs": %s}'
    with pytest.raises(PlanError, match=text):
        read_log_dirs('{"partitions": [%s]}' % (partition % log_dirs))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"partitions": [{"topic": "t"}]}',
        '{"partitions": [{"topic": 1}]}',
        '{"partitions": [{"topic": 1, "partition": 0, "replicas": [1]}]}',
        '{"partitions": [{"topic": "\\ud800", "partition": 0, "replicas": [1]}]}',
        '{"partitions": [{"topic": "t", "partition": 0, "replicas": "12"}]}',
        '{"partitions": [{"topic": "t", "partition": 0, "replicas": {"1": 2}}]}',
        "x",
        "[" * 100_000,
        *(
            f'{{"partitions": [{{"topic": "t", "partition": {number}, "replicas": [1]}}]}}'
            for number in (-1, 2**31, 10**30, 1.5, "null")
        ),
        '{"partitions": [{"topic": "t", "partition": 0, "replicas": [-1]}]}',
    ],
)
def test_another_text_is_no_plan(text):
    """The form is named."""
    with pytest.raises(PlanError, match="the plan is not of the form"):
        read_plan(text)


def test_a_plan_names_a_partition():
    """Or a command would say that it has done all of nothing."""
    with pytest.raises(PlanError, match="the plan names no partition"):
        read_plan('{"partitions": []}')


def test_a_partition_is_planned_once():
    """Two targets of one partition contradict each other."""
    one = '{"topic":"t","partition":0,"replicas":[1]}'
    with pytest.raises(PlanError, match="twice"):
        read_plan(f'{{"partitions": [{one}, {one}]}}')


NODES = st.integers(1, 8)
REPLICAS = st.lists(NODES, unique=True, min_size=1, max_size=4).map(tuple)
PRESENT = st.lists(REPLICAS, min_size=1, max_size=20).map(
    lambda found: {("t", number): replicas for number, replicas in enumerate(found)}
)
RACKS = st.fixed_dictionaries(dict.fromkeys(range(1, 9), st.sampled_from([None, "a", "b"])))


def racks_in(replicas, racks):
    return len({racks[node] for node in replicas})


@given(PRESENT, st.sets(NODES, min_size=4), RACKS)
def test_any_plan_is_on_the_brokers_and_in_their_racks(present, brokers, racks):
    """Each partition keeps its number of replicas, on different brokers, in as many racks as
    possible. A partition moves no replica that is well where it is and on no full broker."""
    plan = balanced_plan(present, brokers, racks)
    assert plan.keys() == present.keys()
    held = Counter(node for replicas in present.values() for node in replicas)
    share = -(-sum(map(len, present.values())) // len(brokers))
    is_even = all(held[node] <= share for node in held)
    for name, replicas in plan.items():
        before = present[name]
        assert len({*replicas}) == len(replicas) == len(before)
        assert {*replicas} <= brokers
        possible = min(len(replicas), len({racks[node] for node in brokers}))
        assert racks_in(replicas, racks) == possible
        if is_even and {*before} <= brokers and racks_in(before, racks) == possible:
            assert {*replicas} == {*before}


@given(PRESENT, st.sets(NODES, min_size=4))
def test_any_plan_without_racks_moves_only_what_it_must(present, brokers):
    """Replicas leave brokers that are not wanted, and those that hold more than their share."""
    plan = balanced_plan(present, brokers)
    share = -(-sum(map(len, present.values())) // len(brokers))
    held = Counter(node for replicas in present.values() for node in replicas)
    needed = sum(
        count - (share if node in brokers else 0)
        for node, count in held.items()
        if node not in brokers or count > share
    )
    moved = sum(len({*plan[name]} - {*present[name]}) for name in present)
    assert moved <= needed
    assert plan == balanced_plan(present, brokers, dict.fromkeys(range(1, 9), "a"))


@given(PRESENT, NODES, RACKS)
def test_a_drained_broker_holds_nothing(present, broker, racks):
    """The other replicas stay in their places. A replica goes to a rack where the partition has
    none, if there is one."""
    others = {*range(1, 9)} - {broker}
    plan = drained_plan(present, broker, others, racks)
    assert plan.keys() == {name for name, replicas in present.items() if broker in replicas}
    for name, replicas in plan.items():
        assert broker not in replicas
        assert len({*replicas}) == len(present[name])
        [place] = [at for at, node in enumerate(replicas) if node != present[name][at]]
        assert present[name][place] == broker
        staying = [node for node in replicas if node != replicas[place]]
        free = {racks[node] for node in others} - {racks[node] for node in staying}
        assert not free or racks[replicas[place]] in free


def test_what_cannot_be_drained_or_replaced_is_named():
    """With what to do; nothing is planned then."""
    with pytest.raises(PlanError, match="t-0 has 2 replicas, and no other live broker can take"):
        drained_plan({("t", 0): (1, 2)}, 1, [2])
    with pytest.raises(PlanError, match="t-1 has a replica on broker 1 and on broker 2; use"):
        replaced_plan({("t", 0): (1,), ("t", 1): (2, 1)}, 1, 2)


def test_a_replaced_broker_gives_each_replica_to_the_new_one():
    """In its place, so the new one is preferred where the old one was."""
    present = {("t", 0): (1, 2), ("t", 1): (2, 1), ("u", 0): (2, 3)}
    assert replaced_plan(present, 1, 4) == {("t", 0): (4, 2), ("t", 1): (2, 4)}


def test_more_replicas_go_to_other_racks():
    """The first ones stay, even in one rack."""
    racks = {1: "a", 2: "a", 3: "a", 4: "b"}
    present = {("t", number): (1,) for number in range(3)}
    assert set(resized_plan(present, racks, 2, racks).values()) == {(1, 4)}


def bytes_on(plan, sizes):
    held = Counter()
    for name, replicas in plan.items():
        for node in replicas:
            held[node] += sizes[name]
    return held


def test_a_new_broker_gets_its_share_of_the_bytes():
    """Not only of the partitions: of those that move the large ones go where little is."""
    present = {("t", number): (1 + number % 2,) for number in range(8)}
    sizes = {("t", number): 100 if number < 4 else 10 for number in range(8)}
    plan = balanced_plan(present, [1, 2, 3, 4], sizes=sizes)
    assert Counter(node for (node,) in plan.values()) == {1: 2, 2: 2, 3: 2, 4: 2}
    assert set(bytes_on(plan, sizes).values()) == {110}


def test_replicas_are_exchanged_for_bytes_alone_only_if_it_is_worth_it():
    """Within a tenth of the mean nothing moves; above it as little as two replicas."""
    present = {("t", number): (1 + number // 2,) for number in range(4)}
    sizes = {("t", 0): 110, ("t", 1): 100, ("t", 2): 100, ("t", 3): 90}
    assert balanced_plan(present, [1, 2], sizes=sizes) == present
    sizes = {("t", 0): 300, ("t", 1): 300, ("t", 2): 10, ("t", 3): 10}
    plan = balanced_plan(present, [1, 2], sizes=sizes)
    assert sum(plan[name] != present[name] for name in plan) == 2
    assert set(bytes_on(plan, sizes).values()) == {310}


def test_an_exchange_leaves_no_rack_out():
    """The large partition is on broker 1, which only broker 2 shares its rack with."""
    racks = {1: "a", 2: "a", 3: "b"}
    present = {("t", 0): (1, 3), ("t", 1): (1, 3), ("t", 2): (2, 3), ("t", 3): (2, 3)}
    sizes = {("t", 0): 300, ("t", 1): 300, ("t", 2): 10, ("t", 3): 10}
    plan = balanced_plan(present, [1, 2, 3], racks, sizes)
    assert all(racks_in(replicas, racks) == 2 for replicas in plan.values())
    held = bytes_on(plan, sizes)
    assert held[1] == held[2] == 310


@given(
    PRESENT,
    st.sets(NODES, min_size=4),
    RACKS,
    st.lists(st.integers(0, 1000), min_size=20, max_size=20),
)
def test_any_plan_by_bytes_is_as_good_by_number_and_by_rack(present, brokers, racks, found):
    """Bytes decide between plans that are equal in both."""
    sizes = {name: found[name[1]] for name in present}
    plan = balanced_plan(present, brokers, racks, sizes)
    assert plan.keys() == present.keys()
    for name, replicas in plan.items():
        assert len({*replicas}) == len(replicas) == len(present[name])
        assert {*replicas} <= brokers
        possible = min(len(replicas), len({racks[node] for node in brokers}))
        assert racks_in(replicas, racks) == possible
    one_rack = balanced_plan(present, brokers, {}, sizes)
    held = Counter(node for replicas in one_rack.values() for node in replicas)
    before = Counter(
        node for replicas in balanced_plan(present, brokers).values() for node in replicas
    )
    assert max(held.values()) <= max(before.values()) + 1  # the order of placing differs
