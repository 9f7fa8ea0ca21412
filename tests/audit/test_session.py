"""The session starts, quietly, and computes."""

from pyspark.sql import SparkSession


def test_a_session_runs_python_of_the_driver(spark: SparkSession) -> None:
    """Workers run the driver's interpreter, so that they find what the driver has."""
    import sys

    found = spark.sparkContext.range(4).map(lambda _: __import__("sys").executable).collect()
    assert set(found) == {sys.executable}
