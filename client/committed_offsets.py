"""Offsets that are committed for a group: what an application names, and by which member.

Consumers commit them by themselves (client/groups/offset_commits.py), producers in a transaction
(client/producer/transactions.py).
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias

from minibroker.client.consumer.completed_fetch import ConsumerRecord
from minibroker.protocol.constants import INT64_MAX, NO_EPOCH
from minibroker.protocol.messages.groups import NO_GENERATION
from minibroker.protocol.types import TopicPartition


class OffsetAndMetadata(NamedTuple):
    """A committed offset: that of the next record to read.

    `metadata` is the application's own, at most `offset.metadata.max.bytes` of the broker;
    `leader_epoch` is that of the record before, -1 if it is not known.
    """

    offset: int
    metadata: str = ""
    leader_epoch: int = NO_EPOCH


Offsets: TypeAlias = Mapping[TopicPartition, OffsetAndMetadata]
# What to commit: a record, or for each partition the next offset to read, perhaps with a text.
OffsetsToCommit: TypeAlias = (
    ConsumerRecord | Mapping[TopicPartition, int] | Mapping[TopicPartition, OffsetAndMetadata]
)


class ConsumerGroupMetadata(NamedTuple):
    """A group, and the member of it in whose name offsets are committed.

    Without generation and member the coordinator does not check whether the group has given the
    partitions to others: that is for partitions that are assigned by hand.
    """

    group_id: str
    generation: int = NO_GENERATION
    member_id: str = ""
    instance_id: str | None = None


def read_offsets(
    wanted: OffsetsToCommit, committable: Callable[[TopicPartition, int], OffsetAndMetadata]
) -> Offsets:
    """Return the offsets that an application wants to commit. Raises `TypeError` and
    `ValueError`."""
    if isinstance(wanted, ConsumerRecord):
        name = TopicPartition(wanted.topic, wanted.partition)
        return {name: committable(name, wanted.offset + 1)}
    if not isinstance(wanted, Mapping):
        raise TypeError(
            "offsets to commit are those of a record, or a mapping of TopicPartition to the next"
            f" offset, not {type(wanted).__name__}"
        )
    chosen = {}
    for name, offset in wanted.items():
        if not isinstance(name, tuple) or len(name) != 2:
            raise TypeError(f"a partition is a TopicPartition, not {name!r}")
        if isinstance(offset, bool) or not isinstance(offset, int | OffsetAndMetadata):
            raise TypeError(f"an offset is an int or an OffsetAndMetadata, not {offset!r}")
        each = offset if isinstance(offset, OffsetAndMetadata) else OffsetAndMetadata(offset)
        if not 0 <= each.offset <= INT64_MAX:
            raise ValueError(f"an offset is 0 to {INT64_MAX}, not {each.offset}")
        chosen[TopicPartition(*name)] = each
    return chosen
