"""The watch over the wall clock: what is a jump, and by which time things expire after one."""

import logging

import pytest

from minibroker.broker.wall_clock import (
    JUMP_S,
    LOG_INTERVAL_S,
    SETTLE_S,
    ClockStatistics,
    ClockWatch,
)

NOW = 1_700_000_000_000  # wall clock at monotonic 0
DAY_MS = 86_400_000
WATCH = "minibroker.broker.wall_clock"


class Clocks:
    """A watch, and the two clocks that it is shown each second."""

    def __init__(self, **options: int) -> None:
        self.now = 0.0
        self.shift_ms = 0
        self.watch = ClockWatch(self.wall_ms, self.now, **options)

    @property
    def wall_ms(self) -> int:
        return NOW + round(self.now * 1000) + self.shift_ms

    def run(self, seconds: float, step_s: float = 1.0) -> None:
        end = self.now + seconds
        while self.now < end:
            self.now = min(end, self.now + step_s)
            self.watch.observe(self.wall_ms, self.now)

    def jump(self, by_ms: int) -> None:
        self.shift_ms += by_ms

    @property
    def expiry_shift_ms(self) -> int:
        """By how much the time by which things expire differs from the clock without jumps."""
        return self.watch.expiry_ms(self.wall_ms, self.now) - NOW - round(self.now * 1000)

    @property
    def statistics(self) -> ClockStatistics:
        return self.watch.statistics(self.now)


def test_without_a_jump_things_expire_by_the_wall_clock():
    """A step or a drift that NTP makes is followed at once."""
    clocks = Clocks()
    clocks.run(10)
    clocks.jump(round(JUMP_S * 1000))
    clocks.run(1)
    assert clocks.expiry_shift_ms == JUMP_S * 1000
    assert clocks.statistics == (0, 0, 0)
    clocks = Clocks()
    for _ in range(100):
        clocks.run(1200, 60.0)
        clocks.jump(600)  # 500 ppm, the most by which NTP slews a clock
    assert clocks.statistics == (0, 0, 0)
    assert clocks.expiry_shift_ms == clocks.shift_ms


def test_a_jump_forward_is_followed_once_the_clock_has_stayed(caplog: pytest.LogCaptureFixture):
    """Until then the clock before the jump goes on, so what is old by it expires."""
    caplog.set_level(logging.INFO, logger=WATCH)
    clocks = Clocks()
    clocks.run(5)
    clocks.jump(8 * DAY_MS)
    assert clocks.expiry_shift_ms == 0, "no look at the clocks comes too late"
    clocks.run(SETTLE_S - 1, 100.0)
    assert clocks.expiry_shift_ms == 0
    assert clocks.statistics == (1, 8 * DAY_MS, 1000)
    clocks.run(1)
    assert clocks.expiry_shift_ms == 8 * DAY_MS
    assert clocks.statistics == (1, 0, 0)
    assert [
        (each.levelname, "jumped by +691200.0 s" in each.message) for each in caplog.records
    ] == [
        ("WARNING", True),
        ("INFO", False),
    ]


def test_a_jump_back_is_followed_at_once_and_its_return_is_not():
    """What was written by the earlier clock is not old because that is corrected again: not before
    producers and members that are at work have written by the present one."""
    clocks = Clocks()
    clocks.run(5)
    clocks.jump(-8 * DAY_MS)
    assert clocks.expiry_shift_ms == -8 * DAY_MS
    clocks.run(60)
    clocks.jump(8 * DAY_MS)
    assert clocks.expiry_shift_ms == -8 * DAY_MS
    clocks.run(SETTLE_S - 1, 100.0)
    assert clocks.expiry_shift_ms == -8 * DAY_MS
    clocks.run(2)
    assert clocks.expiry_shift_ms == 0
    assert clocks.statistics == (2, 0, 0)


def test_each_jump_starts_the_wait_again():
    """And the earliest of all clocks counts, whatever order they came in."""
    clocks = Clocks()
    for by_ms in (DAY_MS, -3 * DAY_MS, 9 * DAY_MS):
        clocks.run(SETTLE_S / 2, 60.0)
        clocks.jump(by_ms)
        clocks.run(1)
    assert clocks.expiry_shift_ms == -2 * DAY_MS
    assert clocks.statistics.settles_in_ms == SETTLE_S * 1000
    clocks.run(SETTLE_S, 60.0)
    assert clocks.expiry_shift_ms == 7 * DAY_MS


def test_a_clock_that_runs_too_fast_has_jumped():
    """One that gains a minute each minute is not believed, although no step is large."""
    clocks = Clocks()
    for _ in range(60):
        clocks.run(1)
        clocks.jump(1000)
    assert clocks.expiry_shift_ms < JUMP_S * 1000 + 1
    assert clocks.statistics.jumps == 5


def test_a_machine_that_slept_is_like_a_jump():
    """Its monotonic clock stood still."""
    clocks = Clocks()
    clocks.run(100)
    clocks.jump(3 * 3_600_000)
    assert clocks.expiry_shift_ms == 0


def test_a_clock_that_jumps_all_the_time_is_logged_once_a_minute(
    caplog: pytest.LogCaptureFixture,
):
    """Every jump is counted, and delays what expires."""
    clocks = Clocks()
    for _ in range(150):
        clocks.jump(DAY_MS)
        clocks.run(2)
    assert clocks.statistics.jumps == 150
    assert len(caplog.records) == 300 / LOG_INTERVAL_S


@pytest.mark.parametrize("behind_ms", [NOW, DAY_MS, round(JUMP_S * 1000)])
def test_a_start_before_the_last_run_is_reported(behind_ms: int, caplog: pytest.LogCaptureFixture):
    """A machine without a clock begins in 1970; that the broker was down for long is no jump."""
    clocks = Clocks(last_run_ms=NOW + behind_ms)
    is_jump = behind_ms > JUMP_S * 1000
    assert clocks.statistics.jump_ms == (-behind_ms if is_jump else 0)
    assert len(caplog.records) == is_jump
    assert clocks.expiry_shift_ms == 0
    assert Clocks(last_run_ms=NOW - 8 * DAY_MS).statistics == (0, 0, 0)
