"""The audit as an application for `spark-submit`, on an existing Spark.

    python -m minibroker.audit.packaging DIR
    spark-submit --py-files DIR/minibroker.zip DIR/submit.py DATA_DIR... --out OUT

It is the same audit as `minibroker audit run`, without the command line's libraries:
`spark-submit` makes the session, and cluster metadata is given as a file. The exit codes are the
same: 0 clean, 1 findings, 2 could not check, 3 the audit itself failed.

This file runs as a copy beside the zip. In its own folder, Python would find the modules there
as top-level ones, and some of their names belong to libraries.
"""

import argparse
import json
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from pyspark.sql import SparkSession

from minibroker.audit.catalogue import CHOSEN
from minibroker.audit.files.cluster import InvalidExport
from minibroker.audit.files.directories import UsageError
from minibroker.audit.model import Scan, Severity
from minibroker.audit.run import AuditOptions, run_audit

COULD_NOT_CHECK = 2
AUDIT_FAILED = 3


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one audit and return the exit code."""
    given = _parse(arguments)
    try:
        given.out.mkdir(parents=True, exist_ok=True)
        spark = SparkSession.builder.appName("minibroker audit").getOrCreate()
        options = AuditOptions(
            paths=given.paths,
            out=given.out,
            ledgers=given.ledger,
            export=given.cluster and (lambda: exported(given.cluster)),
            checks=given.check,
            fail_on=Severity(given.fail_on),
            is_ledger_complete=given.ledger_complete,
            scan=Scan(given.scan),
        )
        summary = run_audit(spark, options)
        spark.stop()
    except (UsageError, InvalidExport) as error:
        print(error, file=sys.stderr)
        return COULD_NOT_CHECK
    except Exception:
        traceback.print_exc()
        return AUDIT_FAILED
    print(summary.sentence)
    return summary.exit_code


def exported(path: Path) -> object:
    """Return the metadata in a file, as a decoded JSON value. Raises InvalidExport."""
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidExport(f"{path} cannot be read: {error}") from None


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("submit.py", description="Audit brokers' data directories.")
    add = parser.add_argument
    add("paths", metavar="DATA_DIR", nargs="+", type=Path)
    add("--out", type=Path, required=True, help="where the report goes")
    add("--ledger", metavar="FILE", type=Path, action="append", default=[])
    add("--cluster", metavar="FILE", type=Path, help="from `minibroker cluster export`")
    add("--check", metavar="NAME", choices=CHOSEN, action="append", default=[])
    add("--ledger-complete", action="store_true", help="the ledgers tell of all that was sent")
    add("--scan", choices=list(Scan), default="auto", help="who reads the files")
    add("--fail-on", choices=["error", "warning"], default="error")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
