"""A topic that is deleted and made anew: which one is the newer, and who has heard of it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from minibroker.broker.metadata.model import ClusterImage
from minibroker.client import Admin, Consumer, NewTopic, Producer
from minibroker.testing.cluster import (
    SimulatedBroker,
    SimulatedCluster,
    SimulatedWorld,
    open_cluster,
    simulate,
)

SETTINGS = {"default.replication.factor": "1", "auto.create.topics.enable": "false"}
TOPIC = NewTopic("t", 1, 1)


@asynccontextmanager
async def open_trial(world: SimulatedWorld) -> AsyncIterator[tuple[SimulatedCluster, Admin]]:
    """Three brokers, and an admin of them."""
    async with open_cluster(world, SETTINGS, 3) as cluster:
        admin = Admin(cluster.address, seams=world.seams("admin"))
        async with admin:
            yield cluster, admin


def image(broker: SimulatedBroker) -> ClusterImage:
    """The cluster as a broker knows it."""
    assert broker.replicas is not None
    return broker.replicas.image


def is_made_anew(controller: SimulatedBroker, late: SimulatedBroker) -> bool:
    """Whether there is a topic that the late broker does not know, and that it does not lead."""
    topic = image(controller).topics["t"]
    return topic.id != image(late).topics["t"].id and topic.partitions[0].leader != late.node_id


@pytest.mark.parametrize("seed", range(4))
def test_a_broker_that_is_late_sends_no_consumer_back(seed: int) -> None:
    """It tells of the deleted topic as long as no controller reaches it. A consumer that has read
    the new one goes on, and reads each record once."""

    async def main() -> list[bytes | None]:
        world = SimulatedWorld(seed)
        read: list[bytes | None] = []
        async with open_trial(world) as (cluster, admin):
            await admin.create_topics(TOPIC)
            controller = cluster.broker(image(cluster.brokers[0]).controller_id)
            late = cluster.broker(controller.node_id % 3 + 1)
            for broker in cluster.brokers:
                world.network.hold(broker.name, late.name)
            options = {"seams": world.seams("consumer"), "metadata_max_age_ms": 200}
            producer = Producer(controller.address, seams=world.seams("producer"))
            async with Consumer(late.address, **options) as consumer, producer:
                await consumer.assign_topics("t")
                consumer.seek_to_beginning()
                while not is_made_anew(controller, late):
                    await admin.delete_topics("t")
                    await admin.create_topics(TOPIC)
                for number in range(3):
                    await producer.send_and_wait("t", b"%d" % number)
                for _ in range(20):
                    read += [record.value for record in await consumer.poll(1.0)]
            assert is_made_anew(controller, late)
        return read

    assert simulate(main, seed) == [b"0", b"1", b"2"]


def test_a_later_topic_has_a_higher_number():
    """Of topics of one name, whichever controllers make them."""

    async def main() -> list[int]:
        world = SimulatedWorld(1)
        numbers = []
        async with open_trial(world) as (cluster, admin):
            for _ in range(3):
                for _ in range(2):
                    await admin.create_topics(TOPIC)
                    [topic] = await admin.describe_topics("t")
                    numbers.append(topic.creation)
                    await admin.delete_topics("t")
                controller = cluster.broker((await admin.describe_cluster()).controller_id)
                await controller.kill()
                await trio.sleep(20)
                await controller.start()
        return numbers

    numbers = simulate(main, 1)
    assert sorted(set(numbers)) == numbers
    assert len({number >> 32 for number in numbers}) == 3
