"""The coordinator of a broker: keeper of the groups whose partition it leads.

`Services` has one. Handlers ask it where a group is kept, and for the group itself.
"""

from collections.abc import Callable
from typing import NamedTuple

from minibroker.broker.config import Config
from minibroker.broker.groups.placement import partition_of
from minibroker.broker.metadata.model import BrokerImage, PartitionImage
from minibroker.broker.replication.replicas import Replicas
from minibroker.protocol.constants import OFFSETS_TOPIC
from minibroker.protocol.types import TopicPartition


class Clocks(NamedTuple):
    """What a coordinator knows of time: the wall clock in milliseconds, and whether this broker's
    session with the cluster is sure to last at a moment of trio's clock."""

    wall_ms: Callable[[], int]
    is_lease_current: Callable[[float], bool]


class Coordinator:
    """See the head of this module."""

    def __init__(self, config: Config, replicas: Replicas, clocks: Clocks) -> None:
        self._config = config
        self._replicas = replicas
        self._clocks = clocks

    @property
    def has_topic(self) -> bool:
        """Whether the offsets topic is known here."""
        return OFFSETS_TOPIC in self._replicas.image.topics

    def keeper(self, group_id: str) -> BrokerImage | None:
        """The live broker that keeps a group, as far as is known here."""
        image = self._replicas.image
        partition = self._partition_of(group_id)
        return None if partition is None else image.brokers.get(partition.leader)

    def _partition_of(self, group_id: str) -> PartitionImage | None:
        topic = self._replicas.image.topics.get(OFFSETS_TOPIC)
        if topic is None:
            return None
        number = partition_of(group_id, len(topic.partitions))
        return self._replicas.image.partition(TopicPartition(OFFSETS_TOPIC, number))
