"""DESCRIBE_CLUSTER, DESCRIBE_TOPIC_PARTITIONS and refused elections, through their handlers."""

from collections.abc import Generator
from typing import Any

import pytest

from minibroker.broker.server.handlers import cluster, leaders
from minibroker.broker.server.services import HangUp
from minibroker.broker.turns import without_pause
from minibroker.protocol.constants import ErrorCode
from minibroker.protocol.messages.cluster import (
    DescribeClusterRequest,
    DescribeTopicPartitionsRequest,
    TopicCursor,
)
from minibroker.protocol.messages.leaders import ElectLeadersRequest, ElectLeadersResponse
from minibroker.protocol.types import TopicPartition
from tests.unit.node import Node, state_of

OPERATIONS = 0b110111111000


def test_fenced_brokers_are_told_to_who_asks() -> None:
    """And what a client may do. There are no addresses of controllers."""
    node = Node()
    node.live(1, 2, fenced=(2,))
    told = cluster.describe(node.services, DescribeClusterRequest(), 0.0)
    assert [(one.node_id, one.host) for one in told.brokers] == [(1, "broker-1")]
    assert (told.cluster_id, told.controller_id, told.error) == ("cluster", 1, 0)
    assert told.authorized_operations == -(2**31)
    told = cluster.describe(node.services, DescribeClusterRequest(True, 1, True), 0.0)
    assert [(one.node_id, one.is_fenced) for one in told.brokers] == [(1, False), (2, True)]
    assert told.authorized_operations == 0b1111110100000
    for kind, error in ((2, 114), (3, 115), (0, 115)):
        refused = cluster.describe(node.services, DescribeClusterRequest(False, kind), 0.0)
        assert (refused.error, refused.brokers) == (error, ())


def test_who_knows_nothing_hangs_up() -> None:
    """As for METADATA."""
    node = Node(is_ready=False)
    with pytest.raises(HangUp):
        cluster.describe(node.services, DescribeClusterRequest(), 0.0)


def told(node: Node, *names: str, most: int = 2000, cursor: TopicCursor | None = None) -> tuple:
    """What is told: topics with their partitions, and the next cursor."""
    request = DescribeTopicPartitionsRequest(names, most, cursor)
    turns = cluster.describe_topic_partitions(node.services, request, 0.0)
    assert isinstance(turns, Generator)
    answer = without_pause(turns)
    topics = [
        (topic.name, topic.error, [one.partition for one in topic.partitions])
        for topic in answer.topics
    ]
    following = answer.next_cursor
    return topics, following and (following.topic, following.partition)


def test_topics_are_told_in_parts() -> None:
    """In the order of their names, from a cursor on, until the room is used up."""
    node = Node()
    for name, count in (("b", 3), ("a", 2), ("c", 1)):
        node.know(*(state_of(TopicPartition(name, n)) for n in range(count)))
    everything = [("a", 0, [0, 1]), ("b", 0, [0, 1, 2]), ("c", 0, [0])]
    assert told(node) == (everything, None)
    assert told(node, "c", "a", "c") == ([everything[0], everything[2]], None)
    assert told(node, most=2) == ([everything[0]], ("b", 0))
    assert told(node, most=3) == ([everything[0], ("b", 0, [0])], ("b", 1))
    later = told(node, most=3, cursor=TopicCursor("b", 1))
    assert later == ([("b", 0, [1, 2]), ("c", 0, [0])], None)
    assert told(node, cursor=TopicCursor("bb", 1)) == ([everything[2]], None)
    assert told(node, most=0) == ([("a", 0, [0])], ("a", 1))
    assert told(node, cursor=TopicCursor("z")) == ([], None)
    wrong = told(node, "b", "c", cursor=TopicCursor("b", -1))
    assert wrong == ([("b", ErrorCode.INVALID_REQUEST, []), ("c", 0, [0])], None)
    assert told(node, "x", "a/b", "c")[0] == [
        ("a/b", ErrorCode.INVALID_TOPIC_EXCEPTION, []),
        ("c", 0, [0]),
        ("x", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, []),
    ]


def test_operations_of_topics_are_told() -> None:
    """Always; those of unknown topics are not known."""
    node = Node()
    node.know(state_of())
    request = DescribeTopicPartitionsRequest(("t", "u"))
    answer = without_pause(cluster.describe_topic_partitions(node.services, request, 0.0))
    assert [topic.authorized_operations for topic in answer.topics] == [OPERATIONS, -(2**31)]


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (ElectLeadersRequest(election_type=1), "must name its partitions"),
        (ElectLeadersRequest((), election_type=7), "election type 7"),
        (ElectLeadersRequest((TopicPartition("t", 0),), leader=2), "only an unclean election"),
    ],
)
def test_a_bad_request_for_an_election_is_refused(request_: Any, reason: str) -> None:
    """Of all partitions at once nobody can say what would be lost."""
    refused = leaders.elect(Node().services, request_, 0.0)
    assert isinstance(refused, ElectLeadersResponse)
    assert refused.error == ErrorCode.INVALID_REQUEST
    assert reason in str(refused.error_message)
