"""DESCRIBE_CONFIGS and ALTER_CONFIGS, for topics."""

from dataclasses import dataclass

from minibroker.protocol.messages import Request
from minibroker.protocol.messages.topics import TopicResult


@dataclass(frozen=True, slots=True)
class DescribeConfigsRequest(Request["DescribeConfigsResponse"]):
    """The topics to describe."""

    topics: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ConfigDescription:
    """One property as it is in force; `is_default` where the topic does not set it itself."""

    name: str
    value: str = ""
    is_default: bool = True
    type: str = ""
    unit: str = ""
    documentation: str = ""


@dataclass(frozen=True, slots=True)
class TopicConfigs:
    """Every property of one topic."""

    name: str
    error: int = 0
    error_message: str | None = None
    configs: tuple[ConfigDescription, ...] = ()


@dataclass(frozen=True, slots=True)
class DescribeConfigsResponse:
    """An answer for each topic of the request, in its order."""

    topics: tuple[TopicConfigs, ...] = ()


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """Set a property; `value` None goes back to the broker's default."""

    name: str
    value: str | None = None


@dataclass(frozen=True, slots=True)
class TopicConfigChanges:
    """The changes of one topic: all of them are made, or none."""

    name: str
    changes: tuple[ConfigChange, ...] = ()


@dataclass(frozen=True, slots=True)
class AlterConfigsRequest(Request["AlterConfigsResponse"]):
    """What is not named stays as it is."""

    topics: tuple[TopicConfigChanges, ...] = ()
    validate_only: bool = False


@dataclass(frozen=True, slots=True)
class AlterConfigsResponse:
    """A result for each topic of the request, in its order."""

    topics: tuple[TopicResult, ...] = ()
