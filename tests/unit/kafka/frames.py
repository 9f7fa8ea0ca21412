"""Frames of Kafka's wire, as a client sends and reads them."""

import struct

from minibroker.protocol.kafka.api import KafkaApi
from minibroker.protocol.kafka.codec import decode, encode
from minibroker.protocol.kafka.wire import decode_request


def header(key: int, version: int, correlation_id: int = 7) -> bytes:
    """A request's header, from a client without a name."""
    return struct.pack(">hhih", key, version, correlation_id, -1)


def request(api: KafkaApi, version: int, *values, **named) -> memoryview:
    """A request's frame."""
    is_flexible = api.is_flexible(version)
    value = api.request.make(*values, **named)
    body = b"".join(encode(api.request, version, value, is_flexible=is_flexible))
    return memoryview(header(api.key, version) + b"\0" * is_flexible + body)


def answer_to(frame: memoryview, api: KafkaApi, message: object, version: int | None = None):
    """What an answer to a request says; its frame has the right length and correlation id."""
    envelope, encoder = decode_request(frame)
    data = b"".join(map(bytes, encoder.encode(envelope.correlation_id, message)))
    size, correlation_id = struct.unpack_from(">ii", data)
    assert (size, correlation_id) == (len(data) - 4, envelope.correlation_id)
    shown = envelope.version if version is None else version
    is_flexible = api.is_flexible(shown)
    start = 8 + api.has_header_tags(shown)
    assert not any(data[8:start])
    value, end = decode(api.response, shown, memoryview(data), start, is_flexible=is_flexible)
    assert end == len(data)
    return value
