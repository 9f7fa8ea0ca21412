"""Groups of the consumer protocol (KIP-848) with confluent-kafka: `group.protocol=consumer`."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient

from minibroker.client import NewTopic
from minibroker.client.blocking import Admin
from tests.support.processes import running_cluster

WAIT_S_MAX: Final = 60.0
POLL_S: Final = 0.05
PARTITIONS: Final = 4
RECORDS: Final = 400


@contextmanager
def consumer(bootstrap: str, group: str, *topics: str, **more: Any) -> Iterator[Any]:
    """A member of a group of the consumer protocol."""
    member = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "group.protocol": "consumer",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            **more,
        }
    )
    try:
        member.subscribe(list(topics))
        yield member
    finally:
        member.close()


def poll_until(
    condition: Callable[[], bool], *members: Any, into: list[bytes] | None = None
) -> list[bytes]:
    """Poll members until something holds; return the records, in a list of the caller's if there is
    one."""
    values: list[bytes] = [] if into is None else into
    deadline = time.monotonic() + WAIT_S_MAX
    while not condition():
        assert time.monotonic() < deadline, [member.assignment() for member in members]
        for member in members:
            message = member.poll(POLL_S)
            if message is not None and message.error() is None:
                values.append(message.value())
    return values


def owned(member: Any) -> set[tuple[str, int]]:
    """The partitions that a member has."""
    return {(each.topic, each.partition) for each in member.assignment()}


def write(bootstrap: str, topic: str, begin: int = 0) -> set[bytes]:
    """Write records into all partitions; return their values."""
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap})
    values = {b"%d" % number for number in range(begin, begin + RECORDS)}
    for number, value in enumerate(sorted(values)):
        producer.produce(topic, value, partition=number % PARTITIONS)
    assert producer.flush(WAIT_S_MAX) == 0
    return values


def describe(bootstrap: str, group: str) -> Any:
    """What confluent-kafka says of a group."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    return admin.describe_consumer_groups([group])[group].result(WAIT_S_MAX)


def test_two_members_divide_a_topic(bootstrap: str, topic: str) -> None:
    """The second one gets half of the partitions once the first has revoked them, and all when the
    first leaves. Each record is read once, since offsets are committed where partitions move."""
    with Admin(bootstrap) as admin:
        admin.create_topics(NewTopic(topic, PARTITIONS, 1))
    values = write(bootstrap, topic)
    with consumer(bootstrap, topic, topic) as second:
        with consumer(bootstrap, topic, topic) as first:
            poll_until(lambda: len(owned(first)) + len(owned(second)) == PARTITIONS, first, second)
            poll_until(lambda: len(owned(first)) == len(owned(second)), first, second)
            assert owned(first).isdisjoint(owned(second))
            group = describe(bootstrap, topic)
            assert group.type == confluent_kafka.ConsumerGroupType.CONSUMER
            assert len(group.members) == 2
            with Admin(bootstrap) as admin:
                [ours] = admin.describe_groups(topic)
            assert (ours.state, ours.protocol) == ("Stable", "uniform")
            assigned = [{*member.assignment} for member in ours.members]
            assert sorted(map(sorted, assigned)) == sorted(
                map(sorted, [owned(first), owned(second)])
            )
        poll_until(lambda: len(owned(second)) == PARTITIONS, second)
    with consumer(bootstrap, f"{topic}-other", topic) as member:
        read: list[bytes] = []
        poll_until(lambda: len(owned(member)) == PARTITIONS, member)
        while len(read) < RECORDS:
            read += [each.value() for each in member.consume(RECORDS, 1.0) if not each.error()]
        assert sorted(read) == sorted(values)
        member.commit(asynchronous=False)
        more = write(bootstrap, topic, RECORDS)
    with consumer(bootstrap, f"{topic}-other", topic) as member:
        again: list[bytes] = []
        while len(again) < RECORDS:
            again += [each.value() for each in member.consume(RECORDS, 1.0) if not each.error()]
        assert sorted(again) == sorted(more)


