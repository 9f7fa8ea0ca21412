"""One audit from the paths to the report.

    read what is small -> scan the segments into batches.parquet -> how far each partition is judged
    -> the checks, each a function of the tables -> findings.parquet, summary.json, report.html

The segments are read once, and every check works on the resulting table. Only the indexes and the
records of the ledgers' topics and of the offsets topic are read when their checks need them. The
driver keeps only what is small: a row per log, a row per leader epoch, and the findings.
"""

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import astuple, dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import broadcast, coalesce, col, lit
from pyspark.sql.pandas.types import from_arrow_schema

from minibroker.audit.arrow import compute as pc
from minibroker.audit.checks import compaction, ledgers
from minibroker.audit.checks.cached import caching, in_context
from minibroker.audit.checks.doubts import brokers_named
from minibroker.audit.checks.extent import ReplicaRow, judge
from minibroker.audit.checks.facts import equal_logs, log_facts
from minibroker.audit.checks.file_lists import emptied, skipping
from minibroker.audit.checks.findings import OF_CHECK_MAX, keep_worst
from minibroker.audit.checks.groups import group_offsets, marks
from minibroker.audit.checks.local_frames import (
    ROWS_MAX,
    from_rows,
    local_frame,
    local_rows,
    will_be_empty,
)
from minibroker.audit.checks.log_ends import LogFacts, ReplicaFacts
from minibroker.audit.checks.registry import CHECKS, missing_input
from minibroker.audit.checks.stored_commits import committed_by_groups, stored_by_groups
from minibroker.audit.checks.stored_states import stored_by_coordinators
from minibroker.audit.checks.stored_transactions import has_transactions, uncommitted_offsets
from minibroker.audit.checks.transactions import transactions_seen
from minibroker.audit.files.cluster import Assignment, Cluster, cluster_of
from minibroker.audit.files.directories import (
    LogDirectory,
    Replica,
    UsageError,
    find_brokers,
)
from minibroker.audit.files.inputs import Inputs, read_inputs
from minibroker.audit.files.ledger import (
    Chunk,
    is_ledger_read_here,
    ledger_chunks,
    ledger_digests,
    ledger_table,
    without_copies,
)
from minibroker.audit.files.transaction_indexes import read_aborted
from minibroker.audit.files.unreadable import (
    PROBLEM,
    UnreadableSegment,
    drop_removed,
    find_unreadable,
    removed_since,
    unjudged_files,
    unreadable_logs,
)
from minibroker.audit.files.written import WrittenBatches, count_batches, with_positions
from minibroker.audit.model import (
    ABORTED,
    BATCHES,
    EPOCH_STARTS,
    PRODUCERS,
    REPLICAS,
    Finding,
    Scan,
    Severity,
    Tables,
)
from minibroker.audit.progress import Jobs, Listener, Stages
from minibroker.audit.report.page import write_findings, write_report
from minibroker.audit.report.pictures import pictures
from minibroker.audit.session import interpreted
from minibroker.audit.source import (
    Piece,
    is_read_here,
    pieces_of,
    read_contents,
    read_pieces,
    read_table,
)
from minibroker.audit.summary import (
    BrokerSeen,
    CheckRun,
    GroupOffset,
    LedgerCounts,
    Reading,
    Sizes,
    Summary,
    TransactionsSeen,
    Unjudged,
    count_findings,
    in_order,
    plural,
    worst_of,
)
from minibroker.protocol.constants import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from minibroker.protocol.types import TopicPartition

BATCHES_FILE: Final = "batches.parquet"
SUMMARY_FILE: Final = "summary.json"
_CHECKS_AT_ONCE: Final = 4
INTERPRETED_BYTES_MAX: Final = 16 << 20  # of logs and ledgers: their checks are not compiled
_NAMED_MAX: Final = 5  # partitions, in a note


