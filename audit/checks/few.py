"""Rows that are few in a sound cluster, in the driver's hands.

What a check of a sound cluster has left to look at is nothing, or a row a segment. Spark, which
cannot know that, would plan, compile and run all that might be made of it. Of rows that are in
the plan itself it does know, and leaves out what comes to nothing of them.
"""

from typing import Final

from pyspark.sql import DataFrame

ROWS_MAX: Final = 20_000


def few(found: DataFrame) -> DataFrame:
    """The same rows: as part of the plan if they are few, else kept in Spark's cache."""
    rows = found.limit(ROWS_MAX + 1).toArrow()
    if rows.num_rows > ROWS_MAX:
        return found.persist()
    return found.sparkSession.createDataFrame(rows, found.schema)
