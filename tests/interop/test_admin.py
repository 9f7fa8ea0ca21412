"""Topics, settings, records and groups by the admin clients of the libraries, against one broker
and against three. Each test says what the broker did, not only that the client was content."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final

import confluent_kafka
import pytest
from aiokafka import TopicPartition as AioPartition
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete
from aiokafka.admin import NewPartitions as AioNewPartitions
from aiokafka.admin import NewTopic as AioNewTopic
from aiokafka.admin.config_resource import ConfigResource as AioConfigResource
from confluent_kafka import ConsumerGroupTopicPartitions
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)
from kafka import TopicPartition as KafkaPartition
from kafka.admin import ConfigResource as KafkaConfigResource
from kafka.admin import KafkaAdminClient
from kafka.admin import NewTopic as KafkaNewTopic

from minibroker.client.blocking import Admin
from tests.interop.clients import NEEDS_KCAT, Confluent, Record, Settings, kcat, make_topic
from tests.interop.features import Feature, shows
from tests.support.processes import BrokerProcess, ClusterProcesses, running_cluster

TIMEOUT_S: Final = 30.0
PARTITIONS: Final = 3
RETENTION: Final = "retention.ms"
SEGMENT: Final = "segment.bytes"
COUNT: Final = 10
CUT: Final = 4


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcesses]:
    """Three brokers."""
    with running_cluster(tmp_path_factory.mktemp("admin") / "cluster") as running:
        yield running


@pytest.fixture(params=["one broker", "three brokers"])
def bootstrap(request: pytest.FixtureRequest, broker: BrokerProcess) -> str:
    """The addresses of either."""
    if request.param == "one broker":
        return broker.address
    return request.getfixturevalue("cluster").addresses


def settings(bootstrap: str, topic: str) -> tuple[str | None, str | None]:
    """What the topic's own settings are, as our admin client sees them; None for a default."""
    with Admin(bootstrap) as admin:
        [configs] = admin.describe_configs(topic).values()
    found = {one.name: None if one.is_default else one.value for one in configs}
    return found[RETENTION], found[SEGMENT]


def partitions(bootstrap: str, topic: str) -> int | None:
    """How many the topic has; None if there is no such topic."""
    with Admin(bootstrap) as admin:
        if topic not in admin.list_topics():
            return None
        return len(admin.describe_topics(topic)[0].partitions)


def fill(bootstrap: str, topic: str) -> None:
    """Ten records in one partition."""
    make_topic(bootstrap, topic)
    Confluent().write(bootstrap, topic, 0, [Record(b"%d" % n) for n in range(COUNT)], Settings())


def beginning(bootstrap: str, topic: str) -> int:
    """The first offset that partition 0 has."""
    with Admin(bootstrap) as admin:
        [found] = admin.list_offsets([(topic, 0)], -2).values()
    return found.offset


def commit(bootstrap: str, topic: str) -> None:
    """Make a group of the topic's name that has a commit and no members."""
    make_topic(bootstrap, topic)
    with Admin(bootstrap) as admin:
        admin.commit_offsets(topic, {(topic, 0): 0})


def groups(bootstrap: str) -> set[str]:
    """The names of all groups."""
    with Admin(bootstrap) as admin:
        return {one.group_id for one in admin.list_groups().groups}


@pytest.fixture
def kafka_admin(bootstrap: str) -> Iterator[KafkaAdminClient]:
    """That of kafka-python."""
    admin = KafkaAdminClient(bootstrap_servers=bootstrap.split(","))
    yield admin
    admin.close()


@pytest.fixture
def confluent_admin(bootstrap: str) -> AdminClient:
    """That of confluent-kafka."""
    return AdminClient({"bootstrap.servers": bootstrap})


def with_aiokafka(bootstrap: str, act: Callable[[AIOKafkaAdminClient], Awaitable[None]]) -> None:
    """Run `act` with the admin client of aiokafka."""

    async def run() -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
        await admin.start()
        try:
            await act(admin)
        finally:
            await admin.close()

    asyncio.run(asyncio.wait_for(run(), TIMEOUT_S))


