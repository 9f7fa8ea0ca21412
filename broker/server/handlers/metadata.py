"""METADATA: describe the cluster from the newest image, and create missing topics.

The controller creates a topic that does not exist if both this broker
(`auto.create.topics.enable`) and the request allow it. The answer waits for that, so that the
client learns the leaders at once instead of asking again. If the topic could not be created, its
error is the reason.

A client that creates a topic is answered once every broker in touch with the controller knows the
topic. A broker out of touch may learn of it later: it answers LEADER_NOT_AVAILABLE for a topic
that it does not know, after which clients ask again.
"""

import logging
from collections.abc import Mapping
from dataclasses import replace

from minibroker.broker.metadata.model import ClusterImage, PartitionImage
from minibroker.broker.replication.purgatory import Parked
from minibroker.broker.server.handlers.acls import CLUSTER_OPERATIONS, TOPIC_OPERATIONS
from minibroker.broker.server.services import HangUp, Services
from minibroker.broker.turns import AT_ONCE, Turns, at_once, without_pause
from minibroker.protocol.constants import INTERNAL_TOPICS, NO_NODE, NO_OPERATIONS, ErrorCode
from minibroker.protocol.messages.metadata import (
    BrokerMetadata,
    MetadataRequest,
    MetadataResponse,
    PartitionMetadata,
    TopicMetadata,
)
from minibroker.protocol.messages.topics import CreateTopicsRequest, NewTopic
from minibroker.protocol.topic_names import is_topic_name

CREATION_WAIT_S = 10.0
NO_ERRORS: Mapping[str, int] = {}
LATER = int(ErrorCode.LEADER_NOT_AVAILABLE)


def handle(
    services: Services, request: MetadataRequest, now: float
) -> Turns[MetadataResponse] | Parked[MetadataResponse]:
    """Describe all topics, the named ones, or none.

    Raises `HangUp` until a controller has sent an image: other brokers may know more.
    """
    if not services.replicas.is_ready:
        raise HangUp("this broker is still waiting for its controller", logging.INFO)
    names = services.image.topics if request.topics is None else dict.fromkeys(request.topics)
    if request.topic_ids:
        known = services.image.topic_names
        names = dict.fromkeys([*names, *[known[one] for one in request.topic_ids if one in known]])
    missing = [name for name in names if name not in services.image.topics]
    may_create = request.allow_auto_topic_creation and services.config.auto_create_topics_enable
    if not missing or not may_create:
        errors = NO_ERRORS
        if missing and not services.controller.may_decide_alone(now):
            errors = dict.fromkeys(filter(is_topic_name, missing), LATER)
        return _describe(services, request, tuple(names), errors)
    job = services.controller.forward(CreateTopicsRequest(tuple(map(NewTopic, missing))))

    def attempt(now: float) -> MetadataResponse | None:
        if job.result is None:
            return None
        errors = {result.name: _reason(result.error) for result in job.result.topics}
        return without_pause(_describe(services, request, tuple(names), errors))

    def expire() -> MetadataResponse:
        errors = dict.fromkeys(missing, LATER)
        return without_pause(_describe(services, request, tuple(names), errors))

    return Parked((job,), lambda: now + CREATION_WAIT_S, attempt, expire)


def _reason(error: int) -> int:
    """Return why a topic that was to be created is not known here.

    If it was created, for this or another request, this broker will learn of it soon.
    """
    if error in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
        return ErrorCode.LEADER_NOT_AVAILABLE
    return error


def _describe(
    services: Services,
    request: MetadataRequest,
    names: tuple[str, ...],
    errors: Mapping[str, int],
) -> Turns[MetadataResponse]:
    """Describe topics. `errors` are the known reasons why topics do not exist."""
    image = services.image  # one image for all turns: it is never changed, only replaced
    topics: list[TopicMetadata] = []
    pause_at = AT_ONCE
    for name in names:
        topic = _topic(image, name, errors)
        if request.include_topic_operations and not topic.error:
            topic = replace(topic, authorized_operations=TOPIC_OPERATIONS)
        topics.append(topic)
        pause_at -= 1 + len(topic.partitions)
        if pause_at < 0:
            pause_at = AT_ONCE
            yield
    unknown = [one for one in dict.fromkeys(request.topic_ids) if one not in image.topic_names]
    for some in at_once(unknown):
        topics += [TopicMetadata("", ErrorCode.UNKNOWN_TOPIC_ID, one) for one in some]
        yield
    return MetadataResponse(
        describe_brokers(services, image),
        image.cluster_id,
        image.controller_id,
        tuple(topics),
        CLUSTER_OPERATIONS if request.include_cluster_operations else NO_OPERATIONS,
    )


def describe_brokers(services: Services, image: ClusterImage) -> tuple[BrokerMetadata, ...]:
    """Describe the brokers, with their addresses for the client."""
    return tuple(
        BrokerMetadata(
            broker.node_id,
            *broker.seen_from(services.listener),
            rack=broker.rack,
            is_fenced=broker.is_fenced,
        )
        for broker in image.brokers.values()
    )


def _topic(image: ClusterImage, name: str, errors: Mapping[str, int]) -> TopicMetadata:
    topic = image.topics.get(name)
    if topic is None:
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if not is_topic_name(name):
            unknown = ErrorCode.INVALID_TOPIC_EXCEPTION
        return TopicMetadata(name, errors.get(name) or unknown)
    partitions = tuple(describe_partition(image, partition) for partition in topic.partitions)
    return TopicMetadata(name, 0, topic.id, name in INTERNAL_TOPICS, partitions, topic.creation)


def describe_partition(image: ClusterImage, partition: PartitionImage) -> PartitionMetadata:
    """Describe a partition: without a leader that is not live, but with all its replicas."""
    is_led = partition.leader in image.brokers
    return PartitionMetadata(
        partition.partition,
        0 if is_led else ErrorCode.LEADER_NOT_AVAILABLE,
        partition.leader if is_led else NO_NODE,
        partition.leader_epoch,
        partition.replicas,
        partition.isr,
        tuple(replica for replica in partition.replicas if replica not in image.brokers),
    )
