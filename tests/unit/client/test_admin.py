"""The admin client: what it asks, and how a refusal reaches who asked."""

from functools import partial
from typing import Any

import pytest
import trio

from minibroker.client.admin import Admin, NewTopic
from minibroker.client.errors import ClientClosed, ClientTimeout
from minibroker.protocol.constants import ApiKey, ConfigResourceType, ErrorCode
from minibroker.protocol.errors import BrokerError
from minibroker.protocol.messages.brokers import (
    DescribeBrokerResponse,
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
)
from minibroker.protocol.messages.config_descriptions import ConfigDescription
from minibroker.protocol.messages.configs import (
    AlterConfigsRequest,
    AlterConfigsResponse,
    ConfigResource,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    ResourceConfigs,
    TopicConfigs,
)
from minibroker.protocol.messages.delete_records import (
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    PartitionRecordsDeleted,
)
from minibroker.protocol.messages.log_dirs import (
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    LogSize,
)
from minibroker.protocol.messages.metadata import (
    BrokerMetadata,
    MetadataResponse,
    PartitionMetadata,
    TopicMetadata,
)
from minibroker.protocol.messages.offsets import ListOffsetsResponse, PartitionOffset
from minibroker.protocol.messages.replicas import (
    DescribeReplicasRequest,
    DescribeReplicasResponse,
    ReplicaDescription,
)
from minibroker.protocol.messages.topics import (
    ConfigEntry,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    NewPartitions,
    ReplicaAssignment,
    TopicResult,
)

PARTITIONS = (
    PartitionMetadata(0, leader_id=1, leader_epoch=0),
    PartitionMetadata(1, leader_id=1, leader_epoch=0),
)


def one_topic(*topics: TopicMetadata) -> Any:
    """Metadata of host "a" alone."""
    brokers = (BrokerMetadata(1, "a", 9092),)
    return lambda _: MetadataResponse(brokers, "c", 1, topics)


async def test_create_sends_what_was_asked_for(
    start_broker: Any, seams: Any, autojump_clock: Any
) -> None:
    """A name alone takes the broker's defaults; counts and properties travel as given."""
    broker = await start_broker("a")
    broker.answers[ApiKey.METADATA] = one_topic()
    broker.answers[ApiKey.CREATE_TOPICS] = lambda request: CreateTopicsResponse(
        tuple(TopicResult(topic.name) for topic in request.topics)
    )
    async with Admin("a:9092", seams=seams) as admin:
        await admin.create_topics("t", NewTopic("u", 4, 1, {"retention.ms": "5"}))
        plain, full = broker.requests[-1].topics
        assert (plain.partition_count, plain.replication_factor, plain.configs) == (-1, -1, ())
        assert (full.partition_count, full.configs) == (4, (ConfigEntry("retention.ms", "5"),))
        await admin.create_topics(NewTopic("v", replica_assignments={0: [2, 1]}))
        (assigned,) = broker.requests[-1].topics
        assert (assigned.partition_count, assigned.replication_factor) == (-1, -1)
        assert assigned.assignments == (ReplicaAssignment(0, (2, 1)),)


async def test_a_refusal_names_the_topic_and_the_reason(
    start_broker: Any, seams: Any, autojump_clock: Any
) -> None:
    """The first topic or broker that was refused is raised, with the broker's words."""
    broker = await start_broker("a")
    broker.answers[ApiKey.METADATA] = one_topic()
    results = (TopicResult("t"), TopicResult("u", ErrorCode.INVALID_CONFIG, "no such property"))
    broker.answers[ApiKey.CREATE_TOPICS] = lambda _: CreateTopicsResponse(results)
    broker.answers[ApiKey.DELETE_TOPICS] = lambda _: DeleteTopicsResponse(results)
    broker.answers[ApiKey.ALTER_CONFIGS] = lambda _: AlterConfigsResponse(results)
    async with Admin("a:9092", seams=seams) as admin:
        for kind, call in (
            ("topic", admin.create_topics("t", "u")),
            ("topic", admin.delete_topics("t", "u")),
            ("topic", admin.alter_configs({"t": {}, "u": {"x": None}})),
            ("broker", admin.alter_broker_configs({1: {}, 2: {"x": None}})),
        ):
            with pytest.raises(BrokerError, match=f"{kind} 'u': no such property") as raised:
                await call
            assert raised.value.code == ErrorCode.INVALID_CONFIG


