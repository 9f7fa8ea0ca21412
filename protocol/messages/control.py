"""The messages between controller and brokers: orders of the controller, requests of the brokers.

LEADER_AND_ISR, UPDATE_METADATA and STOP_REPLICA go from the controller to each broker. They are
level-triggered: they state the desired state, not a change, so repeating one does no harm. Each
carries the controller's epoch and the receiver's broker epoch (that of its registration, so an
order for an earlier registration has no effect), and each names topic ids, so that an order for a
deleted topic never affects another topic of the same name.

PROBE also goes from the controller to each broker: it checks that the broker answers, and confirms
earlier answers, from which the broker knows until when it cannot be fenced.

ALTER_PARTITION and CONTROLLED_SHUTDOWN go from a broker to the controller.
"""

from dataclasses import dataclass

from minibroker.protocol.constants import FEATURE_LEVEL_MIN, NO_EPOCH, NO_LAPSE, NO_NODE, NO_STAMP
from minibroker.protocol.messages import Request
from minibroker.protocol.messages.topics import ConfigEntry
from minibroker.protocol.types import NamedEndpoint, TopicPartition


@dataclass(frozen=True, slots=True)
class LiveBroker:
    """A registered broker; `epoch` grows with each of its registrations.

    `host` and `port` are its address for other brokers, `listeners` its addresses for clients that
    connect to a listener of that name (other clients get `host` and `port`). `is_fenced`: the
    controller gets no answers from the broker, though it is registered. `rack` is nil without
    `broker.rack`. `configs` are the settings that it was given while it runs.
    """

    node_id: int
    host: str
    port: int
    epoch: int
    is_shutting_down: bool = False
    listeners: tuple[NamedEndpoint, ...] = ()
    is_fenced: bool = False
    rack: str | None = None
    configs: tuple[ConfigEntry, ...] = ()


@dataclass(frozen=True, slots=True)
class PartitionState:
    """The desired state of one partition. `leader` -1: it has no leader; -2: it is deleted.

    States are ordered by (leader epoch, partition epoch): an election raises both, a change of the
    in-sync set or of the assignment the partition epoch alone. `original` is the assignment before
    the reassignment under way; empty if there is none. `unclean_epoch` is the leader epoch of the
    last unclean election, -1 without one: a log that ends in an earlier epoch may be truncated
    below its high watermark.
    """

    topic: str
    topic_id: bytes
    partition: int
    leader: int
    leader_epoch: int
    partition_epoch: int
    isr: tuple[int, ...]
    replicas: tuple[int, ...]
    original: tuple[int, ...] = ()
    unclean_epoch: int = NO_EPOCH


@dataclass(frozen=True, slots=True)
class PartitionObeyed:
    """The result for one partition of an order; the epochs are those now in force there."""

    topic: str
    partition: int
    error: int = 0
    leader_epoch: int = NO_EPOCH
    partition_epoch: int = NO_EPOCH


@dataclass(frozen=True, slots=True)
class LeaderAndIsrRequest(Request["LeaderAndIsrResponse"]):
    """Assigns these roles; `brokers` has the addresses of the leaders.

    With `completes_roles` these and the earlier ones are all roles of the broker: earlier ones stay
    valid, even from an earlier registration of the process, and a log without a role is a stray.

    `number` is higher than that of any earlier order of this controller; 0: unknown. A broker
    refuses an order that comes after a later one: a connection that the controller gave up while
    the broker was silent may still bring it.
    """

    controller_id: int
    controller_epoch: int
    broker_epoch: int
    partitions: tuple[PartitionState, ...] = ()
    brokers: tuple[LiveBroker, ...] = ()
    completes_roles: bool = False
    number: int = 0


@dataclass(frozen=True, slots=True)
class LeaderAndIsrResponse:
    """`error` concerns the whole request, and then nothing of it was done."""

    error: int = 0
    partitions: tuple[PartitionObeyed, ...] = ()


@dataclass(frozen=True, slots=True)
class StoppedPartition:
    """A replica to stop, of the topic with this id only; with `delete` its directory is deleted.

    A `leader_epoch` of -2 is above any. With a `partition_epoch` the replica has left the
    assignment in the state with these epochs: a newer state may have assigned it again.
    """

    topic: str
    topic_id: bytes
    partition: int
    leader_epoch: int
    delete: bool = False
    partition_epoch: int = NO_EPOCH


