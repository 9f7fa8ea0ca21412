"""Two hundred random corruptions of a clean cluster, judged by one audit.

Each lies in a partition of its own, on one of its three replicas, in a file of any kind; a few more
in the files that a broker has once. Each must be found, or be proven harmless (`harmless.py`), and
nothing else may be found: the partitions that nobody touched are clean, also those that share a
broker's checkpoints with the others.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from minibroker.audit.model import Finding, Scan, Severity
from tests.audit.corrupted import Case, corrupt_all
from tests.audit.harmless import proof
from tests.support.audited import audit
from tests.support.made_cluster import TOPIC, make_cluster

COUNT = 200
CLEAN = 10  # partitions that nobody touches


def log_start(root: Path, partition: int | None) -> int:
    """Of a partition, from a broker whose file of them is whole."""
    lines = (root / "broker-1" / "log-start-offset-checkpoint").read_text().splitlines()
    starts = {tuple(line.split()[:2]): int(line.split()[2]) for line in lines[2:]}
    return starts.get((TOPIC, str(partition)), 0)


def unexplained(cases: Sequence[Case], findings: Sequence[Finding], root: Path) -> Iterator[str]:
    """Corruptions that were neither found nor are harmless, and findings of nothing."""
    for case in cases:
        told = [finding for finding in findings if case.is_told_by(finding)]
        if proof(case.corruption, log_start(root, case.partition)):
            continue
        if not told:
            yield f"missed: {case}"
        is_log = case.corruption.path.suffix == ".log"
        if is_log and told and all(finding.severity != Severity.ERROR for finding in told):
            yield f"no error, but {told}: {case}"
    for finding in findings:
        if not any(case.is_told_by(finding) for case in cases):
            yield f"nothing is there: {finding}"


def judge(spark: SparkSession, root: Path, seed: int, *, scan: Scan = Scan.AUTO) -> None:
    """Make a cluster, corrupt it, audit it, and hold the findings against what was done."""
    make_cluster(root, COUNT + CLEAN)
    cases = corrupt_all(root, COUNT, seed)
    summary, findings = audit(spark, root, root / "audit", scan=scan)
    assert summary.exit_code == 1, summary.sentence
    problems = list(unexplained(cases, findings, root))
    assert not problems, "\n".join([f"seed {seed}", *problems])


def test_corruptions_are_found_or_harmless(spark: SparkSession, tmp_path: Path) -> None:
    """Each of two hundred corruptions, one in each of two hundred partitions, is found or proven
    harmless, and nothing else is found."""
    judge(spark, tmp_path, seed=1)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(2, 10))
def test_other_corruptions_are_found_or_harmless(
    spark: SparkSession, tmp_path: Path, seed: int
) -> None:
    """The same with other seeds; every other time the executors read."""
    judge(spark, tmp_path, seed, scan=Scan.DRIVER if seed % 2 == 0 else Scan.SPARK)
