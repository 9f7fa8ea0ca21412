"""METADATA: which brokers there are, and who leads which partition."""

from dataclasses import dataclass

from minibroker.protocol.constants import NO_EPOCH, NO_NODE
from minibroker.protocol.messages import Request


@dataclass(frozen=True, slots=True)
class MetadataRequest(Request["MetadataResponse"]):
    """`topics` None asks for all, an empty tuple for the brokers only."""

    topics: tuple[str, ...] | None = None
    allow_auto_topic_creation: bool = True


@dataclass(frozen=True, slots=True)
class BrokerMetadata:
    """A registered broker and where clients reach it; `is_fenced`: the controller does not hear
    it."""

    node_id: int
    host: str = ""
    port: int = 0
    rack: str | None = None
    is_fenced: bool = False


@dataclass(frozen=True, slots=True)
class PartitionMetadata:
    """`error` is LEADER_NOT_AVAILABLE where `leader_id` is -1."""

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

    `creation` is then higher than before, so that of two answers the older one is known: a broker
    may not have heard yet. 0: not known.
    """

    name: str
    error: int = 0
    topic_id: bytes = bytes(16)
    is_internal: bool = False
    partitions: tuple[PartitionMetadata, ...] = ()
    creation: int = 0


@dataclass(frozen=True, slots=True)
class MetadataResponse:
    """The cluster as this broker knows it."""

    brokers: tuple[BrokerMetadata, ...] = ()
    cluster_id: str = ""
    controller_id: int = NO_NODE
    topics: tuple[TopicMetadata, ...] = ()
