"""`minibroker audit` as a command: what it prints, what it refuses, how it ends.

Whether it judges rightly is tested in tests/audit; nothing here starts Spark.
"""

import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from minibroker.audit.catalogue import CHOSEN, DESCRIBED
from minibroker.audit.files.cluster import InvalidExport
from minibroker.audit.files.directories import UsageError
from minibroker.audit.model import Finding, Severity
from minibroker.audit.report.page import write_findings
from minibroker.audit.summary import Summary
from minibroker.cli.audit.commands import (
    WRITTEN,
    failures_as_exit_codes,
    metadata_reader,
    prepare_output,
)
from minibroker.cli.audit.text import FINDINGS_MAX
from minibroker.cli.terminal import Failure, Interrupted
from tests.unit.audit.sample import NASTY, sample_findings, sample_partitions, sample_summary

COMMAND = (sys.executable, "-m", "minibroker.cli", "audit")
WITHOUT = """
import sys
missing, *arguments = sys.argv[1:]
sys.modules |= dict.fromkeys(missing.split(","))
from minibroker.cli.main import main
sys.argv = ["minibroker", "audit", *arguments]
main()
"""
PROGRESS = """
from minibroker.audit.progress import Progress
from minibroker.cli.audit.text import shown_progress
with shown_progress() as show:
    show(Progress("reading the logs", bytes_total=96_100_000))
    show(Progress("reading the logs", 3, 12, 24_000_000, 96_100_000))
"""


