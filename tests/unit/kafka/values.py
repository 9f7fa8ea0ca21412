"""Random values for Kafka's messages, and the same values as kio's classes have them."""

import dataclasses
import importlib
import io
import random
import re
import typing
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

from kio.schema.errors import ErrorCode
from kio.serial import entity_writer

from minibroker.protocol.kafka.adapters.table import ADAPTERS
from minibroker.protocol.kafka.api import KafkaApi
from minibroker.protocol.kafka.schema import Field, Struct

ALL_APIS = [adapter.api for adapter in ADAPTERS.values()]
VERSIONS = [
    (api, version, direction)
    for api in ALL_APIS
    for version in range(api.first, api.last + 1)
    for direction in ("request", "response")
]
BITS = {"i8": 7, "i16": 15, "i32": 31, "i64": 63}
CODES = [int(code) for code in ErrorCode]
TEXTS = ["", "a", "topic-0", "größer", "\N{SNOWMAN}" * 50, "x" * 300]


def shape_of(api: KafkaApi, direction: str) -> Struct:
    """The struct of a request or of a response."""
    return api.request if direction == "request" else api.response


def value_of(shape: Struct, version: int, rng: random.Random) -> Any:
    """A random value; fields that are not in this version have their defaults."""
    return shape.make(
        *[
            _value_of(one, version, rng) if one.is_in(version) else one.default
            for one in shape.fields
        ]
    )


def _value_of(one: Field, version: int, rng: random.Random) -> Any:
    if one.tag is not None and rng.random() < 0.5:
        return [] if one.is_array else one.default
    if one.type != "records" and one.may_be_null(version) and rng.random() < 0.2:
        return None
    if one.tag is not None and isinstance(one.type, Struct) and not one.is_array:
        value = _element_of(one, version, rng)
        return None if value == one.type.make() else value
    if one.is_array:
        return [_element_of(one, version, rng) for _ in range(rng.choice([0, 1, 1, 2, 3]))]
    return _element_of(one, version, rng)


def _element_of(one: Field, version: int, rng: random.Random) -> Any:
    if isinstance(one.type, Struct):
        return value_of(one.type, version, rng)
    if one.type == "bool":
        return rng.random() < 0.5
    if one.type == "string":
        return rng.choice(TEXTS)
    if one.type in ("bytes", "records"):
        return rng.randbytes(rng.choice([0, 1, 7, 200]) if one.type == "bytes" else 100)
    if one.type == "uuid":
        return rng.choice([bytes(16), rng.randbytes(16)])
    if one.name.endswith("error_code"):
        return rng.choice(CODES)
    bits = BITS[one.type]
    if one.name == "log_append_time_ms":
        return rng.choice([-1, rng.randrange(2**41)])
    if one.name.endswith("_ms"):
        return rng.randrange(2 ** min(bits, 40))
    return rng.choice([0, 1, -1, 2**bits - 1, -(2**bits), rng.randrange(2**bits)])


def kio_class(api: KafkaApi, version: int, direction: str) -> type | None:
    """The class of a message, if kio has this version."""
    folder = re.sub(r"(?<!^)(?=[A-Z])", "_", api.name).lower()
    try:
        module = importlib.import_module(f"kio.schema.{folder}.v{version}.{direction}")
    except ImportError:
        return None
    return getattr(module, api.name + direction.title())


def kio_bytes(kind: type, shape: Struct, version: int, value: Any) -> bytes:
    """A value as kio writes it."""
    stream = io.BytesIO()
    entity_writer(kind)(stream, _kio_value(kind, shape, version, value))
    return stream.getvalue()


def _kio_value(kind: Any, shape: Struct, version: int, value: Any) -> Any:
    """Fields are matched by their order, and tagged ones by their tags. kio's tagged fields that
    are not in our schemas, and null ones of ours, keep their defaults."""
    mine = [
        (one, part) for one, part in zip(shape.fields, value, strict=True) if one.is_in(version)
    ]
    hints = typing.get_type_hints(kind)
    theirs = [field for field in dataclasses.fields(kind) if "tag" not in field.metadata]
    pairs = [*zip(theirs, [pair for pair in mine if pair[0].tag is None], strict=True)]
    tags = {field.metadata.get("tag"): field for field in dataclasses.fields(kind)}
    pairs += [
        (tags[one.tag], (one, part))
        for one, part in mine
        if one.tag is not None and part is not None
    ]
    return kind(
        **{field.name: _converted(hints[field.name], *one, version) for field, one in pairs}
    )


def _converted(hint: Any, one: Field, value: Any, version: int) -> Any:
    if value is None:
        return None
    if isinstance(one.type, Struct):
        kind = next(part for part in _parts(hint) if dataclasses.is_dataclass(part))
        if not one.is_array:
            return _kio_value(kind, one.type, version, value)
        return tuple(_kio_value(kind, one.type, version, each) for each in value)
    if one.is_array:
        return tuple(value)
    if one.type == "uuid":
        return uuid.UUID(bytes=value) if any(value) else None
    names = str(hint)
    if "ErrorCode" in names:
        return ErrorCode(value)
    if "imedelta" in names:
        return timedelta(milliseconds=value)
    if "TZAware" in names:
        if value == -1:
            return None
        return datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=value)
    return value


def _parts(hint: Any) -> list[Any]:
    return [hint, *(deeper for part in typing.get_args(hint) for deeper in _parts(part))]
