"""METADATA, topics, their settings and producer ids, through the handlers and the controller."""

import random
from collections.abc import AsyncIterator, Generator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing

from minibroker.broker.controller.context import Job, OwnBrokerHandlers, RegistrationFacts
from minibroker.broker.controller.node import ControllerNode
from minibroker.broker.metadata.memory_store import MemoryStore
from minibroker.broker.properties import PROPERTIES
from minibroker.broker.replication.purgatory import Parked
from minibroker.broker.server.dispatch import HANDLERS
from minibroker.broker.server.handlers import metadata
from minibroker.broker.server.services import HangUp
from minibroker.broker.turns import without_pause
from minibroker.protocol.constants import ApiKey, ConfigResourceType, ErrorCode
from minibroker.protocol.messages.acls import DescribeAclsRequest
from minibroker.protocol.messages.configs import (
    AlterConfigsRequest,
    ConfigChange,
    ConfigResource,
    DescribeConfigsRequest,
    ListConfigResourcesRequest,
    TopicConfigChanges,
)
from minibroker.protocol.messages.metadata import MetadataRequest, MetadataResponse
from minibroker.protocol.messages.producer_id import InitProducerIdRequest
from minibroker.protocol.messages.topics import (
    ConfigEntry,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    NewPartitions,
    NewTopic,
    TopicResult,
)
from minibroker.protocol.types import Endpoint, TopicPartition
from minibroker.testing.network import SimulatedNetwork
from tests.unit.node import Node, state_of


def describe(node: Node, *names: str, may_create: bool = False) -> MetadataResponse:
    return answer_of(node, MetadataRequest(names, may_create))


def answer_of(node: Node, request: MetadataRequest) -> MetadataResponse:
    outcome = metadata.handle(node.services, request, 0.0)
    assert isinstance(outcome, Generator)
    return without_pause(outcome)


def with_controller(node: Node) -> ControllerNode:
    """A part in control of the node's own, which is not running."""
    replicas = node.replicas
    order_handlers = OwnBrokerHandlers(
        replicas.obey_roles,
        replicas.stop,
        replicas.update_metadata,
        replicas.describe,
        node.purgatory.notify,
        replicas.hand_over,
    )
    network = SimulatedNetwork(random.Random(3)).host("broker-1")
    node.services.controller = ControllerNode(
        node.config, MemoryStore(), network, order_handlers, random.Random(4)
    )
    return node.services.controller


@asynccontextmanager
async def controlled(**settings: str) -> AsyncIterator[Node]:
    """A node that is the controller."""
    node = Node(is_ready=False, **settings)
    controller = with_controller(node)
    async with trio.open_nursery() as nursery:
        registration = RegistrationFacts(Endpoint("broker-1", 9092), "d" * 32, 1)
        await nursery.start(controller.run, registration)
        await node.replicas.ready.wait()
        yield node
        nursery.cancel_scope.cancel()


async def ask(node: Node, api_key: ApiKey, request: object) -> Any:
    """The answer, waited for."""
    outcome = HANDLERS[api_key].handle(node.services, request, trio.current_time())
    if isinstance(outcome, Parked):
        outcome = await node.purgatory.wait_for_answer(outcome)
    return without_pause(outcome) if isinstance(outcome, Generator) else outcome


def test_who_leads_what() -> None:
    """Brokers, cluster, controller and every partition of the topics that were asked for."""
    node = Node()
    node.know(state_of(epochs=(3, 7), isr=(1,), replicas=(1,)))
    answer = describe(node, "t")
    assert [(b.node_id, b.host, b.port) for b in answer.brokers] == [(1, "broker-1", 9092)]
    assert (answer.cluster_id, answer.controller_id) == ("cluster", 1)
    (topic,) = answer.topics
    assert (topic.name, topic.error, topic.topic_id) == ("t", 0, b"i" * 16)
    (partition,) = topic.partitions
    assert (partition.leader_id, partition.leader_epoch, partition.error) == (1, 3, 0)


def test_a_dead_leader_is_none() -> None:
    """MET-03, MET-04: LEADER_NOT_AVAILABLE and leader -1; the rest is told all the same."""
    node = Node()
    node.know(
        state_of(leader=2, epochs=(3, 7), isr=(2,), replicas=(1, 2)),
        state_of(TopicPartition("t", 1), leader=-1, epochs=(4, 0), isr=(1,), replicas=(1,)),
    )
    for partition, epoch in zip(describe(node, "t").topics[0].partitions, (3, 4), strict=True):
        assert partition.error == ErrorCode.LEADER_NOT_AVAILABLE
        assert partition.leader_id == -1
        assert partition.leader_epoch == epoch
        assert partition.isr
    assert describe(node, "t").topics[0].partitions[0].offline_replicas == (2,)


