"""Requests and answers as frozen dataclasses, one file a subject; `API` says which pair is which.

The wires only translate bytes to and from these. Rules for a field: it has a default unless no
request makes sense without it, new ones are added at the end only, none is ever removed or given
another meaning, so that an older peer reads a newer message (docs/wire.md, "Evolution").
Offsets count records; times are milliseconds; sizes are bytes; `error` is an `ErrorCode`.
"""

from typing import Final, NamedTuple

from minibroker.protocol.constants import ApiKey
from minibroker.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from minibroker.protocol.messages.brokers import (
    DescribeBrokerRequest,
    DescribeBrokerResponse,
)
from minibroker.protocol.messages.configs import (
    AlterConfigsRequest,
    AlterConfigsResponse,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
)
from minibroker.protocol.messages.control import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    ControlledShutdownRequest,
    ControlledShutdownResponse,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    StopReplicaRequest,
    StopReplicaResponse,
    UpdateMetadataRequest,
    UpdateMetadataResponse,
)
from minibroker.protocol.messages.fetch import FetchRequest, FetchResponse
from minibroker.protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from minibroker.protocol.messages.groups import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    ListGroupsRequest,
    ListGroupsResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from minibroker.protocol.messages.metadata import MetadataRequest, MetadataResponse
from minibroker.protocol.messages.offsets import (
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetsForLeaderEpochRequest,
    OffsetsForLeaderEpochResponse,
)
from minibroker.protocol.messages.produce import ProduceRequest, ProduceResponse
from minibroker.protocol.messages.producer_id import InitProducerIdRequest, InitProducerIdResponse
from minibroker.protocol.messages.replicas import (
    DescribeReplicasRequest,
    DescribeReplicasResponse,
)
from minibroker.protocol.messages.topics import (
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)


class Api(NamedTuple):
    """One api: its message types and the versions of it that this code speaks."""

    request: type
    response: type
    version_min: int
    version_max: int


APIS: Final[dict[ApiKey, Api]] = {
    ApiKey.PRODUCE: Api(ProduceRequest, ProduceResponse, 0, 0),
    ApiKey.FETCH: Api(FetchRequest, FetchResponse, 0, 0),
    ApiKey.LIST_OFFSETS: Api(ListOffsetsRequest, ListOffsetsResponse, 0, 0),
    ApiKey.METADATA: Api(MetadataRequest, MetadataResponse, 0, 0),
    ApiKey.LEADER_AND_ISR: Api(LeaderAndIsrRequest, LeaderAndIsrResponse, 0, 0),
    ApiKey.STOP_REPLICA: Api(StopReplicaRequest, StopReplicaResponse, 0, 0),
    ApiKey.UPDATE_METADATA: Api(UpdateMetadataRequest, UpdateMetadataResponse, 0, 0),
    ApiKey.CONTROLLED_SHUTDOWN: Api(ControlledShutdownRequest, ControlledShutdownResponse, 0, 0),
    ApiKey.OFFSET_COMMIT: Api(OffsetCommitRequest, OffsetCommitResponse, 0, 0),
    ApiKey.OFFSET_FETCH: Api(OffsetFetchRequest, OffsetFetchResponse, 0, 0),
    ApiKey.FIND_COORDINATOR: Api(FindCoordinatorRequest, FindCoordinatorResponse, 0, 0),
    ApiKey.JOIN_GROUP: Api(JoinGroupRequest, JoinGroupResponse, 0, 0),
    ApiKey.HEARTBEAT: Api(HeartbeatRequest, HeartbeatResponse, 0, 0),
    ApiKey.LEAVE_GROUP: Api(LeaveGroupRequest, LeaveGroupResponse, 0, 0),
    ApiKey.SYNC_GROUP: Api(SyncGroupRequest, SyncGroupResponse, 0, 0),
    ApiKey.DESCRIBE_GROUPS: Api(DescribeGroupsRequest, DescribeGroupsResponse, 0, 0),
    ApiKey.LIST_GROUPS: Api(ListGroupsRequest, ListGroupsResponse, 0, 0),
    ApiKey.API_VERSIONS: Api(ApiVersionsRequest, ApiVersionsResponse, 0, 0),
    ApiKey.CREATE_TOPICS: Api(CreateTopicsRequest, CreateTopicsResponse, 0, 0),
    ApiKey.DELETE_TOPICS: Api(DeleteTopicsRequest, DeleteTopicsResponse, 0, 0),
    ApiKey.INIT_PRODUCER_ID: Api(InitProducerIdRequest, InitProducerIdResponse, 0, 0),
    ApiKey.OFFSETS_FOR_LEADER_EPOCH: Api(
        OffsetsForLeaderEpochRequest, OffsetsForLeaderEpochResponse, 0, 0
    ),
    ApiKey.DESCRIBE_CONFIGS: Api(DescribeConfigsRequest, DescribeConfigsResponse, 0, 0),
    ApiKey.DELETE_GROUPS: Api(DeleteGroupsRequest, DeleteGroupsResponse, 0, 0),
    ApiKey.ALTER_CONFIGS: Api(AlterConfigsRequest, AlterConfigsResponse, 0, 0),
    ApiKey.OFFSET_DELETE: Api(OffsetDeleteRequest, OffsetDeleteResponse, 0, 0),
    ApiKey.ALTER_PARTITION: Api(AlterPartitionRequest, AlterPartitionResponse, 0, 0),
    ApiKey.DESCRIBE_REPLICAS: Api(DescribeReplicasRequest, DescribeReplicasResponse, 0, 0),
    ApiKey.DESCRIBE_BROKER: Api(DescribeBrokerRequest, DescribeBrokerResponse, 0, 0),
}
assert set(APIS) == set(ApiKey), "every api key has its messages"
