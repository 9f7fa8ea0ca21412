"""`minibroker audit run` as a user runs it: a process, from the directories to the exit code."""

import random
import re
import subprocess
import sys
from pathlib import Path

from minibroker.audit.report.page import read_findings
from minibroker.audit.summary import Summary
from minibroker.cli.audit.commands import WRITTEN
from tests.support.damage import FAULTS, Replica
from tests.support.made_cluster import NODES, TOPIC, make_cluster

COMMAND = (sys.executable, "-m", "minibroker.cli", "audit")


def audit(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run it, and wait for it."""
    given = [*COMMAND, *map(str, arguments)]
    return subprocess.run(given, capture_output=True, text=True, check=False)


def test_a_flipped_byte_is_found_and_told(tmp_path: Path) -> None:
    """Exit code 1, a sentence that names the place, all four files, progress on stderr; `report`
    says the same again."""
    root, out = tmp_path / "cluster", tmp_path / "out"
    root.mkdir()
    export = make_cluster(root, partition_count=1)
    replica = Replica(root / f"broker-{NODES[1]}", TOPIC, 0)
    planted = FAULTS[0](replica, random.Random(1))
    checks = ("--check", "crc", "--check", "unseen")
    wanted = ("--cluster", export, *checks, "--out", out, "--master", "local[2]", "--scan", "spark")
    done = audit("run", root, *wanted)
    assert done.returncode == 1, done.stderr
    found = [each for each in read_findings(out) if each.check == "crc"]
    assert [(each.broker, each.offset) for each in found] == [(planted.broker, planted.offset)]
    lines = done.stdout.splitlines()
    assert f"{TOPIC}-0 is damaged at offset {planted.offset:,} on broker 2" in lines[0]
    assert any(f"minibroker log dump {planted.path}" in line for line in lines)
    assert re.match(r"Read: batches, [\d.]+ kB by 1 task of Spark", lines[-2])
    assert {path.name for path in out.iterdir()} == WRITTEN
    summary = Summary.from_json((out / "summary.json").read_text(encoding="utf-8"))
    assert [run.name for run in summary.checks] == ["crc", "unseen"]
    asked = "unseen was asked for, and not run: no ledger was given"
    assert [(each.reason, each.holds_back) for each in summary.unjudged] == [(asked, True)]
    told = done.stderr.splitlines()
    assert told[0] == "% starting Spark ..."
    assert all(line.startswith("% ") for line in told)
    assert audit("report", out).stdout == done.stdout


def test_a_spark_that_cannot_be_had_is_a_failure(tmp_path: Path) -> None:
    """Exit code 3 and one line: what happened says nothing about the logs."""
    root = tmp_path / "cluster"
    root.mkdir()
    make_cluster(root, partition_count=1)
    done = audit("run", root, "--master", "nonsense", "--out", tmp_path / "out")
    assert done.returncode == 3
    *_, last = done.stderr.splitlines()
    assert last.startswith("% ERROR: the audit failed: ")
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
