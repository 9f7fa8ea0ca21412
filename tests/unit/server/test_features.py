"""UPDATE_FEATURES, through its handler."""

import pytest

from minibroker.broker.server.handlers import features
from minibroker.broker.turns import without_pause
from minibroker.protocol.constants import ErrorCode
from minibroker.protocol.messages.features import (
    FeatureUpdate,
    FeatureUpgrade,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from tests.unit.node import Node


def updated(*updates: FeatureUpdate) -> UpdateFeaturesResponse:
    """The answer to these updates."""
    return without_pause(features.update(Node().services, UpdateFeaturesRequest(updates), 0.0))


def test_the_levels_that_are_there_can_be_had() -> None:
    """Whichever change is allowed; nothing may be asked for, too."""
    told = updated(
        FeatureUpdate("group.version", 1),
        FeatureUpdate("transaction.version", 2, FeatureUpgrade.SAFE_DOWNGRADE),
    )
    assert told == UpdateFeaturesResponse(features=("group.version", "transaction.version"))
    assert updated() == UpdateFeaturesResponse()


@pytest.mark.parametrize(
    ("wanted", "code", "says"),
    [
        (FeatureUpdate("kraft.version", 1), ErrorCode.INVALID_UPDATE_VERSION, "there is no fea"),
        (FeatureUpdate("group.version", 2), ErrorCode.INVALID_UPDATE_VERSION, "has level 1"),
        (FeatureUpdate("group.version", 0), ErrorCode.INVALID_UPDATE_VERSION, "has level 1"),
        (FeatureUpdate("group.version", -1, 2), ErrorCode.INVALID_UPDATE_VERSION, "has level 1"),
        (FeatureUpdate("group.version", 1, 9), ErrorCode.INVALID_UPDATE_VERSION, "type 9"),
        (FeatureUpdate("group.version", 0, 2), ErrorCode.FEATURE_UPDATE_FAILED, "this version"),
        (FeatureUpdate("x" * 30_000, 1), ErrorCode.INVALID_UPDATE_VERSION, "'xxx"),
    ],
)
def test_no_other_level_can_be_had(wanted: FeatureUpdate, code: ErrorCode, says: str) -> None:
    """All or nothing: the first error is that of the request."""
    told = updated(FeatureUpdate("group.version", 1), wanted)
    assert told.error == code
    assert says in str(told.error_message)
    assert len(str(told.error_message)) < 250
    assert told.features == ()
