"""The members of a group: checks of joins, expiry, and the choice of a protocol.

Members are in the order of their joining. No two have the same instance id, and all share at least
one protocol, because a join that would change this is refused. Ids that were given out for a coming
join count as members for the group's size limit, and a join phase waits for them until they expire.

A generation is stored as one record with all members' metadata and assignments, so metadata larger
than a record can be are refused. A group's memory is limited to `RECORDS_HELD_MAX` such records:
members offer a few protocols each, of which one is stored, so a group that can be stored fits.

A generation is its number, its protocol and its leader, as the last completed join phase chose
them.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from minibroker.broker.groups.member import CONSUMER, MEMBER_BYTES, Client, Member
from minibroker.broker.groups.member_index import MemberIndex
from minibroker.broker.groups.records import GroupMetadata, is_storable
from minibroker.protocol.constants import ErrorCode
from minibroker.protocol.messages.groups import (
    JoinedMember,
    JoinGroupRequest,
    JoinGroupResponse,
    SyncGroupResponse,
)

NAME_CHARS_MAX: Final = 249  # of an instance id, a protocol and its type; as for a topic's name
PROTOCOLS_MAX: Final = 64  # that one member offers; clients offer a handful
EXPECTED_BYTES: Final = 256  # what an id takes that was given out for a coming join
RECORDS_HELD_MAX: Final = 8


class GroupLimits(NamedTuple):
    """The limits for a group, from the configuration of the broker and of the offsets topic."""

    session_timeout_ms_min: int
    session_timeout_ms_max: int
    size_max: int
    initial_rebalance_delay_ms: int
    record_bytes_max: int = 1024 * 1024

    @property
    def held_bytes_max(self) -> int:
        """The memory that a group's members may take."""
        return RECORDS_HELD_MAX * self.record_bytes_max


