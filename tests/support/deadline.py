"""The deadline of a test: one that hangs fails, with the place where it hangs, and the next one
runs.

An alarm raises `Overdue` in the main thread, whatever runs there: a loop, an event loop or a wait
for another thread. It is a `BaseException`, so neither the code that is tested nor hypothesis takes
it for a failure of its own. It comes again every `AGAIN_S`: an event loop that ends may wait for a
task that does not. What a broken event loop leaves may be reported with the next test.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

TEST_S_MAX: Final = 310.0  # a little longer than faulthandler_timeout, which shows all threads
AGAIN_S: Final = 10.0


class Overdue(BaseException):
    """A test took too long."""


@contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """Raise `Overdue` in the block after so many seconds. Where there is no SIGALRM (Windows) it
    may take as long as it likes."""
    if not hasattr(signal, "SIGALRM"):
        yield
        return

    def raise_overdue(_number: int, _frame: FrameType | None) -> None:
        raise Overdue(f"the test takes longer than {seconds:g} s")

    handler = signal.signal(signal.SIGALRM, raise_overdue)
    timer = signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, *timer)
        signal.signal(signal.SIGALRM, handler)
