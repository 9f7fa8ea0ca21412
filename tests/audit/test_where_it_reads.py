"""What is small the driver reads by itself; what the executors read must come to the same."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import reduce
from itertools import pairwise
from operator import and_, itemgetter
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from minibroker.audit.checks import local_frames, stored_transactions
from minibroker.audit.checks.cached import caching
from minibroker.audit.checks.facts import ask_runs, log_facts, runs_of
from minibroker.audit.checks.local_frames import from_rows, local_frame, local_rows
from minibroker.audit.checks.producers import ask_wrong, is_known_sound
from minibroker.audit.checks.stored_transactions import transactions, uncommitted_offsets
from minibroker.audit.files.directories import (
    STOPPED,
    LogDirectory,
    Replica,
    UsageError,
    find_brokers,
)
from minibroker.audit.files.inputs import Inputs, read_inputs
from minibroker.audit.files.ledger import ledger_chunks, ledger_table
from minibroker.audit.model import PRODUCERS, REPLICAS, Finding, Scan, Tables
from minibroker.audit.run import AuditOptions, run_audit
from minibroker.audit.source import TABLES, read_table
from minibroker.audit.summary import Reading, Summary
from tests.audit.checks.rows import tables
from tests.audit.corrupted import corrupt_all
from tests.support.audited import audit
from tests.support.made_cluster import BATCHES, NODES, RECORDS, TOPIC, Commit, make_cluster
from tests.support.made_transactions import ABORT_AT, ABORTED_AT, OPEN_AT, make_transactions

PARTITIONS = 24
CORRUPTED = 20
# One check at least of batches, records, bodies, indexes, the groups' offsets and the ledger.
OF_EACH_TABLE = ("crc", "undecodable", "index", "committed-offset", "lost-write")
FLAGS = ("has_bad_crc", "has_odd", "has_transactions")  # of torn bytes unknown to Spark
JOBS_MAX = 15  # of a small and sound cluster


def write_ledger(path: Path, *, is_right: bool) -> Path:
    """All records as acknowledged; if it is not right, the last one as another."""
    lines = [
        {
            "name": "producer_send_success",
            "topic": TOPIC,
            "partition": partition,
            "offset": number * RECORDS + n,
            "key": str(n),
            "value": f"{partition} {number} {n}",
        }
        for partition in range(PARTITIONS)
        for number in range(BATCHES)
        for n in range(RECORDS)
    ]
    if not is_right:
        lines[-1]["value"] = "another"
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return path


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three brokers' directories with damage in files of every kind."""
    root = tmp_path_factory.mktemp("damaged")
    make_cluster(root, CORRUPTED)
    corrupt_all(root, CORRUPTED, seed=3)
    return root


def without_times(summary: Summary) -> Summary:
    """What two audits of the same have in common."""
    checks = tuple(replace(check, seconds=0.0) for check in summary.checks)
    return replace(summary, started_at_ms=0, stages=(), readings=(), checks=checks)


@pytest.mark.parametrize("name", TABLES)
def test_driver_and_executors_read_the_same_rows(
    spark: SparkSession, damaged: Path, name: str
) -> None:
    """Of damaged logs, in each table of what lies on the disks."""
    logs = [log for broker in find_brokers([damaged]) for log in broker.logs]
    here, there = (
        read_table(spark, logs, name, scan=scan).toArrow().to_pylist()
        for scan in (Scan.DRIVER, Scan.SPARK)
    )
    assert sorted(here, key=repr) == sorted(there, key=repr)
    assert here or name == "bodies"


def test_driver_and_spark_make_the_same_runs(spark: SparkSession, damaged: Path) -> None:
    """Of all batches; only the hashes are others."""
    logs = [log for broker in find_brokers([damaged]) for log in broker.logs]
    batches = read_table(spark, logs)
    rows = local_rows(batches)
    assert rows is not None
    asked = ask_runs(batches)
    found = runs_of(rows, asked.schema).to_pylist()
    expected = asked.toArrow().to_pylist()
    assert any(run["torn"] for run in expected)
    assert not all(run["is_chain"] for run in expected)
    for run in (*found, *expected):
        for name in ("links", "digest", *(FLAGS if run["torn"] else [])):
            del run[name]
    assert sorted(found, key=repr) == sorted(expected, key=repr)


