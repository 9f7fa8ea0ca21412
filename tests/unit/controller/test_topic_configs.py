"""How a topic's own settings are changed, and which changes are refused."""

import pytest

from minibroker.broker.controller.entries import read_state
from minibroker.broker.controller.topics import plan_alter
from minibroker.broker.metadata.store import Delete, Entry
from minibroker.broker.turns import without_pause
from minibroker.client.net.channel import ChannelOptions, open_channel
from minibroker.protocol.constants import (
    OFFSETS_TOPIC,
    ApiKey,
    ConfigOperation,
    ConfigResourceType,
    ErrorCode,
)
from minibroker.protocol.messages.configs import (
    AlterConfigsRequest,
    ConfigChange,
    TopicConfigChanges,
)
from minibroker.protocol.messages.topics import ConfigEntry, NewTopic
from minibroker.protocol.types import Endpoint
from tests.unit.controller.fleet import PORT, open_fleet
from tests.unit.controller.test_topics import CONFIG, EMPTY, create

SET, DELETE, APPEND, SUBTRACT = ConfigOperation


def state_of(**configs):
    """Topics "t" and "u" and that of the groups; the first has these settings."""
    entries = tuple(ConfigEntry(name.replace("_", "."), value) for name, value in configs.items())
    return create(
        EMPTY, NewTopic("t", configs=entries), NewTopic("u"), NewTopic(OFFSETS_TOPIC)
    ).state


def alter(state, *changed, **more):
    """Changes are (name of a topic, changes of it...)."""
    topics = tuple(
        TopicConfigChanges(name, tuple(ConfigChange(*change) for change in changes))
        for name, *changes in changed
    )
    return without_pause(plan_alter(state, CONFIG, AlterConfigsRequest(topics, **more)))


def test_each_operation():
    """A setting is set, or deleted; to a list a word is added once, or taken out."""
    state = state_of(flush="never", retention_ms="5")
    plan = alter(
        state,
        ("t", ("flush", "always", SET), ("retention.ms", None, DELETE)),
        ("u", ("cleanup.policy", "delete", APPEND), ("flush", "ignored", DELETE)),
    )
    assert [topic.error for topic in plan.answer.topics] == [0, 0]
    assert plan.state.topics["t"].configs == {"flush": "always"}
    assert plan.state.topics["u"].configs == {"cleanup.policy": "delete"}


def test_the_others_go_back_to_their_defaults_on_request():
    """With `reset_others` a topic has the settings that are named, and no others of its own."""
    state = state_of(flush="never", retention_ms="5")
    plan = alter(state, ("t", ("segment.bytes", "100")), reset_others=True)
    assert plan.state.topics["t"].configs == {"segment.bytes": "100"}
    assert alter(state, ("t",), reset_others=True).state.topics["t"].configs == {}
    assert alter(state, ("t",)).state == state


@pytest.mark.parametrize("change", [("retention.ms", None), ("retention.ms", None, DELETE)])
def test_offsets_of_groups_never_become_old(change):
    """The defaults of the groups' topic are those that it was created with."""
    state = state_of()
    before = state.topics[OFFSETS_TOPIC].configs
    assert before["retention.ms"] == "-1"
    assert alter(state, (OFFSETS_TOPIC, change)).state.topics[OFFSETS_TOPIC].configs == before
    reset = alter(state, (OFFSETS_TOPIC,), reset_others=True)
    assert reset.state.topics[OFFSETS_TOPIC].configs == before


@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [
        ([("flush", "never"), ("flush", "always")], ErrorCode.INVALID_REQUEST, "more than once"),
        ([("flush", "never", 4)], ErrorCode.INVALID_REQUEST, "no operation 4"),
        ([("flush", "never", -1)], ErrorCode.INVALID_REQUEST, "no operation -1"),
        ([("flush", "never", APPEND)], ErrorCode.INVALID_CONFIG, "is no list"),
        ([("flush", "never", SUBTRACT)], ErrorCode.INVALID_CONFIG, "is no list"),
        ([("cleanup.policy", "delete", SUBTRACT)], ErrorCode.INVALID_CONFIG, "cleanup.policy"),
        ([("cleanup.policy", "compacted", APPEND)], ErrorCode.INVALID_CONFIG, "cleanup.policy"),
        ([("flash", None, DELETE)], ErrorCode.INVALID_CONFIG, "the nearest is 'flush'"),
    ],
)
def test_a_bad_change_is_refused_and_the_others_are_made(changes, error, says):
    """Nothing of that topic is changed; the other one is."""
    state = state_of(retention_ms="5")
    plan = alter(state, ("t", ("retention.ms", "6"), *changes), ("u", ("flush", "never")))
    refused, done = plan.answer.topics
    assert (refused.name, refused.error, done.error) == ("t", error, 0)
    assert says in refused.error_message
    assert plan.state.topics["t"] == state.topics["t"]
    assert plan.state.topics["u"].configs == {"flush": "never"}


class _Compared(str):
    """A name that counts how often it is compared."""

    __slots__ = ()
    count = 0
    __hash__ = str.__hash__

    def __eq__(self, other):
        _Compared.count += 1
        return str.__eq__(self, other)


