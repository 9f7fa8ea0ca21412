"""Every field of a group's requests and answers on Kafka's wire: each value is different, so that
no two fields can change places, and none can be left out."""

from typing import Any, Final

import pytest

from minibroker.protocol.kafka import apis
from minibroker.protocol.kafka.api import KafkaApi
from minibroker.protocol.kafka.wire import decode_request
from minibroker.protocol.messages.group_offsets import (
    GroupOffsets,
    GroupPartition,
    GroupPartitions,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    PartitionCommit,
    PartitionCommitted,
    PartitionGroupOffset,
)
from minibroker.protocol.messages.groups import (
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    GroupCoordinator,
    GroupProtocol,
    HeartbeatRequest,
    JoinedMember,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    LeavingMember,
    LeftMember,
    ListGroupsRequest,
    MemberAssignment,
    MemberDescription,
    SyncGroupRequest,
    SyncGroupResponse,
)
from tests.unit.kafka.frames import answer_to, request

MEMBER: Final = {"group_id": "g", "member_id": "m", "group_instance_id": "i"}
COMMITS: Final = apis.OFFSET_COMMIT.request.of("topics")
FETCHES: Final = apis.OFFSET_FETCH.request.of("topics")
GROUPS: Final = apis.OFFSET_FETCH.request.of("groups")

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


REQUESTS["sync-with-protocol"] = (
    apis.SYNC_GROUP,
    5,
    MEMBER | {"generation_id": 4, "protocol_type": "consumer", "protocol_name": "range"},
    SyncGroupRequest("g", 4, "m", "i", (), "consumer", "range"),
)
REQUESTS["sync-without-protocol"] = (
    apis.SYNC_GROUP,
    5,
    MEMBER | {"generation_id": 4, "protocol_type": None, "protocol_name": None},
    SyncGroupRequest("g", 4, "m", "i", (), "", ""),
)
REQUESTS["commit-by-id"] = (
    apis.OFFSET_COMMIT,
    10,
    MEMBER
    | {
        "topics": [
            COMMITS.make(
                topic_id=b"i" * 16, partitions=[COMMITS.of("partitions").make(1, 20, 3, None)]
            )
        ]
    },
    OffsetCommitRequest("g", -1, "m", "i", (PartitionCommit("", 1, 20, 3, None, b"i" * 16),), True),
)
REQUESTS["fetch-groups"] = (
    apis.OFFSET_FETCH,
    8,
    {
        "groups": [
            GROUPS.make("g", topics=[GROUPS.of("topics").make("t", partition_indexes=[1, 2])]),
            GROUPS.make("h", topics=None),
        ]
    },
    OffsetFetchRequest(
        "",
        groups=(
            GroupPartitions("g", (GroupPartition("t", 1), GroupPartition("t", 2))),
            GroupPartitions("h"),
        ),
    ),
)
REQUESTS["fetch-by-id"] = (
    apis.OFFSET_FETCH,
    10,
    {
        "groups": [
            GROUPS.make(
                "g", "m", 4, [GROUPS.of("topics").make(topic_id=b"i" * 16, partition_indexes=[1])]
            ),
        ]
    },
    OffsetFetchRequest(
        "", groups=(GroupPartitions("g", (GroupPartition("", 1, b"i" * 16),), "m", 4),)
    ),
)
REQUESTS["find-several"] = (
    apis.FIND_COORDINATOR,
    4,
    {"key_type": 1, "coordinator_keys": ["g", "h"]},
    FindCoordinatorRequest("", 1, ("g", "h")),
)
REQUESTS["list"] = (
    apis.LIST_GROUPS,
    5,
    {"states_filter": ["Stable"], "types_filter": ["classic"]},
    ListGroupsRequest(("Stable",), ("classic",)),
)
REQUESTS["describe"] = (
    apis.DESCRIBE_GROUPS,
    6,
    {"groups": ["g"], "include_authorized_operations": True},
    DescribeGroupsRequest(("g",), True),
)


@pytest.mark.parametrize("case", REQUESTS)
def test_a_request_says_all_that_its_frame_does(case: str) -> None:
    """A static member's heartbeat, for one, is known by its instance id: without it two members
    with the same id would replace each other for ever."""
    api, version, named, expected = REQUESTS[case]
    assert decode_request(request(api, version, **named))[0].message == expected


def test_a_described_member_keeps_its_fields_apart() -> None:
    """What a member subscribes to is its metadata, what it was given its assignment."""
    member = MemberDescription("m", "i", "client", "10.0.0.1", b"subscribed", b"assigned")
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


