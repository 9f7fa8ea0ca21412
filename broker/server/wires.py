"""The wires that a client may use. The first four bytes of a connection show which one it is.

The msgpack wire begins with a preface. Kafka's begins with the length of the first frame. The
preface, read as a number, is larger than any allowed length, so the two cannot be confused.
"""

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from minibroker.broker.turns import Turns
from minibroker.protocol.constants import ELEMENTS_AT_ONCE, PREFACE, ApiKey, ErrorCode
from minibroker.protocol.errors import ProtocolError, TooManyElements
from minibroker.protocol.kafka import wire as kafka
from minibroker.protocol.messages import RequestEnvelope, UnsupportedVersion
from minibroker.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from minibroker.protocol.rpc import codec as rpc
from minibroker.protocol.types import Part, Records, Slice

START_BYTES: Final = len(PREFACE)
_TLS_HANDSHAKE: Final = b"\x16\x03"
_HTTP_METHODS: Final = (b"GET ", b"HEAD", b"POST", b"PUT ", b"OPTI", b"CONN")


class ResponseEncoder(Protocol):
    """Encodes the responses to one kind of request as the parts of a frame.

    Both methods take the correlation id and the response, and raise `ProtocolError` for a response
    that cannot be encoded.
    """

    def encode(self, correlation_id: int, response: Any) -> list[Part]:
        """Encode a response. Raises `TooManyElements` for one that `in_turns` may encode."""

    def in_turns(self, correlation_id: int, response: Any) -> Turns[list[Part]]:
        """Encode a response with pauses."""


Decoded: TypeAlias = tuple[RequestEnvelope, ResponseEncoder]


class Wire(NamedTuple):
    """A wire: how frames are decoded into requests.

    `decode_request` takes a frame without its length, and also returns the encoder of the response.
    It raises `ProtocolError`, of the kind `TooManyElements` for a request that
    `decode_request_in_turns` may decode. ApiVersions is served in all versions.
    """

    name: str
    decode_request: Callable[[memoryview], Decoded]
    decode_request_in_turns: Callable[[memoryview], Turns[Decoded]]


def wire_of(start: bytes) -> tuple[Wire, bytes]:
    """Return the wire of a connection that begins so, and the bytes of its first frame. Raises
    `ProtocolError` for what often comes here and is neither."""
    if start.startswith(_TLS_HANDSHAKE):
        raise ProtocolError("a TLS hello; this broker speaks plain: security.protocol=PLAINTEXT")
    if start in _HTTP_METHODS:
        raise ProtocolError("a request of HTTP; this is the port of the broker's clients")
    return (MSGPACK, b"") if start == PREFACE else (KAFKA, start)


def _decode_msgpack(frame: memoryview) -> Decoded:
    try:
        envelope = rpc.decode_request(frame)
        is_produce = envelope.api_key == ApiKey.PRODUCE
        if is_produce and len(envelope.message.partitions) > ELEMENTS_AT_ONCE:
            # Its batches are appended in turns, so they must not be views of the shared buffer.
            raise TooManyElements("many batches")
        return envelope, _MSGPACK_ENCODER
    except UnsupportedVersion as error:
        if error.api_key != ApiKey.API_VERSIONS:
            raise
        envelope = RequestEnvelope(
            error.api_key, error.version, error.correlation_id, None, ApiVersionsRequest()
        )
        return envelope, _UNSUPPORTED_ENCODER


def _decode_msgpack_in_turns(frame: memoryview) -> Turns[Decoded]:
    return (yield from rpc.decode_request_in_turns(frame)), _MSGPACK_ENCODER


class _MsgpackEncoder:
    """The encoder of all responses on the msgpack wire."""

    def encode(self, correlation_id: int, response: Any) -> list[Part]:
        """Encode a response."""
        if rpc.is_large_response(response):
            raise TooManyElements("a large response")
        return _parts(*rpc.encode_response(correlation_id, response))

    def in_turns(self, correlation_id: int, response: Any) -> Turns[list[Part]]:
        """Encode a response with pauses."""
        return _parts(*(yield from rpc.encode_response_in_turns(correlation_id, response)))


class _UnsupportedEncoder(_MsgpackEncoder):
    """For a client that asked in a version from the future: it learns which one to ask in."""

    def encode(self, correlation_id: int, response: ApiVersionsResponse) -> list[Part]:
        """Encode a refusal, with the served apis."""
        return super().encode(correlation_id, _refused(response))

    def in_turns(self, correlation_id: int, response: ApiVersionsResponse) -> Turns[list[Part]]:
        """Encode it with pauses."""
        return (yield from super().in_turns(correlation_id, _refused(response)))


def _refused(response: ApiVersionsResponse) -> ApiVersionsResponse:
    return ApiVersionsResponse(ErrorCode.UNSUPPORTED_VERSION, response.apis)


def _parts(header: bytes, records: list[Records]) -> list[Part]:
    # What a broker answers with: each partition's records are slices of its log.
    slices: list[Sequence[Slice]] = records  # type: ignore[assignment]
    return [header, *chain.from_iterable(slices)]


_MSGPACK_ENCODER: Final = _MsgpackEncoder()
_UNSUPPORTED_ENCODER: Final = _UnsupportedEncoder()
MSGPACK: Final = Wire("msgpack", _decode_msgpack, _decode_msgpack_in_turns)
KAFKA: Final = Wire("kafka", kafka.decode_request, kafka.decode_request_in_turns)
