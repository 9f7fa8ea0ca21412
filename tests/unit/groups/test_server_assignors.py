"""The coordinator's assignors."""

import random

import pytest

from minibroker.broker.groups.consumer_records import Partitions, TopicIdPartition
from minibroker.broker.groups.server_assignors import (
    ASSIGNORS,
    Subscriber,
    assign_range,
    assign_uniform,
)
from minibroker.broker.turns import without_pause

A, B, C = (bytes([number]) * 16 for number in (1, 2, 3))


def parts(topic_id: bytes, *numbers: int) -> Partitions:
    return frozenset(TopicIdPartition(topic_id, number) for number in numbers)


@pytest.mark.parametrize("name", ASSIGNORS)
def test_each_partition_has_one_subscriber(name: str) -> None:
    """Of members with the same and with different subscriptions; topics that are gone and
    partitions above the number have none."""
    rng = random.Random(3)
    for _ in range(200):
        topics = {bytes([number]) * 16: rng.randrange(8) for number in range(rng.randrange(1, 5))}
        ids = [*topics, C + b"gone"]
        before = {p for each in ids for p in parts(each, *range(9))}
        subscribers = {}
        for number in range(rng.randrange(1, 6)):
            wanted = frozenset(rng.sample(ids, rng.randrange(len(ids) + 1)))
            had = frozenset(rng.sample(sorted(before), min(len(before), 3)))
            before -= had
            subscribers[f"m{number}"] = Subscriber(wanted, had)
        assigned = without_pause(ASSIGNORS[name](subscribers, topics))
        assert assigned.keys() == subscribers.keys()
        given = [p for each in assigned.values() for p in each]
        wanted = {t for member in subscribers.values() for t in member.topics if t in topics}
        assert sorted(given) == sorted(p for t in wanted for p in parts(t, *range(topics[t])))
        for member_id, own in assigned.items():
            assert {p.topic_id for p in own} <= subscribers[member_id].topics


def test_uniform_gives_all_about_as_much() -> None:
    """Members with the same subscription differ by one partition at most."""
    for members in range(1, 9):
        subscribers = {f"m{number}": Subscriber(frozenset({A, B})) for number in range(members)}
        assigned = without_pause(assign_uniform(subscribers, {A: 7, B: 4}))
        sizes = [len(each) for each in assigned.values()]
        assert sum(sizes) == 11
        assert max(sizes) - min(sizes) <= 1


def test_uniform_moves_as_little_as_possible() -> None:
    """A member that comes takes only its share; one that goes leaves the others what they had."""
    wanted = frozenset({A})
    first = {"a": Subscriber(wanted, parts(A, 0, 1, 2)), "b": Subscriber(wanted, parts(A, 3, 4, 5))}
    three = without_pause(assign_uniform({**first, "c": Subscriber(wanted)}, {A: 6}))
    assert three["a"] < first["a"].before
    assert three["b"] < first["b"].before
    assert len(three["c"]) == 2
    rest = {name: Subscriber(wanted, three[name]) for name in "ac"}
    two = without_pause(assign_uniform(rest, {A: 6}))
    assert two["a"] > three["a"]
    assert two["c"] > three["c"]
    assert without_pause(assign_uniform(first, {A: 6}))["a"] == first["a"].before


def test_uniform_evens_out_different_subscriptions() -> None:
    """A member with one topic gets all of it before a member that has another one, too."""
    subscribers = {
        "both": Subscriber(frozenset({A, B}), parts(A, 0, 1, 2) | parts(B, 0, 1, 2)),
        "one": Subscriber(frozenset({A})),
    }
    assigned = without_pause(assign_uniform(subscribers, {A: 3, B: 3}))
    assert assigned == {"both": parts(B, 0, 1, 2), "one": parts(A, 0, 1, 2)}


def test_range_divides_each_topic_in_the_same_way() -> None:
    """Static members come first, in the order of their instance ids."""
    both = frozenset({A, B})
    subscribers = {
        "x": Subscriber(both),
        "y": Subscriber(both, instance_id="2"),
        "z": Subscriber(both, instance_id="1"),
    }
    assigned = without_pause(assign_range(subscribers, {A: 4, B: 4}))
    assert assigned["z"] == parts(A, 0, 1) | parts(B, 0, 1)
    assert assigned["y"] == parts(A, 2) | parts(B, 2)
    assert assigned["x"] == parts(A, 3) | parts(B, 3)


@pytest.mark.parametrize("name", ASSIGNORS)
def test_a_large_assignment_is_made_in_turns(name: str) -> None:
    """Other tasks run between."""
    subscribers = {f"m{number}": Subscriber(frozenset({A})) for number in range(50)}
    computation = ASSIGNORS[name](subscribers, {A: 5000})
    assert sum(1 for _ in computation) > 5
