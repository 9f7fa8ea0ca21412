"""Tables of the audit from rows that a test writes out."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from minibroker.audit import model
from minibroker.audit.model import Finding, Severity, Tables

Rows = Sequence[dict[str, Any]]


def table(spark: SparkSession, schema: pa.Schema, rows: Rows) -> DataFrame:
    """A DataFrame; what a row does not name is null."""
    return spark.createDataFrame(pa.Table.from_pylist(list(rows), schema=schema))


NOTHING: Final[Mapping[str, Any]] = {}


def tables(spark: SparkSession, others: Mapping[str, Any] = NOTHING, **rows: Rows) -> Tables:
    """Tables of the rows given by name, all others empty; `others` are the fields that are none."""
    schemas = {
        name: getattr(model, name.upper())
        for name in ("batches", "replicas", "epoch_starts", "producers", "index_entries", "bodies")
    }
    records = table(spark, model.RECORDS, rows.pop("records", ()))
    given = {name: getattr(model, name.upper()) for name in rows}
    return Tables(
        **others,
        records=lambda topics: records.where(records.topic.isin(*topics)),
        **{
            name: table(spark, schema, rows.get(name, ()))
            for name, schema in (given | schemas).items()
        },
    )


def found_by(frame: DataFrame | None) -> list[Finding]:
    """What a check found, in order of topic, partition, broker and offset."""
    if frame is None:
        return []
    assert frame.columns == model.FINDINGS.names
    findings = [
        Finding(**{**row.asDict(), "severity": Severity(row.severity)}) for row in frame.collect()
    ]
    return sorted(
        findings, key=lambda each: (each.topic, each.partition, each.broker or 0, each.offset or 0)
    )
