"""Topics made, deleted and altered, and where their replicas come to lie."""

from random import Random
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker.broker.config import Config
from minibroker.broker.controller import entries
from minibroker.broker.controller.placement import place
from minibroker.broker.controller.requests import is_refused, refuse
from minibroker.broker.controller.state import Admission, BrokerRegistration, PartitionRecord, State
from minibroker.broker.controller.topics import (
    admit,
    plan_alter,
    plan_create,
    plan_delete,
    plan_forgetting,
)
from minibroker.broker.errors import REASON_CHARS_MAX
from minibroker.broker.metadata.store import Delete, Entry, Put
from minibroker.broker.turns import without_pause
from minibroker.protocol.constants import OFFSETS_TOPIC, ErrorCode
from minibroker.protocol.messages.configs import (
    AlterConfigsRequest,
    ConfigChange,
    TopicConfigChanges,
)
from minibroker.protocol.messages.control import (
    AlterPartitionRequest,
    ControlledShutdownRequest,
)
from minibroker.protocol.messages.topics import (
    ConfigEntry,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    NewTopic,
    UnclearTopic,
)
from minibroker.protocol.types import Endpoint

CONFIG = Config()


def state_with(*nodes, leaving=(), down=(), racks=MappingProxyType({})):
    """Live brokers, of which some are about to stop, and brokers that were live once."""
    return State(
        brokers={
            node: BrokerRegistration(node, 1, Endpoint("h", node), "d", 1, "p") for node in nodes
        },
        admissions={
            node: Admission(node, 1, "d", 1, "p", node in leaving, racks.get(node))
            for node in (*nodes, *down)
        },
    )


EMPTY = state_with(1)


def create(state, *topics, validate_only=False, config=CONFIG):
    request = CreateTopicsRequest(topics, validate_only=validate_only)
    return without_pause(plan_create(state, config, request, Random(1)))


def with_topics(*names):
    return create(EMPTY, *(NewTopic(name) for name in names)).state


def written(before, writes):
    """The entries of a store after these writes."""
    after = dict(before)
    for write in writes:
        if isinstance(write, Put):
            after[write.key] = Entry(write.value, 1)
        else:
            after.pop(write.key, None)
    return after


def alter(state, name, *changes, validate_only=False):
    changed = TopicConfigChanges(name, tuple(ConfigChange(*change) for change in changes))
    request = AlterConfigsRequest((changed,), validate_only=validate_only)
    return without_pause(plan_alter(state, CONFIG, request))


@given(st.integers(1, 30), st.integers(1, 5), st.integers(0, 4), st.integers(0, 9))
def test_placement(partition_count, factor, more, start):
    """Replicas of a partition are distinct brokers, and each leads as many as any other, +-1."""
    brokers = list(range(10, 10 + factor + more))
    placed = place(partition_count, factor, brokers, start)
    assert len(placed) == partition_count
    assert all(len(set(replicas)) == factor for replicas in placed)
    led = [sum(replicas[0] == broker for replicas in placed) for broker in brokers]
    assert max(led) - min(led) <= 1


@given(st.integers(1, 30), st.integers(1, 4), st.integers(0, 4), st.data())
def test_placement_with_brokers_down(partition_count, live_count, down_count, data):
    """Live brokers are taken first, and replicas go round them; a partition has one that is down
    only if it has all live ones before it. The first replica is always live."""
    factor = data.draw(st.integers(1, live_count + down_count))
    start = data.draw(st.integers(0, live_count - 1))
    live = [*range(10, 10 + live_count)]
    down = [*range(down_count)]
    placed = place(partition_count, factor, live, start, down)
    for replicas in placed:
        assert len(set(replicas)) == len(replicas) == factor
        living = [replica in live for replica in replicas]
        assert living == sorted(living, reverse=True)
        assert sum(living) == min(factor, live_count)
    for brokers in (live, down):
        each = sum(replica in brokers for replica in placed[0])
        held = [sum(broker in replicas for replicas in placed) for broker in brokers]
        uneven = min(each, len(brokers) - each)  # partitions begin one broker further each
        assert max(held, default=0) - min(held, default=0) <= uneven
    led = [sum(replicas[0] == broker for replicas in placed) for broker in live]
    assert max(led) - min(led) <= 1


