"""Each check is tried with rows that the driver holds, and in soak with rows that Spark keeps."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from minibroker.audit.checks import local_frames
from minibroker.audit.session import interpreted

KEPT_BY_SPARK = pytest.param(0, marks=pytest.mark.soak)


@pytest.fixture(autouse=True, params=[local_frames.ROWS_MAX, KEPT_BY_SPARK])
def rows_max(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many rows are few."""
    count: int = request.param
    monkeypatch.setattr(local_frames, "ROWS_MAX", count)
    return count


@pytest.fixture(autouse=True)
def as_of_a_small_input(spark: SparkSession) -> Iterator[None]:
    """Expressions are interpreted, as the audit does it for such tables."""
    with interpreted(spark):
        yield
