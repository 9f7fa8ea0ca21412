"""Rows that are few in a sound cluster, in the driver's hands.

What a check of a sound cluster has left to look at is nothing, or a row a segment. Spark, which
cannot know that, would plan, compile and run all that might be made of it. Of rows that are in
the plan itself it does know, and leaves out what comes to nothing of them.
"""

from collections.abc import Iterable
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from minibroker.audit.checks.held import hold

ROWS_MAX: Final = 20_000


def few(found: DataFrame) -> DataFrame:
    """The same rows: as part of the plan if they are few, else kept in Spark's cache."""
    rows = found.limit(ROWS_MAX + 1).toArrow()
    if rows.num_rows > ROWS_MAX:
        return hold(found)
    return found.sparkSession.createDataFrame(rows, found.schema)


def from_rows(
    spark: SparkSession, schema: pa.Schema, rows: Iterable[tuple[object, ...]]
) -> DataFrame:
    """A table of rows that the driver holds."""
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    arrays = [pa.array(column, each.type) for column, each in zip(columns, schema, strict=True)]
    table = pa.Table.from_arrays(arrays, schema=schema)
    return spark.createDataFrame(table, from_arrow_schema(schema))
