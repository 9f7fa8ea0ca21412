"""The group apis: find a group's coordinator, its members, and list, describe, delete groups.

Answers that wait (JOIN until all members have joined, SYNC until the assignment is stored) are
parked on their ticket, without a deadline: the group's own time-outs complete every ticket.
"""

import logging
import math
from dataclasses import replace
from typing import TypeVar

from minibroker.broker.errors import Refused
from minibroker.broker.groups.coordinator import Serving, check_group_id
from minibroker.broker.groups.member import Client, Ticket
from minibroker.broker.groups.registry import append_error
from minibroker.broker.groups.states import State
from minibroker.broker.metadata.model import BrokerImage
from minibroker.broker.replication.purgatory import Parked
from minibroker.broker.replication.replicas import IMAGE, ROLES
from minibroker.broker.server.services import HangUp, Services
from minibroker.protocol.constants import OFFSETS_TOPIC, ErrorCode
from minibroker.protocol.messages import groups
from minibroker.protocol.messages.topics import CreateTopicsRequest, NewTopic

AWAY = ErrorCode.COORDINATOR_NOT_AVAILABLE
CREATION_WAIT_S = 5.0
MADE = (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS, ErrorCode.KAFKA_STORAGE_ERROR)
PREFIX_CHARS_MAX = 255  # of a member's id that begins with its client's

Answer = TypeVar("Answer", groups.JoinGroupResponse, groups.SyncGroupResponse)


def find_coordinator(
    services: Services, request: groups.FindCoordinatorRequest, now: float
) -> groups.FindCoordinatorResponse | Parked[groups.FindCoordinatorResponse]:
    """Return the coordinator of a group; the first such request creates the topic of groups.

    COORDINATOR_NOT_AVAILABLE while the group has no coordinator, and while fewer brokers are live
    than the topic is to have replicas. A transactional id gets an error that is not retriable:
    clients would retry any other for ever. Raises `HangUp` until a controller has sent an image.
    """
    if request.key_type != groups.GROUP_KEY:
        return _no_such_coordinator(request.key_type)
    try:
        check_group_id(request.group_id)
    except Refused as refused:
        return groups.FindCoordinatorResponse(refused.code, refused.message)
    if not services.replicas.is_ready:
        raise HangUp("this broker is still waiting for its controller", logging.INFO)
    if services.groups.has_topic:
        return _found(services, services.groups.keeper(request.group_id))
    job = services.controller.forward(CreateTopicsRequest((NewTopic(OFFSETS_TOPIC),)))

    def attempt(now: float) -> groups.FindCoordinatorResponse | None:
        keeper = services.groups.keeper(request.group_id)
        if keeper is not None:
            # A broker gets the image with the topic a moment before its role.
            is_here = keeper.node_id == services.replicas.broker_id
            is_ready = not is_here or services.groups.leads(request.group_id)
            return _found(services, keeper) if is_ready else None
        if job.result is None or job.result.topics[0].error in MADE:
            return None
        return groups.FindCoordinatorResponse(AWAY, job.result.topics[0].error_message)

    def expire() -> groups.FindCoordinatorResponse:
        return _found(services, services.groups.keeper(request.group_id))

    return Parked((job, IMAGE, ROLES), lambda: now + CREATION_WAIT_S, attempt, expire)


def _no_such_coordinator(key_type: int) -> groups.FindCoordinatorResponse:
    if key_type == groups.TRANSACTION_KEY:
        return groups.FindCoordinatorResponse(
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            "there are no transactions here: leave transactional.id unset",
        )
    what = f"there is no coordinator of the kind {key_type}; 0 is a group's"
    return groups.FindCoordinatorResponse(ErrorCode.INVALID_REQUEST, what)


def _found(services: Services, keeper: BrokerImage | None) -> groups.FindCoordinatorResponse:
    if keeper is None:
        return groups.FindCoordinatorResponse(AWAY, "its coordinator is not known yet")
    host, port = keeper.seen_from(services.listener)
    return groups.FindCoordinatorResponse(node_id=keeper.node_id, host=host, port=port)


# -- members


def join(
    services: Services, request: groups.JoinGroupRequest, client: Client, now: float
) -> groups.JoinGroupResponse | Parked[groups.JoinGroupResponse]:
    """Add a member; only this request creates a group. `client` is for descriptions only."""
    try:
        registry = services.groups.serving(request.group_id, now).registry
    except Refused as refused:
        return groups.JoinGroupResponse(refused.code, member_id=request.member_id)
    if request.member_id:
        group = registry.get(request.group_id, now)
        if group is None:
            unknown = _unknown(services, request.group_id, now)
            return groups.JoinGroupResponse(unknown, member_id=request.member_id)
    else:
        group = registry.get_or_make(request.group_id, now)
    prefix = request.instance_id or client.client_id
    fresh_id = services.groups.fresh_id(prefix[:PREFIX_CHARS_MAX])
    ticket = group.join(request, client, fresh_id, now)
    registry.wait_for(group, ticket)
    registry.follow_up(group, now)
    services.groups.review()
    return _answer(services, request.group_id, ticket, now)


def sync(
    services: Services, request: groups.SyncGroupRequest, now: float
) -> groups.SyncGroupResponse | Parked[groups.SyncGroupResponse]:
    """Return a member's assignment, once the group leader's assignments are stored."""
    try:
        registry = services.groups.serving(request.group_id, now).registry
    except Refused as refused:
        return groups.SyncGroupResponse(refused.code)
    group = registry.get(request.group_id, now)
    if group is None:
        return groups.SyncGroupResponse(_unknown(services, request.group_id, now))
    ticket = group.sync(request, now)
    registry.wait_for(group, ticket)
    registry.follow_up(group, now)
    services.groups.review()
    return _answer(services, request.group_id, ticket, now)


