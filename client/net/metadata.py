"""A client's image of brokers, topics and leaders. Pure: cluster.py asks the brokers.

A leader counts by its epoch: an older epoch never replaces a newer one, whether it came in metadata
or as a hint in the answer to a request. Epochs belong to a topic id: the epochs of a topic that was
deleted and created again begin anew, and so does what is known of its leaders. Of two ids the one
with the higher creation number is newer: what a broker says of a deleted topic is ignored once the
topic was created again.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

from minibroker.client.errors import error_code
from minibroker.protocol.constants import NO_EPOCH, NO_NODE, ErrorCode
from minibroker.protocol.messages.metadata import MetadataResponse, TopicMetadata
from minibroker.protocol.types import Endpoint, TopicPartition


class Leader(NamedTuple):
    """A partition's leader and its epoch. `node_id` is -1 while there is none."""

    node_id: int
    leader_epoch: int


_NO_LEADER: Final = Leader(NO_NODE, NO_EPOCH)


class Metadata:
    """The result of all answers and hints. Read its fields; only its methods change them."""

    def __init__(self) -> None:
        self.endpoints: dict[int, Endpoint] = {}  # the addresses of the brokers that were live last
        self.controller_id = NO_NODE
        self.topics: dict[str, TopicMetadata] = {}
        self.errors: dict[str, ErrorCode] = {}  # the topics' errors in the last answer
        self._leaders: dict[TopicPartition, Leader] = {}
        self._creations: dict[str, int] = {}  # the highest creation number of each topic

    def leader_of(self, topic_partition: TopicPartition) -> Leader | None:
        """Return the leader and its epoch; None if there is none, or it is not known."""
        leader = self._leaders.get(topic_partition)
        return None if leader is None or leader.node_id == NO_NODE else leader

    def update_leader(
        self, topic_partition: TopicPartition, leader: Leader, topic_id: bytes = b""
    ) -> bool:
        """Set the leader that an answer named; the request was about this topic (empty: not
        checked).

        Return False if that is not new, or if the topic was deleted since: its epochs may be higher
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
        """Apply a broker's answer. Return False if nothing in it is new."""
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
        """Forget a topic. Return whether it was deleted, or never existed."""
        self._drop_leaders(topic)
        self.topics.pop(topic, None)
        self._creations.pop(topic, None)
        return self.errors.pop(topic, ErrorCode.NONE) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def _update_topic(self, topic: TopicMetadata) -> None:
        newest = self._creations.get(topic.name, 0)
        if 0 < topic.creation < newest:
            return  # this broker does not know the newest topic yet
        self._creations[topic.name] = max(topic.creation, newest)
        known = self.topics.get(topic.name)
        if known is not None and known.topic_id != topic.topic_id:
            self._drop_leaders(topic.name)  # deleted and created again: epochs begin anew
        if (
            known is None
            or known.topic_id != topic.topic_id
            or len(known.partitions) <= len(topic.partitions)
        ):  # else this broker does not know the newest partitions yet
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