def test_many_names_are_not_compared_with_each_other():
    """One small request of 20,000 names held the controller's loop for five seconds."""
    names = [_Compared(f"name-{number}") for number in range(3_000)]
    [result] = alter(state_of(), ("t", *[(name, "1") for name in names])).answer.topics
    assert result.error == ErrorCode.INVALID_CONFIG
    assert _Compared.count < len(names)


def test_a_topic_named_twice_is_refused():
    """Nobody can say which changes come first."""
    plan = alter(state_of(), ("t", ("flush", "never")), ("t",), ("u", ("flush", "never")))
    errors = [topic.error for topic in plan.answer.topics]
    assert errors == [ErrorCode.INVALID_REQUEST, ErrorCode.INVALID_REQUEST, 0]


@pytest.mark.parametrize(
    ("kind", "says"), [(ConfigResourceType.BROKER, "restart it"), (8, "resource type 8")]
)
def test_other_settings_do_not_change(kind, says):
    """Most of a broker's are those that it was started with."""
    changes = (ConfigChange("flush", "never"),)
    wanted = (TopicConfigChanges("1", changes, kind), TopicConfigChanges("u", changes))
    plan = without_pause(plan_alter(state_of(), CONFIG, AlterConfigsRequest(wanted)))
    refused, done = plan.answer.topics
    assert (refused.name, refused.error, done.error) == ("1", ErrorCode.INVALID_REQUEST, 0)
    assert says in refused.error_message


RATE = "leader.replication.throttled.rate"


def alter_broker(state, name, *changes, **more):
    """The plan of a request for one broker."""
    wanted = TopicConfigChanges(
        name, tuple(ConfigChange(*one) for one in changes), ConfigResourceType.BROKER
    )
    return without_pause(plan_alter(state, CONFIG, AlterConfigsRequest((wanted,), **more)))


def test_a_rate_of_a_broker_is_kept_and_pushed():
    """It is written, read back by the next controller, and the brokers are told."""
    plan = alter_broker(state_of(), "1", (RATE, "1000"))
    assert plan.state.broker_configs == {1: {RATE: "1000"}}
    [put] = plan.writes
    assert put.key == "broker-configs/1"
    assert plan.change.has_other_brokers
    read = without_pause(read_state({put.key: Entry(put.value, 1)}))
    assert read.broker_configs == plan.state.broker_configs
    gone = alter_broker(plan.state, "1", (RATE, None, ConfigOperation.DELETE))
    assert gone.state.broker_configs == {}
    assert gone.writes == (Delete("broker-configs/1"),)
    reset = alter_broker(plan.state, "1", reset_others=True)
    assert reset.state.broker_configs == {}


def test_what_a_broker_does_not_have_can_be_deleted():
    """As in Kafka, whose kafka-reassign-partitions deletes a rate that is not served here, too."""
    delete = "replica.alter.log.dirs.io.max.bytes.per.second", None, ConfigOperation.DELETE
    plan = alter_broker(state_of(), "1", delete, (RATE, "1000"))
    assert [one.error for one in plan.answer.topics] == [ErrorCode.NONE]
    assert plan.state.broker_configs == {1: {RATE: "1000"}}


@pytest.mark.parametrize(
    ("name", "change", "code", "says"),
    [
        ("", (RATE, "1"), ErrorCode.INVALID_REQUEST, "name a broker"),
        ("77", (RATE, "1"), ErrorCode.INVALID_REQUEST, "there is no broker '77'"),
        ("one", (RATE, "1"), ErrorCode.INVALID_REQUEST, "there is no broker 'one'"),
        ("1", ("node.id", "2"), ErrorCode.INVALID_REQUEST, "change its file and restart it"),
        ("1", (RATE, "-1"), ErrorCode.INVALID_CONFIG, "it takes 0 to"),
        ("1", (RATE, ""), ErrorCode.INVALID_CONFIG, "it takes 0 to"),
        ("1", (RATE, "fast"), ErrorCode.INVALID_CONFIG, "it takes 0 to"),
        ("1", (RATE, "1", ConfigOperation.APPEND), ErrorCode.INVALID_CONFIG, "is no list"),
    ],
)
def test_bad_changes_of_a_broker(name, change, code, says):
    """Each gets a sentence, and nothing is written."""
    plan = alter_broker(state_of(), name, change)
    [refused] = plan.answer.topics
    assert (refused.error, plan.writes) == (code, ())
    assert says in refused.error_message


async def ask(fleet, broker, request):
    """The answer of a broker to a client."""
    network = fleet.network.host("client")
    async with open_channel(network, Endpoint(broker.name, PORT), ChannelOptions()) as channel:
        return await channel.call(ApiKey.ALTER_CONFIGS, request)


async def test_any_broker_takes_it(autojump_clock):
    """One that is not the controller passes it on, once."""
    async with open_fleet() as fleet:
        await fleet.create()
        others = [broker for broker in fleet.running if broker is not fleet.controller]
        for number, broker in enumerate(others):
            changes = TopicConfigChanges("t", (ConfigChange("retention.ms", str(number)),))
            request = AlterConfigsRequest((changes,))
            answer = await ask(fleet, broker, request)
            assert answer.topics[0].error == 0
            state = await fleet.state()
            assert state.topics["t"].configs["retention.ms"] == str(number)
            passed_on = AlterConfigsRequest((changes,), is_forwarded=True)
            answer = await ask(fleet, broker, passed_on)
            assert answer.topics[0].error == ErrorCode.NOT_CONTROLLER
