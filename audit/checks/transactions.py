"""Checks of transactions: markers, the lists of aborted ones, those that are open, and outcomes.

A reader of committed records relies on three things: a marker says what the coordinator has
decided, the list beside a segment has the aborted transactions (`transaction_lists`), and each
transaction ends. `divergence` finds bytes that differ; these checks say what differs, and find what
all replicas have alike. Without transactions they plan nothing.

* `marker`: the replicas of a partition have different markers at an offset, or one has none there.
  What most in-sync replicas have is right, else what the reference has. Compaction removes markers,
  so below what it has visibly changed nothing is compared.
* `open-transaction`: see `open_transactions`.
* `transaction-outcome`: the last marker of a producer and epoch is not what was decided last for
  them, or partitions of one transaction ended in different ways. An epoch stands for one
  transaction if the marker raised it. Otherwise a producer has the same epoch in many
  transactions. Of these only the last ones are compared, and only if the brokers are down: what is
  read of running ones is of different moments.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql.functions import (
    array_contains,
    array_distinct,
    broadcast,
    coalesce,
    col,
    collect_list,
    count,
    count_distinct,
    explode,
    greatest,
    least,
    lit,
    max_by,
    size,
    struct,
    transform,
    when,
)
from pyspark.sql.functions import filter as filter_list
from pyspark.sql.functions import max as largest_of
from pyspark.sql.functions import sum as sum_of

from minibroker.audit.checks.doubts import brokers_named
from minibroker.audit.checks.facts import PARTITION, REPLICA
from minibroker.audit.checks.findings import as_findings
from minibroker.audit.checks.local_frames import from_rows
from minibroker.audit.checks.memoize import memoize_per_run
from minibroker.audit.checks.open_transactions import (
    Coordinators,
    OpenTransaction,
    OpenVerdict,
    in_words,
    judge_open,
    newest,
)
from minibroker.audit.checks.stored_transactions import has_transactions, transactions
from minibroker.audit.checks.transaction_history import ABORTED, COMMITTED, OPEN
from minibroker.audit.files.directories import LIVE
from minibroker.audit.files.transaction_states import DECIDED, PREPARE_COMMIT, SECOND_PROTOCOL
from minibroker.audit.model import FINDINGS, Finding, Severity, Tables
from minibroker.audit.summary import OpenTransactionSeen, TransactionsSeen
from minibroker.protocol.constants import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from minibroker.protocol.types import TopicPartition

MARKER_CHECK: Final = "marker"
OPEN_CHECK: Final = "open-transaction"
OUTCOME_CHECK: Final = "transaction-outcome"
SHOWN_MAX: Final = 100  # open transactions, in the report
_COLLECTED_MAX: Final = 10_000
_WORDS: Final = {ABORTED: "ABORT", COMMITTED: "COMMIT"}


# -- markers


def marker(tables: Tables) -> DataFrame | None:
    """Return the markers that a replica lacks, or has otherwise than most."""
    if not has_transactions(tables.batches):
        return None
    replicas = {
        (row.topic, row.partition, row.broker): row
        for row in tables.replicas.where("log_end > 0").collect()
    }
    found: list[Finding] = []
    for row in _differing_markers(tables).limit(_COLLECTED_MAX).collect():
        found += _wrong_markers(row, replicas)
    return _as_findings(MARKER_CHECK, tables, found)


def _differing_markers(tables: Tables) -> DataFrame:
    """Return the offsets at which not all replicas that reach there have the same marker."""
    start = greatest(coalesce("log_start", lit(0)), "first_offset", coalesce("cleaned_end", lit(0)))
    end = least("log_end", "judged_end")
    replicas = (
        tables.replicas.where("first_offset IS NOT NULL")
        .select(
            *PARTITION,
            struct("broker", start.alias("start"), end.alias("end")).alias("replica"),
        )
        .groupBy(*PARTITION)
        .agg(collect_list("replica").alias("replicas"))
    )
    marker = struct("producer_id", "marker_epoch", "outcome")
    held = (
        transactions(tables.batches)
        .where("marker_offset IS NOT NULL")
        .select(*PARTITION, "marker_offset", struct("broker", marker.alias("marker")).alias("held"))
        .groupBy(*PARTITION, "marker_offset")
        .agg(collect_list("held").alias("held"))
    )

    def reaches(replica: Column) -> Column:
        return (replica["start"] <= col("marker_offset")) & (col("marker_offset") < replica["end"])

    def is_reaching(each: Column) -> Column:
        return array_contains("reaching", each["broker"])

    kinds = size(array_distinct(transform("held", lambda each: each["marker"])))
    return (
        held.join(broadcast(replicas), [*PARTITION])
        .withColumn("reaching", transform(filter_list("replicas", reaches), lambda r: r["broker"]))
        .withColumn("held", filter_list("held", is_reaching))
        .where((size("held") > 0) & ((kinds > 1) | (size("held") < size("reaching"))))
    )


def _wrong_markers(row: Row, replicas: Mapping[tuple[Any, ...], Row]) -> Iterator[Finding]:
    """Yield the replicas whose marker at an offset is not the one that most have."""
    held = {each.broker: tuple(each.marker) for each in row.held}
    values = {broker: held.get(broker) for broker in sorted(row.reaching)}
    rows = {broker: replicas[row.topic, row.partition, broker] for broker in values}
    in_sync = [broker for broker in values if rows[broker].in_isr is not False]
    votes = Counter(values[broker] for broker in in_sync)
    most = max(votes.values(), default=0)
    leading = [value for value, count in votes.items() if count == most]
    reference = next((broker for broker in rows if rows[broker].is_reference), None)
    is_told = len(leading) == 1
    right = leading[0] if is_told or reference is None else values[reference]
    agreeing = [broker for broker, value in values.items() if value == right]
    for broker, value in values.items():
        if value == right:
            continue
        unknown = "" if is_told else "; which is right cannot be told"
        yield Finding(
            MARKER_CHECK,
            Severity.ERROR if broker in in_sync else Severity.WARNING,
            row.topic,
            row.partition,
            broker,
            agreeing[0] if agreeing else None,
            row.marker_offset,
            detail=f"{_said_of(value)} here, and {_said_of(right)} on {brokers_named(agreeing)}"
            f"{unknown}",
        )


def _said_of(value: tuple[Any, ...] | None) -> str:
    if value is None:
        return "there is no marker"
    producer_id, epoch, outcome = value
    article = "an" if outcome == ABORTED else "a"
    what = f"the marker is {article} {_WORDS[outcome]}"
    return f"{what} of producer {producer_id} (epoch {epoch})"


# -- open transactions


class Seen(NamedTuple):
    """An open transaction, and what it means."""

    found: OpenTransaction
    broker: int
    verdict: OpenVerdict


def open_transaction(tables: Tables) -> DataFrame | None:
    """Return the transactions that are open at the end of a partition."""
    found = [
        Finding(
            OPEN_CHECK,
            seen.verdict.severity,
            *seen.found.name,
            seen.broker,
            offset=seen.found.first_offset,
            detail=in_words(seen.found, seen.verdict, tables.as_of_ms),
        )
        for seen in open_transactions(tables)
    ]
    return _as_findings(OPEN_CHECK, tables, found)


@memoize_per_run
def open_transactions(tables: Tables) -> Sequence[Seen]:
    """Return the open transactions of the logs that others are compared with, the oldest first."""
    if not has_transactions(tables.batches):
        return ()
    rows = (
        _of_references(tables)
        .where((col("outcome") == OPEN) & (col("first_offset") < col("judged_end")))
        .where(col("last_offset") >= coalesce("log_start", lit(0)))
        .orderBy("first_ms", *PARTITION, "first_offset")
        .limit(_COLLECTED_MAX)
        .collect()
    )
    coordinators = _coordinators(tables) if rows else None
    seen = []
    for row in rows:
        name = TopicPartition(row.topic, row.partition)
        place = (row.producer_id, row.producer_epoch, row.first_offset, row.first_ms)
        found = OpenTransaction(name, *place)
        is_live = _is_live(tables)
        verdict = judge_open(found, coordinators, tables.as_of_ms, is_live=is_live)
        seen.append(Seen(found, row.broker, verdict))
    return seen


@memoize_per_run
def _is_live(tables: Tables) -> bool:
    """Whether any broker runs: its partitions' and its coordinators' logs may go on."""
    return any(row.state == LIVE for row in tables.replicas.select("state").collect())


def _of_references(tables: Tables) -> DataFrame:
    """Return the transactions of the logs that others are compared with."""
    references = tables.replicas.where("is_reference").select(
        *REPLICA, "judged_end", "log_start", col("first_offset").alias("log_first")
    )
    return transactions(tables.batches).join(broadcast(references), [*REPLICA])


@memoize_per_run
def _coordinators(tables: Tables) -> Coordinators | None:
    """Return what the coordinators have stored last; None if none of their logs is at hand."""
    if tables.coordinated is None:
        return None
    rows = tables.coordinated.where("problem IS NULL")
    last = rows.groupBy("transactional_id").agg(max_by(struct(*rows.columns), "at").alias("last"))
    found = [row.last for row in last.collect() if row.last.state is not None]
    return Coordinators(newest(found), is_whole=_are_homes_whole(tables))


def _are_homes_whole(tables: Tables) -> bool:
    """Whether the log of each partition of `__transaction_state` is at hand, and readable."""
    if tables.coordinated is None or not tables.coordinated.where("problem IS NOT NULL").isEmpty():
        return False
    there = {
        row.partition
        for row in tables.replicas.collect()
        if row.topic == TRANSACTIONS_TOPIC and row.is_reference and row.in_isr is not False
    }
    named = {
        name.partition for name in tables.assignments or () if name.topic == TRANSACTIONS_TOPIC
    }
    return bool(named) and named <= there


def transactions_seen(tables: Tables) -> TransactionsSeen | None:
    """Return the transactions for the report; None if there are none."""
    if not has_transactions(tables.batches):
        return None
    counted = _of_references(tables).where("first_offset IS NOT NULL").groupBy("outcome")
    rows = counted.agg(count("*").alias("parts"), sum_of("records").alias("records")).collect()
    if not rows:
        return None
    counts = {row.outcome: (row.parts, row.records) for row in rows}
    oldest = (
        OpenTransactionSeen(
            topic=seen.found.name.topic,
            partition=seen.found.name.partition,
            offset=seen.found.first_offset,
            producer_id=seen.found.producer_id,
            producer_epoch=seen.found.producer_epoch,
            open_ms=max(0, tables.as_of_ms - seen.found.first_ms),
            severity=seen.verdict.severity,
            why=seen.verdict.why,
            transactional_id=seen.verdict.transactional_id,
            state=seen.verdict.state,
        )
        for seen in open_transactions(tables)[:SHOWN_MAX]
    )
    nothing = (0, 0)
    return TransactionsSeen(
        committed=counts.get(COMMITTED, nothing)[0],
        aborted=counts.get(ABORTED, nothing)[0],
        records=counts.get(ABORTED, nothing)[1],
        open=counts.get(OPEN, nothing)[0],
        oldest=tuple(oldest),
    )


# -- outcomes


def transaction_outcome(tables: Tables) -> DataFrame | None:
    """Return the markers that say otherwise than the coordinator decided, and the transactions that
    were committed in one partition and aborted in another."""
    if not has_transactions(tables.batches):
        return None
    return _as_findings(
        OUTCOME_CHECK, tables, [*_against_decisions(tables), *_against_each_other(tables)]
    )


def _decisions(tables: Tables) -> DataFrame:
    """Return the last decision about each producer, epoch and partition."""
    assert tables.coordinated is not None
    ends = tables.coordinated.groupBy("transactional_id").agg(largest_of("at").alias("newest"))
    decided = tables.coordinated.where(col("state").isin(*DECIDED)).select(
        "transactional_id",
        "home",
        "at",
        "state",
        "version",
        "producer_id",
        col("producer_epoch").alias("marker_epoch"),
        explode("partitions").alias("name"),
    )
    about = struct("transactional_id", "home", "at", "state", "version")
    return (
        decided.groupBy("producer_id", "marker_epoch", "name")
        .agg(max_by(about, "at").alias("decision"))
        .select("producer_id", "marker_epoch", "name.topic", "name.partition", "decision.*")
        .join(ends, ["transactional_id"])
        .withColumn("decided", when(col("state") == PREPARE_COMMIT, COMMITTED).otherwise(ABORTED))
    )


def _last_markers(tables: Tables) -> DataFrame:
    """Return the last judged marker of each producer and epoch in each partition."""
    is_judged = (col("marker_offset") < col("judged_end")) & (
        col("marker_offset") >= coalesce("log_start", lit(0))
    )
    about = struct("broker", "marker_offset", "outcome")
    return (
        _of_references(tables)
        .where(is_judged)
        .groupBy(*PARTITION, "producer_id", "marker_epoch")
        .agg(max_by(about, "marker_offset").alias("last"))
        .select(*PARTITION, "producer_id", "marker_epoch", "last.*")
    )


def _against_decisions(tables: Tables) -> Iterator[Finding]:
    if tables.coordinated is None:
        return
    is_known = col("version") >= SECOND_PROTOCOL
    if not _is_live(tables):
        is_known |= col("newest") > col("at")  # it is complete, so all markers are written
    wrong = (
        _last_markers(tables)
        .join(_decisions(tables), [*PARTITION, "producer_id", "marker_epoch"])
        .where(is_known & (col("outcome") != col("decided")))
    )
    for row in wrong.orderBy(*PARTITION, "marker_offset").limit(_COLLECTED_MAX).collect():
        what = "offsets" if row.topic == OFFSETS_TOPIC else "records"
        yield Finding(
            OUTCOME_CHECK,
            Severity.ERROR,
            row.topic,
            row.partition,
            row.broker,
            offset=row.marker_offset,
            detail=f"the {what} of producer {row.producer_id} (epoch {row.marker_epoch}) have the"
            f" marker {_WORDS[row.outcome]}, and transactional id {row.transactional_id!r} decided"
            f" {_WORDS[row.decided]}; the decision is in {TRANSACTIONS_TOPIC}-{row.home}, offset"
            f" {row['at']}",
        )


def _against_each_other(tables: Tables) -> Iterator[Finding]:
    """Yield the transactions whose partitions ended in different ways, of which no decision is
    known."""
    is_judged = (col("marker_offset") < col("judged_end")) & (
        col("marker_offset") >= coalesce("log_start", lit(0))
    )
    has_own_epoch = col("first_offset").isNotNull() & (col("marker_epoch") > col("producer_epoch"))
    place = struct(*PARTITION, "broker", "marker_offset", "outcome")
    ended = (
        _of_references(tables)
        .where(is_judged & has_own_epoch)
        .groupBy("producer_id", "marker_epoch")
        .agg(count_distinct("outcome").alias("outcomes"), collect_list(place).alias("places"))
        .where("outcomes > 1")
    )
    if tables.coordinated is not None:
        known = tables.coordinated.where(col("state").isin(*DECIDED)).select(
            "producer_id", col("producer_epoch").alias("marker_epoch")
        )
        ended = ended.join(known, ["producer_id", "marker_epoch"], "left_anti")
    for row in ended.limit(_COLLECTED_MAX).collect():
        places = sorted(row.places, key=lambda each: (each.topic != OFFSETS_TOPIC, each))
        first = places[0]
        other = next(each for each in places if each.outcome != first.outcome)
        what, others = (
            "offsets" if each.topic == OFFSETS_TOPIC else "records" for each in (first, other)
        )
        yield Finding(
            OUTCOME_CHECK,
            Severity.ERROR,
            first.topic,
            first.partition,
            first.broker,
            offset=first.marker_offset,
            detail=f"the {what} of producer {row.producer_id} (epoch {row.marker_epoch}) have the"
            f" marker {_WORDS[first.outcome]}, and its {others} in {other.topic}-{other.partition}"
            f" have {_WORDS[other.outcome]} (offset {other.marker_offset}); its coordinator's"
            " decision is not at hand",
        )


def _as_findings(check: str, tables: Tables, found: Sequence[Finding]) -> DataFrame | None:
    if not found:
        return None
    rows = [tuple(getattr(each, name) for name in FINDINGS.names) for each in found]
    return as_findings(check, from_rows(tables.replicas.sparkSession, FINDINGS, rows))


CHECKS: Final[Mapping[str, Callable[[Tables], DataFrame | None]]] = {
    MARKER_CHECK: marker,
    OPEN_CHECK: open_transaction,
    OUTCOME_CHECK: transaction_outcome,
}
