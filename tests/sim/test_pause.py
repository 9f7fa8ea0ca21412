"""A paused process: its tasks do not run, and find a later time when they go on."""

import trio

from minibroker.testing.cluster import SimulatedWorld, simulate
from minibroker.testing.pause import PROCESS


async def tick(name: str, ticks: list[tuple[str, float]]) -> None:
    """Be a process that does something every second."""
    PROCESS.set(name)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(tick_on, name, ticks)


async def tick_on(name: str, ticks: list[tuple[str, float]]) -> None:
    """A task of the process."""
    while True:
        await trio.sleep(1)
        ticks.append((name, trio.current_time()))


def test_a_paused_process_does_nothing_and_others_go_on():
    """What a process would have done meanwhile it does, once, when it is resumed."""

    async def main() -> None:
        world, ticks = SimulatedWorld(0), []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(tick, "a", ticks)
            nursery.start_soon(tick, "b", ticks)
            await trio.sleep(1.5)
            world.pauses.pause("a")
            assert world.pauses.is_paused("a")
            await trio.sleep(3)
            world.pauses.resume("a")
            assert not world.pauses.is_paused("a")
            await trio.sleep(1.2)
            nursery.cancel_scope.cancel()
        assert [now for name, now in ticks if name == "a"] == [1, 4.5, 5.5]
        assert [now for name, now in ticks if name == "b"] == [1, 2, 3, 4, 5]

    simulate(main, 0)


def test_a_paused_process_can_be_cancelled():
    """A task that is cancelled while it is kept ends as soon as it is resumed."""

    async def main() -> None:
        world, ticks = SimulatedWorld(0), []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(tick, "a", ticks)
            await trio.sleep(0.5)
            world.pauses.pause("a")
            nursery.cancel_scope.cancel()
            with trio.CancelScope(shield=True):
                await trio.sleep(5)
            world.pauses.resume("a")
        assert (ticks, trio.current_time()) == ([], 5.5)

    simulate(main, 0)
