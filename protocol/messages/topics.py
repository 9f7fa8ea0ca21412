"""CREATE_TOPICS and DELETE_TOPICS."""

from dataclasses import dataclass

from minibroker.protocol.messages import Request

DEFAULT_COUNT = -1


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """A topic property and its value, both as text."""

    name: str
    value: str = ""


@dataclass(frozen=True, slots=True)
class NewTopic:
    """`partition_count` and `replication_factor` -1 take the broker's default."""

    name: str
    partition_count: int = DEFAULT_COUNT
    replication_factor: int = DEFAULT_COUNT
    configs: tuple[ConfigEntry, ...] = ()


@dataclass(frozen=True, slots=True)
class CreateTopicsRequest(Request["CreateTopicsResponse"]):
    """With `validate_only` everything is checked and nothing made."""

    topics: tuple[NewTopic, ...] = ()
    timeout_ms: int = 30_000
    validate_only: bool = False


@dataclass(frozen=True, slots=True)
class TopicResult:
    """What became of one topic."""

    name: str
    error: int = 0
    error_message: str | None = None
    topic_id: bytes = bytes(16)


@dataclass(frozen=True, slots=True)
class CreateTopicsResponse:
    """A result for each topic of the request, in its order."""

    topics: tuple[TopicResult, ...] = ()


@dataclass(frozen=True, slots=True)
class DeleteTopicsRequest(Request["DeleteTopicsResponse"]):
    """The names of the topics to delete."""

    topics: tuple[str, ...] = ()
    timeout_ms: int = 30_000


@dataclass(frozen=True, slots=True)
class DeleteTopicsResponse:
    """A result for each topic of the request, in its order."""

    topics: tuple[TopicResult, ...] = ()
