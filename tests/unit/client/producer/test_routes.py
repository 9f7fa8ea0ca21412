"""Records that are sent before the producer knows which partitions a topic has."""

import random
from typing import Any

import pytest
import trio

from minibroker.client.admin import Admin
from minibroker.client.errors import DeliveryFailed
from minibroker.client.producer.delivery import Delivery
from minibroker.client.producer.partitioner import partition_for_key
from minibroker.client.producer.producer import Producer
from minibroker.testing.cluster import SimulatedWorld, open_broker

PARTITIONS = 3


def send_one(producer: Producer, rng: random.Random, number: int) -> int:
    """Send record `assign` in one of the ways there are, or several; the next number."""
    value = b"%d" % number
    way = rng.randrange(8)
    if way < 3:
        producer.send_nowait("new", value, b"key-%d" % rng.randrange(5))
    elif way < 5:
        producer.send_nowait("new", value, partition=rng.randrange(PARTITIONS))
    elif way < 7:
        producer.send_nowait("new", value)
    else:
        values = [b"%d" % each for each in range(number, number + rng.randint(1, 40))]
        partition = rng.choice((None, *range(PARTITIONS)))
        key = rng.choice((None, b"key-1"))
        assert producer.send_many("new", values, key, partition=partition) == len(values)
        return number + len(values)
    return number + 1


@pytest.mark.parametrize("compression", ["none", "zstd"])
@pytest.mark.parametrize("seed", range(12))
async def test_records_of_a_new_topic_keep_their_order(
    autojump_clock: Any, seed: int, compression: str
) -> None:
    """CPR-01: with keys, without, and with a partition named, mixed: each partition gets its
    records in the order of sending, and those that are named go where they were meant to."""
    rng, world = random.Random(seed), SimulatedWorld(seed)
    deliveries: list[Delivery] = []
    options: dict[str, Any] = {
        "seams": world.seams("client"),
        "on_delivery": deliveries.append,
        "batch_size": rng.choice((200, 16_384)),
        "compression_type": compression,
    }
    settings = {"num.partitions": str(PARTITIONS)}
    async with open_broker(world, settings) as broker, Producer(broker.address, **options) as it:
        number = 0
        while number < 700:
            number = send_one(it, rng, number)
        await it.flush()
        while number < 1000:
            number = send_one(it, rng, number)
    stored: dict[int, list[tuple[int, int]]] = {each: [] for each in range(PARTITIONS)}
    for delivery in deliveries:
        for record in delivery.records():
            stored[delivery.partition].append((record.offset, int(record.value or b"")))
    for records in stored.values():
        values = [value for _, value in sorted(records)]
        assert values == sorted(values)
        assert len(values) > 20
    assert sum(map(len, stored.values())) == number


async def test_a_named_partition_is_obeyed_or_refused(autojump_clock: Any) -> None:
    """What was meant for a partition that turns out not to exist fails, the rest is delivered."""
    world = SimulatedWorld(1)
    seams = world.seams("client")
    async with (
        open_broker(world, {"num.partitions": "2"}) as broker,
        Producer(broker.address, seams=seams) as producer,
    ):
        producer.send_nowait("new", b"none", b"key", partition=2)
        pending = [
            producer.send_for_delivery("new", b"v", b"key", partition=number % 2)
            for number in range(6)
        ]
        assert [(await each.wait()).partition for each in pending] == [0, 1] * 3
        with pytest.raises(DeliveryFailed, match=r"1 records .* there is no new-2"):
            await producer.flush()


async def test_records_go_to_partitions_that_are_added(autojump_clock: Any) -> None:
    """Once metadata tell of them: without a key to all in turn, with a key to the one that all
    clients choose now, and by number."""
    world = SimulatedWorld(1)
    seams = world.seams("client")
    options: dict[str, Any] = {"seams": seams, "metadata_max_age_ms": 1_000, "linger_ms": 0}
    keys = [b"key-%d" % number for number in range(40)]
    async with (
        open_broker(world, {"num.partitions": "2"}) as broker,
        Producer(broker.address, **options) as producer,
        Admin(broker.address, seams=seams) as admin,
    ):

        async def sent_to(key: bytes | None, partition: int | None = None) -> int:
            sent = producer.send_for_delivery("new", b"v", key, partition=partition)
            return (await sent.wait()).partition

        before = {key: await sent_to(key) for key in keys}
        assert set(before.values()) == {0, 1}
        await admin.create_partitions({"new": 5})
        await trio.sleep(3)
        after = {key: await sent_to(key) for key in keys}
        assert after == {key: partition_for_key(key, 5) for key in keys}
        assert await sent_to(None, 4) == 4
        spread = {await sent_to(None) for _ in range(20)}
        assert spread == {0, 1, 2, 3, 4}
