"""The apis of groups, and their offsets."""

from collections.abc import Generator, Sequence
from functools import partial
from typing import Any, Final

from minibroker.protocol.constants import ELEMENTS_AT_ONCE, ApiKey, ErrorCode
from minibroker.protocol.errors import ProtocolError
from minibroker.protocol.kafka import admin_apis, apis
from minibroker.protocol.kafka.adapters.adapter import (
    Adapter,
    Array,
    Converted,
    all_at_once,
    by_topic,
    by_topic_id,
    cut_text,
    host_text,
)
from minibroker.protocol.kafka.schema import Struct, Version
from minibroker.protocol.messages.group_offsets import (
    GroupOffsets,
    GroupPartition,
    GroupPartitions,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    PartitionCommit,
    PartitionCommitted,
    PartitionGroupOffset,
)
from minibroker.protocol.messages.groups import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    GroupCoordinator,
    GroupProtocol,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    LeavingMember,
    ListGroupsRequest,
    ListGroupsResponse,
    MemberAssignment,
    MemberDescription,
    SyncGroupRequest,
    SyncGroupResponse,
)

MEMBER_ID_REQUIRED_SINCE: Final[Version] = 4  # of JoinGroup: KIP-394
MEMBERS_LEAVE_SINCE: Final[Version] = 3  # of LeaveGroup: several members in one request
KEYS_SINCE: Final[Version] = 4  # of FindCoordinator: several keys in one request
PROTOCOL_TYPE_SINCE: Final[Version] = 7  # of JoinGroup: no protocol in an answer with an error
PROTOCOL_CHECKED_SINCE: Final[Version] = 5  # of SyncGroup
UNKNOWN_GROUP_SINCE: Final[Version] = 9  # of OffsetCommit: the error of an unknown group
GROUPS_SINCE: Final[Version] = 8  # of OffsetFetch: several groups in one request
TOPIC_IDS_SINCE: Final[Version] = 10  # of OffsetCommit and OffsetFetch
GROUP_ID_NOT_FOUND_SINCE: Final[Version] = 6  # of DescribeGroups: the error of an unknown group
DEAD: Final = "Dead"


def _find_coordinator_request(asked: Any, version: Version) -> FindCoordinatorRequest:
    keys = tuple(asked.coordinator_keys) if version >= KEYS_SINCE else None
    return FindCoordinatorRequest(asked.key, asked.key_type, keys)


def _find_coordinator_response(answer: FindCoordinatorResponse, version: Version) -> Any:
    return apis.FIND_COORDINATOR.response.make(
        0,
        answer.error,
        cut_text(answer.error_message),
        answer.node_id,
        answer.host,
        answer.port,
        Converted(_coordinator, answer.coordinators),
    )


_COORDINATOR: Final = apis.FIND_COORDINATOR.response.of("coordinators").make


def _coordinator(one: GroupCoordinator) -> Any:
    text = cut_text(one.error_message)
    return _COORDINATOR(one.group_id, one.node_id, one.host, one.port, one.error, text)


def _join_group_request(asked: Any, version: Version) -> JoinGroupRequest:
    """Convert the request. Version 0 has one time-out for both session and rebalance."""
    rebalance_ms = asked.session_timeout_ms if version == 0 else asked.rebalance_timeout_ms
    return JoinGroupRequest(
        asked.group_id,
        asked.session_timeout_ms,
        rebalance_ms,
        asked.member_id,
        asked.group_instance_id,
        asked.protocol_type,
        tuple(GroupProtocol(one.name, one.metadata) for one in asked.protocols),
        is_member_id_required=version >= MEMBER_ID_REQUIRED_SINCE,
    )


def _join_group_response(answer: JoinGroupResponse, version: Version) -> Any:
    """Convert the answer. Without a generation it has no protocol: "" in older versions."""
    has_protocol = answer.protocol_type is not None or version < PROTOCOL_TYPE_SINCE
    make = apis.JOIN_GROUP.response.of("members").make
    return apis.JOIN_GROUP.response.make(
        0,
        answer.error,
        answer.generation,
        answer.protocol_type,
        answer.protocol if has_protocol else None,
        answer.leader,
        answer.skip_assignment,
        answer.member_id,
        Converted(lambda one: make(one.member_id, one.instance_id, one.metadata), answer.members),
    )


