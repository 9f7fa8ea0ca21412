"""Every field of a group's requests and answers on Kafka's wire: each value is different, so that
no two fields can change places, and none can be left out."""

from typing import Any, Final

import pytest

from minibroker.protocol.kafka import apis
from minibroker.protocol.kafka.api import KafkaApi
from minibroker.protocol.kafka.wire import decode_request
from minibroker.protocol.messages.group_offsets import (
    GroupPartition,
    OffsetCommitRequest,
    OffsetFetchRequest,
    OffsetFetchResponse,
    PartitionCommit,
    PartitionGroupOffset,
)
from minibroker.protocol.messages.groups import (
    DescribedGroup,
    DescribeGroupsResponse,
    GroupProtocol,
    HeartbeatRequest,
    JoinedMember,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    LeavingMember,
    LeftMember,
    MemberAssignment,
    MemberDescription,
    SyncGroupRequest,
)
from tests.unit.kafka.frames import answer_to, request

MEMBER: Final = {"group_id": "g", "member_id": "m", "group_instance_id": "i"}
COMMITS: Final = apis.OFFSET_COMMIT.request.of("topics")
FETCHES: Final = apis.OFFSET_FETCH.request.of("topics")

REQUESTS: Final[dict[str, tuple[KafkaApi, int, dict[str, Any], object]]] = {
    "join": (
        apis.JOIN_GROUP,
        5,
        MEMBER
        | {
            "session_timeout_ms": 9,
            "rebalance_timeout_ms": 60,
            "protocol_type": "consumer",
            "protocols": [apis.JOIN_GROUP.request.of("protocols").make("range", b"meta")],
        },
        JoinGroupRequest(
            "g", 9, 60, "m", "i", "consumer", (GroupProtocol("range", b"meta"),), True
        ),
    ),
    "sync": (
        apis.SYNC_GROUP,
        3,
        MEMBER
        | {
            "generation_id": 4,
            "assignments": [apis.SYNC_GROUP.request.of("assignments").make("n", b"all")],
        },
        SyncGroupRequest("g", 4, "m", "i", (MemberAssignment("n", b"all"),)),
    ),
    "heartbeat": (
        apis.HEARTBEAT,
        3,
        MEMBER | {"generation_id": 4},
        HeartbeatRequest("g", 4, "m", "i"),
    ),
    "leave": (
        apis.LEAVE_GROUP,
        3,
        {"group_id": "g", "members": [apis.LEAVE_GROUP.request.of("members").make("m", "i")]},
        LeaveGroupRequest("g", (LeavingMember("m", "i"),)),
    ),
    "commit": (
        apis.OFFSET_COMMIT,
        7,
        MEMBER
        | {
            "generation_id_or_member_epoch": 4,
            "topics": [
                COMMITS.make(
                    name="t",
                    partitions=[
                        COMMITS.of("partitions").make(
                            partition_index=1,
                            committed_offset=20,
                            committed_leader_epoch=3,
                            committed_metadata="note",
                        )
                    ],
                )
            ],
        },
        OffsetCommitRequest("g", 4, "m", "i", (PartitionCommit("t", 1, 20, 3, "note"),)),
    ),
    "fetch": (
        apis.OFFSET_FETCH,
        5,
        {"group_id": "g", "topics": [FETCHES.make("t", [1, 2])]},
        OffsetFetchRequest("g", (GroupPartition("t", 1), GroupPartition("t", 2))),
    ),
    "fetch-all": (
        apis.OFFSET_FETCH,
        5,
        {"group_id": "g", "topics": None},
        OffsetFetchRequest("g", None),
    ),
    # No partitions are none, not all: nothing is asked for, and nothing is answered.
    "fetch-none": (
        apis.OFFSET_FETCH,
        5,
        {"group_id": "g", "topics": []},
        OffsetFetchRequest("g", ()),
    ),
    "fetch-none-old": (
        apis.OFFSET_FETCH,
        1,
        {"group_id": "g", "topics": []},
        OffsetFetchRequest("g", ()),
    ),
}


@pytest.mark.parametrize("case", REQUESTS)
def test_a_request_says_all_that_its_frame_does(case: str) -> None:
    """A static member's heartbeat, for one, is known by its instance id: without it two members
    with the same id would replace each other for ever."""
    api, version, named, expected = REQUESTS[case]
    assert decode_request(request(api, version, **named))[0].message == expected


def test_a_described_member_keeps_its_fields_apart() -> None:
    """What a member subscribes to is its metadata, what it was given its assignment."""
    member = MemberDescription("m", "i", "client", "/10.0.0.1", b"subscribed", b"assigned")
    group = DescribedGroup("g", 15, "Stable", "consumer", "range", 4, (member,))
    frame = request(apis.DESCRIBE_GROUPS, 4, ["g"])
    value = answer_to(frame, apis.DESCRIBE_GROUPS, DescribeGroupsResponse((group,)))
    (told,) = value.groups
    assert (told.error_code, told.group_id, told.group_state) == (15, "g", "Stable")
    assert (told.protocol_type, told.protocol_data) == ("consumer", "range")
    (told,) = told.members
    assert (told.member_id, told.group_instance_id) == ("m", "i")
    assert (told.client_id, told.client_host) == ("client", "/10.0.0.1")
    assert (bytes(told.member_metadata), bytes(told.member_assignment)) == (
        b"subscribed",
        b"assigned",
    )


def test_a_leader_learns_all_of_its_members() -> None:
    """The answer to JOIN names the leader, the member, and what each of them has said."""
    message = JoinGroupResponse(15, 4, "range", "l", "m", (JoinedMember("n", "i", b"meta"),))
    value = answer_to(request(apis.JOIN_GROUP, 5, "g"), apis.JOIN_GROUP, message)
    assert (value.error_code, value.generation_id, value.protocol_name) == (15, 4, "range")
    assert (value.leader, value.member_id) == ("l", "m")
    (told,) = value.members
    assert (told.member_id, told.group_instance_id, bytes(told.metadata)) == ("n", "i", b"meta")


def test_members_that_left_are_told_apart() -> None:
    """By id and instance id, each with an error of its own."""
    message = LeaveGroupResponse(0, (LeftMember("m", "i", 25), LeftMember("n", None, 0)))
    value = answer_to(request(apis.LEAVE_GROUP, 3, "g"), apis.LEAVE_GROUP, message)
    told = [(one.member_id, one.group_instance_id, one.error_code) for one in value.members]
    assert told == [("m", "i", 25), ("n", None, 0)]


def test_a_committed_offset_is_answered_whole() -> None:
    """Offset, epoch, metadata and error, of the right partition."""
    message = OffsetFetchResponse(0, (PartitionGroupOffset("t", 1, 6, 20, 3, "note"),))
    value = answer_to(request(apis.OFFSET_FETCH, 5, "g", None), apis.OFFSET_FETCH, message)
    (topic,) = value.topics
    (told,) = topic.partitions
    assert (topic.name, told.partition_index, told.error_code) == ("t", 1, 6)
    assert (told.committed_offset, told.committed_leader_epoch, told.metadata) == (20, 3, "note")
