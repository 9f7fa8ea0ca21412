"""The largest legal requests: for each api, and each array in it, one with as many elements as are
allowed, all of them different, or all the same."""

import struct
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from minibroker.protocol.constants import ELEMENTS_MAX, ApiKey
from minibroker.protocol.kafka.adapters.table import ADAPTERS
from minibroker.protocol.kafka.api import KafkaApi
from minibroker.protocol.kafka.codec import encode
from minibroker.protocol.kafka.schema import Field, Struct
from minibroker.protocol.messages import APIS, RequestEnvelope
from minibroker.protocol.records.record import encode_batch
from minibroker.protocol.rpc.codec import element_of, encode_request, fields_of, without_none
from minibroker.protocol.types import Records

BYTES_MAX: Final = 1_000_000
ELEMENTS: Final = ELEMENTS_MAX - 100
# The orders of a controller and a follower's requests are stale; whoever waits waits shortly.
NUMBERS: Final = {
    "controller_epoch": -1,
    "broker_epoch": -1,
    "replica_id": -1,
    "acks": 1,
    "wait_ms_max": 100,
    "max_wait_ms": 100,
    "timeout_ms": 1_000,
    "session_timeout_ms": 10_000,
    "rebalance_timeout_ms": 1_000,
    "session_epoch": -1,
    "generation": -1,
    "generation_id": -1,
    "generation_id_or_member_epoch": -1,
    "partition_count": 1,
    "num_partitions": 1,
    "count": 2,
    "replication_factor": 1,
    "resource_type": 2,
    "resource_types": 2,
    "config_operation": 0,
    "upgrade_type": 1,
    "operation": 0,
    "election_type": 0,
    "response_partition_limit": 2_000,
    "partitions_max": 2_000,
    "key_type": 0,
    "isolation_level": 0,
    "timestamp": -1,
    "bytes_max": 1_000,
    "max_bytes": 1_000,
}
BATCH: Final = bytes(encode_batch([(1_000, None, b"v", ())]))


class Largest(NamedTuple):
    """A request of `count` elements in the array at `path`; `frame` begins with its length."""

    wire: str
    api: str
    path: str
    is_repeated: bool
    count: int
    frame: bytes

    def __str__(self) -> str:
        kind = "equal" if self.is_repeated else "different"
        return f"{self.wire} {self.api} {self.path}: {self.count} {kind}"


