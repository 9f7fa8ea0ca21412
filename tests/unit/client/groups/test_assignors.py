"""Who gets which partitions: by the rules of each assignor, and by what holds for all of them."""

import sys
from collections import Counter
from collections.abc import Mapping
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minibroker.client.groups.assignors import ASSIGNORS, Assignments, GroupMember, Members
from minibroker.protocol.subscription import Subscription
from minibroker.protocol.types import TopicPartition

COOPERATIVE = "cooperative-sticky"
FEW = settings(max_examples=40, deadline=None)  # a thousand took minutes, and found no more
TOPICS = ("s", "t", "u")

counts = st.dictionaries(st.sampled_from(TOPICS), st.integers(0, 7))
claims = st.builds(TopicPartition, st.sampled_from((*TOPICS, "gone")), st.integers(0, 8))


@st.composite
def groups(draw: Any, topics: st.SearchStrategy[Any] | None = None) -> Members:
    """Members of any history: they may claim what others claim, or what there is not."""
    if topics is None:
        topics = st.lists(st.sampled_from((*TOPICS, "gone")), unique=True)
    ids = draw(st.lists(st.sampled_from("abcdefg"), min_size=1, unique=True))
    return {
        member_id: member(
            *draw(topics),
            owned=draw(st.lists(claims, max_size=12, unique=True)),
            generation=draw(st.integers(-1, 3)),
        )
        for member_id in ids
    }


equal_groups = groups(st.just(("s", "t", "u")))


def member(*topics: str, owned: Any = (), generation: int = -1) -> GroupMember:
    """A member that subscribes to these."""
    names = tuple(TopicPartition(*name) for name in owned)
    return GroupMember(Subscription(topics, names, generation))


def assign(name: str, partition_counts: Mapping[str, int], members: Members) -> Assignments:
    """What the assignor says, with what must hold of any answer."""
    given_out = ASSIGNORS[name].assign(partition_counts, members)
    assert given_out.keys() == members.keys()
    for member_id, partitions in given_out.items():
        assert partitions == sorted(partitions)
        for topic, number in partitions:
            assert topic in members[member_id].subscription.topics
            assert 0 <= number < partition_counts[topic]
    everything = [each for partitions in given_out.values() for each in partitions]
    assert len(everything) == len(set(everything)), "a partition has two owners"
    return given_out


def wanted(partition_counts: Mapping[str, int], members: Members) -> set[TopicPartition]:
    """All partitions of topics that somebody subscribes to."""
    topics = {topic for each in members.values() for topic in each.subscription.topics}
    return {
        TopicPartition(topic, number)
        for topic in topics & partition_counts.keys()
        for number in range(partition_counts[topic])
    }


def after(members: Members, given_out: Assignments, generation: int) -> dict[str, GroupMember]:
    """The members as they join again, having given back what is not theirs any more."""
    return {
        member_id: member(
            *each.subscription.topics, owned=given_out[member_id], generation=generation
        )
        for member_id, each in members.items()
    }


def settle(partition_counts: Mapping[str, int], members: Members) -> Assignments:
    """The end of a cooperative rebalance; a second round must be enough."""
    first = assign(COOPERATIVE, partition_counts, members)
    second = assign(COOPERATIVE, partition_counts, after(members, first, 10))
    for member_id in members:
        assert set(first[member_id]) <= set(second[member_id]), "given, and taken at once"
    assert owned(second) == wanted(partition_counts, members)
    return second


def owned(given_out: Assignments) -> set[TopicPartition]:
    """All that somebody got."""
    return {each for partitions in given_out.values() for each in partitions}


def sizes(given_out: Assignments) -> list[int]:
    """How much each got, the least first."""
    return sorted(len(partitions) for partitions in given_out.values())


def test_range_as_in_kafkas_documentation() -> None:
    """Two topics of three partitions: a run of each, the first member one more."""
    members = {"c1": member("t0", "t1"), "c0": member("t0", "t1")}
    assert assign("range", {"t0": 3, "t1": 3}, members) == {
        "c0": [("t0", 0), ("t0", 1), ("t1", 0), ("t1", 1)],
        "c1": [("t0", 2), ("t1", 2)],
    }


