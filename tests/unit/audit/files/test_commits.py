"""Records of the offsets topic, read by the audit's own code."""

import random

import pytest

from minibroker.audit.files.commits import (
    Commit,
    ConsumerRecord,
    Generation,
    Member,
    UnreadableRecord,
    home_of,
    read_record,
)
from minibroker.broker.coordination.shard import partition_of
from minibroker.broker.groups.records import (
    CommittedOffset,
    GroupKey,
    GroupMetadata,
    OffsetKey,
    StoredMember,
    encode_key,
    encode_value,
)
from minibroker.protocol.types import TopicPartition

KEY = bytes.fromhex(
    "0001"  # an offset's key, version 1
    "0003" "677270"  # group "grp"
    "0001" "74"  # topic "t"
    "00000007"  # partition
)  # fmt: skip
VALUE = bytes.fromhex(
    "0003"  # version 3
    "0000000000000102"  # offset 258
    "00000005"  # leader epoch
    "0000"  # no metadata
    "0000018bcfe56800"  # when
)
WHEN_MS = 0x018BCFE56800
OLD_VALUE = bytes.fromhex("0001000000000000010300000000018bcfe568000000018bcfe56801")
ASSIGNMENT = bytes.fromhex("000000000001000174000000020000000700000008ffffffff")


def test_what_a_record_says() -> None:
    """A commit of any version has its offset, time and leader epoch; one without a value deletes,
    as does a generation without one."""
    assert read_record(KEY, VALUE) == Commit("grp", "t", 7, 258, 5, WHEN_MS)
    assert read_record(KEY, OLD_VALUE) == Commit("grp", "t", 7, 259, -1, WHEN_MS)
    assert read_record(KEY, None) == Commit("grp", "t", 7, None)
    assert read_record(bytes.fromhex("00020003677270"), None) == Generation("grp", None)


@pytest.mark.parametrize("kind", [3, 4, 5, 6, 7, 8, 16])
def test_a_record_of_the_newer_protocol_has_its_group(kind: int) -> None:
    """The audit has no check for these, but their keys must be whole."""
    name = "" if kind in (3, 4, 6) else "00016d"
    key = bytes.fromhex(f"{kind:04x}0003677270{name}")
    assert read_record(key, b"anything") == read_record(key, None) == ConsumerRecord("grp")
    with pytest.raises(UnreadableRecord):
        read_record(key[:-1], None)
    with pytest.raises(UnreadableRecord):
        read_record(key + b"x", None)


@pytest.mark.parametrize(
    ("assignment", "owned"),
    [
        (ASSIGNMENT, {TopicPartition("t", 7), TopicPartition("t", 8)}),
        (b"", set()),
        (b"\xff" * 9, set()),
        (ASSIGNMENT[:9], set()),
    ],
)
def test_what_a_generation_says(assignment: bytes, owned: set[TopicPartition]) -> None:
    """Its number and its members with their partitions; assignments are the clients' own bytes."""
    member = StoredMember("m-1", None, "client", "/host", 1, 2, b"subscription", assignment)
    stored = GroupMetadata("consumer", 7, "range", "m-1", WHEN_MS, (member,))
    said = read_record(encode_key(GroupKey("g")), encode_value(stored))
    assert said == Generation("g", 7, (Member("m-1", "client", frozenset(owned)),))


@pytest.mark.parametrize(
    ("key", "value", "named"),
    [
        (None, VALUE, (None, None, None)),
        (b"", VALUE, (None, None, None)),
        (b"\0\x09" + KEY[2:], VALUE, (None, None, None)),
        (KEY + b"\0", VALUE, (None, None, None)),
        (b"\0\1\xff\xff" + KEY[4:], VALUE, (None, None, None)),
        (b"\0\1\0\3\xff\xff\xff" + KEY[7:], VALUE, (None, None, None)),
        *((KEY[:size], VALUE, (None, None, None)) for size in range(2, len(KEY))),
        (KEY, b"", ("grp", "t", 7)),
        (KEY, b"\0\7" + VALUE[2:], ("grp", "t", 7)),
        (KEY, VALUE + b"\0", ("grp", "t", 7)),
        *((KEY, VALUE[:size], ("grp", "t", 7)) for size in range(len(VALUE))),
        (b"\0\2\0\1g", b"\0\x09", ("g", None, None)),
        (b"\0\2\0\1g", b"\0\3\0\0\0\0\0\1\xff\xff\xff\xff" + b"\xff" * 12, ("g", None, None)),
    ],
)
def test_bytes_that_are_no_record(
    key: bytes | None, value: bytes, named: tuple[str | None, str | None, int | None]
) -> None:
    """Whatever else stands there is refused, with what the key names, and never breaks the
    reader."""
    with pytest.raises(UnreadableRecord) as raised:
        read_record(key, value)
    assert (raised.value.group, raised.value.topic, raised.value.partition) == named


def test_random_damage_is_read_or_refused() -> None:
    """Flipped bytes of both kinds of records never break the reader."""
    rng = random.Random(39)
    member = StoredMember("m-1", "static", "client", "/host", 1, 2, b"subscription", ASSIGNMENT)
    records = [
        (encode_key(OffsetKey("grp", "t", 7)), encode_value(CommittedOffset(5, 1, "said", 9))),
        (
            encode_key(GroupKey("grp")),
            encode_value(GroupMetadata("consumer", 7, members=(member,))),
        ),
    ]
    for number in range(2000):
        key, value = map(bytearray, records[number % 2])
        for _ in range(rng.randint(1, 3)):
            part = rng.choice([key, value])
            part[rng.randrange(len(part))] = rng.randrange(256)
        try:
            read_record(bytes(key), bytes(value)[: rng.randint(0, 2 * len(value))])
        except UnreadableRecord:
            continue


@pytest.mark.parametrize("group", ["", "g", "readers", "grüße", "𝄞" * 300, "x" * 999])
def test_the_home_of_a_group(group: str) -> None:
    """It is the partition where brokers look for the group."""
    for homes in (1, 3, 50):
        assert home_of(group, homes) == partition_of(group, homes)
