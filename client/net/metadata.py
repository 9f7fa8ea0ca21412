"""What a client knows of brokers, topics and leaders. Pure: cluster.py asks for it.

A leader is believed by its epoch: what was learnt from a newer epoch is never replaced by an older
one, whether it came in metadata or as a hint in the answer to a request. Epochs belong to a topic
id: a topic that was deleted and made again begins anew, and so does what is known of its leaders.
Which of two ids is the newer one is told by the topic's creation number: a broker that has not
heard yet that a topic was made again is not believed, whatever it tells of the deleted one.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

from minibroker.client.errors import error_code
from minibroker.protocol.constants import NO_EPOCH, NO_NODE, ErrorCode
from minibroker.protocol.messages.metadata import MetadataResponse, TopicMetadata
from minibroker.protocol.types import Endpoint, TopicPartition


class Leader(NamedTuple):
    """Who leads a partition, in which epoch. `node_id` is -1 while nobody does."""

    node_id: int
    leader_epoch: int


_NO_LEADER: Final = Leader(NO_NODE, NO_EPOCH)


class Metadata:
    """The sum of all answers and hints. Read its fields; only its methods change them."""

    def __init__(self) -> None:
        self.endpoints: dict[int, Endpoint] = {}  # of the brokers that were alive last
        self.controller_id = NO_NODE
        self.topics: dict[str, TopicMetadata] = {}
        self.errors: dict[str, ErrorCode] = {}  # of topics, in the last answer
        self._leaders: dict[TopicPartition, Leader] = {}
        self._creations: dict[str, int] = {}  # of each topic, the highest that was told

    def leader_of(self, topic_partition: TopicPartition) -> Leader | None:
        """The leader and its epoch; None while there is none, or it is not known."""
        leader = self._leaders.get(topic_partition)
        return None if leader is None or leader.node_id == NO_NODE else leader

    def update_leader(
        self, topic_partition: TopicPartition, leader: Leader, topic_id: bytes = b""
    ) -> bool:
        """Who leads, by the answer to a request that named this topic (empty: not checked).

        False if that is nothing new, or if the topic was deleted since: its epochs may be higher
        than those of the topic that has its name now.
        """
        topic = self.topics.get(topic_partition.topic)
        if topic_id and (topic is None or topic.topic_id != topic_id):
            return False
        known = self._leaders.get(topic_partition, _NO_LEADER)
        if leader.node_id == NO_NODE or leader.leader_epoch <= known.leader_epoch:
            return False
        self._leaders[topic_partition] = leader
        return True

    def update(self, answer: MetadataResponse) -> bool:
        """What a broker told. False if that is nothing new."""
        before = (self.endpoints, self.controller_id, self._ids(), dict(self._leaders))
        if answer.brokers:
            self.endpoints = {
                broker.node_id: Endpoint(broker.host, broker.port) for broker in answer.brokers
            }
            self.controller_id = answer.controller_id
        self.errors = {topic.name: error_code(topic.error) for topic in answer.topics}
        for topic in answer.topics:
            error = self.errors[topic.name]
            if error == ErrorCode.NONE and topic.partitions:
                self._update_topic(topic)
            elif error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                self._drop_leaders(topic.name)
                self.topics.pop(topic.name, None)
        return before != (self.endpoints, self.controller_id, self._ids(), self._leaders)

    def forget(self, topic: str) -> bool:
        """Know nothing of a topic. Returns whether it was deleted, or was never there."""
        self._drop_leaders(topic)
        self.topics.pop(topic, None)
        self._creations.pop(topic, None)
        return self.errors.pop(topic, ErrorCode.NONE) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def _update_topic(self, topic: TopicMetadata) -> None:
        newest = self._creations.get(topic.name, 0)
        if 0 < topic.creation < newest:
            return  # who tells it has not heard of the newest one
        self._creations[topic.name] = max(topic.creation, newest)
        known = self.topics.get(topic.name)
        if known is not None and known.topic_id != topic.topic_id:
            self._drop_leaders(topic.name)  # deleted and made again: epochs start anew
        if (
            known is None
            or known.topic_id != topic.topic_id
            or len(known.partitions) <= len(topic.partitions)
        ):  # else who tells it has not heard of the newest partitions
            self.topics[topic.name] = topic
        for partition in topic.partitions:
            name = TopicPartition(topic.name, partition.partition)
            if partition.leader_epoch >= self._leaders.get(name, _NO_LEADER).leader_epoch:
                self._leaders[name] = Leader(partition.leader_id, partition.leader_epoch)

    def _drop_leaders(self, topic: str) -> None:
        for name in [name for name in self._leaders if name.topic == topic]:
            del self._leaders[name]

    def _ids(self) -> Iterable[tuple[str, bytes]]:
        return [(topic.name, topic.topic_id) for topic in self.topics.values()]
