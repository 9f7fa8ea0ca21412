"""The cluster as a value: brokers, topics, partitions, and the orders that carry them.

`ClusterImage` is immutable; a change makes a new one and shares what did not change. The controller
alone makes images; every other part of a broker only reads the newest one it was given.

`LeaderAndIsr` and `StopReplica` are the controller's orders to a broker. They are level-triggered:
they say what shall be, not what happened, so repeating one does no harm, and each names the topic
id, so that an order for a deleted topic never hits another one of the same name.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from minibroker.protocol.constants import NO_EPOCH, NO_NODE
from minibroker.protocol.types import Endpoint, TopicPartition

EPOCH_DURING_DELETE: Final = -2  # in a StopReplica: whatever epoch the replica has


@dataclass(frozen=True, slots=True)
class BrokerImage:
    """A live broker; `epoch` grows with each of its registrations."""

    node_id: int
    endpoint: Endpoint
    epoch: int


@dataclass(frozen=True, slots=True)
class PartitionImage:
    """`leader` -1: nobody leads. `replicas` is in order of preference; `isr` is never empty.

    An election raises both epochs, a change of the ISR the partition epoch alone.
    """

    partition: int
    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    replicas: tuple[int, ...]
    partition_epoch: int

    def __post_init__(self) -> None:
        assert self.isr, "an ISR never becomes empty"
        assert self.leader == NO_NODE or self.leader in self.isr


@dataclass(frozen=True, slots=True)
class TopicImage:
    """A topic; `configs` are its own settings only, as text; partitions stand at their number."""

    id: bytes
    name: str
    configs: Mapping[str, str]
    partitions: tuple[PartitionImage, ...]


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

    def with_topic(self, topic: TopicImage) -> "ClusterImage":
        """This image with a topic added or replaced."""
        return replace(self, topics={**self.topics, topic.name: topic})

    def without_topic(self, name: str) -> "ClusterImage":
        """This image without a topic."""
        topics = {other: topic for other, topic in self.topics.items() if other != name}
        return replace(self, topics=topics)


@dataclass(frozen=True, slots=True)
class PartitionState:
    """What one partition shall be, as an order."""

    topic: str
    topic_id: bytes
    partition: int
    leader: int
    leader_epoch: int
    partition_epoch: int
    isr: tuple[int, ...]
    replicas: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LeaderAndIsr:
    """Take these roles. With `is_full` these are all of them: a log without a role is a stray."""

    controller_id: int
    controller_epoch: int
    broker_epoch: int
    partitions: tuple[PartitionState, ...]
    is_full: bool = False


@dataclass(frozen=True, slots=True)
class StoppedPartition:
    """A replica to give up, of the topic with this id only."""

    topic: str
    topic_id: bytes
    partition: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class StopReplica:
    """Give these replicas up; with `delete` their directories too. Unknown ones are no error."""

    controller_id: int
    controller_epoch: int
    broker_epoch: int
    partitions: tuple[StoppedPartition, ...]
    delete: bool
