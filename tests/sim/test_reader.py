"""A consumer that seeks, pauses and changes its mind, beside a model of what it must be shown.

The model is one number for each partition: the offset of the record that comes next. Whatever
the application did, and whatever happened to network and broker, records come from there on, one
after the other, from assigned partitions that are not paused; and at the end all of them come.
"""

import random

import pytest
import trio

from minibroker.client import Consumer, Producer, TopicPartition
from minibroker.client.consumer.completed_fetch import ConsumerRecord
from minibroker.testing.cluster import SimulatedBroker, SimulatedWorld, open_broker, simulate
from minibroker.testing.network import NetworkOptions

NAMES = [TopicPartition("t", partition) for partition in range(3)]
RECORDS = 150
STEPS = 60
NETWORK = NetworkOptions(delay_s_min=0.0005, delay_s_max=0.02)
SETTINGS = {"num.partitions": str(len(NAMES)), "log.index.interval.bytes": "100"}


def value_of(name: TopicPartition, offset: int) -> bytes:
    """What lies there."""
    return f"{name} {offset}".encode()


class Reader:
    """A consumer, and what it must return next."""

    def __init__(self, consumer: Consumer, ends: dict[TopicPartition, int], rng: random.Random):
        self.consumer = consumer
        self.ends = ends
        self.rng = rng
        self.next = dict.fromkeys(NAMES, 0)
        self.assigned = list(NAMES)
        self.paused: set[TopicPartition] = set()

    def check(self, record: ConsumerRecord) -> None:
        """A record that was returned is the one that must come."""
        name = TopicPartition(record.topic, record.partition)
        assert name in self.assigned
        assert name not in self.paused
        assert record.offset == self.next[name]
        assert record.value == value_of(name, record.offset)
        self.next[name] += 1

    async def poll(self, timeout_s: float) -> int:
        records = await self.consumer.poll(timeout_s)
        for record in records:
            self.check(record)
        return len(records)

    async def iterate(self, count: int) -> None:
        with trio.move_on_after(0.2):
            async for record in self.consumer:
                self.check(record)
                name = TopicPartition(record.topic, record.partition)
                assert self.consumer.position(name) == self.next[name]
                count -= 1
                if count <= 0:
                    break

    def assign(self) -> None:
        new = sorted(self.rng.sample(NAMES, self.rng.randint(1, len(NAMES))))
        for name in set(new) - set(self.assigned):
            self.next[name] = 0
        self.assigned = new
        self.paused &= set(new)
        self.consumer.assign(new)

    def seek(self, name: TopicPartition) -> None:
        self.next[name] = offset = self.rng.randrange(self.ends[name] + 1)
        if offset or self.rng.random() < 0.5:
            self.consumer.seek(name, offset)
        else:
            self.consumer.seek_to_beginning(name)

    async def step(self) -> None:
        """Do one of the things that an application may do."""
        name = self.rng.choice(self.assigned)
        way = self.rng.randrange(9)
        if way < 3:
            await self.poll(self.rng.choice((0, 0.01, 0.1)))
        elif way < 5:
            self.seek(name)
        elif way == 5:
            self.consumer.pause(name)
            self.paused.add(name)
        elif way == 6:
            self.consumer.resume(name)
            self.paused.discard(name)
        elif way == 7:
            await self.iterate(self.rng.randrange(5))
        else:
            self.assign()

    async def finish(self) -> None:
        """Read to the end of one partition while the others are paused, then of all."""
        chosen = self.rng.choice(self.assigned)
        self.next[chosen] = 0
        self.consumer.seek(chosen, 0)
        await trio.sleep(self.rng.choice((0, 1)))
        self.paused = set(self.assigned) - {chosen}
        self.consumer.resume(chosen)
        for name in sorted(self.paused):
            self.consumer.pause(name)
        await self._read_to_the_end(chosen)
        self.consumer.resume()
        self.paused.clear()
        await self._read_to_the_end(*self.assigned)

    async def _read_to_the_end(self, *names: TopicPartition) -> None:
        with trio.fail_after(40):
            while any(self.next[name] < self.ends[name] for name in names):
                await self.poll(5)
        assert await self.poll(1) == 0


async def fill(world: SimulatedWorld, broker: SimulatedBroker, rng: random.Random) -> dict:
    """Records that name their place, and where they end."""
    ends = dict.fromkeys(NAMES, 0)
    options = {"seams": world.seams("producer"), "batch_size": rng.choice((100, 400))}
    async with Producer(broker.address, **options) as producer:
        for _ in range(RECORDS):
            name = rng.choice(NAMES)
            await producer.send("t", value_of(name, ends[name]), partition=name.partition)
            ends[name] += 1
    return ends


async def do_harm(world: SimulatedWorld, broker: SimulatedBroker, rng: random.Random) -> None:
    """Now and then a reset, or a kill and a restart."""
    chance = rng.random()
    if chance < 0.05:
        world.network.reset("consumer", broker.name)
    elif chance < 0.1:
        await broker.kill()
        await trio.sleep(rng.random())
        await broker.start()


async def run(seed: int) -> None:
    rng, world = random.Random(seed), SimulatedWorld(seed, NETWORK)
    async with open_broker(world, SETTINGS) as broker:
        ends = await fill(world, broker, rng)
        options = {
            "seams": world.seams("consumer"),
            "auto_offset_reset": "earliest",
            "fetch_max_bytes": rng.choice((1, 200, 1000, 1_000_000)),
            "max_partition_fetch_bytes": rng.choice((1, 150, 500, 1_000_000)),
            "max_poll_records": rng.choice((1, 3, 500)),
            "fetch_max_wait_ms": rng.choice((0, 500, 20_000)),
        }
        async with Consumer(broker.address, **options) as consumer:
            await consumer.assign_topics("t")
            reader = Reader(consumer, ends, rng)
            for _ in range(STEPS):
                await reader.step()
                if seed % 2:
                    await do_harm(world, broker, rng)
            await reader.finish()


@pytest.mark.parametrize("seed", range(60))
def test_whatever_is_asked_for_comes_next(seed: int) -> None:
    """CCO-01, CCO-08, K6: after any steps the records from the position on come, each once."""

    async def main() -> None:
        await run(seed)

    simulate(main, seed)
