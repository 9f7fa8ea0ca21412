"""DESCRIBE_LOG_DIRS: the log directories of a broker, and what its logs take there."""

from dataclasses import dataclass

from minibroker.protocol.messages import Request
from minibroker.protocol.types import TopicPartition


@dataclass(frozen=True, slots=True)
class DescribeLogDirsRequest(Request["DescribeLogDirsResponse"]):
    """The logs to describe, or all (nil)."""

    partitions: tuple[TopicPartition, ...] | None = None


@dataclass(frozen=True, slots=True)
class LogSize:
    """The bytes of a log's batches, and how many offsets below the high watermark it lacks.

    `oldest_ms` is the timestamp of the log's first batch in milliseconds; -1 without one. Retention
    deletes the oldest segment, of `segment_size` bytes, when `due_ms` (milliseconds) is over or
    `bytes_left` more bytes were appended; -1 for what the log has no limit of. Kafka's wire lacks
    these four.
    """

    topic: str
    partition: int
    size: int = 0
    lag: int = 0
    oldest_ms: int = -1
    segment_size: int = 0
    due_ms: int = -1
    bytes_left: int = -1


@dataclass(frozen=True, slots=True)
class OtherLogDirectory:
    """Another directory than the first. One that is offline has KAFKA_STORAGE_ERROR as its `error`,
    the `reason`, and no logs."""

    directory: str
    error: int = 0
    reason: str = ""
    logs: tuple[LogSize, ...] = ()
    total_bytes: int = -1
    free_bytes: int = -1


@dataclass(frozen=True, slots=True)
class DescribeLogDirsResponse:
    """The first log directory of a broker, and the others. Logs that are asked for and are not
    there are left out. The bytes of a disk are -1 where they are not known."""

    directory: str = ""
    logs: tuple[LogSize, ...] = ()
    total_bytes: int = -1
    free_bytes: int = -1
    others: tuple[OtherLogDirectory, ...] = ()
