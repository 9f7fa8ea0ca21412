"""ELECT_LEADERS, for the controller, and HAND_OVER, which the controller sends to leaders."""

from minibroker.broker.replication.purgatory import Parked
from minibroker.broker.server.services import Services
from minibroker.protocol.constants import NO_NODE, ErrorCode
from minibroker.protocol.messages.leaders import (
    PREFERRED,
    UNCLEAN,
    ElectLeadersRequest,
    ElectLeadersResponse,
    HandOverRequest,
    HandOverResponse,
)


def elect(
    services: Services, request: ElectLeadersRequest, now: float
) -> ElectLeadersResponse | Parked[ElectLeadersResponse]:
    """Elect leaders, and answer when the brokers know them; NOT_CONTROLLER at other brokers.

    An unclean election names its partitions: of all at once, nobody can say what will be lost.
    """
    what = ""
    if request.election_type not in {PREFERRED, UNCLEAN}:
        what = f"election type {request.election_type}: 0 elects preferred leaders, 1 uncleanly"
    elif request.election_type == UNCLEAN and request.partitions is None:
        what = "an unclean election must name its partitions"
    elif request.election_type == PREFERRED and request.leader != NO_NODE:
        what = "only an unclean election (type 1) may name the leader"
    if what:
        return ElectLeadersResponse(ErrorCode.INVALID_REQUEST, what)

    def expire() -> ElectLeadersResponse:
        return ElectLeadersResponse(ErrorCode.REQUEST_TIMED_OUT, services.why_late())

    return services.run_by_controller(request, now, request.timeout_ms, expire)


def hand_over(services: Services, request: HandOverRequest, now: float) -> HandOverResponse:
    """Prepare to hand leaderships over to other replicas."""
    return services.replicas.hand_over(request, now)
