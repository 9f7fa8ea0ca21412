"""The members of a group: checks of joins, expiry, and the choice of a protocol.

Members are in the order of their joining. No two have the same instance id, and all share at least
one protocol, because a join that would change this is refused. Ids that were given out for a coming
join count as members for the group's size limit, and a join phase waits for them until they expire.

A generation is its number, its protocol and its leader, as the last completed join phase chose
them.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from minibroker.broker.groups.member import CONSUMER, Client, Member
from minibroker.broker.groups.records import GroupMetadata, is_storable
from minibroker.protocol.constants import ErrorCode
from minibroker.protocol.messages.groups import JoinedMember, JoinGroupRequest, JoinGroupResponse

NAME_CHARS_MAX: Final = 249  # of an instance id, a protocol and its type; as for a topic's name


class GroupLimits(NamedTuple):
    """The limits for a group, from the broker's configuration."""

    session_timeout_ms_min: int
    session_timeout_ms_max: int
    size_max: int
    initial_rebalance_delay_ms: int


class GroupMembers:
    """See the head of this module. Times are the trio clock's."""

    def __init__(self, stored: GroupMetadata | None, now: float) -> None:
        self.generation = 0
        self.protocol_type = ""
        self.protocol: str | None = None
        self.leader: str | None = None
        self._members: dict[str, Member] = {}
        self._pending: dict[str, float] = {}
        if stored is not None:
            self.generation = stored.generation
            self.protocol_type = stored.protocol_type
        if stored is not None and stored.members:
            self.protocol = stored.protocol or ""
            self.leader = stored.leader
            for member in stored.members:
                loaded = Member.from_stored(member, self.protocol, now)
                self._members[member.member_id] = loaded

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Member]:
        return iter(self._members.values())

    def __contains__(self, member_id: object) -> bool:
        return member_id in self._members

    def __getitem__(self, member_id: str) -> Member:
        return self._members[member_id]

    @property
    def by_id(self) -> Mapping[str, Member]:
        """The members by id, read-only."""
        return self._members

    # -- finding and checking

    def find(self, member_id: str, instance_id: str | None) -> Member | None:
        """Return the member of this id, or else the static one of this instance id."""
        return self._members.get(member_id) or self.static(instance_id)

    def static(self, instance_id: str | None) -> Member | None:
        """Return the static member of an instance id."""
        if instance_id is None:
            return None
        return next((each for each in self if each.instance_id == instance_id), None)

    def unknown(self, member_id: str, instance_id: str | None) -> ErrorCode:
        """Return NONE if the id is a member's, FENCED_INSTANCE_ID if the static member has another
        id, else UNKNOWN_MEMBER_ID."""
        member = self._members.get(member_id)
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
        shares = self._shares_a_protocol(request)
        return ErrorCode.NONE if shares else ErrorCode.INCONSISTENT_GROUP_PROTOCOL

    def _shares_a_protocol(self, request: JoinGroupRequest) -> bool:
        names = [protocol.name for protocol in request.protocols]
        lengths = [len(name) for name in (request.protocol_type, *names)]
        if not names or not 0 < min(lengths) <= max(lengths) <= NAME_CHARS_MAX:
            return False
        itself = self.find(request.member_id, request.instance_id)
        others = [member for member in self if member is not itself]
        if not others:
            return True
        is_of_type = request.protocol_type == self.protocol_type
        return is_of_type and not set(names).isdisjoint(_shared(others))

    def is_led_by(self, member: Member) -> bool:
        """Whether this member is the leader, which assigns."""
        return member.member_id == self.leader

    # -- adding and removing

    def expect(self, member_id: str, until: float) -> None:
        """Record an id that was given out for a coming join."""
        self._pending[member_id] = until

    def forget(self, member_id: str) -> bool:
        """Remove an expected id; return whether it was expected."""
        return self._pending.pop(member_id, None) is not None

    def add(self, member_id: str, request: JoinGroupRequest, client: Client) -> Member:
        """Add a new member."""
        self._pending.pop(member_id, None)
        self.protocol_type = request.protocol_type
        self._members[member_id] = member = Member(member_id, request, client)
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
        member.update(request, client)
        self.protocol_type = request.protocol_type
        after = member.topics() if began_again else member.protocols.get(protocol)
        is_same = before is not None and before == after and not is_letting_go
        return is_same and (names == list(member.protocols) or self._choose_protocol() == protocol)

    def remove(self, member_id: str) -> Member:
        """Remove a member."""
        return self._members.pop(member_id)

    def replace(self, member: Member, fresh_id: str) -> None:
        """Give a member another id, at the same place."""
        if self.leader == member.member_id:
            self.leader = fresh_id
        member.member_id = fresh_id
        self._members = {each.member_id: each for each in self}

    def next_generation(self) -> None:
        """End the join phase: remove the members that did not join (GRP-13), and begin a
        generation.

        The oldest member becomes the leader, and stays it until it leaves.
        """
        self._members = {name: each for name, each in self._members.items() if each.join}
        self.generation += 1
        self.protocol = self._choose_protocol() if self._members else None
        self.leader = next(iter(self._members), None)

    def clear(self) -> None:
        """Remove all members."""
        self._members.clear()
        self._pending.clear()

    # -- expiry

    @property
    def deadline(self) -> float:
        """When the next member or expected id expires."""
        sessions = (member.expires_at for member in self)
        return min(min(sessions, default=math.inf), min(self._pending.values(), default=math.inf))

    def expired(self, now: float) -> list[str]:
        """Return members whose session has ended (GRP-11); forget expected ids that have
        expired."""
        self._pending = {name: until for name, until in self._pending.items() if until > now}
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
        votes = dict.fromkeys(_shared(list(self)), 0)
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
        )

    def stored(self, parts: Mapping[str, bytes]) -> GroupMetadata:
        """Return the record of the generation, with these assignments."""
        members = tuple(
            each.stored(self.protocol or "", parts.get(each.member_id, b"")) for each in self
        )
        return GroupMetadata(
            self.protocol_type, self.generation, self.protocol, self.leader, members=members
        )

    def subscribes_to(self, topic: str) -> bool | None:
        """Whether a member subscribes to a topic; None if the members' metadata do not say."""
        if self._members and self.protocol_type != CONSUMER:
            return None
        wanted = [member.topics() for member in self]
        return None if None in wanted else any(topic in topics for topics in wanted if topics)


def _shared(members: list[Member]) -> list[str]:
    first, *others = members
    return [name for name in first.protocols if all(name in other.protocols for other in others)]
