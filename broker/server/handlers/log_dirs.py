"""DESCRIBE_LOG_DIRS and ALTER_REPLICA_LOG_DIRS, answered by any broker at any time about its own
logs."""

from typing import Final

from minibroker.broker.errors import Refused
from minibroker.broker.server.bounds import by_name
from minibroker.broker.server.services import Services
from minibroker.broker.turns import AT_ONCE, Turn, Turns, at_once
from minibroker.protocol.constants import ErrorCode
from minibroker.protocol.messages.log_dirs import (
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    LogSize,
    OtherLogDirectory,
    ReplicaLogDirAltered,
    WantedLogDirectory,
)
from minibroker.protocol.types import TopicPartition

MOVE_WORK: Final = 10  # a future log's directory and files, as a number of plain items


def describe(
    services: Services, request: DescribeLogDirsRequest, now: float
) -> Turns[DescribeLogDirsResponse]:
    """Return the sizes of the logs, each once, and what retention deletes next, by directory, and
    those of future logs. Read the space of the disks at the end."""
    partitions, now_ms = services.replicas.partitions, services.wall_ms()
    wanted = request.partitions
    names = [*partitions] if wanted is None else [*dict.fromkeys(wanted)]
    first = str(services.config.data_dir)
    states = services.log_directories()[1:]
    logs: dict[str, list[LogSize]] = {path: [] for path in (first, *(one.path for one in states))}
    for some in at_once(names):
        for name in some:
            if (partition := partitions.get(name)) is not None:
                log = partition.log
                lag = max(0, partition.high_watermark - log.log_end)
                size = LogSize(*name, log.size, lag, *log.oldest_segment(now_ms))
                logs.get(str(log.directory.parent), logs[first]).append(size)
        if len(some) == AT_ONCE:
            yield
    for future in services.log_moves.futures():
        name = future.topic_partition
        if (wanted is None or name in wanted) and name in partitions:
            lag = max(0, partitions[name].log.log_end - future.log_end)
            logs[future.path].append(LogSize(*name, future.size, lag, is_future=True))
    (free, total), *spaces = services.machine().disks
    spaces += [(-1, -1)] * (len(states) - len(spaces))
    others = tuple(
        OtherLogDirectory(
            one.path,
            ErrorCode.KAFKA_STORAGE_ERROR if one.failure else ErrorCode.NONE,
            one.failure,
            () if one.failure else tuple(logs[one.path]),
            total_bytes,
            free_bytes,
        )
        for one, (free_bytes, total_bytes) in zip(states, spaces, strict=False)
    )
    return DescribeLogDirsResponse(first, tuple(logs[first]), total, free, others)


def alter(
    services: Services, request: AlterReplicaLogDirsRequest, now: float
) -> Turns[AlterReplicaLogDirsResponse]:
    """Begin the moves of logs to other directories, or end them."""
    turn = Turn()
    wanted = yield from by_name(
        request.partitions, lambda one: TopicPartition(one.topic, one.partition), turn
    )
    answers = []
    for name, one in wanted.items():
        answers.append(_alter(services, name, one))
        if turn.is_over(MOVE_WORK):
            yield
    return AlterReplicaLogDirsResponse(tuple(answers))


def _alter(
    services: Services, name: TopicPartition, wanted: WantedLogDirectory
) -> ReplicaLogDirAltered:
    try:
        if services.replicas.get(name) is None and services.image.partition(name) is None:
            raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no {name}")
        services.log_moves.want(name, wanted.directory, services.wall_ms())
    except Refused as refused:
        return ReplicaLogDirAltered(*name, refused.code, refused.message)
    return ReplicaLogDirAltered(*name)