def test_roundrobin_as_in_kafkas_documentation() -> None:
    """In turn; and past who does not subscribe."""
    members = {"c1": member("t0", "t1"), "c0": member("t0", "t1")}
    assert assign("roundrobin", {"t0": 3, "t1": 3}, members) == {
        "c0": [("t0", 0), ("t0", 2), ("t1", 1)],
        "c1": [("t0", 1), ("t1", 0), ("t1", 2)],
    }
    members = {"c0": member("t0"), "c1": member("t0", "t1"), "c2": member("t0", "t1", "t2")}
    assert assign("roundrobin", {"t0": 1, "t1": 2, "t2": 3}, members) == {
        "c0": [("t0", 0)],
        "c1": [("t1", 0)],
        "c2": [("t1", 1), ("t2", 0), ("t2", 1), ("t2", 2)],
    }


@pytest.mark.parametrize("name", ["range", "roundrobin"])
def test_static_members_keep_their_place(name: str) -> None:
    """The order is that of instance ids, so a restart under another member id changes nothing."""
    before = {"x": member("t")._replace(instance_id="i1"), "y": member("t"), "z": member("t")}
    behind = {"zz": before["x"], "y": member("t"), "z": member("t")}
    first = assign(name, {"t": 4}, before)
    again = assign(name, {"t": 4}, behind)
    assert first["x"] == again["zz"] == [("t", 0), ("t", 1 if name == "range" else 3)]
    assert (first["y"], first["z"]) == (again["y"], again["z"])


@FEW
@given(st.sampled_from(sorted(ASSIGNORS)), counts, groups(), st.randoms(use_true_random=False))
def test_every_partition_has_one_owner(
    name: str, partition_counts: dict[str, int], members: Members, rng: Random
) -> None:
    """One of its subscribers, the same one in whatever order members and topics are told of; a
    topic that is gone and claims that mean nothing disturb nobody."""
    given_out = assign(name, partition_counts, members)
    if not ASSIGNORS[name].is_cooperative:
        assert owned(given_out) == wanted(partition_counts, members)
    topics, ids = list(partition_counts), list(members)
    rng.shuffle(topics)
    rng.shuffle(ids)
    turned = {each: members[each] for each in ids}
    assert assign(name, {each: partition_counts[each] for each in topics}, turned) == given_out


@FEW
@given(counts, equal_groups)
def test_equal_subscriptions_get_equal_parts(
    partition_counts: dict[str, int], members: Members
) -> None:
    """Sizes differ by one at most; with range that holds for each topic."""
    for given_out in (
        assign("roundrobin", partition_counts, members),
        settle(partition_counts, members),
    ):
        assert sizes(given_out)[-1] - sizes(given_out)[0] <= 1
    for topic in partition_counts:
        parts = assign("range", {topic: partition_counts[topic]}, members)
        assert sizes(parts)[-1] - sizes(parts)[0] <= 1


@FEW
@given(counts, groups())
def test_nobody_can_be_relieved(partition_counts: dict[str, int], members: Members) -> None:
    """With unequal subscriptions: no chain of moves goes to who would still have fewer."""
    settled = settle(partition_counts, members)

    def takers(giver: str) -> set[str]:
        topics = {topic for topic, _ in settled[giver]}
        return {each for each in members if topics & set(members[each].subscription.topics)}

    for giver in members:
        reached = {giver}
        while more := {taker for each in reached for taker in takers(each)} - reached:
            reached |= more
        for taker in reached:
            assert len(settled[giver]) - len(settled[taker]) <= 1


@FEW
@given(counts, groups())
def test_what_somebody_still_has_is_given_to_nobody_else(
    partition_counts: dict[str, int], members: Members
) -> None:
    """Cooperative rule: only who owns a partition by the newest claim keeps it in this round."""
    for member_id, partitions in assign(COOPERATIVE, partition_counts, members).items():
        mine = members[member_id].subscription
        for name in partitions:
            rivals = [
                each.subscription.generation
                for other, each in members.items()
                if other != member_id and name in each.subscription.owned
            ]
            assert not rivals or (name in mine.owned and mine.generation > max(rivals))


@FEW
@given(counts, groups())
def test_a_group_that_is_settled_stays_as_it_is(
    partition_counts: dict[str, int], members: Members
) -> None:
    """A rebalance for no reason moves nothing."""
    settled = settle(partition_counts, members)
    assert assign(COOPERATIVE, partition_counts, after(members, settled, 11)) == settled


@FEW
@given(counts, equal_groups)
def test_who_leaves_takes_nothing_from_who_stays(
    partition_counts: dict[str, int], members: Members
) -> None:
    """Only the leaver's partitions move, and in the same round."""
    settled = settle(partition_counts, members)
    _gone, *staying = sorted(members)
    stayed = after({each: members[each] for each in staying}, settled, 11)
    if staying:
        given_out = assign(COOPERATIVE, partition_counts, stayed)
        assert owned(given_out) == owned(settled)
        assert all(set(settled[each]) <= set(given_out[each]) for each in staying)