def audit(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run it, and wait for it."""
    given = [*COMMAND, *map(str, arguments)]
    return subprocess.run(given, capture_output=True, text=True, check=False)


def write(out: Path, findings: list[Finding], summary: Summary | None = None) -> Path:
    """What an audit with these findings would have left."""
    out.mkdir(exist_ok=True)
    summary = summary or sample_summary(findings, [*sample_partitions()])
    (out / "summary.json").write_text(summary.to_json(), encoding="utf-8")
    write_findings(findings, out)
    return out


def test_a_report_is_told_again(tmp_path: Path) -> None:
    """The verdict first, then the findings with their places, and where the page is, made anew."""
    out = write(tmp_path / "out", sample_findings())
    done = audit("report", out)
    lines = done.stdout.splitlines()
    assert done.returncode == 1
    assert lines[0] == (
        "4 errors and 3 warnings: an acknowledged record of orders-0 is gone at offset 61,223"
        " on broker 2."
    )
    assert lines[-2] == "Read: batches, 96.1 MB by 6 tasks of Spark; index, 96.1 MB by the driver"
    assert lines[-1] == f"Report: {out / 'report.html'}"
    at = next(n for n, line in enumerate(lines) if line.startswith("error  "))
    assert " ".join(lines[at].split()) == "error divergence orders-0 broker 2 offset 61,220"
    assert "identity 6f2a" in lines[at + 1]
    assert lines[1] == ("Is anything lost? Yes: 1 acknowledged record, on no replica.")
    assert lines[2].startswith("Which copies are bad? Broker 2: orders-0; whole on broker")
    assert lines[3].startswith("  1. ")
    assert lines[at + 2].strip() == (
        "00000000000000040000.log at 1,048,576: minibroker log dump"
        " cluster/broker-2/orders-0/00000000000000040000.log"
    )
    assert any(line.startswith("Not judged: clicks-1 on broker 3: above") for line in lines)
    assert lines[0] in (out / "report.html").read_text(encoding="utf-8")
    assert done.stderr == ""


def test_what_was_in_a_damaged_file_cannot_speak_to_the_terminal(tmp_path: Path) -> None:
    """Escape sequences and the like are spelled out."""
    finding = Finding("crc", Severity.ERROR, "\x1b[2J" + NASTY, 0, 1, detail="\x1b]0;x\x07")
    done = audit("report", write(tmp_path / "out", [finding]))
    assert "\\x1b[2J<script>" in done.stdout
    assert done.stdout.replace("\n", "").isprintable()


def test_a_report_as_json_is_its_summary(tmp_path: Path) -> None:
    """Nothing else goes to stdout, and the exit code is the same."""
    out = write(tmp_path / "out", sample_findings())
    done = audit("report", out, "--format", "json")
    assert done.stdout == (out / "summary.json").read_text(encoding="utf-8")
    assert json.loads(done.stdout)["exit_code"] == done.returncode == 1


def test_few_of_many_findings_are_printed(tmp_path: Path) -> None:
    """The first of each kind in each log, so that hundreds of one hide no other; and how many
    there are besides."""
    findings = [
        Finding("index", Severity.INFO, "t", partition, 1, offset=n)
        for partition in range(FINDINGS_MAX + 5)
        for n in range(10)
    ]
    done = audit("report", write(tmp_path / "out", findings))
    assert done.returncode == 0
    assert done.stdout.count("\ninfo ") == FINDINGS_MAX
    assert done.stdout.count("offset 0\n") == FINDINGS_MAX
    assert done.stdout.count("    and 9 more like it in this log\n") == FINDINGS_MAX
    assert "... and 50 more faults\n" in done.stdout


def test_the_verdict_is_told_also_if_nobody_reads_to_the_end(tmp_path: Path) -> None:
    """A closed pipe does not turn findings into success."""
    out = write(tmp_path / "out", sample_findings())
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [*COMMAND, "report", out], stdout=writing, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.parametrize("missing", ["summary.json", "findings.parquet"])
@pytest.mark.parametrize("text", [None, "", "no JSON"])
def test_what_is_no_report_is_refused(tmp_path: Path, missing: str, text: str | None) -> None:
    """One line and exit code 2, whichever file is not what it should be."""
    out = write(tmp_path / "out", [])
    (out / missing).unlink()
    if text is not None:
        (out / missing).write_text(text)
    done = audit("report", out)
    assert done.returncode == 2
    assert done.stderr.startswith(f"% ERROR: {out} holds no report of an audit: ")
    assert done.stderr.count("\n") == 1


def test_the_checks_are_listed_and_others_are_refused(tmp_path: Path) -> None:
    """A mistyped name is answered with those there are; one that cannot be asked for says so."""
    listed = audit("checks").stdout.splitlines()
    assert [line.split()[0] for line in listed] == list(DESCRIBED)
    always = [line.split()[0] for line in listed if "always looked for" in line]
    assert always == [name for name in DESCRIBED if name not in CHOSEN]
    done = audit("run", tmp_path, "--check", "crcs", "--out", tmp_path / "out")
    assert done.returncode == 2
    assert all(name in done.stderr.replace("\n", " ") for name in CHOSEN[:3])
    assert not (tmp_path / "out").exists()


def test_a_directory_that_is_none_of_a_broker_is_refused_at_once(tmp_path: Path) -> None:
    """Before Spark is started, and before anything is written."""
    done = audit("run", tmp_path, "--out", tmp_path / "out")
    assert done.returncode == 2
    assert done.stderr.startswith("% ERROR: ")
    assert str(tmp_path) in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


def without(missing: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """The same where these libraries are not installed."""
    given = [sys.executable, "-c", WITHOUT, missing, *map(str, arguments)]
    return subprocess.run(given, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("command", [["run", "."], ["report", "."], ["checks"]])
def test_without_the_extra_it_says_how_to_get_it(command: list[str]) -> None:
    """Who installs brokers only gets one line, not a traceback."""
    done = without("pyarrow", *command)
    assert done.returncode == 2
    assert done.stderr == "% ERROR: the audit needs pyarrow: pip install 'minibroker[audit]'\n"


def test_only_an_audit_needs_spark(tmp_path: Path) -> None:
    """Its report can be read where there is no Spark."""
    out = write(tmp_path / "out", sample_findings())
    spark = "pyspark,xxhash"
    assert "the audit needs pyspark, xxhash: pip" in without(spark, "run", ".").stderr
    told = without(spark, "report", out)
    assert (told.returncode, told.stderr) == (1, "")
    assert told.stdout == audit("report", out).stdout
    assert without(spark, "checks").stdout == audit("checks").stdout


@pytest.mark.parametrize(
    ("error", "exit_code", "words"),
    [
        (RuntimeError("the JVM\n  is gone"), 3, "the audit failed: the JVM is gone"),
        (
            RuntimeError("calling o1.\n: java.lang.X: no\n\tat a.b(C)\n"),
            3,
            "java.lang.X: no$",
        ),
        (OSError(28, "No space left on device"), 3, "the audit failed: .*No space left on device"),
        (AssertionError(), 3, "the audit failed: AssertionError"),
        (UsageError("no data directory"), 2, "^no data directory$"),
        (InvalidExport("it is no JSON"), 2, "^it is no JSON$"),
        (Failure("the store is gone", 2), 2, "^the store is gone$"),
    ],
)
def test_every_failure_has_its_exit_code(error: Exception, exit_code: int, words: str) -> None:
    """3 for what broke, 2 for what was given; never 0 or 1, which are verdicts."""
    with pytest.raises(Failure, match=words) as raised, failures_as_exit_codes(debug=False):
        raise error
    assert raised.value.exit_code == exit_code


def test_an_interrupted_audit_ends_as_a_shell_expects() -> None:
    """Spark's own handler of SIGINT raises KeyboardInterrupt."""
    with pytest.raises(Interrupted) as raised, failures_as_exit_codes(debug=False):
        raise KeyboardInterrupt
    assert raised.value.exit_code == 128 + signal.SIGINT


def test_a_traceback_is_shown_if_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    """The exit code stays that of a failure."""
    with pytest.raises(Failure) as raised, failures_as_exit_codes(debug=True):
        raise RuntimeError("lost")
    assert raised.value.exit_code == 3
    assert 'raise RuntimeError("lost")' in capsys.readouterr().err


def test_an_older_report_is_replaced_and_nothing_else(tmp_path: Path) -> None:
    """Its files are gone before the audit begins, so a failed one leaves no old verdict."""
    out = tmp_path / "a" / "out"
    prepare_output(out)
    write(out, [])
    (out / "batches.parquet").mkdir()
    (out / "batches.parquet" / "part-0.parquet").touch()
    assert {path.name for path in out.iterdir()} < WRITTEN
    prepare_output(out)
    assert list(out.iterdir()) == []
    (out / "summary.json").touch()
    (out / "00000000000000000000.log").touch()
    with pytest.raises(Failure, match=r"what is no report: 00000000000000000000\.log") as refused:
        prepare_output(out)
    assert refused.value.exit_code == 2
    assert len(list(out.iterdir())) == 2
    with pytest.raises(Failure, match="what is no report"):
        prepare_output(out / "summary.json")


def test_the_metadata_is_found_or_named(tmp_path: Path) -> None:
    """In a cluster's directory or beside a broker's; of several, one must be named."""
    for name in ("one", "two"):
        (tmp_path / name / "broker-1").mkdir(parents=True)
        assert metadata_reader([tmp_path / name], None) is None
        (tmp_path / name / "metadata.db").write_bytes(b"no database")
    broker, cluster = tmp_path / "one" / "broker-1", tmp_path / "one"
    for paths in ([cluster], [broker], [cluster, broker]):
        read = metadata_reader(paths, None)
        assert read is not None
        with pytest.raises(Failure, match=r"one/metadata\.db cannot be read") as refused:
            read()
        assert refused.value.exit_code == 2
    with pytest.raises(Failure, match="name one with --cluster"):
        metadata_reader([cluster, tmp_path / "two"], None)
    named = tmp_path / "cluster.json"
    named.write_text('{"version": 1}')
    read = metadata_reader([cluster, tmp_path / "two"], named)
    assert read is not None
    assert read() == {"version": 1}
    named.write_text("{")
    with pytest.raises(Failure, match="cannot be read"):
        read()


def test_metadata_that_are_not_there_are_no_verdict(tmp_path: Path) -> None:
    """Whoever exports an empty store, or one that is gone by then, hears 1; an audit says 2."""
    store = tmp_path / "metadata.db"
    store.touch()
    read = metadata_reader([tmp_path], None)
    assert read is not None
    with pytest.raises(Failure, match=r"metadata\.db is empty") as empty:
        read()
    store.unlink()
    with pytest.raises(Failure, match=r"metadata\.db is not there") as gone:
        read()
    assert (empty.value.exit_code, gone.value.exit_code) == (2, 2)


def test_progress_is_lines_where_nobody_watches() -> None:
    """Stage, tasks and bytes; not a line a moment."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRESS], capture_output=True, text=True, check=True
    )
    assert done.stdout == ""
    assert done.stderr.splitlines() == [
        "% starting Spark ...",
        "% reading the logs: 0 B of 96.1 MB",
    ]


def test_progress_is_a_bar_on_a_terminal() -> None:
    """It is redrawn in place, and gone at the end."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "COLUMNS": "120", "TERM": "xterm"}
    subprocess.run([sys.executable, "-c", PROGRESS], stderr=theirs, env=environment, check=True)
    os.close(theirs)
    shown = os.read(ours, 1 << 16).decode()
    os.close(ours)
    assert "reading the logs" in shown
    assert "3 of 12 tasks, 24.0 MB of 96.1 MB" in shown
    assert shown.rstrip().endswith("\x1b[2K")
