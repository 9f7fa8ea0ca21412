"""Hosts of a network: their names, what a cut loses, and that nothing is left of them."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.support.namespaces import IS_ROOT, NEEDS_NAMESPACES, Host, Network, network

pytestmark = NEEDS_NAMESPACES

LISTEN = """
import socket
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as listener:
    listener.bind(("", 5000))
    print("listening", flush=True)
    while True:
        text, (sender, _) = listener.recvfrom(100)
        print(sender, text.decode(), flush=True)
"""
SEND = """
import socket, sys
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
    sender.sendto(sys.argv[2].encode(), (sys.argv[1], 5000))
"""
# A test run that has the brokers of a network, and then is killed.
HOLD = """
from tests.support.namespaces import network
with network() as net:
    net.add("one").popen(["sh", "-c", "echo held; exec sleep 1000"])
    input()
"""


@pytest.fixture(params=sorted({not IS_ROOT, True}), ids=lambda own: "own-users" if own else "root")
def net(request) -> Iterator[Network]:
    """Two hosts, as whoever runs the tests makes them, and as one without rights does."""
    with network(request.param) as made:
        made.add("one")
        made.add("two")
        yield made


@contextmanager
def listening(host: Host) -> "Iterator[subprocess.Popen[str]]":
    """Says on its standard output who sent what."""
    command = [sys.executable, "-c", LISTEN]
    with host.popen(command, stdout=subprocess.PIPE, text=True) as listener:
        try:
            assert listener.stdout.readline() == "listening\n"
            yield listener
        finally:
            listener.kill()


def send(host: Host, name: str, text: str) -> None:
    """One datagram, to the host of that name."""
    host.run([sys.executable, "-c", SEND, name, text], check=True)


def test_a_host_has_a_name_and_an_address_that_others_know(net) -> None:
    """It calls itself by its name, is found by it, and sends from its own address."""
    one, two = net.hosts["one"], net.hosts["two"]
    assert one.run(["hostname"], capture_output=True, text=True).stdout == "one\n"
    with listening(two) as listener:
        send(one, "two", "hello")
        assert listener.stdout.readline() == f"{one.address} hello\n"


def test_a_cut_loses_one_direction_until_it_is_healed(net) -> None:
    """What goes the other way still arrives; nothing that was lost comes later."""
    one, two = net.hosts["one"], net.hosts["two"]
    with listening(one) as at_one, listening(two) as at_two:
        net.cut("one", "two")
        send(one, "two", "lost")
        send(two, "one", "the other way")
        assert at_one.stdout.readline() == f"{two.address} the other way\n"
        net.separate("two", "one")
        send(two, "one", "lost")
        net.heal()
        send(one, "two", "healed")
        send(two, "one", "healed")
        assert at_one.stdout.readline() == f"{two.address} healed\n"
        assert at_two.stdout.readline() == f"{one.address} healed\n"


def test_a_socket_of_a_host_talks_as_the_host_does(net) -> None:
    """It reaches what the host reaches, from there, and may be used here."""
    one, two = net.hosts["one"], net.hosts["two"]
    with one.socket() as listener, two.socket() as caller:
        listener.bind((one.address, 0))
        listener.listen()
        caller.connect(listener.getsockname())
        answerer, (peer, _) = listener.accept()
        with answerer:
            assert peer == two.address


def test_what_runs_on_a_host_ends_with_the_network() -> None:
    """Its processes are killed when the block ends, and those that they began."""
    with network() as net:
        command = ["sh", "-c", "sleep 1000 & echo begun; wait"]
        process = net.add("one").popen(command, stdout=subprocess.PIPE)
        assert process.stdout.readline() == b"begun\n"
    with process:
        assert process.stdout.read() == b""
    assert process.returncode == -signal.SIGKILL


def test_nothing_is_left_of_a_test_run_that_is_killed() -> None:
    """The processes on its hosts end too; as long as one of them is there, its output is open."""
    command = [sys.executable, "-c", HOLD]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as run:
        assert run.stdout.readline() == b"held\n"
        run.kill()
        assert run.stdout.read() == b""