def largest_requests(
    wire: str, elements: int = ELEMENTS, *, is_repeated: bool = False
) -> Iterator[Largest]:
    """All of them, of one wire, with about so many elements."""
    if wire == "msgpack":
        for key in ApiKey:
            for path, each in _msgpack_paths(APIS[key].request):
                frames = _MsgpackFrames(key, path, is_repeated)
                yield _largest(wire, key.name, frames, elements // each)
        return
    for api in [adapter.api for adapter in ADAPTERS.values()]:
        for path, each in _kafka_paths(api.request, api.last):
            frames = _KafkaFrames(api, path, is_repeated)
            yield _largest(wire, api.name, frames, elements // each)


def _largest(wire: str, api: str, frames: "_MsgpackFrames | _KafkaFrames", count: int) -> Largest:
    frame = frames.frame(count)
    while len(frame) > BYTES_MAX:
        count = count * 3 // 4
        frame = frames.frame(count)
    return Largest(wire, api, frames.path, frames.is_repeated, count, frame)


# -- minibroker's own wire


def _msgpack_paths(message_type: type, above: str = "") -> Iterator[tuple[str, int]]:
    """Yield the arrays of a message, and how many elements there are in an element of each, with
    itself."""
    for name, hint in fields_of(message_type):
        element = element_of(without_none(hint) or hint)
        if element is None:
            continue
        nested = []
        if hasattr(element, "__annotations__"):
            nested = [*_msgpack_paths(element, f"{above}{name}.")]
        yield above + name, 1 + len(nested)
        yield from nested


class _MsgpackFrames:
    def __init__(self, key: ApiKey, path: str, is_repeated: bool) -> None:
        self._key = key
        self.path = path
        self.is_repeated = is_repeated
        self._count = 0

    def frame(self, count: int) -> bytes:
        self._count = count
        message = self._message(APIS[self._key].request, "", 0)
        return b"".join(encode_request(RequestEnvelope(self._key, 0, 1, "largest", message)))

    def _message(self, message_type: type, path: str, index: int) -> Any:
        fields = fields_of(message_type)
        return message_type(*[self._value(hint, f"{path}{name}", index) for name, hint in fields])

    def _value(self, hint: Any, path: str, index: int) -> Any:
        name = path.rpartition(".")[2]
        if hint == Records:
            return BATCH
        if hint is bool:
            return name == "validate_only"
        if hint is int:
            return NUMBERS.get(name, index)
        if hint is str:
            return text_of(name, index)
        if hint is bytes:
            return b""
        if inner := without_none(hint):
            is_on_path = self.path == path or self.path.startswith(f"{path}.")
            return self._value(inner, path, index) if is_on_path or name == "topics" else None
        if element := element_of(hint):
            count = self._count if path == self.path else 1
            indexes = [0] * count if self.is_repeated else range(count)
            return tuple([self._element(element, path, each) for each in indexes])
        return self._message(hint, f"{path}.", index)

    def _element(self, hint: Any, path: str, index: int) -> Any:
        if hasattr(hint, "__annotations__"):
            return self._message(hint, f"{path}.", index)
        if inner := element_of(hint):  # an array in an array, which has no name of its own
            return (self._element(inner, path, index),)
        return self._value(hint, path, index)


def text_of(name: str, index: int) -> str:
    """A text for a field of this name."""
    if name in ("topic", "topics", "name", "topic_names", "resource_name"):
        return "t" if index == 0 else f"t{index}"
    if name == "protocol_type":
        return "consumer"
    return f"{name}-{index}"


# -- Kafka's wire


def _kafka_paths(shape: Struct, version: int, above: str = "") -> Iterator[tuple[str, int]]:
    """As `_msgpack_paths`."""
    for one in shape.fields:
        if one.is_in(version) and one.is_array:
            nested = []
            if isinstance(one.type, Struct):
                nested = [*_kafka_paths(one.type, version, f"{above}{one.name}.")]
            yield above + one.name, 1 + len(nested)
            yield from nested


class _KafkaFrames:
    def __init__(self, api: KafkaApi, path: str, is_repeated: bool) -> None:
        self._api = api
        self.path = path
        self.is_repeated = is_repeated
        self._count = 0

    def frame(self, count: int) -> bytes:
        self._count = count
        api, version = self._api, self._api.last
        value = self._struct(api.request, "", 0)
        is_flexible = api.is_flexible(version)
        body = b"".join(map(bytes, encode(api.request, version, value, is_flexible=is_flexible)))
        data = struct.pack(">hhih", api.key, version, 1, -1) + b"\0" * is_flexible + body
        return struct.pack(">I", len(data)) + data

    def _struct(self, shape: Struct, path: str, index: int) -> Any:
        return shape.make(*[self._field(one, f"{path}{one.name}", index) for one in shape.fields])

    def _field(self, one: Field, path: str, index: int) -> Any:
        if not one.is_in(self._api.last):
            return one.default
        if not one.is_array:
            return None if isinstance(one.type, Struct) else self._plain(one, index)
        count = self._count if path == self.path else 1
        indexes = [0] * count if self.is_repeated else range(count)
        return [
            self._struct(one.type, f"{path}.", each)
            if isinstance(one.type, Struct)
            else self._plain(one, each)
            for each in indexes
        ]

    def _plain(self, one: Field, index: int) -> Any:
        match one.type:
            case "string":
                is_null = one.may_be_null(self._api.last) and one.name != "name"
                return None if is_null and not one.is_array else text_of(one.name, index)
            case "uuid":
                return bytes(16)
            case "bytes":
                return b""
            case "records":
                return BATCH
            case "bool":
                return one.name == "validate_only"
        return NUMBERS.get(one.name, index)
