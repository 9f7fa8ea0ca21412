"""What the controller decides: elections, placement, and which requests it refuses and why."""

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker.broker.config import Config
from minibroker.broker.controller import decisions
from minibroker.broker.controller.decisions import elect, plan_alter, plan_create, plan_delete
from minibroker.broker.controller.placement import place
from minibroker.broker.metadata.model import BrokerImage, ClusterImage, PartitionImage, TopicImage
from minibroker.broker.metadata.store import Delete, Put
from minibroker.protocol.constants import NO_NODE, ErrorCode
from minibroker.protocol.messages.configs import (
    AlterConfigsRequest,
    ConfigChange,
    TopicConfigChanges,
)
from minibroker.protocol.messages.topics import (
    ConfigEntry,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    NewTopic,
)
from minibroker.protocol.types import Endpoint

CONFIG = Config()
BROKERS = {node: BrokerImage(node, Endpoint("h", node), 1) for node in (1,)}
EMPTY = ClusterImage(cluster_id="c", controller_id=1, controller_epoch=0, brokers=BROKERS)


def partition(leader=1, isr=(1, 2, 3), replicas=(1, 2, 3)):
    return PartitionImage(0, leader, 5, isr, replicas, 9)


def create(image, *topics, validate_only=False, config=CONFIG):
    request = CreateTopicsRequest(topics, validate_only=validate_only)
    return plan_create(image, config, request, Random(1))


def with_topics(*names):
    return create(EMPTY, *(NewTopic(name) for name in names)).image


def alter(image, name, *changes, validate_only=False):
    changed = TopicConfigChanges(name, tuple(ConfigChange(*change) for change in changes))
    return plan_alter(image, CONFIG, AlterConfigsRequest((changed,), validate_only=validate_only))


@pytest.mark.parametrize(
    ("isr", "live", "unclean", "leader", "new_isr"),
    [
        ((1, 2, 3), (1, 2, 3), False, 1, (1, 2, 3)),
        ((1, 2, 3), (2, 3), False, 2, (2, 3)),
        ((3, 2), (1, 2, 3), False, 2, (3, 2)),
        ((1,), (2, 3), False, NO_NODE, (1,)),
        ((1,), (2, 3), True, 2, (2,)),
        ((1, 2), (), True, NO_NODE, (1, 2)),
    ],
)
def test_elections(isr, live, unclean, leader, new_isr):
    """The first live ISR member in assignment order leads; the ISR never empties (CTL-02/04/05)."""
    elected = elect(partition(isr=isr, leader=isr[0]), live, is_unclean_allowed=unclean)
    assert (elected.leader, elected.isr) == (leader, new_isr)
    assert (elected.leader_epoch, elected.partition_epoch) == (6, 10)


def test_a_damaged_partition_goes_offline_alone():
    """A partition found damaged has no leader after the election; the others lead (REC-03)."""
    unclean = ConfigEntry("unclean.leader.election.enable", "true")
    image = create(with_topics("a", "b"), NewTopic("c", configs=(unclean,))).image
    elected = decisions.elect_all(image, CONFIG, 1, {("a", 0), ("c", 0)})
    leaders = {name: topic.partitions[0].leader for name, topic in elected.topics.items()}
    assert leaders == {"a": NO_NODE, "b": 1, "c": NO_NODE}
    assert all(topic.partitions[0].leader_epoch == 1 for topic in elected.topics.values())
    assert all(topic.partitions[0].isr == (1,) for topic in elected.topics.values())


@given(st.integers(1, 30), st.integers(1, 5), st.integers(0, 4), st.integers(0, 9))
def test_placement(partition_count, factor, more, start):
    """Replicas of a partition are distinct brokers, and each leads as many as any other, +-1."""
    brokers = list(range(10, 10 + factor + more))
    placed = place(partition_count, factor, brokers, start)
    assert len(placed) == partition_count
    assert all(len(set(replicas)) == factor for replicas in placed)
    led = [sum(replicas[0] == broker for replicas in placed) for broker in brokers]
    assert max(led) - min(led) <= 1


