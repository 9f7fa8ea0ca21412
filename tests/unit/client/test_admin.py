"""The admin client: what it asks, and how a refusal reaches who asked."""

from typing import Any

import pytest

from minibroker.client.admin import Admin, NewTopic
from minibroker.client.errors import ClientClosed, ClientError
from minibroker.protocol.constants import ApiKey, ErrorCode
from minibroker.protocol.errors import BrokerError
from minibroker.protocol.messages.configs import (
    AlterConfigsResponse,
    ConfigDescription,
    DescribeConfigsResponse,
    TopicConfigs,
)
from minibroker.protocol.messages.metadata import (
    BrokerMetadata,
    MetadataResponse,
    PartitionMetadata,
    TopicMetadata,
)
from minibroker.protocol.messages.offsets import ListOffsetsResponse, PartitionOffset
from minibroker.protocol.messages.topics import (
    ConfigEntry,
    CreateTopicsResponse,
    DeleteTopicsResponse,
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
    broker.answers[ApiKey.CREATE_TOPICS] = lambda request: CreateTopicsResponse(
        tuple(TopicResult(topic.name) for topic in request.topics)
    )
    async with Admin("a:9092", seams=seams) as admin:
        await admin.create_topics("t", NewTopic("u", 4, 1, {"retention.ms": "5"}))
        plain, full = broker.requests[-1].topics
        assert (plain.partition_count, plain.replication_factor, plain.configs) == (-1, -1, ())
        assert (full.partition_count, full.configs) == (4, (ConfigEntry("retention.ms", "5"),))


async def test_a_refusal_names_the_topic_and_the_reason(
    start_broker: Any, seams: Any, autojump_clock: Any
) -> None:
    """The first topic that was refused is raised, with the broker's words."""
    broker = await start_broker("a")
    results = (TopicResult("t"), TopicResult("u", ErrorCode.INVALID_CONFIG, "no such property"))
    broker.answers[ApiKey.CREATE_TOPICS] = lambda _: CreateTopicsResponse(results)
    broker.answers[ApiKey.DELETE_TOPICS] = lambda _: DeleteTopicsResponse(results)
    broker.answers[ApiKey.ALTER_CONFIGS] = lambda _: AlterConfigsResponse(results)
    async with Admin("a:9092", seams=seams) as admin:
        for call in (
            admin.create_topics("t", "u"),
            admin.delete_topics("t", "u"),
            admin.alter_configs({"t": {}, "u": {"x": None}}),
        ):
            with pytest.raises(BrokerError, match="'u': no such property") as raised:
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
        assert (await admin.describe_cluster()).controller_id == 1
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


async def test_a_creation_whose_answer_is_lost_is_not_repeated(
    start_broker: Any, seams: Any, autojump_clock: Any
) -> None:
    """Nobody knows whether it was done: asking again would report a topic that is there already."""
    broker = await start_broker("a")
    broker.answers[ApiKey.CREATE_TOPICS] = lambda _: broker.connections[-1].close()
    async with Admin("a:9092", seams=seams) as admin:
        with pytest.raises(ClientError, match="CREATE_TOPICS: whether it was done"):
            await admin.create_topics("t")
        assert len(broker.requests) == 2


async def test_a_closed_admin_client_says_so(seams: Any) -> None:
    """Calls before `async with`, and after it, are errors."""
    with pytest.raises(ClientClosed, match="async with"):
        await Admin("a:9092", seams=seams).list_topics()
