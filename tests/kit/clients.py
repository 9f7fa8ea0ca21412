"""Real clients that meet faults: ours, confluent-kafka and aiokafka."""

import asyncio
from collections.abc import Callable
from typing import Final, NamedTuple

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, Producer

from minibroker.testing import KafkaCluster

COUNT: Final = 30
VALUES: Final = [b"%d" % number for number in range(COUNT)]
WITHIN_S: Final = 30
ANSWER_MS: Final = 2_000  # how long a client waits for one that stands still


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


class Client(NamedTuple):
    """How a client writes all values, with `act` in their middle, and how it reads them."""

    name: str
    produce: Callable[[KafkaCluster, str, Callable[[], None]], None]
    read: Callable[[KafkaCluster, str], list[bytes]]

    def __repr__(self) -> str:
        return self.name


OURS: Final = Client("ours", produce_ours, read_ours)
CONFLUENT: Final = Client("confluent", produce_confluent, read_confluent)
AIOKAFKA: Final = Client("aiokafka", produce_aiokafka, read_aiokafka)
