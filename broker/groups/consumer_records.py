"""The records of groups of the consumer protocol (KIP-848) in the offsets topic.

A group is several records, each with a key of its own, so a change writes only what has changed:

* the group's epoch, which rises when members, subscriptions or topics change;
* each member: what it subscribes to;
* the epoch of the target assignment, and each member's part of it;
* each member's current assignment: its epoch, and the partitions that it has or must revoke;
* what a pattern of topic names matched.

A key begins with its kind. Kind 4 is of brokers before Kafka 4.1: it is read and has no effect. A
value begins with version 0 and has the compact forms of Kafka's flexible versions; tagged fields
that are not known are skipped.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple, TypeAlias

from minibroker.broker.coordination.record_fields import (
    INT8,
    INT16,
    INT32,
    INT64,
    NO_TAGS,
    Cursor,
    Garbage,
    NewerVersion,
    compact_array,
    compact_bytes,
    compact_string,
    string,
    uvarint,
)

VALUE_VERSION: Final = 0
METADATA_HASH_TAG: Final = 0
CLASSIC_TAG: Final = 0
PRESENT: Final = 1  # before a struct that may be null
# What a record, and a partition and a text in it, take in memory.
RECORD_BYTES: Final = 500
PARTITION_BYTES: Final = 150
TEXT_BYTES: Final = 60


class ConsumerRecord(IntEnum):
    """The kinds of records, as their keys begin."""

    GROUP = 3
    TOPICS = 4  # not written
    MEMBER = 5
    TARGET = 6
    MEMBER_TARGET = 7
    CURRENT = 8
    PATTERN = 16


# Kinds whose keys have a second name: a member's id, or the pattern.
NAMED: Final = {
    ConsumerRecord.MEMBER,
    ConsumerRecord.MEMBER_TARGET,
    ConsumerRecord.CURRENT,
    ConsumerRecord.PATTERN,
}


@dataclass(frozen=True, slots=True)
class ConsumerKey:
    """A record's key. `name` is a member's id or a pattern, "" in the kinds without one."""

    kind: ConsumerRecord
    group_id: str
    name: str = ""


class MemberState(IntEnum):
    """How far a member is on its way to the target assignment."""

    STABLE = 0
    UNREVOKED = 1  # it must revoke partitions first
    UNRELEASED = 2  # other members must revoke partitions first
    UNKNOWN = 127


class TopicIdPartition(NamedTuple):
    """A partition, by the id of its topic."""

    topic_id: bytes
    partition: int


Partitions: TypeAlias = frozenset[TopicIdPartition]
NO_PARTITIONS: Final[Partitions] = frozenset()


class GroupEpoch(NamedTuple):
    """The group's epoch, and a hash of its subscribed topics (0: not known)."""

    epoch: int
    metadata_hash: int = 0


class ClassicProtocol(NamedTuple):
    """A protocol that a member of the classic protocol offers, with its subscription."""

    name: str
    metadata: bytes


class ClassicMember(NamedTuple):
    """What a member that uses the classic protocol has of its own."""

    session_timeout_ms: int
    protocols: tuple[ClassicProtocol, ...] = ()


class MemberMetadata(NamedTuple):
    """A member, and what it subscribes to: topics by name, and by a pattern (None: no pattern).
    `classic` is None for a member of the newer protocol."""

    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    rebalance_timeout_ms: int = -1
    assignor: str | None = None
    classic: ClassicMember | None = None


class TargetEpoch(NamedTuple):
    """The epoch of the group for which the target assignment was made."""

    epoch: int


class MemberTarget(NamedTuple):
    """The partitions that a member is to have."""

    partitions: Partitions = NO_PARTITIONS


class CurrentAssignment(NamedTuple):
    """A member's epoch, the one before, and its partitions. It still has those in `revoking`."""

    epoch: int
    previous_epoch: int = -1
    state: MemberState = MemberState.STABLE
    assigned: Partitions = NO_PARTITIONS
    revoking: Partitions = NO_PARTITIONS


class ResolvedPattern(NamedTuple):
    """The topics that a pattern matched, at a version of the image and a time."""

    topics: tuple[str, ...] = ()
    version: int = 0
    timestamp_ms: int = 0


