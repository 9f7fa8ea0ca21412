"""One broker of a test's cluster as a process, and the group of all of them.

No broker outlives the process that started it, however that one ends. Brokers are in the process
group of a shell that reads from a pipe, and this process alone holds the other end. When this
process ends, the shell reads the end of the pipe and kills its group, also brokers that stand
still. Ctrl-C at the terminal does not reach the brokers, because their group is another one.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from minibroker.broker.metadata.sqlite_locks import pause_between_writes
from minibroker.testing.kit import unshared
from minibroker.testing.kit.node_orders import OrderRefused, give_order
from minibroker.testing.node.faults import NodeFaults
from minibroker.testing.node.settings import FAULTS, MARKER_FILE, PORT, TOKEN

READY: Final = re.compile(rb"^.*Kafka Server started", re.MULTILINE)
STOP_S_MAX: Final = 30.0
LINES_SHOWN: Final = 20
# What a user's shell says about brokers is not about these.
FOREIGN_VARIABLES: Final = ("KAFKA_", "MINIBROKER_")


class BrokerFailed(AssertionError):
    """A broker did not start, or ended by itself; the text has its last lines."""


class ProcessGroup:
    """The brokers of one cluster, which end with this process."""

    def __init__(self) -> None:
        end, pipe = os.pipe()
        try:
            self._shell = subprocess.Popen(
                ["/bin/sh", "-c", "read -r _; kill -KILL 0"],
                stdin=end,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                process_group=0,
            )
        except BaseException:
            os.close(pipe)
            raise
        finally:
            os.close(end)
        self._pipe = unshared.hold(pipe)

    @property
    def number(self) -> int:
        """The number of the process group."""
        return self._shell.pid

    def kill(self) -> None:
        """End all processes of the group. May be repeated."""
        if self._shell.returncode is None:
            # The number is the group's own until the shell is waited for.
            os.killpg(self._shell.pid, signal.SIGKILL)
            self._shell.wait()
            unshared.close(self._pipe)


class BrokerProcess:
    """One broker, which may be started more than once; its output is appended to `log_file`."""

    def __init__(
        self,
        node_id: int,
        directory: Path,
        properties: Mapping[str, str],
        orders_port: int,
        group: ProcessGroup,
    ) -> None:
        self.node_id = node_id
        self.data_dir = directory / f"broker-{node_id}"
        self.log_file = directory / f"broker-{node_id}.log"
        self.is_paused = False
        self._properties = properties
        self._orders_port = orders_port
        self._token = uuid4().hex
        self._group = group
        self._process: subprocess.Popen[bytes] | None = None
        self._began_at = 0  # in the log file
        # The requests of clients: of processes that have ended, and of this one when it was paused.
        self._past_requests: list[Mapping[str, Any]] = []
        self._latest_requests: list[Mapping[str, Any]] = []

    def start(self, faults: NodeFaults) -> None:
        """Start the process, with these faults from the first; it answers once `is_ready`."""
        self.data_dir.mkdir(exist_ok=True)
        (self.data_dir / MARKER_FILE).touch()
        self._past_requests += self._latest_requests
        self._latest_requests = []
        settings = {**self._properties, "log.dirs": str(self.data_dir)}
        command = [sys.executable, "-m", "minibroker.testing.node"]
        command += [f"{name}={value}" for name, value in settings.items()]
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(FOREIGN_VARIABLES)
        }
        environment[PORT] = str(self._orders_port)
        environment[TOKEN] = self._token
        environment[FAULTS] = json.dumps(faults.as_json())
        self._began_at = self.log_size()
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                cwd=self.log_file.parent,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                process_group=self._group.number,
            )

    def order(self, order: str, **arguments: object) -> Mapping[str, Any]:
        """Give an order. Raises `OrderRefused`, or `BrokerFailed` if it does not answer."""
        try:
            return give_order(self._orders_port, self._token, order, **arguments)
        except OSError as error:
            raise BrokerFailed(
                f"broker {self.node_id} takes no order: {error}\n{self.last_lines()}"
            ) from error

    def requests(self) -> list[Mapping[str, Any]]:
        """Return the requests of clients that it has received, those before a restart, too, if the
        test has made it. Raises `BrokerFailed` if it does not answer."""
        if self.is_running and not self.is_paused:
            self._latest_requests = self.order("requests", client_id=None)["requests"]
        return self._past_requests + self._latest_requests

    def _keep_requests(self) -> None:
        """Keep the requests of a process before it is ended or paused."""
        with suppress(BrokerFailed, OrderRefused):
            self.requests()

    @property
    def pid(self) -> int:
        """The number of its process, or of its latest one."""
        assert self._process is not None, "it was never started"
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether there is a process; one that is paused is."""
        return self._process is not None and self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """How the latest process ended, as `subprocess` has it."""
        return None if self._process is None else self._process.poll()

    def is_ready(self) -> bool:
        """Whether it answers, after a start. Raises `BrokerFailed` if it has ended."""
        code = self.exit_code  # before reading: what it said last is then there
        is_ready = READY.search(self._output()) is not None
        if code is not None and not is_ready:
            raise BrokerFailed(
                f"broker {self.node_id} ended with exit code {code} while it started:\n"
                f"{self.last_lines()}"
            )
        return is_ready

    def last_lines(self, count: int = LINES_SHOWN) -> str:
        """What it has printed last since its start."""
        return "\n".join(self._output().decode(errors="replace").splitlines()[-count:])

    def log_size(self) -> int:
        """The size of its log file in bytes."""
        return self.log_file.stat().st_size if self.log_file.exists() else 0

    def output_since(self, position: int) -> str:
        """What it has printed since its log file had this size."""
        return self._output(position).decode(errors="replace")

    def _output(self, position: int | None = None) -> bytes:
        if not self.log_file.exists():
            return b""  # it was never started
        with self.log_file.open("rb") as log:
            log.seek(self._began_at if position is None else position)
            return log.read()

    def how_it_ended(self) -> str:
        """How a process ended that nobody had told to, in a sentence and its last lines."""
        return (
            f"broker {self.node_id} ended by itself, with exit code {self.exit_code}:\n"
            f"{self.last_lines()}"
        )

    def end(self) -> None:
        """Send SIGKILL if there is a process, and return when it is gone."""
        if self.is_running:
            self._send(signal.SIGKILL)
            self._wait()

    def kill(self) -> None:
        """Send SIGKILL, and return when the process is gone."""
        self._keep_requests()
        self._send(signal.SIGKILL)
        self._wait()

    def stop(self) -> None:
        """Send SIGTERM, and return when the process has ended. Raises `BrokerFailed` if it does not
        end, or not with exit code 0."""
        self.resume()
        self._keep_requests()
        self._send(signal.SIGTERM)
        self._wait()
        if self.exit_code:
            raise BrokerFailed(
                f"broker {self.node_id} was stopped and ended with exit code {self.exit_code}:\n"
                f"{self.last_lines()}"
            )

    def pause(self) -> None:
        """Send SIGSTOP, and return when the process stands still: not inside of a write to the
        metadata store, which would pause the whole cluster."""
        self._keep_requests()
        self.is_paused = True
        pause_between_writes(self.pid, self._stop, lambda: self._send(signal.SIGCONT))

    def _stop(self) -> None:
        self._send(signal.SIGSTOP)
        _, status = os.waitpid(self.pid, os.WUNTRACED)
        if not os.WIFSTOPPED(status):
            raise BrokerFailed(self.how_it_ended())

    def resume(self) -> None:
        """Send SIGCONT, if the process stands still."""
        if self.is_paused:
            self._send(signal.SIGCONT)
            self.is_paused = False

    def _send(self, number: signal.Signals) -> None:
        assert self._process is not None, "it was never started"
        self._process.send_signal(number)

    def _wait(self) -> None:
        assert self._process is not None, "it was never started"
        self.is_paused = False
        try:
            self._process.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            raise BrokerFailed(
                f"broker {self.node_id} did not end within {STOP_S_MAX:g} s:\n{self.last_lines()}"
            ) from None


def wait_until_ready(brokers: list[BrokerProcess], timeout_s: float) -> None:
    """Return once all of these, just started, answer. Raises `BrokerFailed`."""
    deadline = time.monotonic() + timeout_s
    waiting = list(brokers)
    while waiting := [broker for broker in waiting if not broker.is_ready()]:
        if time.monotonic() > deadline:
            broker = waiting[0]
            raise BrokerFailed(
                f"broker {broker.node_id} did not start within {timeout_s:g} s:\n"
                f"{broker.last_lines()}"
            )
        time.sleep(0.01)
