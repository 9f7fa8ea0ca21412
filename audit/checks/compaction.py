"""Checks of compacted logs, whose replicas differ: each broker compacts at its own time.

Compaction shows in the batches. One that lost records has fewer records than offsets; a filler or
an empty batch has none; and one with tombstones has a horizon. All others are as their leader
stored them. So above the last batch that shows it (`cleaned_end`) two logs must have the same
bytes, and `divergence` compares them as any logs. Below that

* batches that show no compaction, and begin at the same offset, must be the same on all replicas;
* those that show it, and are no fillers, must have the same offsets, leader epoch and sequences;
* records at the same offset must be the same;
* the last record of each key must be on all replicas. Only a tombstone may be gone, after
  `delete.retention.ms`, and then all older records of its key, too.

`cleaned_differences` finds what breaks the first three rules, for `divergence`; the check
`compaction` finds what breaks the last one. A replica that has an older record of a key as its last
one has lost the newer one. If it has none, either the last record was dropped, or elsewhere a
tombstone was, and the older record is back. This is decided by a log that was not compacted behind
that record, by a ledger, or by the majority.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Final, NamedTuple

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Row
from pyspark.sql.functions import (
    broadcast,
    coalesce,
    col,
    collect_list,
    get,
    least,
    lit,
    size,
    struct,
    when,
    xxhash64,
)
from pyspark.sql.functions import filter as filter_list
from pyspark.sql.functions import max as largest_of
from pyspark.sql.functions import min as smallest_of

from minibroker.audit.checks.acknowledged import State, acknowledged, suspects
from minibroker.audit.checks.compared import Bounds, Logs, compacted_logs
from minibroker.audit.checks.divergence import Batch, Pair
from minibroker.audit.checks.doubts import brokers_named
from minibroker.audit.checks.facts import PARTITION, REPLICA, is_cleaned
from minibroker.audit.checks.findings import OF_CHECK_MAX, as_findings
from minibroker.audit.checks.local_frames import from_rows
from minibroker.audit.checks.memoize import memoize_per_run
from minibroker.audit.checks.stored_transactions import has_transactions, uncommitted_offsets
from minibroker.audit.checks.transaction_history import ABORTED
from minibroker.audit.model import FINDINGS, Finding, Severity, Tables
from minibroker.protocol.constants import INT64_MAX
from minibroker.protocol.types import TopicPartition

CHECK: Final = "compaction"
DELETE_RETENTION_MS: Final = 24 * 3600 * 1000  # unless a topic or a broker has another one
_DIFFERENCES_MAX: Final = 1000  # offsets at which replicas differ
_KEY_CHARS_MAX: Final = 60
_SCOPE: Final = pa.schema(
    [
        ("broker", pa.int32()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("start", pa.int64()),
        ("end", pa.int64()),
        ("cleaned", pa.int64()),  # of the partition: the largest of its replicas
        ("replicas", pa.int32()),
        ("expiring_ms", pa.int64()),  # what is older may have expired when the log was written
    ]
)


# -- batches and records that differ


class Difference(NamedTuple):
    """An offset at which replicas differ below their cleaning points; `pairs` are of the replicas
    that have something there which must be the same. `what` names it."""

    offset: int
    what: str
    pairs: Sequence[Pair]


def cleaned_differences(
    tables: Tables, batches: DataFrame
) -> dict[TopicPartition, list[Difference]]:
    """Return what differs below the cleaning points and must not, by partition, records first.

    `batches` are those in their places, with `is_sound`.
    """
    logs = compacted_logs(tables)
    if not logs:
        return {}
    scope = broadcast(_scope(tables, logs))
    found: dict[TopicPartition, list[Difference]] = {}
    for row in _differing_batches(batches, scope).collect():
        name = TopicPartition(row.topic, row.partition)
        found.setdefault(name, []).append(_difference_of_batches(row))
    records = _records(tables)
    for row in _differing_records(records, scope).collect():
        held = {
            each.broker: Batch(row.offset, each.content, 0, True, None, None) for each in row.held
        }
        name = TopicPartition(row.topic, row.partition)
        found.setdefault(name, []).append(
            Difference(row.offset, "record", _pairs(row.offset, held))
        )
    for differences in found.values():
        # Records come first: they show, of more replicas than whole batches do, who is right.
        differences.sort(key=lambda each: (each.what != "record", each.offset))
    return found


@memoize_per_run
def _records(tables: Tables) -> DataFrame:
    """Return the records of the topics of which compaction has visibly changed a log, without those
    of aborted transactions: compaction removes them all."""
    records = tables.records({name.topic for name in compacted_logs(tables)})
    if not has_transactions(tables.batches):
        return records
    aborted = uncommitted_offsets(tables.batches).where(col("outcome") == ABORTED)
    place = [*REPLICA, "offset"]
    return records.join(aborted.select(*place), place, "left_anti")


def _differing_batches(batches: DataFrame, scope: DataFrame) -> DataFrame:
    is_filler = is_cleaned() & (col("count") == 0) & (col("producer_id") < 0)
    place = ("last_offset", "leader_epoch")
    stamp = xxhash64(*place, "producer_id", "producer_epoch", "base_sequence")
    original = when(~is_cleaned(), xxhash64(*place, "identity", "is_sound"))
    rows = (
        batches.join(scope, [*REPLICA])
        .where((col("last_offset") >= col("start")) & (col("last_offset") < col("end")))
        .where((col("base_offset") < col("cleaned")) & ~is_filler)
        .withColumns({"stamp": stamp, "original": original})
    )
    held = struct("broker", *Batch._fields, "stamp", "original")
    return (
        rows.groupBy(*PARTITION, "base_offset")
        .agg(
            (smallest_of("original") != largest_of("original")).alias("are_others"),
            (smallest_of("stamp") != largest_of("stamp")).alias("have_other_stamps"),
            collect_list(held).alias("held"),
        )
        .where("are_others OR have_other_stamps")
        .orderBy(*PARTITION, "base_offset")
        .limit(_DIFFERENCES_MAX)
    )


def _difference_of_batches(row: Row) -> Difference:
    held = {}
    for each in row.held:
        if not row.are_others or each.original is not None:
            batch = Batch(*(each[name] for name in Batch._fields))
            held[each.broker] = batch if row.are_others else batch._replace(identity=each.stamp)
    what = "batch" if row.are_others else "header"
    return Difference(row.base_offset, what, _pairs(row.base_offset, held))


def _differing_records(records: DataFrame, scope: DataFrame) -> DataFrame:
    content = xxhash64(
        "timestamp", col("key").isNull(), "key", col("value").isNull(), "value", "headers"
    )
    return (
        records.join(scope, [*REPLICA])
        .where((col("offset") >= col("start")) & (col("offset") < least("end", "cleaned")))
        .select(*PARTITION, "offset", "broker", content.alias("content"))
        .groupBy(*PARTITION, "offset")
        .agg(
            (smallest_of("content") != largest_of("content")).alias("are_others"),
            collect_list(struct("broker", "content")).alias("held"),
        )
        .where("are_others")
        .orderBy(*PARTITION, "offset")
        .limit(_DIFFERENCES_MAX)
    )


def _pairs(offset: int, held: Mapping[int, Batch]) -> list[Pair]:
    return [
        Pair((one, other), offset, INT64_MAX, offset, (held[one], held[other]), 1)
        if held[one].content != held[other].content
        else Pair((one, other), offset, INT64_MAX)
        for one, other in combinations(sorted(held), 2)
    ]


# -- the last records of keys


class _Last(NamedTuple):
    """The last record of a key: of the partition, or of a replica."""

    offset: int
    is_tombstone: bool
    timestamp: int


class _Lost(NamedTuple):
    """A key whose last record some replicas lack, though they must have it. `held` are those that
    have it, `lacking` the others, with the older record of the key that they have instead."""

    name: TopicPartition
    key: bytes
    last: _Last
    held: Sequence[int]
    lacking: Mapping[int, _Last | None]


def compaction(tables: Tables) -> DataFrame | None:
    """Return the keys of which a replica lacks the last record without a good reason, and the logs
    that were compacted although their topic's policy is another one now."""
    logs = compacted_logs(tables)
    found = [*_compacted_before(tables)]
    if logs:
        lost = [*_lost(tables, logs)]
        states = _states(tables, lost)
        for each in lost:
            found += _findings(each, logs[each.name], states, tables)
    if not found:
        return None
    rows = [tuple(getattr(each, name) for name in FINDINGS.names) for each in found]
    return as_findings(CHECK, from_rows(tables.replicas.sparkSession, FINDINGS, rows))


