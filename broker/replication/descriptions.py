"""Descriptions of replicas: for tools, for the controller (to find the longest log), for log lines.

The lines about in-sync sets have the form that Kafka's operators grep for. Times in them are wall
clock milliseconds, -1 for a follower that was never caught up.
"""

from collections.abc import Mapping
from typing import NamedTuple

from minibroker.broker.log.compaction import LastRun
from minibroker.broker.log.log import Log
from minibroker.broker.replication.follower import Follower
from minibroker.broker.replication.partition import Partition
from minibroker.broker.replication.roles import NEVER, Leader, Pending, PendingExpand, Progress
from minibroker.broker.replication.statistics import followers_of
from minibroker.broker.turns import Turn, Turns
from minibroker.protocol.constants import NO_NODE
from minibroker.protocol.messages.control import PartitionState
from minibroker.protocol.messages.replicas import (
    CompactionDescription,
    FollowerDescription,
    ReplicaDescription,
)
from minibroker.protocol.types import TopicPartition


class Uncreated(NamedTuple):
    """The order about a replica whose log could not be created yet, and what is short for it."""

    state: PartitionState
    shortage: str

    @property
    def text(self) -> str:
        """Say why there is no log."""
        return f"its log cannot be made yet: {self.shortage}"


def describe_all(
    logs: Mapping[TopicPartition, Log],
    partitions: Mapping[TopicPartition, Partition],
    uncreated: Mapping[TopicPartition, Uncreated],
    broker_id: int,
    now: float,
) -> Turns[list[ReplicaDescription]]:
    """Describe every replica, each as it is when its turn comes; ages count up to `now`."""
    found = [describe_uncreated(one) for one in uncreated.values()]
    turn = Turn()
    for name, log in list(logs.items()):
        partition = partitions.get(name)
        if partition is None:
            found.append(describe_log(log))
        else:
            found.append(describe(partition, broker_id, now))
        if turn.is_over(1 + log.limits.is_compacted * log.compaction.segment_count):
            yield
    return found


def describe(partition: Partition, broker_id: int, now: float) -> ReplicaDescription:
    """Describe a replica as it is now, in seconds of the broker's clock."""
    role = partition.role
    kind, leader, reason = "offline", NO_NODE, ""
    isr: tuple[int, ...] = ()
    followers: tuple[FollowerDescription, ...] = ()
    if isinstance(role, Leader):
        kind, leader, isr = "leader", broker_id, role.isr
        followers = tuple(
            FollowerDescription(
                known.broker_id,
                known.log_end,
                _age_ms(known.fetched_at, now),
                _age_ms(known.caught_up_at, now),
            )
            for known in followers_of(role)
        )
    elif isinstance(role, Follower):
        kind, leader = "failed" if role.failure else "follower", role.leader
        reason = role.failure or role.delay
    else:
        reason = role.reason
    log = partition.log
    return ReplicaDescription(
        *partition.topic_partition,
        partition.topic_id,
        kind,
        leader,
        *partition.version,
        log.epochs.newest_epoch,
        log.log_start,
        log.log_end,
        log.durable_end,
        partition.high_watermark,
        isr,
        reason,
        followers,
        _describe_compaction(partition, now) if log.limits.is_compacted else None,
        partition.last_stable_offset,
        log.newest_timestamp,
    )


def _describe_compaction(partition: Partition, now: float) -> CompactionDescription:
    compaction = partition.log.compaction
    found = compaction.find_sealed(partition.last_stable_offset)
    run = compaction.last_run or LastRun(NEVER)
    return CompactionDescription(
        found.clean_size,
        found.dirty_size,
        _age_ms(run.at, now),
        run.bytes_read,
        run.bytes_freed,
        run.stopped,
    )


def _age_ms(at: float, now: float) -> int:
    return -1 if at == NEVER else max(0, round((now - at) * 1000))


