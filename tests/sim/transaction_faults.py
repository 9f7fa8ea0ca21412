"""Faults that come at the moments of a transaction: its end is asked for, or was told.

Beside them there are all faults of `faults.py` and `group_scenario.py`. Those that hit coordinators
also hit the coordinators of transactions.
"""

from contextlib import AsyncExitStack
from typing import Final

import trio

from minibroker.protocol.constants import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from minibroker.testing.cluster import SimulatedBroker, SimulatedCluster, SimulatedWorld
from tests.sim.compaction import AgreeingClocks
from tests.sim.copiers import OUTPUT, TABLE, Moment, Stage
from tests.sim.faults import SESSION_S
from tests.sim.group_scenario import GroupChaos
from tests.sim.sights import Watcher

COORDINATORS: Final = (OFFSETS_TOPIC, TRANSACTIONS_TOPIC)
MOMENT_S_MAX: Final = 2.0  # for which a fault waits
LOOKS: Final = 20  # at who leads, meanwhile


class TransactionChaos(GroupChaos):
    """See the head of this module."""

    coordinator_topics = COORDINATORS

    def __init__(
        self,
        world: SimulatedWorld,
        cluster: SimulatedCluster,
        watcher: Watcher,
        stage: Stage,
        *,
        is_flushed: bool,
    ) -> None:
        super().__init__(world, cluster, watcher, is_flushed)
        self._stage = stage
        self._faults |= {
            "kill a coordinator that has decided": (5, self._kill_decided),
            "lose a marker": (6, self._lose_marker),
            "delay a decision": (6, self._delay_decision),
            "miss a marker": (6, self._miss_marker),
        }

    def _leader_of(self, *topics: str) -> SimulatedBroker | None:
        """Who leads some partition of these topics, if it is free."""
        led = [each.leader for each in self._watcher.agreed.values() if each.name.topic in topics]
        return self.targets.free_broker(self._rng.choice(led)) if led else None

    async def _await(self, moment: Moment) -> None:
        with trio.move_on_after(MOMENT_S_MAX):
            await moment.wait()

    async def _kill_decided(self) -> None:
        """Its markers are not written yet, or not all."""
        await self._await(self._stage.ended)
        await self._kill_one(self._leader_of(TRANSACTIONS_TOPIC))

    async def _lose_marker(self) -> None:
        """A leader dies when it has a marker that its successor lacks, and of which the coordinator
        has heard. Nothing else happens to the three of them meanwhile."""
        roles = None
        for _ in range(LOOKS):
            roles = self._marker_roles()
            if roles is not None:
                break
            await trio.sleep(MOMENT_S_MAX / LOOKS)
        if roles is None:
            return
        leader, heir, _ = roles
        async with AsyncExitStack() as stack:
            for each in roles:
                text = f"lose a marker of {leader.name}" if each is leader else ""
                await stack.enter_async_context(self.targets.take(each.name, text))
            await self._await(self._stage.ending)
            held = await self._take_wires(stack, leader, [heir])
            await trio.sleep(self._rng.uniform(0.05, 0.4))
            await leader.kill()
            # Until its heir leads: what was held must not arrive before.
            await trio.sleep(SESSION_S + self._rng.uniform(0.2, 1.0))
            self._release(held)
            await self._start(leader)

    def _marker_roles(self) -> tuple[SimulatedBroker, SimulatedBroker, SimulatedBroker] | None:
        """The leader of a partition with transactions, who is elected after it, and a coordinator,
        if all of them are free, and three."""
        coordinator = self._leader_of(TRANSACTIONS_TOPIC)
        found: list[tuple[SimulatedBroker, SimulatedBroker, SimulatedBroker]] = []
        for each in self._watcher.agreed.values():
            heirs = [node for node in each.replicas if node in each.isr and node != each.leader]
            if each.name.topic not in (OUTPUT, TABLE) or not heirs or coordinator is None:
                continue
            leader = self.targets.free_broker(each.leader)
            heir = self.targets.free_broker(heirs[0])
            if leader is not None and heir is not None and coordinator not in (leader, heir):
                found.append((leader, heir, coordinator))
        return self._rng.choice(found) if found else None

    async def _delay_decision(self) -> None:
        """A coordinator's followers do not get what it has decided, for a while."""
        coordinator = self._leader_of(TRANSACTIONS_TOPIC)
        if coordinator is None:
            return
        others = [each for each in self._cluster.brokers if each is not coordinator]
        await self._await(self._stage.ending)
        async with AsyncExitStack() as stack:
            held = await self._take_wires(stack, coordinator, others)
            await trio.sleep(self._rng.uniform(0.2, 1.2))
            self._release(held)

    async def _miss_marker(self) -> None:
        """A follower dies before a marker is written, and is away while others compact."""
        leader = self._leader_of(TABLE)
        others = [each for each in self.targets.free() if each is not leader]
        if leader is None or not others:
            return
        follower = self._rng.choice(others)
        await self._await(self._stage.ending)
        if self.targets.free_broker(follower.node_id) is None:
            return
        async with self.targets.take(follower.name, f"kill {follower.name} before a marker"):
            await follower.kill()
            await trio.sleep(self._rng.uniform(1.0, 4.0))
            await self._start(follower)

    async def _take_wires(
        self, stack: AsyncExitStack, source: SimulatedBroker, targets: list[SimulatedBroker]
    ) -> list[tuple[str, str]]:
        """Hold the wires from a broker to others, as far as nothing else happens to them."""
        wires = [(source.name, each.name) for each in targets]
        free = [wire for wire in wires if not self.targets.is_taken(frozenset(wire))]
        for wire in free:
            await stack.enter_async_context(
                self.targets.take(frozenset(wire), f"hold {wire} at an end")
            )
            self._world.network.hold(*wire)
        return free

    def _release(self, wires: list[tuple[str, str]]) -> None:
        for wire in wires:
            self._world.network.release(*wire)


class AgreeingChaos(AgreeingClocks, TransactionChaos):
    """The same, but for wrong clocks."""
