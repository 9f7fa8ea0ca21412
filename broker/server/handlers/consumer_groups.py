"""The apis of the consumer protocol: heartbeats of members, and descriptions of their groups.

A heartbeat that changes something is answered once its records are committed. The target assignment
of a large group is made in turns, so other requests are handled meanwhile.
"""

from dataclasses import replace
from typing import TypeAlias

import trio

from minibroker.broker.errors import Refused
from minibroker.broker.groups.consumer_heartbeats import check, growth
from minibroker.broker.groups.convertible_group import ConvertibleGroup
from minibroker.broker.groups.coordinator import Serving
from minibroker.broker.groups.member import Client, Ticket
from minibroker.broker.replication.purgatory import Parked
from minibroker.broker.server.bounds import ANSWER_BYTES_MAX, ITEM_BYTES
from minibroker.broker.server.handlers.acls import GROUP_OPERATIONS
from minibroker.broker.server.services import Services
from minibroker.broker.turns import Turn, Turns
from minibroker.protocol.constants import ErrorCode
from minibroker.protocol.messages.consumer_groups import (
    JOIN_EPOCH,
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    DescribedConsumerGroup,
)

Answer: TypeAlias = ConsumerGroupHeartbeatResponse
CHARS_OF_AN_ITEM = 64  # of a group's name, that take as long as an item
NEW_ID_PREFIX = "member"


def heartbeat(
    services: Services, request: ConsumerGroupHeartbeatRequest, client: Client, now: float
) -> Turns[Answer | Parked[Answer]]:
    """Handle a member's heartbeat; one with epoch 0 creates the group."""
    try:
        ticket = yield from _heartbeat(services, request, client, now)
    except Refused as refused:
        code = services.groups.sure_error(request.group_id, refused.code, now)
        return ConsumerGroupHeartbeatResponse(code, refused.message or None)
    return _answer(services, request.group_id, ticket, now)


def _heartbeat(
    services: Services, request: ConsumerGroupHeartbeatRequest, client: Client, now: float
) -> Turns[Ticket[Answer]]:
    if not request.group_id:
        raise Refused(ErrorCode.INVALID_REQUEST, "the group id must not be empty")
    serving = services.groups.serving(request.group_id, now)
    check(request, services.groups.consumer_limits)
    group = yield from _group_of(services, serving, request, now)
    now = trio.current_time()
    registry = serving.registry
    if request.member_epoch < JOIN_EPOCH:
        ticket = group.leave(request, now)
    else:
        services.groups.check_room(growth(request))
        member_id = request.member_id or services.groups.fresh_id(NEW_ID_PREFIX)
        group.receive(request, client, member_id, now)
        registry.follow_up(group, now)
        turn = Turn()
        topics = services.image.topics
        if group.needs_review(topics):
            for _ in group.review(topics):
                yield
                turn.pauses += 1
            registry.follow_up(group, now)
        if turn.pauses:
            now = trio.current_time()
            again = services.groups.serving(request.group_id, now)
            if again.registry is not registry or registry.find(request.group_id, now) is not group:
                raise Refused(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the group began again")
        ticket = group.answer(request, member_id, now)
    registry.wait_for(group, ticket)
    registry.follow_up(group, now)
    services.groups.review()
    return ticket


def _group_of(
    services: Services, serving: Serving, request: ConsumerGroupHeartbeatRequest, now: float
) -> Turns[ConvertibleGroup]:
    """Return the group. Raises `Refused` if there is none, unless the member joins."""
    if request.member_epoch == JOIN_EPOCH:
        topics, registry = services.image.topics, serving.registry
        return (yield from registry.consumers_or_make(request.group_id, topics, trio.current_time))
    group = serving.registry.consumers(request.group_id, now)
    if group is None:
        raise Refused(ErrorCode.GROUP_ID_NOT_FOUND, "there is no such group of this protocol")
    return group


def _answer(
    services: Services, group_id: str, ticket: Ticket[Answer], now: float
) -> Answer | Parked[Answer]:
    deadline = now + services.config.offsets_commit_timeout_ms / 1000

    def attempt(now: float) -> Answer | None:
        answer = ticket.answer
        if answer is None:
            return None
        return replace(answer, error=services.groups.sure_error(group_id, answer.error, now))

    def expire() -> Answer:
        late = "its records are not committed yet"
        return ConsumerGroupHeartbeatResponse(ErrorCode.COORDINATOR_NOT_AVAILABLE, late)

    return attempt(now) or Parked((ticket,), lambda: deadline, attempt, expire)


def describe(
    services: Services, request: ConsumerGroupDescribeRequest, now: float
) -> Turns[ConsumerGroupDescribeResponse]:
    """Describe groups of the consumer protocol as they are now.

    A group for which the answer has no room gets COORDINATOR_LOAD_IN_PROGRESS: clients ask for such
    groups again, and the next answer begins with them. One that no answer has room for gets
    MESSAGE_TOO_LARGE.
    """
    described: list[DescribedConsumerGroup] = []
    turn, answer_size = Turn(), 0
    for group_id in dict.fromkeys(request.groups):
        group, size = _description(services, group_id, ANSWER_BYTES_MAX - answer_size, now)
        answer_size += size
        if request.include_authorized_operations and not group.error:
            group = replace(group, authorized_operations=GROUP_OPERATIONS)
        described.append(group)
        partitions = size // ITEM_BYTES
        if turn.is_over(1 + partitions + len(group_id) // CHARS_OF_AN_ITEM):
            yield
            now = trio.current_time()
    return ConsumerGroupDescribeResponse(tuple(described))


def _description(
    services: Services, group_id: str, room: int, now: float
) -> tuple[DescribedConsumerGroup, int]:
    """Return a group's description, and its size, about."""
    try:
        group = services.groups.serving(group_id, now).registry.consumers(group_id, now)
    except Refused as refused:
        return DescribedConsumerGroup(group_id, refused.code, refused.message or None), ITEM_BYTES
    if group is None:
        what = "there is no such group of the consumer protocol"
        missing = DescribedConsumerGroup(group_id, ErrorCode.GROUP_ID_NOT_FOUND, what)
        return missing, ITEM_BYTES
    size = ITEM_BYTES + group.held_bytes
    if size > ANSWER_BYTES_MAX:
        return DescribedConsumerGroup(group_id, ErrorCode.MESSAGE_TOO_LARGE), ITEM_BYTES
    if size > room:
        return DescribedConsumerGroup(group_id, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS), ITEM_BYTES
    return group.describe(services.image.topic_names), size
