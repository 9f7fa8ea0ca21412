"""DESCRIBE_CONFIGS and ALTER_CONFIGS for topics, groups and brokers; LIST_CONFIG_RESOURCES.

A broker describes only itself, and alters any.

The properties of a resource that a request names several times are looked up once, and entries that
are equal are answered once.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from minibroker.broker.errors import Refused
from minibroker.broker.replication.purgatory import Parked
from minibroker.broker.server.handlers.topics import late
from minibroker.broker.server.services import Services
from minibroker.broker.turns import AT_ONCE, Turns, at_once
from minibroker.protocol.constants import ConfigResourceType, ErrorCode
from minibroker.protocol.messages.config_descriptions import ConfigDescription
from minibroker.protocol.messages.configs import (
    AlterConfigsRequest,
    AlterConfigsResponse,
    ConfigResource,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
    ResourceConfigs,
    TopicConfigs,
)
from minibroker.protocol.topic_names import is_topic_name

RESOURCES_AT_ONCE = 20  # each has some dozens of properties
ALTER_WAIT_S = 8.0  # below the time-out of clients; the request has none


def describe(
    services: Services, request: DescribeConfigsRequest, now: float
) -> Turns[DescribeConfigsResponse]:
    """Return the properties in force of the topics, or of this broker, that are asked for."""
    topic = ConfigResourceType.TOPIC
    named = yield from _describe_all(
        services, (ConfigResource(topic, name) for name in request.topics), request
    )
    topics: list[TopicConfigs] = []
    for some in at_once(named):
        topics += [
            TopicConfigs(each.name, each.error, each.error_message, each.configs) for each in some
        ]
        if len(some) == AT_ONCE:
            yield
    resources = yield from _describe_all(services, request.resources, request)
    return DescribeConfigsResponse(tuple(topics), resources)


def _describe_all(
    services: Services, resources: Iterable[ConfigResource], request: DescribeConfigsRequest
) -> Turns[tuple[ResourceConfigs, ...]]:
    known: dict[tuple[int, str], ResourceConfigs] = {}
    described = []
    seen: set[ConfigResource] = set()
    for some in at_once(resources, RESOURCES_AT_ONCE):
        for asked in some:
            if asked in seen:
                continue
            seen.add(asked)
            key = asked.resource_type, asked.name
            if key not in known:
                known[key] = _describe(services, *key, request)
            described.append(_of_these_names(known[key], asked.properties))
        if len(some) == RESOURCES_AT_ONCE:
            yield
    return tuple(described)


def _describe(
    services: Services, kind: int, name: str, request: DescribeConfigsRequest
) -> ResourceConfigs:
    """Return all properties of a resource, as detailed as the request asks for."""
    try:
        configs = _configs_of(services, kind, name, with_synonyms=request.include_synonyms)
    except Refused as refused:
        return ResourceConfigs(kind, name, refused.code, refused.message)
    if request.exclude_documentation:
        configs = tuple([replace(one, documentation="") for one in configs])
    return ResourceConfigs(kind, name, configs=configs)


def _of_these_names(whole: ResourceConfigs, names: tuple[str, ...] | None) -> ResourceConfigs:
    """Return the properties with these names; all for None."""
    if names is None:
        return whole
    chosen = set(names)
    return replace(whole, configs=tuple([one for one in whole.configs if one.name in chosen]))


def _configs_of(
    services: Services, kind: int, name: str, *, with_synonyms: bool
) -> tuple[ConfigDescription, ...]:
    """Return every property of a resource. Raises `Refused`."""
    if kind == ConfigResourceType.TOPIC:
        if not is_topic_name(name):
            what = f"no topic can have the name {name!r}"
            raise Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, what)
        topic = services.image.topics.get(name)
        if topic is None:
            raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name!r}")
        own = services.config.own_settings(name)
        settings = {**own, **topic.configs}
        return services.config.describe_topic(settings, with_synonyms=with_synonyms)
    if kind == ConfigResourceType.GROUP:
        own = services.image.groups.get(name, {})
        return services.config.describe_group(own, with_synonyms=with_synonyms)
    if kind != ConfigResourceType.BROKER:
        what = f"there is no resource type {kind} that has settings here"
        raise Refused(ErrorCode.INVALID_REQUEST, what)
    node_id = services.replicas.broker_id
    if name not in ("", str(node_id)):
        what = f"this is broker {node_id}, which describes itself only, not {name!r}"
        raise Refused(ErrorCode.INVALID_REQUEST, what)
    if not name:
        return ()
    here = services.image.brokers.get(node_id)
    own = {} if here is None else here.configs
    return services.config.describe_broker(own, with_synonyms=with_synonyms)


LISTED_TYPES: Final = (
    ConfigResourceType.TOPIC,
    ConfigResourceType.BROKER,
    ConfigResourceType.GROUP,  # those with settings of their own
)
EMPTY_TYPES: Final = (ConfigResourceType.CLIENT_METRICS,)


def list_resources(
    services: Services, request: ListConfigResourcesRequest, now: float
) -> Turns[ListConfigResourcesResponse]:
    """Return the resources of these types. Of some types of Kafka there are none."""
    kinds = {*request.resource_types}
    if kinds.difference(LISTED_TYPES, EMPTY_TYPES):
        return ListConfigResourcesResponse(ErrorCode.UNSUPPORTED_VERSION)
    image = services.image  # one image for all turns: it is never changed, only replaced
    found: list[ConfigResource] = []
    for kind in LISTED_TYPES:
        if kinds and kind not in kinds:
            continue
        names: dict[int, Iterable[str]] = {
            ConfigResourceType.TOPIC: image.topics,
            ConfigResourceType.BROKER: map(str, image.brokers),
            ConfigResourceType.GROUP: image.groups,
        }
        for some in at_once(names[kind]):
            found += [ConfigResource(kind, name) for name in some]
            if len(some) == AT_ONCE:
                yield
    return ListConfigResourcesResponse(0, tuple(found))


def alter(
    services: Services, request: AlterConfigsRequest, now: float
) -> Parked[AlterConfigsResponse]:
    """Pass the request to the controller, on any broker; answer when it is done.

    A request that another broker has passed on is not passed on again.
    """
    controller = services.controller
    if request.is_forwarded:
        job = controller.submit(request)
    else:
        job = controller.forward(replace(request, is_forwarded=True))
    types = tuple(topic.resource_type for topic in request.topics)

    def attempt(now: float) -> AlterConfigsResponse | None:
        return job.result and replace(job.result, resource_types=types)

    def expire() -> AlterConfigsResponse:
        results = late(services, [topic.name for topic in request.topics])
        return AlterConfigsResponse(results, types)

    return Parked((job,), lambda: now + ALTER_WAIT_S, attempt, expire)
