"""DESCRIBE_REPLICAS: the state of the replicas on one broker, for the controller and for tools."""

from dataclasses import dataclass

from minibroker.protocol.constants import NO_EPOCH, NO_NODE, NO_OFFSET
from minibroker.protocol.messages import Request


@dataclass(frozen=True, slots=True)
class DescribeReplicasRequest(Request["DescribeReplicasResponse"]):
    """`topics` None requests all topics of which the broker has replicas."""

    topics: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class FollowerDescription:
    """What a leader knows of a follower.

    `log_end` is the follower's log end as of its last fetch in this leader epoch (the remote LEO),
    -1 before the first one. The leader counts with it for the high watermark. `fetch_age_ms` is the
    time since that fetch, and `caught_up_age_ms` the time since the follower was last known to have
    all that the leader had; -1: never.
    """

    broker_id: int
    log_end: int = NO_OFFSET
    fetch_age_ms: int = -1
    caught_up_age_ms: int = -1


@dataclass(frozen=True, slots=True)
class CompactionDescription:
    """The compaction of one replica's log, which a compacted topic has.

    Of what may be compacted `clean_bytes` were compacted before, and `dirty_bytes` were not. The
    last compaction since the broker's start ended `run_age_ms` ago (-1: none has): it read
    `bytes_read` and freed `bytes_freed`, or was `stopped` by what this text says.
    """

    clean_bytes: int = 0
    dirty_bytes: int = 0
    run_age_ms: int = -1
    bytes_read: int = 0
    bytes_freed: int = 0
    stopped: str = ""


@dataclass(frozen=True, slots=True)
class ReplicaDescription:
    """The current state of one replica.

    `role` is "leader", "follower", "failed" or "offline"; `reason` explains the last two.
    `last_epoch` is the newest entry of its leader epochs. `isr` is the confirmed one on a leader,
    and empty on other replicas, and so are the `followers`. `durable_end` is the offset up to which
    the log was synced. `compaction` is nil unless the topic is compacted. `last_stable_offset` is
    the one below which all transactions are decided, -1 if it is not known. `newest_timestamp` is
    the largest of its records in milliseconds since 1970; -1: it has none.
    """

    topic: str
    partition: int
    topic_id: bytes
    role: str = "offline"
    leader: int = NO_NODE
    leader_epoch: int = NO_EPOCH
    partition_epoch: int = NO_EPOCH
    last_epoch: int = NO_EPOCH
    log_start: int = NO_OFFSET
    log_end: int = NO_OFFSET
    durable_end: int = NO_OFFSET
    high_watermark: int = NO_OFFSET
    isr: tuple[int, ...] = ()
    reason: str = ""
    followers: tuple[FollowerDescription, ...] = ()
    compaction: CompactionDescription | None = None
    last_stable_offset: int = NO_OFFSET
    newest_timestamp: int = -1


@dataclass(frozen=True, slots=True)
class DescribeReplicasResponse:
    """The answering broker, the epoch of its present registration, and its replicas."""

    broker_id: int = NO_NODE
    broker_epoch: int = NO_EPOCH
    replicas: tuple[ReplicaDescription, ...] = ()
