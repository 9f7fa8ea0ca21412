"""ALTER_PARTITION_REASSIGNMENTS and LIST_PARTITION_REASSIGNMENTS."""

from typing import Any, Final

from minibroker.protocol.constants import ApiKey
from minibroker.protocol.kafka import admin_apis
from minibroker.protocol.kafka.adapters.adapter import Adapter, Array, by_topic, cut_text
from minibroker.protocol.kafka.schema import Version
from minibroker.protocol.messages.reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingReassignment,
    PartitionReassigned,
    PartitionReassignment,
)
from minibroker.protocol.types import TopicPartition


def _alter_request(asked: Any, version: Version) -> AlterPartitionReassignmentsRequest:
    partitions = tuple(
        PartitionReassignment(
            topic.name, one.partition_index, None if one.replicas is None else tuple(one.replicas)
        )
        for topic in asked.topics
        for one in topic.partitions
    )
    is_allowed = bool(asked.allow_replication_factor_change)
    return AlterPartitionReassignmentsRequest(partitions, asked.timeout_ms, is_allowed)


def _alter_response(answer: AlterPartitionReassignmentsResponse, version: Version) -> Any:
    shape = admin_apis.ALTER_PARTITION_REASSIGNMENTS.response
    topics = shape.of("responses")
    make = topics.of("partitions").make

    def reassigned(one: PartitionReassigned) -> Any:
        return make(one.partition, one.error, cut_text(one.error_message))

    return shape.make(
        0,
        answer.allow_replication_factor_change,
        answer.error,
        cut_text(answer.error_message),
        by_topic(topics.make, reassigned, answer.partitions),
    )


def _list_request(asked: Any, version: Version) -> ListPartitionReassignmentsRequest:
    partitions = None
    if asked.topics is not None:
        partitions = tuple(
            TopicPartition(topic.name, number)
            for topic in asked.topics
            for number in topic.partition_indexes
        )
    return ListPartitionReassignmentsRequest(partitions, asked.timeout_ms)


def _list_response(answer: ListPartitionReassignmentsResponse, version: Version) -> Any:
    shape = admin_apis.LIST_PARTITION_REASSIGNMENTS.response
    topics = shape.of("topics")
    make = topics.of("partitions").make

    def ongoing(one: OngoingReassignment) -> Any:
        return make(one.partition, one.replicas, one.adding, one.removing)

    listed = by_topic(topics.make, ongoing, answer.partitions)
    return shape.make(0, answer.error, cut_text(answer.error_message), listed)


ADAPTERS: Final = (
    Adapter(
        admin_apis.ALTER_PARTITION_REASSIGNMENTS,
        ApiKey.ALTER_PARTITION_REASSIGNMENTS,
        _alter_request,
        _alter_response,
        Array("topics", "partitions", "partitions"),
    ),
    Adapter(
        admin_apis.LIST_PARTITION_REASSIGNMENTS,
        ApiKey.LIST_PARTITION_REASSIGNMENTS,
        _list_request,
        _list_response,
        Array("topics", "partitions", "partition_indexes"),
    ),
)
