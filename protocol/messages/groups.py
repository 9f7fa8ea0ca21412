"""FIND_COORDINATOR, JOIN_GROUP, SYNC_GROUP, HEARTBEAT, LEAVE_GROUP, and requests to manage groups.

The fields are those of Kafka's classic group protocol (its public message schemas), so that its
wire can carry the same messages. A broker never looks into `metadata` and `assignment`: they belong
to the members' assignors.
"""

from dataclasses import dataclass

from minibroker.protocol.constants import NO_NODE, NO_OPERATIONS
from minibroker.protocol.messages import Request

NO_GENERATION = -1
GROUP_KEY = 0  # key types of a FIND_COORDINATOR
TRANSACTION_KEY = 1
CLASSIC = "classic"  # the types of groups, by their protocol
CONSUMER = "consumer"


@dataclass(frozen=True, slots=True)
class FindCoordinatorRequest(Request["FindCoordinatorResponse"]):
    """Requests the coordinator of a group or a transactional id, from any broker.

    `key_type` is the type of the key: with 0 `group_id` is a group, with 1 a transactional id.
    `group_ids`, unless nil, are several of them in place of the one.
    """

    group_id: str
    key_type: int = GROUP_KEY
    group_ids: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class GroupCoordinator:
    """The coordinator of one of several groups."""

    group_id: str
    error: int = 0
    error_message: str | None = None
    node_id: int = NO_NODE
    host: str = ""
    port: int = -1


@dataclass(frozen=True, slots=True)
class FindCoordinatorResponse:
    """The group's coordinator, and where it listens; `coordinators` are those of `group_ids`."""

    error: int = 0
    error_message: str | None = None
    node_id: int = NO_NODE
    host: str = ""
    port: int = -1
    coordinators: tuple[GroupCoordinator, ...] = ()


@dataclass(frozen=True, slots=True)
class GroupProtocol:
    """An assignor that a member supports, and the member's metadata for it."""

    name: str
    metadata: bytes = b""


@dataclass(frozen=True, slots=True)
class JoinGroupRequest(Request["JoinGroupResponse"]):
    """`member_id` "" requests a new id; `protocols` are in the member's order of preference.

    `instance_id` makes it a static member, which keeps its membership over restarts. A new member
    that is not static first gets its id, with MEMBER_ID_REQUIRED, unless `is_member_id_required` is
    false: then a lost answer leaves a member behind until its session ends.
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
        """Whether the coordinator answers it with MEMBER_ID_REQUIRED and an id to join with."""
        is_new = not self.member_id and self.instance_id is None
        return is_new and self.is_member_id_required


@dataclass(frozen=True, slots=True)
class JoinedMember:
    """A member, as sent to the leader of its group."""

    member_id: str
    instance_id: str | None = None
    metadata: bytes = b""


@dataclass(frozen=True, slots=True)
class JoinGroupResponse:
    """The new generation. `members` is empty for all members except the leader, which assigns.

    With MEMBER_ID_REQUIRED `member_id` is the one to join with. `skip_assignment`: the leader is a
    static member that began again, and the assignment of before holds.
    """

    error: int = 0
    generation: int = NO_GENERATION
    protocol: str = ""
    leader: str = ""
    member_id: str = ""
    members: tuple[JoinedMember, ...] = ()
    protocol_type: str | None = None
    skip_assignment: bool = False


@dataclass(frozen=True, slots=True)
class MemberAssignment:
    """The leader's assignment for one member."""

    member_id: str
    assignment: bytes = b""


@dataclass(frozen=True, slots=True)
class SyncGroupRequest(Request["SyncGroupResponse"]):
    """Requests the member's assignment; the leader's request carries the assignments of all.

    `protocol_type` and `protocol` are those that the group must have (nil: not checked).
    """

    group_id: str
    generation: int
    member_id: str
    instance_id: str | None = None
    assignments: tuple[MemberAssignment, ...] = ()
    protocol_type: str | None = None
    protocol: str | None = None


@dataclass(frozen=True, slots=True)
class SyncGroupResponse:
    """The member's assignment, and the protocol by which it was made."""

    error: int = 0
    assignment: bytes = b""
    protocol_type: str | None = None
    protocol: str | None = None


@dataclass(frozen=True, slots=True)
class HeartbeatRequest(Request["HeartbeatResponse"]):
    """Shows that a member is alive."""

    group_id: str
    generation: int
    member_id: str
    instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class HeartbeatResponse:
    """REBALANCE_IN_PROGRESS asks the member to join again.

    `is_loading`: the coordinator does not know yet whether this is a member; no other coordinator
    can have removed it since this one took over.
    """

    error: int = 0
    is_loading: bool = False


@dataclass(frozen=True, slots=True)
class LeavingMember:
    """A leaving member: its id, or only the instance id of a static member."""

    member_id: str = ""
    instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class LeaveGroupRequest(Request["LeaveGroupResponse"]):
    """Removes members, so that the group does not wait for them."""

    group_id: str
    members: tuple[LeavingMember, ...] = ()


@dataclass(frozen=True, slots=True)
class LeftMember:
    """The result for one member."""

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
    """Groups to describe; the receiver must be the coordinator of each."""

    groups: tuple[str, ...] = ()
    include_authorized_operations: bool = False


@dataclass(frozen=True, slots=True)
class MemberDescription:
    """A member, as its coordinator knows it. `client_host` is the address of its connection."""

    member_id: str
    instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    metadata: bytes = b""
    assignment: bytes = b""


@dataclass(frozen=True, slots=True)
class DescribedGroup:
    """A group's current state. `state` is one of Kafka's names: Empty, PreparingRebalance,
    CompletingRebalance, Stable, or Dead for a group that does not exist. `authorized_operations`
    are Kafka's bits for what the client may do."""

    group_id: str
    error: int = 0
    state: str = ""
    protocol_type: str = ""
    protocol: str = ""
    generation: int = NO_GENERATION
    members: tuple[MemberDescription, ...] = ()
    authorized_operations: int = NO_OPERATIONS


@dataclass(frozen=True, slots=True)
class DescribeGroupsResponse:
    """A description for each group of the request, in its order."""

    groups: tuple[DescribedGroup, ...] = ()


@dataclass(frozen=True, slots=True)
class ListGroupsRequest(Request["ListGroupsResponse"]):
    """Requests the groups that the broker coordinates; only those in `states` and of `types`,
    unless these are empty. Upper and lower case do not matter."""

    states: tuple[str, ...] = ()
    types: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ListedGroup:
    """A group that the answering broker coordinates. `type` is that of Kafka's group protocols."""

    group_id: str
    protocol_type: str = ""
    state: str = ""
    type: str = CLASSIC


@dataclass(frozen=True, slots=True)
class ListGroupsResponse:
    """With COORDINATOR_LOAD_IN_PROGRESS the broker does not know some of its groups yet."""

    error: int = 0
    groups: tuple[ListedGroup, ...] = ()


@dataclass(frozen=True, slots=True)
class DeleteGroupsRequest(Request["DeleteGroupsResponse"]):
    """Groups to delete, with their committed offsets; they must have no members."""

    groups: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DeletedGroup:
    """The result for one group."""

    group_id: str
    error: int = 0


@dataclass(frozen=True, slots=True)
class DeleteGroupsResponse:
    """A result for each group of the request, in its order."""

    groups: tuple[DeletedGroup, ...] = ()
