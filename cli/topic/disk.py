"""What `minibroker topic describe --disk` shows: the bytes of each replica's log, and what
retention deletes next.

There is a row for every replica in the metadata, including those on brokers that do not answer, and
for every other log that a broker holds.
"""

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

from minibroker.cli.terminal import in_columns

if TYPE_CHECKING:
    from minibroker.client.admin import LogDirsReport
    from minibroker.protocol.messages.log_dirs import LogSize
    from minibroker.protocol.messages.metadata import TopicMetadata


class DiskRow(NamedTuple):
    """One replica; its fields are the names in JSON and, as words, the heads of the columns.

    `oldest` is the time of the oldest batch. The oldest segment, of `next_bytes` bytes, is deleted
    when `deleted_after` is over, or when `bytes_left` more bytes are there. None: the log has no
    such limit or no such batch, or its broker does not answer, for which `reason` says why.
    `directory` is the log directory that the log is in.
    """

    topic: str
    partition: int
    broker: int
    bytes: int | None = None
    oldest: str | None = None
    next_bytes: int | None = None
    deleted_after: str | None = None
    bytes_left: int | None = None
    directory: str = ""
    reason: str = ""


def disk_rows(topics: "Iterable[TopicMetadata]", report: "LogDirsReport") -> Iterator[DiskRow]:
    """Yield the rows, by topic, partition and broker."""
    from minibroker.protocol.messages.log_dirs import logs_by_directory

    found: dict[tuple[str, int], dict[int, tuple[LogSize, str]]] = {}
    offline: dict[int, str] = {}
    for node_id, answer in report.answers.items():
        for directory, log in logs_by_directory(answer):
            if not log.is_future:
                key = log.topic, log.partition
                found.setdefault(key, {})[node_id] = log, directory
        failed = [other.directory for other in answer.others if other.error]
        if failed:
            offline[node_id] = f"; offline: {', '.join(failed)}"
    for topic in topics:
        for partition in topic.partitions:
            here = found.get((topic.name, partition.partition), {})
            for node_id in sorted({*partition.replicas, *here}):
                row = DiskRow(topic.name, partition.partition, node_id)
                if node_id in here:
                    yield _filled(row, *here[node_id])
                elif node_id in report.answers:
                    also = offline.get(node_id, "")
                    yield row._replace(reason=f"the broker does not have it{also}")
                else:
                    yield row._replace(reason=report.silent.get(node_id, "not alive"))


def _filled(row: DiskRow, log: "LogSize", directory: str) -> DiskRow:
    return row._replace(
        directory=directory,
        bytes=log.size,
        oldest=_moment(log.oldest_ms),
        next_bytes=log.segment_size or None,
        deleted_after=_moment(log.due_ms),
        bytes_left=log.bytes_left if log.bytes_left >= 0 else None,
    )


def _moment(time_ms: int) -> str | None:
    """Return a time in UTC, in milliseconds if the calendar lacks its year; None for no time."""
    if time_ms < 0:
        return None
    try:
        moment = datetime.fromtimestamp(time_ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return f"{time_ms} ms"
    return moment.isoformat(timespec="seconds")


def disk_table(rows: Sequence[DiskRow]) -> str:
    """Return a line of heads and a line per row, in columns; "" if there are no rows."""
    return in_columns([name.upper().replace("_", "-") for name in DiskRow._fields], rows)
