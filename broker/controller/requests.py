"""The requests that a controller serves, and how it refuses one as a whole."""

from collections.abc import Iterable
from typing import Any, TypeAlias

from minibroker.protocol.constants import ErrorCode
from minibroker.protocol.messages.brokers import (
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
)
from minibroker.protocol.messages.configs import AlterConfigsRequest, AlterConfigsResponse
from minibroker.protocol.messages.control import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    ControlledShutdownRequest,
    ControlledShutdownResponse,
)
from minibroker.protocol.messages.features import (
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from minibroker.protocol.messages.leaders import ElectLeadersRequest, ElectLeadersResponse
from minibroker.protocol.messages.reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from minibroker.protocol.messages.topics import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    TopicResult,
)

TopicsRequest: TypeAlias = (
    CreateTopicsRequest | DeleteTopicsRequest | CreatePartitionsRequest | AlterConfigsRequest
)
TopicsResponse: TypeAlias = (
    CreateTopicsResponse | DeleteTopicsResponse | CreatePartitionsResponse | AlterConfigsResponse
)
Request: TypeAlias = (
    TopicsRequest
    | AlterPartitionRequest
    | ControlledShutdownRequest
    | ElectLeadersRequest
    | UnregisterBrokerRequest
    | AlterPartitionReassignmentsRequest
    | ListPartitionReassignmentsRequest
    | UpdateFeaturesRequest
)
WholeResponse: TypeAlias = (
    AlterPartitionResponse
    | ControlledShutdownResponse
    | ElectLeadersResponse
    | UnregisterBrokerResponse
    | AlterPartitionReassignmentsResponse
    | ListPartitionReassignmentsResponse
    | UpdateFeaturesResponse
)
Response: TypeAlias = TopicsResponse | WholeResponse


def refuse(request: Request, code: ErrorCode, message: str) -> Response:
    """Return the response to a request that is refused as a whole."""
    match request:
        case CreateTopicsRequest(topics=new):
            return CreateTopicsResponse(_refused((topic.name for topic in new), code, message))
        case DeleteTopicsRequest():
            return request.refused(code, message)
        case CreatePartitionsRequest(topics=grown):
            return CreatePartitionsResponse(
                _refused((topic.name for topic in grown), code, message)
            )
        case AlterConfigsRequest(topics=changed):
            return AlterConfigsResponse(_refused((topic.name for topic in changed), code, message))
        case AlterPartitionRequest():
            return AlterPartitionResponse(code)
        case ControlledShutdownRequest():
            return ControlledShutdownResponse(code)
        case ElectLeadersRequest():
            return ElectLeadersResponse(code, message)
        case UnregisterBrokerRequest():
            return UnregisterBrokerResponse(code, message)
        case AlterPartitionReassignmentsRequest():
            return AlterPartitionReassignmentsResponse(code, message)
        case ListPartitionReassignmentsRequest():
            return ListPartitionReassignmentsResponse(code, message)
        case UpdateFeaturesRequest():
            return UpdateFeaturesResponse(code, message)


def is_refused(response: Any, code: ErrorCode) -> bool:
    """Whether a response refuses its whole request with this code, as `refuse` makes it."""
    if isinstance(response, WholeResponse):
        return response.error == code
    return bool(response.topics) and all(topic.error == code for topic in response.topics)


def _refused(names: Iterable[str], code: ErrorCode, message: str) -> tuple[TopicResult, ...]:
    return tuple(TopicResult(name, code, message) for name in names)
