"""The group apis: find a group's coordinator, its members, and list, describe, delete groups.

Answers that wait (JOIN until all members have joined, SYNC until the assignment is stored) are
parked on their ticket, without a deadline: the group's own time-outs complete every ticket.
"""

import logging
import math
from collections import deque
from dataclasses import replace
from itertools import chain
from operator import attrgetter
from typing import Any, TypeAlias, TypeVar

import trio

from minibroker.broker.errors import Refused
from minibroker.broker.groups.consumer_records import NO_PARTITIONS
from minibroker.broker.groups.convertible_group import ConvertibleGroup, by_id
from minibroker.broker.groups.coordinator import Coordinator, Serving, check_group_id
from minibroker.broker.groups.group import Group
from minibroker.broker.groups.member import Client, Ticket
from minibroker.broker.groups.registry import GroupRegistry, append_error
from minibroker.broker.groups.states import State
from minibroker.broker.metadata.model import BrokerImage
from minibroker.broker.replication.purgatory import Parked
from minibroker.broker.replication.replicas import IMAGE, ROLES
from minibroker.broker.server.bounds import ANSWER_BYTES_MAX, ITEM_BYTES, by_name
from minibroker.broker.server.handlers.acls import GROUP_OPERATIONS
from minibroker.broker.server.services import HangUp, Services
from minibroker.broker.transactions.coordinator import (
    TransactionCoordinator,
    check_transactional_id,
)
from minibroker.broker.turns import AT_ONCE, Turn, Turns, at_once, in_turns_if
from minibroker.protocol.constants import ErrorCode
from minibroker.protocol.messages import groups
from minibroker.protocol.messages.topics import CreateTopicsRequest, NewTopic

AWAY = ErrorCode.COORDINATOR_NOT_AVAILABLE
CREATION_WAIT_S = 5.0
MADE = (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS, ErrorCode.KAFKA_STORAGE_ERROR)
ITEMS_OF_AN_APPEND = 25  # that take as long
ITEMS_OF_A_GROUP = 2  # that take as long as to find its coordinator
CHARS_OF_AN_ITEM = 64  # of a group's name, that take as long as an item
PREFIX_CHARS_MAX = 255  # of a member's id that begins with its client's

Deleted = groups.DeleteGroupsResponse
Finding: TypeAlias = groups.FindCoordinatorResponse | Parked[groups.FindCoordinatorResponse]
Joining: TypeAlias = groups.JoinGroupResponse | Parked[groups.JoinGroupResponse]
Answer = TypeVar("Answer", groups.JoinGroupResponse, groups.SyncGroupResponse)


def find_coordinator(
    services: Services, request: groups.FindCoordinatorRequest, now: float
) -> Finding | Turns[Finding]:
    """Return the coordinator of a group or a transactional id, or of several; the first such
    request creates the topic of groups, or of transactions.

    COORDINATOR_NOT_AVAILABLE while there is no coordinator, and while fewer brokers are live than
    the topic is to have replicas. Raises `HangUp` until a controller has sent an image.
    """
    if request.group_ids is None:
        return _find_one(services, request, now)
    is_long = len(request.group_ids) > AT_ONCE
    return in_turns_if(is_long, _find_all(services, request, now))


