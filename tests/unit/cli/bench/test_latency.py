"""`bench latency` measures the records of its own run, whatever else is in the topic."""

from collections.abc import Iterator
from itertools import permutations
from typing import Final

import pytest
import trio

from minibroker.cli.bench.latency import measure_latency
from minibroker.cli.terminal import Failure
from minibroker.client import Admin, NewTopic
from minibroker.testing.cluster import (
    SimulatedBroker,
    SimulatedCluster,
    SimulatedWorld,
    open_cluster,
    simulate,
)

RATE: Final = 10
HELD_S: Final = 1.0


def links(cluster: SimulatedCluster) -> Iterator[tuple[str, str]]:
    """From each broker to each other one."""
    yield from permutations([broker.name for broker in cluster.brokers], 2)


async def hold_copying(world: SimulatedWorld, cluster: SimulatedCluster) -> None:
    """For a second no follower copies anything."""
    for link in links(cluster):
        world.network.hold(*link)
    await trio.sleep(HELD_S)
    for link in links(cluster):
        world.network.release(*link)


async def kill_without_copies(
    world: SimulatedWorld, cluster: SimulatedCluster, leader: SimulatedBroker
) -> None:
    """The leader dies with records that no other has."""
    await trio.sleep(2)
    for link in links(cluster):
        world.network.hold(*link)
    await trio.sleep(1)
    await leader.kill()
    for link in links(cluster):
        world.network.release(*link)


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_a_record_from_before_the_run_is_not_measured(acks: str) -> None:
    """With acks=1 and 0 the first record, which creates the topic, may be committed only after the
    end offset was asked for: then the consumer is shown it, rightly."""

    async def main() -> None:
        world = SimulatedWorld(1)
        async with open_cluster(world, {"default.replication.factor": "3"}, 3) as cluster:
            async with Admin(cluster.address, seams=world.seams("admin")) as admin:
                await admin.create_topics(NewTopic("t", 1, 3))
            await trio.sleep(1)
            options = {"bootstrap.servers": cluster.address, "acks": acks, "linger.ms": "0"}
            async with trio.open_nursery() as nursery:
                nursery.start_soon(hold_copying, world, cluster)
                with trio.fail_after(30):
                    seams = world.seams("client")
                    figures = await measure_latency(options, "t", RATE, 2.0, seams)
            assert figures["records"] == 2 * RATE
            assert figures["max_ms"] < 1000 * HELD_S

    simulate(main, 1)


def test_records_that_were_lost_are_not_waited_for_forever() -> None:
    """With acks=1 the records of a leader that dies before its followers have them are gone."""

    async def main() -> None:
        world = SimulatedWorld(1)
        async with open_cluster(world, {"default.replication.factor": "3"}, 3) as cluster:
            async with Admin(cluster.address, seams=world.seams("admin")) as admin:
                await admin.create_topics(NewTopic("t", 1, 3))
                [topic] = await admin.describe_topics("t")
            leader = cluster.broker(topic.partitions[0].leader_id)
            options = {"bootstrap.servers": cluster.address, "acks": "1", "linger.ms": "0"}
            async with trio.open_nursery() as nursery:
                nursery.start_soon(kill_without_copies, world, cluster, leader)
                with trio.fail_after(120), pytest.raises(Failure, match=r"after \d+ records of 60"):
                    await measure_latency(options, "t", RATE, 5.0, world.seams("client"))

    simulate(main, 1)