async def test_describing_creates_nothing(
    start_broker: Any, seams: Any, autojump_clock: Any
) -> None:
    """A look at a topic that is missing is an error, and the request forbids to make it."""
    broker = await start_broker("a")
    missing = TopicMetadata("u", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    known = TopicMetadata("t", partitions=PARTITIONS)
    broker.answers[ApiKey.METADATA] = one_topic(known, missing)
    async with Admin("a:9092", seams=seams) as admin:
        assert await admin.describe_topics("t") == [known]
        with pytest.raises(BrokerError, match="no topic 'u'"):
            await admin.describe_topics("t", "u")
        assert not any(request.allow_auto_topic_creation for request in broker.requests[1:])


async def test_configs_are_described_by_topic(
    start_broker: Any, seams: Any, autojump_clock: Any
) -> None:
    """Properties come back under the name of their topic."""
    broker = await start_broker("a")
    entry = ConfigDescription("retention.ms", "5", is_default=False)
    broker.answers[ApiKey.DESCRIBE_CONFIGS] = lambda _: DescribeConfigsResponse(
        (TopicConfigs("t", configs=(entry,)),)
    )
    async with Admin("a:9092", seams=seams) as admin:
        assert await admin.describe_configs("t") == {"t": (entry,)}


async def test_offsets_are_asked_of_the_leader_until_they_are_known(
    start_broker: Any, seams: Any, autojump_clock: Any
) -> None:
    """R9: OFFSET_NOT_AVAILABLE passes; a partition that does not exist does not."""
    broker = await start_broker("a")
    broker.answers[ApiKey.METADATA] = one_topic(TopicMetadata("t", partitions=PARTITIONS))
    answers = iter([ErrorCode.OFFSET_NOT_AVAILABLE, ErrorCode.NONE])
    broker.answers[ApiKey.LIST_OFFSETS] = lambda _: ListOffsetsResponse(
        (PartitionOffset("t", 0, next(answers), offset=9),)
    )
    async with Admin("a:9092", seams=seams) as admin:
        assert (await admin.list_offsets([("t", 0)]))["t", 0].offset == 9
        with pytest.raises(BrokerError, match="no partition 2"):
            await admin.list_offsets([("t", 2)])


class Two:
    """Two brokers, 1 on host "a" and 2 on host "b"; `controller` is who says to be it.

    Who is not answers NOT_CONTROLLER; who is does what `react` says, or refuses with `errors`.
    """

    def __init__(self, brokers: list[Any]) -> None:
        self.brokers = dict(enumerate(brokers, 1))
        self.alive = [1, 2]
        self.controller = 2
        self.believed = 2  # by the metadata
        self.topics: tuple[TopicMetadata, ...] = ()
        self.errors: dict[str, ErrorCode] = {}
        self.react: Any = None
        for node_id, broker in self.brokers.items():
            broker.answers[ApiKey.METADATA] = self.metadata
            for key, response in (
                (ApiKey.CREATE_TOPICS, CreateTopicsResponse),
                (ApiKey.DELETE_TOPICS, DeleteTopicsResponse),
                (ApiKey.CREATE_PARTITIONS, CreatePartitionsResponse),
                (ApiKey.ALTER_CONFIGS, AlterConfigsResponse),
            ):
                broker.answers[key] = partial(self.answer, node_id, response)

    def metadata(self, _: object) -> MetadataResponse:
        brokers = tuple(BrokerMetadata(node, " ab"[node], 9092) for node in self.alive)
        return MetadataResponse(brokers, "c", self.believed, self.topics)

    async def answer(self, node_id: int, response: Any, request: Any) -> Any:
        names = [getattr(topic, "name", topic) for topic in request.topics]
        if node_id != self.controller:
            self.believed = self.controller
            return response(tuple(TopicResult(n, ErrorCode.NOT_CONTROLLER) for n in names))
        if self.react is not None:
            react, self.react = self.react, None
            if (answer := await react(request)) is not None or node_id != self.controller:
                return answer
        return response(tuple(TopicResult(n, self.errors.get(n, ErrorCode.NONE)) for n in names))

    async def fall_over(self, _: object) -> None:
        """The controller is lost with a request that it may have done."""
        self.controller = self.believed = 1
        self.alive = [1]
        self.brokers[2].connections[-1].close()

    async def hang_for_ever(self, _: object) -> None:
        """The process is stopped."""
        await trio.sleep_forever()

    async def hang(self, _: object) -> None:
        """The controller's process is stopped, and its lease ends a second later."""
        await trio.sleep(1)
        self.controller = self.believed = 1
        self.alive = [1]
        await trio.sleep_forever()


@pytest.fixture
async def two(start_broker: Any) -> Two:
    """Both, with 2 as controller."""
    return Two([await start_broker("a"), await start_broker("b")])


class Disagreeing(Two):
    """The same, but 1 was paused: it names `named_by_1` as the controller, and both as live."""

    named_by_1 = 2

    def __init__(self, brokers: list[Any]) -> None:
        super().__init__(brokers)
        for node_id, broker in self.brokers.items():
            broker.answers[ApiKey.METADATA] = partial(self.metadata_of, node_id)
            broker.answers[ApiKey.DESCRIBE_BROKER] = partial(self.describe, node_id)

    def metadata_of(self, node_id: int, _: object) -> MetadataResponse:
        brokers = tuple(BrokerMetadata(node, " ab"[node], 9092) for node in (1, 2))
        if node_id == 1:
            return MetadataResponse(brokers, "c", self.named_by_1)
        return MetadataResponse(brokers[1:], "c", 2)

    def describe(self, node_id: int, _: object) -> DescribeBrokerResponse:
        named = self.named_by_1 if node_id == 1 else 2
        is_controller = node_id == self.controller
        return DescribeBrokerResponse(node_id, 1, "c", named, is_controller=is_controller)


@pytest.mark.parametrize("named_by_1", [2, 1])
async def test_the_cluster_is_described_as_its_controller_knows_it(
    start_broker: Any, seams: Any, autojump_clock: Any, named_by_1: int
) -> None:
    """Not as a broker knows it that was paused, though it is asked first, and though it was the
    controller before: it does not say that it is still."""
    both = Disagreeing([await start_broker("a"), await start_broker("b")])
    both.named_by_1 = named_by_1
    async with Admin("a:9092", seams=seams) as admin:
        described = await admin.describe_cluster()
    assert [broker.node_id for broker in described.brokers] == [2]
    assert (described.controller_id, described.is_from_controller) == (2, True)


async def test_without_a_controller_any_broker_describes_the_cluster(
    start_broker: Any, seams: Any, autojump_clock: Any
) -> None:
    """The controller is paused: what another broker knows is returned in time, and marked."""
    both = Disagreeing([await start_broker("a"), await start_broker("b")])
    both.brokers[2].answers = dict.fromkeys(both.brokers[2].answers, both.hang_for_ever)
    async with Admin("a:9092", seams=seams) as admin:
        described = await admin.describe_cluster()
        assert trio.current_time() < 10
    assert [broker.node_id for broker in described.brokers] == [1, 2]
    assert not described.is_from_controller


async def test_changes_are_asked_of_the_controller(
    two: Two, seams: Any, autojump_clock: Any
) -> None:
    """Creation, deletion and settings go to METADATA's controller, whoever was named to start."""
    async with Admin("a:9092", seams=seams) as admin:
        await admin.create_topics("t")
        await admin.delete_topics("t")
        await admin.alter_configs({"t": {}})
    for kind in (CreateTopicsRequest, DeleteTopicsRequest, AlterConfigsRequest):
        assert [len(two.brokers[node].asked(kind)) for node in (1, 2)] == [0, 1]


async def test_who_is_no_controller_any_more_is_left_for_who_is(
    two: Two, seams: Any, autojump_clock: Any
) -> None:
    """NOT_CONTROLLER: only the topics that were refused for it are asked again, of the next one."""

    async def step_down(_: object) -> CreateTopicsResponse:
        two.controller = two.believed = 1
        refused = TopicResult("u", ErrorCode.NOT_CONTROLLER)
        return CreateTopicsResponse((TopicResult("t"), refused))

    two.react = step_down
    async with Admin("a:9092", seams=seams) as admin:
        began = trio.current_time()
        await admin.create_topics("t", "u")
        assert trio.current_time() - began < 0.1
    (again,) = two.brokers[1].asked(CreateTopicsRequest)
    assert [topic.name for topic in again.topics] == ["u"]


@pytest.mark.parametrize("fault", ["fall_over", "hang"])
@pytest.mark.parametrize(
    "new", [NewTopic("t", 1, 2), NewTopic("t", replica_assignments={0: [1, 2]})]
)
async def test_a_creation_whose_answer_is_lost_is_done_if_the_topic_is_as_asked(
    two: Two, seams: Any, autojump_clock: Any, fault: str, new: NewTopic
) -> None:
    """The controller may have made it before it was lost: the next one's TOPIC_ALREADY_EXISTS is
    success then, also where the controller hangs until the cluster no longer counts it."""
    partition = PartitionMetadata(0, leader_id=1, leader_epoch=0, replicas=(1, 2))
    two.topics = (TopicMetadata("t", partitions=(partition,)),)
    two.errors = {"t": ErrorCode.TOPIC_ALREADY_EXISTS}
    async with Admin("a:9092", seams=seams) as admin:
        two.react = getattr(two, fault)
        await admin.create_topics(new)
        assert trio.current_time() < 2.5
        assert len(two.brokers[1].asked(CreateTopicsRequest)) == 1


async def test_partitions_are_asked_for(two: Two, seams: Any, autojump_clock: Any) -> None:
    """Counts and brokers travel as given; a refusal is raised, unless an answer was lost and the
    topic has the count that was asked for."""
    two.topics = (TopicMetadata("t", partitions=PARTITIONS),)
    async with Admin("a:9092", seams=seams) as admin:
        await admin.create_partitions({"t": 2, "u": 3}, assignments={"u": [[2], [1]]})
        (asked,) = two.brokers[2].asked(CreatePartitionsRequest)
        assert asked.topics == (NewPartitions("t", 2), NewPartitions("u", 3, ((2,), (1,))))
        two.errors = {"t": ErrorCode.INVALID_PARTITIONS}
        with pytest.raises(BrokerError, match="INVALID_PARTITIONS: topic 't'"):
            await admin.create_partitions({"t": 2})
        two.react = two.fall_over
        await admin.create_partitions({"t": 2})
    two.controller = two.believed = 2
    two.alive = [1, 2]
    async with Admin("a:9092", seams=seams) as admin:
        two.react = two.fall_over
        with pytest.raises(BrokerError, match="INVALID_PARTITIONS: topic 't'"):
            await admin.create_partitions({"t": 3})


async def test_a_topic_that_is_not_as_asked_exists_already(
    two: Two, seams: Any, autojump_clock: Any
) -> None:
    """With other counts it is another's topic; and where no answer was lost, in any case."""
    two.topics = (TopicMetadata("t", partitions=PARTITIONS),)
    two.errors = {"t": ErrorCode.TOPIC_ALREADY_EXISTS}
    async with Admin("a:9092", seams=seams) as admin:
        with pytest.raises(BrokerError, match="TOPIC_ALREADY_EXISTS: topic 't'"):
            await admin.create_topics(NewTopic("t", 2))
        two.react = two.fall_over
        with pytest.raises(BrokerError, match="TOPIC_ALREADY_EXISTS: topic 't'"):
            await admin.create_topics(NewTopic("t", 3))


async def test_a_topic_on_other_brokers_is_not_as_assigned(
    two: Two, seams: Any, autojump_clock: Any
) -> None:
    """After a lost answer, replicas that differ from the assignment are another's topic."""
    partition = PartitionMetadata(0, leader_id=1, leader_epoch=0, replicas=(1, 2))
    two.topics = (TopicMetadata("t", partitions=(partition,)),)
    two.errors = {"t": ErrorCode.TOPIC_ALREADY_EXISTS}
    async with Admin("a:9092", seams=seams) as admin:
        two.react = two.fall_over
        with pytest.raises(BrokerError, match="TOPIC_ALREADY_EXISTS: topic 't'"):
            await admin.create_topics(NewTopic("t", replica_assignments={0: [2, 1]}))


async def test_a_deletion_whose_answer_is_lost_is_done_if_the_topic_is_gone(
    two: Two, seams: Any, autojump_clock: Any
) -> None:
    """The next controller does not know the topic: then it was deleted, or never was there."""
    two.errors = {"t": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    async with Admin("a:9092", seams=seams) as admin:
        with pytest.raises(BrokerError, match="UNKNOWN_TOPIC_OR_PARTITION: topic 't'"):
            await admin.delete_topics("t")
        two.react = two.fall_over
        await admin.delete_topics("t")


async def test_without_a_controller_a_change_times_out(
    two: Two, seams: Any, autojump_clock: Any
) -> None:
    """The error says so, and whether the change may have been made; the brokers are not stormed."""
    async with Admin("a:9092", seams=seams, default_api_timeout_ms=5000) as admin:
        two.believed = two.controller = -1
        with pytest.raises(ClientTimeout, match="CREATE_TOPICS: no answer"):
            await admin.create_topics("t")
        assert trio.current_time() == pytest.approx(5, abs=0.1)
        assert sum(len(broker.requests) for broker in two.brokers.values()) < 80
        two.believed = two.controller = 2

        async def vanish(request: object) -> None:
            await two.fall_over(request)
            two.controller = two.believed = -1

        two.react = vanish
        with pytest.raises(ClientTimeout, match="whether it was done is not known"):
            await admin.create_topics("t")


async def test_every_broker_describes_its_replicas(
    two: Two, seams: Any, autojump_clock: Any
) -> None:
    """What each says of itself is returned; who holds replicas and says nothing is named."""
    two.topics = (
        TopicMetadata("t", partitions=(PartitionMetadata(0, leader_id=1, replicas=(1, 2, 3)),)),
    )
    answer = DescribeReplicasResponse(1, 7, (ReplicaDescription("t", 0, bytes(16), "leader"),))
    two.brokers[1].answers[ApiKey.DESCRIBE_REPLICAS] = lambda _: answer
    two.brokers[2].answers[ApiKey.DESCRIBE_REPLICAS] = lambda _: None
    async with Admin("a:9092", seams=seams) as admin:
        report = await admin.describe_replicas()
        assert report.answers == {1: answer}
        assert report.silent == {2: "no answer within 3 s", 3: "not alive"}
        await admin.describe_replicas("t")
    asked = two.brokers[1].asked(DescribeReplicasRequest)
    assert [request.topics for request in asked] == [None, ("t",)]


async def test_every_broker_describes_its_logs(two: Two, seams: Any, autojump_clock: Any) -> None:
    """What each says is returned; the broker that says nothing is named, and raises no error."""
    answer = DescribeLogDirsResponse("data", (LogSize("t", 0, 700),))
    two.brokers[1].answers[ApiKey.DESCRIBE_LOG_DIRS] = lambda _: answer
    two.brokers[2].answers[ApiKey.DESCRIBE_LOG_DIRS] = lambda _: None
    async with Admin("a:9092", seams=seams) as admin:
        report = await admin.describe_log_dirs()
        assert report.answers == {1: answer}
        assert report.silent == {2: "no answer within 3 s"}
        await admin.describe_log_dirs([("t", 0)])
    asked = two.brokers[1].asked(DescribeLogDirsRequest)
    assert [request.partitions for request in asked] == [None, (("t", 0),)]


async def test_a_closed_admin_client_says_so(seams: Any) -> None:
    """Calls before `async with`, and after it, are errors."""
    with pytest.raises(ClientClosed, match="async with"):
        await Admin("a:9092", seams=seams).list_topics()


async def test_one_thing_is_asked_of_the_controller_until_it_answers(
    start_broker: Any, seams: Any, autojump_clock: Any
) -> None:
    """NOT_CONTROLLER is followed; other refusals are raised with their reason."""
    broker = await start_broker("a")
    broker.answers[ApiKey.METADATA] = one_topic()
    answers = iter(
        [
            UnregisterBrokerResponse(ErrorCode.NOT_CONTROLLER),
            UnregisterBrokerResponse(),
            UnregisterBrokerResponse(ErrorCode.BROKER_ID_NOT_REGISTERED, "there is no broker 4"),
            UnregisterBrokerResponse(ErrorCode.INVALID_REQUEST, "broker 1 is alive"),
        ]
    )
    broker.answers[ApiKey.UNREGISTER_BROKER] = lambda _: next(answers)
    async with Admin("a:9092", seams=seams) as admin:
        await admin.unregister_broker(4)
        assert set(broker.asked(UnregisterBrokerRequest)) == {UnregisterBrokerRequest(4)}
        with pytest.raises(BrokerError, match="there is no broker 4"):
            await admin.unregister_broker(4)
        with pytest.raises(BrokerError, match="broker 1 is alive"):
            await admin.unregister_broker(1)


async def test_records_are_deleted_by_the_leader_of_each_partition(
    two: Two, seams: Any, autojump_clock: Any
) -> None:
    """Each leader is asked for its own partitions, and again for what it has not done yet."""
    second = PartitionMetadata(1, leader_id=2, leader_epoch=0)
    two.topics = (TopicMetadata("t", partitions=(PARTITIONS[0], second)),)
    errors = [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NONE]

    def delete(request: DeleteRecordsRequest) -> DeleteRecordsResponse:
        [asked] = request.partitions
        error = errors.pop(0) if asked.partition == 1 else 0
        done = PartitionRecordsDeleted("t", asked.partition, error, low_watermark=asked.offset)
        return DeleteRecordsResponse((done,))

    for broker in two.brokers.values():
        broker.answers[ApiKey.DELETE_RECORDS] = delete
    async with Admin("a:9092", seams=seams) as admin:
        deleted = await admin.delete_records({("t", 0): 5, ("t", 1): 7})
        assert deleted == {("t", 0): 5, ("t", 1): 7}
        assert len(two.brokers[1].asked(DeleteRecordsRequest)) == 1
        assert len(two.brokers[2].asked(DeleteRecordsRequest)) == 3
        with pytest.raises(BrokerError, match="'t' has no partition 2"):
            await admin.delete_records({("t", 2): 5})


async def test_a_deletion_of_records_that_is_refused_is_told(
    two: Two, seams: Any, autojump_clock: Any
) -> None:
    """What cannot be deleted is raised at once; what is never done, at the end of patience."""
    two.topics = (TopicMetadata("t", partitions=PARTITIONS),)
    error = ErrorCode.OFFSET_OUT_OF_RANGE
    two.brokers[1].answers[ApiKey.DELETE_RECORDS] = lambda _: DeleteRecordsResponse(
        (PartitionRecordsDeleted("t", 0, error, "the reason"),)
    )
    async with Admin("a:9092", seams=seams) as admin:
        with pytest.raises(BrokerError, match="OFFSET_OUT_OF_RANGE: t-0: the reason"):
            await admin.delete_records({("t", 0): 5})
        error = ErrorCode.REQUEST_TIMED_OUT
        with pytest.raises(ClientTimeout, match=r"not deleted on all replicas \(t-0: the reason"):
            await admin.delete_records({("t", 0): 5})


async def test_a_broker_is_asked_for_its_own_settings(
    two: Two, seams: Any, autojump_clock: Any
) -> None:
    """Not another one, and again until it answers; a refusal is raised."""
    entry = ConfigDescription("retention.ms", "5", is_default=False)
    described = ResourceConfigs(ConfigResourceType.BROKER, "2", configs=(entry,))
    two.brokers[2].answers[ApiKey.DESCRIBE_CONFIGS] = lambda _: DescribeConfigsResponse(
        resources=(described,)
    )
    async with Admin("a:9092", seams=seams) as admin:
        assert await admin.describe_broker_configs(2, "retention.ms") == (entry,)
        (asked,) = two.brokers[2].asked(DescribeConfigsRequest)
        wanted = ConfigResource(ConfigResourceType.BROKER, "2", ("retention.ms",))
        assert asked.resources == (wanted,)
        described = ResourceConfigs(4, "2", ErrorCode.INVALID_REQUEST, "the reason")
        with pytest.raises(BrokerError, match="INVALID_REQUEST: the reason"):
            await admin.describe_broker_configs(2)
    async with Admin("a:9092", seams=seams, default_api_timeout_ms=500) as admin:
        with pytest.raises(ClientTimeout, match="the settings of broker 3"):
            await admin.describe_broker_configs(3)
