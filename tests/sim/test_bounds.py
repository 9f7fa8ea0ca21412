"""A simulation that would never end is a failure that says where it hangs."""

import pytest
import trio

from minibroker.testing.cluster import StillRunning, simulate


def test_a_scenario_that_waits_for_ever_ends():
    """Something always happens in it, so that virtual time goes on."""

    async def tick() -> None:
        for _ in range(1_000_000):
            await trio.sleep(1)

    async def main() -> None:
        trio.lowlevel.spawn_system_task(tick)
        await trio.sleep_forever()

    with pytest.raises(StillRunning, match=r"seed 7: .* at 100\.000 s .*sim/test_bounds\.py:\d+"):
        simulate(main, 7, virtual_s_max=100)


def test_a_busy_loop_ends():
    """Time stands still in it, so that no bound on virtual time would be met."""

    async def main() -> None:
        await trio.sleep(1)
        while True:
            await trio.lowlevel.checkpoint()

    with pytest.raises(StillRunning, match=r"at 1\.000 s .* after 1002 turns .*test_bounds\.py"):
        simulate(main, 7, turns_max=1000)


def test_what_a_scenario_raises_comes_through():
    """A bound that is not met changes nothing."""

    async def main() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        simulate(main, 7)
    assert simulate(trio.lowlevel.checkpoint, 7) is None
