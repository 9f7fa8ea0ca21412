"""Records that are not in the page cache: their reader waits for the disk, and no other client.

The simulated disk tells how long the loop stood still for it (`stalled_s`); virtual time stands
still for all with the loop, so a producer beside the reader measures the same.
"""

import struct
from collections.abc import Awaitable, Callable

import pytest
import trio

from minibroker.client import Consumer, Producer, TopicPartition
from minibroker.client.net.network import Stream
from minibroker.protocol.constants import ApiKey
from minibroker.protocol.types import Endpoint
from minibroker.testing.cluster import (
    EPOCH_MS,
    PORT,
    SimulatedBroker,
    SimulatedWorld,
    open_broker,
    simulate,
)

NAME = TopicPartition("t", 0)
SETTINGS = {
    "num.partitions": "1",
    "log.segment.bytes": "50000",
    "log.index.interval.bytes": "4096",
    "offsets.topic.num.partitions": "1",
}
RECORDS = 150
VALUE = b"v" * 1000
READ_S = 3.0
LATENCY_S_MAX = 0.1


async def fill(broker: SimulatedBroker, world: SimulatedWorld) -> None:
    """Write some segments, and take them out of the page cache, as a restart of the machine does.
    The group "g" has committed an offset."""
    async with Producer(broker.address, seams=world.seams("first"), batch_size=3000) as producer:
        for number in range(RECORDS):
            await producer.send("t", VALUE, partition=0, timestamp_ms=EPOCH_MS + number)
    async with Consumer(broker.address, group_id="g", seams=world.seams("first")) as consumer:
        await consumer.assign_topics("t")
        consumer.seek(NAME, 7)
        await consumer.commit()
    async with Producer(broker.address, seams=world.seams("first")) as producer:
        await producer.send_and_wait("other", b"v")
    await broker.stop()
    await broker.start()
    broker.files.read_s = READ_S
    broker.files.evict()


async def produce_on(
    broker: SimulatedBroker, world: SimulatedWorld, latencies: list[float]
) -> None:
    """Send a record every tenth of a second; measure how long each acknowledgement takes."""
    async with Producer(broker.address, seams=world.seams("second")) as producer:
        while True:
            began = trio.current_time()
            await producer.send_and_wait("other", b"v")
            latencies.append(trio.current_time() - began)
            await trio.sleep(0.1)


async def read_all(broker: SimulatedBroker, world: SimulatedWorld) -> None:
    """Read all records, from the oldest on."""
    async with Consumer(
        broker.address, seams=world.seams("reader"), auto_offset_reset="earliest"
    ) as consumer:
        await consumer.assign_topics("t")
        offsets: list[int] = []
        while len(offsets) < RECORDS:
            offsets += [record.offset for record in await consumer.poll(1.0)]
        assert offsets == [*range(RECORDS)]


async def read_on_kafkas_wire(broker: SimulatedBroker, world: SimulatedWorld) -> None:
    """Read a record of each segment, as Kafka's clients ask for it."""
    stream = await world.network.host("reader").connect(Endpoint(broker.name, PORT))
    for offset in range(0, RECORDS, 40):
        partition = struct.pack(">iiqi", 1, 0, offset, 1)
        body = struct.pack(">iiiibih1s", -1, 500, 1, 1 << 20, 0, 1, 1, b"t") + partition
        head = struct.pack(">hhih", ApiKey.FETCH, 4, offset, 0)
        await stream.send([struct.pack(">i", len(head) + len(body)) + head + body])
        [size] = struct.unpack(">i", await receive(stream, 4))
        answer = await receive(stream, size)
        assert int.from_bytes(answer[:4], "big") == offset
        assert VALUE in answer
    stream.close()


async def receive(stream: Stream, size: int) -> bytes:
    """Exactly so many bytes."""
    received = bytearray(size)
    view = memoryview(received)
    while view:
        view = view[await stream.receive_into(view) :]
    return bytes(received)


async def look_up_times(broker: SimulatedBroker, world: SimulatedWorld) -> None:
    """Look up the record of a time in each segment."""
    async with Consumer(broker.address, seams=world.seams("reader")) as consumer:
        await consumer.assign_topics("t")
        for number in range(5, RECORDS, 20):
            found = await consumer.offsets_for_times({NAME: EPOCH_MS + number})
            assert found[NAME] is not None
            assert found[NAME].offset == number


async def ask_for_commits(broker: SimulatedBroker, world: SimulatedWorld) -> None:
    """Ask for what a group has committed, which the coordinator has to read again."""
    async with Consumer(broker.address, group_id="g", seams=world.seams("reader")) as consumer:
        await consumer.assign_topics("t")
        committed = (await consumer.committed(NAME))[NAME]
        assert committed is not None
        assert committed.offset == 7


Read = Callable[[SimulatedBroker, SimulatedWorld], Awaitable[None]]


@pytest.mark.parametrize("read", [read_all, read_on_kafkas_wire, look_up_times, ask_for_commits])
def test_a_reader_of_what_is_not_cached_delays_no_other(read: Read) -> None:
    """A producer's acknowledgements come as quickly as ever while the disk takes seconds."""

    async def main() -> None:
        world, latencies = SimulatedWorld(1), []
        async with open_broker(world, SETTINGS) as broker:
            await fill(broker, world)
            began = trio.current_time()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(produce_on, broker, world, latencies)
                await read(broker, world)
                nursery.cancel_scope.cancel()
            assert trio.current_time() - began > READ_S, "the disk was read"
            assert broker.files.stalled_s == 0
            assert len(latencies) > 10 * READ_S
            assert max(latencies) < LATENCY_S_MAX

    simulate(main, 1)