class FormerTopics(NamedTuple):
    """The value of a record of the kind TOPICS, which is not read."""


ConsumerValue: TypeAlias = (
    GroupEpoch
    | MemberMetadata
    | TargetEpoch
    | MemberTarget
    | CurrentAssignment
    | ResolvedPattern
    | FormerTopics
)


def is_consumer_key(version: int) -> bool:
    """Whether a key that begins with this number is of this module."""
    return version in _KINDS


_KINDS: Final = frozenset(ConsumerRecord)


def encode_consumer_key(key: ConsumerKey) -> bytes:
    """Return the bytes of a key. Raises `ValueError` if a name is too long."""
    name = string(key.name) if key.kind in NAMED else b""
    return INT16.pack(key.kind) + string(key.group_id) + name


def decode_consumer_key(version: int, cursor: Cursor) -> ConsumerKey:
    """Decode the rest of a key that begins with `version`. Raises `Garbage`."""
    kind = ConsumerRecord(version)
    return ConsumerKey(kind, cursor.string(), cursor.string() if kind in NAMED else "")


def encode_consumer_value(value: ConsumerValue) -> bytes:
    """Return the bytes of a value."""
    return INT16.pack(VALUE_VERSION) + _body(value)


def _body(value: ConsumerValue) -> bytes:
    match value:
        case GroupEpoch():
            tags = NO_TAGS
            if value.metadata_hash:
                size = uvarint(INT64.size)
                number = INT64.pack(value.metadata_hash)
                tags = uvarint(1) + uvarint(METADATA_HASH_TAG) + size + number
            return INT32.pack(value.epoch) + tags
        case TargetEpoch():
            return INT32.pack(value.epoch) + NO_TAGS
        case MemberTarget():
            return _partitions(value.partitions) + NO_TAGS
        case CurrentAssignment():
            epochs = INT32.pack(value.epoch) + INT32.pack(value.previous_epoch)
            assigned, revoking = _partitions(value.assigned), _partitions(value.revoking)
            return epochs + INT8.pack(value.state) + assigned + revoking + NO_TAGS
        case ResolvedPattern():
            numbers = INT64.pack(value.version) + INT64.pack(value.timestamp_ms)
            return _strings(value.topics) + numbers + NO_TAGS
        case MemberMetadata():
            return _member(value)
        case FormerTopics():
            return compact_array([]) + NO_TAGS


def _member(value: MemberMetadata) -> bytes:
    return b"".join(
        (
            compact_string(value.instance_id),
            compact_string(value.rack_id),
            compact_string(value.client_id),
            compact_string(value.client_host),
            _strings(value.topics),
            compact_string(value.pattern),
            INT32.pack(value.rebalance_timeout_ms),
            compact_string(value.assignor),
            NO_TAGS if value.classic is None else _classic(value.classic),
        )
    )


def _classic(classic: ClassicMember) -> bytes:
    protocols = [
        compact_string(name) + compact_bytes(metadata) + NO_TAGS
        for name, metadata in classic.protocols
    ]
    timeout = INT32.pack(classic.session_timeout_ms)
    body = INT8.pack(PRESENT) + timeout + compact_array(protocols) + NO_TAGS
    return uvarint(1) + uvarint(CLASSIC_TAG) + uvarint(len(body)) + body


def _strings(texts: Iterable[str]) -> bytes:
    return compact_array([compact_string(text) for text in texts])


def by_topic(partitions: Iterable[TopicIdPartition]) -> dict[bytes, list[int]]:
    """Return the numbers of partitions by their topics, both in order."""
    topics: dict[bytes, list[int]] = {}
    for topic_id, partition in sorted(partitions):
        topics.setdefault(topic_id, []).append(partition)
    return topics


def _partitions(partitions: Partitions) -> bytes:
    return compact_array(
        [
            topic_id + compact_array([INT32.pack(number) for number in numbers]) + NO_TAGS
            for topic_id, numbers in by_topic(partitions).items()
        ]
    )


