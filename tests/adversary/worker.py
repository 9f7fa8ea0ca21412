"""What the programs of the adversarial run have in common: interrupts, bounds, and their end.

A program goes through lives. A life is one client object, from its `with` statement to whatever
ends it. Chance decides how: the end of the block, `close`, `close` from another thread or task,
`sys.exit`, or an interrupt that leaves the block. All other interrupts are caught, and the life
goes on. Each life has one of the kinds of clients (faces.py) that the program was started with.

Once there is a file PEACE beside the journal, nothing is interrupted any more, and lives end in
order. SIGTERM ends the program after its life. SIGUSR1 writes down the stack of every thread.
"""

import argparse
import asyncio
import faulthandler
import logging
import os
import signal
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from types import FrameType
from typing import Final

from minibroker.client import ClientClosed
from tests.adversary.faces import CLIENT, AsyncioFace, BlockingFace, Face, is_of_client
from tests.adversary.journal import Journal

LIFE: Final = "life"
CLOSER: Final = "closer"
PEACE: Final = "peace"
HUNG: Final = 70  # the exit code of a program that had a call which did not return
LOOK_EVERY_S: Final = 0.25
GAP_S: Final = 1.0  # the process was paused, and no call could return
PLACE_S_MAX: Final = 2.0
ENDED_S_MAX: Final = 60.0
LEAK_S: Final = 10.0
INTERRUPT_TRIES: Final = 20
INTERRUPT_S: Final = (0.03, 0.2, 1.0)  # between interrupts, on average, of one life


class Interrupts(threading.Thread):
    """Interrupts the main thread at random moments while `is_on`, as the life's face does that."""

    def __init__(self, worker: "Worker", rng: Random) -> None:
        super().__init__(name="interrupts", daemon=True)
        self.is_on = False
        self.is_over = False
        self.mean_s = INTERRUPT_S[-1]
        self._worker = worker
        self._rng = rng
        self._count = 0

    def run(self) -> None:
        """Send SIGINT now and then, and sometimes again at once."""
        main = threading.main_thread().ident
        assert main
        while True:
            is_second = self._rng.random() < 0.2
            time.sleep(self._rng.expovariate(1 / (0.002 if is_second else self.mean_s)))
            for _ in range(INTERRUPT_TRIES):
                count = self._count
                if not self.is_on:
                    break
                signal.pthread_kill(main, signal.SIGINT)
                time.sleep(0.001)
                if self._count != count:
                    break

    def start(self) -> None:
        """Take over SIGINT, which only the main thread may do, and begin."""
        signal.signal(signal.SIGINT, self._on_signal)
        super().start()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        assert frame
        worker = self._worker
        if not self.is_on or self.is_over:
            return
        is_last = worker.is_interrupt_last
        if worker.face.may_interrupt(frame, Worker.work.__code__, is_last=is_last):
            self._count += 1
            worker.log("interrupt", _place_of(frame))
            worker.face.interrupt(frame, is_last=is_last)


def _place_of(frame: FrameType) -> str:
    """Where the interrupt hits, from the nearest function of the client."""
    at: FrameType | None = frame
    while at is not None and not is_of_client(at):
        at = at.f_back
    at = at or frame
    name = at.f_code.co_filename.removeprefix(CLIENT)
    return f"{name}:{at.f_lineno}:{at.f_code.co_name}"


class Watchdog(threading.Thread):
    """Ends the program with all stacks when a call has not returned in its time, and looks whether
    there is peace.

    While the process is paused, no time passes.
    """

    def __init__(self, journal: Journal, stacks: Path, look: Callable[[], object]) -> None:
        super().__init__(name="watchdog", daemon=True)
        self._journal = journal
        self._stacks = stacks
        self._look = look
        self._lock = threading.Lock()
        self._left_s: dict[str, float] = {}
        self._names: dict[str, str] = {}

    def begin(self, name: str, limit_s: float, caller: str = LIFE) -> None:
        """Say that the life, or the closer, makes a call now, which has so much time."""
        with self._lock:
            self._names[caller] = name
            self._left_s[caller] = limit_s

    def end(self, caller: str = LIFE) -> None:
        """Say that the call has returned or raised."""
        with self._lock:
            self._left_s.pop(caller, None)

    def run(self) -> None:
        """Look at the calls until one has no time left."""
        last = time.monotonic()
        while True:
            time.sleep(LOOK_EVERY_S)
            self._look()
            now = time.monotonic()
            passed_s, last = now - last, now
            if passed_s > GAP_S:
                continue
            with self._lock:
                for caller in self._left_s:
                    self._left_s[caller] -= passed_s
                late = [caller for caller, left_s in self._left_s.items() if left_s < 0]
            if late:
                with self._stacks.open("a") as file:
                    faulthandler.dump_traceback(file, all_threads=True)
                self._journal.log("hang", *(self._names[caller] for caller in late))
                os._exit(HUNG)


