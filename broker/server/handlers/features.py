"""UPDATE_FEATURES, for the controller; other brokers answer NOT_CONTROLLER."""

from minibroker.broker.replication.purgatory import Parked
from minibroker.broker.server.services import Services
from minibroker.protocol.constants import ErrorCode
from minibroker.protocol.messages.features import UpdateFeaturesRequest, UpdateFeaturesResponse


def update(
    services: Services, request: UpdateFeaturesRequest, now: float
) -> Parked[UpdateFeaturesResponse]:
    """Finalize levels of features, and answer when the brokers know of them."""

    def expire() -> UpdateFeaturesResponse:
        return UpdateFeaturesResponse(ErrorCode.REQUEST_TIMED_OUT, services.why_late())

    return services.run_by_controller(request, now, request.timeout_ms, expire)
