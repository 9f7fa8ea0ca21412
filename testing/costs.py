"""Calls that cost virtual time, as work costs a real broker's event loop.

On virtual time a call takes none, so the effects of a slow loop never show: a lease that is not
renewed, an answer that is late. Here a call is charged: the process that made it is paused for that
time, with all its tasks, from the end of their present turn on.

    async with costs_of(world) as costs:
        async with open_cluster(world, settings, 3, costly(costs, Prices(role_s=0.002))):
            ...
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

import trio

from minibroker.broker.replication.replicas import Replicas
from minibroker.protocol.messages.control import (
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    UpdateMetadataRequest,
    UpdateMetadataResponse,
)
from minibroker.testing.cluster import SimulatedWorld
from minibroker.testing.pause import PROCESS, Pauses


class Prices(NamedTuple):
    """The cost in seconds of one partition in an order, as a role and in the image."""

    role_s: float = 0.0
    image_s: float = 0.0


class Costs:
    """The processes that are busy, and until when."""

    def __init__(self, pauses: Pauses) -> None:
        self._pauses = pauses
        self._until: dict[str, float] = {}
        self._news = trio.Event()

    def charge(self, process: str, seconds: float) -> None:
        """Keep a process busy for so many seconds more."""
        if seconds > 0:
            begin = max(trio.current_time(), self._until.get(process, 0.0))
            self._until[process] = begin + seconds
            self._pauses.pause(process)
            self._news.set()

    async def run(self) -> None:
        """Resume processes whose work is done; runs in a task that belongs to no process."""
        while True:
            now = trio.current_time()
            for process in [one for one, until in self._until.items() if until <= now]:
                del self._until[process]
                self._pauses.resume(process)
            self._news = trio.Event()
            with trio.move_on_at(min(self._until.values(), default=float("inf"))):
                await self._news.wait()


@asynccontextmanager
async def costs_of(world: SimulatedWorld) -> AsyncIterator[Costs]:
    """Yield the costs for the processes of a world."""
    costs = Costs(world.pauses)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(costs.run)
        yield costs
        nursery.cancel_scope.cancel()


def costly(costs: Costs, prices: Prices) -> type[Replicas]:
    """Return replicas whose orders cost their broker the price of each partition."""

    class CostlyReplicas(Replicas):
        def obey_roles(self, request: LeaderAndIsrRequest, now: float) -> LeaderAndIsrResponse:
            costs.charge(PROCESS.get(), prices.role_s * len(request.partitions))
            return super().obey_roles(request, now)

        def update_metadata(
            self, request: UpdateMetadataRequest, now: float
        ) -> UpdateMetadataResponse:
            costs.charge(PROCESS.get(), prices.image_s * len(request.partitions))
            return super().update_metadata(request, now)

    return CostlyReplicas
