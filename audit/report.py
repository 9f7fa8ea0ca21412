"""`report.html`: one file that needs nothing else, and `findings.parquet` read back."""

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from minibroker.audit.model import FINDINGS, Finding, Severity
from minibroker.audit.summary import Summary


def write_report(summary: Summary, findings: Sequence[Finding], out: Path) -> Path:
    """Write `report.html` into the directory `out`; returns its path."""
    path = out / "report.html"
    path.write_text(summary.sentence, encoding="utf-8")
    return path


def write_findings(findings: Sequence[Finding], out: Path) -> Path:
    """Write `findings.parquet` into the directory `out`; returns its path."""
    path = out / "findings.parquet"
    columns = {
        name: pa.array([getattr(finding, name) for finding in findings], FINDINGS.field(name).type)
        for name in FINDINGS.names
    }
    pq.write_table(pa.table(columns, schema=FINDINGS), path)
    return path


def read_findings(out: Path) -> list[Finding]:
    """What `write_findings` wrote. Raises `OSError` or `pa.ArrowInvalid` for what it has not."""
    rows = pq.read_table(out / "findings.parquet", schema=FINDINGS).to_pylist()
    return [Finding(**row | {"severity": Severity(row["severity"])}) for row in rows]
