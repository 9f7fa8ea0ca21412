"""Real broker processes for whoever needs them: the demo, acceptance tests, benchmarks.

A broker is started through the command line, as a user would, on a free port; what it prints is
drained by a thread, so that it never blocks on a full pipe, and shown when something fails.
"""

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

COMMAND = [sys.executable, "-m", "minibroker.cli"]
READY_LINE = "Kafka Server started"
LISTENING = re.compile(r"Listening on (\S+:\d+)")
START_S_MAX = 30.0
STOP_S_MAX = 30.0


class BrokerProcess:
    """`minibroker start` in a process of its own; `address` is HOST:PORT once it is ready."""

    def __init__(self, data_dir: Path, *options: str, listen: str = "127.0.0.1:0") -> None:
        self.data_dir = data_dir
        self.lines: list[str] = []
        self.address = ""
        self._ready = threading.Event()
        self._process = subprocess.Popen(
            [*COMMAND, "start", "--data-dir", str(data_dir), "--listen", listen, *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._drain = threading.Thread(target=self._read_output, daemon=True)
        self._drain.start()

    def _read_output(self) -> None:
        assert self._process.stdout
        with self._process.stdout as output:
            for line in output:
                self.lines.append(line.rstrip("\n"))
                if match := LISTENING.search(line):
                    self.address = match[1]
                if READY_LINE in line:
                    self._ready.set()
        self._ready.set()

    @property
    def pid(self) -> int:
        """The process."""
        return self._process.pid

    @property
    def resident_bytes(self) -> int:
        """The memory it holds now, from the system."""
        return resident_bytes(self.pid)

    @property
    def output(self) -> str:
        """What it has printed so far."""
        return "\n".join(self.lines)

    def wait_until_ready(self) -> "BrokerProcess":
        """Return once it answers; an `AssertionError` with its output if it does not."""
        is_told = self._ready.wait(START_S_MAX)
        if not is_told or not any(READY_LINE in line for line in self.lines):
            self.kill()
            raise AssertionError(f"the broker did not start:\n{self.output}")
        return self

    def send_signal(self, number: signal.Signals) -> None:
        """As `kill` would."""
        self._process.send_signal(number)

    def wait(self, timeout_s: float = STOP_S_MAX) -> int:
        """The exit code, once it has ended and all its output is here."""
        code = self._process.wait(timeout_s)
        self._drain.join()
        return code

    def stop(self) -> int:
        """SIGTERM, and the exit code."""
        self.send_signal(signal.SIGTERM)
        return self.wait()

    def kill(self) -> None:
        """`kill -9`, if it still runs."""
        self._process.kill()
        self.wait()


def resident_bytes(pid: int) -> int:
    """The memory that a process holds now, from the system."""
    if os.path.exists("/proc/self/statm"):
        with open(f"/proc/{pid}/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    shown = subprocess.run(["ps", "-o", "rss=", "-p", str(pid)], capture_output=True, check=True)
    return int(shown.stdout) * 1024


@contextmanager
def running_broker(data_dir: Path, *options: str) -> Iterator[BrokerProcess]:
    """A broker that answers; it is gone when the block ends, however that happens."""
    broker = BrokerProcess(data_dir, *options)
    try:
        yield broker.wait_until_ready()
    finally:
        broker.kill()


def run_cli(*arguments: str, stdin: str = "", timeout_s: float = 30) -> subprocess.CompletedProcess:
    """One command to its end; its output is text."""
    return subprocess.run(
        [*COMMAND, *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
