"""Partitions that a topic is given later (CTL-16)."""

from random import Random

import pytest

from minibroker.broker.config import Config
from minibroker.broker.controller import entries
from minibroker.broker.controller.topics import plan_create_partitions
from minibroker.broker.turns import without_pause
from minibroker.protocol.constants import OFFSETS_TOPIC, ApiKey, ErrorCode
from minibroker.protocol.messages.topics import (
    ConfigEntry,
    CreatePartitionsRequest,
    NewPartitions,
    NewTopic,
)
from minibroker.protocol.types import TopicPartition
from tests.unit.controller.fleet import open_fleet
from tests.unit.controller.test_topics import CONFIG, create, state_with, written

LIVE = state_with(1, 2, 3)


def grow(state, *topics, config=CONFIG, validate_only=False):
    request = CreatePartitionsRequest(topics, validate_only=validate_only)
    return without_pause(plan_create_partitions(state, config, request, Random(1)))


def test_new_partitions_go_on_behind_the_old_ones():
    """They are placed as if the topic had been created with all of them; the old ones stay."""
    small = create(LIVE, NewTopic("t", 2, 2)).state
    large = create(LIVE, NewTopic("t", 7, 2)).state.topics["t"]
    plan = grow(small, NewPartitions("t", 7))
    topic = plan.state.topics["t"]
    (result,) = plan.answer.topics
    assert (result.error, result.partition_count, result.replication_factor) == (0, 7, 2)
    assert topic.partitions[:2] == small.topics["t"].partitions
    assert topic.partitions == large.partitions
    assert (topic.id, topic.creation) == (small.topics["t"].id, small.topics["t"].creation)
    keys = [write.key for write in plan.writes]
    assert keys == [*(f"partitions/{topic.id.hex()}/{n}" for n in range(2, 7)), "topics/t"]
    assert plan.change.topics == ("t",)
    assert plan.change.partitions == tuple(TopicPartition("t", n) for n in range(2, 7))


def test_new_partitions_get_the_brokers_that_are_assigned():
    """In order, from the first new one on."""
    state = create(LIVE, NewTopic("t", 1, 2)).state
    plan = grow(state, NewPartitions("t", 3, ((3, 2), (1, 3))))
    partitions = plan.state.topics["t"].partitions
    assert [(one.number, one.replicas, one.leader) for one in partitions[1:]] == [
        (1, (3, 2), 3),
        (2, (1, 3), 1),
    ]


def test_without_the_first_leader_they_begin_anywhere():
    """The broker that the order would go on from may be gone."""
    state = create(state_with(1), NewTopic("t", 1, 1)).state
    moved = state_with(2, 3, down=(1,))
    state = state.__class__(topics=state.topics, brokers=moved.brokers, admissions=moved.admissions)
    plan = grow(state, NewPartitions("t", 5))
    assert {one.leader for one in plan.state.topics["t"].partitions[1:]} == {2, 3}


@pytest.mark.parametrize(
    ("wanted", "error", "says"),
    [
        (NewPartitions("none", 3), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "'none'"),
        (NewPartitions("t", 2), ErrorCode.INVALID_PARTITIONS, "has 2 partitions"),
        (NewPartitions("t", 1), ErrorCode.INVALID_PARTITIONS, "cannot have 1"),
        (NewPartitions("t", -1), ErrorCode.INVALID_PARTITIONS, "cannot have -1"),
        (NewPartitions("t", 10_000), ErrorCode.INVALID_PARTITIONS, "would pass 10000"),
        (NewPartitions(OFFSETS_TOPIC, 99), ErrorCode.INVALID_TOPIC_EXCEPTION, OFFSETS_TOPIC),
        (NewPartitions("t", 3, ()), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "for 0"),
        (NewPartitions("t", 3, ((1,),)), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "the others have 2"),
        (NewPartitions("t", 3, ((1, 9),)), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "no broker 9"),
        (NewPartitions("t", 3, ((1, 1),)), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "twice"),
        (NewPartitions("strict", 3), ErrorCode.INVALID_REPLICATION_FACTOR, "2 of 3 live"),
    ],
)
def test_bad_wishes_are_refused_and_the_others_are_done(wanted, error, says):
    """Each refused topic has its reason and is as before."""
    strict = NewTopic("strict", 1, 3, (ConfigEntry("min.insync.replicas", "3"),))
    config = Config(offsets_topic_num_partitions=4, offsets_topic_replication_factor=1)
    topics = (NewTopic("t", 2, 2), NewTopic("u"), NewTopic(OFFSETS_TOPIC), strict)
    before = create(LIVE, *topics, config=config).state
    less = state_with(1, 2, down=(3,))
    state = before.__class__(topics=before.topics, brokers=less.brokers, admissions=less.admissions)
    plan = grow(state, wanted, NewPartitions("u", 2))
    refused, done = plan.answer.topics
    assert (refused.name, refused.error) == (wanted.name, error)
    assert says in refused.error_message
    assert done.error == 0
    assert plan.state.topics.get(wanted.name) == state.topics.get(wanted.name)
    assert len(plan.state.topics["u"].partitions) == 2


def test_a_topic_named_twice_is_refused():
    """Nobody can say which of two counts is meant."""
    state = create(LIVE, NewTopic("t")).state
    plan = grow(state, NewPartitions("t", 2), NewPartitions("t", 3))
    assert [one.error for one in plan.answer.topics] == [ErrorCode.INVALID_REQUEST] * 2
    assert plan.writes == ()


def test_validate_only_writes_nothing():
    """The answers are as if."""
    state = create(LIVE, NewTopic("t")).state
    plan = grow(state, NewPartitions("t", 2), validate_only=True)
    assert plan.answer.topics[0].partition_count == 2
    assert (plan.state, plan.writes) == (state, ())


def test_what_was_written_in_part_is_no_partition():
    """Of a plan whose first writes alone were made, the topic is as before, the rest left over."""
    made = create(LIVE, NewTopic("t", 2), NewTopic("u", 1))
    before = written({}, made.writes)
    plan = grow(made.state, NewPartitions("t", 5), NewPartitions("u", 3))
    for count in range(len(plan.writes) + 1):
        found = written(before, plan.writes[:count])
        state = without_pause(entries.read_state(found))
        assert len(state.topics["t"].partitions) == (5 if count >= 4 else 2)
        assert len(state.topics["u"].partitions) == (3 if count >= 7 else 1)
        cleaned = written(found, entries.leftovers(found, state))
        partitions = [key for key in cleaned if key.startswith(entries.PARTITIONS)]
        assert len(partitions) == len([*state.partitions()])
        assert without_pause(entries.read_state(cleaned)) == state
        assert not entries.leftovers(cleaned, state)


async def test_all_brokers_know_new_partitions_when_it_is_answered(autojump_clock):
    """Leaders lead them, followers hold them, and the image of each broker has them."""
    async with open_fleet() as fleet:
        await fleet.create(partitions=1, replicas=2)
        request = CreatePartitionsRequest((NewPartitions("t", 6),))
        answer = await fleet[2].node.call(ApiKey.CREATE_PARTITIONS, request)
        assert answer.topics[0].error == 0
        names = {TopicPartition("t", number) for number in range(6)}
        for broker in fleet.running:
            assert broker.leaders().keys() == names
        await fleet.settled()
        assert sorted(fleet[1].leaders().values()) == [1, 1, 2, 2, 3, 3]