def _sync_group_request(asked: Any, version: Version) -> SyncGroupRequest:
    """Convert the request. From version 5 on it must name the group's protocol."""
    protocol: tuple[str | None, str | None] = (None, None)
    if version >= PROTOCOL_CHECKED_SINCE:
        protocol = asked.protocol_type or "", asked.protocol_name or ""
    return SyncGroupRequest(
        asked.group_id,
        asked.generation_id,
        asked.member_id,
        asked.group_instance_id,
        tuple(MemberAssignment(one.member_id, one.assignment) for one in asked.assignments),
        *protocol,
    )


def _sync_group_response(answer: SyncGroupResponse, version: Version) -> Any:
    return apis.SYNC_GROUP.response.make(
        0, answer.error, answer.protocol_type, answer.protocol, answer.assignment
    )


def _heartbeat_request(asked: Any, version: Version) -> HeartbeatRequest:
    return HeartbeatRequest(
        asked.group_id, asked.generation_id, asked.member_id, asked.group_instance_id
    )


def _heartbeat_response(answer: HeartbeatResponse, version: Version) -> Any:
    return apis.HEARTBEAT.response.make(0, answer.error)


def _leave_group_request(asked: Any, version: Version) -> LeaveGroupRequest:
    if version < MEMBERS_LEAVE_SINCE:
        return LeaveGroupRequest(asked.group_id, (LeavingMember(asked.member_id),))
    members = tuple(LeavingMember(one.member_id, one.group_instance_id) for one in asked.members)
    return LeaveGroupRequest(asked.group_id, members)


def _leave_group_response(answer: LeaveGroupResponse, version: Version) -> Any:
    """Convert the answer. In versions with one member, its error is the answer's."""
    error = answer.error
    if version < MEMBERS_LEAVE_SINCE and answer.members:
        error = answer.members[0].error
    make = apis.LEAVE_GROUP.response.of("members").make
    members = Converted(lambda one: make(one.member_id, one.instance_id, one.error), answer.members)
    return apis.LEAVE_GROUP.response.make(0, error, members)


def _describe_groups_request(asked: Any, version: Version) -> DescribeGroupsRequest:
    return DescribeGroupsRequest(tuple(asked.groups), asked.include_authorized_operations)


def _describe_groups_response(answer: DescribeGroupsResponse, version: Version) -> Any:
    convert = partial(_described_group, version >= GROUP_ID_NOT_FOUND_SINCE)
    return apis.DESCRIBE_GROUPS.response.make(groups=Converted(convert, answer.groups))


def _described_group(can_be_unknown: bool, group: DescribedGroup) -> Any:
    error, text = group.error, None
    if can_be_unknown and not error and group.state == DEAD:
        error = ErrorCode.GROUP_ID_NOT_FOUND
        text = cut_text(f"Group {group.group_id} not found.")
    return apis.DESCRIBE_GROUPS.response.of("groups").make(
        error,
        text,
        group.group_id,
        group.state,
        group.protocol_type,
        group.protocol,
        Converted(_described_member, group.members),
        group.authorized_operations,
    )


def _described_member(one: MemberDescription) -> Any:
    return _DESCRIBED_MEMBER(
        one.member_id,
        one.instance_id,
        one.client_id,
        host_text(one.client_host),
        one.metadata,
        one.assignment,
    )


_DESCRIBED_MEMBER: Final = apis.DESCRIBE_GROUPS.response.of("groups").of("members").make


def _list_groups_request(asked: Any, version: Version) -> ListGroupsRequest:
    return ListGroupsRequest(tuple(asked.states_filter), tuple(asked.types_filter))


