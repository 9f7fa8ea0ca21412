"""Records of the consumer protocol, against bytes put together by hand from Kafka's schemas.

The schemas are the public `ConsumerGroup*Key` and `ConsumerGroup*Value`. A key has a string for
each name, with an int16 in front; a value begins with version 0, and has compact lengths (one more
than the length) and a byte 00 for no tagged fields behind each struct.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker.broker.groups.consumer_records import (
    ClassicMember,
    ClassicProtocol,
    ConsumerKey,
    ConsumerRecord,
    ConsumerValue,
    CurrentAssignment,
    FormerTopics,
    GroupEpoch,
    MemberMetadata,
    MemberState,
    MemberTarget,
    ResolvedPattern,
    TargetEpoch,
    TopicIdPartition,
)
from minibroker.broker.groups.offsets import OffsetTable
from minibroker.broker.groups.records import (
    CommittedOffset,
    Key,
    OffsetKey,
    Unreadable,
    decode,
    encode_key,
    encode_value,
)

ID = bytes(range(16))
ID_HEX = ID.hex()
PARTS = frozenset({TopicIdPartition(ID, 1), TopicIdPartition(ID, 2)})
PARTS_HEX = f"02 {ID_HEX} 03 00000001 00000002 00"

VECTORS: dict[str, tuple[ConsumerKey, str, ConsumerValue, str]] = {
    "group": (
        ConsumerKey(ConsumerRecord.GROUP, "grp"),
        "0003 0003 677270",
        GroupEpoch(9),
        "0000 00000009 00",
    ),
    "hash": (
        ConsumerKey(ConsumerRecord.GROUP, "grp"),
        "0003 0003 677270",
        GroupEpoch(9, -2),
        "0000 00000009 01 00 08 fffffffffffffffe",  # one tagged field: number 0, 8 bytes
    ),
    "member": (
        ConsumerKey(ConsumerRecord.MEMBER, "grp", "m"),
        "0005 0003 677270 0001 6d",
        MemberMetadata("i", None, "app", "/h", ("t", "u"), "x.*", 60_000, "range"),
        "0000 02 69 00 04 617070 03 2f68 03 02 74 02 75 04 782e2a 0000ea60 06 72616e6765 00",
    ),
    "classic member": (
        ConsumerKey(ConsumerRecord.MEMBER, "grp", "m"),
        "0005 0003 677270 0001 6d",
        MemberMetadata(
            topics=("t",),
            rebalance_timeout_ms=60_000,
            classic=ClassicMember(10_000, (ClassicProtocol("range", b"\1\2"),)),
        ),
        # One tagged field, number 0, of 17 bytes: it is there; the time-out; one protocol.
        "0000 00 00 01 01 02 02 74 00 0000ea60 00"
        " 01 00 11 01 00002710 02 06 72616e6765 03 0102 00 00",
    ),
    "target": (
        ConsumerKey(ConsumerRecord.TARGET, "grp"),
        "0006 0003 677270",
        TargetEpoch(9),
        "0000 00000009 00",
    ),
    "member target": (
        ConsumerKey(ConsumerRecord.MEMBER_TARGET, "grp", "m"),
        "0007 0003 677270 0001 6d",
        MemberTarget(PARTS),
        f"0000 {PARTS_HEX} 00",
    ),
    "current": (
        ConsumerKey(ConsumerRecord.CURRENT, "grp", "m"),
        "0008 0003 677270 0001 6d",
        CurrentAssignment(9, 8, MemberState.UNREVOKED, PARTS),
        f"0000 00000009 00000008 01 {PARTS_HEX} 01 00",
    ),
    "pattern": (
        ConsumerKey(ConsumerRecord.PATTERN, "grp", "x.*"),
        "0010 0003 677270 0003 782e2a",
        ResolvedPattern(("t",), 5, 6),
        "0000 02 02 74 0000000000000005 0000000000000006 00",
    ),
}


@pytest.mark.parametrize("vector", VECTORS.values(), ids=list(VECTORS))
def test_each_kind_has_kafkas_bytes(vector: tuple[ConsumerKey, str, ConsumerValue, str]) -> None:
    """Written so, read so; cut short anywhere or too long it is unreadable."""
    key, key_hex, value, value_hex = vector
    key_bytes, value_bytes = bytes.fromhex(key_hex), bytes.fromhex(value_hex)
    assert encode_key(key) == key_bytes
    assert encode_value(value) == value_bytes
    assert decode(key_bytes, value_bytes) == (key, value)
    assert decode(key_bytes, None) == (key, None)
    for size in range(len(value_bytes)):
        assert isinstance(decode(key_bytes, value_bytes[:size]), Unreadable), size
    assert isinstance(decode(key_bytes, value_bytes + b"\0"), Unreadable)
    assert isinstance(decode(key_bytes, b"\0\1" + value_bytes[2:]), Unreadable)


def test_tagged_fields_of_others_are_skipped() -> None:
    """Kafka may write more: the epoch of each partition's assignment."""
    key, key_hex, value, value_hex = VECTORS["member"]
    tagged = bytes.fromhex(value_hex)[:-1] + b"\x01\x07\x03abc"
    assert decode(bytes.fromhex(key_hex), tagged) == (key, value)