@shows(Feature.TOPICS, "confluent-kafka")
def test_topics_by_confluent(bootstrap: str, topic: str, confluent_admin: AdminClient) -> None:
    """Created, listed, given partitions, deleted."""
    confluent_admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(TIMEOUT_S)
    found = confluent_admin.list_topics(timeout=TIMEOUT_S).topics[topic]
    assert len(found.partitions) == PARTITIONS
    more = confluent_admin.create_partitions([NewPartitions(topic, PARTITIONS + 1)])
    more[topic].result(TIMEOUT_S)
    assert partitions(bootstrap, topic) == PARTITIONS + 1
    confluent_admin.delete_topics([topic])[topic].result(TIMEOUT_S)
    assert topic not in confluent_admin.list_topics(timeout=TIMEOUT_S).topics
    assert partitions(bootstrap, topic) is None


@shows(Feature.TOPICS, "kafka-python")
def test_topics_by_kafka_python(bootstrap: str, topic: str, kafka_admin: KafkaAdminClient) -> None:
    """Created, listed, described, given partitions, deleted."""
    kafka_admin.create_topics([KafkaNewTopic(topic, PARTITIONS, 1)])
    assert topic in kafka_admin.list_topics()
    [described] = kafka_admin.describe_topics([topic])
    assert len(described["partitions"]) == PARTITIONS
    kafka_admin.create_partitions({topic: PARTITIONS + 1})
    assert partitions(bootstrap, topic) == PARTITIONS + 1
    kafka_admin.delete_topics([topic])
    assert partitions(bootstrap, topic) is None


@shows(Feature.TOPICS, "aiokafka")
def test_topics_by_aiokafka(bootstrap: str, topic: str) -> None:
    """Created, listed, described, given partitions, deleted."""

    async def act(admin: AIOKafkaAdminClient) -> None:
        await admin.create_topics([AioNewTopic(topic, PARTITIONS, 1)])
        assert topic in await admin.list_topics()
        [described] = await admin.describe_topics([topic])
        assert len(described["partitions"]) == PARTITIONS
        await admin.create_partitions({topic: AioNewPartitions(PARTITIONS + 1)})
        assert await asyncio.to_thread(partitions, bootstrap, topic) == PARTITIONS + 1
        await admin.delete_topics([topic])

    with_aiokafka(bootstrap, act)
    assert partitions(bootstrap, topic) is None


@NEEDS_KCAT
@shows(Feature.TOPICS, "kcat")
def test_topics_by_kcat(bootstrap: str, topic: str) -> None:
    """Listed, which is all that it can."""
    make_topic(bootstrap, topic, PARTITIONS)
    listed = kcat("-L", "-b", bootstrap, "-t", topic).decode()
    assert f'topic "{topic}" with {PARTITIONS} partitions' in listed


@shows(Feature.CONFIGS, "confluent-kafka")
def test_settings_by_confluent(bootstrap: str, topic: str, confluent_admin: AdminClient) -> None:
    """The incremental way leaves alone what it does not name, the older one takes it back."""
    make_topic(bootstrap, topic)
    entry = ConfigEntry(SEGMENT, "2000000", incremental_operation=AlterConfigOpType.SET)
    change = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    confluent_admin.incremental_alter_configs([change])[change].result(TIMEOUT_S)
    assert settings(bootstrap, topic) == ("-1", "2000000")
    change = ConfigResource(ResourceType.TOPIC, topic, set_config={RETENTION: "7000"})
    with pytest.deprecated_call():
        confluent_admin.alter_configs([change])[change].result(TIMEOUT_S)
    assert settings(bootstrap, topic) == ("7000", None)
    asked = ConfigResource(ResourceType.TOPIC, topic)
    described = confluent_admin.describe_configs([asked])[asked].result(TIMEOUT_S)
    assert described[RETENTION].value == "7000"
    entry = ConfigEntry(RETENTION, "", incremental_operation=AlterConfigOpType.DELETE)
    change = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    confluent_admin.incremental_alter_configs([change])[change].result(TIMEOUT_S)
    assert settings(bootstrap, topic) == (None, None)


@pytest.mark.parametrize("incremental", [True, False], ids=["incremental", "legacy"])
@shows(Feature.CONFIGS, "kafka-python")
def test_settings_by_kafka_python(
    bootstrap: str, topic: str, kafka_admin: KafkaAdminClient, incremental: bool
) -> None:
    """Either way what is not named stays: for the older one the library itself sends the rest."""
    make_topic(bootstrap, topic)
    change = KafkaConfigResource("topic", topic, {SEGMENT: "2000000"})
    kafka_admin.alter_configs([change], incremental=incremental)
    assert settings(bootstrap, topic) == ("-1", "2000000")
    asked = KafkaConfigResource("topic", topic)
    described = kafka_admin.describe_configs([asked])["topic"][topic]
    assert described[SEGMENT]["value"] == "2000000"


