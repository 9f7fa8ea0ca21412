"""A member of a group, and its waiting requests.

The coordinator parks a member's JOIN and SYNC. Each has a `Ticket`: the handler waits for its
`answer`, and the member keeps the newest ticket of each kind. So a request that the client sent
again, perhaps over another connection, takes the place of the older one, which is refused at once.
A member with an open ticket does not expire, because it waits for the coordinator.
"""

import math
from typing import Final, Generic, NamedTuple, TypeVar

from minibroker.broker.groups.records import StoredMember
from minibroker.protocol.constants import INT32_MAX, ErrorCode
from minibroker.protocol.errors import ProtocolError
from minibroker.protocol.messages.consumer_groups import ConsumerGroupHeartbeatResponse
from minibroker.protocol.messages.groups import (
    JoinGroupRequest,
    JoinGroupResponse,
    MemberDescription,
    SyncGroupResponse,
)
from minibroker.protocol.subscription import decode_assignment, decode_subscription

CONSUMER: Final = "consumer"  # the protocol type whose metadata is a `Subscription`
CLIENT_CHARS_MAX: Final = 255  # kept of a client's id, and of its address
MEMBER_BYTES: Final = 512  # what a member takes beside its names, metadata and assignment
# Of a member's metadata. To read more would hold up all other clients; that member's subscription
# counts as unreadable.
READ_BYTES_MAX: Final = 128 * 1024

Answer = TypeVar("Answer", JoinGroupResponse, SyncGroupResponse, ConsumerGroupHeartbeatResponse)


class Ticket(Generic[Answer]):
    """A request that waits until it has an `answer`."""

    __slots__ = ("answer",)

    def __init__(self) -> None:
        self.answer: Answer | None = None


class Client(NamedTuple):
    """The client of a request: its id and its address. They are shown, never compared."""

    client_id: str
    host: str


class Member:
    """One member. `protocols` is in its order of preference; times are seconds of the trio
    clock."""

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
        """Update the member from its new join."""
        self.client = Client(client.client_id[:CLIENT_CHARS_MAX], client.host[:CLIENT_CHARS_MAX])
        self.session_timeout_ms = request.session_timeout_ms
        self.rebalance_timeout_ms = max(0, min(request.rebalance_timeout_ms, INT32_MAX))
        self.protocols = protocols_of(request)

    @classmethod
    def from_stored(cls, stored: StoredMember, protocol: str, now: float) -> "Member":
        """Make the member of a stored generation; its session is renewed."""
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
        """Return the member as the group's record has it."""
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
        """Describe the member for an administrator; with its subscription and assignment if a
        protocol is given."""
        return MemberDescription(
            self.member_id,
            self.instance_id,
            self.client.client_id,
            self.client.host,
            b"" if protocol is None else self.protocols[protocol],
            b"" if protocol is None else self.assignment,
        )

    def renew(self, now: float) -> None:
        """Renew the session: the coordinator heard the member (GRP-11)."""
        self.session_ends = now + self.session_timeout_ms / 1000

    @property
    def expires_at(self) -> float:
        """When the session ends; never while a request of the member waits."""
        return self.session_ends if self.join is None and self.sync is None else math.inf

    @property
    def held_bytes(self) -> int:
        """The memory that the member takes, about."""
        texts = (self.member_id, self.instance_id or "", *self.client, *self.protocols)
        return (
            MEMBER_BYTES
            + sum(map(len, texts))
            + sum(map(len, self.protocols.values()))
            + len(self.assignment)
        )

    def answer_join(self, response: JoinGroupResponse, now: float) -> None:
        """Answer the waiting JOIN, if there is one, and renew the session."""
        if self.join is not None:
            self.join.answer, self.join = response, None
            self.renew(now)

    def answer_sync(self, response: SyncGroupResponse, now: float) -> None:
        """Answer the waiting SYNC, if there is one, and renew the session."""
        if self.sync is not None:
            self.sync.answer, self.sync = response, None
            self.renew(now)

    def refuse(self, error: ErrorCode, now: float) -> None:
        """Answer all waiting requests with an error."""
        self.answer_join(JoinGroupResponse(error, member_id=self.member_id), now)
        self.answer_sync(SyncGroupResponse(error), now)

    def topics(self) -> set[str] | None:
        """The topics it subscribes to; None if its metadata are not a consumer's or cannot be
        read."""
        different = set(self.protocols.values())
        if sum(map(len, different)) > READ_BYTES_MAX:
            return None
        try:
            read = [decode_subscription(data) for data in different]
        except ProtocolError:
            return None
        return {topic for subscription in read for topic in subscription.topics}

    def is_letting_go(self, protocol: str) -> bool:
        """Whether it joined with partitions that are not in its assignment, or may have. It must
        give them up and join again, before another member gets them (cooperative rebalancing)."""
        metadata = self.protocols.get(protocol, b"")
        if len(metadata) + len(self.assignment) > READ_BYTES_MAX:
            return True
        try:
            owned = decode_subscription(metadata).owned
            return not set(owned).issubset(decode_assignment(self.assignment).partitions)
        except ProtocolError:
            return False


def protocols_of(request: JoinGroupRequest) -> dict[str, bytes]:
    """Return the metadata by protocol, in the order of preference; of two with one name the
    first."""
    protocols: dict[str, bytes] = {}
    for protocol in request.protocols:
        protocols.setdefault(protocol.name, protocol.metadata)
    return protocols
