"""Converts whole frames of Kafka's wire to and from the messages that both wires share.

    request = key i16 | version i16 | correlation id i32 | client id string? | tags | body
    answer  = correlation id i32 | tags | body

Only flexible versions have tags, which are empty here, and of these ApiVersions has none in its
answers.

Bytes behind a request's last field are ignored, as in Kafka: librdkafka sends three in a Metadata
request for all topics from version 9 on, and the fields before them shift.

A request or a response with many elements is converted in turns: the functions without pauses raise
`TooManyElements` for it, and each has a generator beside it.

With ApiVersions a client finds out which requests it may send. An unknown version of it is answered
in version 0, with UNSUPPORTED_VERSION and all served apis; its answers have the same header in all
versions. An unknown version of any other api ends the connection.
"""

import math
from collections.abc import Generator
from functools import cache
from struct import Struct
from typing import Any, Final, NamedTuple

from minibroker.protocol.constants import (
    ELEMENTS_AT_ONCE,
    SMALL_REQUEST_BYTES_MAX,
    ApiKey,
    ErrorCode,
)
from minibroker.protocol.errors import ProtocolError
from minibroker.protocol.kafka.adapters.adapter import Adapter
from minibroker.protocol.kafka.adapters.table import ADAPTERS
from minibroker.protocol.kafka.apis import API_VERSIONS, PRODUCE
from minibroker.protocol.kafka.codec import (
    Decode,
    decode_in_turns,
    decoder,
    encode_in_turns,
    encoder,
    skip_tags,
)
from minibroker.protocol.kafka.schema import Version, parse
from minibroker.protocol.messages import RequestEnvelope, UnsupportedVersion
from minibroker.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from minibroker.protocol.types import Part

_START: Final = Struct(">hhi")
_ANSWER_START: Final = Struct(">ii")
_ANSWER_START_WITH_TAGS: Final = Struct(">iix")  # none
_LENGTH_BYTES: Final = 4
_decode_client: Final = decoder(parse("RequestHeader", "client_id:string?"), 0, False)


def decode_request(frame: memoryview) -> tuple[RequestEnvelope, "ResponseEncoder"]:
    """Decode a request from a frame without its length; return it and its response's encoder.

    Records are views of `frame`.

    Raises `UnsupportedVersion` for an api or a version that is not served, `TooManyElements` for a
    request that `decode_request_in_turns` may decode, `ProtocolError` for bytes that are no
    request.
    """
    if len(frame) < _START.size:
        raise ProtocolError(f"a frame of {len(frame)} bytes has no header")
    key, version, correlation_id = _START.unpack_from(frame)
    adapter = ADAPTERS.get(key)
    if adapter is None or not adapter.api.first <= version <= adapter.api.last:
        if key != API_VERSIONS.key:
            more = _explanation(frame, adapter)
            raise UnsupportedVersion(key, version, correlation_id, more)
        unknown = RequestEnvelope(
            ApiKey.API_VERSIONS, version, correlation_id, None, ApiVersionsRequest()
        )
        return unknown, UNSUPPORTED
    served = _served(key, version)
    client_id, at = _rest_of_header(frame, served)
    asked, _ = served.decode(frame, at, ELEMENTS_AT_ONCE)
    message = adapter.request(asked, version)
    # Not by its own `__new__`, a call more.
    fields = (adapter.key, version, correlation_id, client_id, message)
    return tuple.__new__(RequestEnvelope, fields), served.encoder


def _explanation(frame: memoryview, adapter: Adapter | None) -> str:
    """Return what helps to find the client of a refused request, and to set it right."""
    try:
        (client_id,), _ = _decode_client(frame, _START.size, 0)
    except ProtocolError:
        return ""
    if adapter is None:
        return f"; client id {client_id!r}"
    api = adapter.api
    return (
        f", versions {api.first} to {api.last} of {api.name} are; client id {client_id!r}."
        " A client that does not ask which versions are served must be set to such"
    )


