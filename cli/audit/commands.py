"""`minibroker audit`: audit data directories, and show the result again.

The exit code is the verdict: 0 clean, 1 findings, 2 could not check, 3 the audit itself failed. A
user's mistake (a wrong option, a path that is no directory) counts as "could not check"; an error
during the run ends with one line and 3, so that it cannot look like a verdict. The verdict goes to
stdout, progress to stderr.
"""

import json
import os
import shutil
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer

from minibroker.cli.terminal import USAGE, Failure, Format, Interrupted, OutputFormat, interruptible

if TYPE_CHECKING:
    from minibroker.audit.summary import Summary

AUDIT_FAILED = 3
DEFAULT_OUT = Path("audit-report")
STORE = "metadata.db"
# The files that an audit writes; a directory that holds anything else is not replaced.
WRITTEN = {"batches.parquet", "findings.parquet", "summary.json", "report.html"}
# The packages of the extra that are needed: to read an audit's results, and to run an audit.
PLAIN = ("pyarrow",)
SPARK = ("pyspark", "pandas", "xxhash")
# Exceptions about the user's input, not about a failure.
_OF_USER = {"UsageError", "InvalidExport"}
CHARACTERS_MAX = 500  # of an exception's text; Spark's may have pages

app = typer.Typer(help="Check that the logs hold what was acknowledged.", no_args_is_help=True)


class Scanner(StrEnum):
    """Who reads the files; `auto`: the driver if they are small."""

    AUTO = "auto"
    SPARK = "spark"
    DRIVER = "driver"


class FailOn(StrEnum):
    """The lowest severity of a finding that makes the verdict "findings"."""

    ERROR = "error"
    WARNING = "warning"


Directories = Annotated[
    list[Path],
    typer.Argument(
        metavar="DIR",
        exists=True,
        file_okay=False,
        help="Data directories of brokers, or a directory of such.",
    ),
]
Ledgers = Annotated[
    list[Path] | None,
    typer.Option(
        "--ledger",
        metavar="FILE",
        exists=True,
        dir_okay=False,
        help="Ledgers, as produce and consume --ledger write them.",
    ),
]
ClusterFile = Annotated[
    Path | None,
    typer.Option(
        "--cluster",
        metavar="FILE",
        exists=True,
        dir_okay=False,
        help=f"The metadata, from `cluster export`; default: {STORE} in or beside DIR.",
    ),
]
Master = Annotated[
    str, typer.Option("--master", metavar="URL", help="Spark master to run on: spark://host:7077.")
]
Out = Annotated[
    Path, typer.Option("--out", "-o", help="Directory for the report; an older report is replaced.")
]
Batches = Annotated[
    str | None,
    typer.Option(
        "--batches",
        metavar="URI",
        help="Where the table of batches is written, if not in --out: a place that the driver and"
        " all executors reach by this URI, such as hdfs://host/batches or s3a://bucket/batches.",
    ),
]
ScanBy = Annotated[
    Scanner,
    typer.Option(
        "--scan",
        help="Who reads the files: tasks of Spark, the driver alone, or (auto) Spark from 256 MB"
        " on, on a cluster from 64 MB on.",
    ),
]
Checks = Annotated[
    list[str] | None,
    typer.Option("--check", metavar="NAME", help="Only this check; `audit checks` lists them."),
]
FromSeverity = Annotated[
    FailOn, typer.Option("--fail-on", help="Lowest severity with exit code 1.")
]
LedgerComplete = Annotated[
    bool,
    typer.Option(
        "--ledger-complete",
        help="Complete ledgers: a record that none of them names is wrong.",
    ),
]
Debug = Annotated[bool, typer.Option("--debug", help="Traceback of a failure.")]


@app.command()
def run(
    paths: Directories,
    *,
    ledgers: Ledgers = None,
    cluster: ClusterFile = None,
    master: Master = "local[*]",
    out: Out = DEFAULT_OUT,
    batches: Batches = None,
    scan: ScanBy = Scanner.AUTO,
    checks: Checks = None,
    fail_on: FromSeverity = FailOn.ERROR,
    ledger_complete: LedgerComplete = False,
    output: Format = OutputFormat.TEXT,
    debug: Debug = False,
) -> None:
    """Compare the logs of all replicas, and say whether what was acknowledged is there.

    The exit code is 0 if all is clean, 1 if something was found, 2 if not all could be checked,
    3 if the audit itself failed. The brokers' files are only read, and brokers may be running; the
    report is report.html in the --out directory.
    """
    _need_extra(PLAIN + SPARK)
    _check_names(checks or [])
    if batches is not None and not urlsplit(batches).scheme:
        raise typer.BadParameter(f"{batches!r} is no URI: begin with hdfs://, s3a:// or file://")
    export = metadata_reader(paths, cluster)
    with failures_as_exit_codes(debug), interruptible():
        from minibroker.audit.files.directories import find_brokers
        from minibroker.audit.model import Scan, Severity
        from minibroker.audit.run import AuditOptions, run_audit
        from minibroker.audit.session import spark_session
        from minibroker.cli.audit.text import shown_progress

        find_brokers(paths)  # refuses paths that cannot be audited, before Spark is started
        prepare_output(out)
        options = AuditOptions(
            paths=tuple(paths),
            out=out,
            ledgers=tuple(ledgers or ()),
            batches=batches,
            scan=Scan(scan),
            export=export,
            checks=tuple(checks or ()),
            fail_on=Severity(fail_on),
            is_ledger_complete=ledger_complete,
        )
        with shown_progress() as progress:
            spark = spark_session(master)
            try:
                summary = run_audit(spark, options, progress)
            finally:
                spark.stop()
    _print_result(summary, out, output)


