"""DESCRIBE_LOG_DIRS: the log directories of a broker, and what its logs take there.
ALTER_REPLICA_LOG_DIRS moves logs between them."""

from collections.abc import Iterator
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

    `is_future`: this is the copy of a log that is to move here, and `lag` is how many offsets of
    the log it lacks.
    """

    topic: str
    partition: int
    size: int = 0
    lag: int = 0
    oldest_ms: int = -1
    segment_size: int = 0
    due_ms: int = -1
    bytes_left: int = -1
    is_future: bool = False


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


def logs_by_directory(response: DescribeLogDirsResponse) -> Iterator[tuple[str, LogSize]]:
    """Yield the path of its log directory and each log, and the copies that are to move there."""
    for log in response.logs:
        yield response.directory, log
    for other in response.others:
        for log in other.logs:
            yield other.directory, log


def present_logs(response: DescribeLogDirsResponse) -> Iterator[LogSize]:
    """Yield the logs in all directories, without copies."""
    return (log for _, log in logs_by_directory(response) if not log.is_future)


@dataclass(frozen=True, slots=True)
class WantedLogDirectory:
    """The log directory of its broker in which a partition's log is to be."""

    topic: str
    partition: int
    directory: str


@dataclass(frozen=True, slots=True)
class AlterReplicaLogDirsRequest(Request["AlterReplicaLogDirsResponse"]):
    """Where logs of the broker that is asked are to be. A later request for a log replaces an
    earlier one that is not done; one for the directory in which the log is ends its move."""

    partitions: tuple[WantedLogDirectory, ...] = ()


@dataclass(frozen=True, slots=True)
class ReplicaLogDirAltered:
    """Whether the move of a log has begun; DESCRIBE_LOG_DIRS says how far it is.

    Errors: LOG_DIR_NOT_FOUND for a path that is no log directory of the broker,
    KAFKA_STORAGE_ERROR while one of its directories is offline or has no room,
    INVALID_TOPIC_EXCEPTION for a name that is too long to be moved, REPLICA_NOT_AVAILABLE if the
    broker has no such log: it makes it in that directory if it is given the replica before it
    stops.
    """

    topic: str
    partition: int
    error: int = 0
    error_message: str | None = None


@dataclass(frozen=True, slots=True)
class AlterReplicaLogDirsResponse:
    """An answer for each partition that the request names."""

    partitions: tuple[ReplicaLogDirAltered, ...] = ()
