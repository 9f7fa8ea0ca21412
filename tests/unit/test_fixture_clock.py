"""A test that does not name its clock, because one of its fixtures asks for it."""

import pytest
import trio
import trio.testing


@pytest.fixture
async def year_s(autojump_clock: trio.testing.MockClock) -> float:
    """A fixture that needs a clock, as those do that start brokers."""
    assert autojump_clock.autojump_threshold == 0
    return 365 * 24 * 3600.0


async def test_a_fixture_decides_the_clock(year_s: float) -> None:
    """The deadline of tests would end it if it slept for real."""
    await trio.sleep(year_s)
    assert trio.current_time() == year_s