def test_a_topic_is_created():
    """A new topic has its partitions led here in epoch 0 with the ISR of all (CTL-01)."""
    plan = create(EMPTY, NewTopic("t", 3, configs=(ConfigEntry("flush", "always"),)))
    (result,) = plan.answer.topics
    topic = plan.state.topics["t"]
    assert (result.name, result.error, result.topic_id) == ("t", 0, topic.id)
    assert len(topic.id) == 16
    assert topic.configs == {"flush": "always"}
    assert topic.partitions == tuple(PartitionRecord(n, 1, 0, 0, (1,), (1,)) for n in range(3))
    assert all(isinstance(write, Put) for write in plan.writes)
    assert len(plan.writes) == 4


def test_defaults_of_the_broker_are_taken():
    """-1 partitions and -1 replicas are num.partitions and default.replication.factor."""
    plan = create(EMPTY, NewTopic("t"), config=Config(num_partitions=7))
    assert len(plan.state.topics["t"].partitions) == 7


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
        (NewTopic("__own"), ErrorCode.INVALID_TOPIC_EXCEPTION, "the broker's own"),
        (NewTopic("__consumer_offsets", 7), ErrorCode.INVALID_TOPIC_EXCEPTION, "offsets.topic"),
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
    state = with_topics("old", "has.dot")
    plan = create(state, wanted, NewTopic("good"))
    refused, good = plan.answer.topics
    assert (refused.name, refused.error) == (wanted.name, error)
    assert says in refused.error_message
    assert good.error == 0
    assert plan.state.topics.keys() == {"old", "has.dot", "good"}


def test_a_reason_quotes_no_long_name():
    """A name of the request may be longer than the text of an answer; the rest of it is said."""
    long = "x" * 40_000
    topics = NewTopic(f"{long}/"), NewTopic("t", configs=(ConfigEntry(long, "1"),))
    named, configured = create(EMPTY, *topics).answer.topics
    deleted = without_pause(plan_delete(EMPTY, DeleteTopicsRequest((long,)))).answer.topics[0]
    altered = alter(with_topics("t"), "t", ("flush", long)).answer.topics[0]
    for result in (named, configured, deleted, altered):
        assert result.error
        assert len(result.error_message) <= REASON_CHARS_MAX
    assert altered.error_message.endswith("it takes never, interval, always")


@pytest.mark.parametrize("name", ["x" * 249, "a.b-c_D9", "...", "-", "_"])
def test_good_names(name):
    """1 to 249 of letters, digits, dot, underscore and dash, but not `.` or `..`."""
    assert create(EMPTY, NewTopic(name)).answer.topics[0].error == 0


def test_the_offsets_topic_has_the_form_that_is_set():
    """Whoever asks for it first, it gets offsets.topic..., and keeps what it holds; with fewer
    brokers than it has replicas it is not made."""
    config = Config(offsets_topic_num_partitions=3, offsets_topic_replication_factor=2)
    refused = create(EMPTY, NewTopic(OFFSETS_TOPIC), config=config)
    assert refused.answer.topics[0].error == ErrorCode.INVALID_REPLICATION_FACTOR
    state = create(state_with(1, 2), NewTopic(OFFSETS_TOPIC), config=config).state
    topic = state.topics[OFFSETS_TOPIC]
    assert [len(partition.replicas) for partition in topic.partitions] == [2, 2, 2]
    assert topic.configs == {
        "cleanup.policy": "compact",
        "retention.ms": "-1",
        "retention.bytes": "-1",
        "segment.bytes": str(100 * 1024 * 1024),
    }


def test_a_full_cluster_makes_the_brokers_own_topics():
    """Else nobody could ever use groups there; a topic of clients is refused."""
    config = Config(offsets_topic_replication_factor=1)
    full = create(state_with(1), NewTopic("full", 10_000), config=config).state
    made = create(full, NewTopic(OFFSETS_TOPIC), NewTopic("t", 1), config=config)
    assert [topic.error for topic in made.answer.topics] == [0, ErrorCode.INVALID_PARTITIONS]


