"""Hosts with names and addresses of their own on one network, made of Linux namespaces.

    with network() as net:
        one, two = net.add("kafka-1"), net.add("client")
        two.popen(["minibroker", "health", "-b", "kafka-1:9092"])  # as `subprocess.Popen`
        two.socket().connect((one.address, 9092))  # from here, but as if it were over there
        net.cut("kafka-1", "client")  # what it sends is lost; what it is sent arrives
        net.heal()

A host is a network, a mount and a UTS namespace: it has a loopback, a host name and an `/etc/hosts`
in which every host of the network stands. It sees the files of this machine, and the same clock.

All hosts hang on one router, a namespace too. A cut is a rule of the router: packets vanish there
and nobody is told, neither by a refusal nor by a broken connection, as when a network breaks
somewhere on the way. So all waiting is for the time-outs of those who talk.

Root does not matter: who is not root begins with a user namespace, in which they are; the rest is
the same. Of programs it takes `unshare`, `nsenter` and `mount` (util-linux) and `ip` (iproute2).
Tests that want this are marked `NEEDS_NAMESPACES`: where it cannot be had they say so, and with CI
set they fail.

Nothing is left behind, not even by a test run that is killed: each namespace has a keeper, a shell
that waits for the end of its standard input, and then kills every process in it.
"""

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Final, TypeAlias

import pytest

StrPath: TypeAlias = str | os.PathLike[str]

IS_ROOT: Final = os.geteuid() == 0
SUBNET: Final = "10.77.0."
ROUTER: Final = SUBNET + "254"
HOSTS_MAX: Final = 250
CUTS: Final = 100  # the number of all rules that cut; a router begins with 0, 32766 and 32767
# Whoever is not root may have no path to `ip`.
PATH: Final = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"

# $1 is done first, then it says so and waits. A process that has ended, but is not yet forgotten
# by its parent, has no namespace any more.
KEEPER: Final = """
set -e
eval "$1"
echo ready
read -r _ || true
is_over=
while [ -z "$is_over" ]; do
    is_over=yes
    for process in /proc/[0-9]*; do
        if [ "$process/ns/net" -ef /proc/self/ns/net ] && [ "${process#/proc/}" != $$ ]; then
            kill -9 "${process#/proc/}" 2>/dev/null || true
            is_over=
        fi
    done
done
"""
# The file is bound over the system's own; the hosts, whose mounts are copies of these, share it.
BEGIN_ROUTER: Final = """
mount -t tmpfs hosts /mnt
echo "127.0.0.1 localhost" > /mnt/hosts
mount --bind /mnt/hosts /etc/hosts
umount /mnt
ip link set lo up
echo 1 > /proc/sys/net/ipv4/ip_forward
"""
# A socket belongs to the network of the process that made it, whoever uses it.
MAKE_SOCKETS: Final = """
import socket
line = socket.socket(fileno=0)
while line.recv(1):
    with socket.socket() as made:
        socket.send_fds(line, [b"-"], [made.fileno()])
"""


def _user_options(has_own_users: bool) -> list[str]:
    return ["--user", "--map-root-user"] if has_own_users else []


class _Namespace:
    """What a keeper holds; `enter` is the beginning of a command that shall run in it."""

    def __init__(self, begin: Sequence[str], setup: str, has_own_users: bool) -> None:
        self._keeper = subprocess.Popen(
            [*begin, "sh", "-c", KEEPER, "keeper", setup],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"PATH": PATH},
            start_new_session=True,  # Ctrl-C is for the tests, which end it in order
        )
        self.pid = self._keeper.pid
        assert self._keeper.stdout
        if self._keeper.stdout.readline() != "ready\n":
            raise AssertionError(f"no namespace can be had: {self._keeper.communicate()[1]}")
        nsenter = shutil.which("nsenter", path=PATH)
        assert nsenter
        users = ["--user", "--preserve-credentials"] if has_own_users else []
        self.enter = [nsenter, "--target", str(self.pid), *users, "--mount"]

    def end(self) -> None:
        """Kill whatever runs in it; returns once all is gone."""
        self._keeper.communicate()