def _unknown(services: Services, group_id: str, now: float) -> ErrorCode:
    return services.groups.sure_error(group_id, ErrorCode.UNKNOWN_MEMBER_ID, now)


def _answer(
    services: Services, group_id: str, ticket: Ticket[Answer], now: float
) -> Answer | Parked[Answer]:
    def attempt(now: float) -> Answer | None:
        answer = ticket.answer
        if answer is None:
            return None
        return replace(answer, error=services.groups.sure_error(group_id, answer.error, now))

    def never() -> Answer:
        raise AssertionError("a ticket has no deadline of its own")

    return attempt(now) or Parked((ticket,), lambda: math.inf, attempt, never)


def heartbeat(
    services: Services, request: groups.HeartbeatRequest, now: float
) -> groups.HeartbeatResponse:
    """Record that a member is alive. This only postpones deadlines, so no ticket completes.

    While the coordinator loads, the answer has no error: the member continues (as in Kafka).
    """
    try:
        registry = services.groups.check_heartbeat(request.group_id, now)
    except Refused as refused:
        return groups.HeartbeatResponse(refused.code)
    if registry is None:
        return groups.HeartbeatResponse(is_loading=True)
    group = registry.get(request.group_id, now)
    if group is None:
        return groups.HeartbeatResponse(_unknown(services, request.group_id, now))
    error = group.heartbeat(request, now)
    return groups.HeartbeatResponse(services.groups.sure_error(request.group_id, error, now))


def leave(
    services: Services, request: groups.LeaveGroupRequest, now: float
) -> groups.LeaveGroupResponse:
    """Remove members, each with its own result."""
    try:
        registry = services.groups.serving(request.group_id, now).registry
    except Refused as refused:
        return groups.LeaveGroupResponse(refused.code)
    group = registry.get(request.group_id, now)
    left = []
    for member in request.members:
        error = ErrorCode.UNKNOWN_MEMBER_ID if group is None else group.leave(member, now)
        left.append(groups.LeftMember(member.member_id, member.instance_id, error))
    if group is not None:
        registry.follow_up(group, now)
        services.groups.review()
    return groups.LeaveGroupResponse(members=tuple(left))


# -- all groups


def describe(
    services: Services, request: groups.DescribeGroupsRequest, now: float
) -> groups.DescribeGroupsResponse:
    """Describe groups as they are now; a group that does not exist is Dead."""
    return groups.DescribeGroupsResponse(
        tuple(_description(services, group_id, now) for group_id in request.groups)
    )


def _description(services: Services, group_id: str, now: float) -> groups.DescribedGroup:
    try:
        registry = services.groups.serving(group_id, now).registry
    except Refused as refused:
        return groups.DescribedGroup(group_id, refused.code)
    group = registry.get(group_id, now)
    if group is None:
        return groups.DescribedGroup(group_id, state=State.DEAD)
    return group.describe()


def list_groups(
    services: Services, request: groups.ListGroupsRequest, now: float
) -> groups.ListGroupsResponse:
    """List the groups of this coordinator; COORDINATOR_LOAD_IN_PROGRESS if there may be more."""
    served, is_loading = services.groups.all_serving(now)
    listed = tuple(
        group
        for serving in served
        for group in serving.registry.listed()
        if not request.states or group.state in request.states
    )
    error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if is_loading else ErrorCode.NONE
    return groups.ListGroupsResponse(error, listed)


class _Deleting:
    """The deletion of one group: its result, once its tombstones are committed."""

    def __init__(self, services: Services, group_id: str, now: float) -> None:
        self._group_id = group_id
        self._error: ErrorCode | None = None
        self.name: object = None
        try:
            self._serving = services.groups.serving(group_id, now)
            self._end = self._delete(services, self._serving, now)
        except Refused as refused:
            self._error = append_error(refused.code)
        else:
            self.name = self._serving.shard.partition.topic_partition

    def _delete(self, services: Services, serving: Serving, now: float) -> int:
        error = serving.registry.delete(self._group_id, now)
        if error:
            raise Refused(error)
        keys = serving.shard.table.of_group(self._group_id)
        return services.groups.drop(serving.shard, keys, now)

    def attempt(self, now: float) -> groups.DeletedGroup | None:
        if self._error is None:
            self._serving.shard.catch_up(now)
            self._error = self._serving.shard.outcome(self._end, self._serving.registry)
        return None if self._error is None else groups.DeletedGroup(self._group_id, self._error)

    def result(self) -> groups.DeletedGroup:
        """Return the result at the deadline."""
        error = ErrorCode.REQUEST_TIMED_OUT if self._error is None else self._error
        return groups.DeletedGroup(self._group_id, error)


def delete(
    services: Services, request: groups.DeleteGroupsRequest, now: float
) -> Parked[groups.DeleteGroupsResponse]:
    """Delete groups without members, with their committed offsets."""
    deleting = [_Deleting(services, group_id, now) for group_id in request.groups]

    def attempt(now: float) -> groups.DeleteGroupsResponse | None:
        results = [item.attempt(now) for item in deleting]
        done = tuple(result for result in results if result is not None)
        return groups.DeleteGroupsResponse(done) if len(done) == len(deleting) else None

    keys = tuple(item.name for item in deleting if item.name is not None)
    deadline = now + services.config.offsets_commit_timeout_ms / 1000
    return Parked(
        keys,
        lambda: deadline,
        attempt,
        lambda: groups.DeleteGroupsResponse(tuple(item.result() for item in deleting)),
    )
