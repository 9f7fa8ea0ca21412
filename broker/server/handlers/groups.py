"""The group apis: where a group is kept, and its members."""

import logging

from minibroker.broker.groups.placement import GROUP_ID_BYTES_MAX
from minibroker.broker.metadata.model import BrokerImage
from minibroker.broker.replication.purgatory import Parked
from minibroker.broker.replication.replicas import IMAGE
from minibroker.broker.server.services import HangUp, Services
from minibroker.protocol.constants import OFFSETS_TOPIC, ErrorCode
from minibroker.protocol.messages import group_offsets as offsets
from minibroker.protocol.messages import groups
from minibroker.protocol.messages.topics import CreateTopicsRequest, NewTopic

AWAY = ErrorCode.COORDINATOR_NOT_AVAILABLE
CREATION_WAIT_S = 5.0
MADE = (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS, ErrorCode.KAFKA_STORAGE_ERROR)


def find_coordinator(
    services: Services, request: groups.FindCoordinatorRequest, now: float
) -> groups.FindCoordinatorResponse | Parked[groups.FindCoordinatorResponse]:
    """Who keeps a group; the topic that groups are kept in is made when it is first asked for.

    COORDINATOR_NOT_AVAILABLE while nobody keeps it, and as long as fewer brokers live than the
    topic has replicas. Raises `HangUp` until a controller has told the cluster.
    """
    if not 0 < len(request.group_id.encode()) <= GROUP_ID_BYTES_MAX:
        what = f"a group id has 1 to {GROUP_ID_BYTES_MAX} bytes"
        return groups.FindCoordinatorResponse(ErrorCode.INVALID_GROUP_ID, what)
    if not services.replicas.is_ready:
        raise HangUp("this broker is still waiting for its controller", logging.INFO)
    if services.groups.has_topic:
        return _found(services.groups.keeper(request.group_id))
    job = services.controller.forward(CreateTopicsRequest((NewTopic(OFFSETS_TOPIC),)))

    def attempt(now: float) -> groups.FindCoordinatorResponse | None:
        keeper = services.groups.keeper(request.group_id)
        if keeper is not None:
            return _found(keeper)
        if job.result is None or job.result.topics[0].error in MADE:
            return None
        return groups.FindCoordinatorResponse(AWAY, job.result.topics[0].error_message)

    def expire() -> groups.FindCoordinatorResponse:
        return _found(services.groups.keeper(request.group_id))

    return Parked((job, IMAGE), lambda: now + CREATION_WAIT_S, attempt, expire)


def _found(keeper: BrokerImage | None) -> groups.FindCoordinatorResponse:
    if keeper is None:
        return groups.FindCoordinatorResponse(AWAY, "its coordinator is not known yet")
    return groups.FindCoordinatorResponse(
        node_id=keeper.node_id, host=keeper.endpoint.host, port=keeper.endpoint.port
    )


def handle(services: Services, request: object, now: float) -> object:
    """An answer that says so."""
    match request:
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
