"""Findings are bounded."""

from pyspark.sql import SparkSession

from minibroker.audit.checks.findings import keep_worst
from minibroker.audit.model import FINDINGS
from tests.audit.checks.rows import table


def test_of_too_many_findings_the_worst_are_kept(spark: SparkSession) -> None:
    """The errors first, then by place; and one more, which says that there were more."""
    rows = [
        {"check": "gap", "severity": severity, "topic": "t", "partition": partition}
        for partition, severity in enumerate(["info", "warning", "error", "warning", "error"])
    ]
    kept = keep_worst(table(spark, FINDINGS, rows), 3).collect()
    assert [row.partition for row in kept] == [2, 4, 1, 3]
    assert keep_worst(table(spark, FINDINGS, rows), 9).count() == len(rows)