def test_driver_and_spark_agree_whose_sequences_are_sound(
    spark: SparkSession, damaged: Path
) -> None:
    """The driver calls those logs sound in which Spark finds nothing."""
    inputs = read_inputs([damaged], lambda: None)
    logs = list(inputs.logs)
    whole = tables_of(spark, logs, inputs)
    wrong = {Replica(row.broker, row.topic, row.partition) for row in ask_wrong(whole).collect()}
    unsound = {log.replica for log in logs if not is_known_sound(part_of(whole, log.replica))}
    assert unsound == wrong
    assert 0 < len(wrong) < len(logs)


def tables_of(spark: SparkSession, logs: Sequence[LogDirectory], inputs: Inputs) -> Tables:
    """What the checks of producers are given of some logs, which the driver holds."""
    replicas = {log.replica for log in logs}
    batches = read_table(spark, logs)
    facts = log_facts(batches)
    known = [
        replica.columns
        | {"first_offset": each.first_offset, "log_end": each.log_end, "state": STOPPED}
        for replica, each in facts.items()
    ]
    producers = [row for row in inputs.producers if row[:3] in replicas]
    return replace(
        tables(spark),
        batches=batches,
        replicas=local_frame(
            spark, pa.Table.from_pylist(known, schema=REPLICAS), from_arrow_schema(REPLICAS)
        ),
        producers=from_rows(spark, PRODUCERS, producers),
    )


def part_of(whole: Tables, replica: Replica) -> Tables:
    """What these tables say of one log."""
    is_of_log = reduce(and_, (pc.field(name) == value for name, value in replica.columns.items()))
    parts = {}
    for name in ("batches", "producers", "replicas"):
        frame = getattr(whole, name)
        rows = local_rows(frame)
        assert rows is not None, "the driver holds them"
        parts[name] = local_frame(frame.sparkSession, rows.filter(is_of_log), frame.schema)
    return replace(whole, **parts)


def test_driver_and_executors_parse_the_same_lines(spark: SparkSession, tmp_path: Path) -> None:
    """Of a ledger."""
    chunks, problems = ledger_chunks([write_ledger(tmp_path / "ledger", is_right=True)], 10_000)
    assert (len(chunks) > 1, problems) == (True, [])
    here, there = (
        ledger_table(spark, chunks, scan=scan).toArrow().to_pylist()
        for scan in (Scan.DRIVER, Scan.SPARK)
    )
    assert sorted(here, key=itemgetter("line")) == sorted(there, key=itemgetter("line"))


@pytest.mark.soak
def test_driver_and_executors_find_the_same(spark: SparkSession, tmp_path: Path) -> None:
    """On damaged logs, with groups and a ledger."""
    root = tmp_path / "cluster"
    make_cluster(root, PARTITIONS, [Commit("readers", n, 4) for n in range(PARTITIONS)])
    corrupt_all(root, CORRUPTED, seed=3)
    ledger = write_ledger(tmp_path / "ledger", is_right=False)
    found: list[tuple[Summary, list[Finding]]] = []
    for scan in (Scan.DRIVER, Scan.SPARK):
        out = tmp_path / f"out-{scan}"
        summary, findings = audit(spark, root, out, [ledger], OF_EACH_TABLE, scan=scan)
        found.append((without_times(summary), findings))
    assert {finding.check for finding in found[0][1]} >= {"crc", "index", "lost-write"}
    assert found[0] == found[1]


def test_a_sound_cluster_costs_few_jobs(spark: SparkSession, tmp_path: Path) -> None:
    """Without a ledger nothing is planned of which Spark, or the driver, knows that it comes to
    nothing."""
    make_cluster(tmp_path, PARTITIONS)
    context = spark.sparkContext
    context.setJobGroup("counting", "which numbers jobs have")
    spark.range(1).count()
    summary, findings = audit(spark, tmp_path, tmp_path / "out")
    spark.range(1).count()
    jobs = sorted(context.statusTracker().getJobIdsForGroup("counting"))
    context.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]
    assert (summary.exit_code, findings) == (0, [])
    # A count may be more than one job; those of the audit lie in between.
    assert max(after - before for before, after in pairwise(jobs)) <= JOBS_MAX


