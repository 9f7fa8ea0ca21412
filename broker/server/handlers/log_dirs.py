"""DESCRIBE_LOG_DIRS, answered by any broker at any time about its own logs."""

from minibroker.broker.server.services import Services
from minibroker.broker.turns import AT_ONCE, Turns, at_once
from minibroker.protocol.constants import ErrorCode
from minibroker.protocol.messages.log_dirs import (
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    LogSize,
    OtherLogDirectory,
)


def describe(
    services: Services, request: DescribeLogDirsRequest, now: float
) -> Turns[DescribeLogDirsResponse]:
    """Return the sizes of the logs, each once, and what retention deletes next, by directory. Read
    the space of the disks at the end."""
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
