"""Plans of reassignments: what they keep, where the rest goes, and the JSON of Kafka's tool."""

from collections import Counter

import pytest

from minibroker.cli.topic.reassignment_plan import (
    PlanError,
    balanced_plan,
    plan_json,
    read_plan,
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


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"partitions": [{"topic": "t"}]}',
        '{"partitions": [{"topic": 1}]}',
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


def test_a_partition_is_planned_once():
    """Two targets of one partition contradict each other."""
    one = '{"topic":"t","partition":0,"replicas":[1]}'
    with pytest.raises(PlanError, match="twice"):
        read_plan(f'{{"partitions": [{one}, {one}]}}')
