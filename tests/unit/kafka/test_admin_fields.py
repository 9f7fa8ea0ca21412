"""The fields of the admin client's newer requests and answers on Kafka's wire."""

import pytest

from minibroker.protocol.errors import ProtocolError
from minibroker.protocol.kafka import admin_apis, apis
from minibroker.protocol.kafka.wire import decode_request
from minibroker.protocol.messages.api_versions import ApiVersionsResponse
from minibroker.protocol.messages.cluster import (
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    TopicCursor,
)
from minibroker.protocol.messages.config_descriptions import ConfigDescription, ConfigSynonym
from minibroker.protocol.messages.configs import (
    ConfigResource,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
    ResourceConfigs,
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
from minibroker.protocol.messages.log_dirs import (
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    LogSize,
    OtherLogDirectory,
    ReplicaLogDirAltered,
    WantedLogDirectory,
)
from minibroker.protocol.messages.metadata import (
    BrokerMetadata,
    MetadataResponse,
    PartitionMetadata,
    TopicMetadata,
)
from minibroker.protocol.messages.produce import PartitionProduced, ProduceResponse
from minibroker.protocol.messages.producer_id import InitProducerIdRequest
from minibroker.protocol.messages.reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingReassignment,
    PartitionReassigned,
    PartitionReassignment,
)
from minibroker.protocol.messages.topics import (
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    TopicResult,
    UnclearTopic,
)
from minibroker.protocol.types import TopicPartition
from tests.unit.kafka.frames import answer_to, request


