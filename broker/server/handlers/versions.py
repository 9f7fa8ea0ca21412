"""API_VERSIONS: which apis are served here, in which versions."""

from minibroker.broker.server.services import Services
from minibroker.protocol.constants import ErrorCode
from minibroker.protocol.messages import APIS
from minibroker.protocol.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
)

SERVED = tuple(
    ApiVersion(key, api.version_min, api.version_max) for key, api in sorted(APIS.items())
)

# For a client that asked in a version from the future: it learns which one to ask in.
UNSUPPORTED = ApiVersionsResponse(ErrorCode.UNSUPPORTED_VERSION, SERVED)


def handle(services: Services, request: ApiVersionsRequest, now: float) -> ApiVersionsResponse:
    """The same for everybody."""
    return ApiVersionsResponse(0, SERVED)
