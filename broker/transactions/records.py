"""The records of `__transaction_state`, in Kafka's format.

The key is the transactional id (Kafka's `TransactionLogKey`, version 0), the value its state
(`TransactionLogValue`, version 1). A record without a value deletes the id. The layouts are those
of the public message schemas, so that Kafka's tools can read them. Values of version 0, which have
no tagged fields, are read, too.

The record has one field that Kafka's does not have: the epoch that a producer may still send again
(`Transaction.last_producer_epoch`). It is a tagged field with a number far from Kafka's, so Kafka's
tools skip it. With it a producer that asks again finds the same answer at the next coordinator.
"""

from collections.abc import Iterable, Iterator
from itertools import repeat
from struct import Struct, pack
from typing import Final, TypeAlias

from minibroker.broker.coordination.record_fields import (
    INT16,
    INT64,
    NO_TAGS,
    STRING_BYTES_MAX,
    Cursor,
    Garbage,
    NewerVersion,
    Unreadable,
    compact_string,
    string,
    uvarint,
)
from minibroker.broker.transactions.states import STATUS, State
from minibroker.broker.transactions.transaction import Transaction
from minibroker.broker.turns import AT_ONCE
from minibroker.protocol.constants import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from minibroker.protocol.messages.transactions import FIRST_PROTOCOL
from minibroker.protocol.types import TopicPartition

CHARS_OF_AN_ITEM: Final = 64  # of an id, that take as long as an item
KEY_VERSION: Final = 0
VALUE_VERSION: Final = 1
# Tagged fields, with their layouts.
PREVIOUS_PRODUCER_ID: Final = 0
NEXT_PRODUCER_ID: Final = 1
VERSION: Final = 2
LAST_PRODUCER_EPOCH: Final = 1_000
TAGS: Final = {
    PREVIOUS_PRODUCER_ID: ("previous_producer_id", INT64, NO_PRODUCER_ID),
    NEXT_PRODUCER_ID: ("next_producer_id", INT64, NO_PRODUCER_ID),
    VERSION: ("version", INT16, 0),
    LAST_PRODUCER_EPOCH: ("last_producer_epoch", INT16, NO_PRODUCER_EPOCH),
}

_HEAD: Final = Struct(">hqhib")  # up to the state
_STATES: Final = {number: state for state, number in STATUS.items()}

Decoded: TypeAlias = tuple[str, Transaction | None] | Unreadable


def is_storable(transactional_id: str) -> bool:
    """Whether an id is short enough for a record. Check a client's id before encoding it."""
    return len(transactional_id.encode()) <= STRING_BYTES_MAX


def encode_key(transactional_id: str) -> bytes:
    """Return the bytes of a key. Raises `ValueError` if the id is not storable."""
    return INT16.pack(KEY_VERSION) + string(transactional_id)


def encode_value(value: Transaction) -> bytes:
    """Return the bytes of a value."""
    return b"".join(
        (
            _HEAD.pack(
                VALUE_VERSION,
                value.producer_id,
                value.producer_epoch,
                value.timeout_ms,
                STATUS[value.state],
            ),
            *_topics(value),
            INT64.pack(value.updated_ms),
            INT64.pack(value.started_ms),
            _tags(value),
        )
    )


def _topics(value: Transaction) -> Iterable[bytes]:
    if value.state is State.EMPTY:
        yield uvarint(0)  # null
        return
    topics: dict[str, list[int]] = {}
    for topic, number in value.partitions:
        topics.setdefault(topic, []).append(number)
    yield uvarint(len(topics) + 1)
    for topic, numbers in sorted(topics.items()):
        yield compact_string(topic) + uvarint(len(numbers) + 1)
        yield pack(f">{len(numbers)}i", *sorted(numbers)) + NO_TAGS


def _tags(value: Transaction) -> bytes:
    tags = [
        (number, layout.pack(getattr(value, name)))
        for number, (name, layout, default) in TAGS.items()
        if getattr(value, name) != default
    ]
    fields = (uvarint(number) + uvarint(len(data)) + data for number, data in tags)
    return uvarint(len(tags)) + b"".join(fields)


def in_batches(
    records: Iterable[tuple[str, Transaction | None]],
) -> Iterator[list[tuple[str, Transaction | None]]]:
    """Yield records in lists, each for one batch: ids and partitions that are encoded in a few
    milliseconds, and no more than a partition takes. A record that has more is alone."""
    some: list[tuple[str, Transaction | None]] = []
    work = 0
    for record in records:
        more = work_of(*record)
        if some and work + more > AT_ONCE:
            yield some
            some, work = [], 0
        some.append(record)
        work += more
    if some:
        yield some


def work_of(key: str, value: Transaction | None) -> int:
    """Return how many plain items of a turn take as long as to encode a record."""
    partitions = 0 if value is None else len(value.partitions)
    return 1 + len(key) // CHARS_OF_AN_ITEM + partitions


def decode(key: bytes | None, value: bytes | None) -> Decoded:
    """Decode a record; a value of None is a tombstone. Never raises."""
    if key is None:
        return Unreadable("a record without a key")
    try:
        return _decode(key, value)
    except (Garbage, UnicodeDecodeError) as error:
        return Unreadable(str(error), isinstance(error, NewerVersion))


def _decode(key: bytes, value: bytes | None) -> tuple[str, Transaction | None]:
    cursor = Cursor(key)
    version = cursor.int16()
    if version != KEY_VERSION:
        raise Garbage(f"a key of version {version}")
    transactional_id = cursor.string()
    cursor.end()
    return transactional_id, None if value is None else _transaction(value)


def _transaction(data: bytes) -> Transaction:
    cursor = Cursor(data)
    version = cursor.int16()
    if version > VALUE_VERSION:
        raise NewerVersion(version, VALUE_VERSION)
    if version < 0:
        raise Garbage(f"a value of version {version}")
    producer_id, epoch, timeout_ms = cursor.int64(), cursor.int16(), cursor.int32()
    number = cursor.int8()
    partitions = _old_partitions(cursor) if version == 0 else _partitions(cursor)
    updated_ms, started_ms = cursor.int64(), cursor.int64()
    tags: dict[str, int] = {"version": FIRST_PROTOCOL}
    for tag, content in (cursor.tags() if version else {}).items():
        if tag in TAGS:
            name, layout, _ = TAGS[tag]
            if len(content) != layout.size:
                raise Garbage(f"a tagged field {tag} of {len(content)} bytes")
            tags[name] = layout.unpack(content)[0]
    cursor.end()
    if number not in _STATES:
        raise Garbage(f"a state of the number {number}")
    transaction = Transaction(
        producer_id,
        epoch,
        timeout_ms,
        _STATES[number],
        partitions,
        started_ms,
        updated_ms,
        **tags,
    )
    if not transaction.is_sound:
        raise Garbage(f"a transaction of state {_STATES[number]} that cannot be")
    return transaction


def _partitions(cursor: Cursor) -> frozenset[TopicPartition]:
    found: list[TopicPartition] = []
    for _ in range(cursor.uvarint() - 1):  # null in an empty transaction
        topic = cursor.compact_string()
        found += map(TopicPartition, repeat(topic), cursor.int32s(cursor.compact_count()))
        cursor.tags()
    return frozenset(found)


def _old_partitions(cursor: Cursor) -> frozenset[TopicPartition]:
    found: list[TopicPartition] = []
    for _ in range(cursor.int32()):  # as above
        topic = cursor.string()
        found += [TopicPartition(topic, cursor.int32()) for _ in range(cursor.count())]
    return frozenset(found)
