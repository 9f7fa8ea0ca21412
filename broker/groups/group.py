"""One consumer group as a pure state machine: members, generations, who is told what and when.

    JOIN        registers a member; its ticket is answered when all have joined: a new generation
    SYNC        the leader's carries everybody's part; answered when that is stored
    HEARTBEAT   keeps the session, and says that the group rebalances
    LEAVE       takes a member out at once

Nothing waits in here. A JOIN or SYNC gives a `Ticket`; what time brings is done by `tick(now)`,
next at `deadline`; what must be stored comes from `take_writes`, and the caller says `written` or
`not_written` for each, in their order. After any call tickets may have been answered.

Stored is what others may rely on: the assignment of a generation before any SYNC of it is answered,
a static member's new id before its JOIN is, and that the group became empty. All else may be lost
with the coordinator: members then join again. A stored generation begins in a new coordinator as
Stable, with all sessions anew.

Why a generation that was lost may be counted again. A member owns partitions in a generation only
by the answer to a SYNC, and that is given only after the record of the generation is committed,
which every later coordinator reads before it serves. So a generation above the last committed one
has no owners, however many members were told of its number, and a coordinator that counts from the
last committed one gives each number owners once. Who still holds such a number from the lost
coordinator either joined again here, as every member of a completed generation did, or is not a
member. A record that was in doubt (`not_written` by time-out, then committed after all) harms as
little: here the group has moved on, and a later coordinator that begins with it answers every SYNC
of its number from this one record.
"""

import itertools
import logging
import math
from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

from minibroker.broker.groups.member import (
    CONSUMER,
    Client,
    Member,
    Ticket,
    choose_protocol,
    shared_protocols,
)
from minibroker.broker.groups.records import GroupMetadata, is_storable
from minibroker.broker.groups.states import COMMIT, HEARTBEAT, TRANSITIONS, State
from minibroker.protocol.constants import ErrorCode
from minibroker.protocol.messages.group_offsets import OffsetCommitRequest
from minibroker.protocol.messages.groups import (
    GroupDescription,
    HeartbeatRequest,
    JoinedMember,
    JoinGroupRequest,
    JoinGroupResponse,
    LeavingMember,
    MemberAssignment,
    SyncGroupRequest,
    SyncGroupResponse,
)

LOGGER = logging.getLogger(__name__)
NAME_CHARS_MAX: Final = 249  # of an instance, a protocol and its type; as a topic's
EMPTY_RETRY_S: Final = 1.0  # that a group is empty is written again after so long


class GroupLimits(NamedTuple):
    """What the broker's configuration allows a group."""

    session_timeout_ms_min: int
    session_timeout_ms_max: int
    size_max: int
    initial_rebalance_delay_ms: int


class Write(NamedTuple):
    """A record to append; the writer puts the wall clock into `state_timestamp_ms`."""

    token: int
    value: GroupMetadata


class _Assigning(NamedTuple):
    """The leader's assignment of this generation, while it is written."""

    token: int
    parts: dict[str, bytes]


