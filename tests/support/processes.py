"""Real broker processes for whoever needs them: the demo, acceptance tests, benchmarks.

A broker is started through the command line, as a user would, on a free port; what it prints is
drained by a thread, so that it never blocks on a full pipe, and shown when something fails.

A cluster is laid out and set as `minibroker cluster up` does it, but each broker is a child of the
test's own: its exit code and its output are at hand.
"""

import io
import itertools
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Protocol
from unittest.mock import patch

from minibroker.broker.metadata.sqlite_locks import pause_between_writes
from minibroker.cli.cluster.layout import HOST, Layout
from minibroker.cli.main import main

COMMAND = [sys.executable, "-m", "minibroker.cli"]
READY_LINE = "Kafka Server started"
LISTENING = re.compile(r"Listening on (\S+:\d+)")
START_S_MAX = 30.0
STOP_S_MAX = 30.0
EXPORT = "cluster.json"  # beside the brokers' directories
# Below the ports that systems give to outgoing connections: a client that tries again and again to
# reach a dead broker at one of those would one day be connected to itself.
PORTS = range(12_000, 32_000)
PORTS_A_TURN = 16
# Sessions of pytest that run beside each other (`tests.beside`) have a part each: between the look
# for free ports and the start of a broker another session's could take one.
PARTS = 4
PART = "TESTS_PART"
_turns = itertools.count(os.getpid())


class Machine(Protocol):
    """Where processes run: this machine, or a host of `tests/support/namespaces.py`."""

    address: str

    def popen(self, command: Sequence[str], **options: Any) -> "subprocess.Popen[Any]":
        """As `subprocess.Popen`."""

    def socket(self) -> socket.socket:
        """A TCP socket for this process that reaches what the machine reaches."""


class ThisMachine:
    """By its loopback."""

    address = HOST

    def popen(self, command: Sequence[str], **options: Any) -> "subprocess.Popen[Any]":
        """A child of this process."""
        return subprocess.Popen(command, **options)

    def socket(self) -> socket.socket:
        """An ordinary one."""
        return socket.socket()


class BrokerProcess:
    """`minibroker start` in a process of its own; `address` is HOST:PORT once it is ready."""

    def __init__(
        self,
        data_dir: Path,
        *options: str,
        listen: str = "127.0.0.1:0",
        machine: Machine | None = None,
        tree: Path | None = None,
    ) -> None:
        """`tree` is what `PYTHONPATH` gets: a package other than the installed one."""
        self.data_dir = data_dir
        self.lines: list[str] = []
        self.address = ""
        self._ready = threading.Event()
        self._process = (machine or ThisMachine()).popen(
            [*COMMAND, "start", "--data-dir", str(data_dir), "--listen", listen, *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=None if tree is None else {**os.environ, "PYTHONPATH": str(tree)},
        )
        self._drain = threading.Thread(target=self._read_output, daemon=True)
        self._drain.start()

    def _read_output(self) -> None:
        assert self._process.stdout
        with self._process.stdout as output:
            for line in output:
                self.lines.append(line.rstrip("\n"))
                if not self.address and (match := LISTENING.search(line)):
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

    def wait_until_ready(self, timeout_s: float = START_S_MAX) -> "BrokerProcess":
        """Return once it answers; an `AssertionError` with its output if it does not."""
        is_told = self._ready.wait(timeout_s)
        if not is_told or not any(READY_LINE in line for line in self.lines):
            self.kill()
            raise AssertionError(f"the broker did not start:\n{self.output}")
        return self

    @property
    def is_running(self) -> bool:
        """Whether the process is there; one that is paused is."""
        return self._process.poll() is None

    def send_signal(self, number: signal.Signals) -> None:
        """As `kill` would."""
        self._process.send_signal(number)

    def wait(self, timeout_s: float = STOP_S_MAX) -> int:
        """The exit code, once it has ended and all its output is here."""
        code = self._process.wait(timeout_s)
        self._drain.join()
        return code

    def pause(self) -> None:
        """SIGSTOP, and return once it stands still, but not inside of a write to the store."""
        pause_between_writes(self.pid, self._stop, self.resume)

    def _stop(self) -> None:
        self.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED)

    def resume(self) -> None:
        """SIGCONT."""
        self.send_signal(signal.SIGCONT)

    def stop(self, timeout_s: float = STOP_S_MAX) -> int:
        """SIGTERM, and the exit code."""
        self.send_signal(signal.SIGTERM)
        return self.wait(timeout_s)

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


