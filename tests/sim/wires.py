"""The scenario of `cluster.py`, in which connections break all the time.

They break between brokers, in one direction or both, and between brokers and the store.
Controllers are cut off, lose the store, pause and die. The load, the checkers, and the rest that
must come after everything is healed are those of `cluster.py`. The seed also draws the number of
replicas and how many must be in sync.
"""

from itertools import permutations

import trio

from minibroker.client.admin import NewTopic
from minibroker.testing.cluster import SimulatedBroker, SimulatedWorld
from tests.sim.cluster import Scenario
from tests.sim.faults import Chaos
from tests.sim.workload import TOPIC

CALM_S = 3.0  # between two faults of one wire, on average
BROKEN_S_MAX = 4.0
ISOLATED_S = (2.0, 6.0)


class BrokenWires(Chaos):
    """See the head of this module."""

    async def run(self, duration_s: float) -> None:
        """Do harm for a while; return when everything is healed and everybody runs."""
        names = [each.name for each in self._cluster.brokers]
        async with trio.open_nursery() as nursery:
            with trio.move_on_after(duration_s):
                async with trio.open_nursery() as faults:
                    for wire in permutations(names, 2):
                        faults.start_soon(self._break_wire, *wire)
                    faults.start_soon(self._break_store)
                    faults.start_soon(self._slow_disk)
                    faults.start_soon(self._isolate_controller)
                    faults.start_soon(self._harm_controller, nursery)
                    faults.start_soon(self._tempt, nursery)
            self._world.network.heal()
            for broker in self._cluster.brokers:
                broker.link.heal()

    def _count(self, name: str, text: str) -> None:
        self.counts[name] = self.counts.get(name, 0) + 1
        self._watcher.note(text)

    async def _calm(self, factor: float = 1.0) -> None:
        await trio.sleep(self._rng.expovariate(1 / (CALM_S * factor)))

    async def _break_wire(self, source: str, target: str) -> None:
        network = self._world.network
        while True:
            await self._calm()
            lasts_s = self._rng.uniform(0.1, BROKEN_S_MAX)
            if self._rng.random() < 0.3:
                self._count("cut", f"cut {source} {target} for {lasts_s:.1f} s")
                network.cut(source, target)
                await trio.sleep(lasts_s)
                network.mend(source, target)
            else:
                self._count("hold", f"hold {source} to {target} for {lasts_s:.1f} s")
                network.hold(source, target)
                await trio.sleep(lasts_s)
                network.release(source, target)

    def _draw(self) -> SimulatedBroker:
        """The controller, or any broker."""
        governing = self._watcher.controller
        if governing > 0 and self._rng.random() < 0.5:
            return self._cluster.broker(governing)
        return self._rng.choice(self._cluster.brokers)

    async def _break_store(self) -> None:
        while True:
            await self._calm(2)
            link = self._draw().link
            self._count("store", "break a way to the store")
            link.cut() if self._rng.random() < 0.5 else link.hold()
            await trio.sleep(self._rng.uniform(0.1, BROKEN_S_MAX))
            link.heal()

    async def _slow_disk(self) -> None:
        """With flush=always a follower lacks records for so long, and asks for nothing."""
        while True:
            await self._calm(2)
            files = self._draw().files
            self._count("slow disk", "slow down a disk")
            usual_s, files.sync_s = files.sync_s, self._rng.uniform(0.5, BROKEN_S_MAX)
            try:
                await trio.sleep(self._rng.uniform(0.1, BROKEN_S_MAX))
            finally:
                files.sync_s = usual_s

    async def _isolate_controller(self) -> None:
        network = self._world.network
        while True:
            await self._calm(2)
            victim = self._draw()
            others = [each.name for each in self._cluster.brokers if each is not victim]
            self._count("isolate", f"isolate {victim.name}")
            for other in others:
                network.cut(victim.name, other)
            await trio.sleep(self._rng.uniform(*ISOLATED_S))
            for other in others:
                network.mend(victim.name, other)

    async def _harm_controller(self, nursery: trio.Nursery) -> None:
        while True:
            await self._calm(2)
            victim = self._draw()
            if victim.is_paused or not victim.is_serving:
                continue
            if self._rng.random() < 0.5:
                self._count("pause", f"pause {victim.name}")
                nursery.start_soon(self._pause_for, victim, self._rng.uniform(0.2, 3))
            else:
                self._count("kill", f"kill {victim.name}")
                nursery.start_soon(self._kill_for, victim, self._rng.uniform(0.2, 3))

    async def _pause_for(self, victim: SimulatedBroker, lasts_s: float) -> None:
        victim.pause()
        await trio.sleep(lasts_s)
        victim.resume()

    async def _kill_for(self, victim: SimulatedBroker, lasts_s: float) -> None:
        await victim.kill()
        await trio.sleep(lasts_s)
        await victim.start()

    # -- what leads a broker into believing too long

    async def _tempt(self, nursery: trio.Nursery) -> None:
        """Each of these needs several things at once, which chance seldom brings together."""
        while True:
            await self._calm(2)
            leader = self.targets.leader()
            controller = self.targets.free_broker(self._watcher.controller)
            if leader is None or controller in (None, leader) or controller is None:
                continue
            tempt = self._rng.choice((self._succeed, self._delay, self._outlive))
            self._count("tempt", f"{tempt.__name__} {controller.name} {leader.name}")
            await tempt(nursery, controller, leader)

    async def _succeed(
        self, nursery: trio.Nursery, controller: SimulatedBroker, leader: SimulatedBroker
    ) -> None:
        """A broker is fenced and not told; the next controller hears it, and must tell it first."""
        network = self._world.network
        network.cut(controller.name, leader.name)
        await trio.sleep(self._rng.uniform(2.0, 3.0))
        if controller.is_serving and not controller.is_paused:
            nursery.start_soon(self._kill_for, controller, self._rng.uniform(0.2, 3))
        for each in self._cluster.brokers:
            if each is not leader:
                network.mend(each.name, leader.name)
                network.release(each.name, leader.name)
                network.release(leader.name, each.name)
        await trio.sleep(self._rng.uniform(2.0, 3.0))

    async def _delay(
        self, _nursery: trio.Nursery, controller: SimulatedBroker, leader: SimulatedBroker
    ) -> None:
        """A confirmation is under way for long, and what follows it is lost."""
        network, there, back = self._world.network, controller.name, leader.name
        network.hold(there, back)
        await trio.sleep(self._rng.uniform(0.5, 1.8))
        network.hold(back, there)
        network.release(there, back)
        await trio.sleep(0.05)
        network.hold(there, back)
        await trio.sleep(self._rng.uniform(2.0, 4.0))
        network.release(there, back)
        network.release(back, there)

    async def _outlive(
        self, _nursery: trio.Nursery, controller: SimulatedBroker, leader: SimulatedBroker
    ) -> None:
        """A controller loses the store and reaches a leader that its successor does not reach."""
        network = self._world.network
        others = [each for each in self._cluster.brokers if each not in (controller, leader)]
        network.mend(controller.name, leader.name)
        controller.link.cut()
        for other in others:
            network.cut(other.name, leader.name)
        await trio.sleep(self._rng.uniform(3.5, 5.0))
        controller.link.heal()
        for other in others:
            network.mend(other.name, leader.name)


class WiresScenario(Scenario):
    """See the head of this module."""

    chaos_type = BrokenWires
    chaos_s = 30.0

    def draw_topic(self, world: SimulatedWorld, partitions: int) -> NewTopic:
        """Two or three replicas of each partition; one in sync may be enough. Of topics that are
        deleted meanwhile two must be in sync, or a leader that is cut off acknowledges records of
        a former one (docs/guarantees.md)."""
        rng = world.rng("topic")
        configs = {"min.insync.replicas": rng.choice(("1", "2"))}
        return NewTopic(TOPIC, partitions, rng.choice((2, 3)), configs)
