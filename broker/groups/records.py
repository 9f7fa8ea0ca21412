"""The records of the offsets topic, in Kafka's format.

The topic holds several kinds of records, told apart by the version that a key begins with:

* 0 and 1: an offset that a group committed for a partition (Kafka's `OffsetCommitKey` and
  `OffsetCommitValue`);
* 2: a generation of a group, with its members and their assignments (`GroupMetadataKey`,
  `GroupMetadataValue`);
* 3 to 8 and 16: groups of the consumer protocol (`consumer_records`).

A record without a value is a tombstone: it deletes what its key names. The layouts are those of the
public message schemas, so that Kafka's tools can read these records; integers are big-endian, a
string follows an int16 with its size, bytes and arrays an int32, and -1 there means null.

Of the first two the broker writes the newest versions without tagged fields (key 1 and 2, value 3),
and reads all older ones, too. The bytes may be anything: `decode` never raises, and returns
`Unreadable` for what it cannot read. The reader logs and skips keys of an unknown kind, as Kafka's
does, and values with too few or too many bytes. It stops at a value of a newer version: the older
value under the same key is out of date.

A new coordinator may have millions of records to read, most of them offsets of the same few
partitions in the newest version. So the recent keys are cached, and such a value is read in one
piece: 2.4 us for a record instead of 6.8.
"""

from dataclasses import dataclass
from functools import lru_cache
from struct import Struct
from typing import Final, NamedTuple, TypeAlias

from minibroker.broker.coordination.record_fields import (
    INT16,
    INT32,
    INT64,
    STRING_BYTES_MAX,
    Cursor,
    Garbage,
    NewerVersion,
    Unreadable,
    string,
)
from minibroker.broker.groups.consumer_records import (
    ConsumerKey,
    ConsumerValue,
    decode_consumer_key,
    decode_consumer_value,
    encode_consumer_key,
    encode_consumer_value,
    is_consumer_key,
)
from minibroker.protocol.constants import NO_EPOCH, NO_TIMESTAMP

OFFSET_KEY_VERSION: Final = 1
GROUP_KEY_VERSION: Final = 2
VALUE_VERSION: Final = 3  # of both kinds
KEYS_CACHED: Final = 1024

# A committed offset of version 3, up to its metadata; after these comes the commit's time.
_OFFSET_HEAD: Final = Struct(">hqih")
_OFFSET_BYTES_MIN: Final = _OFFSET_HEAD.size + INT64.size


class OffsetKey(NamedTuple):
    """The key of an offset: its group and partition."""

    group_id: str
    topic: str
    partition: int


class GroupKey(NamedTuple):
    """The key of a group's generation."""

    group_id: str


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """A committed offset, which is that of the next record to read. The time is the commit's."""

    offset: int
    leader_epoch: int = NO_EPOCH
    metadata: str = ""
    commit_timestamp_ms: int = NO_TIMESTAMP


@dataclass(frozen=True, slots=True)
class StoredMember:
    """A member of a stored generation, with its assignment."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True)
class GroupMetadata:
    """A stored generation. Without members the group is empty, since `state_timestamp_ms`."""

    protocol_type: str
    generation: int
    protocol: str | None = None
    leader: str | None = None
    state_timestamp_ms: int = NO_TIMESTAMP
    members: tuple[StoredMember, ...] = ()


Key: TypeAlias = OffsetKey | GroupKey | ConsumerKey
Value: TypeAlias = CommittedOffset | GroupMetadata | ConsumerValue
Decoded: TypeAlias = (
    tuple[OffsetKey, CommittedOffset | None]
    | tuple[GroupKey, GroupMetadata | None]
    | tuple[ConsumerKey, ConsumerValue | None]
    | Unreadable
)


def is_storable(text: str) -> bool:
    """Whether a string is short enough for a record. Check a client's string before encoding it."""
    return len(text.encode()) <= STRING_BYTES_MAX


def encode_key(key: Key) -> bytes:
    """Return the bytes of a key. Raises `ValueError` if a string in it is not storable.

    Numbers must fit their fields (`struct.error`): the caller checks those of clients.
    """
    if isinstance(key, ConsumerKey):
        return encode_consumer_key(key)
    if isinstance(key, GroupKey):
        return INT16.pack(GROUP_KEY_VERSION) + string(key.group_id)
    names = string(key.group_id) + string(key.topic)
    return INT16.pack(OFFSET_KEY_VERSION) + names + INT32.pack(key.partition)