@dataclass(frozen=True, slots=True)
class AuditOptions:
    """What to audit, and where to write. `out` exists; the executors must see it too.

    `export` reads the metadata, as a decoded JSON value; it is called at the right moment for a
    live cluster. `checks` are names; empty means all. `is_ledger_complete`: the ledgers cover all
    records sent to the topics that they name. `scan`: who reads the files, the driver or Spark's
    tasks. `batches`: the URI for the table of batches, if it is not to lie in `out`; nothing exists
    there yet.
    """

    paths: Sequence[Path]
    out: Path
    ledgers: Sequence[Path] = ()
    export: Callable[[], object] | None = None
    checks: Sequence[str] = ()
    fail_on: Severity = Severity.ERROR
    is_ledger_complete: bool = False
    scan: Scan = Scan.AUTO
    batches: str | None = None


def run_audit(
    spark: SparkSession, options: AuditOptions, listener: Listener = lambda progress: None
) -> Summary:
    """Run an audit and write the four files. Raises UsageError, InvalidExport, and Spark's errors.

    The files exist once the call returns, even if nothing could be judged. The session may belong
    to the caller: at the end the audit removes only its own frames from the cache, and its jobs are
    a group of their own.
    """
    if options.batches is not None:
        written = WrittenBatches(options.batches, spark)
        if options.scan is Scan.DRIVER and written.path is None:
            raise UsageError(f"the driver cannot write to {options.batches}: leave out --scan")
        written.check_free()
    with caching(), Jobs(spark.sparkContext) as jobs:
        return _Run(spark, options, Stages(jobs, listener)).run()


@dataclass(slots=True)
class _Known:
    """What the run has found out so far."""

    findings: list[Finding] = field(default_factory=list)
    unjudged: list[Unjudged] = field(default_factory=list)
    checks: list[CheckRun] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    readings: list[Reading] = field(default_factory=list)
    capped: set[str] = field(default_factory=set)  # checks that found more than are kept
    groups: Sequence[GroupOffset] = ()
    group_count: int = 0
    transactions: TransactionsSeen | None = None


