"""What the programs of the adversarial run have in common: interrupts, bounds, and their end.

A program goes through lives. A life is one client object, from its `with` statement to whatever
ends it. Chance decides how: the end of the block, `close`, `close` from another thread, `sys.exit`,
or a KeyboardInterrupt that leaves the block. All other interrupts are caught, and the life goes on.

Once there is a file PEACE beside the journal, nothing is interrupted any more, and lives end in
order. SIGTERM ends the program after its life. SIGUSR1 writes down the stack of every thread.
"""

import argparse
import faulthandler
import logging
import os
import signal
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from types import FrameType
from typing import Final

import minibroker.client
from minibroker.client import ClientClosed
from tests.adversary.journal import Journal

CLIENT: Final = str(Path(minibroker.client.__file__).parent)
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
    """Raises KeyboardInterrupt in the main thread at random moments while `is_on`.

    It is raised only within a call of the client or within `Worker.work`. Anywhere else in the
    program it would hit the bookkeeping of the test: between the return of `poll` and the
    assignment of its result no client can help.
    """

    def __init__(self, journal: Journal, rng: Random) -> None:
        super().__init__(name="interrupts", daemon=True)
        self.is_on = False
        self.is_over = False
        self.mean_s = INTERRUPT_S[-1]
        self._journal = journal
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
        inner = frame
        while self.is_on and not self.is_over and frame is not None:
            code = frame.f_code
            if code.co_filename.startswith(CLIENT) or code is Worker.work.__code__:
                self._count += 1
                assert inner
                self._journal.log("interrupt", _place_of(inner, frame))
                raise KeyboardInterrupt
            frame = frame.f_back


def _place_of(inner: FrameType, outer: FrameType) -> str:
    """Where the interrupt hits, from the nearest function of the client."""
    frame: FrameType | None = inner
    while frame is not None and frame is not outer:
        if frame.f_code.co_filename.startswith(CLIENT):
            break
        frame = frame.f_back
    frame = frame or outer
    name = frame.f_code.co_filename.removeprefix(CLIENT)
    return f"{name}:{frame.f_lineno}:{frame.f_code.co_name}"


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
        self._left_s: dict[int, float] = {}
        self._names: dict[int, str] = {}

    def begin(self, name: str, limit_s: float, thread: threading.Thread | None = None) -> None:
        """Say that a thread, by default this one, makes a call now, which has so much time."""
        ident = (thread or threading.current_thread()).ident
        assert ident
        with self._lock:
            self._names[ident] = name
            self._left_s[ident] = limit_s

    def end(self) -> None:
        """Say that the call has returned or raised."""
        with self._lock:
            self._left_s.pop(threading.get_ident(), None)

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
                for thread in self._left_s:
                    self._left_s[thread] -= passed_s
                late = [thread for thread, left_s in self._left_s.items() if left_s < 0]
            if late:
                with self._stacks.open("a") as file:
                    faulthandler.dump_traceback(file, all_threads=True)
                self._journal.log("hang", *(self._names[thread] for thread in late))
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
        self.interrupts = Interrupts(self.journal, Random(given.seed + "interrupts"))
        stacks = given.journal.with_suffix(".stacks")
        self.watchdog = Watchdog(self.journal, stacks, self._look_for_peace)
        # Plain flags: a signal handler sets them, and must not wait for a lock.
        self.is_stopped = False
        self.has_peace = False
        self._peace: Path = given.journal.with_name(PEACE)
        self.life = 0
        self.leaked: set[int | None] = set()  # threads
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
        while not self.is_stopped:
            self.life += 1
            self.interrupts.mean_s = self.rng.choice(INTERRUPT_S)
            try:
                self.live()
            finally:
                self.interrupts.is_on = False
                self.watchdog.end()
            self._look_for_leaks()
        self.log("stop")

    @abstractmethod
    def live(self) -> None:
        """Go through one life."""

    def allow_interrupts(self) -> None:
        """Begin the part of a life in which they are caught."""
        self.interrupts.is_on = not self.has_peace

    def work(self, seconds: float) -> None:
        """Do what takes time and may be interrupted."""
        time.sleep(seconds)

    def _on_stop(self, number: int, frame: FrameType | None) -> None:
        self.is_stopped = self.has_peace = self.interrupts.is_over = True

    def _look_for_peace(self) -> None:
        if self._peace.exists():
            self.has_peace = self.interrupts.is_over = True

    def _look_for_leaks(self) -> None:
        """A client that was left has no thread any more."""
        until = time.monotonic() + LEAK_S
        while left := {
            each.ident: each.name
            for each in threading.enumerate()
            if each.name.startswith("minibroker") and each.ident not in self.leaked
        }:
            if time.monotonic() > until:
                self.log("leaked", self.life, *left.values())
                self.leaked |= left.keys()
                return
            time.sleep(0.01)


class Closer(threading.Thread):
    """Closes a client from another thread after a while, unless its life has ended before.

    It begins once the main thread reaches `place` then ("" is anywhere), or soon without that.
    """

    def __init__(self, worker: Worker, after_s: float, timeout_s: float, place: str) -> None:
        super().__init__(name="closer", daemon=True)
        self._worker = worker
        self._after_s = after_s
        self._timeout_s = timeout_s
        self._place = place
        self._delay_s = worker.rng.uniform(0, 0.003)
        self._is_due = False
        self._is_there = threading.Event()
        self._over = threading.Event()
        self.has_begun = False
        self.is_raced = False  # the program leaves the block without waiting for the close
        self.close: Callable[[float], object] = lambda timeout_s: None  # returns what to log

    def reach(self, place: str) -> None:
        """The main thread is there."""
        if self._is_due and place == self._place:
            self._is_there.set()

    def run(self) -> None:
        """Wait, then close."""
        until = time.monotonic() + self._after_s
        while time.monotonic() < until and not self._worker.has_peace:
            if self._over.wait(0.02):
                return
        self._is_due = True
        if self._place and not self._worker.has_peace:
            self._is_there.wait(PLACE_S_MAX)
            time.sleep(self._delay_s)
        if self._over.is_set():
            return
        self.has_begun = True
        log, timeout_s = self._worker.log, self._timeout_s
        log("closing", "other", timeout_s)
        begin = time.monotonic()
        self._worker.watchdog.begin(f"close({timeout_s}) from another thread", timeout_s + 30)
        try:
            told = self.close(timeout_s)
        except Exception as error:
            if self.is_raced and isinstance(error, ClientClosed):
                log("closed", "other", "raced")
            else:
                log("error", "close-from-another-thread", type(error).__name__, error)
        else:
            log("closed", "other", told or f"{time.monotonic() - begin:.3f}")
        finally:
            self._worker.watchdog.end()
            # Whatever that one waits for, it ends with the close.
            main = threading.main_thread()
            self._worker.watchdog.begin("any call after the close", ENDED_S_MAX, main)

    def cancel(self) -> None:
        """Do not close, if that has not begun."""
        self._over.set()

    def wait(self) -> None:
        """Until it has closed, or does not any more."""
        self._over.set()
        with suppress(RuntimeError):  # it was not started
            self.join()


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
    return parser.parse_args()
