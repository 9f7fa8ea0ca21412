"""DESCRIBE_LOG_DIRS, answered by any broker at any time about its own logs."""

from minibroker.broker.server.services import Services
from minibroker.broker.turns import AT_ONCE, Turns, at_once
from minibroker.protocol.messages.log_dirs import (
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    LogSize,
)


def describe(
    services: Services, request: DescribeLogDirsRequest, now: float
) -> Turns[DescribeLogDirsResponse]:
    """Return the sizes of the logs, each once, and what retention deletes next. Read the space of
    the disk at the end."""
    partitions, now_ms = services.replicas.partitions, services.wall_ms()
    wanted = request.partitions
    names = [*partitions] if wanted is None else [*dict.fromkeys(wanted)]
    logs: list[LogSize] = []
    for some in at_once(names):
        for name in some:
            if (partition := partitions.get(name)) is not None:
                log = partition.log
                lag = max(0, partition.high_watermark - log.log_end)
                logs.append(LogSize(*name, log.size, lag, *log.oldest_segment(now_ms)))
        if len(some) == AT_ONCE:
            yield
    machine = services.machine()
    directory = str(services.config.data_dir)
    sizes = machine.disk_total_bytes, machine.disk_free_bytes
    return DescribeLogDirsResponse(directory, tuple(logs), *sizes)
