"""Moving the leadership of partitions while both brokers live.

ELECT_LEADERS goes to the controller, which elects the preferred replica of each partition, or any
replica of a partition that has no leader.

HAND_OVER goes from the controller to a leader, before another replica is elected in its place. The
leader stops acknowledging records that only it has: it refuses acks 0 and 1 and still accepts
acks=all. It reports when the target has everything that was acknowledged before. The controller
repeats the request until then, and elects the target; repeating an order does no harm.
"""

from dataclasses import dataclass

from minibroker.protocol.constants import NO_NODE
from minibroker.protocol.messages import Request
from minibroker.protocol.types import TopicPartition

PREFERRED = 0  # election types
UNCLEAN = 1


@dataclass(frozen=True, slots=True)
class ElectLeadersRequest(Request["ElectLeadersResponse"]):
    """Elects leaders of these partitions. None, for preferred leaders only, means all partitions.

    `election_type` 0 elects the preferred leader. 1 is an unclean election: of a partition without
    a leader it elects the live replica `leader`, or, with -1, the one with the longest log of those
    that answer the controller. What the replica does not have is lost, even if it was committed.
    """

    partitions: tuple[TopicPartition, ...] | None = None
    timeout_ms: int = 30_000
    election_type: int = PREFERRED
    leader: int = NO_NODE


@dataclass(frozen=True, slots=True)
class PartitionElected:
    """The result for one partition; without an error a leader was elected as requested."""

    topic: str
    partition: int
    error: int = 0
    error_message: str | None = None


@dataclass(frozen=True, slots=True)
class ElectLeadersResponse:
    """`error` concerns the whole request. The answer to a request for all partitions leaves out
    those whose preferred replica already led."""

    error: int = 0
    error_message: str | None = None
    partitions: tuple[PartitionElected, ...] = ()


@dataclass(frozen=True, slots=True)
class PartitionToHandOver:
    """A partition that its leader of this epoch hands over to `target`; -1: it stays leader."""

    topic: str
    topic_id: bytes
    partition: int
    leader_epoch: int
    target: int


@dataclass(frozen=True, slots=True)
class HandOverRequest(Request["HandOverResponse"]):
    """Hands these partitions over. Without another order, or another leader, within `hold_ms` the
    broker accepts acks 0 and 1 again."""

    controller_id: int
    controller_epoch: int
    broker_epoch: int
    partitions: tuple[PartitionToHandOver, ...] = ()
    hold_ms: int = 0


@dataclass(frozen=True, slots=True)
class PartitionHandedOver:
    """With `is_ready` the target has every record that was acknowledged with acks 0 or 1."""

    topic: str
    partition: int
    error: int = 0
    is_ready: bool = False


@dataclass(frozen=True, slots=True)
class HandOverResponse:
    """`error` concerns the whole request, and then nothing of it was done."""

    error: int = 0
    partitions: tuple[PartitionHandedOver, ...] = ()