def test_a_static_member_comes_back(bootstrap: str, topic: str) -> None:
    """It has the same partitions after a restart, and the other one is not disturbed."""
    with Admin(bootstrap) as admin:
        admin.create_topics(NewTopic(topic, PARTITIONS, 1))
    static = {"group.instance.id": "one"}
    with consumer(bootstrap, topic, topic) as other:
        with consumer(bootstrap, topic, topic, **static) as member:
            poll_until(lambda: len(owned(member)) == len(owned(other)) == 2, member, other)
            had, others = owned(member), owned(other)
        with consumer(bootstrap, topic, topic, **static) as member:
            poll_until(lambda: len(owned(member)) == 2, member, other)
            assert (owned(member), owned(other)) == (had, others)


def test_a_pattern_subscribes_to_topics_to_come(bootstrap: str, topic: str) -> None:
    """The broker finds them."""
    with Admin(bootstrap) as admin, consumer(bootstrap, topic, f"^{topic}-.*") as member:
        admin.create_topics(NewTopic(f"{topic}-a", 1, 1))
        poll_until(lambda: owned(member) == {(f"{topic}-a", 0)}, member)
        admin.create_topics(NewTopic(f"{topic}-b", 2, 1))
        poll_until(lambda: len(owned(member)) == 3, member)


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_members_of_both_protocols_divide_a_topic(
    bootstrap: str, topic: str, strategy: str
) -> None:
    """A classic member's group is upgraded when a newer member joins, and downgraded when that one
    leaves; each has its half meanwhile, and commits. The offsets stay."""
    with Admin(bootstrap) as admin:
        admin.create_topics(NewTopic(topic, PARTITIONS, 1))
    values = write(bootstrap, topic)
    classic = {
        "group.protocol": "classic",
        "partition.assignment.strategy": strategy,
        "session.timeout.ms": 6000,
        "heartbeat.interval.ms": 200,
    }
    kinds = confluent_kafka.ConsumerGroupType
    with consumer(bootstrap, topic, topic, **classic) as old:
        read = poll_until(lambda: len(owned(old)) == PARTITIONS, old)
        assert describe(bootstrap, topic).type == kinds.CLASSIC
        with consumer(bootstrap, topic, topic) as new:
            read += poll_until(lambda: len(owned(old)) == len(owned(new)) == 2, old, new)
            assert owned(old).isdisjoint(owned(new))
            group = describe(bootstrap, topic)
            assert (group.type, len(group.members)) == (kinds.CONSUMER, 2)
            poll_until(lambda: set(read) == values, old, new, into=read)
            for member in (old, new):
                member.commit(asynchronous=False)
        poll_until(lambda: len(owned(old)) == PARTITIONS, old)
        assert describe(bootstrap, topic).type == kinds.CLASSIC
        committed = old.committed([confluent_kafka.TopicPartition(*each) for each in owned(old)])
        assert [each.offset for each in committed] == [RECORDS // PARTITIONS] * PARTITIONS


def test_the_coordinator_is_killed(tmp_path: Path) -> None:
    """Both members keep their partitions at the next coordinator, and commits go on."""
    settings = {
        "offsets.topic.num.partitions": "1",
        "group.consumer.heartbeat.interval.ms": "500",
    }
    with running_cluster(tmp_path / "cluster", settings=settings) as cluster:
        bootstrap, topic = cluster.addresses, "t"
        with Admin(bootstrap) as admin:
            admin.create_topics(NewTopic(topic, PARTITIONS, 3, {"min.insync.replicas": "2"}))
        with (
            consumer(bootstrap, "g", topic) as first,
            consumer(bootstrap, "g", topic) as second,
        ):
            poll_until(lambda: len(owned(first)) == len(owned(second)) == 2, first, second)
            had = owned(first), owned(second)
            coordinator = describe(bootstrap, "g").coordinator.id
            cluster.kill(coordinator)
            values = write(bootstrap, topic)
            read: list[bytes] = []
            deadline = time.monotonic() + WAIT_S_MAX
            while len(read) < RECORDS:
                assert time.monotonic() < deadline, len(read)
                for member in (first, second):
                    read += [each.value() for each in member.consume(100, 0.2) if not each.error()]
            assert sorted(read) == sorted(values)
            for member in (first, second):
                member.commit(asynchronous=False)
            assert (owned(first), owned(second)) == had
            assert describe(bootstrap, "g").coordinator.id != coordinator
