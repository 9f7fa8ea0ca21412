"""The consumer against the real broker app, on a simulated network and virtual time."""

import logging
from typing import Any

import pytest
import trio

from minibroker.client import Admin, Consumer, Producer, TopicPartition
from minibroker.protocol.constants import ErrorCode
from minibroker.protocol.errors import BrokerError
from minibroker.testing.cluster import SimulatedBroker, SimulatedWorld, open_broker

A, B = TopicPartition("t", 0), TopicPartition("t", 1)
SETTINGS = {"num.partitions": "2", "flush": "always"}


class Reading:
    """A broker, and consumers of it."""

    def __init__(self, world: SimulatedWorld, broker: SimulatedBroker) -> None:
        self.world = world
        self.broker = broker

    async def fill(self, count: int, size: int = 10) -> None:
        """Send `count` more records to both partitions of "t", one in a batch."""
        async with Producer(self.broker.address, seams=self.world.seams("producer")) as producer:
            for number in range(count):
                for name in (A, B):
                    producer.send_nowait("t", b"%0*d" % (size, number), partition=name.partition)
                await producer.flush()

    def consumer(self, **options: object) -> Consumer:
        """One that begins at the beginning."""
        seams = self.world.seams("consumer")
        return Consumer(
            self.broker.address, seams=seams, **{"auto_offset_reset": "earliest"} | options
        )


@pytest.fixture
async def reading(autojump_clock: Any) -> Any:
    """A broker that creates topics of two partitions."""
    world = SimulatedWorld(1)
    async with open_broker(world, SETTINGS) as broker:
        yield Reading(world, broker)


async def read(consumer: Consumer, count: int) -> dict[TopicPartition, list[int]]:
    """Poll until there are `count` records; their offsets by partition."""
    offsets: dict[TopicPartition, list[int]] = {}
    with trio.fail_after(60):
        while sum(map(len, offsets.values())) < count:
            for record in await consumer.poll(20):
                name = TopicPartition(record.topic, record.partition)
                offsets.setdefault(name, []).append(record.offset)
    return offsets


@pytest.mark.parametrize("end", ["kill", "stop", "power_off"])
async def test_a_broker_may_go_in_the_middle_of_a_long_poll(
    autojump_clock: Any, reading: Reading, end: str
) -> None:
    """CCO-08, R9: the consumer goes on where it was as soon as the broker is back, no sooner."""
    await reading.fill(5)
    async with reading.consumer(fetch_max_wait_ms=20_000) as consumer:
        await consumer.assign_topics("t")
        assert await read(consumer, 10) == {A: [*range(5)], B: [*range(5)]}

        async def restart() -> None:
            await trio.sleep(3)
            await getattr(reading.broker, end)()
            await trio.sleep(2)
            await reading.broker.start()
            await reading.fill(5)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(restart)
            began = trio.current_time()
            assert await read(consumer, 10) == {A: [*range(5, 10)], B: [*range(5, 10)]}
            assert trio.current_time() - began < 8