def test_all_topics_some_or_none() -> None:
    """None asks for all topics, an empty tuple for the brokers only."""
    node = Node()
    node.know(state_of())
    node.know(state_of(TopicPartition("u", 0)))
    everything = answer_of(node, MetadataRequest(None))
    assert [topic.name for topic in everything.topics] == ["t", "u"]
    assert describe(node).topics == ()


def test_topics_by_their_ids() -> None:
    """An id that no topic has is UNKNOWN_TOPIC_ID; a topic that is named twice is told once."""
    node = Node()
    node.know(state_of())
    ids = (b"i" * 16, b"j" * 16, b"i" * 16, b"j" * 16)
    answer = answer_of(node, MetadataRequest(("t",), False, ids))
    told = [(topic.name, topic.error, topic.topic_id) for topic in answer.topics]
    assert told == [("t", 0, ids[0]), ("", ErrorCode.UNKNOWN_TOPIC_ID, ids[1])]
    assert answer.topics[0].partitions


def test_a_client_may_do_everything() -> None:
    """Which is told if it asks; there are no access rules."""
    node = Node()
    node.know(state_of())
    told = answer_of(node, MetadataRequest(("t", "u"), False, (), True, True))
    assert [topic.authorized_operations for topic in told.topics] == [0b110111111000, -(2**31)]
    assert told.authorized_operations == 0b1111110100000
    plain = describe(node, "t")
    assert {plain.topics[0].authorized_operations, plain.authorized_operations} == {-(2**31)}


@pytest.mark.parametrize(("topics", "partitions"), [(3000, 1), (30, 100)])
def test_many_partitions_are_told_in_turns(topics: int, partitions: int) -> None:
    """No answer holds the loop for longer than 500 partitions or so take."""
    node = Node()
    names = [[TopicPartition(f"t{n}", p) for p in range(partitions)] for n in range(topics)]
    for topic in names:
        node.know(*map(state_of, topic))
    outcome = metadata.handle(node.services, MetadataRequest(None), 0.0)
    assert isinstance(outcome, Generator)
    pauses = 0
    try:
        while True:
            next(outcome)
            pauses += 1
    except StopIteration as end:
        told = [(t.name, p.partition) for t in end.value.topics for p in t.partitions]
    assert told == [name for topic in names for name in topic]
    assert pauses >= 5


def test_unknown_topics_are_told() -> None:
    """MET-07: without auto creation a topic that is nowhere is UNKNOWN_TOPIC_OR_PARTITION."""
    unknown = describe(Node(), "u").topics[0]
    assert unknown.error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    node = Node(auto_create_topics_enable="false")
    unknown = describe(node, "u", may_create=True).topics[0]
    assert unknown.error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_broker_out_of_touch_does_not_say_that_a_topic_is_nowhere() -> None:
    """Another broker may have said that it was made: the client asks again."""
    node = Node()
    node.controller.is_session_over = True
    unknown, invalid = describe(node, "u", "no/name").topics
    assert unknown.error == ErrorCode.LEADER_NOT_AVAILABLE
    assert invalid.error == ErrorCode.INVALID_TOPIC_EXCEPTION


@pytest.mark.parametrize("name", ["", ".", "no/name", "x" * 250])
def test_a_name_that_no_topic_can_have_is_invalid(name: str) -> None:
    """Also where no topics are created: to wait for it is of no use."""
    node = Node(auto_create_topics_enable="false")
    for may_create in (False, True):
        invalid = describe(node, name, may_create=may_create).topics[0]
        assert invalid.error == ErrorCode.INVALID_TOPIC_EXCEPTION