def test_a_topic_is_created():
    """A new topic has its partitions led here in epoch 0 with the ISR of all (CTL-01)."""
    plan = create(EMPTY, NewTopic("t", 3, configs=(ConfigEntry("flush", "always"),)))
    (result,) = plan.answer.topics
    topic = plan.image.topics["t"]
    assert (result.name, result.error, result.topic_id) == ("t", 0, topic.id)
    assert len(topic.id) == 16
    assert topic.configs == {"flush": "always"}
    assert topic.partitions == tuple(PartitionImage(n, 1, 0, (1,), (1,), 0) for n in range(3))
    assert plan.created == (topic,)
    assert all(isinstance(write, Put) for write in plan.writes)
    assert len(plan.writes) == 4


def test_defaults_of_the_broker_are_taken():
    """-1 partitions and -1 replicas are num.partitions and default.replication.factor."""
    plan = create(EMPTY, NewTopic("t"), config=Config(num_partitions=7))
    assert len(plan.image.topics["t"].partitions) == 7


@pytest.mark.parametrize(
    ("wanted", "error", "says"),
    [
        (NewTopic(""), ErrorCode.INVALID_TOPIC_EXCEPTION, "1 to 249 characters"),
        (NewTopic("x" * 250), ErrorCode.INVALID_TOPIC_EXCEPTION, "1 to 249 characters"),
        (NewTopic("."), ErrorCode.INVALID_TOPIC_EXCEPTION, "not '.' or '..'"),
        (NewTopic(".."), ErrorCode.INVALID_TOPIC_EXCEPTION, "not '.' or '..'"),
        (NewTopic("a/b"), ErrorCode.INVALID_TOPIC_EXCEPTION, "only letters"),
        (NewTopic("a\n"), ErrorCode.INVALID_TOPIC_EXCEPTION, "only letters"),
        (NewTopic("tö"), ErrorCode.INVALID_TOPIC_EXCEPTION, "only letters"),
        (NewTopic("__consumer_offsets"), ErrorCode.INVALID_TOPIC_EXCEPTION, "the broker's own"),
        (NewTopic("has_dot"), ErrorCode.INVALID_TOPIC_EXCEPTION, "'has.dot'"),
        (NewTopic("old"), ErrorCode.TOPIC_ALREADY_EXISTS, "'old'"),
        (NewTopic("t", 0), ErrorCode.INVALID_PARTITIONS, "at least 1"),
        (NewTopic("t", -2), ErrorCode.INVALID_PARTITIONS, "at least 1"),
        (NewTopic("t", 10_000), ErrorCode.INVALID_PARTITIONS, "would pass 10000"),
        (NewTopic("t", 1, 2), ErrorCode.INVALID_REPLICATION_FACTOR, "with 1 live broker"),
        (NewTopic("t", 1, 0), ErrorCode.INVALID_REPLICATION_FACTOR, "with 1 live broker"),
        (
            NewTopic("t", configs=(ConfigEntry("retntion.ms", "1"),)),
            ErrorCode.INVALID_CONFIG,
            "the nearest is 'retention.ms'",
        ),
        (
            NewTopic("t", configs=(ConfigEntry("segment.bytes", "2"),)),
            ErrorCode.INVALID_CONFIG,
            "14 to 2^31-1",
        ),
    ],
)
def test_a_bad_topic_is_refused_and_the_others_are_made(wanted, error, says):
    """Each refused topic gets its error and reason; nothing of it is written; others go on."""
    image = with_topics("old", "has.dot")
    plan = create(image, wanted, NewTopic("good"))
    refused, good = plan.answer.topics
    assert (refused.name, refused.error) == (wanted.name, error)
    assert says in refused.error_message
    assert good.error == 0
    assert plan.image.topics.keys() == {"old", "has.dot", "good"}
    assert {topic.name for topic in plan.created} == {"good"}


@pytest.mark.parametrize("name", ["x" * 249, "a.b-c_D9", "...", "-", "_"])
def test_good_names(name):
    """1 to 249 of letters, digits, dot, underscore and dash, but not `.` or `..`."""
    assert create(EMPTY, NewTopic(name)).answer.topics[0].error == 0


def test_a_name_twice_in_a_request_exists_the_second_time():
    """The second of two equal names in one request is refused."""
    plan = create(EMPTY, NewTopic("t"), NewTopic("t", 2))
    assert [topic.error for topic in plan.answer.topics] == [0, ErrorCode.TOPIC_ALREADY_EXISTS]
    assert len(plan.image.topics["t"].partitions) == 1