def decode_consumer_value(kind: ConsumerRecord, data: bytes) -> ConsumerValue:
    """Decode a value under a key of this kind. Raises `Garbage`, or `UnicodeDecodeError`."""
    if kind is ConsumerRecord.TOPICS:
        return FormerTopics()
    cursor = Cursor(data)
    version = cursor.int16()
    if version > VALUE_VERSION:
        raise NewerVersion(version, VALUE_VERSION)
    if version < 0:
        raise Garbage(f"a value of version {version}")
    value = _read(kind, cursor)
    cursor.end()
    return value


def _read(kind: ConsumerRecord, cursor: Cursor) -> ConsumerValue:
    value: ConsumerValue
    if kind is ConsumerRecord.GROUP:
        epoch = cursor.int32()
        number = cursor.tags().get(METADATA_HASH_TAG, bytes(INT64.size))
        if len(number) != INT64.size:
            raise Garbage(f"a hash of {len(number)} bytes")
        return GroupEpoch(epoch, *INT64.unpack(number))
    if kind is ConsumerRecord.TARGET:
        value = TargetEpoch(cursor.int32())
    elif kind is ConsumerRecord.MEMBER_TARGET:
        value = MemberTarget(_read_partitions(cursor))
    elif kind is ConsumerRecord.CURRENT:
        value = _read_current(cursor)
    elif kind is ConsumerRecord.PATTERN:
        value = ResolvedPattern(_read_strings(cursor), cursor.int64(), cursor.int64())
    else:
        return _read_member(cursor)
    cursor.tags()
    return value


def _read_current(cursor: Cursor) -> CurrentAssignment:
    epoch, previous_epoch, number = cursor.int32(), cursor.int32(), cursor.int8()
    try:
        state = MemberState(number)
    except ValueError:
        raise Garbage(f"a member's state of {number}") from None
    assigned = _read_partitions(cursor)
    return CurrentAssignment(epoch, previous_epoch, state, assigned, _read_partitions(cursor))


def _read_member(cursor: Cursor) -> MemberMetadata:
    member = MemberMetadata(
        cursor.nullable_compact_string(),
        cursor.nullable_compact_string(),
        cursor.compact_string(),
        cursor.compact_string(),
        _read_strings(cursor),
        cursor.nullable_compact_string(),
        cursor.int32(),
        cursor.nullable_compact_string(),
    )
    classic = cursor.tags().get(CLASSIC_TAG)
    return member if classic is None else member._replace(classic=_read_classic(classic))


def _read_classic(data: bytes) -> ClassicMember | None:
    cursor = Cursor(data)
    if cursor.int8() < 0:
        return None
    timeout_ms = cursor.int32()
    protocols: list[ClassicProtocol] = []
    for _ in range(cursor.compact_count()):
        protocols.append(ClassicProtocol(cursor.compact_string(), cursor.compact_bytes()))
        cursor.tags()
    cursor.tags()
    return ClassicMember(timeout_ms, tuple(protocols))


def _read_strings(cursor: Cursor) -> tuple[str, ...]:
    return tuple(cursor.compact_string() for _ in range(cursor.compact_count()))


def _read_partitions(cursor: Cursor) -> Partitions:
    found: list[TopicIdPartition] = []
    for _ in range(cursor.compact_count()):
        topic_id = cursor.uuid()
        numbers = range(cursor.compact_count())
        found += [TopicIdPartition(topic_id, cursor.int32()) for _ in numbers]
        cursor.tags()
    return frozenset(found)


def record_bytes(key: ConsumerKey, value: ConsumerValue | None) -> int:
    """Return what a record of a group takes in memory, about."""
    if value is None:
        return 0
    size = RECORD_BYTES + len(key.group_id) + len(key.name)
    for field in value:
        if isinstance(field, frozenset):
            size += PARTITION_BYTES * len(field)
        elif isinstance(field, ClassicMember):
            protocols = field.protocols
            size += sum(TEXT_BYTES + len(each.name) + len(each.metadata) for each in protocols)
        elif isinstance(field, tuple) and not isinstance(field, ClassicMember):
            size += sum(TEXT_BYTES + len(text) for text in field)
        elif isinstance(field, str):
            size += TEXT_BYTES + len(field)
    return size
