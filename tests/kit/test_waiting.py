"""Each waiter returns what it waited for, and says what was there instead when it does not come."""

import re
import unittest
from collections.abc import Callable

import pytest

from minibroker.testing import KafkaCluster, WaitTimeout, running_cluster

SOON_S = 0.2
NEVER = 1_000


def send(cluster: KafkaCluster, topic: str, count: int = 1) -> None:
    """So many records."""
    with cluster.producer() as producer:
        for _ in range(count):
            producer.send(topic, b"x").result(10)


def test_a_leader(kafka_cluster: KafkaCluster) -> None:
    """Another one when the first is gone."""
    topic = kafka_cluster.topic()
    first = kafka_cluster.wait_for_leader(topic)
    with kafka_cluster.kill(first):
        assert kafka_cluster.wait_for_leader(topic) not in {-1, first}


def test_replicas_in_sync(kafka_cluster: KafkaCluster) -> None:
    """So many, or all."""
    topic = kafka_cluster.topic()
    with kafka_cluster.kill(2):
        assert 2 not in kafka_cluster.wait_for_isr(topic, count=2)
    assert sorted(kafka_cluster.wait_for_isr(topic)) == [1, 2, 3]


def test_a_high_watermark(kafka_broker: KafkaCluster) -> None:
    """At least so far."""
    topic = kafka_broker.topic()
    send(kafka_broker, topic, 3)
    assert kafka_broker.wait_for_high_watermark(topic, 2) == 3


def test_a_commit_and_a_group(kafka_broker: KafkaCluster) -> None:
    """Of one member, and then of none."""
    topic = kafka_broker.topic()
    send(kafka_broker, topic, 3)
    with kafka_broker.consumer(group_id=topic) as consumer:
        consumer.subscribe(topic)
        assert consumer.poll(10)
        [member] = kafka_broker.wait_for_group(topic, members=1).members
        assert member.client_id
        assert kafka_broker.coordinator(topic) == 1
        consumer.commit()
        assert kafka_broker.wait_for_commit(topic, topic, 1) >= 1
    assert not kafka_broker.wait_for_group(topic, "Empty").members


def test_balance(kafka_cluster: KafkaCluster) -> None:
    """Leaders come back to their preferred replicas after a failover."""
    topic = kafka_cluster.topic(partitions=3)
    kafka_cluster.wait_until_balanced()
    preferred = kafka_cluster.leader(topic, 1)
    with kafka_cluster.kill(preferred):
        assert kafka_cluster.leader(topic, 1) != preferred
    kafka_cluster.wait_until_balanced()
    assert kafka_cluster.leader(topic, 1) == preferred


@pytest.mark.parametrize(
    ("wait", "said"),
    [
        (
            lambda cluster, topic: cluster.wait_for_isr(topic, count=3, timeout_s=SOON_S),
            r"3 replicas of \S+-0 in sync; now: \S+-0: broker 1 leads; in sync are 1 of 1",
        ),
        (
            lambda cluster, topic: cluster.wait_for_high_watermark(topic, NEVER, timeout_s=SOON_S),
            r"the high watermark 1000 of \S+-0; now: it is 0, and the log ends at 0",
        ),
        (
            lambda cluster, topic: cluster.wait_for_commit("g", topic, 5, timeout_s=SOON_S),
            r"group 'g' to commit 5 of \S+-0; now: it has committed nothing",
        ),
        (
            lambda cluster, topic: cluster.wait_for_group("g", timeout_s=SOON_S),
            r"group 'g' to be Stable; now: BrokerError: GROUP_ID_NOT_FOUND",
        ),
        (
            lambda cluster, topic: cluster.wait_for_leader("nowhere", timeout_s=SOON_S),
            r"a leader of nowhere-0; now: BrokerError: UNKNOWN_TOPIC_OR_PARTITION",
        ),
    ],
    ids=["isr", "high watermark", "commit", "group", "leader"],
)
def test_what_does_not_come_is_told(
    kafka_broker: KafkaCluster, wait: Callable[[KafkaCluster, str], object], said: str
) -> None:
    """With the deadline, what was waited for, and what was there."""
    topic = kafka_broker.topic()
    with pytest.raises(WaitTimeout) as caught:
        wait(kafka_broker, topic)
    assert re.search(f"waited 0.2 s for {said}", str(caught.value)), caught.value


def test_a_topic_has_a_name_that_tells_its_test(kafka_broker: KafkaCluster) -> None:
    """And no other has it."""
    names = [kafka_broker.topic() for _ in range(2)]
    assert len(set(names)) == 2
    assert all(name.startswith("test_a_topic_has_a_name_that_tells_its_test-") for name in names)


class TestUnittest(unittest.TestCase):
    """Without fixtures, by a context manager."""

    cluster: KafkaCluster

    def setUp(self) -> None:
        """A broker for each test."""
        self.cluster = self.enterContext(running_cluster(brokers=1))

    def test_a_record(self) -> None:
        """Comes back."""
        topic = self.cluster.topic("orders")
        send(self.cluster, topic)
        assert self.cluster.wait_for_high_watermark("orders", 1) == 1
