"""The choice of a record's partition.

A record with a key goes where Kafka's clients put it: murmur2 of the key. So this client and others
may write to one topic, and all records of a key are in one partition. The hash is plain Python and
takes about a microsecond for a short key; the route's cache of keys (routes.py) keeps it off the
hot path.

Records without a key are sticky: they all go to one partition until its batch is sealed, then to
the next. So they fill batches, instead of being spread over many. The next partition is the next in
number that has a leader, from a random start: over time this is as even as a random choice, and
several partitions have a full batch ready at the same time, which one request then carries.
"""

from collections.abc import Callable
from typing import Final

from minibroker.protocol.types import TopicPartition

_SEED: Final = 0x9747B28C
_M: Final = 0x5BD1E995
_MASK: Final = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """Return the unsigned 32-bit murmur2 hash, with the seed of Kafka's clients."""
    length = len(data)
    hashed = _SEED ^ length
    whole = length & ~3
    for at in range(0, whole, 4):
        word = int.from_bytes(data[at : at + 4], "little") * _M & _MASK
        hashed = (hashed * _M & _MASK) ^ ((word ^ word >> 24) * _M & _MASK)
    if whole < length:
        hashed = (hashed ^ int.from_bytes(data[whole:], "little")) * _M & _MASK
    hashed = (hashed ^ hashed >> 13) * _M & _MASK
    return hashed ^ hashed >> 15


def partition_for_key(key: bytes, partition_count: int) -> int:
    """Return the partition of a record with a key, as Kafka's default partitioner chooses it."""
    return (murmur2(key) & 0x7FFFFFFF) % partition_count


def next_partition(
    current: TopicPartition, partition_count: int, has_leader: Callable[[TopicPartition], bool]
) -> int:
    """Return the next partition after `current` that has a leader; the next one if none has."""
    topic, number = current
    for step in range(1, partition_count + 1):
        candidate = (number + step) % partition_count
        if has_leader(TopicPartition(topic, candidate)):
            return candidate
    return (number + 1) % partition_count