@shows(Feature.CONFIGS, "aiokafka")
def test_settings_by_aiokafka(bootstrap: str, topic: str) -> None:
    """It has the older way only, in which what is not named goes back to its default."""
    make_topic(bootstrap, topic)

    async def act(admin: AIOKafkaAdminClient) -> None:
        await admin.alter_configs([AioConfigResource("topic", topic, {SEGMENT: "2000000"})])
        [answer] = await admin.describe_configs([AioConfigResource("topic", topic)])
        [described] = answer.resources
        assert described[0] == 0
        assert [each[1] for each in described[4] if each[0] == SEGMENT] == ["2000000"]

    with_aiokafka(bootstrap, act)
    assert settings(bootstrap, topic) == (None, "2000000")


@shows(Feature.RECORDS, "confluent-kafka")
def test_records_are_deleted_by_confluent(
    bootstrap: str, topic: str, confluent_admin: AdminClient
) -> None:
    """The partition begins at the offset that was given."""
    fill(bootstrap, topic)
    partition = confluent_kafka.TopicPartition(topic, 0, CUT)
    [future] = confluent_admin.delete_records([partition]).values()
    assert future.result(TIMEOUT_S).low_watermark == CUT
    assert beginning(bootstrap, topic) == CUT


@shows(Feature.RECORDS, "kafka-python")
def test_records_are_deleted_by_kafka_python(
    bootstrap: str, topic: str, kafka_admin: KafkaAdminClient
) -> None:
    """The partition begins at the offset that was given."""
    fill(bootstrap, topic)
    kafka_admin.delete_records({KafkaPartition(topic, 0): CUT})
    assert beginning(bootstrap, topic) == CUT


@shows(Feature.RECORDS, "aiokafka")
def test_records_are_deleted_by_aiokafka(bootstrap: str, topic: str) -> None:
    """The partition begins at the offset that was given."""
    fill(bootstrap, topic)

    async def act(admin: AIOKafkaAdminClient) -> None:
        partition = AioPartition(topic, 0)
        answer = await admin.delete_records({partition: RecordsToDelete(CUT)})
        assert answer[partition] == CUT

    with_aiokafka(bootstrap, act)
    assert beginning(bootstrap, topic) == CUT


@shows(Feature.GROUPS, "confluent-kafka")
def test_groups_by_confluent(bootstrap: str, topic: str, confluent_admin: AdminClient) -> None:
    """A group that has commits only is listed, described as empty, and deleted."""
    commit(bootstrap, topic)
    listed = confluent_admin.list_consumer_groups().result(TIMEOUT_S)
    assert topic in [group.group_id for group in listed.valid]
    described = confluent_admin.describe_consumer_groups([topic])[topic].result(TIMEOUT_S)
    assert described.state == confluent_kafka.ConsumerGroupState.EMPTY
    [offsets] = confluent_admin.list_consumer_group_offsets(
        [ConsumerGroupTopicPartitions(topic)]
    ).values()
    assert [one.offset for one in offsets.result(TIMEOUT_S).topic_partitions] == [0]
    confluent_admin.delete_consumer_groups([topic])[topic].result(TIMEOUT_S)
    assert topic not in groups(bootstrap)


@shows(Feature.GROUPS, "kafka-python")
def test_groups_by_kafka_python(bootstrap: str, topic: str, kafka_admin: KafkaAdminClient) -> None:
    """A group that has commits only is listed, described as empty, and deleted."""
    commit(bootstrap, topic)
    assert topic in str(kafka_admin.list_groups())
    assert "empty" in str(kafka_admin.describe_groups([topic])[topic]).lower()
    kafka_admin.delete_groups([topic])
    assert topic not in groups(bootstrap)


@shows(Feature.GROUPS, "aiokafka")
def test_groups_by_aiokafka(bootstrap: str, topic: str) -> None:
    """A group that has commits only is listed and described; the library cannot delete it."""
    commit(bootstrap, topic)

    async def act(admin: AIOKafkaAdminClient) -> None:
        listed: list[tuple[Any, ...]] = await admin.list_consumer_groups()
        assert topic in [one[0] for one in listed]
        [answer] = await admin.describe_consumer_groups([topic])
        assert "Empty" in str(answer)
        offsets = await admin.list_consumer_group_offsets(topic)
        assert offsets[AioPartition(topic, 0)].offset == 0

    with_aiokafka(bootstrap, act)
