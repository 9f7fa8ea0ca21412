"""Racks of brokers: clients are told of them, and new topics are spread over them."""

import trio
import trio.testing

from minibroker.client.admin import Admin, NewTopic
from minibroker.testing.cluster import SimulatedBroker, SimulatedWorld

RACKS = {1: "north", 2: "north", 3: "south", 4: None}


async def test_racks_are_told_and_count_at_placement(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """METADATA has the rack of each broker. A topic has replicas in each rack; a broker that is
    started in another rack counts there."""
    world = SimulatedWorld(1)
    async with trio.open_nursery() as nursery:
        settings = {number: {"broker.rack": rack or ""} for number, rack in RACKS.items()}
        brokers = {
            number: SimulatedBroker(world, nursery, settings[number], number) for number in RACKS
        }
        for broker in brokers.values():
            await broker.start()
        async with Admin("broker-1:9092", seams=world.seams("client")) as admin:
            told = (await admin.describe_cluster()).brokers
            assert {one.node_id: one.rack for one in told} == RACKS
            await admin.create_topics(NewTopic("t", 8, 3))
            [topic] = await admin.describe_topics("t")
        for partition in topic.partitions:
            assert {RACKS[node] for node in partition.replicas} == {"north", "south", None}
        for broker in brokers.values():
            broker.crash()
