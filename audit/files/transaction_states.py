"""Records of `__transaction_state`: what a coordinator has stored of each transactional id.

The bytes are Kafka's (its public message schemas TransactionLogKey and TransactionLogValue).
Brokers write them with code of their own; this reader shares none of it.
"""

import struct
from typing import Any, Final, NamedTuple

from minibroker.audit.files.fields import Fields
from minibroker.protocol.types import TopicPartition

NONE: Final = -1
EMPTY: Final = "Empty"
ONGOING: Final = "Ongoing"
PREPARE_COMMIT: Final = "PrepareCommit"
PREPARE_ABORT: Final = "PrepareAbort"
DECIDED: Final = (PREPARE_COMMIT, PREPARE_ABORT)
# By the number in a record.
STATES: Final = (
    EMPTY,
    ONGOING,
    *DECIDED,
    "CompleteCommit",
    "CompleteAbort",
    "Dead",
    "PrepareEpochFence",
)
SECOND_PROTOCOL: Final = 2  # in which each end raises the epoch
_TAGS: Final = {
    0: ("previous_producer_id", ">q"),
    1: ("next_producer_id", ">q"),
    2: ("version", ">h"),
}


class StateRecord(NamedTuple):
    """What one record says of a transactional id; `state` is None if it deletes the id.

    `producer_id` and `producer_epoch` are those of the markers if the transaction is decided.
    `version` is the protocol of the producer's last change.
    """

    transactional_id: str
    state: str | None
    producer_id: int = NONE
    producer_epoch: int = NONE
    timeout_ms: int = NONE
    partitions: tuple[TopicPartition, ...] = ()
    updated_ms: int = NONE
    started_ms: int = NONE
    previous_producer_id: int = NONE
    next_producer_id: int = NONE
    version: int = 0


def read_state(key: bytes | None, value: bytes | None) -> StateRecord:
    """Return what a record says. Raises ValueError."""
    if key is None:
        raise ValueError("a record without a key")
    fields = Fields(key)
    if (version := fields.number(">h")) != 0:
        raise ValueError(f"a key of version {version}")
    name = fields.text()
    fields.end("key")
    return StateRecord(name, None) if value is None else _state(name, value)


def _state(name: str, value: bytes) -> StateRecord:
    fields = Fields(value)
    version = fields.number(">h")
    if version not in (0, 1):
        raise ValueError(f"a value of version {version}")
    producer_id, epoch, timeout_ms = (fields.number(form) for form in (">q", ">h", ">i"))
    number = fields.number(">b")
    if not 0 <= number < len(STATES):
        raise ValueError(f"a state of the number {number}")
    partitions = _partitions(fields) if version else _old_partitions(fields)
    updated_ms, started_ms = fields.number(">q"), fields.number(">q")
    more: dict[str, Any] = {}
    for tag, data in (fields.tags() if version else {}).items():
        if tag in _TAGS:
            try:
                more[_TAGS[tag][0]] = struct.unpack(_TAGS[tag][1], data)[0]
            except struct.error:
                raise ValueError(f"a tagged field {tag} of {len(data)} bytes") from None
    fields.end("value")
    known = (producer_id, epoch, timeout_ms, tuple(partitions), updated_ms, started_ms)
    return StateRecord(name, STATES[number], *known, **more)


def _partitions(fields: Fields) -> list[TopicPartition]:
    found: list[TopicPartition] = []
    for _ in range(fields.compact_count()):
        topic = fields.compact_text()
        numbers = fields.numbers("i", fields.compact_count())
        found += (TopicPartition(topic, number) for number in numbers)
        fields.tags()
    return found


def _old_partitions(fields: Fields) -> list[TopicPartition]:
    found: list[TopicPartition] = []
    for _ in range(max(0, fields.number(">i"))):
        topic = fields.text()
        numbers = fields.numbers("i", fields.count())
        found += (TopicPartition(topic, number) for number in numbers)
    return found
