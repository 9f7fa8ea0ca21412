"""The contents of each partition's picture, assembled from all parts of an audit."""

from collections.abc import Iterator, Mapping, Sequence

from minibroker.audit.checks.extent import ReplicaRow
from minibroker.audit.checks.log_ends import LogFacts
from minibroker.audit.files.directories import Replica
from minibroker.audit.files.inputs import Inputs
from minibroker.audit.summary import Committed, EpochSpan, Lane, PartitionPicture
from minibroker.protocol.types import TopicPartition


def pictures(
    inputs: Inputs,
    facts: Mapping[Replica, LogFacts],
    rows: Sequence[ReplicaRow],
    committed: Mapping[TopicPartition, tuple[Committed, ...]],
) -> Iterator[PartitionPicture]:
    """Yield one picture for each partition that has rows."""
    paths = {log.replica: str(log.path) for log in inputs.logs}
    assignments = inputs.cluster.assignments if inputs.cluster else {}
    by_name: dict[TopicPartition, list[ReplicaRow]] = {}
    for row in rows:
        by_name.setdefault(TopicPartition(row.topic, row.partition), []).append(row)
    for name, replicas in by_name.items():
        assignment = assignments.get(name)
        starts = [row.first_offset for row in replicas if row.first_offset is not None]
        yield PartitionPicture(
            topic=name.topic,
            partition=name.partition,
            judged_start=min(starts, default=None),
            judged_end=replicas[0].judged_end,
            lanes=tuple(_lane(row, facts, paths) for row in replicas),
            leader=assignment.leader if assignment else None,
            isr=assignment.isr if assignment else None,
            committed=committed.get(name, ()),
        )


def _lane(row: ReplicaRow, facts: Mapping[Replica, LogFacts], paths: Mapping[Replica, str]) -> Lane:
    replica = Replica(row.broker, row.topic, row.partition)
    spans = []
    start = row.first_offset or 0
    for epoch, end, _ in facts[replica].epoch_ends if replica in facts else ():
        spans.append(EpochSpan(epoch, start, end))
        start = end
    return Lane(
        broker=row.broker,
        path=paths.get(replica, ""),
        is_leader=row.is_leader,
        in_isr=row.in_isr,
        log_start=row.log_start if row.log_start is not None else row.first_offset,
        log_end=row.log_end,
        high_watermark=row.high_watermark,
        epochs=tuple(spans),
    )