class GroupMembers:
    """See the head of this module. Times are the trio clock's."""

    def __init__(self, stored: GroupMetadata | None, now: float) -> None:
        self.generation = 0
        self.protocol_type = ""
        self.protocol: str | None = None
        self.leader: str | None = None
        self._members = MemberIndex()
        self._pending: dict[str, float] = {}
        self._pending_end = math.inf  # not later than the first of them expires
        if stored is not None:
            self.generation = stored.generation
            self.protocol_type = stored.protocol_type
        if stored is not None and stored.members:
            self.protocol = stored.protocol or ""
            self.leader = stored.leader
            for member in stored.members:
                self._members.add(Member.from_stored(member, self.protocol, now))

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Member]:
        return iter(self._members)

    def __contains__(self, member_id: object) -> bool:
        return member_id in self._members.by_id

    def __getitem__(self, member_id: str) -> Member:
        return self._members.by_id[member_id]

    @property
    def by_id(self) -> Mapping[str, Member]:
        """The members by id, read-only."""
        return self._members.by_id

    @property
    def held_bytes(self) -> int:
        """The memory that members and expected ids take, about."""
        return self._members.held_bytes + EXPECTED_BYTES * len(self._pending)

    # -- finding and checking

    def find(self, member_id: str, instance_id: str | None) -> Member | None:
        """Return the member of this id, or else the static one of this instance id."""
        return self.by_id.get(member_id) or self.static(instance_id)

    def static(self, instance_id: str | None) -> Member | None:
        """Return the static member of an instance id."""
        return self._members.static(instance_id)

    def unknown(self, member_id: str, instance_id: str | None) -> ErrorCode:
        """Return NONE if the id is a member's, FENCED_INSTANCE_ID if the static member has another
        id, else UNKNOWN_MEMBER_ID."""
        member = self.by_id.get(member_id)
        if member is not None and instance_id in (None, member.instance_id):
            return ErrorCode.NONE
        fenced = self.static(instance_id) is not None
        return ErrorCode.FENCED_INSTANCE_ID if fenced else ErrorCode.UNKNOWN_MEMBER_ID

    def refusal(self, request: JoinGroupRequest, limits: GroupLimits) -> ErrorCode:
        """Return why a join is refused (GRP-12), or NONE."""
        instance_id = request.instance_id
        if not request.group_id or not is_storable(request.group_id):
            return ErrorCode.INVALID_GROUP_ID
        timeout_ms = request.session_timeout_ms
        if not limits.session_timeout_ms_min <= timeout_ms <= limits.session_timeout_ms_max:
            return ErrorCode.INVALID_SESSION_TIMEOUT
        if instance_id is not None and not 0 < len(instance_id) <= NAME_CHARS_MAX:
            return ErrorCode.INVALID_REQUEST
        is_pending = request.member_id in self._pending and instance_id is None
        is_known = not request.member_id or is_pending
        if not is_known and (error := self.unknown(request.member_id, instance_id)):
            return error
        is_new = not request.member_id and self.static(instance_id) is None
        if is_new and len(self._members) + len(self._pending) >= limits.size_max:
            return ErrorCode.GROUP_MAX_SIZE_REACHED
        if not self._shares_a_protocol(request):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if max(len(each.metadata) for each in request.protocols) > limits.record_bytes_max:
            return ErrorCode.MESSAGE_TOO_LARGE
        growth = self.growth(request)
        is_full = growth > 0 and self.held_bytes + growth > limits.held_bytes_max
        return ErrorCode.GROUP_MAX_SIZE_REACHED if is_full else ErrorCode.NONE

    def growth(self, request: JoinGroupRequest) -> int:
        """Return how many more bytes the members take after a join, about; it may be negative."""
        if request.needs_member_id:
            return EXPECTED_BYTES
        after = sum(len(each.name) + len(each.metadata) for each in request.protocols)
        member = self.find(request.member_id, request.instance_id)
        if member is None:
            return MEMBER_BYTES + after
        protocols = member.protocols
        return after - sum(map(len, protocols)) - sum(map(len, protocols.values()))

    def _shares_a_protocol(self, request: JoinGroupRequest) -> bool:
        names = [protocol.name for protocol in request.protocols[: PROTOCOLS_MAX + 1]]
        lengths = [len(name) for name in (request.protocol_type, *names)]
        if not 0 < len(names) <= PROTOCOLS_MAX or not 0 < min(lengths) <= max(lengths) <= (
            NAME_CHARS_MAX
        ):
            return False
        itself = self.find(request.member_id, request.instance_id)
        if len(self) == (itself is not None):
            return True
        is_of_type = request.protocol_type == self.protocol_type
        return is_of_type and self._members.shares(names, itself)

    def is_led_by(self, member: Member) -> bool:
        """Whether this member is the leader, which assigns."""
        return member.member_id == self.leader

    # -- adding and removing

    def expect(self, member_id: str, until: float) -> None:
        """Record an id that was given out for a coming join."""
        self._pending[member_id] = until
        self._pending_end = min(self._pending_end, until)

    def forget(self, member_id: str) -> bool:
        """Remove an expected id; return whether it was expected."""
        return self._pending.pop(member_id, None) is not None

    def add(self, member_id: str, request: JoinGroupRequest, client: Client) -> Member:
        """Add a new member."""
        self._pending.pop(member_id, None)
        self.protocol_type = request.protocol_type
        member = Member(member_id, request, client)
        self._members.add(member)
        return member

    def rejoin(self, member: Member, request: JoinGroupRequest, client: Client) -> bool:
        """Handle a member's repeated join; return whether its subscription is the same.

        A running member sends the same bytes again. A consumer that was restarted (it joins without
        an id) does not know its partitions, so only its topics are compared. The result is False if
        it had partitions to give up: its restart has done that, and others may get them now.
        """
        protocol, names = self.protocol or "", list(member.protocols)
        began_again = not request.member_id and self.protocol_type == CONSUMER
        is_letting_go = began_again and member.is_letting_go(protocol)
        before = member.topics() if began_again else member.protocols.get(protocol)
        self._members.update(member, request, client)
        self.protocol_type = request.protocol_type
        after = member.topics() if began_again else member.protocols.get(protocol)
        is_same = before is not None and before == after and not is_letting_go
        return is_same and (names == list(member.protocols) or self._choose_protocol() == protocol)

    def remove(self, member_id: str) -> Member:
        """Remove a member."""
        return self._members.remove(member_id)

    def replace(self, member: Member, fresh_id: str) -> None:
        """Give a member another id, at the same place."""
        if self.leader == member.member_id:
            self.leader = fresh_id
        self._members.rename(member, fresh_id)

    def assign(self, parts: Mapping[str, bytes]) -> None:
        """Give each member its assignment of the generation."""
        self._members.assign(parts)

    def next_generation(self) -> None:
        """End the join phase: remove the members that did not join (GRP-13), and begin a
        generation.

        The oldest member becomes the leader, and stays it until it leaves.
        """
        for member_id in [each.member_id for each in self if each.join is None]:
            self._members.remove(member_id)
        self.generation += 1
        self.protocol = self._choose_protocol() if self._members else None
        self.leader = next(iter(self.by_id), None)

    def clear(self) -> None:
        """Remove all members."""
        self._members.clear()
        self._pending.clear()

    # -- expiry

    @property
    def deadline(self) -> float:
        """When the next member or expected id expires, or earlier."""
        sessions_end = min((member.expires_at for member in self), default=math.inf)
        return min(sessions_end, self._pending_end) if self._pending else sessions_end

    def expired(self, now: float) -> list[str]:
        """Return members whose session has ended (GRP-11); forget expected ids that have
        expired."""
        if self._pending_end <= now:
            self._pending = {name: until for name, until in self._pending.items() if until > now}
            self._pending_end = min(self._pending.values(), default=math.inf)
        return [member.member_id for member in self if member.expires_at <= now]

    # -- the join phase and the generation

    @property
    def have_all_joined(self) -> bool:
        """Whether a join phase is complete."""
        return not self._pending and all(member.join is not None for member in self)

    @property
    def rebalance_timeout_s(self) -> float:
        """The longest rebalance time-out of the members, in seconds."""
        return max((member.rebalance_timeout_ms for member in self), default=0) / 1000

    def _choose_protocol(self) -> str:
        """Return the protocol that most members prefer among those that all share.

        Of two with as many votes it is the first in the oldest member's order.
        """
        votes = dict.fromkeys(self._members.shared(), 0)
        assert votes, "a join that shares no protocol with the others is refused"
        for member in self:
            votes[next(name for name in member.protocols if name in votes)] += 1
        return max(votes, key=votes.__getitem__)

    def joined(self, member: Member) -> JoinGroupResponse:
        """Return a member's answer to JOIN: the generation, and for the leader all members."""
        assert self.protocol is not None
        known: tuple[JoinedMember, ...] = ()
        if self.is_led_by(member):
            known = tuple(
                JoinedMember(each.member_id, each.instance_id, each.protocols[self.protocol])
                for each in self
            )
        return JoinGroupResponse(
            generation=self.generation,
            protocol=self.protocol,
            leader=self.leader or "",
            member_id=member.member_id,
            members=known,
            protocol_type=self.protocol_type,
        )

    def synced(self, member: Member) -> SyncGroupResponse:
        """Return a member's answer to SYNC: its assignment."""
        return SyncGroupResponse(
            assignment=member.assignment, protocol_type=self.protocol_type, protocol=self.protocol
        )

    def is_protocol(self, protocol_type: str | None, protocol: str | None) -> bool:
        """Whether these are the group's protocol type and protocol; None is not checked."""
        return protocol_type in (None, self.protocol_type) and protocol in (None, self.protocol)

    def stored(self, parts: Mapping[str, bytes]) -> GroupMetadata:
        """Return the record of the generation, with these assignments."""
        members = tuple(
            each.stored(self.protocol or "", parts.get(each.member_id, b"")) for each in self
        )
        return GroupMetadata(
            self.protocol_type, self.generation, self.protocol, self.leader, members=members
        )

    def subscribed_topics(self) -> set[str] | None:
        """The topics that members subscribe to; None if the members' metadata do not say."""
        if self._members and self.protocol_type != CONSUMER:
            return None
        wanted = [member.topics() for member in self]
        return None if None in wanted else set().union(*filter(None, wanted))