class _Run:
    """One run; each stage's result is passed to the next by hand."""

    def __init__(self, spark: SparkSession, options: AuditOptions, stages: Stages) -> None:
        self._spark = spark
        self._options = options
        self._stages = stages
        self._known = _Known()
        self._unreadable: list[UnreadableSegment] = []
        # On a cluster a bare path may be one of its own file system.
        inside = (options.out.resolve() / BATCHES_FILE).as_uri()
        self._written = WrittenBatches(options.batches or inside, spark)
        self._began_ms = time.time_ns() // 1_000_000

    def run(self) -> Summary:
        """Run all stages and return the summary."""
        with self._stages.stage("looking at the directories"):
            inputs = self._read_inputs()
        with self._stages.stage("reading the logs", _bytes_of(inputs)):
            batches = self._scan(inputs)
        with self._stages.stage("comparing how far they go"):
            facts = log_facts(batches)
            self._add_unreadable(inputs, facts)
            if inputs.hidden:
                batches = _without(batches, inputs.hidden)
            rows = self._judge(inputs, facts)
            sizes = _sizes(inputs, self._written)
        with self._stages.stage("running the checks"), self._interpreted(inputs):
            tables = self._tables(inputs, batches, rows)
            counts = self._check(tables)
        if inputs.is_live:
            self._drop_removed(inputs)
        with self._stages.stage("writing the report"):
            return self._write(inputs, facts, rows, sizes, counts)

    def _read_inputs(self) -> Inputs:
        inputs = read_inputs(self._options.paths, self._read_cluster)
        self._known.findings += inputs.findings
        self._known.unjudged += inputs.unjudged
        self._known.notes += inputs.notes
        if inputs.cluster is None:
            self._known.notes.append(
                "No metadata was given: every replica that is there counts as in sync."
            )
        return inputs

    def _read_cluster(self) -> Cluster | None:
        export = self._options.export
        return None if export is None else cluster_of(export())

    def _interpreted(self, inputs: Inputs) -> AbstractContextManager[None]:
        """Let Spark interpret the checks of a small input."""
        ledgers, _ = without_copies(self._options.ledgers)
        size = _bytes_of(inputs) + sum(path.stat().st_size for path in ledgers if path.exists())
        return interpreted(self._spark) if size <= INTERPRETED_BYTES_MAX else nullcontext()

    def _scan(self, inputs: Inputs) -> DataFrame:
        written, pieces = self._written, pieces_of(inputs.logs)
        master, scan = self._spark.sparkContext.master or "", self._options.scan
        if is_read_here(master, pieces, "batches", scan) and written.path is not None:
            self._known.readings.append(Reading("batches", _bytes_of(inputs)))
            written.write_here(self._read_here(pieces))
        else:
            written.write(self._read_table(inputs.logs, "batches", scan=Scan.SPARK))
        rows = written.read_small(ROWS_MAX)
        if rows is None:
            batches = written.frame()
        else:
            batches = local_frame(self._spark, rows, from_arrow_schema(BATCHES))
        self._unreadable = find_unreadable(written)
        if self._unreadable:
            is_unreadable = col("torn") & coalesce(col("problem").rlike(PROBLEM), lit(False))
            batches = batches.where(~is_unreadable)
        return batches

    def _read_here(self, pieces: Iterable[Piece]) -> Iterator[pa.RecordBatch]:
        for piece in pieces:
            yield from read_pieces("batches", [piece])
            self._stages.bytes_done += piece.size

    def _read_table(
        self,
        logs: Iterable[LogDirectory],
        name: str,
        keep: Callable[[pa.RecordBatch], pa.RecordBatch] | None = None,
        scan: Scan | None = None,
    ) -> DataFrame:
        scan = scan or self._options.scan
        tell = self._known.readings.append
        return read_table(self._spark, logs, name, scan=scan, keep=keep, tell=tell)

    def _judge(self, inputs: Inputs, facts: Mapping[Replica, LogFacts]) -> list[ReplicaRow]:
        assignments = inputs.cluster.assignments if inputs.cluster else None
        states = {broker.broker: broker.state for broker in inputs.brokers}
        found = [*_replica_facts(inputs, facts)]
        rows, unjudged = judge(found, assignments, states, inputs.hidden)
        self._known.unjudged += unjudged
        if not self._options.checks or "missing-committed" in self._options.checks:
            self._known.findings += emptied(inputs, rows)
        if not self._options.checks or "gap" in self._options.checks:
            self._known.findings += skipping(inputs, rows)
        if note := _left_in_sync(rows, assignments or {}):
            self._known.notes.append(note)
        if cleaned := [row for row in rows if row.cleaned_end]:
            self._known.notes.append(
                f"Compaction shows in {plural(len(cleaned), 'log')}: below the last batch that it"
                " has changed the last records of keys were compared, not all bytes."
            )
        return rows

    def _add_unreadable(self, inputs: Inputs, facts: Mapping[Replica, LogFacts]) -> None:
        """Record the segments that cannot be read, and hide their logs from the checks.

        What such a segment holds is unknown, so nothing can be said of what its log lacks. Whether
        the log must be judged is known from what can be read.
        """
        if not self._unreadable:
            return
        assignments = inputs.cluster.assignments if inputs.cluster else None
        states = {broker.broker: broker.state for broker in inputs.brokers}
        rows, _ = judge([*_replica_facts(inputs, facts)], assignments, states, inputs.hidden)
        self._known.unjudged += unjudged_files(self._unreadable, inputs.brokers, rows)
        inputs.hide(unreadable_logs(self._unreadable, inputs.brokers))

    def _tables(self, inputs: Inputs, batches: DataFrame, rows: Sequence[ReplicaRow]) -> Tables:
        paths, notes = without_copies(self._options.ledgers)
        self._known.notes += notes
        chunks, problems = ledger_chunks(paths)
        ledgers_read = tuple(dict.fromkeys(chunk.path for chunk in chunks))
        self._known.unjudged += (Unjudged(problem, holds_back=True) for problem in problems)
        ledger = self._read_ledger(chunks) if self._options.ledgers else None
        has_digests = ledger is not None and not is_ledger_read_here(chunks, self._options.scan)
        replicas = from_rows(self._spark, REPLICAS, map(astuple, rows))

        def records(topics: Collection[str], *, as_digests: bool = False) -> DataFrame:
            logs = [log for log in inputs.logs if log.topic in topics]
            equal = {} if inputs.is_live else equal_logs(batches)
            scan, tell = self._options.scan, self._known.readings.append
            return read_contents(
                self._spark, logs, equal, as_digests=as_digests, scan=scan, tell=tell
            )

        def bodies_of(names: Collection[TopicPartition]) -> DataFrame:
            logs = (log for log in inputs.logs if log.replica[1:] in names)
            return self._read_table(logs, "bodies")

        stored = None
        if any(row.topic == OFFSETS_TOPIC for row in rows):
            uncommitted = uncommitted_offsets(batches) if has_transactions(batches) else None
            stored = stored_by_groups(records([OFFSETS_TOPIC]), replicas, uncommitted)
        coordinated = None
        if any(row.topic == TRANSACTIONS_TOPIC for row in rows):
            coordinated = stored_by_coordinators(records([TRANSACTIONS_TOPIC]), replicas)

        def aborted() -> DataFrame:
            return local_frame(self._spark, read_aborted(inputs.logs), from_arrow_schema(ABORTED))

        return Tables(
            batches=batches,
            replicas=replicas,
            epoch_starts=from_rows(self._spark, EPOCH_STARTS, inputs.epoch_starts),
            producers=from_rows(self._spark, PRODUCERS, inputs.producers),
            index_entries=self._read_table(inputs.logs, "index", keep=_with_problem),
            bodies=self._read_table(_to_decode(inputs, rows), "bodies"),
            records=records,
            ledger=ledger,
            topic_ids=inputs.topic_ids,
            deleted_ids=inputs.cluster.deleted_ids if inputs.cluster else frozenset(),
            ledgers=ledgers_read,
            is_ledger_complete=self._options.is_ledger_complete,
            assignments=inputs.cluster.assignments if inputs.cluster else None,
            stored=stored,
            committed=None if stored is None else committed_by_groups(stored),
            bodies_of=bodies_of,
            aborted=aborted,
            coordinated=coordinated,
            as_of_ms=self._began_ms if inputs.is_live else _last_written_ms(inputs),
            ledger_digests=ledger_digests(self._spark, chunks) if has_digests else None,
            record_digests=partial(records, as_digests=True) if has_digests else None,
        )

    def _read_ledger(self, chunks: Sequence[Chunk]) -> DataFrame:
        scan, tell = self._options.scan, self._known.readings.append
        return ledger_table(self._spark, chunks, scan=scan, tell=tell)

    def _check(self, tables: Tables) -> LedgerCounts | None:
        """Run the requested checks, several at once, since Spark plans as long as it works.

        The last checks take longest, so they begin first.
        """
        names = tuple(self._options.checks or CHECKS)
        reasons = {name: missing_input(name, tables) for name in names}
        pool = ThreadPoolExecutor(_CHECKS_AT_ONCE)
        try:
            describe = self._stages.jobs.described
            counting = pool.submit(in_context(describe("counting", _count)), tables)
            checking = {
                name: pool.submit(in_context(describe(name, _run_check)), name, tables)
                for name in reversed(names)
                if not reasons[name]
            }
            marking = pool.submit(in_context(describe("groups", group_offsets)), tables)
            seeing = pool.submit(in_context(describe("transactions", transactions_seen)), tables)
            done = {name: future.result() for name, future in checking.items()}
            self._known.groups, self._known.group_count = marking.result()
            self._known.transactions = seeing.result()
            counts, unjudged = counting.result()
        finally:
            pool.shutdown(cancel_futures=True)
        for name, reason in reasons.items():
            findings, seconds = done.get(name, ([], 0.0))
            if len(findings) > OF_CHECK_MAX:
                findings.pop()
                self._known.capped.add(name)
                note = f"{name} found more than {OF_CHECK_MAX:,}; the worst are kept."
                self._known.notes.append(note)
            if name in ledgers.CHECKS or name in compaction.CHECKS:
                findings = [*with_positions(findings, self._written)]
            self._known.findings += findings
            self._known.checks.append(CheckRun(name, reason, seconds))
            if reason and self._options.checks:
                asked = Unjudged(f"{name} was asked for, and not run: {reason}", holds_back=True)
                self._known.unjudged.append(asked)
        self._known.unjudged += unjudged
        return counts

    def _drop_removed(self, inputs: Inputs) -> None:
        """Drop the findings in what was removed; the records, too, have been read by now."""
        removed = removed_since(inputs.brokers, find_brokers(self._options.paths))
        self._known.findings, unjudged = drop_removed(self._known.findings, removed)
        self._known.unjudged += unjudged

    def _write(
        self,
        inputs: Inputs,
        facts: Mapping[Replica, LogFacts],
        rows: Sequence[ReplicaRow],
        sizes: Sizes,
        ledger: LedgerCounts | None,
    ) -> Summary:
        findings = in_order(self._known.findings)
        summary = Summary(
            started_at_ms=self._began_ms,
            master=self._spark.sparkContext.master or "",
            fail_on=self._options.fail_on,
            cluster_id=next((broker.cluster_id for broker in inputs.brokers), None),
            brokers=tuple(
                BrokerSeen(found.broker, str(found.path), found.state, len(found.logs))
                for found in inputs.brokers
            ),
            stages=tuple(self._stages.finished),
            sizes=sizes,
            readings=tuple(each for each in self._known.readings if each.bytes),
            ledger=ledger,
            checks=tuple(self._known.checks),
            counts=count_findings(findings, self._known.capped),
            worst=worst_of(findings),
            unjudged=tuple(self._known.unjudged),
            notes=tuple(self._known.notes),
            partitions=tuple(pictures(inputs, facts, rows, marks(self._known.groups))),
            groups=tuple(self._known.groups),
            group_count=self._known.group_count,
            transactions=self._known.transactions,
        )
        out = self._options.out
        write_findings(findings, out)
        (out / SUMMARY_FILE).write_text(summary.to_json(), encoding="utf-8")
        write_report(summary, findings, out)
        return summary


