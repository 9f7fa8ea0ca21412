"""What brokers tell each other about who leads what: orders of the controller, requests to it.

LEADER_AND_ISR, UPDATE_METADATA and STOP_REPLICA go from the controller to each broker. They are
level-triggered: they say what shall be, not what happened, so repeating one does no harm. Each
carries the controller's epoch and the epoch of the broker that is meant (that of its registration,
so an order for its former life has no effect), and each names topic ids, so that an order for a
deleted topic never hits another one of the same name.

PROBE goes from the controller to each broker, too: whether the broker is heard, and until when it
may believe that it is.

ALTER_PARTITION and CONTROLLED_SHUTDOWN go from a broker to the controller.
"""

from dataclasses import dataclass

from minibroker.protocol.constants import NO_EPOCH, NO_LAPSE, NO_NODE, NO_STAMP
from minibroker.protocol.messages import Request
from minibroker.protocol.messages.topics import ConfigEntry
from minibroker.protocol.types import NamedEndpoint, TopicPartition


@dataclass(frozen=True, slots=True)
class LiveBroker:
    """A registered broker; `epoch` grows with each of its registrations.

    `host` and `port` are where other brokers reach it, `listeners` where clients do that come in
    by a listener of that name (any other is told `host` and `port`). `is_fenced`: the controller
    does not hear the broker, though its registration stands.
    """

    node_id: int
    host: str
    port: int
    epoch: int
    is_shutting_down: bool = False
    listeners: tuple[NamedEndpoint, ...] = ()
    is_fenced: bool = False


@dataclass(frozen=True, slots=True)
class PartitionState:
    """What one partition shall be. `leader` -1: nobody leads; -2: it is deleted.

    States are ordered by (leader epoch, partition epoch): an election raises both, a change of the
    in-sync set or of the assignment the partition epoch alone.
    """

    topic: str
    topic_id: bytes
    partition: int
    leader: int
    leader_epoch: int
    partition_epoch: int
    isr: tuple[int, ...]
    replicas: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PartitionObeyed:
    """What became of one partition of an order; the epochs are those now in force there."""

    topic: str
    partition: int
    error: int = 0
    leader_epoch: int = NO_EPOCH
    partition_epoch: int = NO_EPOCH


@dataclass(frozen=True, slots=True)
class LeaderAndIsrRequest(Request["LeaderAndIsrResponse"]):
    """Take these roles; `brokers` says where their leaders are.

    With `is_full` these, and what was told before, are all roles of the broker: they stand, even if
    they were told in an earlier registration of the process, and a log without one is a stray.
    """

    controller_id: int
    controller_epoch: int
    broker_epoch: int
    partitions: tuple[PartitionState, ...] = ()
    brokers: tuple[LiveBroker, ...] = ()
    is_full: bool = False


@dataclass(frozen=True, slots=True)
class LeaderAndIsrResponse:
    """`error` concerns the whole request, and then nothing of it was done."""

    error: int = 0
    partitions: tuple[PartitionObeyed, ...] = ()


@dataclass(frozen=True, slots=True)
class StoppedPartition:
    """A replica to give up, of the topic with this id only; with `delete` its directory too.

    A `leader_epoch` of -2 is above any.
    """

    topic: str
    topic_id: bytes
    partition: int
    leader_epoch: int
    delete: bool = False


@dataclass(frozen=True, slots=True)
class StopReplicaRequest(Request["StopReplicaResponse"]):
    """Give these replicas up. One that is not there was given up before."""

    controller_id: int
    controller_epoch: int
    broker_epoch: int
    partitions: tuple[StoppedPartition, ...] = ()


@dataclass(frozen=True, slots=True)
class StopReplicaResponse:
    """As `LeaderAndIsrResponse`."""

    error: int = 0
    partitions: tuple[PartitionObeyed, ...] = ()


@dataclass(frozen=True, slots=True)
class TopicState:
    """A topic without its partitions; `configs` are its own settings only.

    `creation` is higher than that of any topic that had this name before; 0: not known.
    """

    name: str
    id: bytes
    configs: tuple[ConfigEntry, ...] = ()
    partition_count: int = 0
    creation: int = 0


@dataclass(frozen=True, slots=True)
class UpdateMetadataRequest(Request["UpdateMetadataResponse"]):
    """The cluster, to answer clients from.

    `brokers` replaces the list of live brokers. `topics` and `partitions` replace what they name
    and leave the rest, and a partition whose leader is -2 is taken out; with `is_full` they
    replace everything.
    """

    controller_id: int
    controller_epoch: int
    broker_epoch: int
    cluster_id: str = ""
    brokers: tuple[LiveBroker, ...] = ()
    topics: tuple[TopicState, ...] = ()
    partitions: tuple[PartitionState, ...] = ()
    is_full: bool = False


@dataclass(frozen=True, slots=True)
class UpdateMetadataResponse:
    """`error` is STALE_CONTROLLER_EPOCH or STALE_BROKER_EPOCH where nothing was taken over."""

    error: int = 0


@dataclass(frozen=True, slots=True)
class IsrMember:
    """A broker, in the registration (-1: not known) in which the leader has seen it in sync."""

    node_id: int
    broker_epoch: int = NO_EPOCH


@dataclass(frozen=True, slots=True)
class PartitionChange:
    """The in-sync set that a leader wants, and the state that it wants to replace."""

    topic: str
    topic_id: bytes
    partition: int
    leader_epoch: int
    partition_epoch: int
    isr: tuple[IsrMember, ...] = ()


@dataclass(frozen=True, slots=True)
class AlterPartitionRequest(Request["AlterPartitionResponse"]):
    """A leader asks for other in-sync sets."""

    broker_id: int
    broker_epoch: int
    partitions: tuple[PartitionChange, ...] = ()


@dataclass(frozen=True, slots=True)
class PartitionAltered:
    """The partition as the controller has it after the request."""

    topic: str
    partition: int
    error: int = 0
    leader: int = NO_NODE
    leader_epoch: int = NO_EPOCH
    partition_epoch: int = NO_EPOCH
    isr: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class AlterPartitionResponse:
    """`error` concerns the whole request, and then nothing of it was done."""

    error: int = 0
    partitions: tuple[PartitionAltered, ...] = ()


@dataclass(frozen=True, slots=True)
class ControlledShutdownRequest(Request["ControlledShutdownResponse"]):
    """A broker is about to stop: others shall lead what it leads."""

    broker_id: int
    broker_epoch: int


@dataclass(frozen=True, slots=True)
class ControlledShutdownResponse:
    """The partitions that it still leads, because no other in-sync replica lives."""

    error: int = 0
    remaining: tuple[TopicPartition, ...] = ()


@dataclass(frozen=True, slots=True)
class ProbeRequest(Request["ProbeResponse"]):
    """Are you there? `confirmed` is the stamp of an answer of this registration that was received
    (-1: none). `told_lapse` is the last lapse of the broker's standing since which all its roles
    were told again (0: none).
    """

    controller_id: int
    controller_epoch: int
    broker_epoch: int
    confirmed: int = NO_STAMP
    told_lapse: int = NO_LAPSE


@dataclass(frozen=True, slots=True)
class ProbeResponse:
    """`error` is STALE_CONTROLLER_EPOCH or STALE_BROKER_EPOCH where nothing was taken over.

    `stamp` is when the broker answered, by a clock of its own, in microseconds. `lapse` is the
    number of the present lapse of its standing; 0: its standing has not lapsed.
    """

    error: int = 0
    stamp: int = NO_STAMP
    lapse: int = NO_LAPSE
