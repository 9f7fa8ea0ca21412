"""CREATE_TOPICS, DELETE_TOPICS and CREATE_PARTITIONS."""

from dataclasses import dataclass

from minibroker.protocol.messages import Request
from minibroker.protocol.messages.config_descriptions import ConfigDescription

DEFAULT_COUNT = -1


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """A topic property and its value, both as text."""

    name: str
    value: str = ""


@dataclass(frozen=True, slots=True)
class ReplicaAssignment:
    """The brokers of a new partition, the preferred leader first."""

    partition: int
    broker_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class NewTopic:
    """`partition_count` and `replication_factor` -1 take the broker's default.

    With `assignments` the controller does not choose the brokers. They name each partition from 0
    on once; both counts are -1 then.
    """

    name: str
    partition_count: int = DEFAULT_COUNT
    replication_factor: int = DEFAULT_COUNT
    configs: tuple[ConfigEntry, ...] = ()
    assignments: tuple[ReplicaAssignment, ...] = ()


@dataclass(frozen=True, slots=True)
class CreateTopicsRequest(Request["CreateTopicsResponse"]):
    """With `validate_only` everything is checked and nothing made. With `include_configs` the
    answer has the properties of each topic."""

    topics: tuple[NewTopic, ...] = ()
    timeout_ms: int = 30_000
    validate_only: bool = False
    include_configs: bool = False


@dataclass(frozen=True, slots=True)
class TopicResult:
    """The result for one topic. The counts are those of a created topic, else -1. The name is ""
    for an id that no topic has."""

    name: str
    error: int = 0
    error_message: str | None = None
    topic_id: bytes = bytes(16)
    partition_count: int = DEFAULT_COUNT
    replication_factor: int = DEFAULT_COUNT


@dataclass(frozen=True, slots=True)
class CreateTopicsResponse:
    """A result for each topic of the request, in its order; `configs`, if they were asked for, are
    the properties of each, none for a topic that was refused."""

    topics: tuple[TopicResult, ...] = ()
    configs: tuple[tuple[ConfigDescription, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class UnclearTopic:
    """A topic that a request names by a name and an id, or by neither ("" and zeros)."""

    name: str
    topic_id: bytes


@dataclass(frozen=True, slots=True)
class DeleteTopicsRequest(Request["DeleteTopicsResponse"]):
    """The names of topics to delete, and the ids of others. Those that are `unclear` are refused
    one by one."""

    topics: tuple[str, ...] = ()
    timeout_ms: int = 30_000
    topic_ids: tuple[bytes, ...] = ()
    unclear: tuple[UnclearTopic, ...] = ()

    def refused(self, code: int, message: str) -> "DeleteTopicsResponse":
        """Return the answer that refuses each topic with this error."""
        return DeleteTopicsResponse(
            (
                *[TopicResult(name, code, message) for name in self.topics],
                *[TopicResult("", code, message, topic_id) for topic_id in self.topic_ids],
                *[TopicResult(one.name, code, message, one.topic_id) for one in self.unclear],
            )
        )


@dataclass(frozen=True, slots=True)
class DeleteTopicsResponse:
    """A result for each topic of the request, in its order: those of the names, of the ids, and
    those that are unclear."""

    topics: tuple[TopicResult, ...] = ()


@dataclass(frozen=True, slots=True)
class NewPartitions:
    """`count` is the new total number of partitions of the topic.

    `assignments` are the brokers of each new partition in order, the preferred leader first; nil:
    the controller chooses them.
    """

    name: str
    count: int
    assignments: tuple[tuple[int, ...], ...] | None = None


@dataclass(frozen=True, slots=True)
class CreatePartitionsRequest(Request["CreatePartitionsResponse"]):
    """With `validate_only` everything is checked and nothing made. A topic is named once."""

    topics: tuple[NewPartitions, ...] = ()
    timeout_ms: int = 30_000
    validate_only: bool = False


@dataclass(frozen=True, slots=True)
class CreatePartitionsResponse:
    """A result for each topic of the request, in its order, with the counts of the topic."""

    topics: tuple[TopicResult, ...] = ()
