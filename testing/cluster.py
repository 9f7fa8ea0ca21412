"""Brokers on virtual time: the real app on a simulated network, disk and clock, in one process.

    world = SimulatedWorld(seed)
    async with open_broker(world, {"flush": "always"}) as broker:
        async with Producer(broker.address, seams=world.seams("client")) as producer:
            ...
        await broker.kill()           # the process dies: what it wrote stays, connections break
        await broker.power_off()      # the machine dies: what was not synced may go
        await broker.start()

    async with open_cluster(world, {"min.insync.replicas": "2"}, 3) as cluster:
        cluster.brokers[0].pause()    # SIGSTOP; then `resume`
        cluster.brokers[1].link.cut() # it cannot reach the store

All brokers share the metadata store of the world, each over its own link.

`simulate(main, seed)` runs a program so that the same seed gives the same run, event by event. It
relies on two private names of trio; `tests/sim/test_determinism.py` guards that they exist.
"""

import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import PurePath
from typing import Any, TypeVar, TypeVarTuple

import trio
import trio.testing

from minibroker.broker.app import Started, System, serve
from minibroker.broker.config import load
from minibroker.broker.controller.node import ControllerNode
from minibroker.broker.machine import MachineFacts
from minibroker.broker.metadata.memory_store import MemoryStore
from minibroker.broker.replication.replicas import Replicas
from minibroker.client.options import Seams
from minibroker.testing.disk import SimulatedFiles, Tail
from minibroker.testing.network import DEFAULT_OPTIONS, NetworkOptions, SimulatedNetwork
from minibroker.testing.pause import PROCESS, Pauses
from minibroker.testing.store import StoreLink

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")

EPOCH_MS = 1_700_000_000_000  # wall time at virtual time 0
PORT = 9092
DATA_DIRECTORY = PurePath("/data")

# The bounds of a simulation: one that exceeds them will never end.
VIRTUAL_S_MAX = 7200.0
TURNS_MAX = 1_000_000  # of the event loop, at one moment
PLACES_MAX = 12  # how many an error names


class StillRunning(Exception):
    """A simulation does not end."""


class SimulatedWorld:
    """The parts that all hosts of a simulation share: chance, time, network and metadata store."""

    def __init__(self, seed: int, options: NetworkOptions = DEFAULT_OPTIONS) -> None:
        self.seed = seed
        self.network = SimulatedNetwork(self.rng("network"), options)
        self.store = MemoryStore()
        self.pauses = Pauses()

    def rng(self, purpose: str) -> random.Random:
        """Return a generator for one purpose, so that its draws do not shift those of others."""
        return random.Random(f"{self.seed}/{purpose}")

    def wall_ms(self) -> int:
        """Return the wall clock of every host, in milliseconds."""
        return EPOCH_MS + round(trio.current_time() * 1000)

    def seams(self, host: str) -> Seams:
        """Return the seams for a client on a host, in place of the real world."""
        return Seams(self.network.host(host), self.rng(host), self.wall_ms)


