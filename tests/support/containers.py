"""Runs what `tests.support.topology` reads: containers made of Linux namespaces, without an engine.

    with running(read_services(...), tmp_path) as engine:
        engine.up()                                # as `docker compose up --wait`
        engine.machine.run([...])                  # a program of the machine, by published ports
        engine.execute("kafka-1", "minibroker", "topic", "list")  # as `docker compose exec`
        engine.stop("kafka-1")                     # by the image's signal; the exit code

A container is a host of `tests.support.namespaces` under its service's name. Each command is
process 1 of a process namespace in it, in a root directory of its own: an empty file system with
the machine's programs, the service's volumes and the image's files in it. It has exactly the
environment that the files tell, no capabilities and no way to gain privileges where they say so,
and a root that cannot be written where they say so. `/opt/minibroker`, which the Dockerfile
installs to, is the environment that runs the tests, and etcd the program that they have.

What is not the same: nobody but the user who runs the tests exists, so `USER` changes nothing, and
the programs around (a shell, `seq`, `cmp`) are the machine's.
"""

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from tests.support.etcd import ETCD, EVERY_ETCD
from tests.support.namespaces import PATH, Network, network
from tests.support.topology import ROOT, Mount, Service

MACHINE: Final = "machine"  # where the engine runs, and whose ports are published
# What every root has of the machine: programs, libraries, devices.
SYSTEM: Final = ("bin", "sbin", "lib", "lib32", "lib64", "libx32", "usr", "etc")
KERNEL: Final = ("dev", "sys")
INSTALLED: Final = "/opt/minibroker"
ETCD_PROGRAMS: Final = ("etcd", "etcdctl")
PROGRAMS: Final = "/usr/local/bin"  # where an image of etcd has them
END_S_MAX: Final = 300.0  # far more than anything takes that ends, on a machine that is busy
NO_CAPABILITIES: Final = ("--bounding-set=-all", "--inh-caps=-all")


class Container:
    """A command in a container; `pid` is its process 1, as the machine sees it."""

    def __init__(self, process: "subprocess.Popen[bytes]", output: Path) -> None:
        self._process = process
        self._output = output

    @property
    def output(self) -> str:
        """What it has printed, in this life and those before."""
        return self._output.read_text(encoding="utf-8", errors="replace")

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    @property
    def pid(self) -> int:
        """Process 1: the only child of who made its namespace."""
        path = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        return int(path.read_text(encoding="ascii"))

    def wait(self) -> int:
        """The exit code, once it has ended."""
        return self._process.wait(END_S_MAX)


