"""Frames of Kafka's wire to the messages that both wires share, and back (rows KAF)."""

import struct
from dataclasses import replace

import pytest

from minibroker.protocol.constants import UNKNOWN_TIMESTAMP, ApiKey, ErrorCode
from minibroker.protocol.errors import ProtocolError
from minibroker.protocol.kafka import apis
from minibroker.protocol.kafka.adapters.table import ADAPTERS
from minibroker.protocol.kafka.codec import decode
from minibroker.protocol.kafka.wire import decode_request, decode_request_in_turns
from minibroker.protocol.messages import UnsupportedVersion
from minibroker.protocol.messages.api_versions import ApiVersionsResponse
from minibroker.protocol.messages.fetch import (
    AbortedTransaction,
    FetchRequest,
    FetchResponse,
    PartitionFetch,
    PartitionFetched,
)
from minibroker.protocol.messages.group_offsets import OffsetFetchResponse
from minibroker.protocol.messages.groups import (
    JoinGroupRequest,
    LeaveGroupRequest,
    LeaveGroupResponse,
    LeavingMember,
    LeftMember,
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
)
from minibroker.protocol.messages.metadata import (
    BrokerMetadata,
    MetadataRequest,
    MetadataResponse,
    PartitionMetadata,
    TopicMetadata,
)
from minibroker.protocol.messages.offsets import (
    OffsetsForLeaderEpochRequest,
    OffsetsForLeaderEpochResponse,
    PartitionEpoch,
    PartitionEpochEnd,
)
from minibroker.protocol.messages.produce import PartitionProduced, ProduceResponse
from minibroker.protocol.types import NodeEndpoint
from tests.support.largest import largest_requests
from tests.unit.kafka.frames import answer_to, header, request
from tests.unit.kafka.values import ALL_APIS


def test_an_unknown_version_of_api_versions_is_answered_in_version_0() -> None:
    """With error 35, and all that is served: a client goes on from there without another try."""
    frame = memoryview(header(18, 77) + b"whatever a version from the future has")
    value = answer_to(frame, apis.API_VERSIONS, ApiVersionsResponse(), version=0)
    assert value.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert [row.api_key for row in value.api_keys] == sorted(ADAPTERS)


def test_what_is_announced_is_what_clients_were_seen_to_need() -> None:
    """The minima, too: old librdkafka looks for exact versions."""
    value = answer_to(request(apis.API_VERSIONS, 0), apis.API_VERSIONS, ApiVersionsResponse())
    rows = {row.api_key: (row.min_version, row.max_version) for row in value.api_keys}
    assert rows[0] == (0, 13)
    assert rows[1] == (4, 18)
    assert rows[10] == (0, 6)
    assert rows[22] == (0, 5)
    assert rows[23] == (2, 4)
    assert rows[68] == (0, 1)
    assert rows[69] == (0, 1)
    assert (rows[24], rows[25], rows[26]) == ((0, 5), (0, 4), (0, 5))
    assert (rows[28], rows[61], rows[65], rows[66]) == ((0, 5), (0, 0), (0, 0), (0, 2))
    assert not rows.keys() & {4, 5, 6, 7, 56, 64, 1001, 1002}


def test_an_unknown_api_or_version_is_not_read() -> None:
    """It ends the connection, as Kafka does."""
    for key, version in ((0, 14), (1, 3), (23, 1), (1002, 0), (-1, 0)):
        with pytest.raises(UnsupportedVersion):
            decode_request(memoryview(header(key, version) + b"\0" * 40))


def test_a_refused_version_says_whose_it_was_and_what_is_served() -> None:
    """For the operator: the client sees that its connection ends."""
    named = struct.pack(">hhih", 0, 14, 7, 4) + b"shop" + b"\0" * 40
    with pytest.raises(UnsupportedVersion, match="0 to 13 of Produce are; client id 'shop'"):
        decode_request(memoryview(named))
    strange = struct.pack(">hhih", 999, 0, 7, 4) + b"shop"
    with pytest.raises(UnsupportedVersion, match=r"api 999 .*client id 'shop'"):
        decode_request(memoryview(strange))
    with pytest.raises(UnsupportedVersion, match="api 999"):
        decode_request(memoryview(struct.pack(">hhih", 999, 0, 7, 400)))