def test_validate_only_checks_and_writes_nothing():
    """With validate_only the answers are as if, and nothing is to be written."""
    plan = create(EMPTY, NewTopic("t"), NewTopic("."), validate_only=True)
    assert [topic.error for topic in plan.answer.topics] == [0, ErrorCode.INVALID_TOPIC_EXCEPTION]
    assert (plan.image, plan.writes, plan.created) == (EMPTY, (), ())
    image = with_topics("t")
    changed = alter(image, "t", ("flush", "never"), validate_only=True)
    assert (changed.answer.topics[0].error, changed.image, changed.writes) == (0, image, ())


def test_a_deletion_leaves_a_tombstone():
    """A deleted topic goes with all its partitions and leaves its id behind (CTL-15)."""
    image = create(EMPTY, NewTopic("t", 2), NewTopic("u")).image
    topic = image.topics["t"]
    plan = plan_delete(image, DeleteTopicsRequest(("t", "none", "t")))
    errors = [result.error for result in plan.answer.topics]
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert errors == [0, unknown, unknown]
    assert plan.image.topics.keys() == {"u"}
    assert plan.deleted == (topic,)
    assert [write.key for write in plan.writes if isinstance(write, Delete)] == [
        "topics/t",
        f"partitions/{topic.id.hex()}/0",
        f"partitions/{topic.id.hex()}/1",
    ]
    assert [write.key for write in plan.writes if isinstance(write, Put)] == [
        f"tombstones/{topic.id.hex()}"
    ]


def test_settings_are_changed_one_by_one():
    """What is not named stays; a value None goes back to the broker's default."""
    image = alter(with_topics("t"), "t", ("flush", "never"), ("retention.ms", "5")).image
    assert image.topics["t"].configs == {"flush": "never", "retention.ms": "5"}
    plan = alter(image, "t", ("flush", None), ("segment.bytes", "100"))
    assert plan.image.topics["t"].configs == {"retention.ms": "5", "segment.bytes": "100"}
    assert plan.altered == (plan.image.topics["t"],)
    assert plan.image.topics["t"].partitions == image.topics["t"].partitions


@pytest.mark.parametrize(
    ("name", "change", "error"),
    [
        ("none", ("flush", "never"), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("t", ("flush", "now"), ErrorCode.INVALID_CONFIG),
        ("t", ("flash", "never"), ErrorCode.INVALID_CONFIG),
        ("t", ("flash", None), ErrorCode.INVALID_CONFIG),
    ],
)
def test_a_bad_change_changes_nothing(name, change, error):
    """Of the changes of one topic all are made or none."""
    image = with_topics("t")
    plan = alter(image, name, ("retention.ms", "5"), change)
    assert plan.answer.topics[0].error == error
    assert (plan.image, plan.writes) == (image, ())


def test_a_refused_request_is_answered_topic_by_topic():
    """A request of which nothing is done has the error at each of its topics."""
    code = ErrorCode.REQUEST_TIMED_OUT
    requests = [
        CreateTopicsRequest((NewTopic("a"), NewTopic("b"))),
        DeleteTopicsRequest(("a", "b")),
        AlterConfigsRequest((TopicConfigChanges("a"), TopicConfigChanges("b"))),
    ]
    for request in requests:
        answer = decisions.refuse(request, code, "full")
        assert [(topic.name, topic.error) for topic in answer.topics] == [("a", code), ("b", code)]


def test_orders_name_topic_and_epochs():
    """An order to a replica carries the topic id and both epochs of its partition."""
    topic = TopicImage(b"i" * 16, "t", {}, (replace(partition(), leader=2, isr=(2, 3)),))
    (state,) = decisions.states_of([topic])
    assert (state.topic, state.topic_id, state.partition) == ("t", b"i" * 16, 0)
    assert (state.leader, state.leader_epoch, state.partition_epoch) == (2, 5, 9)
    assert (state.isr, state.replicas) == ((2, 3), (1, 2, 3))
    (stop,) = decisions.stops_of([topic])
    assert (stop.topic, stop.topic_id, stop.partition, stop.leader_epoch) == ("t", b"i" * 16, 0, 5)
