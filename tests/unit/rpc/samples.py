"""One message of every type with every field set, and one with nothing but defaults."""

import itertools
import typing
from collections.abc import Iterator

from minibroker.protocol.constants import ApiKey
from minibroker.protocol.messages import APIS, RequestEnvelope
from minibroker.protocol.rpc.codec import (
    element_of,
    encode_request,
    encode_response,
    fields_of,
    has_default,
    without_none,
)
from minibroker.protocol.types import Records

_PRIMITIVES = {int: (1, -1, 2**31, 2**63 - 1), bool: (True, False), str: ("t", "ä" * 40)}


def value_of(hint: typing.Any, salt: Iterator[int]) -> typing.Any:
    """Some value of a field's type."""
    if hint == Records:
        return bytes([next(salt) % 256]) * (next(salt) % 50 + 1)
    if hint is bytes:
        return bytes(range(16))
    if hint in _PRIMITIVES:
        values = _PRIMITIVES[hint]
        return values[next(salt) % len(values)]
    if inner := without_none(hint):
        return value_of(inner, salt)
    if element := element_of(hint):
        return tuple(value_of(element, salt) for _ in range(next(salt) % 3 + 1))
    return hint(*[value_of(each, salt) for _, each in fields_of(hint)])


def full(message_type: type, salt: int = 0) -> typing.Any:
    """A message with every field set."""
    return value_of(message_type, itertools.count(salt))


def shortest(message_type: type) -> typing.Any:
    """A message with only what it must have."""
    salt = itertools.count()
    required = {
        name: value_of(hint, salt)
        for name, hint in fields_of(message_type)
        if not has_default(message_type, name)
    }
    return message_type(**required)


def requests() -> list[RequestEnvelope]:
    """Each request twice."""
    return [
        RequestEnvelope(key, api.version_max, correlation_id, client_id, message)
        for key, api in APIS.items()
        for correlation_id, client_id, message in (
            (7, "client", full(api.request)),
            (-1, None, shortest(api.request)),
        )
    ]


def responses() -> list[tuple[ApiKey, typing.Any]]:
    """Each response twice."""
    return [
        (key, message)
        for key, api in APIS.items()
        for message in (full(api.response), shortest(api.response))
    ]


def request_frame(envelope: RequestEnvelope) -> bytes:
    """As it is received: without its length."""
    return b"".join(encode_request(envelope))[4:]


def response_frame(correlation_id: int, message: typing.Any) -> bytes:
    """As it is received: without its length."""
    header, blobs = encode_response(correlation_id, message)
    return b"".join([header, *blobs])[4:]  # type: ignore[list-item]
