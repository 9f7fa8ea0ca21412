"""What a check found, as rows of FINDINGS: the columns in order, and no flood of them.

A fault of a disk or of a protocol may concern millions of records, and nobody reads a million
lines. Of each (check, topic, partition, broker) the first FINDINGS_MAX findings are kept, by
offset; the last of them says how many more there are.
"""

from collections.abc import Mapping
from typing import Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from minibroker.audit.model import FINDINGS

FINDINGS_MAX: Final = 100


def as_findings(check: str, found: DataFrame) -> DataFrame:
    """FINDINGS of a check from whichever of its columns `found` has, the others null."""
    place = Window.partitionBy("topic", "partition", "broker")
    more = F.count("*").over(place) - FINDINGS_MAX
    number = F.row_number().over(place.orderBy("offset", "position", "detail"))
    complete = found.withColumns(
        {
            field.name: F.lit(None).cast(field.dataType)
            for field in from_arrow_schema(FINDINGS)
            if field.name not in found.columns
        }
    )
    is_last = (F.col("number") == FINDINGS_MAX) & (F.col("more") > 0)
    rest = F.concat("detail", F.format_string("; and %,d more", "more"))
    columns: Mapping[str, object] = {
        "check": F.lit(check),
        "detail": F.when(is_last, rest).otherwise(F.col("detail")),
    }
    kept = complete.withColumns({"more": more, "number": number}).where(
        F.col("number") <= FINDINGS_MAX
    )
    return kept.withColumns(columns).select(
        *(F.col(field.name).cast(field.dataType) for field in from_arrow_schema(FINDINGS))
    )
