"""Reassignments: moving the replicas of partitions to other brokers.

ALTER_PARTITION_REASSIGNMENTS begins, replaces and cancels reassignments. Both requests go to the
controller. It answers when it has written what must be done; LIST_PARTITION_REASSIGNMENTS names the
reassignments that are not done yet.
"""

from dataclasses import dataclass

from minibroker.protocol.messages import Request
from minibroker.protocol.types import TopicPartition


@dataclass(frozen=True, slots=True)
class PartitionReassignment:
    """The replicas that a partition is to have, in order of preference; None: those that it had
    before the reassignment under way, which is cancelled."""

    topic: str
    partition: int
    replicas: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class AlterPartitionReassignmentsRequest(Request["AlterPartitionReassignmentsResponse"]):
    """Reassigns these partitions, each by itself.

    Without `allow_replication_factor_change` a target must have as many replicas as the partition
    has.
    """

    partitions: tuple[PartitionReassignment, ...] = ()
    timeout_ms: int = 60_000
    allow_replication_factor_change: bool = True


@dataclass(frozen=True, slots=True)
class PartitionReassigned:
    """The result for one partition; without an error its reassignment goes on by itself."""

    topic: str
    partition: int
    error: int = 0
    error_message: str | None = None


@dataclass(frozen=True, slots=True)
class AlterPartitionReassignmentsResponse:
    """`error` concerns the whole request, and then nothing of it was done."""

    error: int = 0
    error_message: str | None = None
    partitions: tuple[PartitionReassigned, ...] = ()
    allow_replication_factor_change: bool = True


@dataclass(frozen=True, slots=True)
class ListPartitionReassignmentsRequest(Request["ListPartitionReassignmentsResponse"]):
    """Lists the reassignments of these partitions; None: of all."""

    partitions: tuple[TopicPartition, ...] | None = None
    timeout_ms: int = 60_000


@dataclass(frozen=True, slots=True)
class OngoingReassignment:
    """A reassignment under way. `replicas` are the present ones, with those that are added and
    those that leave; while it waits for its turn, those that it adds are not among them."""

    topic: str
    partition: int
    replicas: tuple[int, ...] = ()
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ListPartitionReassignmentsResponse:
    """Without an entry, a partition has no reassignment under way."""

    error: int = 0
    error_message: str | None = None
    partitions: tuple[OngoingReassignment, ...] = ()