def test_the_cluster_is_described() -> None:
    """Fenced brokers are told apart from version 2 on."""
    frame = request(admin_apis.DESCRIBE_CLUSTER, 2, True, 2, True)
    assert decode_request(frame)[0].message == DescribeClusterRequest(True, 2, True)
    brokers = (BrokerMetadata(1, "a", 9, "r"), BrokerMetadata(2, "b", 8, is_fenced=True))
    message = DescribeClusterResponse(0, None, "c", 1, brokers, 8096)
    value = answer_to(frame, admin_apis.DESCRIBE_CLUSTER, message)
    assert (value.cluster_id, value.controller_id) == ("c", 1)
    assert value.cluster_authorized_operations == 8096
    assert [tuple(one) for one in value.brokers] == [
        (1, "a", 9, "r", False),
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


def test_reassignments_are_altered() -> None:
    """Null instead of brokers cancels; version 0 may always change the number of replicas."""
    api = admin_apis.ALTER_PARTITION_REASSIGNMENTS
    topics = [api.request.of("topics").make("t", [(1, [4, 5]), (2, None)])]
    wanted = PartitionReassignment("t", 1, (4, 5)), PartitionReassignment("t", 2)
    for version, is_allowed in ((0, True), (1, False)):
        given = {"allow_replication_factor_change": False} if version else {}
        frame = request(api, version, timeout_ms=9, topics=topics, **given)
        expected = AlterPartitionReassignmentsRequest(wanted, 9, is_allowed)
        assert decode_request(frame)[0].message == expected
    results = PartitionReassigned("t", 1), PartitionReassigned("t", 2, 85, "none")
    value = answer_to(frame, api, AlterPartitionReassignmentsResponse(0, None, results))
    (told,) = value.responses
    assert (told.name, [tuple(one) for one in told.partitions]) == (
        "t",
        [(1, 0, None), (2, 85, "none")],
    )
    refused = answer_to(frame, api, AlterPartitionReassignmentsResponse(41, "not here"))
    assert (refused.error_code, refused.error_message, refused.responses) == (41, "not here", [])


def test_reassignments_are_listed() -> None:
    """Of some partitions, or with null of all."""
    api = admin_apis.LIST_PARTITION_REASSIGNMENTS
    frame = request(api, 0, 9, [api.request.of("topics").make("t", [1, 2])])
    expected = ListPartitionReassignmentsRequest((("t", 1), ("t", 2)), 9)
    assert decode_request(frame)[0].message == expected
    frame = request(api, 0, 9, None)
    assert decode_request(frame)[0].message == ListPartitionReassignmentsRequest(None, 9)
    one = OngoingReassignment("t", 1, (4, 1), (4,), (1,))
    value = answer_to(frame, api, ListPartitionReassignmentsResponse(partitions=(one,)))
    (told,) = value.topics
    assert (told.name, tuple(told.partitions[0])) == ("t", (1, [4, 1], [4], [1]))


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


def test_settings_are_described_as_far_as_is_asked_for() -> None:
    """No keys are all of them, whether null or empty. What is left out is null."""
    api = admin_apis.DESCRIBE_CONFIGS
    for keys in ([], None):
        frame = request(api, 4, [(2, "t", keys)], True, False)
        expected = DescribeConfigsRequest((), (ConfigResource(2, "t"),), True, True)
        assert decode_request(frame)[0].message == expected
    config = ConfigDescription(
        "cleanup.policy",
        "compact",
        type="list",
        source=1,
        synonyms=(ConfigSynonym("cleanup.policy", "compact", 1), ConfigSynonym("log", "delete")),
    )
    message = DescribeConfigsResponse(resources=(ResourceConfigs(2, "t", configs=(config,)),))
    (told,) = answer_to(frame, api, message).results[0].configs
    assert (told.config_type, told.documentation) == (7, None)
    assert [tuple(one) for one in told.synonyms] == [
        ("cleanup.policy", "compact", 1),
        ("log", "delete", 5),
    ]


def test_a_wrong_record_is_named() -> None:
    """From version 8 of Produce on, beside the reason for the whole batch."""
    refused = PartitionProduced("t", 0, 87, error_message="no key", wrong_record=3)
    message = ProduceResponse((refused, PartitionProduced("t", 1, 5)))
    frame = request(apis.PRODUCE, 8, None, 1, 1, [])
    wrong, other = answer_to(frame, apis.PRODUCE, message).responses[0].partition_responses
    assert [tuple(one) for one in wrong.record_errors] == [(3, "no key")]
    assert (wrong.error_message, [*other.record_errors]) == ("no key", [])


def test_a_negative_leader_epoch_is_none() -> None:
    """As in Kafka, whichever it is."""
    partition = {"partition": 0, "current_leader_epoch": -2, "fetch_offset": 0}
    topics = apis.FETCH.request.of("topics")
    asked = topics.make(
        "t", partitions=[topics.of("partitions").make(**partition, partition_max_bytes=1)]
    )
    message = decode_request(request(apis.FETCH, 11, topics=[asked], max_wait_ms=1, min_bytes=1))[
        0
    ].message
    assert message.partitions[0].leader_epoch == -1


def test_only_an_unknown_id_has_no_name() -> None:
    """An empty name stays one."""
    topics = (TopicMetadata("", 17), TopicMetadata("", 100, b"i" * 16))
    message = MetadataResponse((), "c", 1, topics)
    value = answer_to(request(apis.METADATA, 12, []), apis.METADATA, message)
    assert [one.name for one in value.topics] == ["", None]


def test_features_are_announced() -> None:
    """Those that clients look for, and ours, from version 3 on; that 0 is a level, from 4 on."""
    told = [
        answer_to(request(apis.API_VERSIONS, version), apis.API_VERSIONS, ApiVersionsResponse())
        for version in (3, 4)
    ]
    assert [[tuple(one) for one in each.supported_features] for each in told] == [
        [("minibroker.version", 1, 1)],
        [("group.version", 0, 1), ("transaction.version", 0, 2), ("minibroker.version", 1, 1)],
    ]
    for each in told:
        assert each.finalized_features_epoch == 0
        assert [tuple(one) for one in each.finalized_features] == [
            ("group.version", 1, 1),
            ("transaction.version", 2, 2),
            ("minibroker.version", 1, 1),
        ]
    raised = ApiVersionsResponse(feature_level=3, feature_level_min=2, feature_level_max=4)
    value = answer_to(request(apis.API_VERSIONS, 4), apis.API_VERSIONS, raised)
    assert tuple(value.supported_features[-1]) == ("minibroker.version", 2, 4)
    assert tuple(value.finalized_features[-1]) == ("minibroker.version", 3, 3)
    assert value.finalized_features_epoch == 2
    old = request(apis.API_VERSIONS, 2)
    assert not answer_to(old, apis.API_VERSIONS, ApiVersionsResponse()).finalized_features


def test_a_created_topic_is_told() -> None:
    """With its id, counts and settings from version 5 and 7 on."""
    api = admin_apis.CREATE_TOPICS
    assert not decode_request(request(api, 4, []))[0].message.include_configs
    frame = request(api, 7, [])
    assert decode_request(frame)[0].message.include_configs
    config = ConfigDescription("flush", "never", source=1)
    message = CreateTopicsResponse(
        (TopicResult("t", 0, None, b"i" * 16, 3, 2), TopicResult("u", 36, "is there")),
        ((config,), ()),
    )
    made, refused = answer_to(frame, api, message).topics
    assert (made.topic_id, made.num_partitions, made.replication_factor) == (b"i" * 16, 3, 2)
    assert [tuple(one) for one in made.configs] == [("flush", "never", False, 1, False)]
    assert (refused.error_code, refused.num_partitions, [*refused.configs]) == (36, -1, [])


def test_topics_are_deleted_by_their_ids() -> None:
    """From version 6 on; an id that no topic has is answered without a name, and so is a topic with
    neither."""
    api = admin_apis.DELETE_TOPICS
    one, other = b"i" * 16, b"j" * 16
    frame = request(api, 6, [("t", bytes(16)), (None, one), (None, other)], timeout_ms=9)
    assert decode_request(frame)[0].message == DeleteTopicsRequest(("t",), 9, (one, other))
    unclear = request(api, 6, [("t", one), (None, bytes(16)), ("u", bytes(16))], timeout_ms=9)
    assert decode_request(unclear)[0].message == DeleteTopicsRequest(
        ("u",), 9, unclear=(UnclearTopic("t", one), UnclearTopic("", bytes(16)))
    )
    results = (
        TopicResult("t"),
        TopicResult("u", topic_id=one),
        TopicResult("", 100, None, other),
        TopicResult("t", 42, None, one),
        TopicResult("", 42),
        TopicResult("", 3),
    )
    told = answer_to(frame, api, DeleteTopicsResponse(results)).responses
    assert [(each.name, each.topic_id) for each in told] == [
        ("t", bytes(16)),
        ("u", one),
        (None, other),
        ("t", one),
        (None, bytes(16)),
        ("", bytes(16)),
    ]


def test_the_directory_of_logs_is_described() -> None:
    """With the space of its disk from version 4 on."""
    api = admin_apis.DESCRIBE_LOG_DIRS
    assert decode_request(request(api, 4, None))[0].message == DescribeLogDirsRequest()
    frame = request(api, 4, [("t", [1, 2])])
    expected = DescribeLogDirsRequest((TopicPartition("t", 1), TopicPartition("t", 2)))
    assert decode_request(frame)[0].message == expected
    logs = (LogSize("t", 1, 500, 3), LogSize("u", 0, 7))
    others = (OtherLogDirectory("/b", 56, "broken"), OtherLogDirectory("/c", 0, "", logs[:1], 9, 4))
    message = DescribeLogDirsResponse("/data", logs, 1_000, 400, others)
    told, broken, other = answer_to(frame, api, message).results
    assert (broken.error_code, broken.log_dir, broken.topics) == (56, "/b", [])
    assert (other.log_dir, other.total_bytes, other.usable_bytes) == ("/c", 9, 4)
    assert [topic.name for topic in other.topics] == ["t"]
    assert (told.error_code, told.log_dir) == (0, "/data")
    assert (told.total_bytes, told.usable_bytes) == (1_000, 400)
    assert [(topic.name, [tuple(one) for one in topic.partitions]) for topic in told.topics] == [
        ("t", [(1, 500, 3, False)]),
        ("u", [(0, 7, 0, False)]),
    ]


def test_a_copy_that_is_to_move_is_described() -> None:
    """As Kafka marks a future replica, with how far it is behind the log."""
    future = LogSize("t", 1, 300, 2, is_future=True)
    message = DescribeLogDirsResponse("/data", (future,))
    (told,) = answer_to(
        request(admin_apis.DESCRIBE_LOG_DIRS, 4, None), admin_apis.DESCRIBE_LOG_DIRS, message
    ).results
    assert [tuple(one) for one in told.topics[0].partitions] == [(1, 300, 2, True)]


@pytest.mark.parametrize("version", [1, 2])
def test_replicas_are_sent_to_other_directories(version: int) -> None:
    """Each with its directory; the answers are by topic."""
    api = admin_apis.ALTER_REPLICA_LOG_DIRS
    frame = request(api, version, [("/b", [("t", [1, 2])]), ("/c", [("u", [0])])])
    wanted = (("t", 1, "/b"), ("t", 2, "/b"), ("u", 0, "/c"))
    expected = AlterReplicaLogDirsRequest(tuple(WantedLogDirectory(*one) for one in wanted))
    assert decode_request(frame)[0].message == expected
    answers = (
        ReplicaLogDirAltered("t", 1),
        ReplicaLogDirAltered("t", 2, 57, "not one of its log.dirs"),
        ReplicaLogDirAltered("u", 0, 9, "not here yet"),
    )
    told = answer_to(frame, api, AlterReplicaLogDirsResponse(answers)).results
    assert [(topic.topic_name, [tuple(one) for one in topic.partitions]) for topic in told] == [
        ("t", [(1, 0), (2, 57)]),
        ("u", [(0, 9)]),
    ]


def test_resources_with_settings_are_listed() -> None:
    """In version 0 only those of the metrics of clients."""
    api = admin_apis.LIST_CONFIG_RESOURCES
    assert decode_request(request(api, 0))[0].message == ListConfigResourcesRequest((16,))
    frame = request(api, 1, [2, 4])
    assert decode_request(frame)[0].message == ListConfigResourcesRequest((2, 4))
    resources = (ConfigResource(2, "t"), ConfigResource(4, "1"))
    value = answer_to(frame, api, ListConfigResourcesResponse(0, resources))
    assert [tuple(one) for one in value.config_resources] == [("t", 2), ("1", 4)]
    assert answer_to(frame, api, ListConfigResourcesResponse(35)).error_code == 35
