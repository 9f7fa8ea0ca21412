"""Groups on whole brokers: what a coordinator has told holds when another one takes over."""

from contextlib import suppress
from functools import partial
from typing import Any

import pytest
import trio

from minibroker.broker.replication.partition import Partition
from minibroker.broker.replication.replicas import Replicas
from minibroker.client.net.channel import ChannelOptions, ConnectionLost, open_channel
from minibroker.protocol.constants import OFFSETS_TOPIC, ApiKey, ErrorCode
from minibroker.protocol.messages.group_offsets import (
    GroupPartition,
    OffsetCommitRequest,
    OffsetFetchRequest,
    PartitionCommit,
)
from minibroker.protocol.messages.groups import FindCoordinatorRequest, FindCoordinatorResponse
from minibroker.protocol.messages.metadata import MetadataRequest
from minibroker.protocol.types import Endpoint, TopicPartition
from minibroker.testing.cluster import SimulatedCluster, SimulatedWorld, open_cluster, simulate

SETTINGS = {
    "offsets.topic.replication.factor": "3",
    "offsets.topic.num.partitions": "1",
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "replica.lag.time.max.ms": "2000",
}
PATIENCE_S = 60
T0 = GroupPartition("t", 0)
OPTIONS = ChannelOptions(request_timeout_s=2.0, connect_timeout_s=1.0)


class Client:
    """Asks for what it wants until it gets it, of whoever coordinates."""

    def __init__(self, world: SimulatedWorld, cluster: SimulatedCluster) -> None:
        self._network = world.network.host("client")
        self._cluster = cluster

    async def call(self, endpoint: Endpoint, api_key: ApiKey, message: object) -> Any:
        async with open_channel(self._network, endpoint, OPTIONS) as channel:
            return await channel.call(api_key, message)

    async def coordinator(self) -> FindCoordinatorResponse:
        """Who any broker that answers says keeps the group."""
        while True:
            for broker in self._cluster.brokers:
                endpoint = Endpoint(broker.name, 9092)
                try:
                    found = await self.call(
                        endpoint, ApiKey.FIND_COORDINATOR, FindCoordinatorRequest("g")
                    )
                except OSError:
                    continue
                assert isinstance(found, FindCoordinatorResponse)
                if not found.error:
                    return found
            await trio.sleep(0.05)

    async def of_coordinator(self, api_key: ApiKey, message: object) -> list[tuple[int, int]]:
        """Error and offset for each partition of the answer that says nothing of retrying."""
        while True:
            found = await self.coordinator()
            endpoint = Endpoint(found.host, found.port)
            try:
                answer = await self.call(endpoint, api_key, message)
            except OSError:
                await trio.sleep(0.05)
                continue
            error = getattr(answer, "error", ErrorCode.NONE)
            told = [(item.error, getattr(item, "offset", 0)) for item in answer.partitions]
            if not error and not any(code for code, _ in told):
                return told
            await trio.sleep(0.05)

    async def commit(self, offset: int) -> None:
        partitions = (PartitionCommit("t", 0, offset),)
        await self.of_coordinator(
            ApiKey.OFFSET_COMMIT, OffsetCommitRequest("g", partitions=partitions)
        )

    async def fetch(self) -> int:
        [(_, offset)] = await self.of_coordinator(
            ApiKey.OFFSET_FETCH, OffsetFetchRequest("g", (T0,))
        )
        return offset


async def fail_over(seed: int) -> None:
    """Commit while coordinators are killed, stopped, paused and cut off from the store."""
    world = SimulatedWorld(seed)
    rng = world.rng("faults")
    async with open_cluster(world, SETTINGS, 3) as cluster:
        client = Client(world, cluster)
        first = Endpoint(cluster.brokers[0].name, 9092)
        await client.call(first, ApiKey.METADATA, MetadataRequest(("t",), True))
        told = 0
        for number in range(1, 9):
            with trio.fail_after(PATIENCE_S):
                await client.commit(number * 10)
                told = max(told, number * 10)
                if rng.random() < 0.5:
                    assert await client.fetch() == told
                found = await client.coordinator()
            broker = cluster.broker(found.node_id)
            way = rng.choice(("kill", "stop", "pause", "cut"))
            if way == "kill":
                await broker.kill()
            elif way == "stop":
                await broker.stop()
            elif way == "pause":
                broker.pause()
            else:
                broker.link.cut()
            with trio.fail_after(PATIENCE_S):
                assert await client.fetch() == told, (number, way)
            broker.resume()
            broker.link.heal()
            if not broker.is_running:
                await broker.start()


@pytest.mark.parametrize("seed", range(4))
def test_a_committed_offset_never_goes_back(seed: int) -> None:
    """GRP-02: whatever becomes of coordinators, the next one answers with the offset that was
    committed last, and soon."""
    simulate(partial(fail_over, seed), seed)


class Defective(Replicas):
    """A broker whose coordinator meets what nobody expected."""

    def get(self, name: TopicPartition) -> Partition | None:
        assert name.topic != OFFSETS_TOPIC, "a defect"
        return super().get(name)


async def ask_for_a_group() -> str:
    """What a broker of that kind ended with, once there is an offsets topic."""
    world = SimulatedWorld(1)
    async with open_cluster(world, {}, 1, Defective) as cluster:
        broker = cluster.brokers[0]
        broker.may_fail = True
        client = Client(world, cluster)
        endpoint = Endpoint(broker.name, 9092)
        with suppress(ConnectionLost):
            await client.call(endpoint, ApiKey.FIND_COORDINATOR, FindCoordinatorRequest("g"))
        with trio.fail_after(PATIENCE_S):
            await broker.wait_ended()
        return repr(broker.failure)


def test_a_defect_of_the_coordinator_stops_the_broker() -> None:
    """Its task dies like any other: groups without a keeper would wait in silence."""
    assert "a defect" in simulate(ask_for_a_group, 1)