def test_the_offsets_topic_is_not_deleted():
    """All groups would forget where they are."""
    state = with_topics(OFFSETS_TOPIC)
    plan = without_pause(plan_delete(state, DeleteTopicsRequest((OFFSETS_TOPIC,))))
    assert plan.answer.topics[0].error == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert plan.state == state


def test_a_name_twice_in_a_request_exists_the_second_time():
    """The second of two equal names in one request is refused."""
    plan = create(EMPTY, NewTopic("t"), NewTopic("t", 2))
    assert [topic.error for topic in plan.answer.topics] == [0, ErrorCode.TOPIC_ALREADY_EXISTS]
    assert len(plan.state.topics["t"].partitions) == 1


def test_validate_only_checks_and_writes_nothing():
    """With validate_only the answers are as if, and nothing is to be written."""
    plan = create(EMPTY, NewTopic("t"), NewTopic("."), validate_only=True)
    assert [topic.error for topic in plan.answer.topics] == [0, ErrorCode.INVALID_TOPIC_EXCEPTION]
    assert (plan.state, plan.writes) == (EMPTY, ())
    state = with_topics("t")
    changed = alter(state, "t", ("flush", "never"), validate_only=True)
    assert (changed.answer.topics[0].error, changed.state, changed.writes) == (0, state, ())


def test_a_deletion_leaves_a_tombstone():
    """A deleted topic goes with all its partitions and leaves its id behind (CTL-15)."""
    state = create(EMPTY, NewTopic("t", 2), NewTopic("u")).state
    topic = state.topics["t"]
    plan = without_pause(plan_delete(state, DeleteTopicsRequest(("t", "none", "t"))))
    errors = [result.error for result in plan.answer.topics]
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert errors == [0, unknown, unknown]
    assert plan.state.topics.keys() == {"u"}
    assert [write.key for write in plan.writes if isinstance(write, Delete)] == [
        "topics/t",
        f"partitions/{topic.id.hex()}/0",
        f"partitions/{topic.id.hex()}/1",
    ]
    assert [write.key for write in plan.writes if isinstance(write, Put)] == [
        f"tombstones/{topic.id.hex()}"
    ]


def test_topics_are_deleted_by_their_ids():
    """Behind those that are named. An id that no topic has is unknown, also if one had it. A topic
    with a name and an id, or neither, is refused, and is still there."""
    state = create(EMPTY, NewTopic("t"), NewTopic("u"), NewTopic("v")).state
    first, second = state.topics["t"].id, state.topics["u"].id
    request = DeleteTopicsRequest(
        ("t",),
        topic_ids=(second, b"x" * 16, first, second),
        unclear=(UnclearTopic("v", first), UnclearTopic("", bytes(16))),
    )
    plan = without_pause(plan_delete(state, request))
    unknown = ErrorCode.UNKNOWN_TOPIC_ID
    assert [(one.name, one.topic_id, one.error) for one in plan.answer.topics] == [
        ("t", first, 0),
        ("u", second, 0),
        ("", b"x" * 16, unknown),
        ("", first, unknown),
        ("", second, unknown),
        ("v", first, ErrorCode.INVALID_REQUEST),
        ("", bytes(16), ErrorCode.INVALID_REQUEST),
    ]
    assert plan.state.topics.keys() == {"v"}
    refused = refuse(request, ErrorCode.NOT_CONTROLLER, "ask another").topics
    assert [(one.name, one.topic_id[:1]) for one in refused] == [
        ("t", b"\0"),
        ("", second[:1]),
        ("", b"x"),
        ("", first[:1]),
        ("", second[:1]),
        ("v", first[:1]),
        ("", b"\0"),
    ]