def decode_request_in_turns(
    frame: memoryview,
) -> Generator[None, None, tuple[RequestEnvelope, "ResponseEncoder"]]:
    """Decode a request for which `decode_request` raised `TooManyElements`, with pauses. Nobody may
    change `frame` meanwhile."""
    key, version, correlation_id = _START.unpack_from(frame)
    adapter = ADAPTERS[key]
    served = _served(key, version)
    client_id, at = _rest_of_header(frame, served)
    asked, _ = yield from decode_in_turns(
        adapter.api.request, version, frame, at, is_flexible=served.is_flexible
    )
    message = yield from adapter.request_in_turns(asked, version)
    envelope = RequestEnvelope(adapter.key, version, correlation_id, client_id, message)
    return envelope, served.encoder


def _rest_of_header(frame: memoryview, served: "_Served") -> tuple[str | None, int]:
    """Return the client's id, and where the body begins."""
    if len(frame) > served.bytes_max:
        raise ProtocolError(
            f"{served.name} with {len(frame)} bytes; it may have {served.bytes_max}"
        )
    (client_id,), at = _decode_client(frame, _START.size, 0)
    if served.is_flexible:
        at, _ = skip_tags(frame, at, ELEMENTS_AT_ONCE)
    return client_id, at


class ResponseEncoder:
    """Encodes the responses of one api and version as frames.

    Both methods raise `ProtocolError` if this version cannot express the response, or if that is
    too large.
    """

    def __init__(self, adapter: Adapter, version: Version) -> None:
        self._adapter = adapter
        self._version = version
        api = adapter.api
        self._is_flexible = api.is_flexible(version)
        self._encode = encoder(api.response, version, self._is_flexible)
        self._start = _ANSWER_START_WITH_TAGS if api.has_header_tags(version) else _ANSWER_START

    def encode(self, correlation_id: int, response: Any) -> list[Part]:
        """Encode a response. Raises `TooManyElements` for one that `in_turns` may encode."""
        value = self._adapter.response(response, self._version)
        return self._framed(correlation_id, self._encode(value, ELEMENTS_AT_ONCE))

    def in_turns(self, correlation_id: int, response: Any) -> Generator[None, None, list[Part]]:
        """Encode a response of any number of elements, with pauses."""
        value = self._adapter.response(response, self._version)
        shape, is_flexible = self._adapter.api.response, self._is_flexible
        parts = yield from encode_in_turns(shape, self._version, value, is_flexible=is_flexible)
        return self._framed(correlation_id, parts)

    def _framed(self, correlation_id: int, parts: list[Part]) -> list[Part]:
        start = self._start
        size = start.size - _LENGTH_BYTES
        if len(parts) == 1 and isinstance(first := parts[0], bytearray):
            return [start.pack(size + len(first), correlation_id) + first]  # one buffer to send
        return [start.pack(size + sum(map(len, parts)), correlation_id), *parts]


class _UnsupportedEncoder(ResponseEncoder):
    """Encodes the response to ApiVersions in an unknown version."""

    def encode(self, correlation_id: int, response: Any) -> list[Part]:
        """Encode a refusal, with the served apis."""
        return super().encode(correlation_id, ApiVersionsResponse(ErrorCode.UNSUPPORTED_VERSION))


UNSUPPORTED: Final = _UnsupportedEncoder(ADAPTERS[API_VERSIONS.key], 0)


class _Served(NamedTuple):
    """One api in one version: the name, the size of the largest request, and how the body of a
    request is decoded and a response encoded."""

    name: str
    bytes_max: float
    is_flexible: bool
    decode: Decode
    encoder: ResponseEncoder


@cache
def _served(key: int, version: Version) -> _Served:
    adapter = ADAPTERS[key]
    api = adapter.api
    is_flexible = api.is_flexible(version)
    return _Served(
        api.name,
        math.inf if key == PRODUCE.key else SMALL_REQUEST_BYTES_MAX,
        is_flexible,
        decoder(api.request, version, is_flexible),
        ResponseEncoder(adapter, version),
    )
