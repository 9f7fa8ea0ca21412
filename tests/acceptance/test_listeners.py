"""Several listeners of a real broker: what it prints, what clients are told, what cannot be."""

import re
import socket
from pathlib import Path

from minibroker.cli.broker.announcements import WIRES
from minibroker.protocol.constants import ApiKey
from minibroker.protocol.messages.metadata import MetadataRequest
from minibroker.protocol.types import Endpoint
from tests.support.processes import BrokerProcess, run_cli
from tests.support.wire import Wire


def told_by(address: str) -> list[str]:
    """The brokers' addresses as METADATA tells them to who connects there."""
    with Wire(address.replace("[", "").replace("]", "")) as wire:
        answer = wire.call(ApiKey.METADATA, MetadataRequest())
    return [str(Endpoint(node.host, node.port)) for node in answer.brokers]


def loopback() -> str:
    """Of IPv6, or of IPv4 on a machine that has no IPv6: a container may lack it."""
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return "[::1]"
    except OSError:
        return "127.0.0.1"


def test_inside_and_outside(tmp_path: Path) -> None:
    """Free ports for several listeners, one of them on IPv6: a line for each, the one for brokers
    first; a client that comes by one is told where that one is."""
    third = loopback()
    broker = BrokerProcess(
        tmp_path / "data",
        "--set",
        "inter.broker.listener.name=INSIDE",
        "--set",
        "advertised.listeners=OUTSIDE://localhost:0",
        listen=f"OUTSIDE://127.0.0.1:0,INSIDE://127.0.0.1:0,THIRD://{third}:0",
    )
    try:
        broker.wait_until_ready()
        lines = [line for line in broker.lines if line.startswith(("Listening", "Clients are"))]
        found = re.fullmatch(
            r"Listening on (?P<inside>127\.0\.0\.1:\d+) \(INSIDE\)\n"
            rf"Clients are told (?P=inside) \(INSIDE\): {WIRES}\n"
            r"Listening on (?P<outside>127\.0\.0\.1:\d+) \(OUTSIDE\)\n"
            rf"Clients are told (?P<told>localhost:\d+) \(OUTSIDE\): {WIRES}\n"
            rf"Listening on (?P<third>{re.escape(third)}:\d+) \(THIRD\)\n"
            rf"Clients are told (?P=third) \(THIRD\): {WIRES}",
            "\n".join(lines),
        )
        assert found is not None, broker.output
        assert broker.address == found["inside"]
        assert "WARNING" not in broker.output
        assert told_by(found["inside"]) == [found["inside"]]
        assert told_by(found["outside"]) == [found["told"]]
        assert found["told"].rpartition(":")[2] == found["outside"].rpartition(":")[2]
        assert told_by(found["third"]) == [found["third"]]
        done = run_cli("produce", "t", "-b", found["third"], stdin="one\n")
        assert done.returncode == 0, done.stderr
    finally:
        broker.kill()


def test_the_listener_that_cannot_be_bound_is_named(tmp_path: Path) -> None:
    """One of two addresses is taken: the error names the listener; nothing is left listening."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        listeners = f"INSIDE://127.0.0.1:0,OUTSIDE://{address}"
        done = run_cli("start", "--data-dir", str(tmp_path / "data"), "--listen", listeners)
    assert done.returncode == 1
    assert f"% ERROR: {address} (listener OUTSIDE) is taken by another program" in done.stderr
