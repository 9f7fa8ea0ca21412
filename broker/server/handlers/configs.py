"""DESCRIBE_CONFIGS for topics and this broker, and ALTER_CONFIGS for topics."""

from dataclasses import replace

from minibroker.broker.errors import Refused
from minibroker.broker.replication.purgatory import Parked
from minibroker.broker.server.handlers.topics import late
from minibroker.broker.server.services import Services
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

ALTER_WAIT_S = 8.0  # below the time-out of clients; the request has none


def describe(
    services: Services, request: DescribeConfigsRequest, now: float
) -> DescribeConfigsResponse:
    """Return the properties in force of the topics, or of this broker, that are asked for."""
    topic = ConfigResourceType.TOPIC
    named = [_describe(services, ConfigResource(topic, name)) for name in request.topics]
    return DescribeConfigsResponse(
        tuple(
            TopicConfigs(each.name, each.error, each.error_message, each.configs) for each in named
        ),
        tuple(_describe(services, resource) for resource in request.resources),
    )


def _describe(services: Services, asked: ConfigResource) -> ResourceConfigs:
    """Return the requested properties of one resource."""
    kind, name, wanted = asked.resource_type, asked.name, asked.properties
    try:
        found = _configs_of(services, kind, name)
    except Refused as refused:
        return ResourceConfigs(kind, name, refused.code, refused.message)
    configs = tuple(each for each in found if wanted is None or each.name in wanted)
    return ResourceConfigs(kind, name, configs=configs)


def _configs_of(services: Services, kind: int, name: str) -> tuple[ConfigDescription, ...]:
    """Return every property of a resource. Raises `Refused`."""
    if kind == ConfigResourceType.TOPIC:
        topic = services.image.topics.get(name)
        if topic is None:
            raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name!r}")
        return services.config.describe_topic(topic.configs)
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