class Host:
    """Made by `Network.add`; known to the other hosts by its name."""

    def __init__(self, name: str, address: str, namespace: _Namespace, held: ExitStack) -> None:
        self.name = name
        self.address = address
        self._held = held
        self._line: socket.socket | None = None  # to who makes sockets there
        self._enter = [*namespace.enter, "--net", "--uts", "--"]

    def command(self, command: Sequence[str], cwd: StrPath | None = None) -> list[str]:
        """The same, to be run on this host in the present directory or another one: `nsenter` and
        `env` become what they run, so that signals and the exit code are the command's."""
        return [*self._enter, "env", f"--chdir={cwd or os.getcwd()}", *command]

    def popen(
        self, command: Sequence[str], *, cwd: StrPath | None = None, **options: Any
    ) -> "subprocess.Popen[Any]":
        """As `subprocess.Popen`, on this host."""
        process = subprocess.Popen(self.command(command, cwd), **options)
        self._held.callback(process.kill)  # it may be on its way in, where the keeper sees none
        return process

    def run(
        self, command: Sequence[str], *, cwd: StrPath | None = None, **options: Any
    ) -> "subprocess.CompletedProcess[Any]":
        """As `subprocess.run`, on this host."""
        return subprocess.run(self.command(command, cwd), **options)

    def socket(self) -> socket.socket:
        """A TCP socket of this host for this process, not connected yet."""
        if self._line is None:
            self._line, far = socket.socketpair()
            with far:
                maker = self.popen([sys.executable, "-ISc", MAKE_SOCKETS], stdin=far)
            self._held.callback(maker.wait)  # once the line is closed: the last comes first
            self._held.callback(self._line.close)
        self._line.send(b"-")
        _, [descriptor], _, _ = socket.recv_fds(self._line, 1, 1)
        return socket.socket(fileno=descriptor)


class Network:
    """Made by `network`."""

    def __init__(self, has_own_users: bool, held: ExitStack) -> None:
        self.hosts: dict[str, Host] = {}
        self._has_own_users = has_own_users
        self._held = held
        self._cuts: set[str] = set()
        users = _user_options(has_own_users)
        self._router = self._keep(["unshare", *users, "--net", "--mount", "--"], BEGIN_ROUTER)

    def _keep(self, begin: Sequence[str], setup: str) -> _Namespace:
        namespace = _Namespace(begin, setup, self._has_own_users)
        self._held.callback(namespace.end)
        return namespace

    def add(self, name: str) -> Host:
        """One more host, which all others reach by this name from now on."""
        assert name not in self.hosts, f"{name} is there already"
        number = len(self.hosts) + 1
        assert number <= HOSTS_MAX, f"{HOSTS_MAX} hosts at most"
        address, wire = f"{SUBNET}{number}", f"host{number}"
        begin = [*self._router.enter, "--", "unshare", "--net", "--mount", "--uts", "--"]
        namespace = self._keep(begin, f"hostname {name}; ip link set lo up")
        self._do(
            self._router,
            f"ip link add {wire} type veth peer name eth0 netns {namespace.pid}",
            f"ip address add {ROUTER} peer {address} dev {wire}",
            f"ip link set {wire} up",
            f"echo {address} {name} >> /etc/hosts",
        )
        self._do(
            namespace,
            f"ip address add {address} peer {ROUTER} dev eth0",
            "ip link set eth0 up",
            f"ip route add default via {ROUTER}",
        )
        self.hosts[name] = host = Host(name, address, namespace, self._held)
        return host

    def cut(self, source: str, target: str) -> None:
        """Lose from now on what the one sends to the other, and nothing else."""
        way = f"from {self.hosts[source].address} to {self.hosts[target].address}"
        if way not in self._cuts:
            self._cuts.add(way)
            self._do(self._router, f"ip rule add pref {CUTS} {way} blackhole")

    def separate(self, name: str, *others: str) -> None:
        """Lose from now on what goes between a host and each of the others, either way."""
        for other in others:
            self.cut(name, other)
            self.cut(other, name)

    def heal(self) -> None:
        """Lose nothing any more."""
        self._do(self._router, *(f"ip rule delete pref {CUTS}" for _ in self._cuts))
        self._cuts.clear()

    def _do(self, namespace: _Namespace, *lines: str) -> None:
        """Run these lines in it; an `AssertionError` with what they print if one fails."""
        done = subprocess.run(
            [*namespace.enter, "--net", "--", "sh", "-ec", "\n".join(lines)],
            capture_output=True,
            text=True,
            env=os.environ | {"PATH": PATH},
            check=False,
        )
        assert done.returncode == 0, f"{lines}: {done.stderr}"


def _why_not() -> str:
    """What is missing here, if anything is."""
    for program in ("unshare", "nsenter", "mount", "ip"):
        if shutil.which(program, path=PATH) is None:
            return f"there is no {program}"
    try:
        with network() as net:
            net.add("one")
            net.add("two")
            net.cut("one", "two")
    except AssertionError as error:
        return str(error)
    return ""


@contextmanager
def network(has_own_users: bool = not IS_ROOT) -> Iterator[Network]:
    """A network without hosts; when the block ends, it is gone with all that runs on its hosts.

    With users of its own it needs no rights; they are this process's user, who is called root.
    """
    with ExitStack() as held:
        yield Network(has_own_users, held)


WHY_NOT: Final = _why_not()
NEEDS_NAMESPACES: Final = pytest.mark.skipif(
    bool(WHY_NOT) and "CI" not in os.environ, reason=f"no network namespaces: {WHY_NOT}"
)