async def test_topics_are_made_when_first_asked_for(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Auto creation: the answer has the new topic's leader; a bad name has its reason."""
    async with controlled(num_partitions="3") as node:
        request = MetadataRequest(("t", "no/name"))
        made, bad = (await ask(node, ApiKey.METADATA, request)).topics
        assert [p.leader_id for p in made.partitions] == [1, 1, 1]
        assert bad.error == ErrorCode.INVALID_TOPIC_EXCEPTION
        assert node.partition(TopicPartition("t", 2)).is_leader


@pytest.mark.parametrize("error", [ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS])
async def test_a_topic_that_is_on_its_way_is_asked_for_again(error: ErrorCode) -> None:
    """Made, perhaps by somebody else at the same time, and not known here yet: no final error."""
    node = Node()

    class Maker:
        def forward(self, request: CreateTopicsRequest) -> Job[CreateTopicsResponse]:
            job = Job[CreateTopicsResponse](request)
            job.finish(CreateTopicsResponse((TopicResult("t", error),)))
            return job

    node.services.controller = Maker()
    answer = await ask(node, ApiKey.METADATA, MetadataRequest(("t",)))
    assert answer.topics[0].error == ErrorCode.LEADER_NOT_AVAILABLE


async def test_a_controller_that_is_late_is_told(autojump_clock: trio.testing.MockClock) -> None:
    """A topic that is not made in time has no leader yet: the client asks again."""
    node = Node()
    with_controller(node)
    late = await ask(node, ApiKey.METADATA, MetadataRequest(("t",)))
    assert late.topics[0].error == ErrorCode.LEADER_NOT_AVAILABLE


async def test_requests_for_the_controller_are_for_it_alone() -> None:
    """What changes topics, asked of another broker: NOT_CONTROLLER for each topic."""
    node = Node()
    with_controller(node)
    for api_key, request in (
        (ApiKey.CREATE_TOPICS, CreateTopicsRequest((NewTopic("t"),), 100)),
        (ApiKey.DELETE_TOPICS, DeleteTopicsRequest(("t",), 100)),
        (ApiKey.CREATE_PARTITIONS, CreatePartitionsRequest((NewPartitions("t", 2),), 100)),
        (ApiKey.ALTER_CONFIGS, AlterConfigsRequest((TopicConfigChanges("t"),), is_forwarded=True)),
    ):
        answer = await ask(node, api_key, request)
        assert [topic.error for topic in answer.topics] == [ErrorCode.NOT_CONTROLLER]


async def test_settings_of_a_topic(autojump_clock: trio.testing.MockClock) -> None:
    """A topic's settings are described as they are in force, and a change holds at once."""
    async with controlled() as node:
        new = NewTopic("t", configs=(ConfigEntry("retention.ms", "5000"),))
        await ask(node, ApiKey.CREATE_TOPICS, CreateTopicsRequest((new,)))
        change = TopicConfigChanges("t", (ConfigChange("segment.bytes", "2000"),))
        answer = await ask(node, ApiKey.ALTER_CONFIGS, AlterConfigsRequest((change,)))
        assert answer.topics[0].error == 0
        assert node.partition().log.limits.segment_bytes == 2_000
        request = DescribeConfigsRequest(("t", "u"))
        described, unknown = (await ask(node, ApiKey.DESCRIBE_CONFIGS, request)).topics
        assert unknown.error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        settings = {config.name: config for config in described.configs}
        assert (settings["retention.ms"].value, settings["retention.ms"].is_default) == (
            "5000",
            False,
        )
        assert settings["segment.bytes"].value == "2000"
        assert settings["flush"].value == "interval"
        assert settings["flush"].is_default


async def test_a_created_topic_is_described(autojump_clock: trio.testing.MockClock) -> None:
    """With its settings, where they are asked for; one that is refused has none."""
    async with controlled() as node:
        new = NewTopic("t", configs=(ConfigEntry("retention.ms", "5000"),))
        request = CreateTopicsRequest((new, NewTopic("a b")), include_configs=True)
        answer = await ask(node, ApiKey.CREATE_TOPICS, request)
        made, refused = answer.configs
        found = {one.name: (one.value, one.source) for one in made}
        assert found["retention.ms"] == ("5000", 1)
        assert found["flush"] == ("interval", 5)
        assert (answer.topics[0].partition_count, refused) == (1, ())
        plain = await ask(node, ApiKey.CREATE_TOPICS, CreateTopicsRequest((NewTopic("u"),)))
        assert plain.configs == ()


async def test_settings_of_resources() -> None:
    """A broker describes itself and topics, as far as is asked for; anything else is refused."""
    node = Node(log_retention_ms="5")
    node.lead(overrides={"flush": "never"})
    asked = (
        ConfigResource(ConfigResourceType.BROKER, "1", ("log.retention.ms", "no.such", "node.id")),
        ConfigResource(ConfigResourceType.BROKER, "1", ()),
        ConfigResource(ConfigResourceType.BROKER, "1"),
        ConfigResource(ConfigResourceType.BROKER, ""),
        ConfigResource(ConfigResourceType.TOPIC, "t", ("flush",)),
        ConfigResource(ConfigResourceType.BROKER, "2"),
        ConfigResource(ConfigResourceType.BROKER, "one"),
        ConfigResource(ConfigResourceType.TOPIC, "u"),
        ConfigResource(8, "1"),
        ConfigResource(ConfigResourceType.TOPIC, "a b"),
    )
    answer = await ask(node, ApiKey.DESCRIBE_CONFIGS, DescribeConfigsRequest(resources=asked))
    some, none, everything, shared, topic, *refused = answer.resources
    assert [(each.name, each.value) for each in some.configs] == [
        ("log.retention.ms", "5"),
        ("node.id", "1"),
    ]
    assert none.configs == shared.configs == ()
    assert len(everything.configs) == len(PROPERTIES)
    assert [(each.name, each.value) for each in topic.configs] == [("flush", "never")]
    assert [(each.resource_type, each.name) for each in answer.resources] == [
        (each.resource_type, each.name) for each in asked
    ]
    assert [each.error for each in answer.resources[:5]] == [0] * 5
    assert [each.error for each in refused] == [
        ErrorCode.INVALID_REQUEST,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
    ]
    assert "this is broker 1" in refused[0].error_message


async def test_resources_with_settings_are_listed() -> None:
    """Topics and brokers, of these types or of all. Of metrics of clients there are none."""
    node = Node()
    node.know(state_of())
    node.know(state_of(TopicPartition("u", 0)))
    topics = [(2, "t"), (2, "u")]
    for kinds, expected in (
        ((), [*topics, (4, "1")]),
        ((4, 4), [(4, "1")]),
        ((2, 16), topics),
        ((16,), []),
    ):
        request = ListConfigResourcesRequest(kinds)
        answer = await ask(node, ApiKey.LIST_CONFIG_RESOURCES, request)
        assert [(one.resource_type, one.name) for one in answer.resources] == expected
        assert answer.error == 0
    refused = await ask(node, ApiKey.LIST_CONFIG_RESOURCES, ListConfigResourcesRequest((2, 99)))
    assert (refused.error, refused.resources) == (ErrorCode.UNSUPPORTED_VERSION, ())


async def test_synonyms_of_settings() -> None:
    """The values that a setting would have, the one in force first."""
    node = Node(log_retention_ms="5")
    node.lead(overrides={"retention.ms": "7"})
    names = ("retention.ms", "flush", "preallocate")
    asked = (
        ConfigResource(ConfigResourceType.TOPIC, "t", names),
        ConfigResource(ConfigResourceType.BROKER, "1", ("log.retention.ms",)),
    )
    request = DescribeConfigsRequest((), asked, True, True)
    topic, broker = (await ask(node, ApiKey.DESCRIBE_CONFIGS, request)).resources
    found = {each.name: each for each in (*topic.configs, *broker.configs)}
    assert not any(each.documentation for each in found.values())
    told = {
        name: [(one.name, one.value, one.source) for one in each.synonyms]
        for name, each in found.items()
    }
    default = ("log.retention.ms", "604800000", 5)
    assert told == {
        "retention.ms": [("retention.ms", "7", 1), ("log.retention.ms", "5", 4), default],
        "log.retention.ms": [("log.retention.ms", "5", 4), default],
        "flush": [("flush", "interval", 5)],
        "preallocate": [("preallocate", "false", 5)],
    }


async def test_producer_ids_are_never_the_same(autojump_clock: trio.testing.MockClock) -> None:
    """PID-17: ids differ and grow; while a block is under way the client is told to ask again."""
    async with controlled() as node:
        ids = []
        for _ in range(3_000):
            answer = await ask(node, ApiKey.INIT_PRODUCER_ID, InitProducerIdRequest())
            if answer.error:
                assert answer.error == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
                await trio.sleep(0.01)
            else:
                ids.append(answer.producer_id)
        assert len(ids) > 2_000
        assert ids == sorted(set(ids))


async def test_there_are_no_acls(autojump_clock: trio.testing.MockClock) -> None:
    """MirrorMaker then knows that there are none to copy; any other error it logs as one."""
    answer = await ask(Node(), ApiKey.DESCRIBE_ACLS, DescribeAclsRequest())
    assert answer.error == ErrorCode.SECURITY_DISABLED
    assert "no ACLs" in answer.error_message


def test_who_knows_nothing_hangs_up() -> None:
    """Until a controller has told the cluster there is no answer: another broker may have one."""
    node = Node()
    node.replicas.ready = trio.Event()
    with pytest.raises(HangUp):
        describe(node, "t")
