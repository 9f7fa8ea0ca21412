"""FIND_COORDINATOR, JOIN_GROUP, SYNC_GROUP, HEARTBEAT, LEAVE_GROUP, and what is asked about groups.

The fields are those of Kafka's classic group protocol (its public message schemas), so that its
wire can carry the same messages. A broker never looks into `metadata` and `assignment`: they belong
to the members' assignors.
"""

from dataclasses import dataclass

from minibroker.protocol.constants import NO_NODE
from minibroker.protocol.messages import Request

NO_GENERATION = -1
GROUP_KEY = 0  # what a FIND_COORDINATOR may look for
TRANSACTION_KEY = 1


@dataclass(frozen=True, slots=True)
class FindCoordinatorRequest(Request["FindCoordinatorResponse"]):
    """Which broker keeps this group. Any broker can be asked.

    `key_type` says what is looked for: 0 is a group, 1 a transactional id (there are none).
    """

    group_id: str
    key_type: int = GROUP_KEY


@dataclass(frozen=True, slots=True)
class FindCoordinatorResponse:
    """The group's coordinator, and where it listens."""

    error: int = 0
    error_message: str | None = None
    node_id: int = NO_NODE
    host: str = ""
    port: int = -1


@dataclass(frozen=True, slots=True)
class GroupProtocol:
    """A way to assign that a member can do, and what it tells the others for it."""

    name: str
    metadata: bytes = b""


@dataclass(frozen=True, slots=True)
class JoinGroupRequest(Request["JoinGroupResponse"]):
    """`member_id` "" asks for one; `protocols` in the member's order of preference.

    `instance_id` makes it a static member, which keeps its place over restarts. A new member that
    is not static is given its id first, with MEMBER_ID_REQUIRED, unless `is_member_id_required` is
    false: then an answer that is lost leaves a member behind until its session ends.
    """

    group_id: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    member_id: str = ""
    instance_id: str | None = None
    protocol_type: str = "consumer"
    protocols: tuple[GroupProtocol, ...] = ()
    is_member_id_required: bool = True

    @property
    def needs_member_id(self) -> bool:
        """Whether it is answered with an id to join with."""
        is_new = not self.member_id and self.instance_id is None
        return is_new and self.is_member_id_required


@dataclass(frozen=True, slots=True)
class JoinedMember:
    """A member as the leader of its group is told of it."""

    member_id: str
    instance_id: str | None = None
    metadata: bytes = b""


@dataclass(frozen=True, slots=True)
class JoinGroupResponse:
    """The new generation. `members` is empty for all but the leader, who assigns.

    With MEMBER_ID_REQUIRED `member_id` is the one to join with.
    """

    error: int = 0
    generation: int = NO_GENERATION
    protocol: str = ""
    leader: str = ""
    member_id: str = ""
    members: tuple[JoinedMember, ...] = ()


@dataclass(frozen=True, slots=True)
class MemberAssignment:
    """What the leader gives to one member."""

    member_id: str
    assignment: bytes = b""


@dataclass(frozen=True, slots=True)
class SyncGroupRequest(Request["SyncGroupResponse"]):
    """Asks for the member's part; the leader sends everybody's."""

    group_id: str
    generation: int
    member_id: str
    instance_id: str | None = None
    assignments: tuple[MemberAssignment, ...] = ()


@dataclass(frozen=True, slots=True)
class SyncGroupResponse:
    """The member's part."""

    error: int = 0
    assignment: bytes = b""


@dataclass(frozen=True, slots=True)
class HeartbeatRequest(Request["HeartbeatResponse"]):
    """Says that a member is alive."""

    group_id: str
    generation: int
    member_id: str
    instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class HeartbeatResponse:
    """REBALANCE_IN_PROGRESS asks the member to join again.

    `is_loading`: the coordinator does not know yet whether this is a member; no other one can have
    put it out since it became the coordinator.
    """

    error: int = 0
    is_loading: bool = False


@dataclass(frozen=True, slots=True)
class LeavingMember:
    """Who goes: by its id, or a static member by its instance id alone."""

    member_id: str = ""
    instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class LeaveGroupRequest(Request["LeaveGroupResponse"]):
    """Members that go, and need not be waited for."""

    group_id: str
    members: tuple[LeavingMember, ...] = ()


@dataclass(frozen=True, slots=True)
class LeftMember:
    """What became of one of them."""

    member_id: str = ""
    instance_id: str | None = None
    error: int = 0


@dataclass(frozen=True, slots=True)
class LeaveGroupResponse:
    """`error` is that of the whole request; then `members` is empty."""

    error: int = 0
    members: tuple[LeftMember, ...] = ()


@dataclass(frozen=True, slots=True)
class DescribeGroupsRequest(Request["DescribeGroupsResponse"]):
    """Groups that are all kept by the broker that is asked."""

    groups: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class MemberDescription:
    """A member as its coordinator knows it. `client_host` is the address it comes from."""

    member_id: str
    instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    metadata: bytes = b""
    assignment: bytes = b""


@dataclass(frozen=True, slots=True)
class DescribedGroup:
    """A group now. `state` is as Kafka spells it: Empty, PreparingRebalance, CompletingRebalance,
    Stable, or Dead for a group that does not exist."""

    group_id: str
    error: int = 0
    state: str = ""
    protocol_type: str = ""
    protocol: str = ""
    generation: int = NO_GENERATION
    members: tuple[MemberDescription, ...] = ()


@dataclass(frozen=True, slots=True)
class DescribeGroupsResponse:
    """A description for each group of the request, in its order."""

    groups: tuple[DescribedGroup, ...] = ()


@dataclass(frozen=True, slots=True)
class ListGroupsRequest(Request["ListGroupsResponse"]):
    """The groups that the asked broker keeps; only those in one of `states` unless it is empty."""

    states: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ListedGroup:
    """A group of the broker that answers."""

    group_id: str
    protocol_type: str = ""
    state: str = ""


@dataclass(frozen=True, slots=True)
class ListGroupsResponse:
    """With COORDINATOR_LOAD_IN_PROGRESS some of its groups are not known yet."""

    error: int = 0
    groups: tuple[ListedGroup, ...] = ()


@dataclass(frozen=True, slots=True)
class DeleteGroupsRequest(Request["DeleteGroupsResponse"]):
    """Groups to delete, with all that they committed; they must have no members."""

    groups: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DeletedGroup:
    """What became of one of them."""

    group_id: str
    error: int = 0


@dataclass(frozen=True, slots=True)
class DeleteGroupsResponse:
    """A result for each group of the request, in its order."""

    groups: tuple[DeletedGroup, ...] = ()
