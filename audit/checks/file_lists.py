"""Findings that the lists of a log's files show, where its batches do not."""

from collections.abc import Iterable, Iterator, Sequence

from minibroker.audit.checks.extent import ReplicaRow
from minibroker.audit.files.directories import LIVE, Replica
from minibroker.audit.files.indexes import indexed_end
from minibroker.audit.files.inputs import Inputs
from minibroker.audit.model import Finding, Severity
from minibroker.protocol.types import TopicPartition


def emptied(inputs: Inputs, rows: Sequence[ReplicaRow]) -> Iterator[Finding]:
    """Yield the logs that lost all records, in partitions where no in-sync log has any.

    Only their index files still name records: no other log and no high watermark need show any.
    """
    logs = {log.replica: log for log in inputs.logs}
    has_records = {
        _name(row) for row in rows if row.first_offset is not None and row.in_isr is not False
    }
    for row in rows:
        log = logs.get(Replica(row.broker, row.topic, row.partition))
        if log is None or row.state == LIVE or row.first_offset is not None:
            continue
        if row.in_isr is False or _name(row) in has_records:
            continue
        if (end := indexed_end(log)) > max(row.log_end, row.log_start or 0):
            yield Finding(
                "missing-committed",
                Severity.ERROR,
                row.topic,
                row.partition,
                row.broker,
                offset=row.log_end,
                detail=f"it is empty, and its index files tell of records up to offset {end}",
            )


def skipping(inputs: Inputs, rows: Iterable[ReplicaRow]) -> Iterator[Finding]:
    """Yield the logs whose last segment is empty and begins beyond the end of the one before it: no
    batch shows that offsets are missing between them."""
    logs = {log.replica: log for log in inputs.logs}
    for row in rows:
        log = logs.get(Replica(row.broker, row.topic, row.partition))
        if log is None or row.state == LIVE or row.first_offset is None:
            continue
        last = log.segments[-1]
        if last.size == 0 and last.base_offset > row.log_end:
            yield Finding(
                "gap",
                Severity.WARNING if row.in_isr is False else Severity.ERROR,
                row.topic,
                row.partition,
                row.broker,
                offset=row.log_end,
                segment=last.base_offset,
                position=0,
                detail=f"offset {row.log_end} should follow, the next segment, which is empty,"
                f" begins at {last.base_offset}",
            )


def _name(row: ReplicaRow) -> TopicPartition:
    return TopicPartition(row.topic, row.partition)