def _find_all(
    services: Services, request: groups.FindCoordinatorRequest, now: float
) -> Turns[Finding]:
    found: list[groups.GroupCoordinator] = []
    turn = Turn()
    for group_id in dict.fromkeys(request.group_ids or ()):
        one = groups.FindCoordinatorRequest(group_id, request.key_type)
        answer = _find_one(services, one, now)
        if isinstance(answer, Parked):
            return _once_made(services, request, answer)
        found.append(
            groups.GroupCoordinator(
                group_id,
                answer.error,
                answer.error_message,
                answer.node_id,
                answer.host,
                answer.port,
            )
        )
        if turn.is_over(1 + len(group_id) // CHARS_OF_AN_ITEM):
            yield
            now = trio.current_time()
    return groups.FindCoordinatorResponse(coordinators=tuple(found))


def _once_made(
    services: Services,
    request: groups.FindCoordinatorRequest,
    first: Parked[groups.FindCoordinatorResponse],
) -> Parked[Any]:
    """Find all of them once their topic is made, for which `first` waits; at its deadline none is
    found."""

    def attempt(now: float) -> Any:
        answer = first.attempt(now)
        if answer is None:
            return None
        if answer.error:
            return refuse(answer)
        return in_turns_if(
            len(request.group_ids or ()) > AT_ONCE, _find_all(services, request, now)
        )

    def refuse(answer: groups.FindCoordinatorResponse) -> groups.FindCoordinatorResponse:
        ids = dict.fromkeys(request.group_ids or ())
        refused = [groups.GroupCoordinator(each, AWAY, answer.error_message) for each in ids]
        return groups.FindCoordinatorResponse(coordinators=tuple(refused))

    return Parked(first.keys, first.deadline, attempt, lambda: refuse(first.expire()))


def _find_one(services: Services, request: groups.FindCoordinatorRequest, now: float) -> Finding:
    coordinator: Coordinator | TransactionCoordinator = services.groups
    try:
        if request.key_type == groups.TRANSACTION_KEY:
            coordinator = services.transactions
            check_transactional_id(request.group_id)
        elif request.key_type == groups.GROUP_KEY:
            check_group_id(request.group_id)
        else:
            what = f"there is no coordinator of the kind {request.key_type}; 0 is a group's"
            raise Refused(ErrorCode.INVALID_REQUEST, what)
    except Refused as refused:
        return groups.FindCoordinatorResponse(refused.code, refused.message)
    if not services.replicas.is_ready:
        raise HangUp("this broker is still waiting for its controller", logging.INFO)
    if coordinator.has_topic:
        return _found(services, coordinator.keeper(request.group_id))
    job = services.controller.forward(CreateTopicsRequest((NewTopic(coordinator.topic),)))

    def attempt(now: float) -> groups.FindCoordinatorResponse | None:
        keeper = coordinator.keeper(request.group_id)
        if keeper is not None:
            # A broker gets the image with the topic a moment before its role.
            is_here = keeper.node_id == services.replicas.broker_id
            is_ready = not is_here or coordinator.leads(request.group_id)
            return _found(services, keeper) if is_ready else None
        if job.result is None or job.result.topics[0].error in MADE:
            return None
        return groups.FindCoordinatorResponse(AWAY, job.result.topics[0].error_message)

    def expire() -> groups.FindCoordinatorResponse:
        return _found(services, coordinator.keeper(request.group_id))

    return Parked((job, IMAGE, ROLES), lambda: now + CREATION_WAIT_S, attempt, expire)


def _found(services: Services, keeper: BrokerImage | None) -> groups.FindCoordinatorResponse:
    if keeper is None:
        return groups.FindCoordinatorResponse(AWAY, "its coordinator is not known yet")
    host, port = keeper.seen_from(services.listener)
    return groups.FindCoordinatorResponse(node_id=keeper.node_id, host=host, port=port)


# -- members


def join(
    services: Services, request: groups.JoinGroupRequest, client: Client, now: float
) -> Joining | Turns[Joining]:
    """Add a member; only this request and a heartbeat of the newer protocol create a group.
    `client` is for descriptions only."""
    try:
        registry = services.groups.serving(request.group_id, now).registry
        if request.member_id:
            known = registry.find(request.group_id, now)
            if known is None:
                unknown = _unknown(services, request.group_id, now)
                return groups.JoinGroupResponse(unknown, member_id=request.member_id)
            group = known
        else:
            group = registry.get_or_make(request.group_id, now)
        services.groups.check_room(group.growth_of_join(request))
    except Refused as refused:
        return groups.JoinGroupResponse(refused.code, member_id=request.member_id)
    prefix = request.instance_id or client.client_id
    fresh_id = services.groups.fresh_id(prefix[:PREFIX_CHARS_MAX])
    if isinstance(group, ConvertibleGroup):
        return _join_consumers(services, registry, group, request, client, fresh_id, now)
    return _join_classic(services, registry, group, request, client, fresh_id, now)


def _join_classic(
    services: Services,
    registry: GroupRegistry,
    group: Group,
    request: groups.JoinGroupRequest,
    client: Client,
    fresh_id: str,
    now: float,
) -> Joining:
    ticket = group.join(request, client, fresh_id, now)
    registry.wait_for(group, ticket)
    registry.follow_up(group, now)
    services.groups.review()
    return _answer(services, request.group_id, ticket, now)


def _join_consumers(
    services: Services,
    registry: GroupRegistry,
    group: ConvertibleGroup,
    request: groups.JoinGroupRequest,
    client: Client,
    fresh_id: str,
    now: float,
) -> Turns[Joining]:
    """Add a classic member to a group of the consumer protocol, or take it a step further."""
    member_id = request.member_id or fresh_id
    try:
        subscription = group.check_join(request, member_id)
        if request.needs_member_id:
            return groups.JoinGroupResponse(ErrorCode.MEMBER_ID_REQUIRED, member_id=fresh_id)
        group.receive_join(request, subscription, client, member_id, now)
        registry.follow_up(group, now)
        topics, turn = services.image.topics, Turn()
        if group.needs_review(topics):
            for _ in group.review(topics):
                yield
                turn.pauses += 1
            now = trio.current_time()
            registry.follow_up(group, now)
        again = services.groups.serving(request.group_id, now).registry
        found = again.find(request.group_id, now)
        if again is registry and isinstance(found, Group):  # it was converted
            return _join_classic(services, registry, found, request, client, fresh_id, now)
        if again is not registry or found is not group:
            raise Refused(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the group began again")
        # A process that has just begun has no partitions yet.
        owned = by_id(subscription.owned, topics) if request.member_id else NO_PARTITIONS
        ticket = group.answer_join(member_id, owned, now)
    except Refused as refused:
        error = services.groups.sure_error(request.group_id, refused.code, now)
        return groups.JoinGroupResponse(error, member_id=request.member_id)
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
        assignments = map(attrgetter("assignment"), request.assignments)
        services.groups.check_room(sum(map(len, assignments)))
    except Refused as refused:
        if refused.code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            # As in Kafka: the rebalance is lost, so its members begin another; clients of all ages
            # know this error.
            return groups.SyncGroupResponse(ErrorCode.REBALANCE_IN_PROGRESS)
        return groups.SyncGroupResponse(refused.code)
    group = registry.find(request.group_id, now)
    if group is None:
        return groups.SyncGroupResponse(_unknown(services, request.group_id, now))
    if isinstance(group, ConvertibleGroup):
        try:
            ticket = group.sync(request, services.image.topic_names, now)
        except Refused as refused:
            error = services.groups.sure_error(request.group_id, refused.code, now)
            return groups.SyncGroupResponse(error)
    else:
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
    group = registry.find(request.group_id, now)
    if group is None:
        return groups.HeartbeatResponse(_unknown(services, request.group_id, now))
    error = group.heartbeat(request, now)
    if isinstance(group, ConvertibleGroup):
        registry.follow_up(group, now)
    return groups.HeartbeatResponse(services.groups.sure_error(request.group_id, error, now))


def leave(
    services: Services, request: groups.LeaveGroupRequest, now: float
) -> groups.LeaveGroupResponse | Turns[groups.LeaveGroupResponse]:
    """Remove members, each with its own result."""
    is_long = len(request.members) > AT_ONCE
    return in_turns_if(is_long, _leave(services, request, now))


def _leave(
    services: Services, request: groups.LeaveGroupRequest, now: float
) -> Turns[groups.LeaveGroupResponse]:
    named = by_name(request.members, lambda each: (each.member_id, each.instance_id), Turn())
    left: list[groups.LeftMember] = []
    lists = list(at_once((yield from named).values())) or [[]]
    for number, some in enumerate(lists):
        if number:
            yield
            now = trio.current_time()
        try:
            errors = _leave_at_once(services, request.group_id, some, now)
        except Refused as refused:
            if not left:
                return groups.LeaveGroupResponse(refused.code)
            errors = [refused.code] * len(some)
        left += [
            groups.LeftMember(member.member_id, member.instance_id, error)
            for member, error in zip(some, errors, strict=True)
        ]
    return groups.LeaveGroupResponse(members=tuple(left))


def _leave_at_once(
    services: Services, group_id: str, leaving: list[groups.LeavingMember], now: float
) -> list[ErrorCode]:
    """Remove members; return the error for each. Raises `Refused` as `serving` does."""
    registry = services.groups.serving(group_id, now).registry
    group = registry.find(group_id, now)
    if group is None:
        return [ErrorCode.UNKNOWN_MEMBER_ID] * len(leaving)
    errors = group.leave_all(leaving, now)
    registry.follow_up(group, now)
    services.groups.review()
    return errors


# -- all groups


def describe(
    services: Services, request: groups.DescribeGroupsRequest, now: float
) -> Turns[groups.DescribeGroupsResponse]:
    """Describe groups as they are now; a group that does not exist is Dead.

    A group for which the answer has no room gets COORDINATOR_LOAD_IN_PROGRESS: clients ask for such
    groups again, and the next answer begins with them. One that no answer has room for gets
    MESSAGE_TOO_LARGE.
    """
    described: list[groups.DescribedGroup] = []
    turn, answer_size = Turn(), 0
    for group_id in dict.fromkeys(request.groups):
        group = _description(services, group_id, now)
        if request.include_authorized_operations:
            group = replace(group, authorized_operations=GROUP_OPERATIONS)
        size = _size_of(group)
        if size > ANSWER_BYTES_MAX:
            group = groups.DescribedGroup(group_id, ErrorCode.MESSAGE_TOO_LARGE)
        elif answer_size + size > ANSWER_BYTES_MAX:
            group = groups.DescribedGroup(group_id, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        else:
            answer_size += size
        described.append(group)
        # To find a group's partition takes time for each character of its name.
        if turn.is_over(ITEMS_OF_A_GROUP + len(group.members) + len(group_id) // CHARS_OF_AN_ITEM):
            yield
            now = trio.current_time()
    return groups.DescribeGroupsResponse(tuple(described))


def _size_of(group: groups.DescribedGroup) -> int:
    """Return how many bytes a description takes in an answer, about."""
    return (
        ITEM_BYTES
        + len(group.group_id)
        + sum(
            ITEM_BYTES
            + len(each.member_id)
            + len(each.instance_id or "")
            + len(each.client_id)
            + len(each.client_host)
            + len(each.metadata)
            + len(each.assignment)
            for each in group.members
        )
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
) -> Turns[groups.ListGroupsResponse]:
    """List the groups of this coordinator; COORDINATOR_LOAD_IN_PROGRESS if there may be more, and
    MESSAGE_TOO_LARGE if there are more than an answer has room for."""
    served, is_loading = services.groups.all_serving(now)
    states = {state.lower() for state in request.states}
    types = {kind.lower() for kind in request.types}
    listed: list[groups.ListedGroup] = []
    turn, answer_size = Turn(), 0
    for group in chain.from_iterable(serving.registry.listed() for serving in served):
        is_wanted = not types or group.type in types
        if is_wanted and (not states or group.state.lower() in states):
            answer_size += ITEM_BYTES + len(group.group_id)
            if answer_size > ANSWER_BYTES_MAX:
                return groups.ListGroupsResponse(ErrorCode.MESSAGE_TOO_LARGE, tuple(listed))
            listed.append(group)
        if turn.is_over():
            yield
    error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if is_loading else ErrorCode.NONE
    return groups.ListGroupsResponse(error, tuple(listed))


class _Deleting:
    """The deletion of one group: its error, once its tombstones are committed."""

    def __init__(self, services: Services, group_id: str) -> None:
        self._groups = services.groups
        self.group_id = group_id
        self.error: ErrorCode | None = None
        self.serving: Serving | None = None
        self._end = 0

    def begin(self, turn: Turn, now: float) -> Turns[None]:
        """Append the tombstones. No request sees the group meanwhile."""
        try:
            serving = self._groups.serving(self.group_id, now)
            if error := serving.registry.begin_delete(self.group_id, now):
                raise Refused(error)
            try:
                yield from self._append(serving, turn, now)
            finally:
                serving.registry.end_delete(self.group_id, now)
            self.serving = serving
        except Refused as refused:
            self.error = append_error(refused.code)

    def _append(self, serving: Serving, turn: Turn, now: float) -> Turns[None]:
        shard, registry = serving
        self._end = shard.replayed_end
        keys = shard.table.of_group(self.group_id)
        for some in at_once(keys):
            if turn.is_over(len(some) + ITEMS_OF_AN_APPEND):
                yield
                now = trio.current_time()
                if self._groups.serving(self.group_id, now).registry is not registry:
                    raise Refused(ErrorCode.NOT_COORDINATOR)
            self._end = self._groups.drop(shard, some, now)

    def attempt(self) -> bool:
        """Whether the result is known."""
        if self.error is None and self.serving is not None:
            self.error = self.serving.shard.outcome(self._end, self.serving.registry)
        return self.error is not None

    def result(self) -> groups.DeletedGroup:
        """Return the result, or that it is late."""
        error = ErrorCode.REQUEST_TIMED_OUT if self.error is None else self.error
        return groups.DeletedGroup(self.group_id, error)


def delete(
    services: Services, request: groups.DeleteGroupsRequest, now: float
) -> Turns[Parked[Deleted | Turns[Deleted]]]:
    """Delete groups without members, with their committed offsets."""
    deadline = now + services.config.offsets_commit_timeout_ms / 1000
    deleting: list[_Deleting] = []
    turn = Turn()
    for group_id in dict.fromkeys(request.groups):
        deleting.append(item := _Deleting(services, group_id))
        yield from item.begin(turn, now)
        if turn.is_over(ITEMS_OF_A_GROUP + len(group_id) // CHARS_OF_AN_ITEM):
            yield
            now = trio.current_time()
    served = {id(item.serving.shard): item.serving.shard for item in deleting if item.serving}
    waiting = deque(item for item in deleting if item.error is None)

    def attempt(now: float) -> Deleted | Turns[Deleted] | None:
        for shard in served.values():
            services.groups.catch_up(shard, now)
        while waiting and waiting[0].attempt():
            waiting.popleft()
        return None if waiting else finish()

    def finish() -> Deleted | Turns[Deleted]:
        return in_turns_if(len(deleting) > AT_ONCE, _deleted(deleting))

    keys = tuple(shard.partition.topic_partition for shard in served.values())
    return Parked(keys, lambda: deadline, attempt, finish)


def _deleted(deleting: list[_Deleting]) -> Turns[Deleted]:
    results: list[groups.DeletedGroup] = []
    for some in at_once(deleting):
        if results:
            yield
        results += [item.result() for item in some]
    return Deleted(tuple(results))
