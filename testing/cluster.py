"""Brokers on virtual time: the real app on a simulated network, disk and clock, in one process.

    world = World(seed)
    async with open_broker(world, {"flush": "always"}) as broker:
        async with Producer(broker.address, seams=world.seams("client")) as producer:
            ...
        await broker.kill()           # the process dies: what it wrote stays, connections break
        await broker.power_off()      # the machine dies: what was not synced may go
        await broker.start()

`simulate(main, seed)` runs a program so that the same seed gives the same run, event by event. It
rests on two private names of trio; `tests/sim/test_determinism.py` guards that they exist.
"""

import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import PurePath
from typing import TypeVar, TypeVarTuple

import trio
import trio.testing

from minibroker.broker.app import System, serve
from minibroker.broker.config import load
from minibroker.broker.metadata.memory_store import MemoryStore
from minibroker.client.options import Seams
from minibroker.testing.disk import SimulatedFiles
from minibroker.testing.network import DEFAULT_OPTIONS, NetworkOptions, SimulatedNetwork

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")

EPOCH_MS = 1_700_000_000_000  # wall time at virtual time 0
PORT = 9092
DATA_DIRECTORY = PurePath("/data")


class World:
    """What all hosts of a simulation share: chance, time, the wires and the metadata store."""

    def __init__(self, seed: int, options: NetworkOptions = DEFAULT_OPTIONS) -> None:
        self.seed = seed
        self.network = SimulatedNetwork(self.rng("network"), options)
        self.store = MemoryStore()

    def rng(self, purpose: str) -> random.Random:
        """A generator of its own for each purpose, so that one's draws do not move another's."""
        return random.Random(f"{self.seed}/{purpose}")

    def wall_ms(self) -> int:
        """The wall clock of every host, in milliseconds."""
        return EPOCH_MS + round(trio.current_time() * 1000)

    def seams(self, host: str) -> Seams:
        """What a client on a host is given in place of the real world."""
        return Seams(self.network.host(host), self.rng(host), self.wall_ms)


class SimulatedBroker:
    """One broker and its machine. Not running until `start`."""

    def __init__(
        self, world: World, nursery: trio.Nursery, settings: Mapping[str, str], node_id: int = 1
    ) -> None:
        self.name = f"broker-{node_id}"
        self.address = f"{self.name}:{PORT}"
        self.files = SimulatedFiles(world.rng(f"{self.name}/disk"))
        self.is_running = False
        self._world = world
        self._nursery = nursery
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
                **settings,
            }
        ).config

    async def start(self) -> None:
        """Start the process, and wait until it answers. What it raises while it runs is raised
        out of the nursery, unless it was killed."""
        assert not self.is_running
        self._scope, self._shutdown, self._ended = trio.CancelScope(), trio.Event(), trio.Event()
        self.is_running = True
        await self._nursery.start(self._run)

    async def _run(self, task_status: trio.TaskStatus[object]) -> None:
        system = System(
            network=self._world.network.host(self.name),
            files=self.files,
            store=self._world.store,
            wall_ms=self._world.wall_ms,
            boot_id=f"boot-{self._boot}",
            rng=self._rng,
            in_worker=in_worker,
        )
        try:
            with self._scope:
                await serve(self._config, system, self._shutdown, task_status)
        except Exception:
            # Tasks of a dead process may still stumble over its dead files until they are gone.
            if not self._scope.cancel_called:
                raise
        finally:
            self.is_running = False
            self._ended.set()

    async def stop(self) -> None:
        """SIGTERM, and wait for the end."""
        self._shutdown.set()
        await self._ended.wait()

    async def kill(self) -> None:
        """`kill -9`."""
        self.files.kill()
        await self._end()

    async def power_off(self) -> None:
        """The machine stops, and comes back with another boot id."""
        self.files.power_off()
        self._boot += 1
        await self._end()

    async def _end(self) -> None:
        self._world.network.stop_host(self.name)
        self._scope.cancel()
        if self.is_running:
            await self._ended.wait()


async def in_worker(function: Callable[[*Arguments], T], /, *arguments: *Arguments) -> T:
    """Worker threads do not exist on virtual time: the function runs at a checkpoint."""
    await trio.lowlevel.checkpoint()
    return function(*arguments)


@asynccontextmanager
async def open_broker(
    world: World, settings: Mapping[str, str] | None = None
) -> AsyncIterator[SimulatedBroker]:
    """A broker that runs; it is killed at the end of the block."""
    async with trio.open_nursery() as nursery:
        broker = SimulatedBroker(world, nursery, settings or {})
        await broker.start()
        yield broker
        await broker.kill()


def simulate(main: Callable[[], Awaitable[T]], seed: int) -> T:
    """Run `main` on virtual time, deterministically."""
    trio._core._run._ALLOW_DETERMINISTIC_SCHEDULING = True  # type: ignore[misc]
    trio._core._run._r.seed(seed)
    return trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
