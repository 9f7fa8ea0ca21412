"""Each check is tried with rows that the driver holds, and in soak with rows that Spark keeps."""

import pytest

from minibroker.audit.checks import few


@pytest.fixture(autouse=True, params=[few.ROWS_MAX, pytest.param(0, marks=pytest.mark.soak)])
def rows_max(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many rows are few."""
    count: int = request.param
    monkeypatch.setattr(few, "ROWS_MAX", count)
    return count
