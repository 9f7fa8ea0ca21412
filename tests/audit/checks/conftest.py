"""Each check is tried with rows that the driver holds, and in soak with rows that Spark keeps."""

import pytest

from minibroker.audit.checks import local_frames

KEPT_BY_SPARK = pytest.param(0, marks=pytest.mark.soak)


@pytest.fixture(autouse=True, params=[local_frames.ROWS_MAX, KEPT_BY_SPARK])
def rows_max(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many rows are few."""
    count: int = request.param
    monkeypatch.setattr(local_frames, "ROWS_MAX", count)
    return count
