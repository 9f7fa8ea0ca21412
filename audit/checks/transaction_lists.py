"""The check of the lists of aborted transactions, which lie beside the segments (`.txnindex`).

A broker tells a reader of committed records by the list alone which records to pass over. So a list
must have each aborted transaction of which records are left, and no other. If the front of a log is
gone, or compaction has taken records, a list may name an earlier first offset than the log has: the
broker knew the transaction before. What all was decided below is then not compared.

A list is right where it lies, so each replica is judged by its own log.
"""

from collections.abc import Callable, Mapping
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql.functions import broadcast, coalesce, col, format_string, lit, when

from minibroker.audit.checks.facts import REPLICA
from minibroker.audit.checks.findings import as_findings, in_sync, severity_in_log
from minibroker.audit.checks.stored_transactions import has_transactions, transactions
from minibroker.audit.checks.transaction_history import ABORTED, COMMITTED
from minibroker.audit.files.directories import LIVE
from minibroker.audit.model import Severity, Tables

CHECK: Final = "transaction-index"
_BEHIND: Final = ["producer_id", "listed", "marker_offset"]


def transaction_index(tables: Tables) -> DataFrame | None:
    """Return the aborted transactions that the lists lack, and the entries that are of none."""
    if tables.aborted is None or not has_transactions(tables.batches):
        return None
    listed = tables.aborted()
    unreadable = (
        listed.where("problem IS NOT NULL")
        .select(*REPLICA, "segment", col("problem").alias("detail"))
        .withColumns({"severity": lit(Severity.WARNING.value), "offset": lit(None).cast("bigint")})
    )
    wrong = (
        _compared(tables, listed)
        .withColumn("detail", _what_is_wrong())
        .where("detail IS NOT NULL")
        .withColumns(
            {
                "offset": coalesce("first_offset", "listed"),
                "severity": severity_in_log(in_sync(), "marker_offset", "marker_offset"),
            }
        )
    )
    columns = [*REPLICA, "segment", "offset", "severity", "detail"]
    return as_findings(CHECK, wrong.select(columns).unionByName(unreadable.select(columns)))


def _compared(tables: Tables, listed: DataFrame) -> DataFrame:
    """Return the transactions that have ended beside the entries, with the columns of the replica:
    `listed` and `listed_stable` are of the entry."""
    entries = listed.where("entry IS NOT NULL AND problem IS NULL").select(
        *REPLICA,
        "segment",
        "producer_id",
        col("last_offset").alias("marker_offset"),
        col("first_offset").alias("listed"),
        col("stable").alias("listed_stable"),
    )
    complete = listed.where("entry IS NULL AND problem IS NULL").select(*REPLICA, "segment")
    ended = (
        transactions(tables.batches)
        .where("marker_offset IS NOT NULL")
        .withColumn("segment", col("marker_segment"))
        .join(broadcast(complete), [*REPLICA, "segment"], "left_semi")
        .drop("marker_segment", "last_offset")
    )
    columns = ("in_isr", "state", "judged_end", "log_start", "cleaned_end", "may_be_cleaned")
    replicas = tables.replicas.select(*REPLICA, *columns, col("first_offset").alias("log_first"))
    place = [*REPLICA, "segment", "producer_id", "marker_offset"]
    return (
        ended.join(entries, place, "full_outer")
        .join(broadcast(replicas), [*REPLICA])
        # A running broker replaces the segments of a compacted log while they are read.
        .where((col("state") != LIVE) | ~coalesce("may_be_cleaned", lit(False)))
    )


def _what_is_wrong() -> Column:
    """Return what is wrong with an entry, or with an aborted transaction without one; else null."""
    cleaned_end = coalesce("cleaned_end", lit(0))
    is_front_gone = col("log_first") > 0
    # Its first batches may be gone.
    may_begin_earlier = (col("is_first") & is_front_gone) | (col("listed") < cleaned_end)
    begins_earlier = col("listed") < col("first_offset")
    begins_elsewhere = (col("listed") != col("first_offset")) & ~(
        begins_earlier & may_begin_earlier
    )
    are_all_gone = (col("listed") < col("log_first")) | (col("listed") < cleaned_end)
    is_of_none = col("outcome").isNull() | (col("first_offset").isNull() & ~are_all_gone)
    is_left = (col("records") > 0) & (col("marker_offset") >= coalesce("log_start", lit(0)))
    is_whole = ~is_front_gone & (cleaned_end == 0)
    return (
        when(col("listed").isNull(), when((col("outcome") == ABORTED) & is_left, _lacks()))
        .when(col("outcome") == COMMITTED, _hides())
        .when(is_of_none, _names_none())
        .when(coalesce(begins_elsewhere, lit(False)), _begins())
        .when(is_whole & (col("listed_stable") != col("stable")), _says_stable())
    )


def _lacks() -> Column:
    return format_string(
        "the list lacks the transaction of producer %d from offset %d to its ABORT at %d; readers"
        " of committed records get its records here",
        "producer_id",
        "first_offset",
        "marker_offset",
    )


def _hides() -> Column:
    return format_string(
        "the list names a transaction of producer %d from offset %d to %d, which was committed;"
        " readers of committed records do not get its records here",
        *_BEHIND,
    )


def _names_none() -> Column:
    return format_string(
        "the list names a transaction of producer %d from offset %d to %d, and none was aborted"
        " there",
        *_BEHIND,
    )


def _begins() -> Column:
    return format_string(
        "the list lets the transaction of producer %d begin at offset %d, which ends with the ABORT"
        " at %d; its first record is at %d",
        *_BEHIND,
        "first_offset",
    )


def _says_stable() -> Column:
    return format_string(
        "the list says of the transaction of producer %d from offset %d to its ABORT at %d that all"
        " was decided below %d; all was below %d",
        *_BEHIND,
        "listed_stable",
        "stable",
    )


CHECKS: Final[Mapping[str, Callable[[Tables], DataFrame | None]]] = {CHECK: transaction_index}