def _without(batches: DataFrame, hidden: Collection[Replica]) -> DataFrame:
    """Return the batches of the other logs."""
    rows = local_rows(batches)
    if rows is not None:
        names = zip(*(rows[name].to_pylist() for name in Replica._fields), strict=True)
        kept = rows.filter(pa.array([name not in hidden for name in names], pa.bool_()))
        return local_frame(batches.sparkSession, kept, batches.schema)
    listed = pa.schema([BATCHES.field(name) for name in Replica._fields])
    others = from_rows(batches.sparkSession, listed, sorted(hidden))
    return batches.join(broadcast(others), [*Replica._fields], "left_anti")


def _name(row: ReplicaRow) -> TopicPartition:
    return TopicPartition(row.topic, row.partition)


def _last_written_ms(inputs: Inputs) -> int:
    """Return when brokers that are down wrote last; 0 if there are no logs."""
    return max((log.written_ms for log in inputs.logs), default=0)


def _left_in_sync(
    rows: Iterable[ReplicaRow], assignments: Mapping[TopicPartition, Assignment]
) -> str:
    """Return a note on the replicas outside the ISR that count as in sync; "" if there are none."""
    left: dict[TopicPartition, list[int]] = {}
    for row in rows:
        if row.in_isr and row.broker not in assignments[_name(row)].isr:
            left.setdefault(_name(row), []).append(row.broker)
    if not left:
        return ""
    named = "; ".join(
        f"{name} on {brokers_named(brokers)}"
        for name, brokers in islice(sorted(left.items()), _NAMED_MAX)
    )
    more = f"; and of {plural(len(left) - _NAMED_MAX, 'partition')} more"
    return (
        "Counted as in sync, since their brokers stopped in order with all that is judged:"
        f" {named}{more if len(left) > _NAMED_MAX else ''}."
    )


