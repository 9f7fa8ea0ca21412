"""DESCRIBE_CLUSTER and DESCRIBE_TOPIC_PARTITIONS, from the newest image of the cluster."""

import logging
from bisect import bisect_left
from typing import Final

from minibroker.broker.metadata.model import ClusterImage
from minibroker.broker.server.handlers.acls import CLUSTER_OPERATIONS, TOPIC_OPERATIONS
from minibroker.broker.server.handlers.metadata import describe_brokers, describe_partition
from minibroker.broker.server.services import HangUp, Services
from minibroker.broker.turns import Turn, Turns
from minibroker.protocol.constants import INTERNAL_TOPICS, NO_OPERATIONS, ErrorCode
from minibroker.protocol.messages.cluster import (
    BROKERS,
    CONTROLLERS,
    PARTITIONS_MAX,
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    TopicCursor,
)
from minibroker.protocol.messages.metadata import TopicMetadata
from minibroker.protocol.topic_names import is_topic_name

_WRONG_ENDPOINTS: Final = {
    CONTROLLERS: (ErrorCode.MISMATCHED_ENDPOINT_TYPE, "this is a broker, not a controller"),
}
_UNKNOWN_ENDPOINTS: Final = (ErrorCode.UNSUPPORTED_ENDPOINT_TYPE, "1 is the type of brokers")


def describe(
    services: Services, request: DescribeClusterRequest, now: float
) -> DescribeClusterResponse:
    """Describe the brokers. Raises `HangUp` until a controller has sent an image."""
    if request.endpoint_type != BROKERS:
        wrong = _WRONG_ENDPOINTS.get(request.endpoint_type, _UNKNOWN_ENDPOINTS)
        return DescribeClusterResponse(*wrong)
    image = _image(services)
    brokers = describe_brokers(services, image)
    return DescribeClusterResponse(
        0,
        None,
        image.cluster_id,
        image.controller_id,
        tuple(one for one in brokers if request.include_fenced or not one.is_fenced),
        CLUSTER_OPERATIONS if request.include_cluster_operations else NO_OPERATIONS,
    )


def describe_topic_partitions(
    services: Services, request: DescribeTopicPartitionsRequest, now: float
) -> Turns[DescribeTopicPartitionsResponse]:
    """Describe topics in the order of their names, with a limited number of partitions."""
    image = _image(services)  # one image for all turns: it is never changed, only replaced
    names = sorted({*request.topics} or image.topics)
    start = 0
    if request.cursor is not None:
        names = names[bisect_left(names, request.cursor.topic) :]
        if names and names[0] == request.cursor.topic:
            start = request.cursor.partition
    room = max(1, min(request.partitions_max, PARTITIONS_MAX))
    topics: list[TopicMetadata] = []
    turn = Turn()
    for name in names:
        if not room:
            return DescribeTopicPartitionsResponse(tuple(topics), TopicCursor(name))
        topics.append(_topic(image, name, start, room) if start >= 0 else _wrong_cursor(name))
        told = len(topics[-1].partitions)
        end, start = start + told, 0
        if not topics[-1].error and end < len(image.topics[name].partitions):
            return DescribeTopicPartitionsResponse(tuple(topics), TopicCursor(name, end))
        room -= told
        if turn.is_over(1 + told):
            yield
    return DescribeTopicPartitionsResponse(tuple(topics))


def _topic(image: ClusterImage, name: str, start: int, count: int) -> TopicMetadata:
    topic = image.topics.get(name)
    if topic is None:
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        is_name = is_topic_name(name)
        return TopicMetadata(name, unknown if is_name else ErrorCode.INVALID_TOPIC_EXCEPTION)
    some = topic.partitions[start : start + count]
    partitions = tuple([describe_partition(image, one) for one in some])
    is_internal = name in INTERNAL_TOPICS
    return TopicMetadata(
        name, 0, topic.id, is_internal, partitions, topic.creation, TOPIC_OPERATIONS
    )


def _wrong_cursor(name: str) -> TopicMetadata:
    return TopicMetadata(name, ErrorCode.INVALID_REQUEST)


def _image(services: Services) -> ClusterImage:
    if not services.replicas.is_ready:
        raise HangUp("this broker is still waiting for its controller", logging.INFO)
    return services.image
