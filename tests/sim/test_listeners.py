"""Several listeners: each client is told the addresses of the one that it came in by."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from minibroker.broker.controller import entries
from minibroker.broker.server.listener import CannotListen, listen
from minibroker.client.consumer.consumer import Consumer
from minibroker.client.net.channel import ChannelOptions, open_channel
from minibroker.client.producer.producer import Producer
from minibroker.protocol.constants import ApiKey
from minibroker.protocol.messages.groups import FindCoordinatorRequest
from minibroker.protocol.messages.metadata import MetadataRequest
from minibroker.protocol.types import Endpoint, NamedEndpoint
from minibroker.testing.cluster import SimulatedBroker, SimulatedWorld

INSIDE, OUTSIDE = 9092, 9093
REPLICAS = {"default.replication.factor": "3", "offsets.topic.replication.factor": "3"}


def listening(node_id: int) -> dict[str, str]:
    """The listeners of one broker; brokers 1 and 2 have one for clients that broker 3 lacks."""
    both = f"OUTSIDE://broker-{node_id}:{OUTSIDE},INSIDE://broker-{node_id}:{INSIDE}"
    listeners = both if node_id < 3 else f"INSIDE://broker-{node_id}:{INSIDE}"
    return {"listeners": listeners, "inter.broker.listener.name": "INSIDE"}


@asynccontextmanager
async def three_brokers(world: SimulatedWorld) -> AsyncIterator[list[SimulatedBroker]]:
    async with trio.open_nursery() as nursery:
        brokers = [
            SimulatedBroker(world, nursery, REPLICAS | listening(number), number)
            for number in (1, 2, 3)
        ]
        for broker in brokers:
            await broker.start()
        yield brokers
        for broker in brokers:
            broker.crash()


@pytest.mark.parametrize(
    ("port", "told"),
    [(OUTSIDE, [OUTSIDE, OUTSIDE, INSIDE]), (INSIDE, [INSIDE, INSIDE, INSIDE])],
)
async def test_who_came_by_a_listener_is_told_its_addresses(
    autojump_clock: trio.testing.MockClock, port: int, told: list[int]
) -> None:
    """METADATA and FIND_COORDINATOR tell the addresses of every broker by the listener that the
    client came in by; of a broker that lacks it, that among brokers."""
    world = SimulatedWorld(1)
    async with three_brokers(world):
        network = world.network.host("client")
        async with open_channel(network, Endpoint("broker-1", port), ChannelOptions()) as channel:
            answer = await channel.call(ApiKey.METADATA, MetadataRequest(("t",)))
            keepers = set()
            for group in map(str, range(20)):
                request = FindCoordinatorRequest(group)
                keeper = await channel.call(ApiKey.FIND_COORDINATOR, request)
                keepers.add((keeper.node_id, keeper.host, keeper.port))
    wanted = [(number, f"broker-{number}", told[number - 1]) for number in (1, 2, 3)]
    assert [(one.node_id, one.host, one.port) for one in answer.brokers] == wanted
    assert len(keepers) > 1
    assert keepers <= set(wanted)


async def test_brokers_reach_each_other_by_their_own(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Copying, control and clients at one time, each by its listener: all records arrive, and a
    registration in the store says all addresses."""
    world = SimulatedWorld(2)
    async with three_brokers(world) as brokers:
        outside = [f"broker-{number}:{OUTSIDE}" for number in (1, 2)]
        async with Producer(outside, seams=world.seams("client")) as producer:
            for number in range(10):
                await producer.send("t", b"%d" % number)
        seams = world.seams("client")
        async with Consumer(outside, seams=seams, auto_offset_reset="earliest") as consumer:
            await consumer.assign_topics("t")
            values = []
            async for record in consumer:
                values.append(record.value)
                if len(values) == 10:
                    break
        assert values == [b"%d" % number for number in range(10)]
        for broker in brokers:
            assert broker.replicas is not None
            known = broker.replicas.image.brokers
            assert [one.endpoint.port for one in known.values()] == [INSIDE] * 3
        found = entries.read_brokers((await world.store.get("brokers/")).entries)
        assert found[1].endpoint == Endpoint("broker-1", INSIDE)
        assert set(map(str, found[1].listeners)) == {
            "INSIDE://broker-1:9092",
            "OUTSIDE://broker-1:9093",
        }


async def test_an_address_that_is_taken_gives_the_others_back() -> None:
    """The error names the listener, and those that were bound before it are free again."""
    world = SimulatedWorld(3)
    network = world.network.host("broker")
    await network.listen(Endpoint("broker", 2))
    wanted = [NamedEndpoint("A", "broker", 1), NamedEndpoint("B", "broker", 2)]
    with pytest.raises(CannotListen, match="listener B: ") as raised:
        await listen(network, wanted)
    assert raised.value.listener == wanted[1]
    await network.listen(Endpoint("broker", 1))
