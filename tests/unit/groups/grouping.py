"""What the tests of groups share: a group with a hand-moved clock, and short ways to ask it."""

import math
from dataclasses import replace
from typing import Any

from minibroker.broker.groups.group import Group
from minibroker.broker.groups.group_members import GroupLimits
from minibroker.broker.groups.member import Client, Ticket
from minibroker.broker.groups.outbox import Write
from minibroker.broker.groups.records import GroupMetadata
from minibroker.broker.groups.states import State
from minibroker.protocol.constants import ErrorCode
from minibroker.protocol.messages.group_offsets import OffsetCommitRequest
from minibroker.protocol.messages.groups import (
    GroupProtocol,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    LeavingMember,
    MemberAssignment,
    SyncGroupRequest,
    SyncGroupResponse,
)
from minibroker.protocol.subscription import Subscription, encode_subscription

LIMITS = GroupLimits(
    session_timeout_ms_min=1000,
    session_timeout_ms_max=1_800_000,
    size_max=100,
    initial_rebalance_delay_ms=100,
)
CLIENT = Client("app", "10.0.0.1")
SESSION_S = 10.0
REBALANCE_S = 60.0
MEANT = encode_subscription(Subscription(("t",)))
JOIN = JoinGroupRequest(
    "g",
    session_timeout_ms=int(SESSION_S * 1000),
    rebalance_timeout_ms=int(REBALANCE_S * 1000),
    protocols=(GroupProtocol("range", MEANT),),
)


def protocols(*names: str, metadata: bytes = MEANT) -> tuple[GroupProtocol, ...]:
    """Ways to assign, the preferred one first."""
    return tuple(GroupProtocol(name, metadata) for name in names)


class Bench:
    """A group, its time, and the writes that it asked for and nobody has settled."""

    def __init__(
        self, limits: GroupLimits = LIMITS, stored: GroupMetadata | None = None, now: float = 0.0
    ) -> None:
        self.now = now
        self.group = Group("g", limits, stored, now)
        self.written: list[GroupMetadata] = []
        self._ids = 0

    @property
    def state(self) -> State:
        """The group's."""
        return self.group.state

    def fresh_id(self) -> str:
        """The next id that a coordinator would give out: m1, m2 ..."""
        self._ids += 1
        return f"m{self._ids}"

    def join(
        self, member_id: str = "", instance_id: str | None = None, **options: Any
    ) -> Ticket[JoinGroupResponse]:
        """A JOIN as it comes."""
        asked = replace(JOIN, member_id=member_id, instance_id=instance_id, **options)
        return self.group.join(asked, CLIENT, self.fresh_id(), self.now)

    def enter(self, **options: Any) -> tuple[str, Ticket[JoinGroupResponse]]:
        """A new member asks for an id and joins with it."""
        first = self.join(**options).answer
        assert first is not None
        assert first.error == ErrorCode.MEMBER_ID_REQUIRED
        return first.member_id, self.join(first.member_id, **options)

    def sync(
        self, member_id: str, parts: dict[str, bytes] | None = None, **options: Any
    ) -> Ticket[SyncGroupResponse]:
        """A SYNC of the running generation, or of another one that is named."""
        assigned = tuple(MemberAssignment(name, part) for name, part in (parts or {}).items())
        asked = SyncGroupRequest("g", self.group.generation, member_id, assignments=assigned)
        asked = replace(asked, **options)
        return self.group.sync(asked, self.now)

    def heartbeat(
        self, member_id: str, instance_id: str | None = None, generation: int | None = None
    ) -> ErrorCode:
        """A HEARTBEAT of the running generation, or of another one."""
        number = self.group.generation if generation is None else generation
        asked = HeartbeatRequest("g", number, member_id, instance_id)
        return self.group.heartbeat(asked, self.now)

    def commit(
        self, member_id: str = "", instance_id: str | None = None, generation: int | None = None
    ) -> ErrorCode:
        """Whether an OFFSET_COMMIT would be taken."""
        number = self.group.generation if generation is None else generation
        asked = OffsetCommitRequest("g", number, member_id, instance_id)
        return self.group.check_commit(asked, self.now)

    def leave(self, member_id: str = "", instance_id: str | None = None) -> ErrorCode:
        """A LEAVE of one member."""
        return self.group.leave(LeavingMember(member_id, instance_id), self.now)

    def take(self) -> Write:
        """The one write that the group asks for."""
        (write,) = self.group.pop_writes()
        return write

    def store(self) -> None:
        """Commit what the group asks for."""
        for write in self.group.pop_writes():
            self.written.append(write.value)
            self.group.written(write.token, self.now)

    def wait(self, seconds: float) -> None:
        """Let time pass, tick by tick."""
        end = self.now + seconds
        while self.group.deadline <= end:
            assert self.group.deadline < math.inf
            self.now = max(self.now, self.group.deadline)
            self.group.tick(self.now)
        self.now = end

    def beat_on(self, seconds: float, *member_ids: str) -> None:
        """Let time pass while these members send heartbeats."""
        end = self.now + seconds
        while self.now < end:
            self.wait(min(SESSION_S / 4, end - self.now))
            for member_id in member_ids:
                self.heartbeat(member_id)

    def completing(self, *, members: int = 2, **options: Any) -> list[str]:
        """Bring an empty group to its first generation; the first of its members leads."""
        entered = [self.enter(**options) for _ in range(members)]
        self.wait(0.5)
        assert self.state is State.COMPLETING_REBALANCE
        assert all(joined(ticket).error == 0 for _, ticket in entered)
        return [member_id for member_id, _ in entered]

    def stable(self, *, members: int = 2, **options: Any) -> list[str]:
        """Bring an empty group to Stable; each member is assigned its own id as bytes."""
        names = self.completing(members=members, **options)
        self.sync_all(names)
        return names

    def sync_all(self, names: list[str]) -> None:
        """All sync, the leader with everybody's id as their part, and that is stored."""
        parts = {name: name.encode() for name in names}
        tickets = {name: self.sync(name, parts) for name in names}
        self.store()
        assert {name: synced(ticket).assignment for name, ticket in tickets.items()} == parts
        assert self.state is State.STABLE


def joined(ticket: Ticket[JoinGroupResponse]) -> JoinGroupResponse:
    """The answer of a join that must have one."""
    assert ticket.answer is not None, "the join still waits"
    return ticket.answer


def synced(ticket: Ticket[SyncGroupResponse]) -> SyncGroupResponse:
    """The answer of a sync that must have one."""
    assert ticket.answer is not None, "the sync still waits"
    return ticket.answer