def test_what_former_brokers_stored_of_topics_is_skipped() -> None:
    """A record of kind 4 can be read whatever its value holds, and is deleted by its tombstone."""
    key = ConsumerKey(ConsumerRecord.TOPICS, "grp")
    assert decode(bytes.fromhex("0004 0003 677270"), b"whatever") == (key, FormerTopics())


@given(st.sampled_from(list(VECTORS)), st.binary(max_size=64))
def test_garbage_never_raises(name: str, rest: bytes) -> None:
    """Whatever lies in the log, reading it gives a record or a reason."""
    key = bytes.fromhex(VECTORS[name][1])
    assert isinstance(decode(key, b"\0\0" + rest), tuple)
    assert isinstance(decode(key[:2] + rest, None), tuple)


# -- in the table

OFFSET = OffsetKey("grp", "t", 0)


def table_of(*names: str) -> OffsetTable:
    table = OffsetTable()
    for offset, name in enumerate(names):
        table.replay(offset, VECTORS[name][0], VECTORS[name][2])
    return table


def test_the_last_record_of_a_key_counts() -> None:
    """A group exists while a record of it does, and takes no memory afterwards."""
    table = table_of("group", "hash", "member")
    assert table.knows("grp")
    assert [*table.group_ids] == table.with_members() == ["grp"]
    group, member = VECTORS["hash"], VECTORS["member"]
    assert table.consumer_records("grp") == {group[0]: group[2], member[0]: member[2]}
    held = table.held_bytes
    table.replay(3, member[0], member[2])
    assert table.held_bytes == held
    table.replay(4, member[0], None)
    assert table.with_members() == []
    table.replay(5, group[0], None)
    assert not table.knows("grp")
    assert table.held_bytes == 0


def test_all_records_of_a_group_are_deleted_with_it() -> None:
    """Those on their way, too."""
    table = table_of(*VECTORS)
    table.replay(9, OFFSET, CommittedOffset(5))
    late = ConsumerKey(ConsumerRecord.CURRENT, "grp", "late")
    table.add_pending(late, 10)
    keys: list[Key] = [*dict.fromkeys(vector[0] for vector in VECTORS.values()), OFFSET, late]
    assert sorted(map(str, table.of_group("grp"))) == sorted(map(str, keys))


def test_a_group_expires_without_members_and_offsets() -> None:
    """Its offsets expire by their own commits, and it with the last of them."""
    table = table_of("group", "target", "member")
    table.replay(5, OFFSET, CommittedOffset(5, commit_timestamp_ms=100))
    assert table.expired(["grp"], 1000) == []
    table.replay(6, VECTORS["member"][0], None)
    assert table.expired(["grp"], 100) == []
    own = [VECTORS["group"][0], VECTORS["target"][0]]
    assert table.expired(["grp"], 101) == [OFFSET, *own]
    table.add_pending(own[0], 7)
    assert table.expired(["grp"], 101) == [OFFSET]
