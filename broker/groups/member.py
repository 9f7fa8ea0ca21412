"""A member of a group, and what it waits for.

A member's JOIN and SYNC wait at their coordinator. Each is a `Ticket`: whoever asked keeps it and
looks at its `answer`, and the member keeps the newest of each kind. A request that was sent again,
perhaps over another connection, so takes the place of the older one, which is refused at once.
A member that has a ticket open does not expire: it waits for us, not we for it.
"""

import math
from typing import Final, Generic, NamedTuple, TypeVar

from minibroker.broker.groups.records import INT32_MAX, StoredMember
from minibroker.protocol.constants import ErrorCode
from minibroker.protocol.errors import ProtocolError
from minibroker.protocol.messages.groups import (
    JoinGroupRequest,
    JoinGroupResponse,
    MemberDescription,
    SyncGroupResponse,
)
from minibroker.protocol.subscription import decode_assignment, decode_subscription

CONSUMER: Final = "consumer"  # the protocol type whose metadata is a `Subscription`
CLIENT_CHARS_MAX: Final = 255  # of what is kept of a client's name for itself

Answer = TypeVar("Answer", JoinGroupResponse, SyncGroupResponse)


class Ticket(Generic[Answer]):
    """A request that waits until `answer` is there."""

    __slots__ = ("answer",)

    def __init__(self) -> None:
        self.answer: Answer | None = None


class Client(NamedTuple):
    """Who sent a request: what it calls itself, and its address. Told to people, never compared."""

    client_id: str
    host: str


class Member:
    """One member. `protocols` in its order of preference; times in seconds of the trio clock."""

    __slots__ = (
        "assignment",
        "client",
        "instance_id",
        "join",
        "member_id",
        "protocols",
        "rebalance_timeout_ms",
        "session_ends",
        "session_timeout_ms",
        "sync",
    )

    def __init__(self, member_id: str, request: JoinGroupRequest, client: Client) -> None:
        self.member_id = member_id
        self.instance_id = request.instance_id
        self.assignment = b""
        self.join: Ticket[JoinGroupResponse] | None = None
        self.sync: Ticket[SyncGroupResponse] | None = None
        self.session_ends = math.inf
        self.update(request, client)

    def update(self, request: JoinGroupRequest, client: Client) -> None:
        """Take over what a join says."""
        self.client = Client(client.client_id[:CLIENT_CHARS_MAX], client.host[:CLIENT_CHARS_MAX])
        self.session_timeout_ms = request.session_timeout_ms
        self.rebalance_timeout_ms = max(0, min(request.rebalance_timeout_ms, INT32_MAX))
        self.protocols = protocols_of(request)

    @classmethod
    def from_stored(cls, stored: StoredMember, protocol: str, now: float) -> "Member":
        """The member of a stored generation; its session begins anew."""
        member = cls.__new__(cls)
        member.member_id = stored.member_id
        member.instance_id = stored.instance_id
        member.assignment = stored.assignment
        member.join = member.sync = None
        member.client = Client(stored.client_id, stored.client_host)
        member.session_timeout_ms = stored.session_timeout_ms
        member.rebalance_timeout_ms = stored.rebalance_timeout_ms
        member.protocols = {protocol: stored.subscription}
        member.renew(now)
        return member

    def stored(self, protocol: str, assignment: bytes) -> StoredMember:
        """The member as a record of its group says it."""
        return StoredMember(
            self.member_id,
            self.instance_id,
            self.client.client_id,
            self.client.host,
            self.rebalance_timeout_ms,
            self.session_timeout_ms,
            self.protocols[protocol],
            assignment,
        )

    def described(self, protocol: str | None) -> MemberDescription:
        """The member as people are told of it; with what it reads only if a protocol is given."""
        return MemberDescription(
            self.member_id,
            self.instance_id,
            self.client.client_id,
            self.client.host,
            b"" if protocol is None else self.protocols[protocol],
            b"" if protocol is None else self.assignment,
        )

    def renew(self, now: float) -> None:
        """It was heard of (GRP-11)."""
        self.session_ends = now + self.session_timeout_ms / 1000

    @property
    def expires_at(self) -> float:
        """When it is given up; never while it waits for an answer."""
        return self.session_ends if self.join is None and self.sync is None else math.inf

    def answer_join(self, response: JoinGroupResponse, now: float) -> None:
        """Answer the join that waits, if one does; from now on the member is to speak."""
        if self.join is not None:
            self.join.answer, self.join = response, None
            self.renew(now)

    def answer_sync(self, response: SyncGroupResponse, now: float) -> None:
        """Answer the sync that waits, if one does; from now on the member is to speak."""
        if self.sync is not None:
            self.sync.answer, self.sync = response, None
            self.renew(now)

    def refuse(self, error: ErrorCode, now: float) -> None:
        """Answer all that waits with an error."""
        self.answer_join(JoinGroupResponse(error, member_id=self.member_id), now)
        self.answer_sync(SyncGroupResponse(error), now)

    def topics(self) -> set[str] | None:
        """What it subscribes to, if its metadata is that of consumers and can be read."""
        try:
            read = [decode_subscription(data) for data in self.protocols.values()]
        except ProtocolError:
            return None
        return {topic for subscription in read for topic in subscription.topics}

    def is_letting_go(self, protocol: str) -> bool:
        """Whether it came with partitions that are not in its part: it is to give them up, and to
        join again to say so, before anybody else gets them (cooperative)."""
        try:
            owned = decode_subscription(self.protocols.get(protocol, b"")).owned
            return not set(owned).issubset(decode_assignment(self.assignment).partitions)
        except ProtocolError:
            return False


def protocols_of(request: JoinGroupRequest) -> dict[str, bytes]:
    """Metadata by protocol, in the order of preference; of two of one name the first counts."""
    protocols: dict[str, bytes] = {}
    for protocol in request.protocols:
        protocols.setdefault(protocol.name, protocol.metadata)
    return protocols