def _compacted_before(tables: Tables) -> Iterator[Finding]:
    for row in tables.replicas.collect():
        is_former = row.in_isr is not None and not row.is_compacted and row.may_be_cleaned
        if row.cleaned_end and is_former:
            detail = (
                f"it was compacted below offset {row.cleaned_end}, and the topic has no"
                " cleanup.policy=compact: either it had, or log.cleanup.policy of the brokers has"
            )
            place = (row.topic, row.partition, row.broker)
            yield Finding(CHECK, Severity.WARNING, *place, detail=detail)


def _lost(tables: Tables, logs: Logs) -> Iterator[_Lost]:
    """Yield the keys whose last record a replica lacks, except for tombstones that may have
    expired."""
    scope = _scope(tables, logs)
    records = _records(tables)
    last = struct("offset", col("value").isNull().alias("is_tombstone"), "timestamp")
    of_replicas = (
        records.where(col("key").isNotNull())
        .join(broadcast(scope), [*REPLICA])
        .groupBy(*REPLICA, "key")
        .agg(
            largest_of(last).alias("last"),
            largest_of(when(col("offset") < col("end"), last)).alias("judged"),
        )
    )
    keys = of_replicas.groupBy(*PARTITION, "key").agg(
        largest_of("judged").alias("newest"), collect_list(struct("broker", "last")).alias("held")
    )

    def of_holders(each: Column) -> Column:
        return each["last"]["offset"] >= col("newest.offset")

    counts = scope.select(*PARTITION, "replicas").distinct()
    suspected = keys.join(broadcast(counts), [*PARTITION]).where(
        size(filter_list("held", of_holders)) < col("replicas")
    )
    mine = get(filter_list("held", lambda each: each["broker"] == col("broker")), lit(0))["last"]
    is_back = coalesce(~col("mine.is_tombstone"), lit(False))
    is_early = col("newest.timestamp") > col("expiring_ms")
    wrong = (
        suspected.drop("replicas")
        .join(broadcast(scope), [*PARTITION])
        .withColumn("mine", mine)
        .where((col("newest.offset") >= col("start")) & (col("newest.offset") < col("end")))
        .where(coalesce(col("mine.offset") < col("newest.offset"), lit(True)))
        .where(~col("newest.is_tombstone") | is_back | is_early)
        .select(*PARTITION, "key", "newest", "held", "broker", "mine")
        .orderBy(*PARTITION, "newest.offset", "broker")
        .limit(OF_CHECK_MAX)
    )
    lost: dict[tuple[TopicPartition, bytes], _Lost] = {}
    for row in wrong.collect():
        newest = _Last(*row.newest)
        held = sorted(each.broker for each in row.held if each["last"].offset >= newest.offset)
        name = TopicPartition(row.topic, row.partition)
        key = bytes(row.key)
        known = lost.setdefault((name, key), _Lost(name, key, newest, held, {}))
        lacking = {**known.lacking, row.broker: None if row.mine is None else _Last(*row.mine)}
        lost[name, key] = known._replace(lacking=lacking)
    yield from lost.values()


