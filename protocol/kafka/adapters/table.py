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
    records,
    transactions,
)
from minibroker.protocol.kafka.adapters.adapter import Adapter
from minibroker.protocol.kafka.schema import Version
from minibroker.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from minibroker.protocol.messages.transactions import SECOND_PROTOCOL


def _api_versions_request(asked: Any, version: Version) -> ApiVersionsRequest:
    return ApiVersionsRequest(asked.client_software_name, asked.client_software_version)


def _api_versions_response(answer: ApiVersionsResponse, version: Version) -> Any:
    """Convert the answer, with the apis of this wire in place of those of the other."""
    row = apis.API_VERSIONS.response.of("api_keys").make
    rows = [row(key, one.api.first, one.api.last) for key, one in sorted(ADAPTERS.items())]
    return apis.API_VERSIONS.response.make(
        answer.error, rows, 0, _SUPPORTED, FEATURES_EPOCH, _FINALIZED
    )


# The features of Kafka that clients look for. transaction.version 2 is KIP-890: the clients' second
# protocol of transactions. They are the same in each broker of this version, so their epoch is 0.
FEATURES: Final = {"transaction.version": SECOND_PROTOCOL}
FEATURES_EPOCH: Final = 0
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
        *transactions.ADAPTERS,
        _API_VERSIONS,
    )
}