class ClusterProcesses:
    """Brokers 1 to `count`, laid out in `root` as by `minibroker cluster up`; made by
    `running_cluster`. `settings` are laid over what `cluster up` gives each broker, and so is
    `store`, a `metadata.store`, if it is not empty. `trees` has the packages of brokers that do not
    run the installed one; a change counts from the next start on."""

    def __init__(
        self,
        root: Path,
        count: int,
        settings: dict[str, str],
        store: str = "",
        trees: Mapping[int, Path | None] | None = None,
    ) -> None:
        self.layout = Layout(root.absolute(), count, free_base_port(count), settings)
        self.brokers: dict[int, BrokerProcess] = {}
        self.start_s_max = START_S_MAX
        self.stop_s_max = STOP_S_MAX
        self.trees = dict(trees or {})
        self._store = store

    @property
    def addresses(self) -> str:
        """All brokers, for a client's `bootstrap.servers`."""
        return ",".join(map(self.address_of, self.layout.node_ids))

    def address_of(self, node_id: int) -> str:
        """HOST:PORT of a broker."""
        return self.layout.address(node_id)

    def machine_of(self, node_id: int) -> Machine:
        """Where a broker runs."""
        return ThisMachine()

    def start(self, *node_ids: int) -> None:
        """Start these brokers, all of them if none is named, and return once they answer."""
        wanted = node_ids or tuple(self.layout.node_ids)
        for node_id in wanted:
            settings = self.settings_of(node_id).items()
            options = [part for name, value in settings for part in ("--set", f"{name}={value}")]
            self.brokers[node_id] = BrokerProcess(
                self.layout.data_dir(node_id),
                *options,
                listen=self.address_of(node_id),
                machine=self.machine_of(node_id),
                tree=self.trees.get(node_id),
            )
        for node_id in wanted:
            self.brokers[node_id].wait_until_ready(self.start_s_max)

    def settings_of(self, node_id: int) -> dict[str, str]:
        """What a broker is started with."""
        settings = self.layout.broker_settings(node_id)
        return {**settings, "metadata.store": self._store} if self._store else settings

    def kill(self, *node_ids: int) -> None:
        """`kill -9`; all of them at once if several are named."""
        for node_id in node_ids:
            self.brokers[node_id].send_signal(signal.SIGKILL)
        for node_id in node_ids:
            self.brokers[node_id].wait()

    def pause(self, node_id: int) -> None:
        """SIGSTOP."""
        self.brokers[node_id].pause()

    def resume(self, node_id: int) -> None:
        """SIGCONT."""
        self.brokers[node_id].resume()

    def stop(self, node_id: int) -> int:
        """SIGTERM, and the exit code."""
        return self.brokers[node_id].stop(self.stop_s_max)

    def restart(self, node_id: int) -> None:
        """Stop it in order and start it again."""
        self.stop(node_id)
        self.start(node_id)

    def export(self) -> None:
        """Keep the metadata of now in `cluster.json`, for an audit: brokers that stop in order
        leave the in-sync sets one after another, so afterwards only the last one is in sync."""
        root = self.layout.root
        place = ("--store", self._store) if self._store else ("--data-dir", str(root))
        done = run_cli("cluster", "export", *place, "-o", str(root / EXPORT))
        assert done.returncode == 0, done.stderr

    def kill_all(self) -> None:
        """Whoever is left, paused ones too; a broker that has ended is no error."""
        for broker in self.brokers.values():
            broker.kill()

    @property
    def output(self) -> str:
        """What all have printed in their present lives, for a failure's message."""
        return "\n".join(
            f"--- broker {node_id}\n{broker.output}" for node_id, broker in self.brokers.items()
        )


@contextmanager
def running_cluster(
    root: Path,
    count: int = 3,
    settings: dict[str, str] | None = None,
    store: str = "",
    trees: Mapping[int, Path | None] | None = None,
) -> Iterator[ClusterProcesses]:
    """Brokers that answer; they are gone when the block ends, however that happens."""
    cluster = ClusterProcesses(root, count, settings or {}, store, trees)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.kill_all()


def free_base_port(count: int) -> int:
    """The first of `count` ports in a row that are free now, and not given to connections. Each
    call begins behind the one before: the ports of a cluster that has ended rest."""
    size = len(PORTS) // PARTS
    first = PORTS.start + int(os.environ.get(PART, "0")) * size
    begin = first + next(_turns) * PORTS_A_TURN % size
    for base in (*range(begin, first + size - count, count), *range(first, begin, count)):
        with ExitStack() as held:
            try:
                for port in range(base, base + count):
                    held.enter_context(socket.create_server((HOST, port)))
            except OSError:
                continue
            return base
    raise AssertionError(f"no {count} ports in a row are free")


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


def run_here(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess:
    """As `run_cli`, in this process: most of the time of a short command is the start of another
    one. What a signal does, or a broken pipe, only a process of its own shows."""
    log = logging.getLogger()
    level, handlers = log.level, log.handlers[:]
    with TemporaryFile("w+", encoding="utf-8") as given, _text() as out, _text() as err:
        given.write(stdin)
        given.seek(0)
        code = 0
        with (
            patch.object(sys, "argv", ["minibroker", *arguments]),
            patch.object(sys, "stdin", given),
            redirect_stdout(out),
            redirect_stderr(err),
        ):
            log.handlers[:] = []  # so that `main` sets up its own
            try:
                main()
            except SystemExit as ended:
                code = ended.code or 0
            finally:
                log.handlers[:] = handlers
                log.setLevel(level)
        told = [stream.buffer.getvalue().decode() for stream in (out, err)]
    return subprocess.CompletedProcess(arguments, code, *told)


def _text() -> io.TextIOWrapper:
    """What is written there can be read from its buffer at once."""
    return io.TextIOWrapper(io.BytesIO(), encoding="utf-8", newline="\n", write_through=True)


class Shell:
    """Runs commands against one broker, with `run_here` or `run_cli`."""

    def __init__(
        self, address: str, run: Callable[..., subprocess.CompletedProcess] = run_here
    ) -> None:
        self.address = address
        self._run = run

    def __call__(self, line: str, stdin: str = "", code: int = 0) -> str:
        """A command's stdout; it must end with `code`, and never with a traceback."""
        done = self._run(*line.split(), "--bootstrap-server", self.address, stdin=stdin)
        assert done.returncode == code, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        self.stderr = done.stderr
        return done.stdout
