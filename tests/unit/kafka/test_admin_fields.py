"""The fields of the admin client's newer requests and answers on Kafka's wire."""

import pytest

from minibroker.protocol.errors import ProtocolError
from minibroker.protocol.kafka import admin_apis, apis
from minibroker.protocol.kafka.wire import decode_request
from minibroker.protocol.messages.cluster import (
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    TopicCursor,
)
from minibroker.protocol.messages.group_offsets import (
    GroupPartition,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    PartitionCommitted,
)
from minibroker.protocol.messages.leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionElected,
)
from minibroker.protocol.messages.metadata import BrokerMetadata, PartitionMetadata, TopicMetadata
from minibroker.protocol.messages.producer_id import InitProducerIdRequest
from minibroker.protocol.messages.topics import DeleteTopicsResponse, TopicResult
from tests.unit.kafka.frames import answer_to, request


def test_the_cluster_is_described() -> None:
    """Fenced brokers are told apart from version 2 on."""
    frame = request(admin_apis.DESCRIBE_CLUSTER, 2, True, 2, True)
    assert decode_request(frame)[0].message == DescribeClusterRequest(True, 2, True)
    brokers = (BrokerMetadata(1, "a", 9), BrokerMetadata(2, "b", 8, is_fenced=True))
    message = DescribeClusterResponse(0, None, "c", 1, brokers, 8096)
    value = answer_to(frame, admin_apis.DESCRIBE_CLUSTER, message)
    assert (value.cluster_id, value.controller_id) == ("c", 1)
    assert value.cluster_authorized_operations == 8096
    assert [tuple(one) for one in value.brokers] == [
        (1, "a", 9, None, False),
        (2, "b", 8, None, True),
    ]


def test_topics_are_described_in_parts() -> None:
    """Lists of eligible leaders are empty, never null."""
    api = admin_apis.DESCRIBE_TOPIC_PARTITIONS
    topics = [(name,) for name in ("t", "u")]
    frame = request(api, 0, topics, 5, ("t", 3))
    expected = DescribeTopicPartitionsRequest(("t", "u"), 5, TopicCursor("t", 3))
    assert decode_request(frame)[0].message == expected
    assert decode_request(request(api, 0, []))[0].message == DescribeTopicPartitionsRequest()
    partition = PartitionMetadata(3, 5, 1, 7, (1, 2), (1,), (2,))
    topic = TopicMetadata("t", 0, b"i" * 16, True, (partition,), 4, 3576)
    message = DescribeTopicPartitionsResponse((topic,), TopicCursor("u", 4))
    value = answer_to(frame, api, message)
    (told,) = value.topics
    assert (told.name, told.topic_id, told.is_internal) == ("t", b"i" * 16, True)
    assert told.topic_authorized_operations == 3576
    assert tuple(told.partitions[0]) == (5, 3, 1, 7, [1, 2], [1], [], [], [2])
    assert tuple(value.next_cursor) == ("u", 4)
    assert answer_to(frame, api, DescribeTopicPartitionsResponse()).next_cursor is None


def test_leaders_are_elected() -> None:
    """Version 0 has no error of the whole request."""
    api = admin_apis.ELECT_LEADERS
    topics = [api.request.of("topic_partitions").make("t", [1, 2])]
    frame = request(api, 2, 1, topics, 9)
    assert decode_request(frame)[0].message == ElectLeadersRequest((("t", 1), ("t", 2)), 9, 1)
    frame = request(api, 0, topic_partitions=None, timeout_ms=9)
    assert decode_request(frame)[0].message == ElectLeadersRequest(None, 9, 0)
    elected = ElectLeadersResponse(0, None, (PartitionElected("t", 1, 84, "it leads"),))
    (told,) = answer_to(frame, api, elected).replica_election_results
    assert (told.topic, tuple(told.partition_result[0])) == ("t", (1, 84, "it leads"))
    with pytest.raises(ProtocolError, match="cannot say"):
        answer_to(frame, api, ElectLeadersResponse(41))
    assert answer_to(request(api, 1, 0, None, 9), api, ElectLeadersResponse(41)).error_code == 41


def test_offsets_are_deleted() -> None:
    """Each partition has its error."""
    api = admin_apis.OFFSET_DELETE
    frame = request(api, 0, "g", [api.request.of("topics").make("t", [(1,), (2,)])])
    expected = OffsetDeleteRequest("g", (GroupPartition("t", 1), GroupPartition("t", 2)))
    assert decode_request(frame)[0].message == expected
    message = OffsetDeleteResponse(0, (PartitionCommitted("t", 1), PartitionCommitted("t", 2, 86)))
    value = answer_to(frame, api, message)
    assert [tuple(one) for one in value.topics[0].partitions] == [(1, 0), (2, 86)]
    assert answer_to(frame, api, OffsetDeleteResponse(69)).error_code == 69


def test_a_deletion_says_why_it_failed() -> None:
    """From version 5 of DeleteTopics on."""
    message = DeleteTopicsResponse((TopicResult("t", 41, "ask broker 2"),))
    frame = request(admin_apis.DELETE_TOPICS, 5, topic_names=["t"])
    (told,) = answer_to(frame, admin_apis.DELETE_TOPICS, message).responses
    assert (told.name, told.error_code, told.error_message) == ("t", 41, "ask broker 2")


def test_a_producer_names_its_id() -> None:
    """From version 3 of InitProducerId on."""
    message = decode_request(request(apis.INIT_PRODUCER_ID, 3, None, 9, 7, 2))[0].message
    assert message == InitProducerIdRequest(None, 7, 2, 9)
    message = decode_request(request(apis.INIT_PRODUCER_ID, 2, None, 9))[0].message
    assert message == InitProducerIdRequest(None, -1, -1, 9)
