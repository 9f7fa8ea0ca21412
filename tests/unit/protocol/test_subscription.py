"""The bytes that members of a group send each other: Kafka's, in every version."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker.protocol.errors import ProtocolError
from minibroker.protocol.subscription import (
    Assignment,
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from minibroker.protocol.types import TopicPartition

OWNED = (TopicPartition("ab", 0), TopicPartition("ab", 258), TopicPartition("c", 1))
FULL = Subscription(("ab", "c"), OWNED, generation=7, user_data=b"\x09", rack="r")

# Written down by hand from Kafka's message schemas.
TOPICS_HEX = "00000002 0002 6162 0001 63"
OWNED_HEX = "00000002 0002 6162 00000002 00000000 00000102 0001 63 00000001 00000001"
USER_DATA_HEX = "00000001 09"
SUBSCRIPTIONS = {
    0: f"0000 {TOPICS_HEX} {USER_DATA_HEX}",
    1: f"0001 {TOPICS_HEX} {USER_DATA_HEX} {OWNED_HEX}",
    2: f"0002 {TOPICS_HEX} {USER_DATA_HEX} {OWNED_HEX} 00000007",
    3: f"0003 {TOPICS_HEX} {USER_DATA_HEX} {OWNED_HEX} 00000007 0001 72",
}
ASSIGNMENT_HEX = f"{OWNED_HEX} {USER_DATA_HEX}"

names = st.text(max_size=5)
partitions = st.builds(TopicPartition, names, st.integers(0, 2**31 - 1))


def test_a_subscription_is_written_in_version_3() -> None:
    """Byte by byte what Kafka's schema says, whatever order it was given in."""
    written = bytes.fromhex(SUBSCRIPTIONS[3])
    assert encode_subscription(FULL) == written
    turned = FULL._replace(topics=("c", "ab"), owned=OWNED[::-1])
    assert encode_subscription(turned) == written


@pytest.mark.parametrize(
    ("version", "known"),
    [
        (0, Subscription(("ab", "c"), user_data=b"\x09")),
        (1, Subscription(("ab", "c"), OWNED, user_data=b"\x09")),
        (2, FULL._replace(rack=None)),
        (3, FULL),
    ],
)
def test_every_version_of_a_subscription_is_read(version: int, known: Subscription) -> None:
    """What an older version does not have takes its default."""
    assert decode_subscription(bytes.fromhex(SUBSCRIPTIONS[version])) == known


@pytest.mark.parametrize("version", range(4))
def test_every_version_of_an_assignment_is_the_same(version: int) -> None:
    """Only the number differs; version 3 is written."""
    data = bytes.fromhex(f"000{version} {ASSIGNMENT_HEX}")
    assert decode_assignment(data) == Assignment(OWNED, b"\x09")
    assert encode_assignment(Assignment(OWNED, b"\x09")) == bytes.fromhex(f"0003 {ASSIGNMENT_HEX}")


def test_what_is_null_stays_null() -> None:
    """Null is length -1, and is not the same as empty."""
    written = bytes.fromhex("0003 00000000 ffffffff 00000000 ffffffff ffff")
    assert encode_subscription(Subscription(())) == written
    assert decode_subscription(written) == Subscription(())
    assert encode_assignment(Assignment()) == bytes.fromhex("0003 00000000 ffffffff")
    empty = Subscription((), user_data=b"", rack="")
    assert decode_subscription(encode_subscription(empty)) == empty


def test_a_newer_version_is_read_as_far_as_it_is_known() -> None:
    """Fields are only ever added at the end, so what follows is left alone."""
    newer = bytes.fromhex("0004" + SUBSCRIPTIONS[3][4:] + "abcd")
    assert decode_subscription(newer) == FULL
    assert decode_assignment(bytes.fromhex(f"0063 {ASSIGNMENT_HEX} 01")).partitions == OWNED


def test_no_bytes_are_no_partitions() -> None:
    """A coordinator sends none to a member that the leader left out; a subscription has some."""
    assert decode_assignment(b"") == Assignment()
    with pytest.raises(ProtocolError, match="ends too early"):
        decode_subscription(b"")


@pytest.mark.parametrize(
    ("hexadecimal", "why"),
    [
        ("ffff 00000000 ffffffff", "version -1"),
        ("0000 7fffffff 0001 61", "ends too early"),
        ("0000 ffffffff", "array of length -1"),
        ("0000 00000001 ffff ffffffff", "null for a name"),
        ("0000 00000001 fffe", "text of length -2"),
        ("0000 00000001 0001 ff ffffffff", "not UTF-8"),
        ("0000 00000000 fffffffe", "bytes of length -2"),
        ("0000 00000000 7fffffff 00", "ends too early"),
        ("0001 00000000 ffffffff 00000001 0001 61 00000001 ffffffff", "partition below 0"),
    ],
)
def test_a_broken_subscription_says_what_is_wrong(hexadecimal: str, why: str) -> None:
    """One member's bad bytes are an error that names them, for a leader that reads on."""
    with pytest.raises(ProtocolError, match=f"subscription.*{why}"):
        decode_subscription(bytes.fromhex(hexadecimal))


def test_a_name_that_does_not_fit_is_refused() -> None:
    """A length of 16 bits holds 32,767 bytes; a topic's name is never that long."""
    with pytest.raises(ProtocolError, match="40000 bytes"):
        encode_subscription(Subscription(("x" * 40_000,)))


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    """Nothing but `ProtocolError`, whatever another program sent."""
    for decode in (decode_subscription, decode_assignment):
        with contextlib.suppress(ProtocolError):
            decode(data)


@given(
    st.lists(names, unique=True).map(sorted),
    st.lists(partitions, unique=True).map(sorted),
    st.integers(-1, 2**31 - 1),
    st.none() | st.binary(max_size=5),
    st.none() | names,
)
def test_what_was_written_is_read(
    topics: list[str],
    owned: list[TopicPartition],
    generation: int,
    user_data: bytes | None,
    rack: str | None,
) -> None:
    """Nothing is lost on the way, and no cut of the bytes is taken for the whole."""
    subscription = Subscription(tuple(topics), tuple(owned), generation, user_data, rack)
    data = encode_subscription(subscription)
    assert decode_subscription(data) == subscription
    with pytest.raises(ProtocolError):
        decode_subscription(data[:-1])
    assignment = Assignment(tuple(owned), user_data)
    assert decode_assignment(encode_assignment(assignment)) == assignment
