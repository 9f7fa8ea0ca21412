"""UPDATE_FEATURES as a plan, and which brokers the finalized feature level lets in.

The cluster has one level of minibroker.version. A broker that does not support it does not start,
and is not admitted if it registered before the level was finalized. A level is finalized only if
every registered broker supports it, and is never lowered: formats of that level may be in use.
"""

from collections.abc import Mapping
from typing import Final

from minibroker.broker.controller.plans import Draft, Plan
from minibroker.broker.controller.state import BrokerRegistration, FeatureLevels, State
from minibroker.broker.metadata.store import StoreError
from minibroker.broker.turns import AT_ONCE, Turns, at_once
from minibroker.protocol.constants import ErrorCode
from minibroker.protocol.messages.features import (
    FEATURES,
    MINIBROKER_VERSION,
    FeatureUpdate,
    FeatureUpgrade,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)

UPGRADE_TYPES: Final = frozenset(FeatureUpgrade)


def check_level(level: int, levels: FeatureLevels) -> None:
    """Raise `StoreError` if a broker does not support the cluster's feature level."""
    if level not in levels:
        other = "newer" if level > levels.last else "older"
        raise StoreError(
            f"the cluster has {MINIBROKER_VERSION} {level}, and this minibroker supports {levels}:"
            f" use the {other} version of minibroker that the other brokers have"
        )


def supporting(
    registered: Mapping[int, BrokerRegistration], level: int
) -> Mapping[int, BrokerRegistration]:
    """Return the registered brokers that support a feature level."""
    if all(level in broker.levels for broker in registered.values()):
        return registered
    return {node: broker for node, broker in registered.items() if level in broker.levels}


def plan_update(
    state: State, request: UpdateFeaturesRequest
) -> Turns[Plan[UpdateFeaturesResponse]]:
    """Plan to finalize these levels: all of them, or none."""
    level = state.feature_level
    for some in at_once(request.updates):
        for wanted in some:
            code, reason = _refusal(state, wanted)
            if code != ErrorCode.NONE:
                return Plan(UpdateFeaturesResponse(code, reason), state)
            if wanted.feature == MINIBROKER_VERSION:
                level = max(level, wanted.level)
        if len(some) == AT_ONCE:
            yield
    answer = UpdateFeaturesResponse(features=tuple([one.feature for one in request.updates]))
    draft = Draft(state)
    if level != state.feature_level and not request.validate_only:
        draft.set_feature_level(level)
    return draft.plan(answer)


def _refusal(state: State, wanted: FeatureUpdate) -> tuple[ErrorCode, str]:
    name = wanted.feature
    level = state.feature_level if name == MINIBROKER_VERSION else FEATURES.get(name)
    if level is None:
        known = ", ".join([*FEATURES, MINIBROKER_VERSION])
        what = f"there is no feature {name[:99]!r} here; there are {known}"
        return ErrorCode.INVALID_UPDATE_VERSION, what
    if wanted.upgrade_type not in UPGRADE_TYPES:
        return ErrorCode.INVALID_UPDATE_VERSION, f"there is no upgrade type {wanted.upgrade_type}"
    if wanted.level == level:
        return ErrorCode.NONE, ""
    is_upgrade = wanted.upgrade_type == FeatureUpgrade.UPGRADE
    if 0 <= wanted.level < level and not is_upgrade:
        what = f"{name} has level {level} in this version of the brokers"
        if name == MINIBROKER_VERSION:
            what = f"{name} has level {level}, whose formats may be in use: it is never lowered"
        return ErrorCode.FEATURE_UPDATE_FAILED, what
    if name == MINIBROKER_VERSION and wanted.level > level and is_upgrade:
        return _refusal_of_brokers(state, wanted.level)
    what = f"{name} has level {level}, and cannot be upgraded to {wanted.level}"
    return ErrorCode.INVALID_UPDATE_VERSION, what


def _refusal_of_brokers(state: State, level: int) -> tuple[ErrorCode, str]:
    """Name the first registered broker that does not support a level."""
    for node, broker in sorted(state.brokers.items()):
        if level not in broker.levels:
            what = (
                f"broker {node} supports {MINIBROKER_VERSION} {broker.levels}, not {level}: restart"
                " it with a version of minibroker that does"
            )
            return ErrorCode.INVALID_UPDATE_VERSION, what
    return ErrorCode.NONE, ""