def test_bytes_behind_the_last_field_are_ignored() -> None:
    """As in Kafka: librdkafka writes null, for all topics, in four bytes, where flexible versions
    have one. A frame without a header is refused."""
    frame = bytes.fromhex("0003000a00000003000772646b61666b61000000000001000000")
    assert decode_request(memoryview(frame))[0].message == MetadataRequest(
        None, allow_auto_topic_creation=False
    )
    with pytest.raises(ProtocolError, match="no header"):
        decode_request(memoryview(b"\0\x12\0\0"))


def test_metadata_version_0_spells_all_topics_by_none() -> None:
    """An empty list is all of them there, and none of them from version 1 on."""
    assert decode_request(request(apis.METADATA, 0, []))[0].message == MetadataRequest(None)
    assert decode_request(request(apis.METADATA, 1, None))[0].message == MetadataRequest(None)
    assert decode_request(request(apis.METADATA, 1, []))[0].message == MetadataRequest(())
    topic = apis.METADATA.request.of("topics").make
    asked = decode_request(request(apis.METADATA, 4, [topic(name="t")], False))[0].message
    assert asked == MetadataRequest(("t",), allow_auto_topic_creation=False)


def test_metadata_10_names_topics_and_tells_their_ids() -> None:
    """A topic without a name would be asked for by its id, which versions from 12 on do."""
    topic = apis.METADATA.request.of("topics").make
    frame = request(apis.METADATA, 10, [topic(name="t")], True)
    assert decode_request(frame)[0].message == MetadataRequest(("t",))
    message = MetadataResponse((), "cluster", 1, (TopicMetadata("t", topic_id=b"i" * 16),))
    assert answer_to(frame, apis.METADATA, message).topics[0].topic_id == b"i" * 16
    frame = request(apis.METADATA, 9, [topic(name="t")], True)
    assert answer_to(frame, apis.METADATA, message).topics[0].topic_id == bytes(16)
    with pytest.raises(ProtocolError, match="without a name"):
        decode_request(request(apis.METADATA, 10, [topic(b"i" * 16, None)]))


def test_groups_are_listed_with_their_states() -> None:
    """From version 4 on, where only some states may be asked for."""
    message = ListGroupsResponse(groups=(ListedGroup("g", "consumer", "Stable"),))
    frame = request(apis.LIST_GROUPS, 4, ["Stable", "Empty"])
    assert decode_request(frame)[0].message == ListGroupsRequest(("Stable", "Empty"))
    assert answer_to(frame, apis.LIST_GROUPS, message).groups[0].group_state == "Stable"
    frame = request(apis.LIST_GROUPS, 3)
    assert decode_request(frame)[0].message == ListGroupsRequest()
    assert answer_to(frame, apis.LIST_GROUPS, message).groups[0].group_id == "g"


def test_a_fenced_broker_is_left_out_and_leads_nothing() -> None:
    """A client is sent to nobody who is not listed."""
    partitions = (
        PartitionMetadata(0, 0, 1, 5, (1, 2), (1, 2)),
        PartitionMetadata(1, 0, 2, 5, (1, 2), (1, 2)),
    )
    message = MetadataResponse(
        (BrokerMetadata(1, "a", 1, "r"), BrokerMetadata(2, "b", 2, is_fenced=True)),
        "cluster",
        2,
        (TopicMetadata("t", partitions=partitions),),
    )
    value = answer_to(request(apis.METADATA, 8, None), apis.METADATA, message)
    assert [(broker.node_id, broker.rack) for broker in value.brokers] == [(1, "r")]
    assert value.controller_id == -1
    told = [(one.error_code, one.leader_id) for one in value.topics[0].partitions]
    assert told == [(0, 1), (ErrorCode.LEADER_NOT_AVAILABLE, -1)]


@pytest.mark.parametrize("error", [ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION])
def test_a_partition_that_is_not_there_has_no_aborted_transactions(error: int) -> None:
    """Kafka has null only for a partition that is there, where they were not asked for."""
    frame = request(apis.FETCH, 12, topics=[], forgotten_topics_data=[])
    value = answer_to(frame, apis.FETCH, FetchResponse(0, 7, (PartitionFetched("t", 3, error),)))
    told = value.responses[0].partitions[0].aborted_transactions
    assert told == ([] if error else None)


