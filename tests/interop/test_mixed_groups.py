"""One group of four libraries on two wires: one generation, each partition has one owner.

Members are threads that poll until they are told to leave; what they have is asked of the broker,
and what they read of themselves.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import aiokafka
import confluent_kafka
import kafka
from aiokafka.coordinator.assignors.range import RangePartitionAssignor as AioRange
from kafka.coordinator.assignors.range import RangePartitionAssignor

from minibroker.client import GroupDescription
from minibroker.client.blocking import Admin, Consumer
from tests.interop.clients import Confluent, Record, Settings, make_topic
from tests.interop.features import Feature, shows
from tests.interop.members import Member, commit_beginnings

PARTITIONS: Final = 8
POLL_S: Final = 0.1
SETTLED_S_MAX: Final = 30.0
LOOK_EVERY_S: Final = 0.05


def run_ours(member: Member, bootstrap: str, group: str, topic: str) -> None:
    """On the msgpack wire."""
    with Consumer(
        bootstrap,
        group_id=group,
        client_id="ours",
        auto_offset_reset="earliest",
        heartbeat_interval_ms=200,
        partition_assignment_strategy="range",
    ) as consumer:
        consumer.subscribe(topic)
        while not member.leaving.is_set():
            member.values += [one.value for one in consumer.poll(POLL_S)]


def run_kafka_python(member: Member, bootstrap: str, group: str, topic: str) -> None:
    """kafka-python."""
    consumer = kafka.KafkaConsumer(
        topic,
        bootstrap_servers=bootstrap,
        group_id=group,
        client_id="kafka-python",
        auto_offset_reset="earliest",
        heartbeat_interval_ms=200,
        partition_assignment_strategy=[RangePartitionAssignor],
    )
    while not member.leaving.is_set():
        for found in consumer.poll(timeout_ms=POLL_S * 1000).values():
            member.values += [one.value for one in found]
    consumer.close()


def run_aiokafka(member: Member, bootstrap: str, group: str, topic: str) -> None:
    """aiokafka."""

    async def run() -> None:
        async with aiokafka.AIOKafkaConsumer(
            topic,
            bootstrap_servers=bootstrap,
            group_id=group,
            client_id="aiokafka",
            auto_offset_reset="earliest",
            heartbeat_interval_ms=200,
            partition_assignment_strategy=[AioRange],
        ) as consumer:
            while not member.leaving.is_set():
                for found in (await consumer.getmany(timeout_ms=int(POLL_S * 1000))).values():
                    member.values += [one.value for one in found]

    asyncio.run(run())


def run_confluent(member: Member, bootstrap: str, group: str, topic: str) -> None:
    """confluent-kafka."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "client.id": "confluent-kafka",
            "auto.offset.reset": "earliest",
            "heartbeat.interval.ms": 200,
            "partition.assignment.strategy": "range",
        }
    )
    consumer.subscribe([topic])
    while not member.leaving.is_set():
        one = consumer.poll(POLL_S)
        if one is not None:
            assert one.error() is None, one.error()
            member.values.append(one.value())
    consumer.close()


RUNS: Final = {
    "ours": run_ours,
    "kafka-python": run_kafka_python,
    "aiokafka": run_aiokafka,
    "confluent-kafka": run_confluent,
}


@contextmanager
def members(bootstrap: str, topic: str, *names: str) -> Iterator[dict[str, Member]]:
    """One of each, by names; gone when the block ends."""
    running = {name: Member(RUNS[name], bootstrap, topic, topic) for name in names}
    try:
        yield running
    finally:
        for member in running.values():
            member.leave()


def settled(admin: Admin, group: str, names: set[str]) -> GroupDescription:
    """The group once it is stable, has these members, and they have all partitions."""
    deadline = time.monotonic() + SETTLED_S_MAX
    while True:
        found = [one for one in admin.list_groups().groups if one.group_id == group]
        [described] = admin.describe_groups(group) if found else [None]
        if described is not None and described.state == "Stable":
            owned = [each for member in described.members for each in member.assignment]
            clients = {member.client_id for member in described.members}
            if clients == names and len(owned) >= PARTITIONS:
                assert len(set(owned)) == len(owned) == PARTITIONS, "a partition has two owners"
                return described
        assert time.monotonic() < deadline, described
        time.sleep(LOOK_EVERY_S)


def write(bootstrap: str, topic: str, text: str) -> Counter[bytes]:
    """A record a partition; what was written."""
    sent = {number: b"%s %d" % (text.encode(), number) for number in range(PARTITIONS)}
    for number, value in sent.items():
        Confluent().write(bootstrap, topic, number, [Record(value)], Settings())
    return Counter(sent.values())


def wait_for(running: dict[str, Member], wanted: Counter[bytes]) -> None:
    """Until the members have read it, once."""
    deadline = time.monotonic() + SETTLED_S_MAX
    while True:
        read = Counter(value for member in running.values() for value in member.values)
        if read >= wanted:
            values = {name: member.values for name, member in running.items()}
            assert read == wanted, f"a record was read twice: {values}"
            return
        assert time.monotonic() < deadline, wanted - read
        time.sleep(LOOK_EVERY_S)


@shows(Feature.MIXED, "kafka-python", "aiokafka", "confluent-kafka")
def test_four_libraries_in_one_group(bootstrap: str, topic: str) -> None:
    """All share the partitions; one after the other leaves, and the rest take over."""
    make_topic(bootstrap, topic, PARTITIONS)
    commit_beginnings(bootstrap, topic, topic, PARTITIONS)
    with Admin(bootstrap) as admin, members(bootstrap, topic, *RUNS) as running:
        group = settled(admin, topic, set(RUNS))
        assert group.protocol == "range"
        assert {len(member.assignment) for member in group.members} == {PARTITIONS // len(RUNS)}
        wanted = write(bootstrap, topic, "all")
        wait_for(running, wanted)
        assert all(len(member.values) == PARTITIONS // len(RUNS) for member in running.values())
        left = set(RUNS)
        for name in ("ours", "aiokafka", "kafka-python"):
            running[name].leave()
            left.remove(name)
            settled(admin, topic, left)
            wanted += write(bootstrap, topic, f"without {name}")
            wait_for(running, wanted)
