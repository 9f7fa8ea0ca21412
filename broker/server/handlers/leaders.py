"""ELECT_LEADERS, for the controller, and HAND_OVER, which the controller sends to leaders."""

from minibroker.broker.replication.purgatory import Parked
from minibroker.broker.server.services import Services
from minibroker.protocol.constants import ErrorCode
from minibroker.protocol.messages.leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    HandOverRequest,
    HandOverResponse,
)

LATE = "not done in time; it may still happen"


def elect(
    services: Services, request: ElectLeadersRequest, now: float
) -> Parked[ElectLeadersResponse]:
    """Answered when the leaders were elected and the brokers know; NOT_CONTROLLER elsewhere."""
    job = services.controller.submit(request)
    return Parked(
        (job,),
        lambda: now + max(0, request.timeout_ms) / 1000,
        lambda now: job.result,
        lambda: ElectLeadersResponse(ErrorCode.REQUEST_TIMED_OUT, LATE),
    )


def hand_over(services: Services, request: HandOverRequest, now: float) -> HandOverResponse:
    """Prepare that other replicas lead."""
    return services.replicas.hand_over(request, now)