def test_what_was_written_in_part_is_there_or_not():
    """Of a plan whose first writes alone were made, each topic is as before or as after it, and
    what else there is of it is known as left over."""
    before = {}
    made = create(EMPTY, NewTopic("t", 2), NewTopic("u", 3))
    gone = without_pause(plan_delete(made.state, DeleteTopicsRequest(("u", "t"))))
    for old, plan in ((EMPTY, made), (made.state, gone)):
        for count in range(len(plan.writes) + 1):
            found = written(before, plan.writes[:count])
            state = without_pause(entries.read_state(found))
            for name in ("t", "u"):
                topic = state.topics.get(name)
                assert topic in (old.topics.get(name), plan.state.topics.get(name))
            present = {topic.id for topic in state.topics.values()}
            assert not present & state.tombstones.keys()
            if old is not EMPTY:
                assert present | state.tombstones.keys() == {t.id for t in old.topics.values()}
            cleaned = written(found, entries.leftovers(found, state))
            assert without_pause(entries.read_state(cleaned)) == state
            partitions = [key for key in cleaned if key.startswith(entries.PARTITIONS)]
            assert len(partitions) == len([*state.partitions()])
            assert not entries.leftovers(cleaned, state)
        before = written(before, plan.writes)


def test_settings_are_changed_one_by_one():
    """What is not named stays; a value None goes back to the broker's default."""
    state = alter(with_topics("t"), "t", ("flush", "never"), ("retention.ms", "5")).state
    assert state.topics["t"].configs == {"flush": "never", "retention.ms": "5"}
    plan = alter(state, "t", ("flush", None), ("segment.bytes", "100"))
    assert plan.state.topics["t"].configs == {"retention.ms": "5", "segment.bytes": "100"}
    assert plan.state.topics["t"].partitions == state.topics["t"].partitions


