"""Settings of topics and brokers: DESCRIBE_CONFIGS, and Kafka's two ways to change them."""

from functools import partial
from typing import Any, Final

from minibroker.protocol.constants import ApiKey, ConfigResourceType
from minibroker.protocol.kafka import admin_apis
from minibroker.protocol.kafka.adapters.adapter import Adapter, Array, Converted, cut_text
from minibroker.protocol.kafka.api import KafkaApi
from minibroker.protocol.kafka.schema import Version
from minibroker.protocol.messages.config_descriptions import ConfigDescription
from minibroker.protocol.messages.configs import (
    AlterConfigsRequest,
    AlterConfigsResponse,
    ConfigChange,
    ConfigResource,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
    ResourceConfigs,
    TopicConfigChanges,
)
from minibroker.protocol.messages.topics import TopicResult

# Kafka's numbers for types of settings (KIP-569), by our names.
CONFIG_TYPES: Final = {
    "boolean": 1,
    "int": 5,
    "double": 6,
    "list": 7,
    "listeners": 7,
    "names": 7,
    "replicas": 7,
}
STRING_TYPE: Final = 2


def _describe_request(asked: Any, version: Version) -> DescribeConfigsRequest:
    """Convert the request. An empty list of keys means all, as null does."""
    resources = tuple(
        ConfigResource(
            one.resource_type,
            one.resource_name,
            tuple(one.configuration_keys) if one.configuration_keys else None,
        )
        for one in asked.resources
    )
    return DescribeConfigsRequest(
        (), resources, bool(asked.include_synonyms), not asked.include_documentation
    )


def _describe_response(answer: DescribeConfigsResponse, version: Version) -> Any:
    return admin_apis.DESCRIBE_CONFIGS.response.make(0, Converted(_described, answer.resources))


_RESULTS: Final = admin_apis.DESCRIBE_CONFIGS.response.of("results")
_MAKE_CONFIG: Final = _RESULTS.of("configs").make
_MAKE_SYNONYM: Final = _RESULTS.of("configs").of("synonyms").make


def _described(one: ResourceConfigs) -> Any:
    return _RESULTS.make(
        one.error,
        cut_text(one.error_message),
        one.resource_type,
        one.name,
        Converted(_described_config, one.configs),
    )


def _described_config(config: ConfigDescription) -> Any:
    return _MAKE_CONFIG(
        config.name,
        None if config.is_sensitive else config.value,
        config.is_read_only,
        config.is_default,
        config.source,
        config.is_sensitive,
        [_MAKE_SYNONYM(one.name, one.value, one.source) for one in config.synonyms],
        CONFIG_TYPES.get(config.type, STRING_TYPE),
        config.documentation or None,
    )


def _alter_request(asked: Any, version: Version) -> AlterConfigsRequest:
    """Convert Kafka's older request, which resets settings that it does not name."""
    topics = tuple(
        TopicConfigChanges(
            resource.resource_name,
            tuple(ConfigChange(one.name, one.value) for one in resource.configs),
            resource.resource_type,
        )
        for resource in asked.resources
    )
    return AlterConfigsRequest(topics, asked.validate_only, reset_others=True)


def _incremental_alter_request(asked: Any, version: Version) -> AlterConfigsRequest:
    topics = tuple(
        TopicConfigChanges(
            resource.resource_name,
            tuple(
                ConfigChange(one.name, one.value, one.config_operation) for one in resource.configs
            ),
            resource.resource_type,
        )
        for resource in asked.resources
    )
    return AlterConfigsRequest(topics, asked.validate_only)


def _alter_response(api: KafkaApi, answer: AlterConfigsResponse, version: Version) -> Any:
    make = api.response.of("responses").make

    def altered(result: tuple[TopicResult, int]) -> Any:
        one, resource_type = result
        return make(one.error, cut_text(one.error_message), resource_type, one.name)

    results = list(zip(answer.topics, answer.resource_types, strict=True))
    return api.response.make(0, Converted(altered, results))


def _list_request(asked: Any, version: Version) -> ListConfigResourcesRequest:
    """Convert the request. Version 0 lists the subscriptions to metrics of clients."""
    types = asked.resource_types if version else [ConfigResourceType.CLIENT_METRICS]
    return ListConfigResourcesRequest(tuple(types))


def _list_response(answer: ListConfigResourcesResponse, version: Version) -> Any:
    make = admin_apis.LIST_CONFIG_RESOURCES.response.of("config_resources").make
    resources = Converted(lambda one: make(one.name, one.resource_type), answer.resources)
    return admin_apis.LIST_CONFIG_RESOURCES.response.make(0, answer.error, resources)


ADAPTERS: Final = (
    Adapter(
        admin_apis.LIST_CONFIG_RESOURCES,
        ApiKey.LIST_CONFIG_RESOURCES,
        _list_request,
        _list_response,
    ),
    Adapter(
        admin_apis.DESCRIBE_CONFIGS,
        ApiKey.DESCRIBE_CONFIGS,
        _describe_request,
        _describe_response,
        Array("resources", "resources"),
    ),
    Adapter(
        admin_apis.ALTER_CONFIGS,
        ApiKey.ALTER_CONFIGS,
        _alter_request,
        partial(_alter_response, admin_apis.ALTER_CONFIGS),
        Array("resources", "topics", "configs", kept="changes"),
    ),
    Adapter(
        admin_apis.INCREMENTAL_ALTER_CONFIGS,
        ApiKey.ALTER_CONFIGS,
        _incremental_alter_request,
        partial(_alter_response, admin_apis.INCREMENTAL_ALTER_CONFIGS),
        Array("resources", "topics", "configs", kept="changes"),
    ),
)
