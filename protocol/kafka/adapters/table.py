"""All adapters by the key of their api, and ApiVersions, which lists them."""

from collections.abc import Mapping
from typing import Any, Final

from minibroker.protocol.constants import FEATURE_LEVEL_MIN, ApiKey
from minibroker.protocol.kafka import apis
from minibroker.protocol.kafka.adapters import (
    acls,
    cluster,
    configs,
    consumer_groups,
    features,
    groups,
    log_dirs,
    reassignments,
    records,
    transactions,
)
from minibroker.protocol.kafka.adapters.adapter import Adapter
from minibroker.protocol.kafka.schema import Version
from minibroker.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from minibroker.protocol.messages.features import (
    FEATURES,
    MINIBROKER_VERSION,
)


def _api_versions_request(asked: Any, version: Version) -> ApiVersionsRequest:
    return ApiVersionsRequest(asked.client_software_name, asked.client_software_version)


_LEVEL_0_SINCE: Final[Version] = 4  # before, no feature may begin with 0


def _api_versions_response(answer: ApiVersionsResponse, version: Version) -> Any:
    """Convert the answer, with the apis of this wire in place of those of the other, and with the
    features that all brokers have. The features' epoch grows with the level of the one that can be
    changed."""
    supported = apis.API_VERSIONS.response.of("supported_features").make
    finalized = apis.API_VERSIONS.response.of("finalized_features").make
    level = answer.feature_level
    levels = MINIBROKER_VERSION, answer.feature_level_min, answer.feature_level_max
    row = apis.API_VERSIONS.response.of("api_keys").make
    rows = [row(key, one.api.first, one.api.last) for key, one in sorted(ADAPTERS.items())]
    return apis.API_VERSIONS.response.make(
        answer.error,
        rows,
        supported_features=[
            *(_SUPPORTED if version >= _LEVEL_0_SINCE else []),
            supported(*levels),
        ],
        finalized_features_epoch=level - FEATURE_LEVEL_MIN,
        finalized_features=[*_FINALIZED, finalized(MINIBROKER_VERSION, level, level)],
    )


_SUPPORTED: Final = [
    apis.API_VERSIONS.response.of("supported_features").make(name, 0, level)
    for name, level in FEATURES.items()
]
_FINALIZED: Final = [
    apis.API_VERSIONS.response.of("finalized_features").make(name, level, level)
    for name, level in FEATURES.items()
]
_API_VERSIONS = Adapter(
    apis.API_VERSIONS, ApiKey.API_VERSIONS, _api_versions_request, _api_versions_response
)
ADAPTERS: Final[Mapping[int, Adapter]] = {
    one.api.key: one
    for one in (
        *records.ADAPTERS,
        *cluster.ADAPTERS,
        *groups.ADAPTERS,
        *consumer_groups.ADAPTERS,
        *configs.ADAPTERS,
        *acls.ADAPTERS,
        *log_dirs.ADAPTERS,
        *reassignments.ADAPTERS,
        *features.ADAPTERS,
        *transactions.ADAPTERS,
        _API_VERSIONS,
    )
}
