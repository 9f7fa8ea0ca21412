"""A bug of librdkafka that users and tests of groups must know: docs/kafka.md, "Bugs of clients".

librdkafka does not drop a response to LIST_OFFSETS that comes after its partition was revoked. It
asks again 500 ms later, and moves the partition to the answer, even if by then it has the partition
again and reads it from the committed offset. When this test fails because librdkafka was corrected,
`commit_beginnings` is not needed any more.
"""

import time
from collections.abc import Callable
from typing import Final

import confluent_kafka
import pytest

from minibroker.testing import KafkaCluster
from tests.interop.members import Member

CLIENT: Final = "confluent"
OTHER: Final = "another"  # range gives the first partition to this one
WAIT_S_MAX: Final = 30.0
LOOK_EVERY_S: Final = 0.02
POLL_S: Final = 0.05


def run_confluent(member: Member, cluster: KafkaCluster, topic: str) -> None:
    """Read as a member of a group of the topic's name."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": topic,
            "client.id": CLIENT,
            "auto.offset.reset": "earliest",
            "heartbeat.interval.ms": 200,
            "partition.assignment.strategy": "range",
        }
    )
    consumer.subscribe([topic])
    while not member.leaving.is_set():
        one = consumer.poll(POLL_S)
        if one is not None and one.partition() == 0:
            assert one.error() is None, one.error()
            member.values.append(one.value())
    consumer.close()


def run_other(member: Member, cluster: KafkaCluster, topic: str) -> None:
    """Read in the same group with minibroker's client."""
    with cluster.consumer(
        client_id=OTHER,
        group_id=topic,
        heartbeat_interval_ms=200,
        partition_assignment_strategy="range",
    ) as consumer:
        consumer.subscribe(topic)
        while not member.leaving.is_set():
            found = consumer.poll(POLL_S)
            member.values += [one.value for one in found if one.partition == 0]


def wait_until(is_true: Callable[[], object]) -> None:
    """Look again and again."""
    deadline = time.monotonic() + WAIT_S_MAX
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(LOOK_EVERY_S)


@pytest.mark.soak
def test_a_late_offset_rewinds_a_partition(kafka_broker: KafkaCluster) -> None:
    """The first partition goes to another member and comes back. librdkafka then reads a record
    that the other member has read and committed."""
    topic = kafka_broker.topic(partitions=2)

    def ask_count() -> int:
        requests = kafka_broker.requests(client_id=CLIENT)
        return sum(one.partitions == ((topic, 0),) for one in requests if one.api == "LIST_OFFSETS")

    def send(value: bytes) -> None:
        with kafka_broker.producer() as producer:
            producer.send(topic, value, partition=0).result()

    first = kafka_broker.hold("LIST_OFFSETS", client_id=CLIENT)
    confluent = Member(run_confluent, kafka_broker, topic)
    try:
        wait_until(ask_count)
        other = Member(run_other, kafka_broker, topic)
        try:
            kafka_broker.wait_for_group(topic, "Stable", members=2)
            asked = ask_count()
            second = kafka_broker.hold("LIST_OFFSETS", client_id=CLIENT)
            first.undo()
            send(b"before")
            wait_until(lambda: other.values)
            wait_until(lambda: ask_count() > asked)
        finally:
            other.leave()
        kafka_broker.wait_for_group(topic, "Stable", members=1)
        assert kafka_broker.committed(topic)[topic, 0].offset == 1
        second.undo()
        wait_until(lambda: confluent.values)
    finally:
        confluent.leave()
    assert confluent.values == [b"before"]
