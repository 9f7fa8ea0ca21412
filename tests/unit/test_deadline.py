"""A test that hangs is ended: in a loop, while it waits, and among alarms."""

import signal
import threading
import time
from collections.abc import Callable

import pytest

from tests.support.deadline import TEST_S_MAX, Overdue, deadline
from tests.support.interrupts import alarms


def loop() -> None:
    """Compute for ever."""
    while True:
        pass


def wait() -> None:
    """For another thread."""
    threading.Event().wait()


def loop_among_alarms() -> None:
    """Which use the same signal: each is set when the one before has come."""
    with alarms(lambda *_: None):
        while True:
            signal.setitimer(signal.ITIMER_REAL, 0.001)
            time.sleep(0.002)


@pytest.mark.parametrize("hang", [loop, wait, loop_among_alarms])
def test_what_hangs_is_ended(hang: Callable[[], None]) -> None:
    """Soon after its time."""
    with pytest.raises(Overdue), deadline(0.02):
        hang()


def test_each_test_has_a_deadline() -> None:
    """This one has; and alarms and another deadline leave it as it was."""
    with alarms(lambda *_: None), deadline(1):
        pass
    left_s, again_s = signal.getitimer(signal.ITIMER_REAL)
    assert TEST_S_MAX / 2 < left_s <= TEST_S_MAX
    assert again_s
    assert signal.getsignal(signal.SIGALRM) != signal.SIG_DFL
