"""The blocking channel against a peer that is no broker, or a broken one."""

import socket

import pytest

from minibroker.client.net import blocking_channel
from minibroker.client.net.blocking_channel import RECEIVE_BUFFER_BYTES, BlockingChannel
from minibroker.protocol.constants import FRAME_BYTES_MAX


@pytest.mark.parametrize("size", [1, 4092, 4093, 50_001])
def test_a_frame_is_received_whole(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the memory holds it, or grows for it several times."""
    monkeypatch.setattr(blocking_channel, "RECEIVE_BUFFER_BYTES", 4096)
    ours, theirs = socket.socketpair()
    body = bytes(number % 251 for number in range(size))
    with ours, theirs:
        theirs.sendall(size.to_bytes(4, "big") + body)
        assert BlockingChannel(ours, "test")._receive() == body


def test_a_length_that_is_claimed_takes_no_memory() -> None:
    """Memory grows with the bytes that have come."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        channel = BlockingChannel(ours, "test")
        theirs.sendall(FRAME_BYTES_MAX.to_bytes(4, "big") + bytes(100))
        theirs.close()
        with pytest.raises(ConnectionResetError):
            channel._receive()
    assert len(channel._memory) == RECEIVE_BUFFER_BYTES
