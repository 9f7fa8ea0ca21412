"""DESCRIBE_CONFIGS and ALTER_CONFIGS, of topics, groups and brokers.

A resource is a topic (2, by name), a broker (4, by its node id as text) or a consumer group (32, by
its id). A broker describes itself only; "" stands for what all brokers share beside their own
files, which is nothing here.
"""

from dataclasses import dataclass

from minibroker.protocol.constants import ConfigOperation, ConfigResourceType
from minibroker.protocol.messages import Request
from minibroker.protocol.messages.config_descriptions import ConfigDescription
from minibroker.protocol.messages.topics import TopicResult


@dataclass(frozen=True, slots=True)
class ConfigResource:
    """A resource to describe: these properties of it, or all (nil). Unknown ones are left out."""

    resource_type: int
    name: str
    properties: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class DescribeConfigsRequest(Request["DescribeConfigsResponse"]):
    """The topics to describe with all properties, and other resources. With `include_synonyms` each
    property of a resource says where its value could come from; `exclude_documentation` leaves its
    sentence out."""

    topics: tuple[str, ...] = ()
    resources: tuple[ConfigResource, ...] = ()
    include_synonyms: bool = False
    exclude_documentation: bool = False


@dataclass(frozen=True, slots=True)
class TopicConfigs:
    """Every property of one topic."""

    name: str
    error: int = 0
    error_message: str | None = None
    configs: tuple[ConfigDescription, ...] = ()


@dataclass(frozen=True, slots=True)
class ResourceConfigs:
    """The properties of one resource that were asked for."""

    resource_type: int
    name: str
    error: int = 0
    error_message: str | None = None
    configs: tuple[ConfigDescription, ...] = ()


@dataclass(frozen=True, slots=True)
class DescribeConfigsResponse:
    """An answer for each topic and for each other resource of the request, in its order."""

    topics: tuple[TopicConfigs, ...] = ()
    resources: tuple[ResourceConfigs, ...] = ()


@dataclass(frozen=True, slots=True)
class ListConfigResourcesRequest(Request["ListConfigResourcesResponse"]):
    """The types of the resources to list; none: all types."""

    resource_types: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ListConfigResourcesResponse:
    """The resources that can have settings: topics, brokers, and groups that have some."""

    error: int = 0
    resources: tuple[ConfigResource, ...] = ()


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """Change a property. `operation` 0: set it, or go back to its default where `value` is nil; 1:
    go back to its default; 2, 3: add `value`, with commas, to the list, or take it out."""

    name: str
    value: str | None = None
    operation: int = ConfigOperation.SET


@dataclass(frozen=True, slots=True)
class TopicConfigChanges:
    """The changes of one topic: all of them are made, or none.

    `resource_type` says what `name` names: a topic (2), a broker (4) or a group (32); anything else
    is refused with INVALID_REQUEST. Of a broker only the rates of its replication quotas can be
    changed while it runs.
    """

    name: str
    changes: tuple[ConfigChange, ...] = ()
    resource_type: int = ConfigResourceType.TOPIC


@dataclass(frozen=True, slots=True)
class AlterConfigsRequest(Request["AlterConfigsResponse"]):
    """What is not named stays as it is; with `reset_others` it goes back to its default.

    Any broker takes the request. One that is not the controller passes it on, and says so by
    `is_forwarded`.
    """

    topics: tuple[TopicConfigChanges, ...] = ()
    validate_only: bool = False
    reset_others: bool = False
    is_forwarded: bool = False


@dataclass(frozen=True, slots=True)
class AlterConfigsResponse:
    """A result for each resource of the request, in its order, and what each of them is."""

    topics: tuple[TopicResult, ...] = ()
    resource_types: tuple[int, ...] = ()
