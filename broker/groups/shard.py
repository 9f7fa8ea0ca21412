"""One partition of the offsets topic on this broker, and the registry of its live groups while this
broker serves it."""

from collections.abc import Sequence
from typing import Final, TypeAlias

from minibroker.broker.coordination.replay import Chunk
from minibroker.broker.coordination.shard import Append, CoordinatorShard, RecordFormat
from minibroker.broker.groups.offsets import OffsetTable
from minibroker.broker.groups.records import (
    CommittedOffset,
    Key,
    OffsetKey,
    Value,
    decode,
    encode_key,
    encode_value,
)
from minibroker.broker.groups.registry import GroupRegistry
from minibroker.broker.replication.partition import Partition
from minibroker.protocol.constants import NO_PRODUCER_ID

RECORDS: Final[RecordFormat[Key, Value]] = RecordFormat("groups", decode, encode_key, encode_value)

Records: TypeAlias = Sequence[tuple[Key, Value | None]]


class Shard(CoordinatorShard[Key, Value, OffsetTable, GroupRegistry]):
    """See the head of this module."""

    def __init__(self, partition: Partition, append: Append) -> None:
        """`append` is `Replicas.append`."""
        super().__init__(partition, append, RECORDS, OffsetTable)

    def replay_record(self, chunk: Chunk, offset: int, key: Key, value: Value | None) -> None:
        """Apply one record: at once, or with the transaction that it belongs to."""
        if chunk.producer_id == NO_PRODUCER_ID:
            self.table.replay(offset, key, value)
        elif isinstance(key, OffsetKey):
            assert value is None or isinstance(value, CommittedOffset)
            self.table.replay_in_transaction(chunk.producer_id, offset, key, value)

    def replay_marker(self, chunk: Chunk) -> bool:
        """Commit or forget the offsets of the transaction that a marker ends."""
        is_commit = chunk.marker is not None and chunk.marker.is_commit
        return chunk.marker is None or self.table.end_transaction(
            chunk.producer_id, is_commit=is_commit
        )