def test_a_fetch_says_all_that_its_frame_does() -> None:
    """With the last stable offset, and the aborted transactions if they were asked for."""
    topic = apis.FETCH.request.of("topics")
    partition = topic.of("partitions").make(3, 9, 100, 8, partition_max_bytes=4096)
    topics = [topic.make(topic="t", partitions=[partition])]
    forgotten = [apis.FETCH.request.of("forgotten_topics_data").make("u", partitions=[1, 2])]
    named = {"max_wait_ms": 5, "session_id": 7, "session_epoch": 4}
    frame = request(apis.FETCH, 12, topics=topics, forgotten_topics_data=forgotten, **named)
    asked = decode_request(frame)[0].message
    assert (asked.session_id, asked.session_epoch, asked.replica_id) == (7, 4, -1)
    assert asked.partitions == (PartitionFetch("t", 3, 100, 4096, 9, 8),)
    assert asked.forgotten == (("u", 1), ("u", 2))
    one = PartitionFetched("t", 3, 0, 120, 7, [b"records"], last_stable_offset=110)
    aborted = (AbortedTransaction(9, 8), AbortedTransaction(10, 11))
    stable = replace(one, aborted_transactions=aborted)
    value = answer_to(frame, apis.FETCH, FetchResponse(0, 7, (one, stable)))
    told, told_stable = value.responses[0].partitions
    assert told.aborted_transactions is None
    assert [tuple(each[:2]) for each in told_stable.aborted_transactions] == [*map(tuple, aborted)]
    assert value.session_id == 7
    assert (told.high_watermark, told.last_stable_offset, told.log_start_offset) == (120, 110, 7)
    assert told.aborted_transactions is None
    assert bytes(told.records) == b"records"
    assert (told.diverging_epoch, told.current_leader) == (None, None)


def test_a_fetch_by_topic_ids() -> None:
    """From version 13 on; another topic of the same name is an unknown one to its client."""
    topic = apis.FETCH.request.of("topics")
    partition = topic.of("partitions").make(3, 9, 100, partition_max_bytes=4096)
    topics = [topic.make(topic_id=b"i" * 16, partitions=[partition])]
    forgotten = [apis.FETCH.request.of("forgotten_topics_data").make("", b"j" * 16, [1])]
    frame = request(apis.FETCH, 13, topics=topics, forgotten_topics_data=forgotten)
    asked = decode_request(frame)[0].message
    assert asked.partitions == (PartitionFetch("", 3, 100, 4096, 9, topic_id=b"i" * 16),)
    assert asked.is_by_id
    assert asked.forgotten_by_id == ((b"j" * 16, 1),)
    partitions = (
        PartitionFetched("t", 3, ErrorCode.INCONSISTENT_TOPIC_ID, topic_id=b"i" * 16),
        PartitionFetched("", 3, ErrorCode.UNKNOWN_TOPIC_ID, topic_id=b"j" * 16),
    )
    value = answer_to(frame, apis.FETCH, FetchResponse(0, 0, partitions))
    told = [(one.topic_id, one.partitions[0].error_code) for one in value.responses]
    assert told == [(b"i" * 16, 100), (b"j" * 16, 100)]


def test_a_fetch_names_divergence_and_new_leaders() -> None:
    """In tagged fields; addresses from version 16 on."""
    partitions = (
        PartitionFetched("t", 3, 0, 120, diverging_epoch=5, diverging_end=80),
        PartitionFetched("t", 4, 6, leader_id=2, leader_epoch=9),
    )
    message = FetchResponse(0, 0, partitions, (NodeEndpoint(2, "b", 9092),))
    value = answer_to(request(apis.FETCH, 16), apis.FETCH, message)
    one, other = value.responses[0].partitions
    assert (tuple(one.diverging_epoch), one.current_leader) == ((5, 80), None)
    assert (other.diverging_epoch, tuple(other.current_leader)) == (None, (2, 9))
    assert [tuple(node) for node in value.node_endpoints] == [(2, "b", 9092, None)]


