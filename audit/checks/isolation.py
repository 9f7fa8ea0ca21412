"""Whether consumers of committed records were shown others, by their ledgers.

A consumer with `isolation.level=read_committed` gets no record of a transaction that was aborted,
and none of one that is open. Whether a ledger is that of such a consumer is in its first line. What
running brokers have not ended when their logs were read may have been ended when it was shown.
"""

from collections.abc import Callable, Mapping
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql.functions import broadcast, coalesce, col, count, format_string, lit, struct, when
from pyspark.sql.functions import min as smallest_of

from minibroker.audit.checks.acknowledged import PLACE, acknowledged, with_former
from minibroker.audit.checks.facts import REPLICA
from minibroker.audit.checks.findings import as_findings
from minibroker.audit.checks.stored_transactions import has_transactions, uncommitted_offsets
from minibroker.audit.checks.transaction_history import ABORTED
from minibroker.audit.files.directories import LIVE
from minibroker.audit.files.ledger import Event
from minibroker.audit.model import Severity, Tables

CHECK: Final = "uncommitted-read"


def uncommitted_read(tables: Tables) -> DataFrame | None:
    """Return the records of aborted and open transactions that consumers of committed records were
    shown."""
    if not has_transactions(tables.batches):
        return None
    known = acknowledged(tables)
    isolated = {row.ledger for row in known.lines if row.event == Event.ISOLATED}
    if not isolated:
        return None
    is_live = any(row.state == LIVE for row in tables.replicas.select("state").collect())
    references = tables.replicas.where("is_reference").select(*REPLICA, "judged_end")
    wrong = (
        uncommitted_offsets(tables.batches)
        .join(broadcast(references), [*REPLICA])
        .where(col("offset") < col("judged_end"))
        .where((col("outcome") == ABORTED) | lit(not is_live))
        .select(*PLACE, "outcome")
    )
    is_shown = col("event").isin(Event.SHOWN.value, Event.SHOWN_OFFSET.value)
    shown = known.entries.where(is_shown & col("ledger").isin(*isolated))
    found = (
        with_former(known, shown)
        .where(~col("is_former"))
        .join(wrong, [*PLACE])
        .groupBy(*PLACE, "outcome")
        .agg(smallest_of(struct("ledger", "line")).alias("first"), count("*").alias("times"))
    )
    what = when(col("outcome") == ABORTED, "it was aborted").otherwise("it has no marker")
    detail = format_string(
        "%s; first shown in %s line %d; lines in all: %d",
        what,
        "first.ledger",
        "first.line",
        "times",
    )
    columns = {
        "broker": lit(None).cast("int"),
        "severity": lit(Severity.ERROR.value),
        "detail": coalesce(detail, lit("")),
    }
    return as_findings(CHECK, found.withColumns(columns))


CHECKS: Final[Mapping[str, Callable[[Tables], DataFrame | None]]] = {CHECK: uncommitted_read}
