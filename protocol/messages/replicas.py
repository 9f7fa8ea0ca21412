"""DESCRIBE_REPLICAS: how far the replicas on one broker are, for the controller and for tools."""

from dataclasses import dataclass

from minibroker.protocol.constants import NO_EPOCH, NO_NODE, NO_OFFSET
from minibroker.protocol.messages import Request


@dataclass(frozen=True, slots=True)
class DescribeReplicasRequest(Request["DescribeReplicasResponse"]):
    """`topics` None asks for all that are there."""

    topics: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class ReplicaDescription:
    """One replica at this moment.

    `role` is "leader", "follower", "failed" or "offline", and `reason` says why it is one of the
    last two. `last_epoch` is that of the newest entry of its leader epochs. `isr` is the leader's,
    as confirmed, and empty elsewhere. `durable_end` is how far it was synced.
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


@dataclass(frozen=True, slots=True)
class DescribeReplicasResponse:
    """The broker that answers, in its present registration, and what it holds."""

    broker_id: int = NO_NODE
    broker_epoch: int = NO_EPOCH
    replicas: tuple[ReplicaDescription, ...] = ()
