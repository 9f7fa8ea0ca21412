"""API_VERSIONS: the first request on a connection; lists the apis that the broker serves."""

from dataclasses import dataclass

from minibroker.protocol.constants import FEATURE_LEVEL_MAX, FEATURE_LEVEL_MIN
from minibroker.protocol.messages import Request


@dataclass(frozen=True, slots=True)
class ApiVersionsRequest(Request["ApiVersionsResponse"]):
    """Asks which apis are served. Answered with UNSUPPORTED_VERSION in any unknown version."""

    client_software_name: str = ""
    client_software_version: str = ""


@dataclass(frozen=True, slots=True)
class ApiVersion:
    """One api that is served, with both ends of its versions included."""

    api_key: int
    version_min: int = 0
    version_max: int = 0


@dataclass(frozen=True, slots=True)
class ApiVersionsResponse:
    """The apis in order of their keys. `cluster_id` is "" until a controller has told the broker
    which cluster it is in.

    `feature_level` is the level of minibroker.version that is finalized in the cluster, as far as
    the broker knows, and the others are the first and the last level that the broker supports.
    """

    error: int = 0
    apis: tuple[ApiVersion, ...] = ()
    cluster_id: str = ""
    feature_level: int = FEATURE_LEVEL_MIN
    feature_level_min: int = FEATURE_LEVEL_MIN
    feature_level_max: int = FEATURE_LEVEL_MAX