def test_a_batch_for_a_topic_id() -> None:
    """From version 13 of Produce on. New leaders are named from version 10 on."""
    topic = apis.PRODUCE.request.of("topic_data")
    topics = [topic.make(topic_id=b"i" * 16, partition_data=[(3, b"batch")])]
    frame = request(apis.PRODUCE, 13, acks=-1, timeout_ms=9, topic_data=topics)
    (asked,) = decode_request(frame)[0].message.partitions
    assert (asked.topic, asked.partition, asked.topic_id) == ("", 3, b"i" * 16)
    partitions = (
        PartitionProduced("t", 3, 6, -1, -1, 0, "no leader", 2, 9, b"i" * 16),
        PartitionProduced("", 3, 100, topic_id=b"j" * 16),
    )
    message = ProduceResponse(partitions, (NodeEndpoint(2, "b", 9092),))
    value = answer_to(frame, apis.PRODUCE, message)
    assert [one.topic_id for one in value.responses] == [b"i" * 16, b"j" * 16]
    told = value.responses[0].partition_responses[0]
    assert (told.error_code, told.error_message) == (6, "no leader")
    assert tuple(told.current_leader) == (2, 9)
    assert [tuple(node) for node in value.node_endpoints] == [(2, "b", 9092, None)]


def test_metadata_by_topic_ids() -> None:
    """From version 12 on; a topic of an unknown id has no name."""
    make = apis.METADATA.request.of("topics").make
    frame = request(apis.METADATA, 12, [make(b"i" * 16, None), make(name="t")], False, False, True)
    asked = decode_request(frame)[0].message
    assert asked == MetadataRequest(("t",), False, (b"i" * 16,), True)
    unknown = TopicMetadata("", 100, b"i" * 16)
    known = TopicMetadata("t", authorized_operations=3576)
    value = answer_to(frame, apis.METADATA, MetadataResponse(topics=(unknown, known)))
    told = [(one.name, one.error_code, one.topic_authorized_operations) for one in value.topics]
    assert told == [(None, 100, -(2**31)), ("t", 0, 3576)]
    frame = request(apis.METADATA, 8, None, True, True)
    assert decode_request(frame)[0].message.include_cluster_operations
    message = MetadataResponse(authorized_operations=8096)
    assert answer_to(frame, apis.METADATA, message).cluster_authorized_operations == 8096


@pytest.mark.parametrize(("version", "lowest"), [(1, -2), (6, -2), (7, -3), (8, -4), (9, -5)])
def test_newer_versions_have_more_timestamps(version: int, lowest: int) -> None:
    """A timestamp without a meaning yet becomes one that no version has."""
    topic = apis.LIST_OFFSETS.request.of("topics")
    stamps = [-1, -2, -3, -4, -5, -6, 7]
    make = topic.of("partitions").make
    topics = [topic.make("t", [make(0, timestamp=stamp) for stamp in stamps])]
    asked = decode_request(request(apis.LIST_OFFSETS, version, topics=topics))[0].message
    expected = [stamp if stamp >= lowest else UNKNOWN_TIMESTAMP for stamp in stamps]
    assert [one.timestamp for one in asked.partitions] == expected


@pytest.mark.parametrize("version", [2, 3, 4])
def test_a_consumer_asks_where_a_leader_epoch_ended(version: int) -> None:
    """It is a consumer, whatever replica id it claims from version 3 on."""
    topic = apis.OFFSET_FOR_LEADER_EPOCH.request.of("topics")
    partitions = [topic.of("partitions").make(3, 9, 7), topic.of("partitions").make(4, -1, 6)]
    named = {"replica_id": 2} if version > 2 else {}
    frame = request(
        apis.OFFSET_FOR_LEADER_EPOCH, version, topics=[topic.make("t", partitions)], **named
    )
    asked = decode_request(frame)[0].message
    expected = (PartitionEpoch("t", 3, 7, 9), PartitionEpoch("t", 4, 6, -1))
    assert asked == OffsetsForLeaderEpochRequest(-1, expected)
    message = OffsetsForLeaderEpochResponse(
        (
            PartitionEpochEnd("t", 3, 0, 6, 120),
            PartitionEpochEnd("t", 4, ErrorCode.FENCED_LEADER_EPOCH),
        )
    )
    value = answer_to(frame, apis.OFFSET_FOR_LEADER_EPOCH, message)
    told = [tuple(one) for one in value.topics[0].partitions]
    assert told == [(0, 3, 6, 120), (ErrorCode.FENCED_LEADER_EPOCH, 4, -1, -1)]