async def test_what_a_broker_has_lost_is_not_skipped(
    autojump_clock: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The log's tail went with the power, and more came since than was lost: the consumer goes on
    where its log and the broker's part, and says so."""
    world = SimulatedWorld(1)
    async with open_broker(world, SETTINGS | {"flush": "never"}) as broker:
        reading = Reading(world, broker)
        await reading.fill(5)
        async with reading.consumer() as consumer:
            await consumer.assign_topics("t")
            assert await read(consumer, 10) == {A: [*range(5)], B: [*range(5)]}
            await broker.power_off()
            await broker.start()
            await reading.fill(8)
            found = await read(consumer, 16)
    kept = {name: offsets[0] for name, offsets in found.items()}
    assert min(kept.values()) < 5
    assert found == {name: [*range(start, start + 8)] for name, start in kept.items()}
    for name, start in kept.items():
        told = f"{name} at offset 5: the log was cut to offset {start}: its leader has lost"
        assert (told in caplog.text) == (start < 5)


async def test_what_is_paused_does_not_stop_the_rest(autojump_clock: Any, reading: Reading) -> None:
    """Records that a paused partition keeps take no room of the others in fetch.max.bytes."""
    await reading.fill(30, size=300)
    options = {"fetch_max_bytes": 200, "max_partition_fetch_bytes": 200, "max_poll_records": 1}
    async with reading.consumer(**options) as consumer:
        await consumer.assign_topics("t")
        (first,) = await read(consumer, 1)
        consumer.pause(first)
        other = B if first == A else A
        assert await read(consumer, 30) == {other: [*range(30)]}
        consumer.resume()
        assert await read(consumer, 29) == {first: [*range(1, 30)]}


async def test_a_partition_that_does_not_exist_is_told(
    autojump_clock: Any, reading: Reading, caplog: pytest.LogCaptureFixture
) -> None:
    """CCO-04: it is waited for, but said once; asking for its end is an error that names it."""
    await reading.fill(3)
    async with reading.consumer(default_api_timeout_ms=3000) as consumer:
        consumer.assign([A, ("t", 7)])
        with caplog.at_level(logging.WARNING, "minibroker.client"):
            assert await read(consumer, 3) == {A: [0, 1, 2]}
            assert await consumer.poll(5) == []
        assert [record.message for record in caplog.records] == [
            "t-7 is assigned, and waited for: UNKNOWN_TOPIC_OR_PARTITION:"
            " topic 't' has 2 partitions, numbered from 0: there is no t-7"
        ]
        with pytest.raises(BrokerError, match="2 partitions, numbered from 0: there is no t-7"):
            await consumer.end_offsets()


async def test_a_topic_that_nobody_creates_is_told(autojump_clock: Any) -> None:
    """With auto.create.topics.enable off the error says that there is none, and what to do."""
    world = SimulatedWorld(1)
    async with open_broker(world, {"auto.create.topics.enable": "false"}) as broker:
        seams = world.seams("client")
        missing = "no topic 'none'.* create it first"
        async with Producer(broker.address, seams=seams, max_block_ms=3000) as producer:
            with pytest.raises(BrokerError, match=missing) as raised:
                await producer.send_and_wait("none", b"x")
        assert raised.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        async with Consumer(broker.address, seams=seams, default_api_timeout_ms=3000) as consumer:
            with pytest.raises(BrokerError, match=missing):
                await consumer.assign_topics("none")
            consumer.assign([("none", 0)])
            with pytest.raises(BrokerError, match=missing):
                await consumer.end_offsets()


async def test_a_silent_broker_is_named(autojump_clock: Any, reading: Reading) -> None:
    """Who gets no answer is told from whom, and whether the request may have been done."""
    address = reading.broker.address
    async with Admin(
        address, seams=reading.world.seams("admin"), default_api_timeout_ms=3000
    ) as admin:
        await admin.create_topics("w")
        assert await admin.list_topics() == ["w"]
        reading.world.network.hold("admin", reading.broker.name)
        with pytest.raises(Exception, match=f"METADATA: {address} is silent"):
            await admin.list_topics()
        with pytest.raises(Exception, match=f"it was done is not known: {address} is silent"):
            await admin.create_topics("x")


async def test_a_partition_may_be_a_plain_tuple(autojump_clock: Any, reading: Reading) -> None:
    """Everywhere, not only in assign; a place that no log can have is refused at once."""
    await reading.fill(20)
    async with reading.consumer() as consumer:
        consumer.assign([("t", 0)])
        assert await consumer.end_offsets(("t", 0)) == {A: 20}
        await consumer.seek_to_time(0, ("t", 0))
        assert consumer.position(("t", 0)) == 0
        for wrong in (-1, 2**63):
            with pytest.raises(ValueError, match=r"0 to"):
                consumer.seek(("t", 0), wrong)
            with pytest.raises(ValueError, match=r"0 to"):
                await consumer.seek_to_time(wrong)
        assert await read(consumer, 20) == {A: [*range(20)]}
