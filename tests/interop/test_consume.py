"""Consumers of each library: seeks, offsets for times, simple commits, static members, and what is
refused."""

import asyncio
from typing import Final

import aiokafka
import confluent_kafka
import kafka
import pytest
from kafka.coordinator.assignors.cooperative_sticky import (
    CooperativeStickyAssignor,
)
from kafka.coordinator.assignors.range import RangePartitionAssignor

from tests.interop.clients import Confluent, Record, Settings, make_topic
from tests.interop.features import Feature, shows

COUNT: Final = 10
FIRST_MS: Final = 1_700_000_000_000
TIMEOUT_S: Final = 10.0


@pytest.fixture
def filled(bootstrap: str, topic: str) -> str:
    """A topic of ten records in one partition, a second after each other."""
    make_topic(bootstrap, topic)
    records = [Record(b"%d" % n, timestamp_ms=FIRST_MS + 1000 * n) for n in range(COUNT)]
    Confluent().write(bootstrap, topic, 0, records, Settings())
    return topic


@shows(Feature.SEEK, "kafka-python")
@shows(Feature.COMMIT, "kafka-python")
def test_kafka_python_seeks_and_commits(bootstrap: str, filled: str) -> None:
    """Offsets by place and by time, and commits of a consumer that is no member."""
    partition = kafka.TopicPartition(filled, 0)
    consumer = kafka.KafkaConsumer(bootstrap_servers=bootstrap, group_id=f"{filled}-simple")
    try:
        consumer.assign([partition])
        assert consumer.beginning_offsets([partition]) == {partition: 0}
        assert consumer.end_offsets([partition]) == {partition: COUNT}
        found = consumer.offsets_for_times({partition: FIRST_MS + 2500})
        assert found[partition].offset == 3
        consumer.seek(partition, 7)
        assert next(consumer).value == b"7"
        consumer.commit()
        assert consumer.committed(partition) == 8
    finally:
        consumer.close()


@shows(Feature.SEEK, "confluent-kafka")
@shows(Feature.COMMIT, "confluent-kafka")
def test_confluent_seeks_and_commits(bootstrap: str, filled: str) -> None:
    """Offsets by place and by time, and a synchronous commit of a consumer that is no member."""
    partition = confluent_kafka.TopicPartition
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": f"{filled}-simple"}
    )
    try:
        assert consumer.get_watermark_offsets(partition(filled, 0)) == (0, COUNT)
        [found] = consumer.offsets_for_times([partition(filled, 0, FIRST_MS + 2500)])
        assert found.offset == 3
        consumer.assign([partition(filled, 0, 7)])
        record = consumer.poll(TIMEOUT_S)
        assert record is not None
        assert record.value() == b"7"
        consumer.commit(record, asynchronous=False)
        [committed] = consumer.committed([partition(filled, 0)])
        assert committed.offset == 8
    finally:
        consumer.close()


@pytest.mark.parametrize("assignor", ["range", "cooperative-sticky"])
@shows(Feature.STATIC, "confluent-kafka")
@shows(Feature.COOPERATIVE, "confluent-kafka")
def test_a_static_member_of_confluent_comes_back(
    bootstrap: str, filled: str, assignor: str
) -> None:
    """A consumer that is closed and comes back under its instance id has its partitions and its
    commits at once."""
    group = {
        "bootstrap.servers": bootstrap,
        "group.id": f"{filled}-{assignor}",
        "group.instance.id": "one",
        "auto.offset.reset": "earliest",
        "partition.assignment.strategy": assignor,
    }
    read = []
    for _ in range(2):
        consumer = confluent_kafka.Consumer(group)
        consumer.subscribe([filled])
        record = consumer.poll(TIMEOUT_S)
        assert record is not None
        read.append(record.value())
        consumer.commit(record, asynchronous=False)
        consumer.close()
    assert read == [b"0", b"1"]


@pytest.mark.parametrize(
    "assignor", [RangePartitionAssignor, CooperativeStickyAssignor], ids=["range", "cooperative"]
)
@shows(Feature.STATIC, "kafka-python")
@shows(Feature.COOPERATIVE, "kafka-python")
def test_a_static_member_of_kafka_python_comes_back(
    bootstrap: str, filled: str, assignor: type
) -> None:
    """As above."""
    read = []
    for _ in range(2):
        consumer = kafka.KafkaConsumer(
            filled,
            bootstrap_servers=bootstrap,
            group_id=f"{filled}-group",
            group_instance_id="one",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            partition_assignment_strategy=[assignor],
            max_poll_records=1,
        )
        try:
            read.append(next(consumer).value)
            consumer.commit()
        finally:
            consumer.close()
    assert read == [b"0", b"1"]


@shows(Feature.STATIC, "aiokafka")
def test_a_static_member_of_aiokafka_comes_back(bootstrap: str, filled: str) -> None:
    """As above; it has no cooperative assignor."""

    async def read() -> list[bytes | None]:
        found = []
        for _ in range(2):
            async with aiokafka.AIOKafkaConsumer(
                filled,
                bootstrap_servers=bootstrap,
                group_id=f"{filled}-group",
                group_instance_id="one",
                auto_offset_reset="earliest",
                enable_auto_commit=False,
            ) as consumer:
                found.append((await consumer.getone()).value)
                await consumer.commit()
        return found

    assert asyncio.run(asyncio.wait_for(read(), 2 * TIMEOUT_S)) == [b"0", b"1"]


@shows(Feature.SEEK, "aiokafka")
@shows(Feature.COMMIT, "aiokafka")
def test_aiokafka_seeks_and_commits(bootstrap: str, filled: str) -> None:
    """Offsets by place and by time, and commits of a consumer that is no member."""

    async def read() -> None:
        partition = aiokafka.TopicPartition(filled, 0)
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=bootstrap, group_id=f"{filled}-simple", enable_auto_commit=False
        )
        consumer.assign([partition])
        async with consumer:
            assert await consumer.beginning_offsets([partition]) == {partition: 0}
            assert await consumer.end_offsets([partition]) == {partition: COUNT}
            found = await consumer.offsets_for_times({partition: FIRST_MS + 2500})
            assert found[partition].offset == 3
            consumer.seek(partition, 7)
            assert (await consumer.getone()).value == b"7"
            await consumer.commit()
            assert await consumer.committed(partition) == 8

    asyncio.run(asyncio.wait_for(read(), TIMEOUT_S))
