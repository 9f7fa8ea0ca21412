"""Converts whole frames of Kafka's wire to and from the messages that both wires share.

    request = key i16 | version i16 | correlation id i32 | client id string? | body
    answer  = correlation id i32 | body

With ApiVersions a client finds out which requests it may send. An unknown version of it is answered
in version 0, with UNSUPPORTED_VERSION and all served apis; its answers have the same header in all
versions. An unknown version of any other api ends the connection.
"""

from collections.abc import Callable
from functools import cache
from struct import Struct
from typing import Any, Final, TypeAlias

from minibroker.protocol.constants import ApiKey, ErrorCode
from minibroker.protocol.errors import ProtocolError
from minibroker.protocol.kafka.adapters.adapter import Adapter
from minibroker.protocol.kafka.adapters.table import ADAPTERS
from minibroker.protocol.kafka.apis import API_VERSIONS
from minibroker.protocol.kafka.codec import decode, encode, skip_tags
from minibroker.protocol.kafka.schema import Version, parse
from minibroker.protocol.messages import RequestEnvelope, UnsupportedVersion
from minibroker.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from minibroker.protocol.types import Part

# Takes the correlation id and the answer; returns the parts of a frame.
Encode: TypeAlias = Callable[[int, Any], list[Part]]

_START: Final = Struct(">hhi")
_ANSWER_START: Final = Struct(">ii")
_LENGTH_BYTES: Final = 4
_CLIENT: Final = parse("RequestHeader", "client_id:string?")


def decode_request(frame: memoryview) -> tuple[RequestEnvelope, Encode]:
    """Decode a request from a frame without its length; return it and its answer's encoder.

    Records are views of `frame`.

    Raises `UnsupportedVersion` for an api or a version that is not served, `ProtocolError` for
    bytes that are no request.
    """
    if len(frame) < _START.size:
        raise ProtocolError(f"a frame of {len(frame)} bytes has no header")
    key, version, correlation_id = _START.unpack_from(frame)
    adapter = ADAPTERS.get(key)
    if adapter is None or not adapter.api.first <= version <= adapter.api.last:
        if key != API_VERSIONS.key:
            raise UnsupportedVersion(key, version, correlation_id)
        unknown = RequestEnvelope(
            ApiKey.API_VERSIONS, version, correlation_id, None, ApiVersionsRequest()
        )
        return unknown, _encode_unsupported
    api = adapter.api
    is_flexible = api.is_flexible(version)
    (client_id,), at = decode(_CLIENT, 0, frame, _START.size)
    if is_flexible:
        at = skip_tags(frame, at)
    asked, at = decode(api.request, version, frame, at, is_flexible=is_flexible)
    if at != len(frame):
        raise ProtocolError(f"{len(frame) - at} bytes behind a request's last field")
    message = adapter.request(asked, version)
    envelope = RequestEnvelope(adapter.key, version, correlation_id, client_id, message)
    return envelope, _encoder_of(key, version)


@cache
def _encoder_of(key: int, version: Version) -> Encode:
    adapter = ADAPTERS[key]
    return lambda correlation_id, answer: encode_response(adapter, version, correlation_id, answer)


def encode_response(
    adapter: Adapter, version: Version, correlation_id: int, answer: Any
) -> list[Part]:
    """Encode an answer as a frame. Raises `ProtocolError` if this version cannot express it."""
    api = adapter.api
    value = adapter.response(answer, version)
    parts = encode(api.response, version, value, is_flexible=api.is_flexible(version))
    size = _ANSWER_START.size - _LENGTH_BYTES + sum(map(len, parts))
    return [_ANSWER_START.pack(size, correlation_id), *parts]


def _encode_unsupported(correlation_id: int, answer: ApiVersionsResponse) -> list[Part]:
    refused = ApiVersionsResponse(ErrorCode.UNSUPPORTED_VERSION)
    return encode_response(ADAPTERS[API_VERSIONS.key], 0, correlation_id, refused)
