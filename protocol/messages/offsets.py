"""LIST_OFFSETS and OFFSETS_FOR_LEADER_EPOCH: look up offsets by time and by leader epoch."""

from dataclasses import dataclass

from minibroker.protocol.constants import NO_EPOCH, NO_NODE, NO_OFFSET, NO_TIMESTAMP
from minibroker.protocol.messages import Request


@dataclass(frozen=True, slots=True)
class PartitionListOffsets:
    """`timestamp`: -1 the latest, -2 the earliest, -3 the first record with the largest timestamp,
    -4 as -2, -5 none (what Kafka answers without tiered storage), else the first record at or after
    that time.

    `topic_id` is the id that the topic must have (empty: not checked).
    """

    topic: str
    partition: int
    timestamp: int = NO_TIMESTAMP
    leader_epoch: int = NO_EPOCH
    topic_id: bytes = b""


@dataclass(frozen=True, slots=True)
class ListOffsetsRequest(Request["ListOffsetsResponse"]):
    """`replica_id` is -1 for a consumer, whose latest offset is the high watermark, or, with
    `isolation_level` 1 (READ_COMMITTED), the last stable offset."""

    replica_id: int = NO_NODE
    partitions: tuple[PartitionListOffsets, ...] = ()
    isolation_level: int = 0


@dataclass(frozen=True, slots=True)
class PartitionOffset:
    """`offset` is -1 if no record is as late as the requested time."""

    topic: str
    partition: int
    error: int = 0
    timestamp: int = NO_TIMESTAMP
    offset: int = NO_OFFSET
    leader_epoch: int = NO_EPOCH


@dataclass(frozen=True, slots=True)
class ListOffsetsResponse:
    """An answer for each partition of the request, in its order."""

    partitions: tuple[PartitionOffset, ...] = ()


@dataclass(frozen=True, slots=True)
class PartitionEpoch:
    """Requests the end of `epoch`. `leader_epoch` is the leader epoch that the sender knows (-1:
    not checked)."""

    topic: str
    partition: int
    epoch: int = NO_EPOCH
    leader_epoch: int = NO_EPOCH


@dataclass(frozen=True, slots=True)
class OffsetsForLeaderEpochRequest(Request["OffsetsForLeaderEpochResponse"]):
    """`replica_id` is -1 for a consumer."""

    replica_id: int = NO_NODE
    partitions: tuple[PartitionEpoch, ...] = ()


@dataclass(frozen=True, slots=True)
class PartitionEpochEnd:
    """The largest epoch not above the requested one, and its end offset; (-1, -1) if undefined."""

    topic: str
    partition: int
    error: int = 0
    epoch: int = NO_EPOCH
    end_offset: int = NO_OFFSET


@dataclass(frozen=True, slots=True)
class OffsetsForLeaderEpochResponse:
    """An answer for each partition of the request, in its order."""

    partitions: tuple[PartitionEpochEnd, ...] = ()
