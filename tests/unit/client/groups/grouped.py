"""A real broker on virtual time, and consumers that are members of its group "g"."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio

from minibroker.client import Admin, Consumer, NewTopic, Producer, TopicPartition
from minibroker.testing.cluster import SimulatedBroker, SimulatedWorld, open_broker

QUICK = {"session_timeout_ms": 6000, "heartbeat_interval_ms": 500}


class Workplace:
    """A broker, topics, and who works there. Each consumer has a host of its own, by name."""

    def __init__(self, world: SimulatedWorld, broker: SimulatedBroker) -> None:
        self.world = world
        self.broker = broker

    async def create(self, topic: str, partition_count: int) -> None:
        """A new topic."""
        async with Admin(self.broker.address, seams=self.world.seams("admin")) as admin:
            await admin.create_topics(NewTopic(topic, partition_count))

    async def fill(self, count: int, topic: str = "t", partition_count: int = 4) -> None:
        """`count` more records for each partition, whose values are numbers from 0 up."""
        async with Producer(self.broker.address, seams=self.world.seams("producer")) as producer:
            for number in range(count * partition_count):
                producer.send_nowait(topic, b"%d" % number, partition=number % partition_count)
            await producer.flush()

    def consumer(self, name: str, **options: object) -> Consumer:
        """A member, or one that assigns by itself; it begins at the beginning."""
        given: dict[str, Any] = {"group_id": "g", "auto_offset_reset": "earliest"}
        given |= QUICK | {"client_id": name} | options
        return Consumer(self.broker.address, seams=self.world.seams(name), **given)


@asynccontextmanager
async def open_workplace(**settings: str) -> AsyncIterator[Workplace]:
    """A broker with topic "t" of four partitions."""
    world = SimulatedWorld(1)
    async with open_broker(world, settings) as broker:
        place = Workplace(world, broker)
        await place.create("t", 4)
        yield place


class Diary:
    """What a consumer's callbacks were told: pairs of a word and the numbers of partitions."""

    def __init__(self) -> None:
        self.entries: list[tuple[str, list[int]]] = []

    def of(self, word: str) -> list[list[int]]:
        """The entries of one kind."""
        return [numbers for kind, numbers in self.entries if kind == word]

    @property
    def callbacks(self) -> dict[str, Any]:
        """For `subscribe`."""
        return {f"on_{word}": self._note(word) for word in ("assigned", "revoked", "lost")}

    def _note(self, word: str) -> Any:
        async def note(partitions: list[TopicPartition]) -> None:
            self.entries.append((word, [name.partition for name in partitions]))

        return note


async def poll_until_has(consumer: Consumer, *numbers: int, within_s: float = 30) -> list[Any]:
    """Poll until exactly these partitions are assigned; the records of those polls."""
    records: list[Any] = []
    with trio.fail_after(within_s):
        while sorted(name.partition for name in consumer.assignment) != sorted(numbers):
            records += await consumer.poll(0.1)
    return records


async def poll_all(consumer: Consumer, count: int, within_s: float = 30) -> list[tuple[int, int]]:
    """Poll until there are so many records: their partitions and offsets."""
    got: list[tuple[int, int]] = []
    with trio.fail_after(within_s):
        while len(got) < count:
            got += [(record.partition, record.offset) for record in await consumer.poll(1)]
    return got


async def keep_polling(consumer: Consumer, into: list[Any]) -> None:
    """Poll until cancelled; with the time of each record's poll."""
    while True:
        records = await consumer.poll(1)
        into += [(trio.current_time(), record.partition, record.offset) for record in records]
