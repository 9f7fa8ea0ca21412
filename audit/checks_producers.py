"""Checks of what idempotent producers left in a log: their sequences, and the snapshots of them."""

from collections.abc import Callable, Mapping
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from minibroker.audit.findings import as_findings
from minibroker.audit.model import Tables


def sequence_gap(tables: Tables) -> DataFrame:
    """Batches of a producer that do not follow on the one before."""
    return as_findings("sequence-gap", _none(tables))


def sequence_duplicate(tables: Tables) -> DataFrame:
    """Batches of a producer that are in a log twice."""
    return as_findings("sequence-duplicate", _none(tables))


def snapshot(tables: Tables) -> DataFrame:
    """Producers of whom a snapshot says other than the batches before it."""
    return as_findings("snapshot", _none(tables))


def _none(tables: Tables) -> DataFrame:
    return tables.replicas.select(
        "topic",
        "partition",
        "broker",
        F.lit("error").alias("severity"),
        F.lit("").alias("detail"),
    ).limit(0)


CHECKS: Final[Mapping[str, Callable[[Tables], DataFrame]]] = {
    "sequence-gap": sequence_gap,
    "sequence-duplicate": sequence_duplicate,
    "snapshot": snapshot,
}
