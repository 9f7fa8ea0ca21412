"""The feature levels of a cluster, as the admin client shows and changes them."""

from typing import Any

import pytest

from minibroker.client.admin import Admin
from minibroker.protocol.constants import ApiKey, ErrorCode
from minibroker.protocol.errors import BrokerError
from minibroker.protocol.messages import APIS
from minibroker.protocol.messages.api_versions import ApiVersion, ApiVersionsResponse
from minibroker.protocol.messages.features import (
    FeatureUpdate,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from tests.unit.client.test_admin import Two


async def test_feature_levels(start_broker: Any, seams: Any, autojump_clock: Any) -> None:
    """Each live broker says its levels; the controller finalizes one, or says why not."""
    two = Two([await start_broker("a"), await start_broker("b")])
    left, right = two.brokers.values()
    served = tuple(ApiVersion(key) for key in sorted(APIS))
    left.answers[ApiKey.API_VERSIONS] = lambda _: ApiVersionsResponse(
        apis=served, feature_level_max=2
    )
    answers = iter(
        [
            UpdateFeaturesResponse(features=("minibroker.version",)),
            UpdateFeaturesResponse(ErrorCode.INVALID_UPDATE_VERSION, "broker 2 supports"),
        ]
    )
    for broker in two.brokers.values():
        broker.answers[ApiKey.UPDATE_FEATURES] = lambda _: next(answers)
    async with Admin("a:9092", seams=seams) as admin:
        report = await admin.describe_features()
        assert {node: one.feature_level_max for node, one in report.answers.items()} == {1: 2, 2: 1}
        assert not report.silent
        await admin.update_features({"minibroker.version": 2}, validate_only=True)
        with pytest.raises(BrokerError, match="INVALID_UPDATE_VERSION: broker 2 supports"):
            await admin.update_features({"minibroker.version": 2})
    asked = [*left.asked(UpdateFeaturesRequest), *right.asked(UpdateFeaturesRequest)]
    assert [one.updates for one in asked] == [(FeatureUpdate("minibroker.version", 2),)] * 2
    assert [one.validate_only for one in asked] == [True, False]
