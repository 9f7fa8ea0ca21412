"""Which logs are compared with each other, and between which offsets."""

from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

from pyspark.sql import DataFrame

from minibroker.audit.arrow import compute as pc
from minibroker.audit.checks.facts import REPLICA, runs
from minibroker.audit.checks.local_frames import local_rows
from minibroker.audit.checks.log import seams
from minibroker.audit.checks.memoize import memoize_per_run
from minibroker.audit.files.directories import LIVE, Replica
from minibroker.audit.model import Tables
from minibroker.protocol.types import TopicPartition


class Bounds(NamedTuple):
    """The offsets between which a log is compared; it was visibly compacted below `cleaned_end`."""

    broker: int
    is_reference: bool
    is_promised: bool
    start: int
    end: int
    cleaned_end: int = 0


Logs: TypeAlias = dict[TopicPartition, list[Bounds]]


@memoize_per_run
def compared_logs(tables: Tables) -> Logs:
    """Return the logs of each partition, without the partitions whose logs are all known to hold
    the same batches."""
    logs = _bounds(tables.replicas)
    for name in [*_same_throughout(tables.batches, logs)]:
        del logs[name]
    return logs


def compacted_logs(tables: Tables) -> Logs:
    """Return the logs of partitions of which compaction has visibly changed a log."""
    return {
        name: bounds
        for name, bounds in compared_logs(tables).items()
        if any(each.cleaned_end for each in bounds)
    }


def _bounds(replicas: DataFrame) -> Logs:
    logs: Logs = {}
    for row in replicas.collect():
        starts = [row.log_start, row.first_offset]
        known = [start for start in starts if start is not None] or [0]
        is_promised = row.in_isr is not False
        ends = [row.judged_end, row.log_end, *([] if is_promised else [row.kept_end])]
        logs.setdefault(TopicPartition(row.topic, row.partition), []).append(
            Bounds(
                row.broker,
                bool(row.is_reference),
                is_promised,
                max(known) if row.state == LIVE else known[0],
                min(ends),
                row.cleaned_end or 0,
            )
        )
    return logs


def _same_throughout(batches: DataFrame, logs: Logs) -> Iterator[TopicPartition]:
    """Yield the partitions whose logs are all known to hold the same batches in the same order.

    The batches of a log ascend, unless one begins before the end of the one before it: a seam.
    """
    known, apart = local_rows(runs(batches)), local_rows(seams(batches))
    if known is None or apart is None:
        return
    held: dict[Replica, tuple[int, int, int]] = {}
    for row in known.filter(pc.invert(known["torn"])).to_pylist():
        replica = Replica(*(row[name] for name in REPLICA))
        digest, count, size = held.get(replica, (0, 0, 0))
        held[replica] = (digest ^ row["digest"], count + row["batches"], size + row["bytes"])
    unordered = {
        TopicPartition(row["topic"], row["partition"])
        for row in apart.to_pylist()
        if not row["torn"]
        and row["previous"] is not None
        and row["base_offset"] <= row["previous"]["last_offset"]
    }
    for name, bounds in logs.items():
        same = {held.get(Replica(each.broker, *name), (0, 0, 0)) for each in bounds}
        if name not in unordered and len(same) == 1:
            yield name
