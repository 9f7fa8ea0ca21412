"""One Spark session for all tests that need one: it takes longer to start than most of them run."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from minibroker.audit.session import spark_session


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A session with two tasks at once."""
    session = spark_session("local[2]", app_name="tests")
    yield session
    session.stop()
