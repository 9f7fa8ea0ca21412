"""A simulated process of a client, which may be killed or stand still."""

from collections.abc import Iterator
from contextlib import contextmanager

import trio

from minibroker.testing.cluster import SimulatedWorld
from minibroker.testing.pause import PROCESS


class Process:
    """One process on a host, from its start to its end. `leaving` asks it to end by itself."""

    def __init__(self, world: SimulatedWorld, who: str, host: str) -> None:
        self.who = who
        self.leaving = trio.Event()
        self.ended = trio.Event()
        self.is_crashed = False
        self._world = world
        self._host = host
        self._scope = trio.CancelScope()

    @contextmanager
    def _living(self) -> Iterator[None]:
        """All that the process does, in a task of its own."""
        PROCESS.set(self.who)
        try:
            with self._scope:
                yield
        except Exception:
            if not self.is_crashed:  # tasks of a dead process may stumble
                raise
        finally:
            self.ended.set()

    def crash(self) -> None:
        """`kill -9`."""
        self.is_crashed = True
        self._world.network.stop_host(self._host)
        self._scope.cancel()
        self._world.pauses.resume(self.who)

    async def pause(self, duration_s: float) -> None:
        """SIGSTOP for a while."""
        self._world.pauses.pause(self.who)
        try:
            await trio.sleep(duration_s)
        finally:  # a seed that fails ends all its processes
            self._world.pauses.resume(self.who)
