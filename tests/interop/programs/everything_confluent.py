"""everything_confluent.py BOOTSTRAP NAME: confluent-kafka does once what a client can do.

Topics and groups have names that begin with NAME. The program fails if a call fails that should
not, or does not fail that should.
"""

import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    ElectionType,
    IsolationLevel,
    KafkaException,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

BOOTSTRAP, NAME = sys.argv[1:]
MADE_BY_USE = f"{NAME}-used"
UNKNOWN = f"{NAME}-unknown"
PARTITIONS = 3
RECORDS = 30
TOO_LARGE = bytes(2_000_000)
WAIT_S_MAX = 30.0
POLL_S = 0.1
admin = AdminClient({"bootstrap.servers": BOOTSTRAP})


def done(futures: dict[Any, Any]) -> list[Any]:
    """Wait for all answers, and return them."""
    return [future.result(WAIT_S_MAX) for future in futures.values()]


def refused(futures: dict[Any, Any]) -> None:
    """Check that each is refused."""
    for what, future in futures.items():
        try:
            future.result(WAIT_S_MAX)
        except KafkaException:
            continue
        raise AssertionError(f"{what} was not refused")


def setting(topic: str, name: str, value: str | None) -> ConfigResource:
    """A change of a topic's setting; None takes it back."""
    kind = AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET
    entry = ConfigEntry(name, value or "", incremental_operation=kind)
    return ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])


def topics() -> None:
    """Create, describe, grow and alter them."""
    new = NewTopic(NAME, PARTITIONS - 1, 1, config={"retention.ms": "100000000"})
    done(admin.create_topics([new]))
    refused(admin.create_topics([new, NewTopic("a b", 1, 1), NewTopic(f"{NAME}-9", 1, 9)]))
    done(admin.create_topics([NewTopic(f"{NAME}-checked", 1, 1)], validate_only=True))
    done(admin.create_partitions([NewPartitions(NAME, PARTITIONS)]))
    refused(admin.create_partitions([NewPartitions(NAME, 1), NewPartitions(UNKNOWN, 2)]))
    admin.list_topics(timeout=WAIT_S_MAX)
    done(admin.describe_topics(TopicCollection([NAME]), include_authorized_operations=True))
    refused(admin.describe_topics(TopicCollection([UNKNOWN])))
    admin.describe_cluster(include_authorized_operations=True).result(WAIT_S_MAX)
    admin.elect_leaders(ElectionType.PREFERRED, [TopicPartition(NAME, 0)]).result(WAIT_S_MAX)
    done(admin.incremental_alter_configs([setting(NAME, "segment.bytes", "2000000")]))
    refused(admin.incremental_alter_configs([setting(NAME, "segment.bytes", "odd")]))
    refused(admin.incremental_alter_configs([setting(UNKNOWN, "segment.bytes", "2000000")]))
    resources = [
        ConfigResource(ResourceType.TOPIC, NAME),
        ConfigResource(ResourceType.BROKER, "1"),
    ]
    done(admin.describe_configs(resources))
    refused(admin.describe_configs([ConfigResource(ResourceType.TOPIC, UNKNOWN)]))
    done(admin.incremental_alter_configs([setting(NAME, "segment.bytes", None)]))


def produce(topic: str, values: Iterable[bytes], **settings: Any) -> list[object]:
    """Send records, and return the errors of those that were refused."""
    errors: list[object] = []

    def on_delivery(error: object, _: object) -> None:
        if error is not None:
            errors.append(error)

    producer = Producer(
        {"bootstrap.servers": BOOTSTRAP, "message.max.bytes": 5_000_000, **settings}
    )
    for value in values:
        producer.produce(topic, value, key=value[:8], on_delivery=on_delivery)
    assert not producer.flush(WAIT_S_MAX), "not answered in time"
    return errors


def records() -> None:
    """Produce them, ask for offsets, and delete some."""
    values = [b"%d" % number for number in range(RECORDS)]
    for settings in (
        {"acks": "all", "enable.idempotence": True, "compression.type": "zstd"},
        {"acks": 1, "compression.type": "gzip"},
        {"acks": 0},
    ):
        assert not produce(NAME, values, **settings), settings
    assert produce(NAME, [TOO_LARGE])
    assert not produce(MADE_BY_USE, [b"value"])
    partition = TopicPartition(NAME, 0)
    for spec in (
        OffsetSpec.earliest(),
        OffsetSpec.latest(),
        OffsetSpec.max_timestamp(),
        OffsetSpec.for_timestamp(1_000),
        OffsetSpec.for_timestamp(2**50),
    ):
        done(admin.list_offsets({partition: spec}, isolation_level=IsolationLevel.READ_COMMITTED))
    refused(admin.list_offsets({TopicPartition(NAME, 77): OffsetSpec.latest()}))
    done(admin.delete_records([TopicPartition(NAME, 0, 5)]))
    refused(admin.delete_records([TopicPartition(NAME, 1, 999_999)]))


def consumer(group: str, **settings: Any) -> Consumer:
    """A member of a group."""
    member = Consumer(
        {
            "bootstrap.servers": BOOTSTRAP,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            **settings,
        }
    )
    member.subscribe([NAME])
    return member


def poll_until(condition: Callable[[], bool], *members: Consumer) -> int:
    """Poll members until it holds. Return the number of records."""
    count = 0
    deadline = time.monotonic() + WAIT_S_MAX
    while not condition():
        assert time.monotonic() < deadline, [member.assignment() for member in members]
        count += sum(len(member.consume(RECORDS, POLL_S)) for member in members)
    return count


def group(name: str, **settings: Any) -> None:
    """Two members, which share the partitions and commit; the second leaves before the first."""
    first = consumer(name, **settings)
    poll_until(lambda: len(first.assignment()) == PARTITIONS, first)
    second = consumer(name, **settings)
    poll_until(lambda: bool(second.assignment()), first, second)
    poll_until(lambda: len(first.assignment()) + len(second.assignment()) == PARTITIONS, first)
    offsets = [TopicPartition(one.topic, one.partition, 7) for one in first.assignment()]
    first.commit(offsets=offsets, asynchronous=False)
    first.committed(offsets, timeout=WAIT_S_MAX)
    first.offsets_for_times([TopicPartition(NAME, 0, 1_000)], timeout=WAIT_S_MAX)
    done(admin.describe_consumer_groups([name], include_authorized_operations=True))
    refused(admin.delete_consumer_groups([name]))
    second.close()
    poll_until(lambda: len(first.assignment()) == PARTITIONS, first)
    first.close()
    admin.list_consumer_groups().result(WAIT_S_MAX)
    done(admin.describe_consumer_groups([name]))
    done(admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(name)]))
    changed = ConsumerGroupTopicPartitions(name, [TopicPartition(NAME, 0, 9)])
    done(admin.alter_consumer_group_offsets([changed]))
    done(admin.delete_consumer_groups([name]))


def groups() -> None:
    """One of each protocol, and one that does not exist."""
    classic = {"heartbeat.interval.ms": 200}
    group(f"{NAME}-classic", **classic)
    strategy = {"partition.assignment.strategy": "cooperative-sticky"}
    group(f"{NAME}-cooperative", **classic, **strategy)
    group(f"{NAME}-consumer", **{"group.protocol": "consumer"})
    refused(admin.delete_consumer_groups([f"{NAME}-none"]))
    done(admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(f"{NAME}-none")]))


def removal() -> None:
    """Delete the topic, and one that does not exist."""
    done(admin.delete_topics([NAME]))
    refused(admin.delete_topics([UNKNOWN]))


topics()
records()
groups()
removal()
