"""DESCRIBE_CONFIGS and ALTER_CONFIGS, for topics."""

from minibroker.broker.replication.purgatory import Parked
from minibroker.broker.server.handlers.topics import late
from minibroker.broker.server.services import Services
from minibroker.protocol.constants import ErrorCode
from minibroker.protocol.messages.configs import (
    AlterConfigsRequest,
    AlterConfigsResponse,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    TopicConfigs,
)

ALTER_WAIT_S = 8.0  # less than clients wait, for a request that does not say how long that is


def describe(
    services: Services, request: DescribeConfigsRequest, now: float
) -> DescribeConfigsResponse:
    """Every property of each topic, as it is in force."""
    return DescribeConfigsResponse(tuple(_describe(services, name) for name in request.topics))


def _describe(services: Services, name: str) -> TopicConfigs:
    topic = services.image.topics.get(name)
    if topic is None:
        return TopicConfigs(
            name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name!r}"
        )
    return TopicConfigs(name, configs=services.config.describe_topic(topic.configs))


def alter(
    services: Services, request: AlterConfigsRequest, now: float
) -> Parked[AlterConfigsResponse]:
    """Handed to the controller, answered when it is done."""
    job = services.controller.submit(request)
    return Parked(
        (job,),
        lambda: now + ALTER_WAIT_S,
        lambda now: job.result,
        lambda: AlterConfigsResponse(tuple(late(services, topic.name) for topic in request.topics)),
    )