@app.command()
def report(
    out: Annotated[
        Path, typer.Argument(metavar="OUT", help="Directory that `audit run` has written.")
    ],
    *,
    output: Format = OutputFormat.TEXT,
    debug: Debug = False,
) -> None:
    """Print an audit's verdict again and rewrite its report.html, without Spark.

    The exit code is that of the audit.
    """
    _need_extra(PLAIN)
    from pyarrow import ArrowInvalid

    from minibroker.audit.report.page import read_findings, write_report
    from minibroker.audit.summary import Summary

    try:
        summary = Summary.from_json((out / "summary.json").read_text(encoding="utf-8"))
        findings = read_findings(out)
    except (OSError, ValueError, ArrowInvalid) as error:
        raise Failure(f"{out} holds no report of an audit: {error}", USAGE) from None
    with failures_as_exit_codes(debug):
        write_report(summary, findings, out)
    _print_result(summary, out, output)


@app.command("checks")
def list_checks() -> None:
    """List the checks, and what each finds."""
    _need_extra(PLAIN)
    from minibroker.audit.catalogue import CHOSEN, DESCRIBED

    width = max(map(len, DESCRIBED))
    for name, described in DESCRIBED.items():
        always = "" if name in CHOSEN else " (always looked for; --check does not take it)"
        print(f"{name:{width}}  {described.looks_for}{always}")


@contextmanager
def failures_as_exit_codes(debug: bool) -> Iterator[None]:
    """Turn every error inside into its exit code and one line."""
    try:
        yield
    except Failure:
        raise
    except KeyboardInterrupt:  # Spark has replaced our signal handler
        raise Interrupted(signal.SIGINT) from None
    except Exception as error:
        if debug:
            traceback.print_exception(error)
        what = _message_of(error)
        if type(error).__name__ in _OF_USER:
            raise Failure(what, USAGE) from None
        raise Failure(f"the audit failed: {what}", AUDIT_FAILED) from None


def _message_of(error: Exception) -> str:
    """Return an error's text without the Java stack trace that Spark includes in it."""
    lines = takewhile(lambda line: not line.startswith("\tat "), str(error).splitlines())
    return " ".join(" ".join(lines).split())[:CHARACTERS_MAX] or type(error).__name__


def _need_extra(wanted: Sequence[str]) -> None:
    """Raise a usage `Failure` if a package of the audit's extra is missing."""
    from importlib.util import find_spec

    if missing := [name for name in wanted if find_spec(name) is None]:
        raise Failure(
            f"the audit needs {', '.join(missing)}: pip install 'minibroker[audit]'", USAGE
        )


def _check_names(given: list[str]) -> None:
    from minibroker.audit.catalogue import CHOSEN

    for name in given:
        if name not in CHOSEN:
            raise typer.BadParameter(f"there is no check {name!r}; there are {', '.join(CHOSEN)}")


def prepare_output(out: Path) -> None:
    """Create an empty directory for the report; an older audit's files there are removed."""
    there = sorted(out.iterdir()) if out.is_dir() else [out] if out.exists() else []
    for path in there:
        if path == out or path.name not in WRITTEN:
            raise Failure(f"{out} holds what is no report: {path.name}; name another --out", USAGE)
    out.mkdir(parents=True, exist_ok=True)
    for path in there:
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def metadata_reader(paths: list[Path], named: Path | None) -> Callable[[], object] | None:
    """Return a function that reads the metadata when the audit needs them; None without any."""
    beside = [place / STORE for path in paths for place in (path, path.absolute().parent)]
    found = {store.resolve() for store in beside if store.is_file()}
    if named is None and len(found) > 1:
        stores = ", ".join(map(str, sorted(found)))
        raise Failure(f"there are several, so name one with --cluster: {stores}", USAGE)
    source = named or next(iter(found), None)
    if source is None:
        return None

    def read() -> object:
        from minibroker.broker.metadata.store import StoreError
        from minibroker.cli.cluster.export import export_store

        try:
            return export_store(source) if named is None else json.loads(source.read_bytes())
        except Failure as failure:  # its exit code 1 would be a verdict
            raise Failure(str(failure), USAGE) from None
        except (StoreError, OSError, ValueError, RecursionError) as error:
            raise Failure(f"{source} cannot be read: {error}", USAGE) from None

    return read


def _print_result(summary: "Summary", out: Path, output: OutputFormat) -> None:
    """Print the result, and end with its exit code even if the reader closes the output early."""
    from minibroker.audit.report.page import read_findings
    from minibroker.audit.summary import in_order
    from minibroker.cli.audit.text import lines

    is_json = output is OutputFormat.JSON
    try:
        if is_json:
            print(summary.to_json(), end="")
        else:
            for line in lines(summary, in_order(read_findings(out)), out):
                print(line)
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        # The reader has closed the output; Python must not complain when it flushes.
        if sys.stdout is not None:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    raise typer.Exit(summary.exit_code)
