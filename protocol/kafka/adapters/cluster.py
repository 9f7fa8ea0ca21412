"""The cluster and its topics: METADATA, DESCRIBE_CLUSTER, DESCRIBE_TOPIC_PARTITIONS, CREATE_TOPICS,
CREATE_PARTITIONS, DELETE_TOPICS, ELECT_LEADERS."""

from functools import partial
from typing import Any, Final

from minibroker.protocol.constants import NO_NODE, ApiKey, ErrorCode
from minibroker.protocol.errors import ProtocolError
from minibroker.protocol.kafka import admin_apis, apis
from minibroker.protocol.kafka.adapters.adapter import (
    Adapter,
    Array,
    Converted,
    by_topic,
    cut_text,
)
from minibroker.protocol.kafka.schema import Version
from minibroker.protocol.messages.cluster import (
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    TopicCursor,
)
from minibroker.protocol.messages.config_descriptions import ConfigDescription
from minibroker.protocol.messages.leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionElected,
)
from minibroker.protocol.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    PartitionMetadata,
    TopicMetadata,
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
    TopicResult,
    UnclearTopic,
)
from minibroker.protocol.types import TopicPartition


def _metadata_request(asked: Any, version: Version) -> MetadataRequest:
    """Convert the request. In version 0 an empty list means all topics, not none."""
    may_create = bool(asked.allow_auto_topic_creation)
    topic_operations = bool(asked.include_topic_authorized_operations)
    cluster_operations = bool(asked.include_cluster_authorized_operations)
    operations = topic_operations, cluster_operations
    if asked.topics is None or (version == 0 and not asked.topics):
        return MetadataRequest(None, may_create, (), *operations)
    ids: tuple[bytes, ...] = ()
    topics = asked.topics
    if version >= BY_ID_SINCE:
        ids = tuple([topic.topic_id for topic in topics if topic.topic_id != NO_TOPIC_ID])
        topics = [topic for topic in topics if topic.topic_id == NO_TOPIC_ID]
    names = tuple([topic.name for topic in topics])
    if None in names:
        raise ProtocolError(f"a topic without a name in version {version} of Metadata")
    return MetadataRequest(names, may_create, ids, *operations)


BY_ID_SINCE: Final[Version] = 12  # of Metadata
NO_TOPIC_ID: Final = bytes(16)


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
                _name_of(topic, version),
                topic.topic_id,
                topic.is_internal,
                Converted(partial(_partition, known), topic.partitions),
                topic.authorized_operations,
            ),
            answer.topics,
        ),
        cluster_authorized_operations=answer.authorized_operations,
    )


def _name_of(topic: TopicMetadata, version: Version) -> str | None:
    """Return the name for an answer: null for an id that is unknown."""
    is_null = version >= BY_ID_SINCE and not topic.name and topic.topic_id != NO_TOPIC_ID
    return None if is_null else topic.name


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
    return CreateTopicsRequest(
        topics, asked.timeout_ms, bool(asked.validate_only), version >= CONFIGS_SINCE
    )


CONFIGS_SINCE: Final[Version] = 5  # of CreateTopics
_CREATED: Final = admin_apis.CREATE_TOPICS.response.of("topics")
_MAKE_CREATED: Final = _CREATED.make
_MAKE_CREATED_CONFIG: Final = _CREATED.of("configs").make


def _create_topics_response(answer: CreateTopicsResponse, version: Version) -> Any:
    configs = answer.configs or [()] * len(answer.topics)
    results = [*zip(answer.topics, configs, strict=True)]
    return admin_apis.CREATE_TOPICS.response.make(topics=Converted(_created, results))


def _created(result: tuple[TopicResult, tuple[ConfigDescription, ...]]) -> Any:
    one, configs = result
    return _MAKE_CREATED(
        one.name,
        one.topic_id,
        one.error,
        cut_text(one.error_message),
        one.partition_count,
        one.replication_factor,
        Converted(_created_config, configs),
    )


def _created_config(one: ConfigDescription) -> Any:
    value = None if one.is_sensitive else one.value
    return _MAKE_CREATED_CONFIG(one.name, value, one.is_read_only, one.source, one.is_sensitive)


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
    """Convert the request. From version 6 on each topic has a name or an id; one with both or with
    none is refused alone."""
    if version < DELETE_BY_ID_SINCE:
        return DeleteTopicsRequest(tuple(asked.topic_names), asked.timeout_ms)
    names: list[str] = []
    ids: list[bytes] = []
    unclear: list[UnclearTopic] = []
    for name, topic_id in asked.topics:
        if (name is None) == (topic_id == NO_TOPIC_ID):
            unclear.append(UnclearTopic(name or "", topic_id))
        elif name is None:
            ids.append(topic_id)
        else:
            names.append(name)
    return DeleteTopicsRequest(tuple(names), asked.timeout_ms, tuple(ids), tuple(unclear))


