"""A foreign program in a process of its own, which tests kill and start again."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from tests.support.apache_kafka import java

# A program's command, of a cluster's address, the program's name there and its directory.
Command = Callable[[str, str, Path], list[str]]

PROGRAMS: Final = Path(__file__).parent / "programs"
WAIT_S_MAX: Final = 180.0  # a Java program, its first rebalance and its work, on a busy machine
LOOK_EVERY_S: Final = 0.2
NEEDS_JAVA: Final = pytest.mark.skipif(
    not (shutil.which("java") and shutil.which("mvn")), reason="Java or Maven is not installed"
)


def of_java(program: str) -> Command:
    """A program of Java, compiled as it starts, with Apache Kafka's libraries."""
    return lambda *arguments: java(str(PROGRAMS / program), *map(str, arguments))


def of_python(program: str) -> Command:
    """A program of Python whose packages are among those of the tests."""
    return lambda *arguments: [sys.executable, str(PROGRAMS / program), *map(str, arguments)]


def with_package(package: str, program: str) -> Command:
    """A program of Python whose package is not among those of the tests."""
    uv = [sys.executable, "-m", "uv", "run", "--no-project", "--python", sys.executable]
    uv += ["--with", package, "python", str(PROGRAMS / program)]
    return lambda *arguments: [*uv, *map(str, arguments)]


class ForeignProcess:
    """Runs from when it is made; `kill` takes the processes that it has started, too."""

    def __init__(self, command: Sequence[str], log: Path) -> None:
        self._log = log
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
            )

    @property
    def is_running(self) -> bool:
        """Whether it has not ended; one that is paused has not."""
        return self._process.poll() is None

    @property
    def output(self) -> str:
        """The end of what it has printed, with that of earlier processes with this log."""
        return self._log.read_text(errors="replace")[-5000:]

    def wait_until(self, is_so: Callable[[], bool], text: str) -> None:
        """Return once it is so; fail if the process ends before, or after `WAIT_S_MAX`."""
        deadline = time.monotonic() + WAIT_S_MAX
        while not is_so():
            assert self.is_running, f"{text}: the program has ended\n{self.output}"
            assert time.monotonic() < deadline, f"{text}: not in time\n{self.output}"
            time.sleep(LOOK_EVERY_S)

    def pause(self) -> None:
        """SIGSTOP."""
        os.killpg(self._process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        os.killpg(self._process.pid, signal.SIGCONT)

    def kill(self) -> None:
        """`kill -9`."""
        if self.is_running:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


@contextmanager
def foreign_process(command: Sequence[str], log: Path) -> Iterator[ForeignProcess]:
    """A program that is killed when the block ends, if not before."""
    process = ForeignProcess(command, log)
    try:
        yield process
    finally:
        process.kill()
