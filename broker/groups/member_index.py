"""The members of a group in the order of their joining, and what a join asks about all of them.

A join must not look at every member: a group of a thousand members would cost a million looks in
each rebalance. So the index counts, with each change, which protocols are offered by how many
members, who is the static member of an instance id, and how many bytes the members take.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping

from minibroker.broker.groups.member import Client, Member
from minibroker.protocol.messages.groups import JoinGroupRequest


class MemberIndex:
    """See the head of this module. Only its methods change a member's names, protocols and
    assignment."""

    def __init__(self) -> None:
        self._members: dict[str, Member] = {}
        self._static: dict[str, Member] = {}  # by instance id
        self._offers: Counter[str] = Counter()  # by protocol: the members that offer it
        self.held_bytes = 0

    # -- queries

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Member]:
        return iter(self._members.values())

    @property
    def by_id(self) -> Mapping[str, Member]:
        """The members by id, read-only."""
        return self._members

    def static(self, instance_id: str | None) -> Member | None:
        """Return the static member of an instance id."""
        return None if instance_id is None else self._static.get(instance_id)

    def shares(self, names: Collection[str], apart_from: Member | None) -> bool:
        """Whether all members but this one offer one of these protocols."""
        own = () if apart_from is None else apart_from.protocols
        count = len(self._members) - (apart_from is not None)
        return any(self._offers[name] - (name in own) == count for name in names)

    def shared(self) -> list[str]:
        """Return the protocols that all members offer, in the oldest member's order."""
        oldest = next(iter(self), None)
        names = () if oldest is None else oldest.protocols
        return [name for name in names if self._offers[name] == len(self._members)]

    # -- changes

    def add(self, member: Member) -> None:
        """Add a member, whose id no other member has, as the youngest."""
        self._members[member.member_id] = member
        self._count(member)

    def remove(self, member_id: str) -> Member:
        """Remove a member."""
        member = self._members.pop(member_id)
        self._discount(member)
        return member

    def rename(self, member: Member, member_id: str) -> None:
        """Give a member another id, at the same place."""
        self._discount(member)
        member.member_id = member_id
        self._members = {each.member_id: each for each in self}
        self._count(member)

    def update(self, member: Member, request: JoinGroupRequest, client: Client) -> None:
        """Update a member from its new join."""
        self._discount(member)
        member.update(request, client)
        self._count(member)

    def assign(self, parts: Mapping[str, bytes]) -> None:
        """Give each member its assignment, an empty one if none is named."""
        for member in self:
            before = len(member.assignment)
            member.assignment = parts.get(member.member_id, b"")
            self.held_bytes += len(member.assignment) - before

    def clear(self) -> None:
        """Remove all members."""
        self._members.clear()
        self._static.clear()
        self._offers.clear()
        self.held_bytes = 0

    def _count(self, member: Member) -> None:
        self._offers.update(member.protocols.keys())
        self.held_bytes += member.held_bytes
        if member.instance_id is not None:
            self._static[member.instance_id] = member

    def _discount(self, member: Member) -> None:
        for name in member.protocols:
            self._offers[name] -= 1
            if not self._offers[name]:
                del self._offers[name]
        self.held_bytes -= member.held_bytes
        if member.instance_id is not None:
            self._static.pop(member.instance_id, None)
