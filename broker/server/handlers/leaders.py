"""ELECT_LEADERS, for the controller, and HAND_OVER, which the controller sends to leaders."""

from minibroker.broker.replication.purgatory import Parked
from minibroker.broker.server.services import Services
from minibroker.protocol.constants import ErrorCode
from minibroker.protocol.messages.leaders import (
    PREFERRED,
    ElectLeadersRequest,
    ElectLeadersResponse,
    HandOverRequest,
    HandOverResponse,
)


def elect(
    services: Services, request: ElectLeadersRequest, now: float
) -> ElectLeadersResponse | Parked[ElectLeadersResponse]:
    """Elect leaders, and answer when the brokers know them; NOT_CONTROLLER at other brokers."""
    if request.election_type != PREFERRED:
        what = "only preferred leaders are elected by request; see unclean.leader.election.enable"
        return ElectLeadersResponse(ErrorCode.INVALID_REQUEST, what)

    def expire() -> ElectLeadersResponse:
        return ElectLeadersResponse(ErrorCode.REQUEST_TIMED_OUT, services.why_late())

    return services.run_by_controller(request, now, request.timeout_ms, expire)


def hand_over(services: Services, request: HandOverRequest, now: float) -> HandOverResponse:
    """Prepare to hand leaderships over to other replicas."""
    return services.replicas.hand_over(request, now)
