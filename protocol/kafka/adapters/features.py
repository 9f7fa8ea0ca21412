"""Features: UPDATE_FEATURES."""

from typing import Any, Final

from minibroker.protocol.constants import ApiKey
from minibroker.protocol.kafka import admin_apis
from minibroker.protocol.kafka.adapters.adapter import Adapter, Array, Converted, cut_text
from minibroker.protocol.kafka.schema import Version
from minibroker.protocol.messages.features import (
    FeatureUpdate,
    FeatureUpgrade,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)

_TYPES_SINCE: Final[Version] = 1  # before, a request says whether a downgrade is allowed


def _request(asked: Any, version: Version) -> UpdateFeaturesRequest:
    def upgrade_type(one: Any) -> int:
        if version >= _TYPES_SINCE:
            return int(one.upgrade_type)
        return FeatureUpgrade.SAFE_DOWNGRADE if one.allow_downgrade else FeatureUpgrade.UPGRADE

    updates = tuple(
        [
            FeatureUpdate(one.feature, one.max_version_level, upgrade_type(one))
            for one in asked.feature_updates
        ]
    )
    return UpdateFeaturesRequest(updates, asked.timeout_ms, asked.validate_only)


def _response(answer: UpdateFeaturesResponse, version: Version) -> Any:
    shape = admin_apis.UPDATE_FEATURES.response
    make = shape.of("results").make
    results = Converted(lambda feature: make(feature, 0, None), answer.features)
    return shape.make(0, answer.error, cut_text(answer.error_message), results)


ADAPTERS: Final = (
    Adapter(
        admin_apis.UPDATE_FEATURES,
        ApiKey.UPDATE_FEATURES,
        _request,
        _response,
        Array("feature_updates", "updates"),
    ),
)
