"""What `minibroker topic describe` shows of the compaction of a topic's logs.

Each broker compacts its own replicas, so there is a line for each of them. What it counts begins
with the start of the broker.
"""

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from minibroker.client.admin import ReplicasReport
    from minibroker.protocol.messages.replicas import CompactionDescription


class LogCompaction(NamedTuple):
    """One replica; its fields are the names in JSON. `last_run_s` is how many seconds ago its last
    compaction ended; None: none has since the broker's start."""

    broker: int
    dirty_share: float
    last_run_s: float | None
    bytes_read: int
    bytes_freed: int
    stopped: str

    def __str__(self) -> str:
        dirty = f"{self.broker}: {self.dirty_share:.0%} dirty"
        if self.last_run_s is None:
            return f"{dirty}, not compacted since the broker's start"
        ended = f"{self.last_run_s:.0f} s ago"
        if self.stopped:
            return f"{dirty}, compaction was stopped {ended}: {self.stopped}"
        return f"{dirty}, compacted {ended}: {self.bytes_read} bytes read, {self.bytes_freed} freed"


def compactions_of(report: "ReplicasReport") -> dict[tuple[str, int], list[LogCompaction]]:
    """Return the replicas of each partition, by broker."""
    found: dict[tuple[str, int], list[LogCompaction]] = {}
    for node_id, answer in sorted(report.answers.items()):
        for replica in answer.replicas:
            if replica.compaction is not None:
                of_partition = found.setdefault((replica.topic, replica.partition), [])
                of_partition.append(_compaction_of(node_id, replica.compaction))
    return found


def _compaction_of(node_id: int, told: "CompactionDescription") -> LogCompaction:
    size = told.clean_bytes + told.dirty_bytes
    return LogCompaction(
        broker=node_id,
        dirty_share=round(told.dirty_bytes / size, 4) if size else 0.0,
        last_run_s=told.run_age_ms / 1000 if told.run_age_ms >= 0 else None,
        bytes_read=told.bytes_read,
        bytes_freed=told.bytes_freed,
        stopped=told.stopped,
    )
