"""What happens to a simulated cluster: faults drawn from a seed, many at once, each with its end.

A fault takes what it harms for itself (a broker, or the wire between two hosts) until it is over,
so that the end of one never mends another. Which faults come depends on what was promised: a
machine may lose power only where every ack waited for an fsync (`flush=always`; then all at once
too), or where every partition keeps an in-sync member whose tail is whole.

Whatever is cut or held lasts longer than a session now and then, and than the lag time; so leases
end, and followers that live leave the in-sync set.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import combinations
from math import inf
from random import Random

import trio

from minibroker.testing.cluster import SimulatedBroker, SimulatedCluster, SimulatedWorld
from tests.sim.sights import Watcher

GAP_S = 0.6  # between the beginnings of two faults, on average
PAUSE_S = 1.5  # how long a fault lasts, on average
STOP_S_MAX = 20.0
SESSION_S = 1.0
HOUR_MS = 3_600_000

Fault = Callable[[], Awaitable[None]]


class Targets:
    """Who may be harmed, and who is: a broker (its name) or a wire (a set of two names)."""

    def __init__(self, world: SimulatedWorld, cluster: SimulatedCluster, watcher: Watcher) -> None:
        self._world = world
        self._cluster = cluster
        self._watcher = watcher
        self._rng: Random = world.rng("targets")
        self._taken: set[object] = set()

    def is_taken(self, what: object) -> bool:
        """Whether something happens to it."""
        return what in self._taken

    def free(self) -> list[SimulatedBroker]:
        """The brokers that nothing happens to."""
        return [each for each in self._cluster.brokers if each.name not in self._taken]

    @asynccontextmanager
    async def take(self, what: object, text: str = "") -> AsyncIterator[None]:
        """Keep others from it."""
        assert what not in self._taken
        self._taken.add(what)
        if text:
            self._watcher.note(text)
        try:
            yield
        finally:
            self._taken.discard(what)

    def draw_broker(self) -> SimulatedBroker | None:
        """A free one."""
        free = self.free()
        return self._rng.choice(free) if free else None

    def free_broker(self, node_id: int) -> SimulatedBroker | None:
        """The one of this number, if it is free."""
        return next((each for each in self.free() if each.node_id == node_id), None)

    def leader(self) -> SimulatedBroker | None:
        """Who leads some partition, if it is free."""
        led = [each.leader for each in self._watcher.agreed.values()]
        return self.free_broker(self._rng.choice(led)) if led else None

    def draw_wire(self) -> tuple[str, str] | None:
        """Two hosts, in any order; most often two brokers."""
        brokers = [each.name for each in self._cluster.brokers]
        clients = [name for name in self._world.network.names() if name not in brokers]
        first = self._rng.choice(brokers)
        others = brokers if self._rng.random() < 0.7 else clients
        second = self._rng.choice([name for name in others if name != first])
        if frozenset((first, second)) in self._taken:
            return None
        return (first, second) if self._rng.random() < 0.5 else (second, first)

    def draw_wire_from(self, broker: SimulatedBroker) -> tuple[str, str] | None:
        """From this broker to another."""
        others = [each.name for each in self._cluster.brokers if each is not broker]
        wire = (broker.name, self._rng.choice(others))
        return None if frozenset(wire) in self._taken else wire


class Chaos:
    """See the head of this module. `counts` says how often each fault came."""

    def __init__(
        self, world: SimulatedWorld, cluster: SimulatedCluster, watcher: Watcher, is_flushed: bool
    ) -> None:
        self.counts: dict[str, int] = {}
        self._world = world
        self._cluster = cluster
        self._watcher = watcher
        self._is_flushed = is_flushed
        self._rng: Random = world.rng("faults")
        self.targets = Targets(world, cluster, watcher)
        self._faults: dict[str, tuple[int, Fault]] = {
            "kill": (3, self._kill),
            "kill the leader": (2, self._kill_leader),
            "kill the controller": (2, self._kill_controller),
            "kill the controller at a step": (3, self._kill_controller_at_a_step),
            "outrun a follower": (3, self._outrun_follower),
            "depose the controller": (3, self._depose_controller),
            "kill all": (1, self._kill_all),
            "power off": (2, self._power_off),
            "power off all": (1 if is_flushed else 0, self._power_off_all),
            "stop": (2, self._stop),
            "pause": (3, self._pause),
            "fill": (1, self._fill),
            "clock": (1, self._shift_clock),
            "cut the store": (2, self._cut_store),
            "slow store": (1, self._slow_store),
            "hold": (4, self._hold),
            "throttle": (2, self._throttle),
            "reset": (2, self._reset),
            "cut": (3, self._cut),
            "isolate": (2, self._isolate),
        }

    async def run(self, duration_s: float) -> None:
        """Do harm for a while; return when all faults are over and everything is healed."""
        names = list(self._faults)
        weights = [weight for weight, _ in self._faults.values()]
        end = trio.current_time() + duration_s
        async with trio.open_nursery() as nursery:
            while trio.current_time() < end:
                await trio.sleep(self._rng.expovariate(1 / GAP_S))
                name = self._rng.choices(names, weights)[0]
                nursery.start_soon(self._inflict, name)
        self._world.network.heal()
        for broker in self._cluster.brokers:
            broker.wall_shift_ms = 0

    async def _inflict(self, name: str) -> None:
        self.counts[name] = self.counts.get(name, 0) + 1
        await self._watcher.look()
        await self._faults[name][1]()

    async def _wait(self, mean_s: float = PAUSE_S) -> None:
        await trio.sleep(self._rng.expovariate(1 / mean_s))

    # -- processes and machines

    async def _kill(self) -> None:
        await self._kill_one(self.targets.draw_broker())

    async def _kill_leader(self) -> None:
        await self._kill_one(self.targets.leader())

    async def _kill_controller(self) -> None:
        await self._kill_one(self.targets.free_broker(self._watcher.controller))

    async def _kill_one(self, broker: SimulatedBroker | None) -> None:
        if broker is None:
            return
        async with self.targets.take(broker.name, f"kill {broker.name}"):
            await broker.kill()
            await self._wait()
            await self._start(broker)

    async def _kill_controller_at_a_step(self) -> None:
        """Give it something to do, and let it die while it does it."""
        victim = self.targets.draw_broker()
        other = self._rng.random() < 0.5
        async with trio.open_nursery() as nursery:
            if victim is not None and victim.node_id != self._watcher.controller and other:
                nursery.start_soon(self._kill_one, victim)
            with trio.move_on_after(3.0):
                await self._world.store.watch("", self._watcher.revision)
            if self._rng.random() < 0.7:
                await self._wait(0.01)
            await self._kill_one(self.targets.free_broker(self._watcher.controller))

    async def _outrun_follower(self) -> None:
        """A leader dies when a follower is far behind, which then follows the next one."""
        leader = self.targets.leader()
        wire = self.targets.draw_wire_from(leader) if leader is not None else None
        if leader is None or wire is None:
            return
        async with self.targets.take(frozenset(wire), f"outrun {wire[1]}"):
            self._world.network.hold(*wire)
            await trio.sleep(self._rng.uniform(1, 6))
            await self._watcher.look()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._kill_one, self.targets.free_broker(leader.node_id))
                await self._wait()
                self._world.network.release(*wire)  # a broker that starts may need it

    async def _depose_controller(self) -> None:
        """What it has sent arrives when another has been elected, and spoken."""
        old = self.targets.free_broker(self._watcher.controller)
        wire = self.targets.draw_wire_from(old) if old is not None else None
        if old is None or wire is None:
            return
        async with (
            self.targets.take(old.name, f"depose {old.name}"),
            self.targets.take(frozenset(wire)),
        ):
            self._world.network.hold(*wire)
            await self._wait(0.5)  # for something to tell
            old.link.cut()
            await trio.sleep(SESSION_S + self._rng.expovariate(1 / 0.5))
            self._world.network.release(*wire)
            await self._wait(0.5)
            old.link.heal()

    async def _kill_all(self) -> None:
        await self._end_all(lambda broker: broker.kill(), "kill")

    async def _power_off_all(self) -> None:
        for broker in self.targets.free():
            self._watcher.note_power_off(broker.node_id, is_tail_lost=False)
        await self._end_all(lambda broker: broker.power_off(), "power off")

    async def _end_all(self, end: Callable[[SimulatedBroker], Awaitable[None]], word: str) -> None:
        """All that are free, at once."""

        async def one(broker: SimulatedBroker) -> None:
            async with self.targets.take(broker.name, f"{word} {broker.name}"):
                await end(broker)
                await self._wait()
                await self._start(broker)

        async with trio.open_nursery() as nursery:
            for broker in self.targets.free():
                nursery.start_soon(one, broker)

    async def _power_off(self) -> None:
        broker = self.targets.draw_broker()
        if broker is None:
            return
        if not (self._is_flushed or self._watcher.may_lose_power(broker.node_id)):
            return
        self._watcher.note_power_off(broker.node_id, is_tail_lost=not self._is_flushed)
        async with self.targets.take(broker.name, f"power off {broker.name}"):
            await broker.power_off()
            await self._wait()
            await self._start(broker)

    async def _stop(self) -> None:
        broker = self.targets.draw_broker()
        if broker is None:
            return
        async with self.targets.take(broker.name, f"stop {broker.name}"):
            with trio.move_on_after(STOP_S_MAX) as scope:
                await broker.stop()
            if scope.cancelled_caught:
                self._watcher.note(f"{broker.name} does not stop")
                await broker.kill()
            await self._wait()
            await self._start(broker)

    async def _start(self, broker: SimulatedBroker) -> None:
        """Start it; some starts are cut short by another kill."""
        self._watcher.note(f"start {broker.name}")
        if self._rng.random() < 0.2:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(broker.start)
                await self._wait(0.1)
                self._watcher.note(f"kill {broker.name} again")
                await broker.kill()
        await broker.start()
        self._watcher.note(f"{broker.name} is there")

    async def _pause(self) -> None:
        broker = self.targets.draw_broker()
        if broker is None:
            return
        async with self.targets.take(broker.name, f"pause {broker.name}"):
            broker.pause()
            await self._wait()
            broker.resume()
            self._watcher.note(f"resume {broker.name}")

    # -- what a broker stands on

    async def _fill(self) -> None:
        broker = self.targets.draw_broker()
        if broker is None:
            return
        async with self.targets.take(broker.name, f"fill the disk of {broker.name}"):
            broker.files.space_bytes = broker.files.used_bytes + self._rng.randint(0, 2000)
            await self._wait()
            broker.files.space_bytes = None

    async def _shift_clock(self) -> None:
        broker = self._rng.choice(self._cluster.brokers)
        broker.wall_shift_ms = self._rng.randint(-HOUR_MS, HOUR_MS)
        self._watcher.note(f"clock of {broker.name} off by {broker.wall_shift_ms} ms")
        await trio.lowlevel.checkpoint()

    async def _cut_store(self) -> None:
        broker = self.targets.draw_broker()
        if broker is None:
            return
        is_cut = self._rng.random() < 0.5
        word = "cut" if is_cut else "hold"
        async with self.targets.take(broker.name, f"{word} the store of {broker.name}"):
            if is_cut:
                broker.link.cut()
            else:
                broker.link.hold()
            await self._wait()
            broker.link.heal()

    async def _slow_store(self) -> None:
        broker = self.targets.draw_broker()
        if broker is None:
            return
        async with self.targets.take(broker.name, f"slow store of {broker.name}"):
            usual = broker.link.delay_s_max
            broker.link.delay_s_max = self._rng.choice((0.05, 0.3, 1.0))
            await self._wait()
            broker.link.delay_s_max = usual

    # -- wires

    async def _hold(self) -> None:
        wire = self.targets.draw_wire()
        if wire is None:
            return
        both = self._rng.random() < 0.3
        async with self.targets.take(frozenset(wire), f"hold {wire}{' both ways' if both else ''}"):
            for pair in (wire, wire[::-1])[: 1 + both]:
                self._world.network.hold(*pair)
            await self._wait(2 * PAUSE_S)
            for pair in (wire, wire[::-1]):
                self._world.network.release(*pair)

    async def _throttle(self) -> None:
        wire = self.targets.draw_wire()
        if wire is None:
            return
        async with self.targets.take(frozenset(wire), f"throttle {wire}"):
            self._world.network.throttle(*wire, self._rng.choice((300, 3_000)))
            await self._wait(2 * PAUSE_S)
            self._world.network.throttle(*wire, inf)

    async def _reset(self) -> None:
        wire = self.targets.draw_wire()
        if wire is not None:
            self._watcher.note(f"reset {wire}")
            self._world.network.reset(*wire)
        await trio.lowlevel.checkpoint()

    async def _cut(self) -> None:
        wire = self.targets.draw_wire()
        if wire is not None:
            await self._cut_wire(*wire, self._rng.expovariate(1 / PAUSE_S))

    async def _cut_wire(self, one: str, other: str, duration_s: float) -> None:
        async with self.targets.take(frozenset((one, other)), f"cut {one} {other}"):
            self._world.network.cut(one, other)
            await trio.sleep(duration_s)
            self._world.network.mend(one, other)

    async def _isolate(self) -> None:
        """Cut some brokers from the others; all see the store and the clients."""
        names = [each.name for each in self._cluster.brokers]
        some = self._rng.sample(names, self._rng.randint(1, len(names) - 1))
        duration_s = self._rng.expovariate(1 / (2 * PAUSE_S))
        async with trio.open_nursery() as nursery:
            for one, other in combinations(names, 2):
                is_between = (one in some) != (other in some)
                if is_between and not self.targets.is_taken(frozenset((one, other))):
                    nursery.start_soon(self._cut_wire, one, other, duration_s)
