"""Many partitions: the work of coming back must not cost a broker its next session.

What an order costs is charged in virtual time. Each partition here stands for ten: what one costs
is ten times of what a busy machine takes for one, and orders are a tenth as large. So taking all
roles takes a broker 1.5 s, and its session lasts 1 s: that is how 5,000 partitions once kept a
cluster in a storm for ever. With orders as large as they were then the test finds the storm.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pytest
import trio

from minibroker.broker.controller import pushes
from minibroker.client.admin import Admin, NewTopic
from minibroker.testing.cluster import SimulatedCluster, SimulatedWorld, open_cluster, simulate
from minibroker.testing.costs import Costs, Prices, costly, costs_of
from tests.support.seeds import rest_in_soak

PARTITIONS = 300
PRICES = Prices(role_s=0.005, image_s=0.0005)
SETTINGS = {"broker.session.timeout.ms": "1000", "broker.heartbeat.interval.ms": "250"}
PATIENCE_S = 60.0
SESSION_ENDED = re.compile("Its session ended")


SCALE = 10
LARGE = {"ROLES_WEIGHT_MAX": 2_000, "METADATA_WEIGHT_MAX": 2_000, "MAKING_WEIGHT": 500}
PRESENT = {name: getattr(pushes, name) for name in LARGE}


class Storm(AssertionError):
    """The cluster does not come to rest."""


@contextmanager
def orders_of(sizes: Mapping[str, int]) -> Iterator[None]:
    """One request tells a tenth of this."""
    with pytest.MonkeyPatch.context() as patch:
        for name, size in sizes.items():
            patch.setattr(pushes, name, size // SCALE)
        yield


async def until_in_sync(cluster: SimulatedCluster, admin: Admin) -> None:
    """Until every partition has all its replicas in sync, as clients are told."""
    with trio.move_on_after(PATIENCE_S):
        while True:
            (topic,) = await admin.describe_topics("many")
            if all(len(one.isr) == 3 and one.leader_id > 0 for one in topic.partitions):
                return
            await trio.sleep(0.5)
    raise Storm


async def create(cluster: SimulatedCluster, admin: Admin) -> None:
    """The partitions of the scenario."""
    await admin.create_topics(NewTopic("many", PARTITIONS, 3))
    await until_in_sync(cluster, admin)


async def epochs_of(cluster: SimulatedCluster) -> list[int]:
    """The leader epoch of each partition, as a broker has it."""
    replicas = cluster.brokers[1].replicas
    assert replicas is not None
    return [one.leader_epoch for one in replicas.image.topics["many"].partitions]


def test_a_broker_that_returns_keeps_its_session(caplog: pytest.LogCaptureFixture) -> None:
    """Killed and started again with all its partitions to take: nobody loses a session, and each
    partition is elected when the broker goes and not again."""
    caplog.set_level("INFO")

    async def main() -> None:
        world = SimulatedWorld(1)
        async with (
            costs_of(world) as costs,
            open_cluster(world, SETTINGS, 3, costly(costs, PRICES)) as cluster,
            Admin(cluster.address, seams=world.seams("client")) as admin,
        ):
            await create(cluster, admin)
            caplog.clear()
            await cluster.brokers[0].kill()
            await trio.sleep(5)
            await cluster.brokers[0].start()
            await until_in_sync(cluster, admin)
            assert max(await epochs_of(cluster)) <= 1

    with orders_of(PRESENT):
        simulate(main, 1)
    assert not SESSION_ENDED.search(caplog.text)


async def press(costs: Costs, world: SimulatedWorld, seconds: float) -> None:
    """Load that comes from outside: it keeps brokers busy for longer than their sessions."""
    rng = world.rng("load")
    with trio.move_on_after(seconds):
        while True:
            costs.charge(f"broker-{rng.randint(1, 3)}", rng.uniform(0.2, 1.6))
            await trio.sleep(rng.uniform(0.1, 1.0))


def pass_through_load(seed: int) -> None:
    """Sessions are lost under the load; when it has passed, the cluster comes to rest for good."""

    async def main() -> None:
        world = SimulatedWorld(seed)
        async with (
            costs_of(world) as costs,
            open_cluster(world, SETTINGS, 3, costly(costs, PRICES)) as cluster,
            Admin(cluster.address, seams=world.seams("client")) as admin,
        ):
            await create(cluster, admin)
            before = await epochs_of(cluster)
            await press(costs, world, 15.0)
            assert await epochs_of(cluster) != before, "the load was none"
            await until_in_sync(cluster, admin)
            rested = await epochs_of(cluster)
            await trio.sleep(20)
            await until_in_sync(cluster, admin)
            if await epochs_of(cluster) != rested:
                raise Storm

    simulate(main, seed)


@pytest.mark.parametrize("seed", rest_in_soak(range(3)))
def test_a_storm_ends_by_itself(seed: int) -> None:
    """Repeat: `python -m pytest tests/sim/test_storm.py -k "by_itself and SEED"`."""
    with orders_of(PRESENT):
        pass_through_load(seed)


def test_large_orders_are_a_storm() -> None:
    """With the rule from before it was mended, the same scenario never ends."""
    with orders_of(LARGE), pytest.raises(BaseExceptionGroup) as caught:
        pass_through_load(0)
    assert caught.group_contains(Storm)
