"""The cluster as a value: brokers, topics and partitions.

`ClusterImage` is immutable; a change makes a new one and shares what did not change. Each broker
has one, made by `cache` from the controller's UPDATE_METADATA, and answers clients from it. What a
replica here shall be is not read from it: that comes as an order (LEADER_AND_ISR).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from minibroker.protocol.constants import NO_EPOCH, NO_NODE
from minibroker.protocol.types import Endpoint, TopicPartition


@dataclass(frozen=True, slots=True)
class BrokerImage:
    """A live broker; `epoch` grows with each of its registrations.

    `endpoint` is where other brokers reach it, `listeners` where it is reached by name. A fenced
    broker is registered and the controller does not hear it.
    """

    node_id: int
    endpoint: Endpoint
    epoch: int
    is_shutting_down: bool = False
    listeners: Mapping[str, Endpoint] = field(default_factory=dict)
    is_fenced: bool = False

    def seen_from(self, listener: str) -> Endpoint:
        """Its address for a client that came in by a listener of this name.

        A broker that lacks the listener is told by its own address among brokers: a client that
        cannot go there has lost nothing by knowing it.
        """
        return self.listeners.get(listener, self.endpoint)


@dataclass(frozen=True, slots=True)
class PartitionImage:
    """`leader` -1: nobody leads. `replicas` is in order of preference; `isr` is never empty.

    An election raises both epochs, a change of the ISR the partition epoch alone. A partition of
    which nothing was told yet has no replicas either.
    """

    partition: int
    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    replicas: tuple[int, ...]
    partition_epoch: int

    def __post_init__(self) -> None:
        assert self.isr or not self.replicas, "an ISR never becomes empty"
        assert self.leader == NO_NODE or self.leader in self.isr


@dataclass(frozen=True, slots=True)
class TopicImage:
    """A topic; `configs` are its own settings only, as text; partitions stand at their number.

    `creation` is higher than that of any topic that had this name before; 0: not known.
    """

    id: bytes
    name: str
    configs: Mapping[str, str]
    partitions: tuple[PartitionImage, ...]
    creation: int = 0


@dataclass(frozen=True, slots=True)
class ClusterImage:
    """The whole cluster at one moment."""

    cluster_id: str = ""
    controller_id: int = NO_NODE
    controller_epoch: int = NO_EPOCH
    brokers: Mapping[int, BrokerImage] = field(default_factory=dict)
    topics: Mapping[str, TopicImage] = field(default_factory=dict)

    def partition(self, name: TopicPartition) -> PartitionImage | None:
        """A partition, or None where there is no such topic or number."""
        topic = self.topics.get(name.topic)
        if topic is None or not 0 <= name.partition < len(topic.partitions):
            return None
        return topic.partitions[name.partition]
