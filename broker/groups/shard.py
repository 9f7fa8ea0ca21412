"""One partition of the offsets topic on this broker, and the registry of its live groups while this
broker serves it."""

from collections.abc import Sequence
from typing import Final, TypeAlias

from minibroker.broker.coordination.shard import Append, CoordinatorShard, RecordFormat
from minibroker.broker.groups.offsets import OffsetTable
from minibroker.broker.groups.records import Key, Value, decode, encode_key, encode_value
from minibroker.broker.groups.registry import GroupRegistry
from minibroker.broker.replication.partition import Partition

RECORDS: Final[RecordFormat[Key, Value]] = RecordFormat("groups", decode, encode_key, encode_value)

Records: TypeAlias = Sequence[tuple[Key, Value | None]]


class Shard(CoordinatorShard[Key, Value, OffsetTable, GroupRegistry]):
    """See the head of this module."""

    def __init__(self, partition: Partition, append: Append) -> None:
        """`append` is `Replicas.append`."""
        super().__init__(partition, append, RECORDS, OffsetTable)
