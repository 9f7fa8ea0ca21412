"""METADATA: the brokers of the cluster, and the leader and replicas of each partition."""

from dataclasses import dataclass

from minibroker.protocol.constants import NO_EPOCH, NO_NODE, NO_OPERATIONS
from minibroker.protocol.messages import Request


@dataclass(frozen=True, slots=True)
class MetadataRequest(Request["MetadataResponse"]):
    """`topics` None requests all topics, an empty tuple only the brokers. `topic_ids` requests the
    topics with these ids, too. The flags request what the client may do."""

    topics: tuple[str, ...] | None = None
    allow_auto_topic_creation: bool = True
    topic_ids: tuple[bytes, ...] = ()
    include_topic_operations: bool = False
    include_cluster_operations: bool = False


@dataclass(frozen=True, slots=True)
class BrokerMetadata:
    """A registered broker and its address for clients. `is_fenced`: the controller gets no answers
    from it."""

    node_id: int
    host: str = ""
    port: int = 0
    rack: str | None = None
    is_fenced: bool = False


@dataclass(frozen=True, slots=True)
class PartitionMetadata:
    """`error` is LEADER_NOT_AVAILABLE if `leader_id` is -1."""

    partition: int
    error: int = 0
    leader_id: int = NO_NODE
    leader_epoch: int = NO_EPOCH
    replicas: tuple[int, ...] = ()
    isr: tuple[int, ...] = ()
    offline_replicas: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class TopicMetadata:
    """`topic_id` is a 16-byte UUID; it changes when a topic is deleted and created again.

    `creation` is then higher than before, so a client can tell which of two answers is older: a
    broker may not know of the new topic yet. 0: unknown. A topic that was requested by an unknown
    id has no name. `authorized_operations` are Kafka's bits for what the client may do.
    """

    name: str
    error: int = 0
    topic_id: bytes = bytes(16)
    is_internal: bool = False
    partitions: tuple[PartitionMetadata, ...] = ()
    creation: int = 0
    authorized_operations: int = NO_OPERATIONS


@dataclass(frozen=True, slots=True)
class MetadataResponse:
    """The cluster as this broker knows it."""

    brokers: tuple[BrokerMetadata, ...] = ()
    cluster_id: str = ""
    controller_id: int = NO_NODE
    topics: tuple[TopicMetadata, ...] = ()
    authorized_operations: int = NO_OPERATIONS
