"""Keys and values of the offsets topic, against bytes put together by hand from Kafka's schemas.

The schemas are the public `OffsetCommitKey`, `OffsetCommitValue`, `GroupMetadataKey` and
`GroupMetadataValue`. Each vector below is their list of fields in order, one line a field; integers
are big-endian, a string is its length as int16 and UTF-8, bytes and arrays begin with an int32.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker.broker.coordination.record_fields import STRING_BYTES_MAX
from minibroker.broker.groups.records import (
    CommittedOffset,
    GroupKey,
    GroupMetadata,
    OffsetKey,
    StoredMember,
    Unreadable,
    decode,
    encode_key,
    encode_value,
    is_storable,
)

OFFSET_KEY = OffsetKey("grp", "orders", 7)
OFFSET_KEY_BYTES = bytes.fromhex(
    "0001"  # version 1
    "0003 677270"  # group: 3 bytes, "grp"
    "0006 6f7264657273"  # topic: 6 bytes, "orders"
    "00000007"  # partition 7
)
OFFSET = CommittedOffset(4242, 5, "né", 1_700_000_000_000)
OFFSET_BYTES = bytes.fromhex(
    "0003"  # version 3
    "0000000000001092"  # offset 4242 = 0x1092
    "00000005"  # leader epoch 5
    "0003 6ec3a9"  # metadata: 3 bytes, "n" and the two of "é"
    "0000018bcfe56800"  # commit timestamp 1700000000000 = 0x18bcfe56800
)
GROUP_KEY = GroupKey("grp")
GROUP_KEY_BYTES = bytes.fromhex(
    "0002"  # version 2
    "0003 677270"  # group: 3 bytes, "grp"
)
STATIC = StoredMember("m-1", "i1", "app", "/10.0.0.1", 300_000, 45_000, b"\x01\x02", b"\xff")
DYNAMIC = StoredMember("m-2", None, "", "", 60_000, 10_000, b"", b"")
GROUP = GroupMetadata("consumer", 9, "range", "m-1", 1_700_000_000_000, (STATIC, DYNAMIC))
GROUP_BYTES = bytes.fromhex(
    "0003"  # version 3
    "0008 636f6e73756d6572"  # protocol type: 8 bytes, "consumer"
    "00000009"  # generation 9
    "0005 72616e6765"  # protocol: 5 bytes, "range"
    "0003 6d2d31"  # leader: 3 bytes, "m-1"
    "0000018bcfe56800"  # current state timestamp 1700000000000
    "00000002"  # 2 members
    "0003 6d2d31"  # member id "m-1"
    "0002 6931"  # group instance id "i1"
    "0003 617070"  # client id "app"
    "0009 2f31302e302e302e31"  # client host "/10.0.0.1"
    "000493e0"  # rebalance timeout 300000 = 0x493e0
    "0000afc8"  # session timeout 45000 = 0xafc8
    "00000002 0102"  # subscription: 2 bytes
    "00000001 ff"  # assignment: 1 byte
    "0003 6d2d32"  # member id "m-2"
    "ffff"  # group instance id: length -1, null
    "0000"  # client id ""
    "0000"  # client host ""
    "0000ea60"  # rebalance timeout 60000 = 0xea60
    "00002710"  # session timeout 10000 = 0x2710
    "00000000"  # subscription: no bytes
    "00000000"  # assignment: no bytes
)
EMPTY = GroupMetadata("consumer", 10, None, None, 1_700_000_000_001)
EMPTY_BYTES = bytes.fromhex(
    "0003"  # version 3
    "0008 636f6e73756d6572"  # protocol type "consumer"
    "0000000a"  # generation 10
    "ffff"  # protocol: null
    "ffff"  # leader: null
    "0000018bcfe56801"  # current state timestamp 1700000000001
    "00000000"  # no members
)

# What older brokers wrote, with what this one makes of it.
OLD_OFFSETS = {
    0: (
        "0000"  # version 0
        "0000000000000007"  # offset 7
        "0001 6d"  # metadata "m"
        "0000000000000064",  # timestamp 100
        CommittedOffset(7, -1, "m", 100),
    ),
    1: (
        "0001"  # version 1
        "0000000000000007"  # offset 7
        "0001 6d"  # metadata "m"
        "0000000000000064"  # commit timestamp 100
        "00000000000000c8",  # expire timestamp 200, which is read and not used
        CommittedOffset(7, -1, "m", 100),
    ),
    2: (
        "0002"  # version 2
        "0000000000000007"  # offset 7
        "0000"  # metadata ""
        "0000000000000064",  # commit timestamp 100
        CommittedOffset(7, -1, "", 100),
    ),
}
OLD_HEAD = (
    "0001 63"  # protocol type "c"
    "00000002"  # generation 2
    "0001 72"  # protocol "r"
    "0001 6d"  # leader "m"
)
OLD_PARTS = "00000001 aa 00000001 bb"  # subscription and assignment, a byte each
OLD_GROUPS = {
    0: (
        "0000" + OLD_HEAD + "00000001"  # version 0, 1 member
        "0001 6d 0001 61 0001 68"  # member id "m", client id "a", client host "h"
        "00002710" + OLD_PARTS,  # session timeout 10000, which is the time to rebalance too
        GroupMetadata(
            "c",
            2,
            "r",
            "m",
            -1,
            (StoredMember("m", None, "a", "h", 10000, 10000, b"\xaa", b"\xbb"),),
        ),
    ),
    1: (
        "0001" + OLD_HEAD + "00000001"  # version 1, 1 member
        "0001 6d 0001 61 0001 68"  # member id "m", client id "a", client host "h"
        "0000ea60 00002710" + OLD_PARTS,  # rebalance timeout 60000, session timeout 10000
        GroupMetadata(
            "c",
            2,
            "r",
            "m",
            -1,
            (StoredMember("m", None, "a", "h", 60000, 10000, b"\xaa", b"\xbb"),),
        ),
    ),
    2: (
        "0002" + OLD_HEAD + "0000000000000064"  # version 2, current state timestamp 100
        "00000001 0001 6d 0001 61 0001 68"  # 1 member: "m", "a", "h"
        "0000ea60 00002710" + OLD_PARTS,  # rebalance timeout 60000, session timeout 10000
        GroupMetadata(
            "c",
            2,
            "r",
            "m",
            100,
            (StoredMember("m", None, "a", "h", 60000, 10000, b"\xaa", b"\xbb"),),
        ),
    ),
}


def test_bytes_are_those_of_the_schemas() -> None:
    """Each kind of key and value is written as the bytes put together by hand."""
    assert encode_key(OFFSET_KEY) == OFFSET_KEY_BYTES
    assert encode_value(OFFSET) == OFFSET_BYTES
    assert encode_key(GROUP_KEY) == GROUP_KEY_BYTES
    assert encode_value(GROUP) == GROUP_BYTES
    assert encode_value(EMPTY) == EMPTY_BYTES


def test_bytes_are_read_back() -> None:
    """What was written is read as what it was."""
    assert decode(OFFSET_KEY_BYTES, OFFSET_BYTES) == (OFFSET_KEY, OFFSET)
    assert decode(GROUP_KEY_BYTES, GROUP_BYTES) == (GROUP_KEY, GROUP)
    assert decode(GROUP_KEY_BYTES, EMPTY_BYTES) == (GROUP_KEY, EMPTY)


def test_a_record_without_a_value_is_a_tombstone() -> None:
    """Of a tombstone the key is read, and that nothing is left."""
    assert decode(OFFSET_KEY_BYTES, None) == (OFFSET_KEY, None)
    assert decode(GROUP_KEY_BYTES, None) == (GROUP_KEY, None)


@pytest.mark.parametrize("version", OLD_OFFSETS)
def test_offsets_of_older_brokers_are_read(version: int) -> None:
    """Versions 0 to 2 of an offset give what they have; key version 0 is as version 1."""
    text, expected = OLD_OFFSETS[version]
    old_key = b"\0\0" + OFFSET_KEY_BYTES[2:]
    assert decode(old_key, bytes.fromhex(text)) == (OFFSET_KEY, expected)


@pytest.mark.parametrize("version", OLD_GROUPS)
def test_groups_of_older_brokers_are_read(version: int) -> None:
    """Versions 0 to 2 of a group give what they have, and the rest its default."""
    text, expected = OLD_GROUPS[version]
    assert decode(GROUP_KEY_BYTES, bytes.fromhex(text)) == (GROUP_KEY, expected)


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        (None, OFFSET_BYTES, "without a key"),
        (b"", OFFSET_BYTES, "end at 0"),
        (b"\0\x09" + GROUP_KEY_BYTES[2:], b"", "a key of version 9"),
        (b"\xff\xff" + GROUP_KEY_BYTES[2:], b"", "a key of version -1"),
        (OFFSET_KEY_BYTES, b"\0\4" + OFFSET_BYTES[2:], "a value of version 4"),
        (GROUP_KEY_BYTES, b"\0\4" + GROUP_BYTES[2:], "a value of version 4"),
        (GROUP_KEY_BYTES, b"\xff\xff" + GROUP_BYTES[2:], "a value of version -1"),
        (GROUP_KEY_BYTES + b"\0", GROUP_BYTES, "1 bytes after"),
        (GROUP_KEY_BYTES, GROUP_BYTES + b"\0\0", "2 bytes after"),
        (b"\0\2\xff\xff", GROUP_BYTES, "a field of -1 bytes"),
        (b"\0\2\0\1\xff", GROUP_BYTES, "invalid start byte"),
        (GROUP_KEY_BYTES, EMPTY_BYTES[:-4] + b"\x7f\xff\xff\xff", "inside a field"),
        (GROUP_KEY_BYTES, EMPTY_BYTES[:-4] + b"\xff\xff\xff\xff", "a list of -1"),
    ],
)
def test_what_cannot_be_read_says_why(key: bytes | None, value: bytes, reason: str) -> None:
    """A newer version and bytes that break off, go on or lie are `Unreadable`, never an error."""
    result = decode(key, value)
    assert isinstance(result, Unreadable)
    assert reason in result.reason


def test_every_beginning_of_a_record_is_unreadable() -> None:
    """Wherever a value breaks off, it is not taken for a shorter one."""
    for key, value in ((OFFSET_KEY_BYTES, OFFSET_BYTES), (GROUP_KEY_BYTES, GROUP_BYTES)):
        for size in range(len(value)):
            assert isinstance(decode(key, value[:size]), Unreadable), size
        for size in range(len(key)):
            assert isinstance(decode(key[:size], value), Unreadable), size


@given(st.binary(max_size=64), st.none() | st.binary(max_size=128))
def test_garbage_never_raises(key: bytes, value: bytes | None) -> None:
    """Whatever lies in the log, reading it gives a record or a reason."""
    for head in (b"", b"\0\1", b"\0\2"):
        assert isinstance(decode(head + key, value), tuple)
    for known in (OFFSET_KEY_BYTES, GROUP_KEY_BYTES):
        for version in range(4):
            body = None if value is None else bytes([0, version]) + value
            assert isinstance(decode(known, body), tuple)


NAMES = st.text(max_size=12)
INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
MEMBERS = st.builds(
    StoredMember, NAMES, st.none() | NAMES, NAMES, NAMES, INT32, INT32, st.binary(), st.binary()
)


@given(
    st.builds(OffsetKey, NAMES, NAMES, INT32),
    st.builds(CommittedOffset, INT64, INT32, NAMES, INT64),
)
def test_any_offset_comes_back(key: OffsetKey, value: CommittedOffset) -> None:
    """An offset is read as it was written, whatever its fields hold."""
    assert decode(encode_key(key), encode_value(value)) == (key, value)


@given(
    st.builds(
        GroupMetadata,
        NAMES,
        INT32,
        st.none() | NAMES,
        st.none() | NAMES,
        INT64,
        st.lists(MEMBERS, max_size=3).map(tuple),
    )
)
def test_any_group_comes_back(value: GroupMetadata) -> None:
    """A group is read as it was written, whatever its fields hold."""
    assert decode(GROUP_KEY_BYTES, encode_value(value)) == (GROUP_KEY, value)


def test_a_string_too_long_for_a_record_is_told_before() -> None:
    """The longest string that fits is 32767 bytes, not characters; a longer one is refused."""
    longest = "é" * (STRING_BYTES_MAX // 2) + "x"
    assert is_storable(longest)
    assert decode(encode_key(GroupKey(longest)), None) == (GroupKey(longest), None)
    assert not is_storable(longest + "x")
    with pytest.raises(ValueError, match="32768 bytes"):
        encode_key(GroupKey(longest + "x"))