class JournalHandler(logging.Handler):
    """Writes the client's warnings to the journal."""

    def __init__(self, journal: Journal) -> None:
        super().__init__(logging.WARNING)
        self._journal = journal

    def emit(self, record: logging.LogRecord) -> None:
        """Write one."""
        self._journal.log("warning", record.getMessage())


class Worker(ABC):
    """A program that goes through lives until SIGTERM."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.bootstrap: str = given.bootstrap
        self.topic: str = given.topic
        self.name: str = given.name
        self.life_s: float = given.life_s
        self.rate: float = given.rate
        self.rng = Random(given.seed)
        self.journal = Journal(given.journal)
        self.log = self.journal.log
        self.interrupts = Interrupts(self, Random(given.seed + "interrupts"))
        limits = Random(given.seed + "limits")
        faces = (BlockingFace(), AsyncioFace(limits, lambda: self.interrupts.is_on))
        self._faces: list[Face] = [each for each in faces if each.name in given.faces]
        self.face = self._faces[0]
        self.closer = Closer(self, 0.0, 0.0, "")  # of the life
        self.end = ""  # how the life shall end
        self.until = 0.0  # and when
        stacks = given.journal.with_suffix(".stacks")
        self.watchdog = Watchdog(self.journal, stacks, self._look_for_peace)
        # Plain flags: a signal handler sets them, and must not wait for a lock.
        self.is_stopped = False
        self.has_peace = False
        self._peace: Path = given.journal.with_name(PEACE)
        self.life = 0
        self.leaked: set[int | str | None] = set()  # threads and tasks
        faulthandler.register(signal.SIGUSR1, stacks.open("a"), all_threads=True)
        logger = logging.getLogger("minibroker")
        logger.addHandler(JournalHandler(self.journal))
        logger.propagate = False

    def run(self) -> None:
        """Live until SIGTERM, or until a life ends the process."""
        signal.signal(signal.SIGTERM, self._on_stop)
        self._look_for_peace()
        self.log("start", self.name)
        self.interrupts.start()
        self.watchdog.start()
        try:
            while not self.is_stopped:
                self.life += 1
                self.interrupts.mean_s = self.rng.choice(INTERRUPT_S)
                self.face = self.rng.choice(self._faces)
                self.log("face", self.face.name)
                self.face.run(self._live)
            self.log("stop")
        finally:
            # The end of the interpreter takes every handler back, and SIGTERM would end a program
            # that a life has ended before; what is ignored stays so.
            signal.signal(signal.SIGTERM, signal.SIG_IGN)

    async def _live(self) -> None:
        try:
            await self.live()
        finally:
            self.interrupts.is_on = False
            await self.face.uninterrupted(self.closer.wait)
            self.watchdog.end()
            await self.face.uninterrupted(self._look_for_leaks)

    @abstractmethod
    async def live(self) -> None:
        """Go through one life."""

    @property
    def is_interrupt_last(self) -> bool:
        """Whether an interrupt would end the life."""
        return self.end == "interrupt" and time.monotonic() > self.until

    def allow_interrupts(self) -> None:
        """Begin the part of a life in which they are caught."""
        self.interrupts.is_on = not self.has_peace

    async def work(self, seconds: float) -> None:
        """Do what takes time and may be interrupted."""
        await self.face.pause(seconds)

    def _on_stop(self, number: int, frame: FrameType | None) -> None:
        self.is_stopped = self.has_peace = self.interrupts.is_over = True

    def _look_for_peace(self) -> None:
        if self._peace.exists():
            self.has_peace = self.interrupts.is_over = True

    async def _look_for_leaks(self) -> None:
        """A client that was left has no thread and no task any more."""
        until = time.monotonic() + LEAK_S
        while left := self._left():
            if time.monotonic() > until:
                self.log("leaked", self.life, *left.values())
                self.leaked |= left.keys()
                return
            await self.face.pause(0.01)

    def _left(self) -> dict[int | str | None, str]:
        threads = {
            each.ident: each.name
            for each in threading.enumerate()
            if each.name.startswith("minibroker")
        }
        tasks = {name: name for name in self.face.left()}
        return {key: name for key, name in (threads | tasks).items() if key not in self.leaked}


class Closer:
    """Closes a client from another thread or task after a while, unless its life ended before.

    It begins once the life reaches `place` then ("" is anywhere), or soon without that.
    """

    def __init__(self, worker: Worker, after_s: float, timeout_s: float, place: str) -> None:
        self._worker = worker
        self._after_s = after_s
        self._timeout_s = timeout_s
        self._place = place
        self._delay_s = worker.rng.uniform(0, 0.003)
        # Plain flags: an interrupt of the life must not find a lock taken.
        self._is_due = self._is_there = self._is_over = False
        self._is_running = False
        self.has_begun = False
        self.is_raced = False  # the program leaves the block without waiting for the close
        # Returns what to log.
        self.close: Callable[[float], Awaitable[object]]

    def start(self) -> None:
        """Begin to wait for the moment."""
        self._is_running = True
        self._worker.face.start(self._run)

    def reach(self, place: str) -> bool:
        """Say that the life is at this place now. Returns whether the close begins there."""
        self._is_there = self._is_due and place == self._place
        return self._is_there

    async def _run(self) -> None:
        try:
            await self._wait_for_moment()
            if not self._is_over:
                await self._close()
        finally:
            self._is_running = False

    async def _wait_for_moment(self) -> None:
        worker = self._worker
        until = time.monotonic() + self._after_s
        while time.monotonic() < until and not worker.has_peace and not self._is_over:
            await worker.face.pause(0.02)
        self._is_due = True
        if not self._place or worker.has_peace:
            return
        until = time.monotonic() + PLACE_S_MAX
        while time.monotonic() < until and not self._is_there and not self._is_over:
            await worker.face.pause(0.001)
        await worker.face.pause(self._delay_s)

    async def _close(self) -> None:
        self.has_begun = True
        log, timeout_s, watchdog = self._worker.log, self._timeout_s, self._worker.watchdog
        log("closing", "other", timeout_s)
        begin = time.monotonic()
        watchdog.begin(f"close({timeout_s}) from elsewhere", timeout_s + 30, CLOSER)
        try:
            told = await self.close(timeout_s)
        except asyncio.CancelledError:
            log("cancelled", "other")
        except Exception as error:
            if self.is_raced and isinstance(error, ClientClosed):
                log("closed", "other", "raced")
            else:
                log("error", "close-from-elsewhere", type(error).__name__, error)
        else:
            log("closed", "other", told or f"{time.monotonic() - begin:.3f}")
        finally:
            watchdog.end(CLOSER)
            # Whatever the life waits for, it ends with the close.
            watchdog.begin("any call after the close", ENDED_S_MAX)

    def cancel(self) -> None:
        """Do not close, if that has not begun."""
        self._is_over = True

    async def wait(self) -> None:
        """Until it has closed, or does not any more."""
        self._is_over = True
        while self._is_running:
            await self._worker.face.pause(0.001)


def parse() -> argparse.Namespace:
    """Read the command line of a worker."""
    parser = argparse.ArgumentParser()
    parser.add_argument("journal", type=Path)
    parser.add_argument("bootstrap")
    parser.add_argument("topic")
    parser.add_argument("name")
    parser.add_argument("seed")
    parser.add_argument("--life-s", type=float, default=8.0)
    parser.add_argument("--rate", type=float, default=500.0, help="records a second")
    parser.add_argument("--group", default="")
    parser.add_argument("--faces", nargs="+", default=["blocking", "asyncio"])
    return parser.parse_args()
