"""What a check found, as rows of FINDINGS: the columns in order, and no flood of them.

A fault of a disk or of a protocol may concern millions of records, and nobody reads a million
lines. Of each (check, topic, partition, broker) the first FINDINGS_MAX findings are kept, by
offset; the last of them says how many more there are. Of a check in all the worst OF_CHECK_MAX are
kept, so that the driver has room for them however many logs there are.
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
    """FINDINGS of a check from whichever of its columns `found` has, the others null."""
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
        {"check": lit(check), "detail": when(is_last, rest).otherwise(col("detail"))}
    )
    return complete.select(*(col(field.name).cast(field.dataType) for field in columns))


def keep_worst(found: DataFrame, kept_max: int = OF_CHECK_MAX) -> DataFrame:
    """The worst of many findings, and one more if there are more."""
    order = [col("severity") != severity.value for severity in Severity]
    return found.orderBy(*order, "topic", "partition", "broker", "offset").limit(kept_max + 1)


def severity(is_promised: Column) -> Column:
    """Of a fault: an error where something else was promised, else a warning."""
    warning = lit(Severity.WARNING.value)
    return when(is_promised, lit(Severity.ERROR.value)).otherwise(warning)


def severity_in_log(is_promised: Column, first: str, last: str) -> Column:
    """`severity` of damage to the offsets from `first` to `last`, beside the columns of REPLICAS.

    Below the log start nobody can read it, and nothing is promised above what is judged, least of
    all on a broker that runs, whose files are read while it writes them.
    """
    is_above = col(first) >= col("judged_end")
    is_below = col(last) < coalesce(col("log_start"), lit(0))
    is_harmless = is_below | (is_above & (col("state") == LIVE))
    return when(is_harmless, lit(Severity.INFO.value)).otherwise(severity(is_promised & ~is_above))


def in_sync() -> Column:
    """Whether a row of REPLICAS makes promises: it is in the ISR, or nobody knows that."""
    return coalesce(col("in_isr"), lit(True))
