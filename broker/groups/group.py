"""One consumer group as a pure state machine: members, generations, and the answers to requests.

    JOIN        registers a member; its ticket is answered when all have joined: a new generation
    SYNC        the leader's carries all assignments; answered when these are stored
    HEARTBEAT   renews the member's session, and tells it that the group rebalances
    LEAVE       removes a member at once

Nothing waits in here. A JOIN or SYNC returns a `Ticket`; `tick(now)` does what is due, next at
`deadline`. The caller appends what `pop_writes` returns, and reports `written` or `not_written` for
each, in their order. After any call tickets may have been answered.

The group stores what others may rely on: the assignment of a generation before any SYNC of it is
answered, a static member's new id before its JOIN is, and that the group became empty. Everything
else may be lost with the coordinator: members then join again. A stored generation begins in a new
coordinator as Stable, with all sessions renewed. One without a leader was a group of the consumer
protocol before (`convertible_group`): its members join again.

A generation's number may be used again after it was lost. A member owns partitions in a generation
only by the answer to a SYNC, which comes after the generation's record is committed. Every later
coordinator reads that record before it serves (unless the partition loses committed records, by an
unclean election or with its only disk). So a generation above the last committed one has no owners,
even if members were told its number, and a coordinator that counts from the last committed one
gives each number owners only once. A member that still has such a number from the lost coordinator
either joined again here, as every member of a completed generation did, or is not a member. A
record in doubt (`not_written` by time-out, then committed after all) is harmless, too: here the
group has moved on, and a later coordinator that begins with that record answers every SYNC of its
number from it.
"""

import logging
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final

from minibroker.broker.groups.group_members import GroupLimits, GroupMembers
from minibroker.broker.groups.member import Client, Member, Ticket
from minibroker.broker.groups.outbox import Assigned, Emptied, Outbox, Replaced, Write
from minibroker.broker.groups.records import GroupMetadata
from minibroker.broker.groups.states import COMMIT, HEARTBEAT, TRANSITIONS, State
from minibroker.protocol.constants import ErrorCode
from minibroker.protocol.messages.group_offsets import OffsetCommitRequest
from minibroker.protocol.messages.groups import (
    DescribedGroup,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    LeavingMember,
    SyncGroupRequest,
    SyncGroupResponse,
)

LOGGER = logging.getLogger(__name__)
EMPTY_RETRY_S: Final = 1.0  # interval of further tries to write that a group is empty


