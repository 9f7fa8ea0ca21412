"""The group apis, while no coordinator is here: all say COORDINATOR_NOT_AVAILABLE."""

from minibroker.broker.server.services import Services
from minibroker.protocol.constants import ErrorCode
from minibroker.protocol.messages import group_offsets as offsets
from minibroker.protocol.messages import groups

AWAY = ErrorCode.COORDINATOR_NOT_AVAILABLE


def handle(services: Services, request: object, now: float) -> object:
    """An answer that says so."""
    match request:
        case groups.FindCoordinatorRequest():
            return groups.FindCoordinatorResponse(AWAY)
        case groups.JoinGroupRequest():
            return groups.JoinGroupResponse(AWAY)
        case groups.SyncGroupRequest():
            return groups.SyncGroupResponse(AWAY)
        case groups.HeartbeatRequest():
            return groups.HeartbeatResponse(AWAY)
        case groups.LeaveGroupRequest():
            return groups.LeaveGroupResponse(AWAY)
        case groups.DescribeGroupsRequest(names):
            return groups.DescribeGroupsResponse(
                tuple(groups.GroupDescription(name, AWAY) for name in names)
            )
        case groups.ListGroupsRequest():
            return groups.ListGroupsResponse(AWAY)
        case groups.DeleteGroupsRequest(names):
            return groups.DeleteGroupsResponse(
                tuple(groups.DeletedGroup(name, AWAY) for name in names)
            )
        case offsets.OffsetFetchRequest():
            return offsets.OffsetFetchResponse(AWAY)
        case offsets.OffsetDeleteRequest():
            return offsets.OffsetDeleteResponse(AWAY)
        case offsets.OffsetCommitRequest(partitions=asked):
            return offsets.OffsetCommitResponse(
                tuple(offsets.PartitionCommitted(p.topic, p.partition, AWAY) for p in asked)
            )
    raise TypeError(request)