def test_several_groups_have_their_offsets() -> None:
    """From version 8 on with errors of their own; from 10 on by topic ids, without topics that are
    gone."""
    offsets = (
        PartitionGroupOffset("t", 1, 0, 20, 3, "note", b"i" * 16),
        PartitionGroupOffset("", 2, 100, topic_id=b"j" * 16),
        PartitionGroupOffset("", 2, 100, topic_id=b"k" * 16),
        PartitionGroupOffset("gone", 1, 0, 20),
    )
    message = OffsetFetchResponse(groups=(GroupOffsets("g", 0, offsets), GroupOffsets("h", 16)))
    frame = request(apis.OFFSET_FETCH, 8, groups=[GROUPS.make("g")])
    told = answer_to(frame, apis.OFFSET_FETCH, message).groups
    assert [(one.group_id, one.error_code) for one in told] == [("g", 0), ("h", 16)]
    assert tuple(told[0].topics[0].partitions[0]) == (1, 20, 3, "note", 0)
    assert [topic.name for topic in told[0].topics][-1] == "gone"
    frame = request(apis.OFFSET_FETCH, 10, groups=[GROUPS.make("g")])
    told = answer_to(frame, apis.OFFSET_FETCH, message).groups[0].topics
    assert [(one.topic_id, one.partitions[0].error_code) for one in told] == [
        (b"i" * 16, 0),
        (b"j" * 16, 100),
        (b"k" * 16, 100),
    ]


def test_commits_of_unknown_topics_are_told_apart() -> None:
    """By their ids, from version 10 on."""
    message = OffsetCommitResponse(
        (
            PartitionCommitted("t", 1, 0, b"i" * 16),
            PartitionCommitted("", 1, 100, b"j" * 16),
            PartitionCommitted("", 1, 100, b"k" * 16),
        )
    )
    frame = request(apis.OFFSET_COMMIT, 10, "g")
    told = answer_to(frame, apis.OFFSET_COMMIT, message).topics
    assert [(one.topic_id[:1], tuple(one.partitions[0])) for one in told] == [
        (b"i", (1, 0)),
        (b"j", (1, 100)),
        (b"k", (1, 100)),
    ]


def test_each_of_several_coordinators_has_its_error() -> None:
    """From version 4 of FindCoordinator on."""
    message = FindCoordinatorResponse(
        coordinators=(
            GroupCoordinator("g", node_id=2, host="b", port=9092),
            GroupCoordinator("h", 15, "not yet"),
        )
    )
    frame = request(apis.FIND_COORDINATOR, 4, coordinator_keys=["g", "h"])
    told = [tuple(one) for one in answer_to(frame, apis.FIND_COORDINATOR, message).coordinators]
    assert told == [("g", 2, "b", 9092, 0, None), ("h", -1, "", -1, 15, "not yet")]


@pytest.mark.parametrize(("version", "name"), [(6, ""), (7, None)])
def test_a_refused_join_has_no_protocol(version: int, name: str | None) -> None:
    """From version 7 on it is null."""
    frame = request(apis.JOIN_GROUP, version, "g")
    value = answer_to(frame, apis.JOIN_GROUP, JoinGroupResponse(25, member_id="m"))
    assert (value.error_code, value.protocol_name, value.member_id) == (25, name, "m")


def test_a_joined_leader_may_skip_the_assignment() -> None:
    """From version 9 on, which also names the protocol type."""
    message = JoinGroupResponse(0, 4, "range", "l", "l", (), "consumer", True)
    value = answer_to(request(apis.JOIN_GROUP, 9, "g"), apis.JOIN_GROUP, message)
    assert (value.protocol_type, value.protocol_name) == ("consumer", "range")
    assert value.skip_assignment


def test_an_assignment_names_its_protocol() -> None:
    """From version 5 of SyncGroup on."""
    message = SyncGroupResponse(0, b"all", "consumer", "range")
    value = answer_to(request(apis.SYNC_GROUP, 5, "g"), apis.SYNC_GROUP, message)
    assert (value.protocol_type, value.protocol_name, value.assignment) == (
        "consumer",
        "range",
        b"all",
    )


@pytest.mark.parametrize(("version", "error"), [(5, 0), (6, 69)])
def test_an_unknown_group_is_an_error(version: int, error: int) -> None:
    """From version 6 of DescribeGroups on; before it is only dead."""
    message = DescribeGroupsResponse((DescribedGroup("g", state="Dead"),))
    frame = request(apis.DESCRIBE_GROUPS, version, ["g"])
    (told,) = answer_to(frame, apis.DESCRIBE_GROUPS, message).groups
    assert (told.error_code, told.group_state) == (error, "Dead")
    assert told.error_message == ("Group g not found." if error else None)


def test_operations_of_a_group_are_told() -> None:
    """As the bits of the message."""
    message = DescribeGroupsResponse((DescribedGroup("g", authorized_operations=3400),))
    frame = request(apis.DESCRIBE_GROUPS, 6, ["g"], True)
    assert answer_to(frame, apis.DESCRIBE_GROUPS, message).groups[0].authorized_operations == 3400


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


@pytest.mark.parametrize("is_stable", [False, True])
def test_offsets_may_have_to_be_stable(is_stable: bool) -> None:
    """From version 7 on a client says so: exactly-once rests on it."""
    one = request(apis.OFFSET_FETCH, 7, "g", [("t", [1])], require_stable=is_stable)
    assert decode_request(one)[0].message.require_stable is is_stable
    several = request(apis.OFFSET_FETCH, 8, groups=[GROUPS.make("g")], require_stable=is_stable)
    assert decode_request(several)[0].message.require_stable is is_stable
    assert not decode_request(request(apis.OFFSET_FETCH, 6, "g"))[0].message.require_stable
