"""everything_kafka_python.py BOOTSTRAP NAME: kafka-python does once what a client can do.

Topics and groups have names that begin with NAME. The program fails if a call fails that should
not, or does not fail that should.
"""

import sys
import time
from collections.abc import Callable
from typing import Any

from kafka import KafkaConsumer, KafkaProducer, OffsetAndMetadata, TopicPartition
from kafka.admin import (
    ConfigResource,
    KafkaAdminClient,
    NewTopic,
    OffsetSpec,
    OffsetTimestamp,
)
from kafka.errors import KafkaError

BOOTSTRAP, NAME = sys.argv[1:]
MADE_BY_USE = f"{NAME}-used"
UNKNOWN = f"{NAME}-unknown"
PARTITIONS = 3
RECORDS = 30
TOO_LARGE = bytes(2_000_000)
WAIT_S_MAX = 30.0
POLL_MS = 100
admin = KafkaAdminClient(bootstrap_servers=BOOTSTRAP)


def refused(call: Callable[..., Any], *arguments: Any, **named: Any) -> None:
    """Check that a call raises an error of Kafka's."""
    try:
        answer = call(*arguments, **named)
    except KafkaError:
        return
    raise AssertionError(f"{call} was not refused: {answer}")


def topics() -> None:
    """Create, describe, grow and alter them."""
    settings = {"retention.ms": "100000000"}
    new = NewTopic(NAME, PARTITIONS - 1, 1, topic_configs=settings)
    admin.create_topics([new])
    for wrong in (new, NewTopic("a b", 1, 1), NewTopic(f"{NAME}-9", 1, 9)):
        refused(admin.create_topics, [wrong])
    admin.create_topics([NewTopic(f"{NAME}-checked", 1, 1)], validate_only=True)
    admin.create_partitions({NAME: PARTITIONS})
    refused(admin.create_partitions, {NAME: 1})
    refused(admin.create_partitions, {UNKNOWN: 2})
    admin.list_topics()
    admin.describe_topics([NAME, UNKNOWN])
    admin.describe_topic_partitions([NAME])
    admin.describe_cluster()
    admin.describe_log_dirs()
    admin.describe_features()
    admin.elect_leaders(0, {NAME: [0]}, raise_errors=False)
    admin.list_config_resources()
    for incremental in (True, False):
        change = ConfigResource("topic", NAME, {"segment.bytes": "2000000"})
        admin.alter_configs([change], incremental=incremental)
        wrong = ConfigResource("topic", NAME, {"segment.bytes": "odd"})
        admin.alter_configs([wrong], incremental=incremental)
    resources = [ConfigResource("topic", NAME), ConfigResource("broker", "1")]
    admin.describe_configs(resources, include_synonyms=True, config_filter="all")
    admin.reset_configs([ConfigResource("topic", NAME, {"segment.bytes": None})])


def produce(topic: str, values: list[bytes], **settings: Any) -> None:
    """Send records, and wait until they are acknowledged."""
    producer = KafkaProducer(bootstrap_servers=BOOTSTRAP, max_request_size=5_000_000, **settings)
    try:
        for future in [producer.send(topic, value, key=value[:8]) for value in values]:
            future.get(WAIT_S_MAX)
    finally:
        producer.close()


def records() -> None:
    """Produce them, ask for offsets, and delete some."""
    values = [b"%d" % number for number in range(RECORDS)]
    produce(NAME, values, acks="all", enable_idempotence=True, compression_type="zstd")
    produce(NAME, values, acks=1, enable_idempotence=False, compression_type="gzip")
    produce(NAME, values, acks=0, enable_idempotence=False)
    refused(produce, NAME, [TOO_LARGE])
    produce(MADE_BY_USE, [b"value"])
    partition = TopicPartition(NAME, 0)
    for spec in (
        OffsetSpec.EARLIEST,
        OffsetSpec.LATEST,
        OffsetSpec.MAX_TIMESTAMP,
        OffsetTimestamp(1_000),
        OffsetTimestamp(2**50),
    ):
        admin.list_partition_offsets({partition: spec})
    admin.delete_records({partition: 5})
    refused(admin.delete_records, {TopicPartition(NAME, 1): 999_999})


def consumer(group: str) -> KafkaConsumer:
    """A member of a group."""
    member = KafkaConsumer(
        bootstrap_servers=BOOTSTRAP,
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        heartbeat_interval_ms=200,
    )
    member.partitions_for_topic(NAME)  # docs/kafka.md, bugs of clients
    member.subscribe([NAME])
    return member


def poll_until(condition: Callable[[], bool], *members: KafkaConsumer) -> None:
    """Poll members until it holds."""
    deadline = time.monotonic() + WAIT_S_MAX
    while not condition():
        assert time.monotonic() < deadline, [member.assignment() for member in members]
        for member in members:
            member.poll(POLL_MS)


def group(name: str) -> None:
    """Two members, which share the partitions and commit; the second leaves before the first."""
    first = consumer(name)
    poll_until(lambda: len(first.assignment()) == PARTITIONS, first)
    second = consumer(name)
    both = (first, second)
    poll_until(lambda: bool(second.assignment()), *both)
    poll_until(lambda: sum(len(one.assignment()) for one in both) == PARTITIONS, *both)
    offsets = {one: OffsetAndMetadata(7, "", -1) for one in first.assignment()}
    first.commit(offsets)
    for one in offsets:
        first.committed(one)
    partition = TopicPartition(NAME, 0)
    first.offsets_for_times({partition: 1_000})
    first.beginning_offsets([partition])
    first.end_offsets([partition])
    admin.describe_groups([name])
    admin.delete_groups([name])
    second.close()
    poll_until(lambda: len(first.assignment()) == PARTITIONS, first)
    first.close()
    admin.list_groups()
    admin.describe_groups([name])
    admin.list_group_offsets([name])
    admin.alter_group_offsets(name, {partition: OffsetAndMetadata(9, "", -1)})
    admin.delete_group_offsets(name, [partition])
    admin.delete_groups([name])


def groups() -> None:
    """One, and one that does not exist."""
    group(f"{NAME}-group")
    admin.delete_groups([f"{NAME}-none"])
    admin.list_group_offsets([f"{NAME}-none"])


def removal() -> None:
    """Delete the topic, and one that does not exist."""
    admin.delete_topics([NAME])
    refused(admin.delete_topics, [UNKNOWN])


topics()
records()
groups()
removal()
admin.close()