class SimulatedBroker:
    """One broker and its machine. Not running until `start`.

    `life` counts its processes so far; `replicas` and `node` (its controller node) are those of the
    last one, once they exist. With `may_fail` an error that ends the process is kept in `failure`
    instead of raised.
    """

    def __init__(
        self,
        world: SimulatedWorld,
        nursery: trio.Nursery,
        settings: Mapping[str, str],
        node_id: int = 1,
        replicas_type: type[Replicas] = Replicas,
    ) -> None:
        self.node_id = node_id
        self.name = f"broker-{node_id}"
        self.address = f"{self.name}:{PORT}"
        self.files = SimulatedFiles(world.rng(f"{self.name}/disk"))
        self.link = StoreLink(world.store, world.rng(f"{self.name}/store"))
        self.wall_shift_ms = 0  # the error of its wall clock
        self.machine = MachineFacts("simulated")
        self.is_running = False
        self.is_serving = False
        self.may_fail = False
        self.failure: Exception | None = None
        self.life = 0
        self.replicas: Replicas | None = None
        self.node: ControllerNode | None = None
        self._world = world
        self._nursery = nursery
        self._replicas_type = _telling(replicas_type, self._set_replicas)
        self._node_type = _telling(ControllerNode, self._set_node)
        self._rng = world.rng(self.name)
        self._boot = 0
        self._scope = trio.CancelScope()
        self._shutdown = trio.Event()
        self._ended = trio.Event()
        self._config = load(
            flags={
                "node.id": str(node_id),
                "listeners": f"PLAINTEXT://{self.name}:{PORT}",
                "log.dirs": str(DATA_DIRECTORY),
                "replica.fetcher": "task",
                **settings,
            }
        ).config

    async def start(self) -> Started | None:
        """Start the process, wait until it answers or has ended, and return what `serve` reports.

        Returns None if it has ended. Errors while it runs are raised out of the nursery, unless it
        was killed.
        """
        assert not self.is_running
        self._scope, self._shutdown, self._ended = trio.CancelScope(), trio.Event(), trio.Event()
        self.is_running = True
        self.life += 1
        self.replicas = self.node = None
        started: Started | None = await self._nursery.start(self._run)
        return started

    async def _run(self, task_status: trio.TaskStatus[object]) -> None:
        PROCESS.set(self.name)
        self.files.clock_ms = lambda: self._wall_ms()  # a deep copy keeps it
        self.files.stall = stall
        system = System(
            network=self._world.network.host(self.name),
            files=self.files,
            store=self.link,
            wall_ms=self._wall_ms,
            boot_id=f"boot-{self._boot}",
            rng=self._rng,
            in_worker=self._in_worker,
            machine=lambda: self.machine,
            replicas_type=self._replicas_type,
            node_type=self._node_type,
        )
        answer = _Answer(self, task_status)
        try:
            with self._scope:
                await serve(self._config, system, self._shutdown, answer)
                if not self.is_serving:  # it was stopped before it served
                    task_status.started()
                    self.is_serving = True
        except Exception as error:
            # Tasks of a dead process may still fail on its dead files until they are gone.
            if not self._scope.cancel_called:
                self.failure = error
                if not self.may_fail:
                    raise
        finally:
            if (self._scope.cancel_called or self.may_fail) and not self.is_serving:
                task_status.started()
            self.is_running = self.is_serving = False
            self._ended.set()

    async def _in_worker(self, function: Callable[[*Arguments], T], /, *arguments: *Arguments) -> T:
        """Run the function at a checkpoint, and let others run while it reads from the disk."""
        call = partial(function, *arguments)
        result, seconds = await in_worker(self.files.run_in_worker, call)
        if seconds:
            await trio.sleep(seconds)
        return result

    def _set_replicas(self, replicas: Replicas) -> None:
        self.replicas = replicas

    def _set_node(self, node: ControllerNode) -> None:
        self.node = node

    def _wall_ms(self) -> int:
        return self._world.wall_ms() + self.wall_shift_ms

    @property
    def is_paused(self) -> bool:
        """Whether it is paused by `pause`."""
        return self._world.pauses.is_paused(self.name)

    def pause(self) -> None:
        """Pause the process, as SIGSTOP does."""
        self._world.pauses.pause(self.name)

    def resume(self) -> None:
        """Resume the process, as SIGCONT does; nothing if it is not paused."""
        self._world.pauses.resume(self.name)

    async def stop(self) -> None:
        """Stop the process in order, as SIGTERM does, and wait for its end."""
        self._shutdown.set()
        await self._ended.wait()

    def crash(self) -> None:
        """Kill the process at once: nothing that it does from now on has an effect."""
        self.files.kill()
        self._die()

    async def kill(self) -> None:
        """Kill the process, as `kill -9` does, and wait until its tasks have ended."""
        self.crash()
        await self.wait_ended()

    async def power_off(self, tail: Tail = Tail.BY_CHANCE) -> None:
        """Stop the machine; it comes back with another boot id."""
        self.files.power_off(tail)
        self._boot += 1
        self._die()
        await self.wait_ended()

    def _die(self) -> None:
        self._world.network.stop_host(self.name)
        self._scope.cancel()
        self.resume()

    async def wait_ended(self) -> None:
        """Wait until all tasks of the process have ended."""
        if self.is_running:
            await self._ended.wait()


class _Answer(trio.TaskStatus[object]):
    """Records that a broker serves, and forwards that to the task status."""

    def __init__(self, broker: SimulatedBroker, task_status: trio.TaskStatus[object]) -> None:
        self._broker = broker
        self._task_status = task_status

    def started(self, value: object = None) -> None:
        self._broker.is_serving = True
        self._task_status.started(value)


def _telling(base: type[T], note: Callable[[T], None]) -> type[T]:
    """Return a subtype of `base` that passes each new object to `note`."""

    def init(self: T, *arguments: Any) -> None:
        base.__init__(self, *arguments)
        note(self)

    return type(base.__name__, (base,), {"__init__": init})


class SimulatedCluster:
    """Brokers 1 to `count`, which share the metadata store of their world."""

    def __init__(self, brokers: Sequence[SimulatedBroker]) -> None:
        self.brokers = tuple(brokers)

    @property
    def address(self) -> str:
        """The bootstrap servers: all brokers."""
        return ",".join(broker.address for broker in self.brokers)

    def broker(self, node_id: int) -> SimulatedBroker:
        """Return the broker with this number."""
        return self.brokers[node_id - 1]

    async def start(self) -> None:
        """Start all brokers that do not run, at once, and wait until they answer."""
        async with trio.open_nursery() as nursery:
            for broker in self.brokers:
                if not broker.is_running:
                    nursery.start_soon(broker.start)

    async def kill(self) -> None:
        """Kill all brokers, as `kill -9` does."""
        for broker in self.brokers:
            broker.crash()
        for broker in self.brokers:
            await broker.wait_ended()


