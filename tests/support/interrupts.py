"""Raise KeyboardInterrupt, or do anything else, at a chosen line of a program.

    for interrupt in every_line(FILES):
        with interrupt:
            program()
        check()

runs the program again and again, each time with a KeyboardInterrupt (or a call of `act`) at the
next line that this thread executes in one of the files, until it runs through without. `alarms` is
for real signals, at moments that a timer chooses. `cancelled_after` cancels a call of asyncio.
"""

import asyncio
import gc
import math
import signal
import sys
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, ModuleType, TracebackType
from typing import Any, Self


def files_of(package: ModuleType) -> list[Path]:
    """The source files of a package, by the names that their frames have."""
    return sorted(Path(package.__path__[0]).glob("*.py"))


def interrupt() -> None:
    """What Ctrl-C does."""
    raise KeyboardInterrupt


class AtLine:
    """Used with `with`: acts at the line event of this number (from 0) in the files.

    `where` says which line that was; None: the program ended before. The collector of cycles rests
    meanwhile: the finalizer of an object of a former run executes lines in these files, and would
    stand still in the middle of whatever it came into.
    """

    def __init__(self, number: int, files: Iterable[Path], act: Callable[[], None]) -> None:
        self._left = number
        self._files = {str(path) for path in files}
        self._act = act
        self.where: str | None = None

    def __enter__(self) -> Self:
        self._before = sys.gettrace()
        gc.disable()
        sys.settrace(self._enter_frame)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        sys.settrace(self._before)
        gc.enable()

    def _enter_frame(self, frame: FrameType, event: str, argument: Any) -> Any:
        return self._at_event if frame.f_code.co_filename in self._files else None

    def _at_event(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line" and self.where is None:
            if self._left == 0:
                self.where = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
                sys.settrace(self._before)
                self._act()
                return None
            self._left -= 1
        return self._at_event


def every_line(
    files: Iterable[Path], act: Callable[[], None] = interrupt, *, step: int = 1, limit: int = 2000
) -> Iterator[AtLine]:
    """One `AtLine` for each line that the program executes, every `step`-th of them.

    Raises `AssertionError` if it executes none: then the files are others than those that run.
    """
    paths = list(files)
    for number in range(0, limit, step):
        at = AtLine(number, paths, act)
        yield at
        if at.where is None:
            assert number, f"the program executes no line of {sorted(map(str, paths))}"
            return
    raise AssertionError(f"the program executes more than {limit} lines")


@contextmanager
def alarms(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """SIGALRM calls the handler meanwhile, or what a deadline has set, once that has come.

    The collector of cycles rests: what a handler raises inside of a callback of it, or of a
    finalizer, Python can only report."""
    left_s, again_s = signal.setitimer(signal.ITIMER_REAL, 0)
    end = time.monotonic() + left_s if left_s else math.inf
    before: Any = signal.getsignal(signal.SIGALRM)

    def handle(number: int, frame: FrameType | None) -> None:
        (handler if time.monotonic() < end else before)(number, frame)

    signal.signal(signal.SIGALRM, handle)
    gc.disable()
    try:
        yield
    finally:
        signal.signal(signal.SIGALRM, before)
        if left_s:
            left_s = max(end - time.monotonic(), 0.001)
        signal.setitimer(signal.ITIMER_REAL, left_s, again_s)
        gc.enable()


def is_inside(frame: FrameType | None, name: str) -> bool:
    """Whether a frame belongs to a call into a file of this name."""
    while frame is not None:
        if frame.f_code.co_filename.endswith(name):
            return True
        frame = frame.f_back
    return False


async def cancelled_after(turns: int, call: Coroutine[Any, Any, Any]) -> Any:
    """Cancel a call after so many turns of the event loop; what it returned, if it was faster."""
    task = asyncio.create_task(call)
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    try:
        return await task
    except asyncio.CancelledError:
        return None
