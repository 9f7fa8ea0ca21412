"""Kafka's consumer protocol: the subscriptions and assignments of a consumer group's members.

A member joins with a subscription; the group's leader returns an assignment for it. Brokers carry
both as opaque bytes, so the format is between clients, which may be of different versions and
libraries. It is that of Kafka's `ConsumerProtocolSubscription` and `ConsumerProtocolAssignment`,
all numbers big-endian:

    subscription = version i16 | topics [string] | user data bytes?
                   1: owned [topic string, partitions [i32]] | 2: generation i32 | 3: rack string?
    assignment   = version i16 | [topic string, partitions [i32]] | user data bytes?

An array is its length as i32 and its elements, a string its length as i16 and UTF-8, bytes their
length as i32; length -1 is null, where `?` allows it. Every version only adds fields at the end, so
a reader ignores the extra fields of a newer version and uses defaults for those that an older one
lacks.

Received bytes are not trusted: `ProtocolError` is the only exception, and nothing is allocated for
a claimed length before the bytes are there. Topics and partitions are written in order, so that
equal subscriptions have equal bytes: a coordinator compares them.
"""

from collections import defaultdict
from collections.abc import Iterable
from struct import Struct, error
from typing import Final, NamedTuple

from minibroker.protocol.errors import ProtocolError
from minibroker.protocol.messages.groups import NO_GENERATION
from minibroker.protocol.types import Buffer, TopicPartition

VERSION: Final = 3  # the version that is written

_INT16 = Struct(">h")
_INT32 = Struct(">i")
_NULL: Final = -1
_OWNED_SINCE: Final = 1
_GENERATION_SINCE: Final = 2
_RACK_SINCE: Final = 3


class Subscription(NamedTuple):
    """A member's subscribed topics, and the partitions that it owns.

    `owned` are the partitions that it was assigned in `generation` and has not revoked.
    """

    topics: tuple[str, ...]
    owned: tuple[TopicPartition, ...] = ()
    generation: int = NO_GENERATION
    user_data: bytes | None = None
    rack: str | None = None


class Assignment(NamedTuple):
    """The partitions that a member may read."""

    partitions: tuple[TopicPartition, ...] = ()
    user_data: bytes | None = None


def encode_subscription(subscription: Subscription) -> bytes:
    """Encode a subscription in version 3. Raises `ProtocolError` for a name that is too long."""
    return b"".join(
        [
            _INT16.pack(VERSION),
            _INT32.pack(len(subscription.topics)),
            *map(_string, sorted(subscription.topics)),
            _nullable_bytes(subscription.user_data),
            *_partitions(subscription.owned),
            _INT32.pack(subscription.generation),
            _INT16.pack(_NULL) if subscription.rack is None else _string(subscription.rack),
        ]
    )


def encode_assignment(assignment: Assignment) -> bytes:
    """Encode an assignment in version 3. Raises `ProtocolError` for a name that is too long."""
    partitions = _partitions(assignment.partitions)
    return b"".join([_INT16.pack(VERSION), *partitions, _nullable_bytes(assignment.user_data)])


def decode_subscription(data: Buffer) -> Subscription:
    """Decode a subscription of any version. Raises `ProtocolError` for malformed bytes."""
    reader = _Reader(data, "subscription")
    version = reader.version()
    topics = tuple(reader.string() for _ in range(reader.count()))
    user_data = reader.nullable_bytes()
    return Subscription(
        topics=topics,
        owned=reader.partitions() if version >= _OWNED_SINCE else (),
        generation=reader.int32() if version >= _GENERATION_SINCE else NO_GENERATION,
        user_data=user_data,
        rack=reader.nullable_string() if version >= _RACK_SINCE else None,
    )


def decode_assignment(data: Buffer) -> Assignment:
    """Decode an assignment of any version; no bytes are an empty assignment.

    Kafka's coordinator sends no bytes to members for which the leader sent no assignment. Raises
    `ProtocolError` for malformed bytes.
    """
    if not data:
        return Assignment()
    reader = _Reader(data, "assignment")
    reader.version()
    return Assignment(reader.partitions(), reader.nullable_bytes())


def _string(text: str) -> bytes:
    data = text.encode()
    try:
        return _INT16.pack(len(data)) + data
    except error:
        raise ProtocolError(f"a name of {len(data)} bytes cannot be told to a group") from None


def _nullable_bytes(data: bytes | None) -> bytes:
    return _INT32.pack(_NULL) if data is None else _INT32.pack(len(data)) + data


def _partitions(names: Iterable[TopicPartition]) -> list[bytes]:
    by_topic: defaultdict[str, list[int]] = defaultdict(list)
    for name in sorted(names):
        by_topic[name.topic].append(name.partition)
    pieces = [_INT32.pack(len(by_topic))]
    for topic, numbers in by_topic.items():
        pieces += [_string(topic), _INT32.pack(len(numbers)), *map(_INT32.pack, numbers)]
    return pieces


class _Reader:
    """Reads fields from bytes in order. `what` names the bytes in errors."""

    def __init__(self, data: Buffer, what: str) -> None:
        self._data = bytes(data)
        self._position = 0
        self._what = what

    def _broken(self, why: str) -> ProtocolError:
        return ProtocolError(f"a member's {self._what} {why}, at byte {self._position}")

    def _read_bytes(self, size: int) -> bytes:
        data = self._data[self._position : self._position + size]
        if len(data) < size:
            raise self._broken(f"ends too early: {size} bytes should follow")
        self._position += size
        return data

    def _integer(self, layout: Struct) -> int:
        try:
            number: int = layout.unpack_from(self._data, self._position)[0]
        except error:
            raise self._broken(f"ends too early: {layout.size} bytes should follow") from None
        self._position += layout.size
        return number

    def int16(self) -> int:
        return self._integer(_INT16)

    def int32(self) -> int:
        return self._integer(_INT32)

    def version(self) -> int:
        if (version := self.int16()) < 0:
            raise self._broken(f"has version {version}")
        return version

    def count(self) -> int:
        if (count := self.int32()) < 0:
            raise self._broken(f"has an array of length {count}")
        return count

    def nullable_bytes(self) -> bytes | None:
        if (size := self.int32()) < _NULL:
            raise self._broken(f"has bytes of length {size}")
        return None if size == _NULL else self._read_bytes(size)

    def nullable_string(self) -> str | None:
        if (size := self.int16()) < _NULL:
            raise self._broken(f"has text of length {size}")
        if size == _NULL:
            return None
        try:
            return self._read_bytes(size).decode()
        except UnicodeDecodeError:
            raise self._broken("has text that is not UTF-8") from None

    def string(self) -> str:
        if (text := self.nullable_string()) is None:
            raise self._broken("has null for a name")
        return text

    def partitions(self) -> tuple[TopicPartition, ...]:
        names = []
        for _ in range(self.count()):
            topic = self.string()
            names += [TopicPartition(topic, self.int32()) for _ in range(self.count())]
        if any(name.partition < 0 for name in names):
            raise self._broken("names a partition below 0")
        return tuple(names)
