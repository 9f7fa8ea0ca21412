"""One broker of a cluster as a process: is it there, start it, send it signals, wait for its end.

A broker belongs to nobody: it runs in a session of its own, so that Ctrl-C at `cluster up` reaches
it as an order to stop and not by accident, and it outlives whoever started it. What is known about
it is in the cluster's directory: its process in `broker-N.pid`, how its last run ended in its
data directory (the clean-shutdown mark), what it said in `broker-N.log`.

A number in a pid file proves nothing, for the system gives numbers again. A process counts as our
broker only if its command line is the one that we start, with this data directory. A process that
has ended and was not yet collected by its parent has no command line any more: it is gone.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from enum import StrEnum
from pathlib import Path
from typing import Final

from minibroker.cli.cluster.layout import META, Layout
from minibroker.cli.terminal import Failure

POLL_S: Final = 0.02
SEEN_S_MAX: Final = 5.0
CLEAN_SHUTDOWN: Final = "clean-shutdown"  # in the data directory, after a stop in order
ERROR_PREFIX: Final = "% ERROR: "


class State(StrEnum):
    """A broker's process, or how it ended."""

    RUNNING = "running"
    PAUSED = "paused"
    STOPPED = "stopped"
    ENDED = "ended without a clean stop"
    NEW = "never ran"

    @property
    def is_alive(self) -> bool:
        """There is a process."""
        return self in (State.RUNNING, State.PAUSED)


class Broker:
    """One broker of a cluster, whoever started it."""

    def __init__(self, layout: Layout, node_id: int) -> None:
        self.layout = layout
        self.node_id = node_id
        self.address = layout.address(node_id)
        self.log_file = layout.log_file(node_id)
        self._data_dir = layout.data_dir(node_id)
        self._pid_file = layout.pid_file(node_id)

    def __str__(self) -> str:
        return f"broker {self.node_id}"

    @property
    def _command(self) -> list[str]:
        """The data directory is followed by another option, so that no name begins like it."""
        settings = self.layout.broker_settings(self.node_id).items()
        return [
            sys.executable,
            "-m",
            "minibroker.cli",
            "start",
            "--data-dir",
            str(self._data_dir),
            *(part for name, value in settings for part in ("--set", f"{name}={value}")),
        ]

    @property
    def pid(self) -> int | None:
        """Its process, if there is one."""
        return self.inspect()[0]

    @property
    def state(self) -> State:
        """As it is at this moment."""
        return self.inspect()[1]

    def inspect(self) -> tuple[int | None, State]:
        """Process and state, of the same moment."""
        try:
            pid = int(self._pid_file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            pid = 0
        command, is_stopped = _process(pid)
        if f"minibroker.cli start --data-dir {self._data_dir} --set " in command:
            return pid, State.PAUSED if is_stopped else State.RUNNING
        if not (self._data_dir / META).exists():
            return None, State.NEW
        is_clean = (self._data_dir / CLEAN_SHUTDOWN).exists()
        return None, State.STOPPED if is_clean else State.ENDED

    def spawn(self) -> "Launch":
        """Start its process; the caller holds `layout.exclusive` and saw it not alive."""
        begin = self.log_file.stat().st_size if self.log_file.exists() else 0
        with self.log_file.open("ab") as log:
            process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._pid_file.write_text(f"{process.pid}\n", encoding="utf-8")
        # For a moment a new process has no command line, and would not be known by it.
        wait_for(lambda: self.state.is_alive or process.poll() is not None, SEEN_S_MAX)
        return Launch(self, process, begin)

    def send(self, number: signal.Signals) -> bool:
        """As `kill` would; whether there was a process to send it to."""
        pid = self.pid
        if pid is None:
            return False
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            return False
        return True

    def forget(self) -> None:
        """Take the pid file of a process that is gone away."""
        if not self.state.is_alive:
            self._pid_file.unlink(missing_ok=True)


class Launch:
    """A broker on its way up, started by this process."""

    def __init__(self, broker: Broker, process: "subprocess.Popen[bytes]", begin: int) -> None:
        self.broker = broker
        self.pid = process.pid
        self._process = process
        self._position = begin  # in the log file: what comes from here on is of this run
        self._ready_line = f"[KafkaServer id={broker.node_id}] started".encode()
        self._lines: list[bytes] = []

    def is_ready(self) -> bool:
        """Whether it answers. Raises `Failure` if it has ended instead."""
        code = self._process.poll()  # before reading: what it said last is then there
        self._read()
        if code is not None:
            raise Failure(self._why_it_ended(code))
        return any(self._ready_line in line for line in self._lines)  # it may be in an object

    def collect(self) -> None:
        """Let the system forget it, if it has ended."""
        self._process.poll()

    def _read(self) -> None:
        with self.broker.log_file.open("rb") as log:
            log.seek(self._position)
            whole, newline, _ = log.read().rpartition(b"\n")
        if newline:
            self._position += len(whole) + 1
            self._lines += whole.split(b"\n")

    def _why_it_ended(self, code: int) -> str:
        said = [line.decode(errors="replace") for line in self._lines if line.strip()]
        errors = [line.removeprefix(ERROR_PREFIX) for line in said if line.startswith(ERROR_PREFIX)]
        how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
        reason = (errors or said or ["without a word"])[-1]
        return f"{self.broker} ended {how} while it started: {reason} (see {self.broker.log_file})"


def wait_for(is_so: Callable[[], bool], timeout_s: float) -> bool:
    """Whether it became so in time."""
    deadline = time.monotonic() + timeout_s
    while not is_so():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_S)
    return True


def end(brokers: Iterable[Broker], timeout_s: float) -> list[Broker]:
    """Order all these brokers at once to stop, and wait; who still runs after that time.

    A paused one is woken, for a process that stands still obeys nothing.
    """
    ordered = [broker for broker in brokers if broker.send(signal.SIGTERM)]
    for broker in ordered:
        broker.send(signal.SIGCONT)
    wait_for(lambda: not any(broker.state.is_alive for broker in ordered), timeout_s)
    for broker in ordered:
        broker.forget()
    return [broker for broker in ordered if broker.state.is_alive]


def _process(pid: int) -> tuple[str, bool]:
    """The command line of a process ("" if there is none), and whether it was stopped."""
    proc = Path("/proc") / str(pid)
    if Path("/proc/self/stat").exists():
        try:
            command = (proc / "cmdline").read_bytes().replace(b"\0", b" ")
            status = (proc / "stat").read_bytes().rpartition(b") ")[2]
        except OSError:
            return "", False
        return os.fsdecode(command), status.startswith((b"T", b"t"))
    shown = subprocess.run(
        ["ps", "-ww", "-o", "stat=,args=", "-p", str(pid)], capture_output=True, check=False
    )
    status, _, command = shown.stdout.strip().partition(b" ")
    return os.fsdecode(command.strip()), status.startswith(b"T")
