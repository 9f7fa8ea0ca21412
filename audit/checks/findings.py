"""The findings of a check as rows of FINDINGS, limited in number.

A fault of a disk or of a protocol may concern millions of records, more than a reader can use. Of
each (check, topic, partition, broker) the first FINDINGS_MAX findings are kept, by offset; the last
of them says how many more there are. Of each check the worst OF_CHECK_MAX findings are kept, so
that they fit in the driver's memory however many logs there are.
"""

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql.functions import (
    coalesce,
    col,
    concat,
    count,
    format_string,
    lit,
    row_number,
    when,
)
from pyspark.sql.pandas.types import from_arrow_schema

from minibroker.audit.files.directories import LIVE
from minibroker.audit.model import FINDINGS, Severity

FINDINGS_MAX: Final = 100
OF_CHECK_MAX: Final = 10_000


def as_findings(check: str, found: DataFrame) -> DataFrame:
    """Return the FINDINGS of a check; columns that `found` does not have are null."""
    columns = list(from_arrow_schema(FINDINGS))
    missing = {
        field.name: lit(None).cast(field.dataType)
        for field in columns
        if field.name not in found.columns
    }
    place = Window.partitionBy("topic", "partition", "broker")
    number = row_number().over(place.orderBy("offset", "position", "detail"))
    kept = (
        found.withColumns(missing)
        .withColumns({"more": count("*").over(place) - FINDINGS_MAX, "number": number})
        .where(col("number") <= FINDINGS_MAX)
    )
    is_last = (col("number") == FINDINGS_MAX) & (col("more") > 0)
    rest = concat("detail", format_string("; and %,d more", "more"))
    complete = kept.withColumns(
        {
            "check": lit(check),
            "detail": when(is_last, rest).otherwise(col("detail")),
            "more": when(is_last, col("more")),
        }
    )
    return complete.select(*(col(field.name).cast(field.dataType) for field in columns))


def keep_worst(found: DataFrame, kept_max: int = OF_CHECK_MAX) -> DataFrame:
    """Return the worst of many findings, and one more if there are more."""
    order = [col("severity") != severity.value for severity in Severity]
    return found.orderBy(*order, "topic", "partition", "broker", "offset").limit(kept_max + 1)


def severity(is_promised: Column) -> Column:
    """Return the severity of a fault: error if a promise is broken, else warning."""
    warning = lit(Severity.WARNING.value)
    return when(is_promised, lit(Severity.ERROR.value)).otherwise(warning)


def severity_in_log(is_promised: Column, first: str, last: str) -> Column:
    """Return `severity` of damage to the offsets from `first` to `last`, given REPLICAS columns.

    Damage below the log start is harmless, since no reader gets there. Nothing is promised above
    `judged_end`, least of all on a running broker, whose files are read while it writes them.
    """
    is_above = col(first) >= col("judged_end")
    is_below = col(last) < coalesce(col("log_start"), lit(0))
    is_harmless = is_below | (is_above & (col("state") == LIVE))
    return when(is_harmless, lit(Severity.INFO.value)).otherwise(severity(is_promised & ~is_above))


def in_sync() -> Column:
    """Whether a row of REPLICAS makes promises: it is in the ISR, or the ISR is unknown."""
    return coalesce(col("in_isr"), lit(True))
