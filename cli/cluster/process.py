"""One broker of a cluster as a process: find it, start it, send it signals, wait for its end.

A broker runs in its own session, so that Ctrl-C at `cluster up` stops it by an order and not by
accident, and it outlives the command that started it. The cluster's directory has all that is known
about it: its process in `broker-N.pid`, how its last run ended in its data directory (the
clean-shutdown mark), its output in `broker-N.log`.

A number in a pid file proves nothing, since the system reuses numbers. A process counts as our
broker only if its command line is the one that we start, with this data directory. A process that
has ended but was not yet reaped by its parent has no command line any more: it counts as ended.
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
    """The state of a broker's process, or how it ended."""

    RUNNING = "running"
    PAUSED = "paused"
    STOPPED = "stopped"
    ENDED = "ended without a clean stop"
    NEW = "never ran"

    @property
    def is_alive(self) -> bool:
        """Whether there is a process."""
        return self in (State.RUNNING, State.PAUSED)


class Broker:
    """One broker of a cluster, whichever command started it."""

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
        """The command line. Another option follows the data directory, so no other is a prefix."""
        settings = self.layout.broker_settings(self.node_id).items()
        return [
            sys.executable,
            "-P",  # a user's secrets.py, where the command is given, is not the library's
            "-m",
            "minibroker.cli",
            "start",
            "--data-dir",
            str(self._data_dir),
            *(part for name, value in settings for part in ("--set", f"{name}={value}")),
        ]

    @property
    def pid(self) -> int | None:
        """The broker's process, None if there is none."""
        return self.inspect()[0]

    @property
    def state(self) -> State:
        """The current state."""
        return self.inspect()[1]

    def inspect(self) -> tuple[int | None, State]:
        """Return process and state at the same moment."""
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
        """Start the process; the caller holds `layout.exclusive` and has seen it not alive."""
        from minibroker.broker.private_files import create_private_file

        begin = self.log_file.stat().st_size if self.log_file.exists() else 0
        for path in (self.log_file, self._pid_file):
            create_private_file(path)
        with self.log_file.open("ab") as log:
            process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._pid_file.write_text(f"{process.pid}\n", encoding="utf-8")
        # A new process has no command line for a moment, and could not be recognized by it.
        wait_for(lambda: self.state.is_alive or process.poll() is not None, SEEN_S_MAX)
        return Launch(self, process, begin)

    def send(self, number: signal.Signals) -> bool:
        """Send a signal; return whether there was a process to send it to."""
        pid = self.pid
        if pid is None:
            return False
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            return False
        return True

    def forget(self) -> None:
        """Remove the pid file of a process that has ended."""
        if not self.state.is_alive:
            self._pid_file.unlink(missing_ok=True)


class Launch:
    """A broker that this process is starting."""

    def __init__(self, broker: Broker, process: "subprocess.Popen[bytes]", begin: int) -> None:
        self.broker = broker
        self.pid = process.pid
        self._process = process
        self._position = begin  # in the log file: lines from here on are of this run
        self._ready_line = f"[KafkaServer id={broker.node_id}] started".encode()
        self._lines: list[bytes] = []

    def is_ready(self) -> bool:
        """Return whether the broker answers. Raises `Failure` if it has ended instead."""
        code = self._process.poll()  # before reading, so that its last output is read
        self._read()
        if code is not None:
            raise Failure(self._why_it_ended(code))
        return any(self._ready_line in line for line in self._lines)  # it may be in a JSON object

    def collect(self) -> None:
        """Reap the process if it has ended."""
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
    """Wait until a condition holds; return whether it did within `timeout_s` seconds."""
    deadline = time.monotonic() + timeout_s
    while not is_so():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_S)
    return True


def end(brokers: Iterable[Broker], timeout_s: float) -> list[Broker]:
    """Send SIGTERM to all these brokers at once, and wait; return those that still run.

    Paused ones are resumed, since a stopped process handles no signal.
    """
    ordered = [broker for broker in brokers if broker.send(signal.SIGTERM)]
    for broker in ordered:
        broker.send(signal.SIGCONT)
    wait_for(lambda: not any(broker.state.is_alive for broker in ordered), timeout_s)
    for broker in ordered:
        broker.forget()
    return [broker for broker in ordered if broker.state.is_alive]


def _process(pid: int) -> tuple[str, bool]:
    """Return the command line of a process ("" if there is none), and whether it is stopped."""
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
