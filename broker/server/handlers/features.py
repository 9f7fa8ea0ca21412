"""UPDATE_FEATURES: the levels of features are those of this version of the brokers."""

from typing import Final

from minibroker.broker.server.services import Services
from minibroker.broker.turns import AT_ONCE, Turns, at_once
from minibroker.protocol.constants import ErrorCode
from minibroker.protocol.messages.features import (
    FEATURES,
    FeatureUpdate,
    FeatureUpgrade,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)

UPGRADE_TYPES: Final = frozenset(FeatureUpgrade)


def update(
    services: Services, request: UpdateFeaturesRequest, now: float
) -> Turns[UpdateFeaturesResponse]:
    """Refuse every level but that which the feature has."""
    for some in at_once(request.updates):
        for wanted in some:
            refusal = _refusal(wanted)
            if refusal is not None:
                return refusal
        if len(some) == AT_ONCE:
            yield
    return UpdateFeaturesResponse(features=tuple([each.feature for each in request.updates]))


def _refusal(wanted: FeatureUpdate) -> UpdateFeaturesResponse | None:
    level = FEATURES.get(wanted.feature)
    code = ErrorCode.INVALID_UPDATE_VERSION
    if level is None:
        known = ", ".join(FEATURES)
        what = f"there is no feature {wanted.feature[:99]!r} here; there are {known}"
    elif wanted.upgrade_type not in UPGRADE_TYPES:
        what = f"there is no upgrade type {wanted.upgrade_type}"
    elif wanted.level == level:
        return None
    elif 0 <= wanted.level < level and wanted.upgrade_type != FeatureUpgrade.UPGRADE:
        code = ErrorCode.FEATURE_UPDATE_FAILED
        what = f"{wanted.feature} has level {level} in this version of the brokers"
    else:
        what = f"{wanted.feature} has level {level}, and cannot be upgraded to {wanted.level}"
    return UpdateFeaturesResponse(code, what)