@FEW
@given(counts, equal_groups)
def test_who_joins_gets_no_more_than_its_part(
    partition_counts: dict[str, int], members: Members
) -> None:
    """What moves is what the newcomer gets, and that is the smaller part if it is not even."""
    settled = settle(partition_counts, members)
    joined = {**after(members, settled, 11), "new": member("s", "t", "u")}
    given_out = settle(partition_counts, joined)
    lost = [each for member_id in members for each in settled[member_id]]
    kept = [each for member_id in members for each in given_out[member_id]]
    assert set(lost) - set(kept) == set(given_out["new"])
    assert len(given_out["new"]) == len(wanted(partition_counts, members)) // len(joined)


def test_the_newest_claim_holds() -> None:
    """Who missed a rebalance claims what another was given since: that one keeps it."""
    old = member("t", owned=[("t", 0), ("t", 1)], generation=4)
    new = member("t", owned=[("t", 1), ("t", 2)], generation=5)
    given_out = assign(COOPERATIVE, {"t": 4}, {"old": old, "new": new})
    assert given_out == {"old": [("t", 0), ("t", 3)], "new": [("t", 1), ("t", 2)]}


def test_two_claims_of_one_generation_both_end() -> None:
    """Both give the partition back in the first round, and one gets it in the second."""
    twice = member("t", owned=[("t", 0)], generation=5)
    members = {"a": twice, "b": twice}
    first = assign(COOPERATIVE, {"t": 2}, members)
    assert owned(first) == {("t", 1)}
    assert owned(settle({"t": 2}, members)) == {("t", 0), ("t", 1)}


def test_a_partition_of_a_topic_that_its_owner_leaves_is_given_back_first() -> None:
    """It still has it, though it does not subscribe to it any more."""
    members = {"a": member("s", owned=[("t", 0)], generation=5), "b": member("t")}
    first = assign(COOPERATIVE, {"s": 1, "t": 1}, members)
    assert first == {"a": [("s", 0)], "b": []}
    assert settle({"s": 1, "t": 1}, members) == {"a": [("s", 0)], "b": [("t", 0)]}


def test_what_is_free_makes_way_for_what_is_owned() -> None:
    """u-0 is dealt to d first, and goes to e, so that d can have t-1: nothing owned moves."""
    members = {
        "a": member("t", "v", owned=[("v", 1)], generation=5),
        "b": member("v", owned=[("v", 0)], generation=5),
        "c": member("v"),
        "d": member("u", "t"),
        "e": member("u", "v"),
        "f": member("t", owned=[("t", 0)], generation=5),
    }
    first = assign(COOPERATIVE, {"t": 2, "u": 1, "v": 2}, members)
    assert owned(first) == wanted({"t": 2, "u": 1, "v": 2}, members)


def test_nobody_gets_another_for_what_it_lost() -> None:
    """c gets t-0 or t-1 by way of a, which has then passed on one of its own: it gets that back."""
    members = {
        "a": member("t", "u", owned=[("t", 2), ("u", 0)], generation=5),
        "b": member("t", "u", owned=[("t", 0), ("t", 1)], generation=5),
        "c": member("t"),
        "d": member("u"),
    }
    settled = settle({"t": 3, "u": 1}, members)
    assert sizes(settled) == [1, 1, 1, 1]
    kept = [set(settled[each]) & set(members[each].subscription.owned) for each in members]
    assert [len(each) for each in kept] == [1, 1, 0, 0]


@pytest.mark.parametrize("name", sorted(ASSIGNORS))
@pytest.mark.parametrize("is_equal", [True, False])
def test_a_hundred_members_are_quickly_served(name: str, is_equal: bool) -> None:
    """1000 partitions, half of the members new: 600,000 calls take a leader about 100 ms."""
    rng = Random(1)
    topics = {f"t{number}": 10 if is_equal else 1 for number in range(100 if is_equal else 1000)}
    members = {
        f"m{number}": member(*(topics if is_equal else rng.sample(sorted(topics), 300)))
        for number in range(100)
    }
    first = dict(list(members.items())[:50])
    settled = settle(topics, first)
    members |= after(first, settled, 11)
    calls: Counter[str] = Counter()
    sys.setprofile(lambda _frame, event, _argument: calls.update([event]))
    assign(name, topics, members)
    sys.setprofile(None)
    assert calls["call"] + calls["c_call"] <= 600_000
