"""A broker that is told to stop while it starts, at every moment of the start."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest
import trio

from minibroker.broker.metadata.store import Snapshot
from minibroker.client.admin import Admin, NewTopic
from minibroker.testing.cluster import SimulatedBroker, SimulatedWorld, open_cluster, simulate
from minibroker.testing.store import StoreLink

T = TypeVar("T")

STEP_S = 0.0005
MOMENTS = 60
ENDS_WITHIN_S = 15.0  # it asks a controller to let it go for ten


class UninterruptibleLink(StoreLink):
    """A store whose calls cannot be cancelled once they have begun, except for `watch`: SQLite in
    a worker thread."""

    async def watch(self, prefix: str, after: int) -> Snapshot:
        return await super()._call(lambda: self._store.watch(prefix, after))

    async def _call(self, call: Callable[[], Awaitable[T]]) -> T:
        await trio.lowlevel.checkpoint_if_cancelled()
        with trio.CancelScope(shield=True):
            return await super()._call(call)


async def stop_at(broker: SimulatedBroker, after_s: float) -> bool:
    """Start it, and stop it so much later; whether it was there by then."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(broker.start)
        while not broker.is_running:
            await trio.lowlevel.checkpoint()
        await trio.sleep(after_s)
        was_serving = broker.is_serving
        with trio.fail_after(ENDS_WITHIN_S):
            await broker.stop()
    return was_serving


@pytest.mark.parametrize("link_type", [StoreLink, UninterruptibleLink])
@pytest.mark.parametrize("is_alone", [True, False])
def test_a_stop_at_any_moment_of_a_start_is_clean(
    is_alone: bool, link_type: type[StoreLink]
) -> None:
    """Alone or beside others: it ends without an error, and the next start finds all in order."""

    async def main() -> None:
        world = SimulatedWorld(5)
        served = []
        async with open_cluster(world, {}, 1 if is_alone else 3) as cluster:
            admin = Admin(cluster.address, seams=world.seams("client"))
            async with admin:
                await admin.create_topics(NewTopic("t", 5, len(cluster.brokers)))
            broker = cluster.brokers[-1]
            await broker.stop()
            broker.link = link_type(world.store, world.rng("link"))
            for moment in range(MOMENTS):
                served.append(await stop_at(broker, moment * STEP_S))
                assert broker.failure is None
            started = await broker.start()
            assert started is not None
            assert not started.damaged
        assert any(served)
        assert not all(served)

    simulate(main, 5)


@pytest.mark.parametrize("moment", range(0, 40, 3))
def test_a_start_that_waits_for_its_store_can_be_stopped(moment: int) -> None:
    """The store goes away while the broker starts: it waits, and a stop ends that at once."""

    async def main() -> None:
        world = SimulatedWorld(moment)
        async with trio.open_nursery() as nursery:
            broker = SimulatedBroker(world, nursery, {})
            nursery.start_soon(broker.start)
            while not broker.is_running:
                await trio.lowlevel.checkpoint()
            await trio.sleep(moment * STEP_S / 4)
            broker.link.cut()
            await trio.sleep(5)
            with trio.fail_after(ENDS_WITHIN_S):
                await broker.stop()
            assert broker.failure is None

    simulate(main, moment)
