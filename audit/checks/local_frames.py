"""DataFrames whose rows the driver holds: tables that are small in a sound cluster.

In a sound cluster a check has nothing to examine, or one row per segment. Spark cannot know that
and would plan, compile and run everything that is derived from those rows. It does know rows that
are part of the plan itself, and its optimizer removes what follows from an empty table. A check
that knows that it has nothing to examine returns None; then nothing is planned at all.
"""

from collections.abc import Iterable
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from minibroker.audit.checks.cached import cache, release

ROWS_MAX: Final = 20_000
_ROWS: Final = "_local_rows"


def collect_small(found: DataFrame) -> DataFrame:
    """Return the same rows, computed once: in the plan if they are few, else in Spark's cache."""
    if will_be_empty(found):
        return empty_like(found)
    kept = cache(found)
    rows = kept.limit(ROWS_MAX + 1).toArrow()
    if rows.num_rows > ROWS_MAX:
        return kept
    release(kept)
    return local_frame(found.sparkSession, rows, found.schema)


def empty_like(frame: DataFrame) -> DataFrame:
    """Return a table with the same columns and no rows."""
    nothing = to_arrow_schema(frame.schema).empty_table()
    return local_frame(frame.sparkSession, nothing, frame.schema)


def from_rows(
    spark: SparkSession, schema: pa.Schema, rows: Iterable[tuple[object, ...]]
) -> DataFrame:
    """Return a table of rows that the driver holds."""
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    arrays = [pa.array(column, each.type) for column, each in zip(columns, schema, strict=True)]
    return local_frame(
        spark, pa.Table.from_arrays(arrays, schema=schema), from_arrow_schema(schema)
    )


def local_frame(spark: SparkSession, rows: pa.Table, schema: StructType) -> DataFrame:
    """Return a table of rows that the driver holds; `local_rows` returns them again.

    The rows are put into one chunk: Spark reads a table of several chunks only up to the first
    empty one, and accepts no table without a chunk.
    """
    rows = rows.combine_chunks() if rows.num_rows else rows.schema.empty_table()
    frame = spark.createDataFrame(rows, schema)
    java_frame: Any = frame._jdf
    plan = java_frame.queryExecution().analyzed()
    if plan.nodeName() == "LocalRelation":
        assert plan.data().size() == rows.num_rows, "rows were lost on their way into the plan"
    vars(frame)[_ROWS] = rows
    return frame


def local_rows(frame: DataFrame) -> pa.Table | None:
    """Return the rows if the driver holds them, else None."""
    rows: pa.Table | None = vars(frame).get(_ROWS)
    return rows


def is_known_empty(frame: DataFrame) -> bool:
    """Whether the driver knows that there are no rows."""
    rows = local_rows(frame)
    return rows is not None and rows.num_rows == 0


def will_be_empty(frame: DataFrame) -> bool:
    """Whether Spark's optimizer knows, before any job runs, that there will be no rows."""
    java_frame: Any = frame._jdf
    plan = java_frame.queryExecution().optimizedPlan()
    return plan.nodeName() == "LocalRelation" and bool(plan.data().isEmpty())
