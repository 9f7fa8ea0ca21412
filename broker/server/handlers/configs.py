"""DESCRIBE_CONFIGS for topics, groups and this broker, and ALTER_CONFIGS for topics and groups.

The properties of a resource that a request names several times are looked up once, and entries that
are equal are answered once.
"""

from collections.abc import Iterable
from dataclasses import replace

from minibroker.broker.errors import Refused
from minibroker.broker.replication.purgatory import Parked
from minibroker.broker.server.handlers.topics import late
from minibroker.broker.server.services import Services
from minibroker.broker.turns import AT_ONCE, Turns, at_once
from minibroker.protocol.constants import ConfigResourceType, ErrorCode
from minibroker.protocol.messages.configs import (
    AlterConfigsRequest,
    AlterConfigsResponse,
    ConfigDescription,
    ConfigResource,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    ResourceConfigs,
    TopicConfigs,
)

RESOURCES_AT_ONCE = 20  # each has some dozens of properties
ALTER_WAIT_S = 8.0  # below the time-out of clients; the request has none


def describe(
    services: Services, request: DescribeConfigsRequest, now: float
) -> Turns[DescribeConfigsResponse]:
    """Return the properties in force of the topics, or of this broker, that are asked for."""
    topic = ConfigResourceType.TOPIC
    named = yield from _describe_all(
        services, (ConfigResource(topic, name) for name in request.topics)
    )
    topics: list[TopicConfigs] = []
    for some in at_once(named):
        topics += [
            TopicConfigs(each.name, each.error, each.error_message, each.configs) for each in some
        ]
        if len(some) == AT_ONCE:
            yield
    resources = yield from _describe_all(services, request.resources)
    return DescribeConfigsResponse(tuple(topics), resources)


def _describe_all(
    services: Services, resources: Iterable[ConfigResource]
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
                known[key] = _describe(services, *key)
            described.append(_of_these_names(known[key], asked.properties))
        if len(some) == RESOURCES_AT_ONCE:
            yield
    return tuple(described)


def _describe(services: Services, kind: int, name: str) -> ResourceConfigs:
    """Return all properties of a resource."""
    try:
        return ResourceConfigs(kind, name, configs=_configs_of(services, kind, name))
    except Refused as refused:
        return ResourceConfigs(kind, name, refused.code, refused.message)


def _of_these_names(whole: ResourceConfigs, names: tuple[str, ...] | None) -> ResourceConfigs:
    """Return the properties with these names; all for None."""
    if names is None:
        return whole
    chosen = set(names)
    return replace(whole, configs=tuple([one for one in whole.configs if one.name in chosen]))


def _configs_of(services: Services, kind: int, name: str) -> tuple[ConfigDescription, ...]:
    """Return every property of a resource. Raises `Refused`."""
    if kind == ConfigResourceType.TOPIC:
        topic = services.image.topics.get(name)
        if topic is None:
            raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name!r}")
        own = services.config.own_settings(name)
        return services.config.describe_topic({**own, **topic.configs})
    if kind == ConfigResourceType.GROUP:
        return services.config.describe_group(services.image.groups.get(name, {}))
    if kind != ConfigResourceType.BROKER:
        what = f"there is no resource type {kind} that has settings here"
        raise Refused(ErrorCode.INVALID_REQUEST, what)
    node_id = services.replicas.broker_id
    if name not in ("", str(node_id)):
        what = f"this is broker {node_id}, which describes itself only, not {name!r}"
        raise Refused(ErrorCode.INVALID_REQUEST, what)
    return services.config.describe_broker() if name else ()


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