@pytest.mark.parametrize(
    ("name", "change", "error"),
    [
        ("none", ("flush", "never"), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("a b", ("flush", "never"), ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("t", ("flush", "now"), ErrorCode.INVALID_CONFIG),
        ("t", ("flash", "never"), ErrorCode.INVALID_CONFIG),
        ("t", ("flash", None), ErrorCode.INVALID_CONFIG),
    ],
)
def test_a_bad_change_changes_nothing(name, change, error):
    """Of the changes of one topic all are made or none."""
    state = with_topics("t")
    plan = alter(state, name, ("retention.ms", "5"), change)
    assert plan.answer.topics[0].error == error
    assert (plan.state, plan.writes) == (state, ())


def test_a_refused_request_is_answered_as_a_whole():
    """A request of which nothing is done has the error at each of its topics, or at its head."""
    code = ErrorCode.NOT_CONTROLLER
    requests = [
        CreateTopicsRequest((NewTopic("a"), NewTopic("b"))),
        DeleteTopicsRequest(("a", "b")),
        AlterConfigsRequest((TopicConfigChanges("a"), TopicConfigChanges("b"))),
    ]
    for request in requests:
        answer = refuse(request, code, "full")
        assert [(topic.name, topic.error) for topic in answer.topics] == [("a", code), ("b", code)]
        assert is_refused(answer, code)
        assert not is_refused(answer, ErrorCode.REQUEST_TIMED_OUT)
    for request in (AlterPartitionRequest(1, 1), ControlledShutdownRequest(1, 1)):
        assert refuse(request, code, "full").error == code
        assert is_refused(refuse(request, code, "full"), code)


def test_replicas_come_to_brokers_that_stay():
    """A broker that is about to stop gets a replica only where the others are too few, and is not
    in the ISR (CTL-11)."""
    state = state_with(1, 2, 3, leaving=(2,))
    (record,) = create(state, NewTopic("t", 1, 2)).state.topics["t"].partitions
    assert sorted(record.replicas) == [1, 3]
    assert record.isr == record.replicas
    assert record.leader == record.replicas[0]
    (record,) = create(state, NewTopic("t", 1, 3)).state.topics["t"].partitions
    assert record.replicas[2] == 2
    assert record.isr == record.replicas[:2]


def test_a_broker_that_is_down_holds_what_the_live_ones_are_too_few_for():
    """A known broker that is down gets replicas, but not the first, and is in no ISR (CTL-01)."""
    state = state_with(1, 3, down=(2,))
    config = Config(min_insync_replicas=2)
    topic = create(state, NewTopic("t", 4, 3), config=config).state.topics["t"]
    assert {record.replicas for record in topic.partitions} == {(1, 3, 2), (3, 1, 2)}
    for record in topic.partitions:
        assert record.isr == record.replicas[:2]
        assert record.leader == record.replicas[0]
    topic = create(state, NewTopic("t", 4, 2), config=config).state.topics["t"]
    assert {record.replicas for record in topic.partitions} == {(1, 3), (3, 1)}


def test_the_offsets_topic_is_created_with_a_broker_down():
    """Groups begin to work while a broker is down."""
    config = Config(offsets_topic_replication_factor=3, min_insync_replicas=2)
    plan = create(state_with(1, 3, down=(2,)), NewTopic(OFFSETS_TOPIC), config=config)
    assert [record.isr for record in plan.state.topics[OFFSETS_TOPIC].partitions]
    assert {2} == {record.replicas[2] for record in plan.state.topics[OFFSETS_TOPIC].partitions}


@pytest.mark.parametrize(
    ("live", "down", "leaving", "wanted", "says"),
    [
        (
            (1, 2),
            (3,),
            (),
            NewTopic("t", 1, 3, (ConfigEntry("min.insync.replicas", "3"),)),
            "replication factor 3 and min.insync.replicas 3 need 3 live brokers; 2 of 3 live",
        ),
        (
            (1,),
            (2, 3),
            (),
            NewTopic("t", 1, 3),
            "replication factor 3 and min.insync.replicas 2 need 2 live brokers; 1 of 3 live",
        ),
        (
            (1, 2, 3),
            (),
            (1, 2, 3),
            NewTopic("t", 1, 1),
            "replication factor 1 and min.insync.replicas 2 need 1 live broker; 0 of 3 live",
        ),
        (
            (1, 2),
            (3,),
            (),
            NewTopic("t", 1, 4),
            "replication factor 4, with 2 live brokers and 1 that is down",
        ),
    ],
)
def test_a_topic_that_would_refuse_acks_all_is_not_created(live, down, leaving, wanted, says):
    """Fewer live brokers than min.insync.replicas, or fewer known ones than replicas: the error
    says how many there are."""
    state = state_with(*live, leaving=leaving, down=down)
    plan = create(state, wanted, config=Config(min_insync_replicas=2))
    (refused,) = plan.answer.topics
    assert (refused.error, refused.error_message) == (
        ErrorCode.INVALID_REPLICATION_FACTOR,
        says,
    )
    assert plan.writes == ()


def test_a_few_replicas_need_no_more_live_brokers_than_there_are_replicas():
    """min.insync.replicas above the replication factor means all replicas."""
    plan = create(state_with(1, down=(2,)), NewTopic("t"), config=Config(min_insync_replicas=2))
    assert plan.answer.topics[0].error == 0


def test_a_tombstone_names_who_may_hold_the_topic():
    """All brokers that had a replica of any partition are waited for before it goes (CTL-15)."""
    state = create(state_with(1, 2, 3), NewTopic("t", 3, 1), NewTopic("u", 1, 1)).state
    topic = state.topics["t"]
    deleted = without_pause(plan_delete(state, DeleteTopicsRequest(("t",)))).state
    tombstone = deleted.tombstones[topic.id]
    assert (tombstone.name, tombstone.partition_count) == ("t", 3)
    assert tombstone.holders == (1, 2, 3)
    plan = plan_forgetting(deleted, [topic.id])
    assert plan.state.tombstones == {}
    assert plan.writes == (Delete(f"tombstones/{topic.id.hex()}"),)


def test_a_topic_without_room_is_answered_with_an_error():
    """A topic that exists but has no logs yet is told apart from one that is there."""
    answer = create(EMPTY, NewTopic("t"), NewTopic("u"), NewTopic(".")).answer
    t, u, bad = admit(answer, {"u": 2}).topics
    assert t == answer.topics[0]
    assert u.error == ErrorCode.KAFKA_STORAGE_ERROR
    assert "2 of its partitions" in u.error_message
    assert bad == answer.topics[2]
