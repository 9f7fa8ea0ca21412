"""All adapters by the key of their api, and ApiVersions, which lists them."""

from collections.abc import Mapping
from typing import Any, Final

from minibroker.protocol.constants import ApiKey
from minibroker.protocol.kafka import apis
from minibroker.protocol.kafka.adapters import (
    acls,
    cluster,
    configs,
    consumer_groups,
    groups,
    log_dirs,
    records,
)
from minibroker.protocol.kafka.adapters.adapter import Adapter
from minibroker.protocol.kafka.schema import Version
from minibroker.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse


def _api_versions_request(asked: Any, version: Version) -> ApiVersionsRequest:
    return ApiVersionsRequest(asked.client_software_name, asked.client_software_version)


# group.version 1 is the consumer protocol of groups (KIP-848). The others of Kafka are about its
# controllers, and about transactions and share groups.
_GROUP_VERSION: Final = "group.version"
_LEVEL_0_SINCE: Final[Version] = 4  # before, no feature may begin with 0
_FEATURES_EPOCH: Final = 0  # of the first features; they stay the same


def _api_versions_response(answer: ApiVersionsResponse, version: Version) -> Any:
    """Convert the answer, with the apis of this wire in place of those of the other, and with the
    features that all brokers have."""
    row = apis.API_VERSIONS.response.of("api_keys").make
    rows = [row(key, one.api.first, one.api.last) for key, one in sorted(ADAPTERS.items())]
    return apis.API_VERSIONS.response.make(
        answer.error,
        rows,
        supported_features=[(_GROUP_VERSION, 0, 1)] if version >= _LEVEL_0_SINCE else [],
        finalized_features_epoch=_FEATURES_EPOCH,
        finalized_features=[(_GROUP_VERSION, 1, 1)],
    )


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
        _API_VERSIONS,
    )
}
