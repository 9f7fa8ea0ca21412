"""The cluster as a value: brokers, topics and partitions.

`ClusterImage` is immutable; a change makes a new one and shares what did not change. Each broker
has one, made by `cache` from the controller's UPDATE_METADATA, and answers clients from it. The
roles of the broker's own replicas do not come from it, but from LEADER_AND_ISR.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from minibroker.protocol.constants import FEATURE_LEVEL_MIN, NO_EPOCH, NO_NODE
from minibroker.protocol.types import Endpoint, TopicPartition


@dataclass(frozen=True, slots=True)
class BrokerImage:
    """A live broker; `epoch` grows with each of its registrations.

    `endpoint` is its address for other brokers, `listeners` its addresses by listener name. A
    fenced broker is registered, but the controller does not hear it. `configs` are settings that it
    was given while it runs.
    """

    node_id: int
    endpoint: Endpoint
    epoch: int
    is_shutting_down: bool = False
    listeners: Mapping[str, Endpoint] = field(default_factory=dict)
    is_fenced: bool = False
    rack: str | None = None
    configs: Mapping[str, str] = field(default_factory=dict)

    def seen_from(self, listener: str) -> Endpoint:
        """Return its address for a client that connected to a listener of this name.

        For a broker without that listener, return its address for brokers, though the client may
        be unable to reach it.
        """
        return self.listeners.get(listener, self.endpoint)


@dataclass(frozen=True, slots=True)
class PartitionImage:
    """A partition. `leader` is -1 if it has none. `replicas` is in order of preference; `isr` is
    never empty.

    An election raises both epochs, a change of the ISR only the partition epoch. A partition of
    which the controller has told nothing yet has no replicas. `original` is the assignment before
    the reassignment under way; empty if there is none.
    """

    partition: int
    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    replicas: tuple[int, ...]
    partition_epoch: int
    original: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        assert self.isr or not self.replicas, "an ISR never becomes empty"
        assert self.leader == NO_NODE or self.leader in self.isr


@dataclass(frozen=True, slots=True)
class TopicImage:
    """A topic. `configs` has only its own settings, as text; `partitions` are by number.

    `creation` is higher than that of any earlier topic of this name; 0: not known.
    """

    id: bytes
    name: str
    configs: Mapping[str, str]
    partitions: tuple[PartitionImage, ...]
    creation: int = 0


@dataclass(frozen=True)
class ClusterImage:
    """The whole cluster at one moment. What writes a format that not every supported level has
    looks at `feature_level`."""

    cluster_id: str = ""
    controller_id: int = NO_NODE
    controller_epoch: int = NO_EPOCH
    brokers: Mapping[int, BrokerImage] = field(default_factory=dict)
    topics: Mapping[str, TopicImage] = field(default_factory=dict)
    groups: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # their own settings
    feature_level: int = FEATURE_LEVEL_MIN  # the finalized one

    @cached_property
    def topic_names(self) -> Mapping[bytes, str]:
        """The names of topics by their ids."""
        return {topic.id: name for name, topic in self.topics.items()}

    def partition(self, name: TopicPartition) -> PartitionImage | None:
        """Return a partition; None if there is no such topic or number."""
        topic = self.topics.get(name.topic)
        if topic is None or not 0 <= name.partition < len(topic.partitions):
            return None
        return topic.partitions[name.partition]
