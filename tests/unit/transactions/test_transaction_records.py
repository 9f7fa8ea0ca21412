"""Records of `__transaction_state`, against bytes put together by hand from Kafka's schemas."""

import struct

import pytest

from minibroker.broker.coordination.record_fields import Unreadable
from minibroker.broker.transactions.records import decode, encode_key, encode_value, is_storable
from minibroker.broker.transactions.states import State
from minibroker.broker.transactions.transaction import Transaction
from minibroker.protocol.types import TopicPartition

KEY = struct.pack(">hh3s", 0, 3, b"app")
EMPTY = Transaction(7, 0, 60_000, updated_ms=5)
EMPTY_BYTES = struct.pack(">hqhibBqqB", 1, 7, 0, 60_000, 0, 0, 5, -1, 1) + b"\x02\x02\x00\x01"
OPEN = Transaction(
    7,
    2,
    60_000,
    State.PREPARE_COMMIT,
    frozenset((TopicPartition("a", 1), TopicPartition("a", 0), TopicPartition("b", 3))),
    4,
    5,
    previous_producer_id=6,
    next_producer_id=8,
    last_producer_epoch=1,
    version=2,
)
OPEN_BYTES = b"".join(
    (
        struct.pack(">hqhib", 1, 7, 2, 60_000, 2),
        b"\x03",
        b"\x02a" + b"\x03" + struct.pack(">ii", 0, 1) + b"\0",
        b"\x02b" + b"\x02" + struct.pack(">i", 3) + b"\0",
        struct.pack(">qq", 5, 4),
        b"\x04",
        b"\x00\x08" + struct.pack(">q", 6),
        b"\x01\x08" + struct.pack(">q", 8),
        b"\x02\x02" + struct.pack(">h", 2),
        b"\xe8\x07\x02" + struct.pack(">h", 1),
    )
)
OLD_BYTES = b"".join(  # version 0
    (
        struct.pack(">hqhib", 0, 7, 2, 60_000, 1),
        struct.pack(">ih1sii", 1, 1, b"a", 1, 4),
        struct.pack(">qq", 5, 4),
    )
)


@pytest.mark.parametrize(("value", "data"), [(EMPTY, EMPTY_BYTES), (OPEN, OPEN_BYTES)])
def test_records_are_kafkas(value: Transaction, data: bytes) -> None:
    """The key is the id, the value its state."""
    assert encode_key("app") == KEY
    assert encode_value(value) == data
    assert decode(KEY, data) == ("app", value)
    assert decode(KEY, None) == ("app", None)


def test_values_of_version_0_are_read() -> None:
    """Kafka wrote them before version 2 of the feature."""
    partitions = frozenset((TopicPartition("a", 4),))
    read = Transaction(7, 2, 60_000, State.ONGOING, partitions, 4, 5)
    assert decode(KEY, OLD_BYTES) == ("app", read)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, EMPTY_BYTES),
        (b"\0\x01", EMPTY_BYTES),
        (KEY + b"\0", EMPTY_BYTES),
        (struct.pack(">hh1s", 0, 1, b"\xff"), EMPTY_BYTES),
        (KEY, b"\0\x02" + EMPTY_BYTES[2:]),  # a newer version
        (KEY, EMPTY_BYTES[:16] + b"\x09" + EMPTY_BYTES[17:]),  # an unknown state
        (KEY, OPEN_BYTES[:16] + b"\x00" + OPEN_BYTES[17:]),  # empty, with partitions
        (KEY, OPEN_BYTES[:17] + b"\xff\xff\xff\xff\x0f"),  # a list without end
        *[(KEY, OPEN_BYTES[:size]) for size in range(len(OPEN_BYTES))],
    ],
)
def test_what_cannot_be_read_is_said(key: bytes | None, value: bytes) -> None:
    """Nothing raises, whatever the bytes are."""
    assert isinstance(decode(key, value), Unreadable)


def test_an_unknown_tagged_field_is_skipped() -> None:
    """A newer Kafka writes more of them."""
    data = EMPTY_BYTES[:-4] + b"\x02" + b"\x02\x02\x00\x01" + b"\x03\x01x"
    data = EMPTY_BYTES[:-5] + b"\x02" + b"\x02\x02\x00\x01" + b"\x03\x01x"
    assert decode(KEY, data) == ("app", EMPTY)


def test_an_id_has_at_most_32767_bytes() -> None:
    """A key holds no more."""
    assert is_storable("x" * 32767)
    assert not is_storable("é" * 16384)