DELETE_BY_ID_SINCE: Final[Version] = 6


def _delete_topics_response(answer: DeleteTopicsResponse, version: Version) -> Any:
    def is_unclear(one: TopicResult) -> bool:
        return one.error == ErrorCode.INVALID_REQUEST

    make = admin_apis.DELETE_TOPICS.response.of("responses").make
    return admin_apis.DELETE_TOPICS.response.make(
        responses=Converted(
            lambda one: make(
                one.name or (None if any(one.topic_id) or is_unclear(one) else ""),
                one.topic_id,
                one.error,
                cut_text(one.error_message),
            ),
            answer.topics,
        )
    )


def _describe_cluster_request(asked: Any, version: Version) -> DescribeClusterRequest:
    return DescribeClusterRequest(
        asked.include_cluster_authorized_operations,
        asked.endpoint_type,
        asked.include_fenced_brokers,
    )


def _describe_cluster_response(answer: DescribeClusterResponse, version: Version) -> Any:
    shape = admin_apis.DESCRIBE_CLUSTER.response
    make = shape.of("brokers").make
    return shape.make(
        error_code=answer.error,
        error_message=cut_text(answer.error_message),
        cluster_id=answer.cluster_id,
        controller_id=answer.controller_id,
        brokers=[
            make(one.node_id, one.host, one.port, one.rack, one.is_fenced) for one in answer.brokers
        ],
        cluster_authorized_operations=answer.authorized_operations,
    )


def _describe_topic_partitions_request(
    asked: Any, version: Version
) -> DescribeTopicPartitionsRequest:
    return DescribeTopicPartitionsRequest(
        tuple([topic.name for topic in asked.topics]),
        asked.response_partition_limit,
        None if asked.cursor is None else TopicCursor(*asked.cursor),
    )


_TOLD_TOPIC: Final = admin_apis.DESCRIBE_TOPIC_PARTITIONS.response.of("topics")


def _describe_topic_partitions_response(
    answer: DescribeTopicPartitionsResponse, version: Version
) -> Any:
    shape, cursor = admin_apis.DESCRIBE_TOPIC_PARTITIONS.response, answer.next_cursor
    make_cursor = shape.of("next_cursor").make
    return shape.make(
        topics=Converted(
            lambda topic: _TOLD_TOPIC.make(
                topic.error,
                topic.name,
                topic.topic_id,
                topic.is_internal,
                Converted(_told_partition, topic.partitions),
                topic.authorized_operations,
            ),
            answer.topics,
        ),
        next_cursor=None if cursor is None else make_cursor(cursor.topic, cursor.partition),
    )


def _told_partition(one: PartitionMetadata) -> Any:
    """Convert a partition, which has no eligible leaders beside its in-sync replicas (KIP-966).
    Kafka's tools fail where these lists are null."""
    return _TOLD_TOPIC.of("partitions").make(
        one.error,
        one.partition,
        one.leader_id,
        one.leader_epoch,
        one.replicas,
        one.isr,
        (),
        (),
        one.offline_replicas,
    )


def _elect_leaders_request(asked: Any, version: Version) -> ElectLeadersRequest:
    partitions = None
    if asked.topic_partitions is not None:
        partitions = tuple(
            TopicPartition(topic.topic, number)
            for topic in asked.topic_partitions
            for number in topic.partitions
        )
    return ElectLeadersRequest(partitions, asked.timeout_ms, asked.election_type)


def _elect_leaders_response(answer: ElectLeadersResponse, version: Version) -> Any:
    shape = admin_apis.ELECT_LEADERS.response
    if answer.error and not shape.has("error_code", version):
        raise ProtocolError(f"version {version} of ElectLeaders cannot say {answer.error}")
    results = shape.of("replica_election_results")
    make = results.of("partition_result").make

    def elected(one: PartitionElected) -> Any:
        return make(one.partition, one.error, cut_text(one.error_message))

    return shape.make(0, answer.error, by_topic(results.make, elected, answer.partitions))


ADAPTERS: Final = (
    Adapter(
        admin_apis.DESCRIBE_CLUSTER,
        ApiKey.DESCRIBE_CLUSTER,
        _describe_cluster_request,
        _describe_cluster_response,
    ),
    Adapter(
        admin_apis.DESCRIBE_TOPIC_PARTITIONS,
        ApiKey.DESCRIBE_TOPIC_PARTITIONS,
        _describe_topic_partitions_request,
        _describe_topic_partitions_response,
    ),
    Adapter(
        admin_apis.ELECT_LEADERS,
        ApiKey.ELECT_LEADERS,
        _elect_leaders_request,
        _elect_leaders_response,
        Array("topic_partitions", "partitions", "partitions"),
    ),
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
