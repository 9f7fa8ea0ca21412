"""Logs as the audit knows them: by what their batches say."""

from collections.abc import Mapping, Sequence

from minibroker.audit.checks.log_ends import EpochEnd, LogFacts, ReplicaFacts
from minibroker.audit.files.cluster import Assignment, Left
from minibroker.protocol.types import TopicPartition

NAME = TopicPartition("t", 0)
GREW = (
    "its log ends at 100, and its broker had stopped in order with 90: the files were changed"
    " since, or the metadata are older than they are"
)


def log(*ends: tuple[int, int], first: int = 0) -> LogFacts:
    """A sound log: (epoch, end) of each of its epochs."""
    starts = [first, *(end for _, end in ends)]
    return LogFacts(
        first,
        starts[-1],
        tuple(
            EpochEnd(epoch, end, end - start)
            for start, (epoch, end) in zip(starts, ends, strict=False)
        ),
    )


def replica(broker: int, facts: LogFacts, state: str = "stopped", **said: int) -> ReplicaFacts:
    """A log and what its broker's checkpoints say."""
    return ReplicaFacts(broker, *NAME, state, facts, **said)


def assignment(
    leader: int = 1,
    isr: Sequence[int] = (1, 2, 3),
    epoch: int = 5,
    unsafe: Sequence[int] = (),
    replicas: Sequence[int] = (1, 2, 3),
    left: Mapping[int, Left] | None = None,
) -> Assignment:
    return Assignment(
        "00", leader, epoch, tuple(isr), tuple(replicas), tuple(unsafe), left=left or {}
    )
