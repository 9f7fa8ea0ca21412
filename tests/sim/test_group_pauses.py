"""Members that keep their partitions read on, however long the others take to assign anew.

A member stands still while others join: the group waits for it in each phase of a rebalance, for
longer than `GAP_S_MAX`. An application that commits by itself may wait in its own `commit`, since
no offsets are taken while the assignment of a generation is not there yet: that is no pause of what
it reads, and does not count.
"""

from functools import partial
from itertools import pairwise

import pytest
import trio

from minibroker.client import Admin, NewTopic
from minibroker.client.groups.membership import Membership, State
from minibroker.testing.cluster import SimulatedWorld, open_cluster, simulate
from minibroker.testing.mutants import patched
from tests.sim.cluster import NETWORK
from tests.sim.group_members import Life, Stage, trickle
from tests.sim.group_scenario import GAP_S_MAX
from tests.sim.test_group_coordinators import FATES, SETTINGS
from tests.sim.workload import TOPIC, Clients
from tests.support.seeds import rest_in_soak

SEEDS = range(3)
PARTITIONS = 4
MEMBERS = 4
PAUSE_S = 3.0
PATIENCE_S = 60.0


class Waiting(Life):
    """A member that knows when it stood still."""

    def __init__(self, stage: Stage, slot: int) -> None:
        super().__init__(stage, slot, 0)
        self.stills: list[tuple[float, float]] = []

    async def pause(self, duration_s: float) -> None:
        """Note it."""
        since = trio.current_time()
        await super().pause(duration_s)
        self.stills.append((since, trio.current_time()))


async def rebalance_beside_who_stands_still(seed: int, *, is_auto_commit: bool) -> float:
    """Have members join one after another, while one of those before stands still. Returns the
    longest pause between two records of a partition that was kept, of members that did not stand
    still then."""
    world = SimulatedWorld(seed, NETWORK)
    rng = world.rng("pauses")
    async with open_cluster(world, SETTINGS, 3) as cluster:
        clients = Clients(world, cluster.address, PARTITIONS)
        fates = FATES._replace(is_auto_commit=is_auto_commit)
        stage = Stage(world, cluster.address, PARTITIONS, fates)
        async with Admin(cluster.address, seams=world.seams("admin")) as admin:
            await admin.create_topics(NewTopic(TOPIC, PARTITIONS))
        lives: list[Waiting] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trickle, clients)
            for number in range(MEMBERS):
                lives.append(Waiting(stage, number))
                nursery.start_soon(lives[-1].run)
                if number:
                    await trio.sleep(rng.uniform(0.0, 0.6))
                    await lives[rng.randrange(number)].pause(PAUSE_S)
                await wait_for_all(stage, lives)
            clients.stop.set()
            await trio.sleep(1)
            for life in lives:
                life.leaving.set()
    stills = {life.who: life.stills for life in lives}
    holdings = stage.group.holdings
    return max(
        holdings.pause_s(holding.who, before, after)
        for holding in holdings.all
        for (before, _), (after, _) in pairwise(holding.shown)
        if not any(since < after and before < until for since, until in stills[holding.who])
    )


async def wait_for_all(stage: Stage, lives: list[Waiting]) -> None:
    """Until each has a partition, and a second more."""
    names = {each.who for each in lives}
    with trio.fail_after(PATIENCE_S):
        while {who for who, _ in stage.group.holdings.held} != names:  # noqa: ASYNC110
            await trio.sleep(0.05)
    await trio.sleep(1)


def play(seed: int, *, is_auto_commit: bool) -> float:
    """One deterministic run."""
    scenario = partial(rebalance_beside_who_stands_still, seed, is_auto_commit=is_auto_commit)
    return simulate(scenario, seed)


def is_rebalancing(member: Membership, _now: float) -> bool:
    """A member that hands out no records while the group assigns anew."""
    return member.state in (State.JOINING, State.SYNCING)


@pytest.mark.parametrize("is_auto_commit", [True, False], ids=["auto-commit", "commit"])
@pytest.mark.parametrize("seed", rest_in_soak(SEEDS))
def test_who_keeps_a_partition_reads_on(seed: int, is_auto_commit: bool) -> None:
    """Nobody waits for the one that stands still but the partitions that move."""
    assert play(seed, is_auto_commit=is_auto_commit) < GAP_S_MAX


def test_who_waits_for_the_rebalance_is_found() -> None:
    """With the rule broken the pause is as long as the one that stands still."""
    with patched(Membership, "is_in_doubt", is_rebalancing):
        assert any(play(seed, is_auto_commit=True) > GAP_S_MAX for seed in SEEDS)
