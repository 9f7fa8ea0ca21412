"""Requests and answers on a blocking socket, one at a time, without an event loop.

For a thread that has a connection of its own, and for a command that sends one request and ends:
loading trio takes longer than the request. Everything else that talks to brokers uses `channel.py`.
"""

import socket
from typing import Final, TypeVar, cast

from minibroker import __version__
from minibroker.protocol.constants import FRAME_BYTES_MAX, PREFACE, ApiKey
from minibroker.protocol.errors import ProtocolError
from minibroker.protocol.messages import APIS, Request, RequestEnvelope
from minibroker.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from minibroker.protocol.rpc.codec import decode_response, encode_request

RECEIVE_BUFFER_BYTES: Final = 256 * 1024
_LENGTH_BYTES: Final = 4

Response = TypeVar("Response")


class BlockingChannel:
    """A connected socket, whose time-out limits each wait. The caller that made the socket closes
    it."""

    def __init__(
        self,
        connection: socket.socket,
        client_id: str,
        frame_bytes_max: int = FRAME_BYTES_MAX,
    ) -> None:
        self._socket = connection
        self._client_id = client_id
        self._frame_bytes_max = frame_bytes_max
        # It holds one answer at a time, and its records are used up before the next request: so an
        # answer needs no memory of its own, unlike with several in flight (`FrameReader`).
        self._memory = bytearray(RECEIVE_BUFFER_BYTES)
        self._correlation_id = 0
        self._versions: dict[int, int] = {
            ApiKey.API_VERSIONS: APIS[ApiKey.API_VERSIONS].version_max
        }

    def negotiate(self) -> None:
        """Ask which apis and versions the broker serves; the first request on a connection."""
        self._socket.sendall(PREFACE)
        answer = self.call(ApiKey.API_VERSIONS, ApiVersionsRequest("minibroker", __version__))
        self._versions |= agreed_versions(answer)

    def call(self, api_key: ApiKey, message: Request[Response]) -> Response:
        """Send a request and receive the answer. Raises `OSError` or `ProtocolError`."""
        version = self._versions.get(api_key)
        if version is None:
            raise ProtocolError(f"it serves no version of {api_key.name} that is known here")
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        envelope = RequestEnvelope(api_key, version, self._correlation_id, self._client_id, message)
        self._socket.sendall(b"".join(encode_request(envelope)))
        correlation_id, decoded = decode_response(self._receive(), api_key, version)
        if correlation_id != self._correlation_id:
            raise ProtocolError(f"an answer to request {correlation_id}")
        return cast("Response", decoded)

    def _receive(self) -> memoryview:
        """Receive one frame; it is valid until the next."""
        received, size = 0, _LENGTH_BYTES
        while received < size:
            if received == len(self._memory):  # as bytes come: a length may be a claim only
                grown = bytearray(min(size, 2 * received))
                grown[:received] = self._memory
                self._memory = grown
            count = self._socket.recv_into(memoryview(self._memory)[received:])
            if count == 0:
                raise ConnectionResetError("the broker closed the connection")
            received += count
            if size == _LENGTH_BYTES <= received:
                size += self._length()
        if received > size:
            raise ProtocolError("an answer that nobody asked for")
        return memoryview(self._memory)[_LENGTH_BYTES:size]

    def _length(self) -> int:
        length = int.from_bytes(self._memory[:_LENGTH_BYTES], "big")
        if not 0 < length <= self._frame_bytes_max:
            raise ProtocolError(f"a frame of {length} bytes")
        return length


def agreed_versions(answer: ApiVersionsResponse) -> dict[int, int]:
    """Return the newest version of each api that both sides know. Raises `ProtocolError`."""
    if answer.error:
        raise ProtocolError(f"it answers API_VERSIONS with error {answer.error}")
    agreed = {}
    for served in answer.apis:
        api = APIS.get(ApiKey(served.api_key)) if served.api_key in APIS else None
        if api and max(api.version_min, served.version_min) <= served.version_max:
            agreed[served.api_key] = min(api.version_max, served.version_max)
    return agreed
