"""The audit as tests call it: through the function that the command line calls, too."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from minibroker.audit.model import Finding, Scan
from minibroker.audit.summary import Summary, Verdict
from minibroker.cli.cluster.export import export_store
from tests.support.processes import EXPORT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SHOWN = 20
STORE = "metadata.db"


def audit(
    spark: "SparkSession",
    root: Path,
    out: Path,
    ledgers: Sequence[Path] = (),
    checks: Sequence[str] = (),
    *,
    is_ledger_complete: bool = False,
    scan: Scan = Scan.AUTO,
) -> tuple[Summary, list[Finding]]:
    """What an audit of a cluster's directory says; the metadata are those that lie in it, of the
    store or exported before. `out` is made, and keeps the report."""
    from minibroker.audit.report.page import read_findings
    from minibroker.audit.run import AuditOptions, run_audit

    def export() -> object:
        exported = root / EXPORT
        return json.loads(exported.read_text()) if exported.exists() else export_store(root / STORE)

    out.mkdir()
    options = AuditOptions(
        [root],
        out,
        ledgers,
        export,
        checks,
        is_ledger_complete=is_ledger_complete,
        scan=scan,
    )
    summary = run_audit(spark, options)
    return summary, read_findings(out)


def assert_clean(spark: "SparkSession", root: Path, out: Path, ledgers: Sequence[Path]) -> None:
    """All that the ledgers tell of is on every replica, and nothing else is wrong."""
    summary, findings = audit(spark, root, out, ledgers)
    shown = "\n".join(map(str, findings[:SHOWN]))
    assert summary.verdict is Verdict.CLEAN, f"{summary.sentence}\n{shown}\n{summary.unjudged}"
    assert not findings, f"{summary.sentence}\n{shown}"
    assert summary.ledger is not None
    assert summary.ledger.judged == summary.ledger.present == summary.ledger.acknowledged > 0