def _list_groups_response(answer: ListGroupsResponse, version: Version) -> Any:
    make = apis.LIST_GROUPS.response.of("groups").make
    return apis.LIST_GROUPS.response.make(
        error_code=answer.error,
        groups=Converted(
            lambda one: make(one.group_id, one.protocol_type, one.state, one.type), answer.groups
        ),
    )


def _delete_groups_request(asked: Any, version: Version) -> DeleteGroupsRequest:
    return DeleteGroupsRequest(tuple(asked.groups_names))


def _delete_groups_response(answer: DeleteGroupsResponse, version: Version) -> Any:
    make = apis.DELETE_GROUPS.response.of("results").make
    return apis.DELETE_GROUPS.response.make(
        results=Converted(lambda one: make(one.group_id, one.error), answer.groups)
    )


def _offset_commit_request(asked: Any, version: Version) -> OffsetCommitRequest:
    return OffsetCommitRequest(
        asked.group_id,
        asked.generation_id_or_member_epoch,
        asked.member_id,
        asked.group_instance_id,
        tuple(
            PartitionCommit(
                topic.name,
                one.partition_index,
                one.committed_offset,
                one.committed_leader_epoch,
                one.committed_metadata,
                topic.topic_id if version >= TOPIC_IDS_SINCE else b"",
            )
            for topic in asked.topics
            for one in topic.partitions
        ),
        version >= UNKNOWN_GROUP_SINCE,
    )


def _offset_commit_response(answer: OffsetCommitResponse, version: Version) -> Any:
    topics = apis.OFFSET_COMMIT.response.of("topics")
    make = topics.of("partitions").make

    def committed(one: PartitionCommitted) -> Any:
        return make(one.partition, one.error)

    return apis.OFFSET_COMMIT.response.make(
        topics=by_topic_id(topics.make, committed, answer.partitions)
    )


def _offset_fetch_request(asked: Any, version: Version) -> OffsetFetchRequest:
    return all_at_once(_offset_fetch_request_in_turns(asked, version))


def _offset_fetch_request_in_turns(
    asked: Any, version: Version
) -> Generator[None, None, OffsetFetchRequest]:
    """Convert the request."""
    if version < GROUPS_SINCE:
        partitions = yield from _group_partitions(asked.topics, version)
        return OffsetFetchRequest(asked.group_id, partitions, asked.require_stable)
    groups = []
    for group in asked.groups:
        partitions = yield from _group_partitions(group.topics, version)
        member_id = group.member_id or ""
        groups.append(GroupPartitions(group.group_id, partitions, member_id, group.member_epoch))
        if len(groups) % ELEMENTS_AT_ONCE == 0:
            yield
    return OffsetFetchRequest("", None, asked.require_stable, tuple(groups))


def _group_partitions(
    topics: Sequence[Any] | None, version: Version
) -> Generator[None, None, tuple[GroupPartition, ...] | None]:
    if topics is None:
        return None
    has_names, has_ids = version < TOPIC_IDS_SINCE, version >= TOPIC_IDS_SINCE
    partitions: list[GroupPartition] = []
    for count, topic in enumerate(topics, 1):
        name = topic.name if has_names else ""
        topic_id = topic.topic_id if has_ids else b""
        for start in range(0, len(topic.partition_indexes), ELEMENTS_AT_ONCE):
            some = topic.partition_indexes[start : start + ELEMENTS_AT_ONCE]
            partitions += [GroupPartition(name, partition, topic_id) for partition in some]
            if len(some) == ELEMENTS_AT_ONCE:
                yield
        if count % ELEMENTS_AT_ONCE == 0:
            yield
    return tuple(partitions)


def _offset_fetch_response(answer: OffsetFetchResponse, version: Version) -> Any:
    has_error = answer.partitions or apis.OFFSET_FETCH.response.has("error_code", version)
    if answer.error and not has_error and version < GROUPS_SINCE:
        raise ProtocolError(f"version {version} of OffsetFetch cannot say {answer.error}")
    topics = apis.OFFSET_FETCH.response.of("topics")
    return apis.OFFSET_FETCH.response.make(
        error_code=answer.error,
        topics=by_topic(topics.make, partial(_fetched_offset, topics), answer.partitions),
        groups=Converted(partial(_fetched_group, version), answer.groups),
    )


