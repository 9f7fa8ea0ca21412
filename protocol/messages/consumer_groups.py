"""CONSUMER_GROUP_HEARTBEAT and CONSUMER_GROUP_DESCRIBE: groups whose coordinator assigns.

The fields are those of Kafka's newer group protocol (KIP-848; its public message schemas). One
request does all that a member does: it joins, says what it owns, gets its assignment, and leaves.
"""

from dataclasses import dataclass

from minibroker.protocol.constants import NO_OPERATIONS
from minibroker.protocol.messages import Request

# Member epochs of a heartbeat that do not stand for an epoch.
JOIN_EPOCH = 0
LEAVE_EPOCH = -1
LEAVE_STATIC_EPOCH = -2  # the static member will join again


@dataclass(frozen=True, slots=True)
class TopicIdPartitions:
    """Partitions of a topic, by its id."""

    topic_id: bytes
    partitions: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ConsumerGroupHeartbeatRequest(Request["ConsumerGroupHeartbeatResponse"]):
    """A member's heartbeat. Fields that did not change since the last one may be None, or -1.

    `member_epoch` is the last one that the member was given, 0 to join, -1 to leave, and -2 for a
    static member that will join again. `is_member_id_made` says that the coordinator makes the id
    of a member that joins without one.
    """

    group_id: str
    member_id: str = ""
    member_epoch: int = JOIN_EPOCH
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    topics: tuple[str, ...] | None = None
    pattern: str | None = None
    assignor: str | None = None
    owned: tuple[TopicIdPartitions, ...] | None = None
    is_member_id_made: bool = True


@dataclass(frozen=True, slots=True)
class ConsumerGroupHeartbeatResponse:
    """The member's epoch. `assignment` is None if it did not change since the last answer."""

    error: int = 0
    error_message: str | None = None
    member_id: str = ""
    member_epoch: int = 0
    heartbeat_interval_ms: int = 0
    assignment: tuple[TopicIdPartitions, ...] | None = None


@dataclass(frozen=True, slots=True)
class ConsumerGroupDescribeRequest(Request["ConsumerGroupDescribeResponse"]):
    """Groups to describe; the receiver must be the coordinator of each."""

    groups: tuple[str, ...] = ()
    include_authorized_operations: bool = False


@dataclass(frozen=True, slots=True)
class DescribedPartitions:
    """Partitions of a topic, by its id and its name."""

    topic_id: bytes
    topic: str
    partitions: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class DescribedConsumer:
    """A member: what it has (`assignment`), and what it is to have (`target`)."""

    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    member_epoch: int = 0
    client_id: str = ""
    client_host: str = ""
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    assignment: tuple[DescribedPartitions, ...] = ()
    target: tuple[DescribedPartitions, ...] = ()


@dataclass(frozen=True, slots=True)
class DescribedConsumerGroup:
    """A group's current state: Empty, Assigning, Reconciling or Stable."""

    group_id: str
    error: int = 0
    error_message: str | None = None
    state: str = ""
    epoch: int = 0
    assignment_epoch: int = 0
    assignor: str = ""
    members: tuple[DescribedConsumer, ...] = ()
    authorized_operations: int = NO_OPERATIONS


@dataclass(frozen=True, slots=True)
class ConsumerGroupDescribeResponse:
    """A description for each group of the request, in its order."""

    groups: tuple[DescribedConsumerGroup, ...] = ()