def _bytes_of(inputs: Inputs) -> int:
    return sum(segment.size for log in inputs.logs for segment in log.segments)


def _to_decode(inputs: Inputs, rows: Iterable[ReplicaRow]) -> Iterator[LogDirectory]:
    """Return the logs that others are compared with, and those that were compacted: their batches
    may differ."""
    wanted = {
        Replica(row.broker, row.topic, row.partition)
        for row in rows
        if row.is_reference or row.cleaned_end
    }
    return (log for log in inputs.logs if log.replica in wanted)


def _with_problem(entries: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows about index entries that say that something is wrong."""
    return entries.filter(pc.is_valid(entries["problem"]))


def _sizes(inputs: Inputs, written: WrittenBatches) -> Sizes:
    batches, records = count_batches(written)
    return Sizes(
        logs=sum(1 for _ in inputs.logs),
        files=sum(len(log.segments) for log in inputs.logs),
        bytes=_bytes_of(inputs),
        batches=batches,
        records=records,
    )


def _replica_facts(inputs: Inputs, facts: Mapping[Replica, LogFacts]) -> Iterator[ReplicaFacts]:
    """Yield the facts of the logs at hand, and of assigned logs whose directory is gone."""
    states = {broker.broker: broker.state for broker in inputs.brokers}
    there = {log.replica: log for log in inputs.logs}
    assigned = {
        Replica(broker, name.topic, name.partition)
        for name, assignment in (inputs.cluster.assignments if inputs.cluster else {}).items()
        for broker in assignment.replicas
        if broker in states and Replica(broker, name.topic, name.partition) not in inputs.hidden
    }
    for replica in sorted(there.keys() | assigned):
        log = there.get(replica)
        name = TopicPartition(replica.topic, replica.partition)
        checkpoints = inputs.checkpoints[replica.broker]
        last_base = log.segments[-1].base_offset if log and log.segments else 0
        yield ReplicaFacts(
            *replica,
            state=states[replica.broker],
            log=facts.get(replica) or LogFacts.empty(last_base),
            log_start=checkpoints.log_start(name) if log else None,
            high_watermark=checkpoints.high_watermarks.get(name),
            recovery_point=checkpoints.recovery_points.get(name),
            is_lost=log is None,
            trace=inputs.traces.get(replica),
            told_cleaned=name in checkpoints.cleaned_ends,
            written_ms=log.written_ms if log else None,
        )


def _run_check(name: str, tables: Tables) -> tuple[list[Finding], float]:
    """Return the findings of a check, and how many seconds it took."""
    began = time.monotonic()
    rows: list[dict[str, object]] = []
    if (found := CHECKS[name](tables)) is not None:
        worst = keep_worst(found)
        rows = [] if will_be_empty(worst) else worst.toArrow().to_pylist()
    return [*map(_finding, rows)], time.monotonic() - began


def _finding(row: Mapping[str, object]) -> Finding:
    return Finding(**{**row, "severity": Severity(str(row["severity"]))})  # type: ignore[arg-type]


def _count(tables: Tables) -> tuple[LedgerCounts | None, tuple[Unjudged, ...]]:
    return (None, ()) if tables.ledger is None else ledgers.ledger_counts(tables)