class Group:
    """The group `group_id`, as `stored` has it, or new. `now` is the trio clock's."""

    def __init__(
        self, group_id: str, limits: GroupLimits, stored: GroupMetadata | None, now: float
    ) -> None:
        self.group_id = group_id
        self._limits = limits
        self._members = GroupMembers(stored, now)
        self.state = State.STABLE if self._members else State.EMPTY
        self._join_ends = math.inf  # of PreparingRebalance
        self._initial_ends: float | None = None  # the latest end of an empty group's join phase
        self._unsynced: set[str] = set()  # members that did not SYNC in this generation
        self._sync_ends = math.inf  # their deadline
        self._outbox = Outbox()
        self._empty_again_at = math.inf
        self._died_of = ErrorCode.COORDINATOR_NOT_AVAILABLE
        if self._members and self._members.leader is None:
            self._prepare(now)

    # -- requests

    def join(
        self, request: JoinGroupRequest, client: Client, fresh_id: str, now: float
    ) -> Ticket[JoinGroupResponse]:
        """Register a member. `fresh_id` becomes its id if it has none; it was never used before.

        GRP-12. A member that repeats its join, because the answer was lost, gets the running
        generation again. Only the join of a stable group's leader starts a rebalance then.
        """
        ticket: Ticket[JoinGroupResponse] = Ticket()
        is_dead = self.state is State.DEAD
        error = self._died_of if is_dead else self._members.refusal(request, self._limits)
        if error:
            ticket.answer = JoinGroupResponse(error, member_id=request.member_id)
        elif member := self._members.find(request.member_id, request.instance_id):
            if request.member_id:
                refused = JoinGroupResponse(
                    ErrorCode.REBALANCE_IN_PROGRESS, member_id=member.member_id
                )
                member.answer_join(refused, now)
            else:
                self._replace(member, fresh_id, now)
            is_same = self._members.rejoin(member, request, client)
            member.join = ticket
            self._rejoined(member, is_same, not request.member_id, now)
        elif not request.needs_member_id:
            member = self._members.add(request.member_id or fresh_id, request, client)
            member.join = ticket
            self._added(now)
        else:
            self._members.expect(fresh_id, now + request.session_timeout_ms / 1000)
            ticket.answer = JoinGroupResponse(ErrorCode.MEMBER_ID_REQUIRED, member_id=fresh_id)
        return ticket

    def sync(self, request: SyncGroupRequest, now: float) -> Ticket[SyncGroupResponse]:
        """Ask for a member's assignment. The leader's first SYNC brings those of all members."""
        ticket: Ticket[SyncGroupResponse] = Ticket()
        error = self._refusal(request)
        if not error and not self._members.is_protocol(request.protocol_type, request.protocol):
            error = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if not error and self.state is State.PREPARING_REBALANCE:
            error = ErrorCode.REBALANCE_IN_PROGRESS
        if error:
            ticket.answer = SyncGroupResponse(error)
            return ticket
        member = self._members[request.member_id]
        self._synced(request.member_id)
        member.answer_sync(SyncGroupResponse(ErrorCode.REBALANCE_IN_PROGRESS), now)
        member.sync = ticket
        if self.state is State.STABLE:
            member.answer_sync(self._members.synced(member), now)
        elif self._members.is_led_by(member) and not self._outbox.is_assigning:
            parts = {
                part.member_id: part.assignment
                for part in request.assignments
                if part.member_id in self._members
            }
            self._outbox.put(self._members.stored(parts), Assigned(parts))
        return ticket

    def heartbeat(self, request: HeartbeatRequest, now: float) -> ErrorCode:
        """Renew a member's session (GRP-11), and return the error for the answer, or NONE."""
        return self._heard(request, HEARTBEAT, now)

    def check_commit(self, request: OffsetCommitRequest, now: float) -> ErrorCode:
        """Return NONE if offsets may be committed (GRP-05, GRP-06), else the error. A member's
        commit renews its session."""
        if request.generation < 0 and self.state is not State.DEAD:
            is_empty = self.state is State.EMPTY
            return ErrorCode.NONE if is_empty else ErrorCode.UNKNOWN_MEMBER_ID
        return self._heard(request, COMMIT, now)

    def leave(self, leaving: LeavingMember, now: float) -> ErrorCode:
        """Remove a member: by its id, or a static one by its instance id alone."""
        return self.leave_all((leaving,), now)[0]

    def leave_all(self, leaving: Sequence[LeavingMember], now: float) -> list[ErrorCode]:
        """Remove members, as `leave` does, and return the error for each, or NONE."""
        if self.state is State.DEAD:
            return [self._died_of] * len(leaving)
        errors = []
        gone: dict[str, None] = {}
        was_expected = False
        for each in leaving:
            member_id = each.member_id
            if self._members.forget(member_id):
                was_expected = True
                errors.append(ErrorCode.NONE)
                continue
            if not member_id and (static := self._members.static(each.instance_id)):
                member_id = static.member_id
            error = self._members.unknown(member_id, each.instance_id)
            if member_id in gone:
                error = ErrorCode.UNKNOWN_MEMBER_ID
            elif not error:
                gone[member_id] = None
            errors.append(error)
        if gone:
            self._remove(gone, now)
        elif was_expected:
            self._complete_if_joined(now)
        return errors

    def delete(self, now: float) -> ErrorCode:
        """Delete an empty group. The caller appends the tombstones, and drops the group when their
        result is known: from then on the log says whether the group exists."""
        if self.state is State.DEAD:
            return self._died_of
        if self.state is not State.EMPTY:
            return ErrorCode.NON_EMPTY_GROUP
        if self._empty_again_at < math.inf:  # the stored form still has members
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        self.close(ErrorCode.COORDINATOR_NOT_AVAILABLE, now)
        return ErrorCode.NONE

    # -- deadlines, and results of writes

    @property
    def deadline(self) -> float:
        """When `tick` has something to do next. It looks at every member."""
        join_ends = self._join_ends if self.state is State.PREPARING_REBALANCE else math.inf
        return min(self._members.deadline, join_ends, self._sync_ends, self._empty_again_at)

    def tick(self, now: float) -> None:
        """Do what is due: end expired sessions, and phases whose time is over."""
        gone = self._members.expired(now)
        if self._sync_ends <= now:
            gone += self._unsynced.difference(gone)
        if gone:
            names = ", ".join(gone)
            LOGGER.info("[Group %.99s] Not heard of in time: %.999s", self.group_id, names)
            self._remove(gone, now)
        self._complete_if_joined(now)
        if self._empty_again_at <= now:
            self._store_empty()

    def pop_writes(self) -> tuple[Write, ...]:
        """Return the records to append now, in order; each is returned once."""
        return self._outbox.pop_new()

    def written(self, token: int, now: float) -> None:
        """Handle that the record of a write is committed."""
        reason = self._outbox.complete(token)
        if isinstance(reason, Assigned):
            self._become(State.STABLE)
            self._members.assign(reason.parts)
            for member in self._members:
                member.answer_sync(self._members.synced(member), now)
        elif isinstance(reason, Replaced):
            member = self._members[reason.member_id]
            joined = self._members.joined(member)
            is_leader = self._members.is_led_by(member)
            member.answer_join(replace(joined, skip_assignment=is_leader), now)

    def not_written(self, token: int, error: ErrorCode, now: float) -> None:
        """Handle that a record is not committed, or not known to be: the members join again."""
        reason = self._outbox.complete(token)
        if isinstance(reason, Assigned):
            # Clients of the classic protocol do not expect a time-out here.
            timed_out = error is ErrorCode.REQUEST_TIMED_OUT
            self._prepare(now, ErrorCode.REBALANCE_IN_PROGRESS if timed_out else error)
        elif isinstance(reason, Replaced):
            self._prepare(now)
        elif isinstance(reason, Emptied):
            self._empty_again_at = now + EMPTY_RETRY_S

    def close(self, error: ErrorCode, now: float) -> None:
        """Answer all waiting and later requests with `error`: the group was deleted, or this broker
        is no longer its coordinator."""
        self._died_of = error
        if self.state is not State.DEAD:
            self._become(State.DEAD)
        for member in self._members:
            member.refuse(error, now)
        self._members.clear()
        self._outbox.pop_new()
        self._outbox.forget()
        self._sync_ends = self._empty_again_at = math.inf

    # -- the group's description

    @property
    def generation(self) -> int:
        """The newest generation's number, 0 before the first."""
        return self._members.generation

    @property
    def protocol_type(self) -> str:
        """The type of its protocols, such as "consumer"; "" before its first member."""
        return self._members.protocol_type

    @property
    def members(self) -> Mapping[str, Member]:
        """Its members by id, read-only."""
        return self._members.by_id

    def describe(self) -> DescribedGroup:
        """Describe the group for an administrator; with subscriptions and assignments only while
        it is stable."""
        protocol = self._members.protocol if self.state is State.STABLE else None
        return DescribedGroup(
            self.group_id,
            state=self.state.value,
            protocol_type=self.protocol_type,
            protocol=protocol or "",
            generation=self.generation,
            members=tuple(member.described(protocol) for member in self._members),
        )

    def subscribed_topics(self) -> set[str] | None:
        """The topics that members subscribe to; None if the members' metadata do not say."""
        return self._members.subscribed_topics()

    @property
    def held_bytes(self) -> int:
        """The memory that its members take, about."""
        return self._members.held_bytes

    def growth_of_join(self, request: JoinGroupRequest) -> int:
        """Return how many more bytes its members take after a join, about."""
        return self._members.growth(request)

    # -- members

    def _refusal(
        self, request: HeartbeatRequest | SyncGroupRequest | OffsetCommitRequest
    ) -> ErrorCode:
        """Return NONE for a request of a member of this generation, else the error.

        A static member of a later generation, which was lost with its coordinator, got its id after
        the one that is known here. So no other member has taken its place.
        """
        if self.state is State.DEAD:
            return self._died_of
        if error := self._members.unknown(request.member_id, request.instance_id):
            is_later = request.generation > self.generation
            return ErrorCode.UNKNOWN_MEMBER_ID if is_later else error
        is_current = request.generation == self.generation
        return ErrorCode.NONE if is_current else ErrorCode.ILLEGAL_GENERATION

    def _heard(
        self,
        request: HeartbeatRequest | OffsetCommitRequest,
        answers: Mapping[State, ErrorCode],
        now: float,
    ) -> ErrorCode:
        if error := self._refusal(request):
            return error
        self._members[request.member_id].renew(now)
        return answers[self.state]

    def _added(self, now: float) -> None:
        if self.state is not State.PREPARING_REBALANCE:
            self._prepare(now)
            return
        if self._initial_ends is not None:
            wait_s = self._limits.initial_rebalance_delay_ms / 1000
            self._join_ends = min(now + wait_s, self._initial_ends)
        self._complete_if_joined(now)

    def _replace(self, member: Member, fresh_id: str, now: float) -> None:
        """Give a static member that began again a new id at its place; the old id is fenced."""
        old_id = member.member_id
        member.refuse(ErrorCode.FENCED_INSTANCE_ID, now)
        self._members.replace(member, fresh_id)
        self._synced(old_id)
        self._outbox.forget_replaced(old_id)

    def _rejoined(self, member: Member, is_same: bool, began_again: bool, now: float) -> None:
        is_stable = self.state is State.STABLE
        if self.state is State.PREPARING_REBALANCE:
            self._complete_if_joined(now)
        elif is_same and began_again and is_stable:
            parts = {each.member_id: each.assignment for each in self._members}
            self._outbox.put(self._members.stored(parts), Replaced(member.member_id))
        elif not is_same or began_again or (is_stable and self._members.is_led_by(member)):
            self._prepare(now)
        else:
            member.answer_join(self._members.joined(member), now)

    def _synced(self, member_id: str) -> None:
        self._unsynced.discard(member_id)
        if not self._unsynced:
            self._sync_ends = math.inf

    def _remove(self, member_ids: Collection[str], now: float) -> None:
        for member_id in member_ids:
            self._members.remove(member_id).refuse(ErrorCode.UNKNOWN_MEMBER_ID, now)
        if self.state is State.PREPARING_REBALANCE:
            self._complete_if_joined(now)
        else:
            self._prepare(now)

    # -- transitions

    def _become(self, state: State) -> None:
        assert state in TRANSITIONS[self.state], f"{self.state} -> {state}"
        LOGGER.debug("[Group %.99s] %s -> %s", self.group_id, self.state, state)
        self.state = state

    def _prepare(self, now: float, error: ErrorCode = ErrorCode.REBALANCE_IN_PROGRESS) -> None:
        """Have all members join again, and answer waiting SYNCs with the reason."""
        is_first = self.state is State.EMPTY
        self._become(State.PREPARING_REBALANCE)
        for member in self._members:
            member.answer_sync(SyncGroupResponse(error), now)
        self._outbox.forget()
        self._sync_ends = self._empty_again_at = math.inf
        timeout_s = self._members.rebalance_timeout_s
        delay_s = min(self._limits.initial_rebalance_delay_ms / 1000, timeout_s)
        self._join_ends = now + (delay_s if is_first else timeout_s)
        self._initial_ends = now + timeout_s if is_first else None
        self._complete_if_joined(now)

    def _complete_if_joined(self, now: float) -> None:
        if self.state is not State.PREPARING_REBALANCE:
            return
        have_joined = self._initial_ends is None and self._members.have_all_joined
        if have_joined or self._join_ends <= now:
            self._next_generation(now)

    def _next_generation(self, now: float) -> None:
        self._members.next_generation()
        if not self._members:
            self._become(State.EMPTY)
            self._store_empty()
            return
        self._unsynced = set(self._members.by_id)
        self._sync_ends = now + self._members.rebalance_timeout_s
        self._become(State.COMPLETING_REBALANCE)
        counts = (self.generation, len(self._members))
        LOGGER.info("[Group %.99s] Generation %d has %d members", self.group_id, *counts)
        for member in self._members:
            member.answer_join(self._members.joined(member), now)

    def _store_empty(self) -> None:
        self._empty_again_at = math.inf
        self._outbox.put(self._members.stored({}), Emptied())