_FETCHED_GROUP: Final = apis.OFFSET_FETCH.response.of("groups")
_FETCHED_TOPIC: Final = _FETCHED_GROUP.of("topics")


def _fetched_group(version: Version, group: GroupOffsets) -> Any:
    """Convert the offsets of one group. From version 10 on those of topics that are gone are left
    out, as in Kafka: they have no id."""
    partitions: Sequence[PartitionGroupOffset] = group.partitions
    if version >= TOPIC_IDS_SINCE:
        partitions = [one for one in partitions if one.topic_id]
    convert = partial(_fetched_offset, _FETCHED_TOPIC)
    topics = by_topic_id(_FETCHED_TOPIC.make, convert, partitions)
    return _FETCHED_GROUP.make(group.group_id, topics, group.error)


def _fetched_offset(topics: Struct, one: PartitionGroupOffset) -> Any:
    return topics.of("partitions").make(
        one.partition, one.offset, one.leader_epoch, one.metadata or "", one.error
    )


def _offset_delete_request(asked: Any, version: Version) -> OffsetDeleteRequest:
    return OffsetDeleteRequest(
        asked.group_id,
        tuple(
            GroupPartition(topic.name, one.partition_index)
            for topic in asked.topics
            for one in topic.partitions
        ),
    )


def _offset_delete_response(answer: OffsetDeleteResponse, version: Version) -> Any:
    topics = admin_apis.OFFSET_DELETE.response.of("topics")
    make = topics.of("partitions").make

    def deleted(one: PartitionCommitted) -> Any:
        return make(one.partition, one.error)

    return admin_apis.OFFSET_DELETE.response.make(
        answer.error, 0, by_topic(topics.make, deleted, answer.partitions)
    )


ADAPTERS: Final = (
    Adapter(
        admin_apis.OFFSET_DELETE,
        ApiKey.OFFSET_DELETE,
        _offset_delete_request,
        _offset_delete_response,
        Array("topics", "partitions", "partitions"),
    ),
    Adapter(
        apis.FIND_COORDINATOR,
        ApiKey.FIND_COORDINATOR,
        _find_coordinator_request,
        _find_coordinator_response,
    ),
    Adapter(
        apis.JOIN_GROUP,
        ApiKey.JOIN_GROUP,
        _join_group_request,
        _join_group_response,
        Array("protocols", "protocols"),
    ),
    Adapter(apis.HEARTBEAT, ApiKey.HEARTBEAT, _heartbeat_request, _heartbeat_response),
    Adapter(
        apis.LEAVE_GROUP,
        ApiKey.LEAVE_GROUP,
        _leave_group_request,
        _leave_group_response,
        Array("members", "members"),
    ),
    Adapter(
        apis.SYNC_GROUP,
        ApiKey.SYNC_GROUP,
        _sync_group_request,
        _sync_group_response,
        Array("assignments", "assignments"),
    ),
    Adapter(
        apis.DESCRIBE_GROUPS,
        ApiKey.DESCRIBE_GROUPS,
        _describe_groups_request,
        _describe_groups_response,
    ),
    Adapter(apis.LIST_GROUPS, ApiKey.LIST_GROUPS, _list_groups_request, _list_groups_response),
    Adapter(
        apis.DELETE_GROUPS, ApiKey.DELETE_GROUPS, _delete_groups_request, _delete_groups_response
    ),
    Adapter(
        apis.OFFSET_COMMIT,
        ApiKey.OFFSET_COMMIT,
        _offset_commit_request,
        _offset_commit_response,
        Array("topics", "partitions", "partitions"),
    ),
    Adapter(
        apis.OFFSET_FETCH,
        ApiKey.OFFSET_FETCH,
        _offset_fetch_request,
        _offset_fetch_response,
        in_turns=_offset_fetch_request_in_turns,
    ),
)
