"""Rows that the driver holds are all in the table that Spark makes of them."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.functions import col
from pyspark.sql.pandas.types import from_arrow_schema

from minibroker.audit.checks.local_frames import (
    collect_small,
    is_known_empty,
    local_frame,
    local_rows,
    will_be_empty,
)
from minibroker.audit.model import EPOCH_STARTS, RECORDS


def test_no_row_is_lost_behind_a_chunk_without_rows(spark: SparkSession) -> None:
    """As files in which nothing is wrong make one each."""
    row = pa.RecordBatch.from_pylist([dict.fromkeys(EPOCH_STARTS.names)], schema=EPOCH_STARTS)
    rows = pa.Table.from_batches([row.slice(1), row, row.slice(1), row], EPOCH_STARTS)
    assert local_frame(spark, rows, from_arrow_schema(EPOCH_STARTS)).count() == rows.num_rows == 2


def test_no_file_makes_no_row(spark: SparkSession) -> None:
    """Also of columns that hold others."""
    rows = pa.Table.from_batches([], RECORDS)
    assert local_frame(spark, rows, from_arrow_schema(RECORDS)).count() == 0


def test_what_is_known_to_be_nothing_is_not_run(spark: SparkSession) -> None:
    """Spark's optimizer knows it of rows in the plan, and so does `collect_small`."""
    rows = pa.table({"n": [0, 1, 2]})
    numbers = local_frame(spark, rows, from_arrow_schema(rows.schema))
    assert will_be_empty(numbers.where(col("n") > 2))
    assert not will_be_empty(numbers.where(col("n") > 1))
    assert is_known_empty(collect_small(numbers.where(col("n") > 2)))
    assert local_rows(numbers.where(col("n") > 1)) is None, "only the driver's own rows are known"


def test_what_is_collected_is_made_once(spark: SparkSession, rows_max: int, tmp_path: Path) -> None:
    """Also where the rows turn out to be more than the driver wants to hold."""
    made = tmp_path / "made"

    def write_down(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in rows:
            with made.open("a") as file:
                file.writelines(f"{number}\n" for number in batch["id"].to_pylist())
            yield batch

    found = collect_small(spark.range(10).mapInArrow(write_down, "id bigint"))
    assert found.count() == 10
    assert (local_rows(found) is None) == (rows_max < 10)
    assert sorted(map(int, made.read_text().split())) == list(range(10))
