"""A broker that has forgotten a producer accepts what it sends next (R7, PID-09)."""

import trio

from minibroker.client import Admin, Consumer, Producer
from minibroker.testing.cluster import SimulatedWorld, open_broker, simulate


def test_a_producer_that_was_idle_too_long_goes_on():
    """After producer.id.expiration.ms its next batch is delivered, at once."""

    async def main() -> None:
        world = SimulatedWorld(1)
        settings = {
            "producer.id.expiration.check.interval.ms": "500",
            "producer.id.expiration.ms": "5000",
        }
        async with open_broker(world, settings) as broker:
            async with Producer(broker.address, seams=world.seams("producer")) as producer:
                for number in range(3):
                    await producer.send_and_wait("t", b"%d" % number)
                    await trio.sleep(6)
                with trio.fail_after(2):
                    told = await producer.send_and_wait("t", b"3")
            assert told.offset == 3
            assert await values(world, broker.address) == [b"0", b"1", b"2", b"3"]

    simulate(main, 1)


def test_a_topic_that_was_made_anew_is_produced_to():
    """A running producer meets a log without its state: it goes on from its beginning."""

    async def main() -> None:
        world = SimulatedWorld(2)
        async with open_broker(world) as broker:
            admin = Admin(broker.address, seams=world.seams("admin"))
            producer = Producer(broker.address, seams=world.seams("producer"))
            async with admin, producer:
                for number in range(3):
                    await producer.send_and_wait("t", b"%d" % number)
                await admin.delete_topics("t")
                await admin.create_topics("t")
                with trio.fail_after(5):
                    told = await producer.send_and_wait("t", b"3")
            assert told.offset == 0
            assert await values(world, broker.address) == [b"3"]

    simulate(main, 2)


async def values(world: SimulatedWorld, address: str) -> list[bytes | None]:
    """All that is in the topic."""
    options = {"auto_offset_reset": "earliest", "seams": world.seams("consumer")}
    async with Consumer(address, **options) as consumer:
        await consumer.assign_topics("t")
        return [record.value for record in await consumer.poll(5.0)]