def _scope(tables: Tables, logs: Logs) -> DataFrame:
    rows = []
    known = {(row.broker, row.topic, row.partition): row for row in tables.replicas.collect()}
    for name, bounds in logs.items():
        cleaned = max(each.cleaned_end for each in bounds)
        for each in bounds:
            row = known[each.broker, *name]
            retention_ms = row.delete_retention_ms
            retention_ms = DELETE_RETENTION_MS if retention_ms is None else retention_ms
            written_ms = INT64_MAX if row.written_ms is None else row.written_ms
            bound = (each.start, each.end, cleaned, len(bounds), written_ms - retention_ms)
            rows.append((each.broker, *name, *bound))
    return from_rows(tables.replicas.sparkSession, _SCOPE, rows)


def _states(tables: Tables, lost: Sequence[_Lost]) -> dict[tuple[TopicPartition, int, int], str]:
    """Return what ledgers say of the last records of these keys: the state of each replica."""
    if tables.ledger is None or not lost:
        return {}
    places = {(each.name.topic, each.name.partition, each.last.offset) for each in lost}
    schema = pa.schema([("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64())])
    wanted = from_rows(tables.replicas.sparkSession, schema, sorted(places))
    known = suspects(acknowledged(tables)).join(broadcast(wanted), [*PARTITION, "offset"])
    return {
        (TopicPartition(row.topic, row.partition), row.offset, row.broker): row.state
        for row in known.collect()
    }


def _findings(
    lost: _Lost,
    bounds: Sequence[Bounds],
    states: Mapping[tuple[TopicPartition, int, int], str],
    tables: Tables,
) -> Iterator[Finding]:
    """Yield a finding for each replica that is wrong about a key, or may be."""
    is_promised = {each.broker: each.is_promised for each in bounds}
    key, last = _key_in_words(lost.key), lost.last

    def finding(broker: int, offset: int, detail: str, *, is_known: bool = True) -> Finding:
        grade = Severity.ERROR if is_promised[broker] and is_known else Severity.WARNING
        other = next((each for each in lost.held if each != broker), None)
        return Finding(CHECK, grade, *lost.name, broker, other, offset, detail=detail)

    for broker, older in lost.lacking.items():
        if older is not None and not older.is_tombstone:
            newer = "the tombstone" if last.is_tombstone else "a newer record"
            yield finding(
                broker,
                older.offset,
                f"an old record of the key {key} is back; {newer} is at offset {last.offset} of"
                f" {brokers_named(lost.held)}",
            )
        elif last.is_tombstone:
            yield _early(lost, broker, finding, tables)
    dropped = [] if last.is_tombstone else [at for at, older in lost.lacking.items() if not older]
    if not dropped:
        return
    wrong, why = _who_is_wrong(lost, dropped, bounds, states)
    for broker in sorted(wrong):
        if broker in dropped:
            said = f"the last record of the key {key} is gone; it is on {brokers_named(lost.held)}"
        else:
            said = f"a record of the key {key} is back; it is removed on {brokers_named(dropped)}"
        yield finding(broker, last.offset, f"{said}; {why}")


def _early(lost: _Lost, broker: int, finding: Callable[..., Finding], tables: Tables) -> Finding:
    row = next(
        row
        for row in tables.replicas.collect()
        if (row.broker, row.topic, row.partition) == (broker, *lost.name)
    )
    known = row.delete_retention_ms
    retention_ms = DELETE_RETENTION_MS if known is None else known
    detail = (
        f"the tombstone of the key {_key_in_words(lost.key)} is gone before its time;"
        f" it is on {brokers_named(lost.held)}, and the log was last written"
        f" {row.written_ms - lost.last.timestamp} ms after the time of the tombstone, while"
        f" delete.retention.ms is {retention_ms}"
    )
    if known is None:
        detail += ", unless the brokers have another log.cleaner.delete.retention.ms"
    return finding(broker, lost.last.offset, detail, is_known=known is not None)


def _who_is_wrong(
    lost: _Lost,
    dropped: Sequence[int],
    bounds: Sequence[Bounds],
    states: Mapping[tuple[TopicPartition, int, int], str],
) -> tuple[Sequence[int], str]:
    """Return who is wrong about a live record that some have, and some have removed with all other
    records of its key; and the reason."""
    holders = [each for each in lost.held if each not in lost.lacking]
    unchanged = [
        each.broker
        for each in bounds
        if each.broker in holders and each.cleaned_end <= lost.last.offset
    ]
    if unchanged:
        return dropped, f"on {brokers_named(unchanged)} nothing behind it was compacted"
    told = {states.get((lost.name, lost.last.offset, each)) for each in dropped}
    if State.ABSENT in told:
        return dropped, "by the ledgers it was acknowledged, and nothing newer of the key"
    if State.COMPACTED in told:
        return holders, "by the ledgers a newer one of the key was acknowledged"
    if len(holders) != len(dropped):
        wrong = dropped if len(dropped) < len(holders) else holders
        return wrong, "the others agree"
    return [*holders, *dropped], "which is right cannot be told"


def _key_in_words(key: bytes) -> str:
    text = key.decode("utf-8", "backslashreplace")
    return repr(text[:_KEY_CHARS_MAX]) + "..." * (len(text) > _KEY_CHARS_MAX)


CHECKS: Final[Mapping[str, Callable[[Tables], DataFrame | None]]] = {CHECK: compaction}
