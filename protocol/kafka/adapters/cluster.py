"""The cluster and its topics: METADATA, CREATE_TOPICS, CREATE_PARTITIONS, DELETE_TOPICS."""

from functools import partial
from typing import Any, Final

from minibroker.protocol.constants import NO_NODE, ApiKey, ErrorCode
from minibroker.protocol.errors import ProtocolError
from minibroker.protocol.kafka import admin_apis, apis
from minibroker.protocol.kafka.adapters.adapter import Adapter, Array, Converted, cut_text
from minibroker.protocol.kafka.schema import Version
from minibroker.protocol.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    PartitionMetadata,
)
from minibroker.protocol.messages.topics import (
    ConfigEntry,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    NewPartitions,
    NewTopic,
    ReplicaAssignment,
)


def _metadata_request(asked: Any, version: Version) -> MetadataRequest:
    """Convert the request. In version 0 an empty list means all topics, not none. A topic without
    a name, to be found by its id, may be asked for from version 12 on."""
    topics = asked.topics
    if topics is None or (version == 0 and not topics):
        return MetadataRequest(None, bool(asked.allow_auto_topic_creation))
    if any(topic.name is None for topic in topics):
        raise ProtocolError(f"a topic without a name in version {version} of Metadata")
    names = tuple(topic.name for topic in topics)
    return MetadataRequest(names, bool(asked.allow_auto_topic_creation))


def _metadata_response(answer: MetadataResponse, version: Version) -> Any:
    """Convert the answer without fenced brokers, as Kafka does; their partitions have no leader."""
    shape = apis.METADATA.response
    topics, brokers = shape.of("topics"), shape.of("brokers")
    known = {broker.node_id for broker in answer.brokers if not broker.is_fenced}
    return shape.make(
        brokers=[
            brokers.make(broker.node_id, broker.host, broker.port, broker.rack)
            for broker in answer.brokers
            if broker.node_id in known
        ],
        cluster_id=answer.cluster_id,
        controller_id=answer.controller_id if answer.controller_id in known else NO_NODE,
        topics=Converted(
            lambda topic: topics.make(
                topic.error,
                topic.name,
                topic.topic_id,
                topic.is_internal,
                Converted(partial(_partition, known), topic.partitions),
            ),
            answer.topics,
        ),
    )


def _partition(known: set[int], one: PartitionMetadata) -> Any:
    error, leader = one.error, one.leader_id
    if leader != NO_NODE and leader not in known:
        error, leader = ErrorCode.LEADER_NOT_AVAILABLE, NO_NODE
    return _MAKE_PARTITION(
        error,
        one.partition,
        leader,
        one.leader_epoch,
        one.replicas,
        one.isr,
        one.offline_replicas,
    )


_MAKE_PARTITION: Final = apis.METADATA.response.of("topics").of("partitions").make


def _create_topics_request(asked: Any, version: Version) -> CreateTopicsRequest:
    topics = tuple(
        NewTopic(
            topic.name,
            topic.num_partitions,
            topic.replication_factor,
            tuple(ConfigEntry(one.name, one.value or "") for one in topic.configs),
            tuple(
                ReplicaAssignment(one.partition_index, tuple(one.broker_ids))
                for one in topic.assignments
            ),
        )
        for topic in asked.topics
    )
    return CreateTopicsRequest(topics, asked.timeout_ms, bool(asked.validate_only))


def _create_topics_response(answer: CreateTopicsResponse, version: Version) -> Any:
    make = admin_apis.CREATE_TOPICS.response.of("topics").make
    return admin_apis.CREATE_TOPICS.response.make(
        topics=Converted(
            lambda one: make(one.name, bytes(16), one.error, cut_text(one.error_message)),
            answer.topics,
        )
    )


def _create_partitions_request(asked: Any, version: Version) -> CreatePartitionsRequest:
    topics = tuple(
        NewPartitions(
            topic.name,
            topic.count,
            tuple(tuple(one.broker_ids) for one in topic.assignments)
            if topic.assignments
            else None,
        )
        for topic in asked.topics
    )
    return CreatePartitionsRequest(topics, asked.timeout_ms, asked.validate_only)


def _create_partitions_response(answer: CreatePartitionsResponse, version: Version) -> Any:
    make = admin_apis.CREATE_PARTITIONS.response.of("results").make
    results = Converted(
        lambda one: make(one.name, one.error, cut_text(one.error_message)), answer.topics
    )
    return admin_apis.CREATE_PARTITIONS.response.make(0, results)


def _delete_topics_request(asked: Any, version: Version) -> DeleteTopicsRequest:
    return DeleteTopicsRequest(tuple(asked.topic_names), asked.timeout_ms)


def _delete_topics_response(answer: DeleteTopicsResponse, version: Version) -> Any:
    make = admin_apis.DELETE_TOPICS.response.of("responses").make
    return admin_apis.DELETE_TOPICS.response.make(
        responses=Converted(lambda one: make(one.name, bytes(16), one.error), answer.topics)
    )


ADAPTERS: Final = (
    Adapter(
        admin_apis.CREATE_PARTITIONS,
        ApiKey.CREATE_PARTITIONS,
        _create_partitions_request,
        _create_partitions_response,
        Array("topics", "topics"),
    ),
    Adapter(apis.METADATA, ApiKey.METADATA, _metadata_request, _metadata_response),
    Adapter(
        admin_apis.CREATE_TOPICS,
        ApiKey.CREATE_TOPICS,
        _create_topics_request,
        _create_topics_response,
        Array("topics", "topics", "configs", kept="configs"),
    ),
    Adapter(
        admin_apis.DELETE_TOPICS,
        ApiKey.DELETE_TOPICS,
        _delete_topics_request,
        _delete_topics_response,
    ),
)