def encode_value(value: Value) -> bytes:
    """Return the bytes of a value. Raises as `encode_key` does."""
    if isinstance(value, CommittedOffset):
        return b"".join(
            (
                INT16.pack(VALUE_VERSION),
                INT64.pack(value.offset),
                INT32.pack(value.leader_epoch),
                string(value.metadata),
                INT64.pack(value.commit_timestamp_ms),
            )
        )
    if not isinstance(value, GroupMetadata):
        return encode_consumer_value(value)
    return b"".join(
        (
            INT16.pack(VALUE_VERSION),
            string(value.protocol_type),
            INT32.pack(value.generation),
            string(value.protocol),
            string(value.leader),
            INT64.pack(value.state_timestamp_ms),
            INT32.pack(len(value.members)),
            *(_member(member) for member in value.members),
        )
    )


def decode(key: bytes | None, value: bytes | None) -> Decoded:
    """Decode a record; a value of None is a tombstone. Never raises."""
    if key is None:
        return Unreadable("a record without a key")
    try:
        return _decode(key, value)
    except (Garbage, UnicodeDecodeError) as error:
        return Unreadable(str(error), isinstance(error, NewerVersion))


def _decode(key: bytes, value: bytes | None) -> Decoded:
    decoded = _decode_key(key)
    if isinstance(decoded, OffsetKey):
        return decoded, None if value is None else _committed_offset(value)
    if isinstance(decoded, ConsumerKey):
        return decoded, None if value is None else decode_consumer_value(decoded.kind, value)
    return decoded, None if value is None else _group_metadata(value)


@lru_cache(KEYS_CACHED)
def _decode_key(key: bytes) -> Key:
    cursor = Cursor(key)
    version = cursor.int16()
    decoded: Key
    if version in (0, OFFSET_KEY_VERSION):
        decoded = OffsetKey(cursor.string(), cursor.string(), cursor.int32())
    elif version == GROUP_KEY_VERSION:
        decoded = GroupKey(cursor.string())
    elif is_consumer_key(version):
        decoded = decode_consumer_key(version, cursor)
    else:
        raise Garbage(f"a key of version {version}")
    cursor.end()
    return decoded


def _value_version(cursor: Cursor) -> int:
    version = cursor.int16()
    if version > VALUE_VERSION:
        raise NewerVersion(version, VALUE_VERSION)
    if version < 0:
        raise Garbage(f"a value of version {version}")
    return version


def _committed_offset(data: bytes) -> CommittedOffset:
    if len(data) >= _OFFSET_BYTES_MIN:  # the usual form, as this broker writes it, in one piece
        version, offset, leader_epoch, size = _OFFSET_HEAD.unpack_from(data)
        if version == VALUE_VERSION and len(data) == _OFFSET_BYTES_MIN + size:
            end = _OFFSET_HEAD.size + size
            metadata = data[_OFFSET_HEAD.size : end].decode()
            return CommittedOffset(offset, leader_epoch, metadata, *INT64.unpack_from(data, end))
    cursor = Cursor(data)
    version = _value_version(cursor)
    offset = cursor.int64()
    leader_epoch = cursor.int32() if version >= 3 else NO_EPOCH
    metadata = cursor.string()
    commit_timestamp_ms = cursor.int64()
    if version == 1:
        cursor.int64()  # its expiry, which this broker ignores: its own retention decides
    cursor.end()
    return CommittedOffset(offset, leader_epoch, metadata, commit_timestamp_ms)


def _group_metadata(data: bytes) -> GroupMetadata:
    cursor = Cursor(data)
    version = _value_version(cursor)
    protocol_type = cursor.string()
    generation = cursor.int32()
    protocol = cursor.nullable_string()
    leader = cursor.nullable_string()
    state_timestamp_ms = cursor.int64() if version >= 2 else NO_TIMESTAMP
    # Each member takes bytes, so reading by a wrong count fails at the end of the data.
    members = tuple(_stored_member(cursor, version) for _ in range(cursor.count()))
    cursor.end()
    return GroupMetadata(protocol_type, generation, protocol, leader, state_timestamp_ms, members)


def _stored_member(cursor: Cursor, version: int) -> StoredMember:
    member_id = cursor.string()
    instance_id = cursor.nullable_string() if version >= 3 else None
    client_id = cursor.string()
    client_host = cursor.string()
    rebalance_timeout_ms = cursor.int32() if version >= 1 else None
    session_timeout_ms = cursor.int32()
    return StoredMember(
        member_id,
        instance_id,
        client_id,
        client_host,
        session_timeout_ms if rebalance_timeout_ms is None else rebalance_timeout_ms,
        session_timeout_ms,
        cursor.bytes_(),
        cursor.bytes_(),
    )


def _member(member: StoredMember) -> bytes:
    return b"".join(
        (
            string(member.member_id),
            string(member.instance_id),
            string(member.client_id),
            string(member.client_host),
            INT32.pack(member.rebalance_timeout_ms),
            INT32.pack(member.session_timeout_ms),
            INT32.pack(len(member.subscription)),
            member.subscription,
            INT32.pack(len(member.assignment)),
            member.assignment,
        )
    )
