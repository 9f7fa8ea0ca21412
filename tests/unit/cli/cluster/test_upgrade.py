"""`minibroker cluster upgrade`: which level it asks for, and what it says."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pytest
from typer.testing import CliRunner

from minibroker.cli.cluster import upgrade as module
from minibroker.cli.cluster.commands import app
from minibroker.cli.terminal import Failure
from minibroker.client.admin import FeaturesReport
from minibroker.protocol.messages.api_versions import ApiVersionsResponse


def levels(level: int, first: int, last: int) -> ApiVersionsResponse:
    """What a broker answers."""
    return ApiVersionsResponse(feature_level=level, feature_level_min=first, feature_level_max=last)


class FakeAdmin:
    """A cluster of two versions."""

    def __init__(self) -> None:
        self.report = FeaturesReport({2: levels(1, 1, 2), 1: levels(1, 1, 3)}, {})
        self.updates: list[tuple[Mapping[str, int], bool]] = []

    def describe_features(self) -> FeaturesReport:
        return self.report

    def update_features(self, levels: Mapping[str, int], *, validate_only: bool) -> None:
        self.updates.append((levels, validate_only))


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch) -> FakeAdmin:
    """The admin client that the command opens."""
    fake = FakeAdmin()

    @contextmanager
    def opened(bootstrap: str, timeout_s: float) -> Iterator[FakeAdmin]:
        yield fake

    monkeypatch.setattr(module, "opened_admin", opened)
    return fake


def test_the_highest_level_that_all_support_is_finalized(admin: FakeAdmin) -> None:
    """The levels of each broker are shown first."""
    result = CliRunner().invoke(app, ["upgrade"])
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        "Broker 1: minibroker.version 1, supports 1 to 3",
        "Broker 2: minibroker.version 1, supports 1 to 2",
        "Finalized minibroker.version 2.",
    ]
    assert admin.updates == [({"minibroker.version": 2}, False)]


def test_a_level_can_be_named_and_only_checked(admin: FakeAdmin) -> None:
    """The controller checks it, too: the levels shown may be old."""
    result = CliRunner().invoke(app, ["upgrade", "--level", "3", "--dry-run"])
    assert result.stdout.splitlines()[-1] == "minibroker.version 3 can be finalized."
    assert admin.updates == [({"minibroker.version": 3}, True)]


@pytest.mark.parametrize("text", ["0", "-1", "x", "1.5"])
def test_what_is_no_level_is_refused(admin: FakeAdmin, text: str) -> None:
    """Before a broker is asked."""
    assert CliRunner().invoke(app, ["upgrade", f"--level={text}"]).exit_code == 2
    assert admin.updates == []


def test_a_silent_broker_is_named(admin: FakeAdmin) -> None:
    """Nobody knows which levels it supports."""
    admin.report = FeaturesReport({}, {2: "no answer within 3 s"})
    with pytest.raises(Failure, match="broker 2 does not say which levels it supports: no answer"):
        module.upgrade()
    admin.report = FeaturesReport({}, {})
    with pytest.raises(Failure, match="no broker is live"):
        module.upgrade()
    assert admin.updates == []
