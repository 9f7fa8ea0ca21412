"""Findings are bounded."""

from pyspark.sql import SparkSession

from minibroker.audit.checks.findings import FINDINGS_MAX, as_findings, keep_worst
from minibroker.audit.model import FINDINGS
from minibroker.audit.summary import count_findings
from tests.audit.checks.rows import found_by, table


def test_of_too_many_findings_the_worst_are_kept(spark: SparkSession) -> None:
    """The errors first, then by place; and one more, which says that there were more."""
    rows = [
        {"check": "gap", "severity": severity, "topic": "t", "partition": partition}
        for partition, severity in enumerate(["info", "warning", "error", "warning", "error"])
    ]
    kept = keep_worst(table(spark, FINDINGS, rows), 3).collect()
    assert [row.partition for row in kept] == [2, 4, 1, 3]
    assert keep_worst(table(spark, FINDINGS, rows), 9).count() == len(rows)


def test_findings_that_are_left_out_are_counted(spark: SparkSession) -> None:
    """The last one that is kept says how many more there are, and the count says that there are."""
    rows = [
        {"severity": "error", "topic": "t", "partition": 0, "broker": broker, "offset": offset}
        for broker, count in ((1, FINDINGS_MAX + 7), (2, FINDINGS_MAX))
        for offset in range(count)
    ]
    found = found_by(as_findings("gap", table(spark, FINDINGS, rows)))
    assert [(each.broker, each.offset, each.more) for each in found if each.more] == [
        (1, FINDINGS_MAX - 1, 7)
    ]
    [count] = count_findings(found)
    assert (count.count, count.is_capped) == (2 * FINDINGS_MAX, True)
