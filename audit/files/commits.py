"""Records of the offsets topic: the offsets that groups have committed, and their generations.

The bytes are Kafka's (its public message schemas OffsetCommitKey, OffsetCommitValue,
GroupMetadataKey and GroupMetadataValue, and ConsumerProtocolAssignment inside the last); a key
begins with a number that selects the schema. Brokers write them with code of their own; this reader
shares none of it, and neither does `home_of` with the rule by which brokers place a group.

Groups of the newer protocol (KIP-848) have records of further kinds, for which the audit has no
check: of these only the key is read.
"""

import struct
from typing import Final, NamedTuple

from minibroker.audit.files.fields import Fields
from minibroker.protocol.types import TopicPartition

OFFSET_KEYS: Final = (0, 1)
GROUP_KEY: Final = 2
# Kinds of the newer protocol, and those of them with a second name in the key.
CONSUMER_KEYS: Final = (3, 4, 5, 6, 7, 8, 16)
NAMED_KEYS: Final = (5, 7, 8, 16)
VALUE_VERSIONS: Final = (0, 1, 2, 3)  # of both kinds
NONE: Final = -1  # a leader epoch or a time that is not known
CONSUMER: Final = "consumer"  # the protocol type whose assignments are partitions


class Commit(NamedTuple):
    """The commit in one record; `offset` is None if the record deletes the group's commit.

    `leader_epoch` is that of the record before `offset`, as the committing client knew it.
    """

    group: str
    topic: str
    partition: int
    offset: int | None
    leader_epoch: int = NONE
    time_ms: int = NONE


class Member(NamedTuple):
    """A member of a generation, and the partitions that it had; none if they cannot be read."""

    member_id: str
    client_id: str
    partitions: frozenset[TopicPartition]


class Generation(NamedTuple):
    """A stored generation of a group; `number` is None if the record deletes the group."""

    group: str
    number: int | None
    members: tuple[Member, ...] = ()


class ConsumerRecord(NamedTuple):
    """A record of a group of the newer protocol."""

    group: str


class UnreadableRecord(ValueError):
    """A record that no coordinator can read. `group`, `topic` and `partition` are those of its key:
    None if the key cannot be read, `topic` also if the record is about a generation."""

    def __init__(
        self,
        problem: str,
        group: str | None = None,
        topic: str | None = None,
        partition: int | None = None,
    ) -> None:
        super().__init__(problem)
        self.group, self.topic, self.partition = group, topic, partition


def read_record(key: bytes | None, value: bytes | None) -> Commit | Generation | ConsumerRecord:
    """Return what a record says. Raises UnreadableRecord."""
    if key is None:
        raise UnreadableRecord("a record without a key")
    named: tuple[str, str | None, int | None]
    try:
        fields = Fields(key)
        kind = fields.number(">h")
        if kind == GROUP_KEY:
            named = (fields.text(), None, None)
        elif kind in OFFSET_KEYS:
            named = (fields.text(), fields.text(), fields.number(">i"))
        elif kind in CONSUMER_KEYS:
            named = (fields.text(), None, None)
            if kind in NAMED_KEYS:
                fields.text()
        else:
            raise ValueError(f"a key of kind {kind}")
        fields.end("key")
    except ValueError as error:
        raise UnreadableRecord(str(error)) from None
    group, topic, partition = named
    if kind in CONSUMER_KEYS:
        return ConsumerRecord(group)
    try:
        if topic is None or partition is None:
            return Generation(group, None) if value is None else _generation(group, value)
        if value is None:
            return Commit(group, topic, partition, None)
        return Commit(group, topic, partition, *_committed(value))
    except ValueError as error:
        raise UnreadableRecord(str(error), *named) from None


def home_of(group: str, homes: int) -> int:
    """Return the partition of the offsets topic that must have a group's records (GRP-01)."""
    number = 0
    units = group.encode("utf-16-be", "surrogatepass")
    for (unit,) in struct.iter_unpack(">H", units):
        number = (31 * number + unit) & 0xFFFFFFFF
    signed = number - (1 << 32) if number >> 31 else number
    return 0 if signed == -(1 << 31) else abs(signed) % homes


def _committed(value: bytes) -> tuple[int, int, int]:
    """Return offset, leader epoch and time of a commit's value."""
    fields = Fields(value)
    version = _version(fields, "an offset")
    offset = fields.number(">q")
    leader_epoch = fields.number(">i") if version >= 3 else NONE
    fields.text()  # the client's own words
    time_ms = fields.number(">q")
    if version == 1:
        fields.number(">q")  # when it expires
    fields.end("value")
    return offset, leader_epoch, time_ms


def _generation(group: str, value: bytes) -> Generation:
    fields = Fields(value)
    version = _version(fields, "a generation")
    protocol_type = fields.text()
    number = fields.number(">i")
    fields.nullable_text()  # the assignment strategy
    fields.nullable_text()  # the member that leads
    if version >= 2:
        fields.number(">q")  # since when
    members = []
    for _ in range(fields.count()):
        member_id = fields.text()
        if version >= 3:
            fields.nullable_text()  # a static member's name
        client_id = fields.text()
        fields.text()  # its host
        for _ in range(2 if version >= 1 else 1):
            fields.number(">i")  # its time-outs
        fields.data()  # its subscription
        assignment = fields.data()
        owned = _partitions(assignment) if protocol_type == CONSUMER else frozenset()
        members.append(Member(member_id, client_id, owned))
    fields.end("value")
    return Generation(group, number, tuple(members))


def _partitions(assignment: bytes) -> frozenset[TopicPartition]:
    """Return the partitions of a member. The bytes are the clients' own: any may stand there."""
    fields = Fields(assignment)
    found: set[TopicPartition] = set()
    try:
        fields.number(">h")
        for _ in range(fields.count()):
            topic = fields.text()
            found.update(TopicPartition(topic, fields.number(">i")) for _ in range(fields.count()))
    except ValueError:
        return frozenset()
    return frozenset(found)


def _version(fields: Fields, what: str) -> int:
    version = fields.number(">h")
    if version not in VALUE_VERSIONS:
        raise ValueError(f"{what} of version {version}")
    return version
