"""Bytes on the port that no wire has: the connection ends, the log says why once, and the clients
that are connected do not notice."""

import socket
import struct
from typing import Final

import pytest

from tests.interop.clients import Confluent, Record, Settings, make_topic
from tests.support.processes import BrokerProcess

TIMEOUT_S: Final = 10.0
RECORDS: Final = [Record(b"one"), Record(b"two")]
TLS_HELLO: Final = bytes.fromhex("1603010200010001fc0303") + bytes(505)
BAD: Final = {
    "HTTP": b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n",
    "TLS": TLS_HELLO,
    "2 GB": struct.pack(">i", 2**31 - 1) + b"\0\x12\0\0",
    "negative": struct.pack(">i", -5),
    "no such api": struct.pack(">ihhih", 10, 999, 0, 1, -1),
}


@pytest.mark.parametrize("data", BAD.values(), ids=BAD.keys())
def test_bad_bytes_end_their_connection_only(
    broker: BrokerProcess, topic: str, data: bytes
) -> None:
    """The other side closes; one line of the log names the connection, and a client goes on."""
    make_topic(broker.address, topic)
    host, _, port = broker.address.rpartition(":")
    with socket.create_connection((host, int(port)), TIMEOUT_S) as connection:
        name = "{}:{}".format(*connection.getsockname())
        connection.sendall(data)
        assert _is_closed(connection)
    Confluent().write(broker.address, topic, 0, RECORDS, Settings())
    told = [line for line in broker.lines if name in line]
    assert len(told) == 1, told
    assert "closing the connection from" in told[0]
    assert "Traceback" not in broker.output


def test_half_a_frame_holds_nobody_up(broker: BrokerProcess, topic: str) -> None:
    """A connection that stops in the middle of a frame waits alone, and its end is no error."""
    make_topic(broker.address, topic)
    host, _, port = broker.address.rpartition(":")
    with socket.create_connection((host, int(port)), TIMEOUT_S) as connection:
        connection.sendall(struct.pack(">ih", 100, 3))
        Confluent().write(broker.address, topic, 0, RECORDS, Settings())
    read = Confluent().read(broker.address, topic, {0: len(RECORDS)})
    assert [one.value for one in read[0]] == [record.value for record in RECORDS]
    assert "Traceback" not in broker.output


def _is_closed(connection: socket.socket) -> bool:
    """What the other side sent before it closed does not count."""
    try:
        while connection.recv(4096):
            pass
    except ConnectionResetError:
        pass
    return True