def test_old_members_join_without_being_told_an_id_first() -> None:
    """JoinGroup before version 4 has no MEMBER_ID_REQUIRED, and version 0 one time-out for both."""
    asked = {"group_id": "g", "session_timeout_ms": 9, "rebalance_timeout_ms": 60}
    for version in range(6):
        message = decode_request(request(apis.JOIN_GROUP, version, **asked))[0].message
        assert isinstance(message, JoinGroupRequest)
        assert message.needs_member_id == (version >= 4)
        assert message.rebalance_timeout_ms == (60 if version else 9)


def test_one_member_leaves_with_an_answer_of_its_own() -> None:
    """Before version 3 the answer's error is the member's."""
    frame = request(apis.LEAVE_GROUP, 1, group_id="g", member_id="m")
    assert decode_request(frame)[0].message == LeaveGroupRequest("g", (LeavingMember("m"),))
    left = LeaveGroupResponse(members=(LeftMember("m", None, ErrorCode.UNKNOWN_MEMBER_ID),))
    assert answer_to(frame, apis.LEAVE_GROUP, left).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    member = apis.LEAVE_GROUP.request.of("members").make
    frame = request(apis.LEAVE_GROUP, 3, group_id="g", members=[member("m", None)])
    value = answer_to(frame, apis.LEAVE_GROUP, left)
    assert (value.error_code, value.members[0].error_code) == (0, ErrorCode.UNKNOWN_MEMBER_ID)


def test_what_an_old_version_cannot_say_ends_the_connection() -> None:
    """OffsetFetch 1 has no error of its own: nothing committed would be a lie."""
    frame = request(apis.OFFSET_FETCH, 1, "g", [])
    message = OffsetFetchResponse(ErrorCode.NOT_COORDINATOR)
    with pytest.raises(ProtocolError, match="cannot say"):
        answer_to(frame, apis.OFFSET_FETCH, message)
    assert answer_to(request(apis.OFFSET_FETCH, 2, "g", []), apis.OFFSET_FETCH, message).error_code


def test_brokers_do_not_fetch_by_this_wire() -> None:
    """A follower's fetch moves high watermarks; a stranger must not pose as one."""
    with pytest.raises(ProtocolError, match="brokers"):
        decode_request(request(apis.FETCH, 11, replica_id=2))
    for reader in (-1, -2):
        message = decode_request(request(apis.FETCH, 11, replica_id=reader))[0].message
        assert isinstance(message, FetchRequest)
        assert message.replica_id == -1


def test_every_key_is_served_by_the_handler_of_its_name() -> None:
    """But for AlterConfigs, which has two forms in Kafka and one here."""
    for key, adapter in ADAPTERS.items():
        same = adapter.key == key
        assert same or adapter.api.name.endswith("AlterConfigs"), adapter.api.name
        assert isinstance(adapter.key, ApiKey)


def test_many_elements_become_the_same_message_in_turns() -> None:
    """A request that is converted in parts, with one long array or many."""
    compared = 0
    for largest in largest_requests("kafka", 3_000):
        frame = memoryview(bytearray(largest.frame[4:]))
        turns = decode_request_in_turns(frame)
        while True:
            try:
                next(turns)
            except StopIteration as end:
                envelope, _ = end.value
                break
        key, version = struct.unpack_from(">hh", frame)
        (api,) = [one for one in ALL_APIS if one.key == key]
        start = 10 if not api.is_flexible(version) else 11
        flexible = api.is_flexible(version)
        asked, _ = decode(api.request, version, frame, start, is_flexible=flexible)
        assert envelope.message == ADAPTERS[key].request(asked, version), largest
        compared += 1
    assert compared > 20
