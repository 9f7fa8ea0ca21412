"""A client of plain sockets, for tests that send what no client of ours would send."""

import itertools
import socket
import struct
from typing import Any

from minibroker.protocol.constants import PREFACE, ApiKey
from minibroker.protocol.messages import RequestEnvelope
from minibroker.protocol.rpc.codec import decode_response, encode_request

TIMEOUT_S = 20.0


def frame_of(api_key: int, message: Any, correlation_id: int = 1, version: int = 0) -> bytes:
    """A whole request."""
    envelope = RequestEnvelope(api_key, version, correlation_id, "test", message)
    return b"".join(encode_request(envelope))


class Wire:
    """One connection; used with `with`."""

    def __init__(self, address: str, preface: bytes = PREFACE) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), TIMEOUT_S)
        self._correlation_ids = itertools.count(1)
        self.socket.sendall(preface)

    def __enter__(self) -> "Wire":
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        """As it is; that the other side has closed meanwhile is no error here."""
        try:
            self.socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            return

    def call(self, api_key: ApiKey, message: Any) -> Any:
        """The answer to a request; `ConnectionResetError` if the connection is closed instead."""
        self.socket.sendall(frame_of(api_key, message, next(self._correlation_ids)))
        frame = self.read_frame()
        if frame is None:
            raise ConnectionResetError("the connection was closed instead of an answer")
        return decode_response(memoryview(frame), api_key, 0)[1]

    def read_frame(self) -> bytes | None:
        """The next answer without its length; None if the connection was closed."""
        head = self._read(4)
        return None if head is None else self._read(struct.unpack(">I", head)[0])

    def _read(self, size: int) -> bytes | None:
        data = b""
        while len(data) < size:
            try:
                more = self.socket.recv(size - len(data))
            except ConnectionResetError:
                return None
            if not more:
                return None
            data += more
        return data
