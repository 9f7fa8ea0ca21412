"""The wires that a client may use. The first four bytes of a connection show which one it is.

The msgpack wire begins with a preface. Kafka's begins with the length of the first frame. The
preface, read as a number, is larger than any allowed length, so the two cannot be confused.
"""

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, Final, NamedTuple, TypeAlias

from minibroker.protocol.constants import PREFACE, ApiKey, ErrorCode
from minibroker.protocol.kafka import wire as kafka
from minibroker.protocol.messages import RequestEnvelope, UnsupportedVersion
from minibroker.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from minibroker.protocol.rpc import codec as rpc
from minibroker.protocol.types import Part, Slice

START_BYTES: Final = len(PREFACE)

# The correlation id and the answer become the parts of a frame.
Encode: TypeAlias = Callable[[int, Any], list[Part]]


class Wire(NamedTuple):
    """A wire: how frames are decoded into requests.

    `decode_request` takes a frame without its length, and also returns the encoder of the answer.
    It raises `ProtocolError`. ApiVersions is served in all versions.
    """

    name: str
    decode_request: Callable[[memoryview], tuple[RequestEnvelope, Encode]]


def wire_of(start: bytes) -> tuple[Wire, bytes]:
    """Return the wire of a connection that begins so, and the bytes of its first frame."""
    return (MSGPACK, b"") if start == PREFACE else (KAFKA, start)


def _decode_msgpack(frame: memoryview) -> tuple[RequestEnvelope, Encode]:
    try:
        return rpc.decode_request(frame), _encode_msgpack
    except UnsupportedVersion as error:
        if error.api_key != ApiKey.API_VERSIONS:
            raise
        envelope = RequestEnvelope(
            error.api_key, error.version, error.correlation_id, None, ApiVersionsRequest()
        )
        return envelope, _encode_unsupported


def _encode_msgpack(correlation_id: int, answer: Any) -> list[Part]:
    header, records = rpc.encode_response(correlation_id, answer)
    # What a broker answers with: each partition's records are slices of its log.
    slices: list[Sequence[Slice]] = records  # type: ignore[assignment]
    return [header, *chain.from_iterable(slices)]


def _encode_unsupported(correlation_id: int, answer: ApiVersionsResponse) -> list[Part]:
    """For a client that asked in a version from the future: it learns which one to ask in."""
    refused = ApiVersionsResponse(ErrorCode.UNSUPPORTED_VERSION, answer.apis)
    return _encode_msgpack(correlation_id, refused)


MSGPACK: Final = Wire("msgpack", _decode_msgpack)
KAFKA: Final = Wire("kafka", kafka.decode_request)
