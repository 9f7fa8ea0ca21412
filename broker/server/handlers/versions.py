"""API_VERSIONS: the apis that this broker serves, with their versions."""

from minibroker.broker.server.services import Services
from minibroker.protocol.messages import APIS
from minibroker.protocol.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
)

SERVED = tuple(
    ApiVersion(key, api.version_min, api.version_max) for key, api in sorted(APIS.items())
)


def handle(services: Services, request: ApiVersionsRequest, now: float) -> ApiVersionsResponse:
    """Return the apis and versions, the same for every client, and the id of the cluster: another
    one may have taken the address since a client first connected. And its feature level."""
    image = services.image
    return ApiVersionsResponse(0, SERVED, image.cluster_id, image.feature_level)