class Engine:
    """Made by `running`."""

    def __init__(
        self, services: Mapping[str, Service], net: Network, directory: Path, ended: ExitStack
    ) -> None:
        self.services = services
        self.containers: dict[str, Container] = {}
        self.machine = net.add(MACHINE)
        self._hosts = {name: net.add(name) for name in services}
        self._directory = directory
        self._ended = ended  # left once the network is gone, and with it all that ran
        self._publish(services.values())

    def _publish(self, services: Iterable[Service]) -> None:
        ports = [
            f"{one.address}:{one.port}={service.name}:{one.container_port}"
            for service in services
            for one in service.published
        ]
        command = [sys.executable, "-m", "tests.support.published", *ports]
        popen = self.machine.popen(command, stdout=subprocess.PIPE)
        process = self._ended.enter_context(popen)
        assert process.stdout
        assert process.stdout.readline() == b"published\n"

    # -- what `docker compose` does

    def up(self, *names: str) -> None:
        """Start these services, or all without a profile, and what they depend on, in order, each
        once its conditions hold; return when all that have a health check are healthy."""
        wanted = names or [name for name, one in self.services.items() if not one.profiles]
        for name in wanted:
            self._start(name)
        for name in wanted:
            self._wait_for(name, "service_healthy" if self.services[name].health else "")

    def _start(self, name: str) -> None:
        if name in self.containers and self.containers[name].is_running:
            return
        for other, condition in self.services[name].depends_on.items():
            if not (other in self.containers and condition.endswith("completed_successfully")):
                self._start(other)
        for other, condition in self.services[name].depends_on.items():
            self._wait_for(other, condition)
        service = self.services[name]
        output = self._directory / f"{name}.log"
        with output.open("ab") as file:
            command = self._command(service, service.command)
            process = self._hosts[name].popen(
                command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT
            )
        self.containers[name] = Container(self._ended.enter_context(process), output)

    def _wait_for(self, name: str, condition: str) -> None:
        """Until a condition of `depends_on` holds; "" always does."""
        service, container = self.services[name], self.containers[name]
        if condition == "service_completed_successfully":
            assert container.wait() == 0, f"{name} failed:\n{container.output}"
        elif condition == "service_healthy":
            assert service.health, f"{name} has no health check"
            give_up_at = time.monotonic() + service.health.patience_s
            while (check := self.check(name)).returncode != 0:
                is_over = not container.is_running or time.monotonic() > give_up_at
                assert not is_over, f"{name} is not healthy: {check}\n{container.output}"

    def check(self, name: str) -> "subprocess.CompletedProcess[str]":
        """The service's health check, once; 124 if it takes too long."""
        health = self.services[name].health
        assert health, f"{name} has no health check"
        return self.execute(name, *health.command, timeout_s=health.timeout_s)

    def execute(
        self, name: str, *command: str, timeout_s: float = END_S_MAX
    ) -> "subprocess.CompletedProcess[str]":
        """Another command in a service's container, to its end; 124 if that takes too long."""
        wanted = self._command(self.services[name], command)
        try:
            return self._hosts[name].run(
                wanted,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return subprocess.CompletedProcess(wanted, 124, "", "")

    def stop(self, *names: str) -> list[int]:
        """Tell these services to stop, all at once; their exit codes. They take the time that they
        need: an engine would kill them after `stop_grace_s`."""
        for name in names:
            number = signal.Signals[self.services[name].image.stop_signal]
            os.kill(self.containers[name].pid, number)
        return [self.containers[name].wait() for name in names]

    # -- a container

    def _command(self, service: Service, command: Iterable[str]) -> list[str]:
        """Makes the container around it, and becomes it."""
        root = self._directory / "roots" / service.name
        root.mkdir(parents=True, exist_ok=True)
        script = "\n".join(["set -e", *self._root(service, root), 'exec "$@"'])
        options = ["--no-new-privs"] if not service.may_gain_privileges else []
        options += [] if service.has_capabilities else NO_CAPABILITIES
        environment = {"HOSTNAME": service.name, "HOME": service.image.directory}
        environment |= service.environment
        return [
            "env",
            f"PATH={PATH}",
            "unshare",
            "--mount",
            "--pid",
            "--fork",
            "--kill-child",
            "sh",
            "-c",
            script,
            "container",
            "chroot",
            str(root),
            "setpriv",
            *options,
            "env",
            "--ignore-environment",
            f"--chdir={service.image.directory}",
            *(f"{name}={value}" for name, value in environment.items()),
            *command,
        ]

    def _root(self, service: Service, root: Path) -> Iterator[str]:
        """The lines that make its root directory."""
        yield f"mount -t tmpfs -o mode=755 root {shlex.quote(str(root))}"
        for name in (*SYSTEM, *KERNEL):
            if Path("/", name).is_symlink():
                yield f"cp -P /{name} {_inside(root, name)}"
            elif Path("/", name).is_dir():
                yield _bound(f"/{name}", _inside(root, name), is_recursive=True)
        yield f"mkdir {_inside(root, 'proc')} && mount -t proc proc {_inside(root, 'proc')}"
        yield f"mkdir -m 1777 {_inside(root, 'tmp')}"
        yield f"mkdir -p {_inside(root, service.image.directory)}"
        if not service.build:
            yield f"mount -t tmpfs programs {_inside(root, PROGRAMS)}"
        # Before what is shown: this project may lie below one of them.
        for path in service.tmpfs:
            options = "nosuid,nodev,noexec,mode=1777"
            yield f"mount -t tmpfs -o {options} tmpfs {_inside(root, path)}"
        for mount in self._mounts(service):
            target = _inside(root, mount.target)
            yield _bound(mount.source, target)
            if mount.is_read_only:
                yield f"mount -o remount,bind,ro,nosuid,nodev {target}"
        if service.is_read_only:
            yield f"mount -o remount,bind,ro {shlex.quote(str(root))}"

    def _mounts(self, service: Service) -> Iterator[Mount]:
        """Volumes, the image's files, and what this machine has in the place of the rest."""
        if service.build:
            for path in _outermost(sys.prefix, sys.base_prefix, str(ROOT)):
                yield Mount(path, path)
            yield Mount(sys.prefix, INSTALLED)
        else:
            for name in ETCD_PROGRAMS:
                yield Mount(_program(name), f"{PROGRAMS}/{name}")
        for target, source in service.image.files.items():
            yield Mount(str(ROOT / source), target)
        for mount in service.mounts:
            volume = self._directory / "volumes" / mount.source
            volume.mkdir(parents=True, exist_ok=True)
            yield replace(mount, source=str(volume))


def _program(name: str) -> str:
    """Of etcd's programs: the one beside the etcd of the tests, or beside another that is known;
    systems pack them apart."""
    every = [ETCD, *(one.values[0] for one in reversed(EVERY_ETCD))]
    found = [path for etcd in every if (path := Path(str(etcd)).with_name(name)).is_file()]
    assert found, f"there is no {name} beside any of {every}"
    return str(found[0])


def _inside(root: Path, path: str) -> str:
    return shlex.quote(f"{root}/{path.lstrip('/')}")


def _bound(source: str, target: str, *, is_recursive: bool = False) -> str:
    """A line that shows a directory or a file at another place; `target` is quoted."""
    make = "mkdir -p" if Path(source).is_dir() else "install -D /dev/null"
    option = "--rbind" if is_recursive else "--bind"
    return f"{make} {target} && mount {option} {shlex.quote(source)} {target}"


def _outermost(*paths: str) -> list[str]:
    """Those that lie neither in another one nor in what every root has."""
    there = [f"/{name}" for name in SYSTEM]
    found: list[str] = []
    for path in sorted(set(paths)):
        if not any(Path(path).is_relative_to(other) for other in (*there, *found)):
            found.append(path)
    return found


@contextmanager
def running(services: Mapping[str, Service], directory: Path) -> Iterator[Engine]:
    """Nothing runs yet, and nothing does when the block ends. Volumes lie in the directory."""
    with ExitStack() as ended, network() as net:
        yield Engine(services, net, directory, ended)