def describe_log(log: Log) -> ReplicaDescription:
    """Describe a log that was found at start and has no role yet."""
    return ReplicaDescription(
        *log.topic_partition,
        log.topic_id,
        last_epoch=log.epochs.newest_epoch,
        log_start=log.log_start,
        log_end=log.log_end,
        durable_end=log.durable_end,
        high_watermark=log.checkpointed_high_watermark,
        newest_timestamp=log.newest_timestamp,
        reason="it has no role yet",
    )


def describe_uncreated(uncreated: Uncreated) -> ReplicaDescription:
    """Describe a replica whose log could not be created."""
    state = uncreated.state
    return ReplicaDescription(
        state.topic,
        state.partition,
        state.topic_id,
        leader_epoch=state.leader_epoch,
        partition_epoch=state.partition_epoch,
        reason=uncreated.text,
    )


def damage_text(log: Log) -> str:
    """Say why a damaged log serves nothing, and what to do."""
    assert log.damage is not None
    topic, partition = log.topic_partition
    return (
        f"records are lost from offset {log.damage.offset} on ({log.damage.reason}); to go on"
        f" with what is left: minibroker partition recover {topic} {partition}"
    )


def old_metadata_text(log: Log, state: PartitionState) -> str:
    """Say why a replica does not lead in an epoch lower than those in its log."""
    return (
        f"leader epoch {state.leader_epoch} is below {log.epochs.newest_epoch}, the newest in this"
        " log: the metadata are older than the log, as after a copy of the metadata store was put"
        " back; stop all brokers, then run `minibroker metadata export` and `metadata restore`"
    )


def role_text(partition: Partition) -> str:
    """Describe a replica's new role."""
    role, log = partition.role, partition.log
    epochs = f"leader epoch {partition.version[0]}, partition epoch {partition.version[1]}"
    ends = f"highWatermark: {partition.high_watermark}, endOffset: {log.log_end}"
    if isinstance(role, Leader):
        return f"Leader in {epochs}, from offset {role.epoch_start}, ISR {_ids(role.isr)} ({ends})"
    if isinstance(role, Follower):
        return f"Follower of broker {role.leader} in {epochs} ({ends})"
    return f"Offline in {epochs}: {role.reason} ({ends})"


def proposal_text(
    partition: Partition, leader: Leader, pending: Pending, now: float, now_ms: int
) -> str:
    """Describe the change of the in-sync set that a leader proposes, and its reason."""
    before, after = pending.isr, pending.proposed
    if isinstance(pending, PendingExpand):
        verb, who = "Expanding", "Caught up replicas"
        concerned = [replica for replica in after if replica not in before]
    else:
        verb, who = "Shrinking", "Out of sync replicas"
        concerned = [replica for replica in before if replica not in after]
    ends = f"highWatermark: {leader.high_watermark}, endOffset: {partition.log.log_end}"
    replicas = " ".join(
        _progress_text(replica, leader.progress_of(replica), now, now_ms) for replica in concerned
    )
    return f"{verb} ISR from {_ids(before)} to {_ids(after)}. Leader: ({ends}). {who}: {replicas}."


def confirmed_text(partition: Partition, leader: Leader) -> str:
    """Describe the in-sync set that the controller confirmed."""
    epoch = partition.version[1]
    is_enough = leader.is_isr_large_enough(partition.settings.min_insync_replicas)
    state = "" if is_enough else " (under-min-isr)"
    return f"ISR updated to {_ids(leader.isr)}{state} and version updated to {epoch}"


def _ids(replicas: tuple[int, ...]) -> str:
    return ",".join(map(str, replicas))


def _progress_text(replica: int, progress: Progress | None, now: float, now_ms: int) -> str:
    if progress is None:
        return f"(brokerId: {replica}, unknown)"
    caught_up_ms = -1
    if progress.caught_up_at != NEVER:
        caught_up_ms = now_ms - round((now - progress.caught_up_at) * 1000)
    return (
        f"(brokerId: {replica}, endOffset: {progress.log_end}, lastCaughtUpTimeMs: {caught_up_ms})"
    )
