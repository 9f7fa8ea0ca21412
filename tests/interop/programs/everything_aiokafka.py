"""everything_aiokafka.py BOOTSTRAP NAME: aiokafka does once what a client can do.

Topics and groups have names that begin with NAME. Most answers of the admin client hold the errors:
it does not raise them.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import KafkaError

BOOTSTRAP, NAME = sys.argv[1:]
MADE_BY_USE = f"{NAME}-used"
UNKNOWN = f"{NAME}-unknown"
PARTITIONS = 3
RECORDS = 30
TOO_LARGE = bytes(2_000_000)
WAIT_S_MAX = 30.0
POLL_MS = 100


async def refused(call: Awaitable[object]) -> None:
    """Check that a call raises an error of Kafka's."""
    try:
        answer = await call
    except KafkaError:
        return
    raise AssertionError(f"it was not refused: {answer}")


def topic_settings(**settings: str) -> ConfigResource:
    """Settings of the topic, with underscores for dots."""
    configs = {name.replace("_", "."): value for name, value in settings.items()}
    return ConfigResource(ConfigResourceType.TOPIC, NAME, configs or None)


async def topics(admin: AIOKafkaAdminClient) -> None:
    """Create, describe, grow and alter them."""
    new = NewTopic(NAME, PARTITIONS - 1, 1, topic_configs={"retention.ms": "100000000"})
    await admin.create_topics([new])
    await admin.create_topics([new, NewTopic("a b", 1, 1), NewTopic(f"{NAME}-9", 1, 9)])
    await admin.create_topics([NewTopic(f"{NAME}-checked", 1, 1)], validate_only=True)
    await admin.create_partitions({NAME: NewPartitions(PARTITIONS)})
    await refused(admin.create_partitions({NAME: NewPartitions(1)}))
    await refused(admin.create_partitions({UNKNOWN: NewPartitions(2)}))
    await admin.list_topics()
    await admin.describe_topics([NAME])
    await admin.describe_cluster()
    await admin.alter_configs([topic_settings(segment_bytes="2000000")])
    await admin.alter_configs([topic_settings(segment_bytes="odd")])
    await admin.describe_configs([topic_settings()], include_synonyms=True)
    await admin.describe_configs([ConfigResource(ConfigResourceType.BROKER, "1")])


async def produce(topic: str, values: list[bytes], **settings: Any) -> None:
    """Send records, and wait until they are acknowledged."""
    async with AIOKafkaProducer(
        bootstrap_servers=BOOTSTRAP,
        max_request_size=5_000_000,
        **settings,
    ) as producer:
        for value in values:
            await producer.send_and_wait(topic, value, key=value[:8])


async def records(admin: AIOKafkaAdminClient) -> None:
    """Produce them, and delete some."""
    values = [b"%d" % number for number in range(RECORDS)]
    await produce(NAME, values, acks="all", enable_idempotence=True, compression_type="zstd")
    await produce(NAME, values, acks=1, compression_type="gzip")
    await produce(NAME, values, acks=0)
    await produce(MADE_BY_USE, [b"value"])
    await refused(produce(NAME, [TOO_LARGE]))
    await admin.delete_records({TopicPartition(NAME, 0): RecordsToDelete(5)})


async def consumer(group: str) -> AIOKafkaConsumer:
    """A member of a group."""
    member = AIOKafkaConsumer(
        NAME,
        bootstrap_servers=BOOTSTRAP,
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        heartbeat_interval_ms=200,
    )
    await member.start()
    return member


async def poll_until(condition: Callable[[], bool], *members: AIOKafkaConsumer) -> None:
    """Poll members until it holds."""
    async with asyncio.timeout(WAIT_S_MAX):
        while not condition():
            for member in members:
                await member.getmany(timeout_ms=POLL_MS)


async def group(admin: AIOKafkaAdminClient, name: str) -> None:
    """Two members, which share the partitions and commit; the second leaves before the first."""
    first = await consumer(name)
    await poll_until(lambda: len(first.assignment()) == PARTITIONS, first)
    second = await consumer(name)
    both = (first, second)
    await poll_until(lambda: bool(second.assignment()), *both)
    await poll_until(lambda: sum(len(one.assignment()) for one in both) == PARTITIONS, *both)
    offsets = dict.fromkeys(first.assignment(), 7)
    await first.commit(offsets)
    for one in offsets:
        await first.committed(one)
    partition = TopicPartition(NAME, 0)
    await first.offsets_for_times({partition: 1_000})
    await first.beginning_offsets([partition])
    await first.end_offsets([partition])
    await admin.describe_consumer_groups([name])
    await second.stop()
    await poll_until(lambda: len(first.assignment()) == PARTITIONS, first)
    await first.stop()
    await admin.list_consumer_groups()
    await admin.describe_consumer_groups([name])
    await admin.list_consumer_group_offsets(name)


async def everything() -> None:
    """In the order of a topic's life."""
    admin = AIOKafkaAdminClient(bootstrap_servers=BOOTSTRAP)
    await admin.start()
    try:
        await topics(admin)
        await records(admin)
        await group(admin, f"{NAME}-group")
        await admin.list_consumer_group_offsets(f"{NAME}-none")
        await admin.delete_topics([NAME, UNKNOWN])
    finally:
        await admin.close()


asyncio.run(everything())