class Group:
    """The group `group_id`, as `stored` says it was, or new. `now` is the trio clock's."""

    def __init__(
        self, group_id: str, limits: GroupLimits, stored: GroupMetadata | None, now: float
    ) -> None:
        self.group_id = group_id
        self.state = State.EMPTY
        self.generation = 0
        self.protocol_type = ""
        self.protocol: str | None = None
        self.leader: str | None = None
        self._limits = limits
        self._members: dict[str, Member] = {}  # in the order of their joining
        self._pending: dict[str, float] = {}  # ids that were given out, until when
        self._join_ends = math.inf  # of PreparingRebalance
        self._initial_ends: float | None = None  # how far the first join phase may be extended
        self._unsynced: set[str] = set()  # members that did not SYNC in this generation
        self._sync_ends = math.inf
        self._tokens = itertools.count(1)
        self._writes: list[Write] = []
        self._assigning: _Assigning | None = None
        self._replacing: dict[int, str] = {}  # static members whose new id is written
        self._emptying: int | None = None
        self._empty_again_at = math.inf
        self._died_of = ErrorCode.COORDINATOR_NOT_AVAILABLE
        if stored is not None:
            self._load(stored, now)

    def _load(self, stored: GroupMetadata, now: float) -> None:
        self.generation = stored.generation
        self.protocol_type = stored.protocol_type
        if stored.members:
            self.state = State.STABLE
            self.protocol = stored.protocol or ""
            self.leader = stored.leader
            for member in stored.members:
                loaded = Member.from_stored(member, self.protocol, now)
                self._members[member.member_id] = loaded

    # What is asked by requests.

    def join(
        self, request: JoinGroupRequest, client: Client, fresh_id: str, now: float
    ) -> Ticket[JoinGroupResponse]:
        """Register a member. `fresh_id` is its id if it has none; it must never have been used.

        GRP-12. A member that repeats its join (the answer was lost) gets the running generation
        again; only a leader that joins a stable group means something by it.
        """
        ticket: Ticket[JoinGroupResponse] = Ticket()
        member = self._members.get(request.member_id) or self._static(request.instance_id)
        if error := self._join_refusal(request, member):
            ticket.answer = JoinGroupResponse(error, member_id=request.member_id)
        elif member is not None:
            if not request.member_id:
                self._replace(member, fresh_id, now)
            self._rejoin(member, request, client, ticket, now)
        elif request.member_id or request.instance_id is not None:
            self._pending.pop(request.member_id, None)
            added = Member(request.member_id or fresh_id, request, client)
            self._add(added, request.protocol_type, ticket, now)
        else:
            self._pending[fresh_id] = now + request.session_timeout_ms / 1000
            ticket.answer = JoinGroupResponse(ErrorCode.MEMBER_ID_REQUIRED, member_id=fresh_id)
        return ticket

    def sync(self, request: SyncGroupRequest, now: float) -> Ticket[SyncGroupResponse]:
        """Ask for the member's part; the first SYNC of the leader decides everybody's."""
        ticket: Ticket[SyncGroupResponse] = Ticket()
        error = self._refusal(request)
        if not error and self.state is State.PREPARING_REBALANCE:
            error = ErrorCode.REBALANCE_IN_PROGRESS
        if error:
            ticket.answer = SyncGroupResponse(error)
            return ticket
        member = self._members[request.member_id]
        member.renew(now)
        self._unsynced.discard(request.member_id)
        if self.state is State.STABLE:
            ticket.answer = SyncGroupResponse(assignment=member.assignment)
            return ticket
        member.answer_sync(SyncGroupResponse(ErrorCode.REBALANCE_IN_PROGRESS), now)
        member.sync = ticket
        if request.member_id == self.leader and self._assigning is None:
            self._assign(request.assignments)
        return ticket

    def heartbeat(self, request: HeartbeatRequest, now: float) -> ErrorCode:
        """A member is alive (GRP-11)."""
        return self._heard(request, HEARTBEAT, now)

    def check_commit(self, request: OffsetCommitRequest, now: float) -> ErrorCode:
        """Whether these offsets may be committed (GRP-05, GRP-06); a member's keeps its session."""
        if request.generation < 0 and self.state is not State.DEAD:
            is_empty = self.state is State.EMPTY
            return ErrorCode.NONE if is_empty else ErrorCode.UNKNOWN_MEMBER_ID
        return self._heard(request, COMMIT, now)

    def leave(self, leaving: LeavingMember, now: float) -> ErrorCode:
        """Take a member out: by its id, or a static one by its instance id alone."""
        if self.state is State.DEAD:
            return self._died_of
        if self._pending.pop(leaving.member_id, None) is not None:
            self._complete_if_joined(now)
            return ErrorCode.NONE
        member_id = leaving.member_id
        if not member_id and (static := self._static(leaving.instance_id)):
            member_id = static.member_id
        if error := self._unknown(member_id, leaving.instance_id):
            return error
        self._remove([member_id], now)
        return ErrorCode.NONE

    # What time and the log bring.

    @property
    def deadline(self) -> float:
        """When `tick` has something to do next; looks at every member."""
        moments = [self._empty_again_at, *self._pending.values()]
        moments += [member.expires_at for member in self._members.values()]
        if self.state is State.PREPARING_REBALANCE:
            moments.append(self._join_ends)
        if self._unsynced:
            moments.append(self._sync_ends)
        return min(moments)

    def tick(self, now: float) -> None:
        """Do what is due: sessions that ended, phases whose time is over."""
        self._pending = {name: until for name, until in self._pending.items() if until > now}
        gone = [member.member_id for member in self._members.values() if member.expires_at <= now]
        if self._sync_ends <= now:
            gone += self._unsynced.difference(gone)
        if gone:
            self._remove(gone, now)
        self._complete_if_joined(now)
        if self._empty_again_at <= now:
            self._store_empty()

    def take_writes(self) -> tuple[Write, ...]:
        """What is to be appended now, in this order; each is given once."""
        writes, self._writes = tuple(self._writes), []
        return writes

    def written(self, token: int, now: float) -> None:
        """The record of a write is committed."""
        if self._assigning is not None and token == self._assigning.token:
            parts, self._assigning = self._assigning.parts, None
            self._become(State.STABLE)
            for member in self._members.values():
                member.assignment = parts.get(member.member_id, b"")
                member.answer_sync(SyncGroupResponse(assignment=member.assignment), now)
        elif member_id := self._replacing.pop(token, None):
            member = self._members[member_id]
            member.answer_join(self._joined(member), now)
        elif token == self._emptying:
            self._emptying = None

    def not_written(self, token: int, error: ErrorCode, now: float) -> None:
        """The record of a write is not committed, or not known to be; the members start over."""
        if self._assigning is not None and token == self._assigning.token:
            # Clients of the classic protocol do not expect a time-out here.
            timed_out = error is ErrorCode.REQUEST_TIMED_OUT
            told = ErrorCode.REBALANCE_IN_PROGRESS if timed_out else error
            self._prepare(now, told)
        elif token in self._replacing:
            self._prepare(now)
        elif token == self._emptying:
            self._emptying = None
            self._empty_again_at = now + EMPTY_RETRY_S

    def close(self, error: ErrorCode, now: float) -> None:
        """The coordinator moved: all that waits and all that is asked later answers `error`."""
        self._died_of = error
        if self.state is not State.DEAD:
            self._become(State.DEAD)
        for member in self._members.values():
            member.refuse(error, now)
        self._members.clear()
        self._pending.clear()
        self._writes.clear()
        self._assigning = self._emptying = None
        self._replacing.clear()
        self._empty_again_at = math.inf

    def delete(self, now: float) -> ErrorCode:
        """End an empty group. The caller writes the tombstones, and drops it when that is settled:
        from then on the log says whether there is such a group."""
        if self.state is State.DEAD:
            return self._died_of
        if self.state is not State.EMPTY:
            return ErrorCode.NON_EMPTY_GROUP
        self.close(ErrorCode.COORDINATOR_NOT_AVAILABLE, now)
        return ErrorCode.NONE

    # What is told about the group.

    @property
    def members(self) -> Mapping[str, Member]:
        """Its members by id, to look at."""
        return self._members

    @property
    def is_idle(self) -> bool:
        """Whether nothing would be lost if this object were made again from what is stored."""
        is_stored = self._emptying is None and self._empty_again_at == math.inf
        return self.state is State.EMPTY and is_stored and not self._pending

    def describe(self) -> GroupDescription:
        """The group for people; what its members read only while that is settled."""
        protocol = self.protocol if self.state is State.STABLE else None
        return GroupDescription(
            self.group_id,
            state=self.state.value,
            protocol_type=self.protocol_type,
            protocol=protocol or "",
            generation=self.generation,
            members=tuple(member.described(protocol) for member in self._members.values()),
        )

    def subscribes_to(self, topic: str) -> bool | None:
        """Whether a member reads this topic, or wants to; None if their metadata does not say."""
        topics = [member.topics() for member in self._members.values()]
        if topics and self.protocol_type != CONSUMER:
            return None
        return None if None in topics else any(topic in of for of in topics if of)

    # Who is refused.

    def _static(self, instance_id: str | None) -> Member | None:
        if instance_id is None:
            return None
        members = self._members.values()
        return next((member for member in members if member.instance_id == instance_id), None)

    def _unknown(self, member_id: str, instance_id: str | None) -> ErrorCode:
        """Nothing if it is a member; a static one that was replaced is told so."""
        member = self._members.get(member_id)
        if member is not None and instance_id in (None, member.instance_id):
            return ErrorCode.NONE
        fenced = self._static(instance_id) is not None
        return ErrorCode.FENCED_INSTANCE_ID if fenced else ErrorCode.UNKNOWN_MEMBER_ID

    def _refusal(
        self, request: HeartbeatRequest | SyncGroupRequest | OffsetCommitRequest
    ) -> ErrorCode:
        """Nothing if it comes from a member of this generation."""
        if self.state is State.DEAD:
            return self._died_of
        if error := self._unknown(request.member_id, request.instance_id):
            return error
        is_now = request.generation == self.generation
        return ErrorCode.NONE if is_now else ErrorCode.ILLEGAL_GENERATION

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

    def _join_refusal(self, request: JoinGroupRequest, member: Member | None) -> ErrorCode:
        """Why this join cannot be; `member` is who would join again."""
        limits = self._limits
        if self.state is State.DEAD:
            return self._died_of
        if not request.group_id or not is_storable(request.group_id):
            return ErrorCode.INVALID_GROUP_ID
        timeout = request.session_timeout_ms
        if not limits.session_timeout_ms_min <= timeout <= limits.session_timeout_ms_max:
            return ErrorCode.INVALID_SESSION_TIMEOUT
        if request.instance_id is not None and not 0 < len(request.instance_id) <= NAME_CHARS_MAX:
            return ErrorCode.INVALID_REQUEST
        is_pending = request.member_id in self._pending and request.instance_id is None
        if request.member_id and not is_pending:
            if error := self._unknown(request.member_id, request.instance_id):
                return error
        elif member is None and not is_pending:
            if len(self._members) + len(self._pending) >= limits.size_max:
                return ErrorCode.GROUP_MAX_SIZE_REACHED
        shares = self._shares_a_protocol(request, member)
        return ErrorCode.NONE if shares else ErrorCode.INCONSISTENT_GROUP_PROTOCOL

    def _shares_a_protocol(self, request: JoinGroupRequest, member: Member | None) -> bool:
        names = [request.protocol_type, *(protocol.name for protocol in request.protocols)]
        if len(names) == 1 or not all(0 < len(name) <= NAME_CHARS_MAX for name in names):
            return False
        others = [other for other in self._members.values() if other is not member]
        if not others:
            return True
        shared = shared_protocols(others)
        return request.protocol_type == self.protocol_type and any(name in shared for name in names)

    # Joining.

    def _add(
        self, member: Member, protocol_type: str, ticket: Ticket[JoinGroupResponse], now: float
    ) -> None:
        self._members[member.member_id] = member
        self.protocol_type = protocol_type
        member.join = ticket
        if self.state is not State.PREPARING_REBALANCE:
            self._prepare(now)
        elif self._initial_ends is not None:
            wait_s = self._limits.initial_rebalance_delay_ms / 1000
            self._join_ends = min(now + wait_s, self._initial_ends)
        self._complete_if_joined(now)

    def _replace(self, member: Member, fresh_id: str, now: float) -> None:
        """A static member begins again: its place gets a new id, the old one is fenced."""
        old_id = member.member_id
        member.refuse(ErrorCode.FENCED_INSTANCE_ID, now)
        member.member_id = fresh_id
        self._members = {each.member_id: each for each in self._members.values()}
        self._unsynced.discard(old_id)
        self._replacing = {token: name for token, name in self._replacing.items() if name != old_id}
        if self.leader == old_id:
            self.leader = fresh_id

    def _rejoin(
        self,
        member: Member,
        request: JoinGroupRequest,
        client: Client,
        ticket: Ticket[JoinGroupResponse],
        now: float,
    ) -> None:
        begins_again = not request.member_id
        before = member.topics() if begins_again and self.protocol_type == CONSUMER else None
        metadata = member.protocols.get(self.protocol or "")
        member.answer_join(
            JoinGroupResponse(ErrorCode.REBALANCE_IN_PROGRESS, member_id=member.member_id), now
        )
        self.protocol_type = request.protocol_type
        member.update(request, client)
        member.join = ticket
        if self.state is State.PREPARING_REBALANCE:
            self._complete_if_joined(now)
            return
        # A member that begins again does not say what it holds, as it did when it was running.
        is_same = metadata == member.protocols.get(self.protocol or "")
        is_same |= before is not None and before == member.topics()
        is_same &= choose_protocol(self._members.values()) == self.protocol
        is_stable = self.state is State.STABLE
        if is_same and begins_again and is_stable:
            self._replacing[self._write()] = member.member_id
        elif is_same and not begins_again and not (is_stable and self.leader == member.member_id):
            member.answer_join(self._joined(member), now)
        else:
            self._prepare(now)

    def _joined(self, member: Member) -> JoinGroupResponse:
        assert self.protocol is not None
        assert self.leader is not None
        others: tuple[JoinedMember, ...] = ()
        if member.member_id == self.leader:
            others = tuple(
                JoinedMember(each.member_id, each.instance_id, each.protocols[self.protocol])
                for each in self._members.values()
            )
        return JoinGroupResponse(
            generation=self.generation,
            protocol=self.protocol,
            leader=self.leader,
            member_id=member.member_id,
            members=others,
        )

    # From state to state.

    def _become(self, state: State) -> None:
        assert state in TRANSITIONS[self.state], f"{self.group_id}: {self.state} -> {state}"
        LOGGER.debug("group %s: %s -> %s", self.group_id, self.state, state)
        self.state = state

    def _prepare(self, now: float, told: ErrorCode = ErrorCode.REBALANCE_IN_PROGRESS) -> None:
        """Everybody is to join again; syncs that wait are told so, or why."""
        is_first = self.state is State.EMPTY
        self._become(State.PREPARING_REBALANCE)
        for member in self._members.values():
            member.answer_sync(SyncGroupResponse(told), now)
        self._assigning = self._emptying = None
        self._replacing.clear()
        self._unsynced.clear()
        self._sync_ends = self._empty_again_at = math.inf
        timeout_s = self._rebalance_timeout_s()
        first_s = min(self._limits.initial_rebalance_delay_ms / 1000, timeout_s)
        self._join_ends = now + (first_s if is_first else timeout_s)
        self._initial_ends = now + timeout_s if is_first else None
        self._complete_if_joined(now)

    def _complete_if_joined(self, now: float) -> None:
        if self.state is not State.PREPARING_REBALANCE:
            return
        members = self._members.values()
        is_over = self._join_ends <= now or not (self._members or self._pending)
        if not is_over and self._initial_ends is None and not self._pending:
            is_over = all(member.join is not None for member in members)
        if is_over:
            self._next_generation(now)

    def _next_generation(self, now: float) -> None:
        """The join phase is over: who did not join again is out (GRP-13)."""
        self._members = {name: each for name, each in self._members.items() if each.join}
        self.generation += 1
        if not self._members:
            self.protocol = self.leader = None
            self._become(State.EMPTY)
            self._store_empty()
            return
        self.protocol = choose_protocol(self._members.values())
        if self.leader not in self._members:
            self.leader = next(iter(self._members))
        self._unsynced = set(self._members)
        self._sync_ends = now + self._rebalance_timeout_s()
        self._become(State.COMPLETING_REBALANCE)
        for member in self._members.values():
            member.answer_join(self._joined(member), now)

    def _remove(self, member_ids: Collection[str], now: float) -> None:
        for member_id in member_ids:
            self._members.pop(member_id).refuse(ErrorCode.UNKNOWN_MEMBER_ID, now)
        if self.state is State.PREPARING_REBALANCE:
            self._complete_if_joined(now)
        else:
            self._prepare(now)

    def _rebalance_timeout_s(self) -> float:
        timeouts = [member.rebalance_timeout_ms for member in self._members.values()]
        return max(timeouts, default=0) / 1000

    # Storing.

    def _assign(self, assignments: tuple[MemberAssignment, ...]) -> None:
        parts = {part.member_id: part.assignment for part in assignments}
        self._assigning = _Assigning(self._write(parts), parts)

    def _store_empty(self) -> None:
        self._empty_again_at = math.inf
        self._emptying = self._write({})

    def _write(self, parts: Mapping[str, bytes] | None = None) -> int:
        """Have the generation stored, with these parts or those that the members have."""
        members = tuple(
            each.stored(
                self.protocol or "",
                each.assignment if parts is None else parts.get(each.member_id, b""),
            )
            for each in self._members.values()
        )
        token = next(self._tokens)
        value = GroupMetadata(
            self.protocol_type, self.generation, self.protocol, self.leader, members=members
        )
        self._writes.append(Write(token, value))
        return token
