"""Members between two coordinators, one of which does not know that it was replaced."""

from functools import partial

import pytest
import trio

from minibroker.broker.groups.coordinator import Coordinator
from minibroker.client import Admin, NewTopic
from minibroker.protocol.constants import OFFSETS_TOPIC, ErrorCode
from minibroker.testing.cluster import (
    SimulatedBroker,
    SimulatedCluster,
    SimulatedWorld,
    open_cluster,
    simulate,
)
from minibroker.testing.mutants import patched
from tests.sim.checkers import Violation
from tests.sim.cluster import NETWORK
from tests.sim.group_events import Lost
from tests.sim.group_loners import open_loner
from tests.sim.group_members import GROUP, Fates, Life, Stage, trickle
from tests.sim.sights import Watcher
from tests.sim.workload import TOPIC, Clients
from tests.support.seeds import rest_in_soak

SEEDS = range(3)
SEARCHED = range(3, 8)  # for a broken rule, which every other seed finds
PARTITIONS = 3
MEMBERS = 3
PATIENCE_S = 60.0
SETTINGS = {
    "default.replication.factor": "3",
    "offsets.topic.replication.factor": "3",
    "offsets.topic.num.partitions": "1",
    "min.insync.replicas": "2",
    "broker.session.timeout.ms": "1000",
    "broker.heartbeat.interval.ms": "250",
    "replica.lag.time.max.ms": "2000",
    "group.initial.rebalance.delay.ms": "0",
}
FATES = Fates(
    is_calm=True,
    assignor="cooperative-sticky",
    is_auto_commit=False,
    session_timeout_ms=20_000,
    max_poll_interval_ms=30_000,
    life_s=1.0,
    record_s=0.0,
    poll_records=(500,),
    static_slots=0,
)


class Between:
    """A group that began at a coordinator which then lost the store, and has its members at the
    next one, which dies."""

    def __init__(self, seed: int) -> None:
        self._world = SimulatedWorld(seed, NETWORK)

    async def run(self) -> int:
        """How many records the members were shown. Raises `Violation` if one lost a partition."""
        world = self._world
        async with open_cluster(world, SETTINGS, 3) as cluster:
            watcher = Watcher(world, cluster)
            clients = Clients(world, cluster.address, PARTITIONS)
            stage = Stage(world, cluster.address, PARTITIONS, FATES)
            async with Admin(cluster.address, seams=world.seams("admin")) as admin:
                await admin.create_topics(NewTopic(TOPIC, PARTITIONS))
            async with open_loner(stage, "first", GROUP) as loner:
                await loner.committed()
            first = await self._coordinator(cluster, watcher)
            first.link.cut()
            second = await self._coordinator(cluster, watcher, but=first)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trickle, clients)
                lives = [Life(stage, slot, 0) for slot in range(MEMBERS)]
                for life in lives:
                    nursery.start_soon(life.run)
                with trio.fail_after(PATIENCE_S):
                    while len(stage.group.holdings.held) < PARTITIONS:  # noqa: ASYNC110
                        await trio.sleep(0.05)
                await trio.sleep(1)
                await second.kill()
                await self._coordinator(cluster, watcher, but=second)
                await trio.sleep(3)
                first.link.heal()
                await second.start()
                await trio.sleep(3)
                clients.stop.set()
                await trio.sleep(2)
                for life in lives:
                    life.leaving.set()
            lost = [event for _, event in stage.group.history.events if isinstance(event, Lost)]
            if lost:
                raise Violation(f"though nothing was done to them: {lost}")
            return sum(len(each.shown) for each in stage.group.holdings.all)

    async def _coordinator(
        self, cluster: SimulatedCluster, watcher: Watcher, but: SimulatedBroker | None = None
    ) -> SimulatedBroker:
        """Who leads the offsets topic, once it is another broker."""
        with trio.fail_after(PATIENCE_S):
            while True:
                await watcher.look()
                for each in watcher.agreed.values():
                    is_another = but is None or each.leader != but.node_id
                    if each.name.topic == OFFSETS_TOPIC and each.leader > 0 and is_another:
                        return cluster.broker(each.leader)
                await trio.sleep(0.05)


def as_the_group_says(_: Coordinator, _group_id: str, error: int, _now: float) -> ErrorCode:
    """A coordinator that may have been replaced puts members out, too."""
    return ErrorCode(error)


def play(seed: int) -> int:
    """One deterministic run."""
    return simulate(partial(Between.run, Between(seed)), seed)


@pytest.mark.parametrize("seed", rest_in_soak(SEEDS))
def test_a_former_coordinator_puts_nobody_out(seed: int) -> None:
    """Their coordinator dies, and members ask the one before it, which has been without the store
    since before they joined: it does not know them, and they keep their partitions."""
    assert play(seed) > 30


def test_a_former_coordinator_that_puts_members_out_is_found() -> None:
    """With the rule broken a member loses its partitions, in some of the seeds."""
    with patched(Coordinator, "sure_error", as_the_group_says):
        assert any(finds(seed) for seed in SEARCHED)


def finds(seed: int) -> bool:
    """Whether a member loses a partition."""
    try:
        play(seed)
    except* Violation:
        pass
    else:
        return False
    return True