@pytest.fixture(scope="module")
def with_transactions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three brokers' directories with transactions of all outcomes."""
    root = tmp_path_factory.mktemp("transactions")
    make_transactions(root, [lambda maker: maker.records(3), lambda maker: None])
    return root


@pytest.mark.parametrize("brokers", [1, 3])
@pytest.mark.parametrize("scan", [Scan.DRIVER, Scan.SPARK])
@pytest.mark.parametrize("is_small", [True, False])
def test_uncommitted_offsets_cost_a_job_at_most(
    spark: SparkSession,
    with_transactions: Path,
    monkeypatch: pytest.MonkeyPatch,
    brokers: int,
    scan: Scan,
    is_small: bool,
) -> None:
    """However many directories there are, and none if the driver holds the transactions."""
    for module in () if is_small else (local_frames, stored_transactions):
        monkeypatch.setattr(module, "ROWS_MAX", 2)
    paths = [with_transactions / f"broker-{number}" for number in NODES[:brokers]]
    logs = [log for broker in find_brokers(paths) for log in broker.logs]
    with caching():
        batches = read_table(spark, logs, scan=scan)
        transactions(batches).count()
        jobs: list[int] = []
        with counting(spark, jobs):
            found = uncommitted_offsets(batches)
        rows = sorted(tuple(row) for row in found.collect())
    assert len(jobs) == (0 if is_small else 1)
    aborted = range(ABORTED_AT, ABORT_AT)
    opened = [(0, offset, "open") for offset in range(OPEN_AT, OPEN_AT + 3)]
    wanted = [(number, offset, "abort") for number in (0, 1) for offset in aborted]
    assert rows == sorted(
        (broker, TOPIC, partition, offset, outcome)
        for broker in NODES[:brokers]
        for partition, offset, outcome in (*wanted, *opened)
    )


@contextmanager
def counting(spark: SparkSession, jobs: list[int]) -> Iterator[None]:
    """Add the numbers of the jobs that this thread starts inside the `with` block."""
    context: Any = spark.sparkContext
    group = f"counted-{uuid4()}"
    context.setJobGroup(group, "")
    try:
        yield
    finally:
        context.setLocalProperty("spark.jobGroup.id", None)
        context._jsc.sc().listenerBus().waitUntilEmpty()  # it tells the tracker of jobs
        jobs += context.statusTracker().getJobIdsForGroup(group)


def test_the_table_of_batches_may_lie_in_a_shared_file_system(
    spark: SparkSession, tmp_path: Path
) -> None:
    """One that only Spark's Hadoop client reads; the findings are the same, and so is a place that
    is taken refused."""
    logs = tmp_path / "logs"
    logs.mkdir()
    make_cluster(logs, 2)
    (tmp_path / "shared").mkdir()
    context: Any = spark.sparkContext
    settings = context._jsc.hadoopConfiguration()
    settings.set("fs.viewfs.mounttable.cluster.link./shared", (tmp_path / "shared").as_uri())
    address = "viewfs://cluster/shared/batches"
    for name in ("inside", "outside"):
        (tmp_path / name).mkdir()
    inside = run_audit(spark, AuditOptions([logs], tmp_path / "inside"))
    options = AuditOptions([logs], tmp_path / "outside", batches=address)
    outside = run_audit(spark, options)
    assert without_times(outside) == without_times(inside)
    # The driver cannot write there, so Spark reads.
    size = sum(path.stat().st_size for path in logs.rglob("*.log"))
    assert inside.readings[0] == Reading("batches", size)
    assert outside.readings[0] == Reading("batches", size, tasks=1)
    assert list((tmp_path / "shared" / "batches").glob("*.parquet"))
    assert not (tmp_path / "outside" / "batches.parquet").exists()
    with pytest.raises(UsageError, match="is there already"):
        run_audit(spark, options)
    with pytest.raises(UsageError, match="leave out --scan"):
        run_audit(spark, replace(options, scan=Scan.DRIVER))