@dataclass(frozen=True, slots=True)
class StopReplicaRequest(Request["StopReplicaResponse"]):
    """Stops these replicas. A replica that the broker does not have was stopped before. `number` as
    in `LeaderAndIsrRequest`."""

    controller_id: int
    controller_epoch: int
    broker_epoch: int
    partitions: tuple[StoppedPartition, ...] = ()
    number: int = 0


@dataclass(frozen=True, slots=True)
class StopReplicaResponse:
    """As `LeaderAndIsrResponse`."""

    error: int = 0
    partitions: tuple[PartitionObeyed, ...] = ()


@dataclass(frozen=True, slots=True)
class TopicState:
    """A topic without its partitions; `configs` are its own settings only.

    `creation` is higher than that of any earlier topic of this name; 0: unknown.
    """

    name: str
    id: bytes
    configs: tuple[ConfigEntry, ...] = ()
    partition_count: int = 0
    creation: int = 0


@dataclass(frozen=True, slots=True)
class GroupState:
    """A consumer group's own settings."""

    name: str
    configs: tuple[ConfigEntry, ...] = ()


@dataclass(frozen=True, slots=True)
class UpdateMetadataRequest(Request["UpdateMetadataResponse"]):
    """The cluster metadata from which the broker answers clients.

    `brokers` replaces the list of live brokers. `topics` and `partitions` replace the entries that
    they name and keep the others, and a partition whose leader is -2 is removed. With
    `begins_image` a full image begins: this request and the next ones name every topic. The broker
    removes topics that none of them names when the LEADER_AND_ISR with `completes_roles` has
    arrived. `groups`, unless nil, replaces the settings of all groups. `number` as in
    `LeaderAndIsrRequest`. `feature_level` is the finalized level of minibroker.version.
    """

    controller_id: int
    controller_epoch: int
    broker_epoch: int
    cluster_id: str = ""
    brokers: tuple[LiveBroker, ...] = ()
    topics: tuple[TopicState, ...] = ()
    partitions: tuple[PartitionState, ...] = ()
    begins_image: bool = False
    groups: tuple[GroupState, ...] | None = None
    number: int = 0
    feature_level: int = FEATURE_LEVEL_MIN


@dataclass(frozen=True, slots=True)
class UpdateMetadataResponse:
    """`error` is STALE_CONTROLLER_EPOCH, also for an order that comes after a later one, or
    STALE_BROKER_EPOCH if the broker ignored the request."""

    error: int = 0


@dataclass(frozen=True, slots=True)
class IsrMember:
    """A broker that the leader has seen in sync, and its broker epoch then (-1: unknown)."""

    node_id: int
    broker_epoch: int = NO_EPOCH


@dataclass(frozen=True, slots=True)
class PartitionChange:
    """The in-sync set that a leader requests, and the epochs of the state that it replaces."""

    topic: str
    topic_id: bytes
    partition: int
    leader_epoch: int
    partition_epoch: int
    isr: tuple[IsrMember, ...] = ()


@dataclass(frozen=True, slots=True)
class AlterPartitionRequest(Request["AlterPartitionResponse"]):
    """A leader requests new in-sync sets."""

    broker_id: int
    broker_epoch: int
    partitions: tuple[PartitionChange, ...] = ()


@dataclass(frozen=True, slots=True)
class PartitionAltered:
    """The controller's state of the partition after the request."""

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
    """A broker is about to stop: the controller elects other leaders for its partitions."""

    broker_id: int
    broker_epoch: int


@dataclass(frozen=True, slots=True)
class ControlledShutdownResponse:
    """The partitions that the broker still leads, because no other in-sync replica is live."""

    error: int = 0
    remaining: tuple[TopicPartition, ...] = ()


@dataclass(frozen=True, slots=True)
class ProbeRequest(Request["ProbeResponse"]):
    """Checks that a broker answers.

    `confirmed` is the stamp of a received answer of this registration (-1: none).
    `confirmed_lapse` is the last lapse of the broker's lease after which all its roles were sent
    again (0: none).
    """

    controller_id: int
    controller_epoch: int
    broker_epoch: int
    confirmed: int = NO_STAMP
    confirmed_lapse: int = NO_LAPSE


@dataclass(frozen=True, slots=True)
class ProbeResponse:
    """`error` is STALE_CONTROLLER_EPOCH or STALE_BROKER_EPOCH if the broker ignored the request.

    `stamp` is the time of the answer by the broker's own clock, in microseconds. `lapse` is the
    number of the present lapse of its lease; 0: the lease has not lapsed.
    """

    error: int = 0
    stamp: int = NO_STAMP
    lapse: int = NO_LAPSE
