"""ALTER_PARTITION_REASSIGNMENTS and LIST_PARTITION_REASSIGNMENTS, for the controller; other brokers
answer NOT_CONTROLLER."""

from minibroker.broker.replication.purgatory import Parked
from minibroker.broker.server.services import Services
from minibroker.protocol.constants import ErrorCode
from minibroker.protocol.messages.reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)


def alter(
    services: Services, request: AlterPartitionReassignmentsRequest, now: float
) -> Parked[AlterPartitionReassignmentsResponse]:
    """Begin, replace and cancel reassignments, and answer when the brokers know of them."""

    def expire() -> AlterPartitionReassignmentsResponse:
        code = ErrorCode.REQUEST_TIMED_OUT
        return AlterPartitionReassignmentsResponse(code, services.why_late())

    return services.run_by_controller(request, now, request.timeout_ms, expire)


def list_ongoing(
    services: Services, request: ListPartitionReassignmentsRequest, now: float
) -> Parked[ListPartitionReassignmentsResponse]:
    """List the reassignments under way."""

    def expire() -> ListPartitionReassignmentsResponse:
        return ListPartitionReassignmentsResponse(ErrorCode.REQUEST_TIMED_OUT, services.why_late())

    return services.run_by_controller(request, now, request.timeout_ms, expire)
