"""Each fault meets real clients, which recover; and each is undone."""

import asyncio
import os
from collections.abc import Callable
from typing import Final

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, Producer

from minibroker.testing import Fault, KafkaCluster, WaitTimeout, running_cluster

COUNT: Final = 30
VALUES: Final = [b"%d" % number for number in range(COUNT)]
WITHIN_S: Final = 30
ANSWER_MS: Final = 2_000  # how long a client waits for one that stands still

Break = Callable[[KafkaCluster, str], Fault]


def kill_leader(cluster: KafkaCluster, topic: str) -> Fault:
    """`kill -9`."""
    return cluster.kill(cluster.leader(topic))


def stop_leader(cluster: KafkaCluster, topic: str) -> Fault:
    """In order."""
    return cluster.stop(cluster.leader(topic))


def pause_leader(cluster: KafkaCluster, topic: str) -> Fault:
    """It stands still, and its connections stay open."""
    return cluster.pause(cluster.leader(topic))


def produce_ours(cluster: KafkaCluster, topic: str, act: Callable[[], None]) -> None:
    """Half of the values before `act`, the others after it; all are acknowledged."""
    with cluster.producer() as producer:
        first = [producer.send(topic, value) for value in VALUES[: COUNT // 2]]
        assert [each.result(WITHIN_S).topic for each in first]
        act()
        second = [producer.send(topic, value) for value in VALUES[COUNT // 2 :]]
        assert [each.result(WITHIN_S).topic for each in second]


def produce_confluent(cluster: KafkaCluster, topic: str, act: Callable[[], None]) -> None:
    """By librdkafka."""
    told: list[object] = []
    options = {"enable.idempotence": True, "socket.timeout.ms": ANSWER_MS, "log_level": 0}
    producer = Producer({"bootstrap.servers": cluster.bootstrap, **options})
    for half in (VALUES[: COUNT // 2], VALUES[COUNT // 2 :]):
        for value in half:
            producer.produce(topic, value, on_delivery=lambda error, _: told.append(error))
        assert producer.flush(WITHIN_S) == 0
        if len(told) == COUNT // 2:
            act()
    assert told == [None] * COUNT


def produce_aiokafka(cluster: KafkaCluster, topic: str, act: Callable[[], None]) -> None:
    """By aiokafka."""

    async def produce() -> None:
        producer = AIOKafkaProducer(
            bootstrap_servers=cluster.bootstrap,
            enable_idempotence=True,
            request_timeout_ms=ANSWER_MS,
        )
        async with producer:
            for value in VALUES[: COUNT // 2]:
                await asyncio.wait_for(producer.send_and_wait(topic, value), WITHIN_S)
            await asyncio.to_thread(act)
            for value in VALUES[COUNT // 2 :]:
                await asyncio.wait_for(producer.send_and_wait(topic, value), WITHIN_S)

    asyncio.run(produce())


def read_ours(cluster: KafkaCluster, topic: str) -> list[bytes]:
    """As many values as were written."""
    found: list[bytes] = []
    with cluster.consumer() as consumer:
        consumer.subscribe(topic)
        while len(found) < COUNT:
            records = consumer.poll(WITHIN_S)
            assert records, found
            found += [record.value or b"" for record in records]
    return found


def read_confluent(cluster: KafkaCluster, topic: str) -> list[bytes]:
    """By librdkafka, in a group."""
    options = {"group.id": topic, "auto.offset.reset": "earliest", "log_level": 0}
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, **options})
    consumer.subscribe([topic])
    found: list[bytes] = []
    while len(found) < COUNT:
        message = consumer.poll(WITHIN_S)
        assert message is not None, found
        assert message.error() is None
        found.append(message.value())
    consumer.close()
    return found


def read_aiokafka(cluster: KafkaCluster, topic: str) -> list[bytes]:
    """By aiokafka, in a group."""

    async def read() -> list[bytes]:
        consumer = AIOKafkaConsumer(
            topic,
            bootstrap_servers=cluster.bootstrap,
            group_id=topic,
            auto_offset_reset="earliest",
        )
        async with consumer:
            return [
                (await asyncio.wait_for(consumer.getone(), WITHIN_S)).value for _ in range(COUNT)
            ]

    return asyncio.run(read())


OURS: Final = produce_ours, read_ours
CONFLUENT: Final = produce_confluent, read_confluent
AIOKAFKA: Final = produce_aiokafka, read_aiokafka


def _met(
    fault: Break,
    client: tuple[Callable[..., None], Callable[..., list[bytes]]],
    *marks: pytest.MarkDecorator,
) -> object:
    names = fault.__name__, client[0].__name__.removeprefix("produce_")
    return pytest.param(fault, *client, id="-".join(names), marks=marks)


@pytest.mark.parametrize(
    ("fault", "produce", "read"),
    [
        _met(kill_leader, OURS),
        _met(stop_leader, OURS),
        _met(pause_leader, OURS),
        _met(kill_leader, CONFLUENT),
        _met(stop_leader, CONFLUENT, pytest.mark.soak),
        _met(pause_leader, CONFLUENT),
        _met(kill_leader, AIOKAFKA),
        _met(stop_leader, AIOKAFKA, pytest.mark.soak),
        _met(pause_leader, AIOKAFKA, pytest.mark.soak),
    ],
)
def test_a_client_goes_on_when_its_leader_is_away(
    kafka_cluster: KafkaCluster,
    fault: Break,
    produce: Callable[[KafkaCluster, str, Callable[[], None]], None],
    read: Callable[[KafkaCluster, str], list[bytes]],
) -> None:
    """It finds the next leader; all that was acknowledged is there, once, in order, also when the
    former leader is back."""
    topic = kafka_cluster.topic()
    before = kafka_cluster.leader(topic)
    made: list[Fault] = []
    produce(kafka_cluster, topic, lambda: made.append(fault(kafka_cluster, topic)))
    assert kafka_cluster.leader(topic) != before
    made[0].undo()
    kafka_cluster.wait_for_isr(topic)
    assert read(kafka_cluster, topic) == VALUES
    replicas = kafka_cluster.replicas(topic)[0]
    assert {each.log_end for each in replicas.values()} == {COUNT}
    assert set(replicas) == set(kafka_cluster.node_ids)


def test_a_fault_ends_with_its_block(kafka_cluster: KafkaCluster) -> None:
    """And is undone once."""
    with kafka_cluster.kill(3) as fault:
        assert fault.brokers == (3,)
        assert not fault.is_undone
    assert fault.is_undone
    again = kafka_cluster.pid(3)
    fault.undo()
    assert kafka_cluster.pid(3) == again
    texts = [event.text for event in kafka_cluster.timeline()[-2:]]
    assert texts == ["kill 3", "started 3"]


def test_a_restarted_broker_has_its_records(kafka_broker: KafkaCluster) -> None:
    """A stop in order and a start, at the same address."""
    topic = kafka_broker.topic()
    with kafka_broker.producer() as producer:
        producer.send(topic, b"kept").result(WITHIN_S)
    before = kafka_broker.bootstrap, kafka_broker.pid(1)
    kafka_broker.restart()
    assert kafka_broker.bootstrap == before[0]
    assert kafka_broker.pid(1) != before[1]
    with kafka_broker.consumer() as consumer:
        consumer.subscribe(topic)
        [record] = consumer.poll(WITHIN_S)
    assert record.value == b"kept"


def test_a_roll_restarts_each_and_ends_in_sync(kafka_cluster: KafkaCluster) -> None:
    """One after another, so that there is always a leader."""
    topic = kafka_cluster.topic(partitions=3)
    before = [kafka_cluster.pid(node_id) for node_id in kafka_cluster.node_ids]
    kafka_cluster.roll()
    assert not set(before) & {kafka_cluster.pid(node_id) for node_id in kafka_cluster.node_ids}
    for partition in range(3):
        assert len(kafka_cluster.wait_for_isr(topic, partition, timeout_s=0)) == 3


def test_what_is_not_undone_is_mended_for_the_next_test(kafka_cluster: KafkaCluster) -> None:
    """By `heal`, which the fixture calls after each test; it says what it found."""
    topic = kafka_cluster.topic()
    with kafka_cluster.stop(1):
        pass
    kafka_cluster.kill(2)
    kafka_cluster.pause(3)
    assert [fault.text for fault in kafka_cluster.heal()] == ["pause 3", "kill 2"]
    assert len(kafka_cluster.wait_for_isr(topic, timeout_s=0)) == 3
    assert kafka_cluster.heal() == []


def test_what_cannot_be_done_is_refused(kafka_cluster: KafkaCluster) -> None:
    """In a sentence, and nothing is done."""
    with pytest.raises(ValueError, match="there is no broker 4; there are 1, 2, 3"):
        kafka_cluster.kill(1, 4)
    with pytest.raises(ValueError, match="name at least one broker"):
        kafka_cluster.pause()
    with kafka_cluster.stop(2), pytest.raises(ValueError, match="broker 2 does not run"):
        kafka_cluster.kill(2)
    with kafka_cluster.pause(2), pytest.raises(ValueError, match="broker 2 is paused already"):
        kafka_cluster.pause(2)
    kafka_cluster.check_alive()


def test_a_broker_that_is_down_is_in_no_set(kafka_cluster: KafkaCluster) -> None:
    """Also before its session ends, while the metadata still name it."""
    topic = kafka_cluster.topic()
    leader = kafka_cluster.leader(topic)
    follower = next(node_id for node_id in kafka_cluster.node_ids if node_id != leader)
    with kafka_cluster.kill(follower):
        with pytest.raises(WaitTimeout, match="all replicas to be in sync"):
            kafka_cluster.wait_until_in_sync(timeout_s=0)
        with pytest.raises(WaitTimeout, match="in sync"):
            kafka_cluster.wait_for_isr(topic, timeout_s=0)


def test_no_forked_child_keeps_a_cluster() -> None:
    """The cluster ends, and its place is free, though the child goes on."""
    read, write = os.pipe()
    with running_cluster(brokers=1) as cluster:
        before, pid = cluster.bootstrap, cluster.pid(1)
        child = os.fork()
        if not child:
            os.close(write)
            os.read(read, 1)
            os._exit(0)
        os.close(read)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    with running_cluster(brokers=1) as again:
        assert again.bootstrap == before
    os.close(write)
    os.waitpid(child, 0)


@pytest.mark.kafka_cluster(fresh=True, brokers=2, properties={"num.partitions": 7})
def test_a_marker_makes_another_cluster(kafka_cluster: KafkaCluster) -> None:
    """Of so many brokers with such properties, for this test alone."""
    assert list(kafka_cluster.node_ids) == [1, 2]
    assert kafka_cluster.timeline()[0].text == "started 1, 2"
    with kafka_cluster.admin() as admin:
        told = {each.name: each.value for each in admin.describe_broker_configs(1)}
    assert told["num.partitions"] == "7"