def stall(seconds: float) -> None:
    """Let virtual time pass while no task runs, as when the event loop waits for the disk."""
    clock = trio.lowlevel.current_clock()
    assert isinstance(clock, trio.testing.MockClock)
    clock.jump(seconds)


async def in_worker(function: Callable[[*Arguments], T], /, *arguments: *Arguments) -> T:
    """Run the function at a checkpoint: on virtual time there are no worker threads."""
    await trio.lowlevel.checkpoint()
    return function(*arguments)


@asynccontextmanager
async def open_broker(
    world: SimulatedWorld, settings: Mapping[str, str] | None = None
) -> AsyncIterator[SimulatedBroker]:
    """Yield a running broker; it is killed at the end of the block."""
    async with trio.open_nursery() as nursery:
        broker = SimulatedBroker(world, nursery, settings or {})
        await broker.start()
        yield broker
        await broker.kill()


@asynccontextmanager
async def open_cluster(
    world: SimulatedWorld,
    settings: Mapping[str, str],
    count: int,
    replicas_type: type[Replicas] = Replicas,
) -> AsyncIterator[SimulatedCluster]:
    """Yield running brokers with these settings; they are killed at the end of the block."""
    async with trio.open_nursery() as nursery:
        make = partial(SimulatedBroker, world, nursery, settings, replicas_type=replicas_type)
        cluster = SimulatedCluster([make(node_id=number + 1) for number in range(count)])
        try:
            await cluster.start()
            yield cluster
            await cluster.kill()
        finally:
            for broker in cluster.brokers:
                broker.resume()  # otherwise its tasks would never end


def simulate(
    main: Callable[[], Awaitable[T]],
    seed: int,
    *,
    virtual_s_max: float = VIRTUAL_S_MAX,
    turns_max: int = TURNS_MAX,
) -> T:
    """Run `main` on virtual time, deterministically.

    Raises `StillRunning` after `virtual_s_max` seconds of virtual time, and after `turns_max` turns
    of the event loop in which virtual time stood still.
    """
    trio._core._run._ALLOW_DETERMINISTIC_SCHEDULING = True  # type: ignore[misc]
    trio._core._run._r.seed(seed)
    clock = trio.testing.MockClock(autojump_threshold=0)

    async def bounded() -> T:
        scope = trio.CancelScope(deadline=trio.current_time() + virtual_s_max)
        guard = _TurnGuard(clock, scope, turns_max)
        trio.lowlevel.add_instrument(guard)
        error = None
        try:
            with scope:
                return await main()
        except Exception as caught:
            if not scope.cancel_called:
                raise
            error = caught  # of its cleanup
        raise StillRunning(
            f"seed {seed}: still running at {clock.current_time():.3f} s of virtual time, after"
            f" {guard.turns} turns in which time stood still; its tasks were at"
            f" {'; '.join(guard.places)}"
        ) from error

    return trio.run(bounded, clock=clock)


class _TurnGuard(trio.abc.Instrument):
    """Cancels `scope` after too many turns of the event loop at one moment of `clock`."""

    def __init__(
        self, clock: trio.testing.MockClock, scope: trio.CancelScope, turns_max: int
    ) -> None:
        self.turns = 0  # at the present moment
        self.places: list[str] = []  # where tasks were when the bound was reached
        self._clock = clock
        self._scope = scope
        self._turns_max = turns_max
        self._moment = 0.0

    def before_io_wait(self, timeout: float) -> None:
        """Count a turn, at its end."""
        moment = self._clock.current_time()
        if moment != self._moment:
            self._moment = moment
            self.turns = 0
        self.turns += 1
        if not self.places and (self.turns > self._turns_max or moment >= self._scope.deadline):
            self.places = _places_of_tasks()
            self._scope.cancel()


def _places_of_tasks() -> list[str]:
    """Return FILE:LINE of each task's innermost frame outside trio, the most frequent first."""
    root = trio.lowlevel.current_root_task()
    tasks = [root] if root is not None else []
    places: Counter[str] = Counter()
    for task in tasks:
        tasks += [child for nursery in task.child_nurseries for child in nursery.child_tasks]
        frames = [(frame.f_code.co_filename, line) for frame, line in task.iter_await_frames()]
        ours = [frame for frame in frames if "/trio/" not in frame[0]]
        if ours:
            path, line = ours[-1]
            places["/".join(PurePath(path).parts[-3:]) + f":{line}"] += 1
    return [f"{place} ({count})" for place, count in places.most_common(PLACES_MAX)]
