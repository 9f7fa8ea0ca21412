"""The check of the replicas of a partition against each other.

Replicas are compared batch by batch: the same bytes at the same offset in the same leader epoch. To
compare every batch with its counterpart means to move all of them. So first each log is reduced to
digests, one for the batches that end in the same BUCKET_OFFSETS offsets; batches are compared only
where two digests differ. And first each replica is compared with the partition's reference
(`extent` chooses it); only if one differs is each compared with each, and `divergence` says which
of them are wrong, or that it cannot be told. If all replicas hold the same from end to end, as in a
cluster at rest, the digests of `runs` show that, and there is nothing to compare.

A pair of logs is compared from where both begin to where both are judged. A batch is compared if
its last offset lies in that range, so the batch that contains the log start is compared, too. Logs
that were compacted are compared so above the cleaning points of both; `compaction` says what must
be the same below these.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations
from typing import Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Row, SparkSession, Window
from pyspark.sql.functions import (
    bit_xor,
    bool_and,
    broadcast,
    coalesce,
    col,
    count,
    lit,
    shiftright,
    struct,
    when,
)
from pyspark.sql.functions import max as largest_of
from pyspark.sql.functions import min as smallest_of
from pyspark.sql.functions import sum as sum_of

from minibroker.audit.checks.acknowledged import State, acknowledged, last_commits, suspects
from minibroker.audit.checks.compaction import Difference, cleaned_differences
from minibroker.audit.checks.compared import Bounds, Logs, compared_logs
from minibroker.audit.checks.divergence import Batch, Divergence, Pair, find_divergences
from minibroker.audit.checks.facts import (
    PARTITION,
    REPLICA,
    digest_of_batches,
    is_odd,
    next_offset,
)
from minibroker.audit.checks.findings import as_findings
from minibroker.audit.checks.local_frames import collect_small, from_rows
from minibroker.audit.checks.log import seams, wrong_joints
from minibroker.audit.checks.producers import wrong_steps
from minibroker.audit.files.ledger import Event
from minibroker.audit.model import FINDINGS, Severity, Tables
from minibroker.audit.summary import plural
from minibroker.protocol.constants import OFFSETS_TOPIC
from minibroker.protocol.types import TopicPartition

BUCKET_BITS: Final = 12
BUCKET_OFFSETS: Final = 1 << BUCKET_BITS
_PAIR: Final = (*PARTITION, "pair")
_BATCH: Final = (
    "base_offset",
    "last_offset",
    "identity",
    "leader_epoch",
    "segment",
    "position",
    "is_sound",
)
# Two logs side by side, a row for each of the two; offsets from `start` to `end` are compared.
_SIDES: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("pair", pa.int32()),
        ("broker", pa.int32()),
        ("is_first", pa.bool_()),
        ("start", pa.int64()),
        ("end", pa.int64()),
    ]
)
_STRETCHES: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("first", pa.int64()),
        ("last", pa.int64()),
    ]
)


def divergence(tables: Tables) -> DataFrame | None:
    """Return the replicas that differ from the others of their partition, at the first batch that
    does."""
    logs = compared_logs(tables)
    if not logs:
        return None
    is_sound = col("crc_stored").eqNullSafe(col("crc_computed"))
    is_sound &= ~coalesce(is_odd(), lit(False))
    batches = _placed(tables.batches).withColumn("is_sound", is_sound)
    suspected = _suspected(batches, logs)
    cleaned = cleaned_differences(tables, batches)
    if not suspected and not cleaned:
        return None
    pairs = _differing_pairs(batches, {name: logs[name] for name in suspected})
    pairs = _judge_bodies(tables, pairs)
    below = {
        name: [pair for each in found for pair in each.pairs] for name, found in cleaned.items()
    }
    evidence = _ledger_evidence(tables, pairs)
    evidence_below = _ledger_evidence(tables, below)
    doubtful = _doubtful(tables)
    rows = []
    for name in sorted({*suspected, *cleaned}):
        promised = {each.broker: each.is_promised for each in logs[name]}
        told, doubts = evidence_below.get(name, {}), doubtful.get(name, ())
        named: set[int] = set()
        for each in cleaned.get(name, ()):
            left = [pair for pair in each.pairs if named.isdisjoint(pair.brokers)]
            for found in find_divergences(left, promised, told, doubts):
                is_promised = promised[found.broker]
                rows.append(_finding_below(name, each, found, is_promised=is_promised))
                named.add(found.broker)
        left = [pair for pair in pairs.get(name, ()) if named.isdisjoint(pair.brokers)]
        rows += [
            _finding(name, found, is_promised=promised[found.broker])
            for found in find_divergences(left, promised, evidence.get(name, {}), doubts)
        ]
    return as_findings("divergence", from_rows(batches.sparkSession, FINDINGS, rows))


def _placed(batches: DataFrame) -> DataFrame:
    """Return the whole batches, without those that begin before the end of the one they follow.

    A flipped bit can make such a batch claim the place of another. `overlap` reports that; here the
    batch is absent from its own place.
    """
    misplaced = (
        seams(batches)
        .where(~col("torn") & (col("base_offset") < next_offset("previous.last_offset")))
        .select(*REPLICA, "segment", "position")
    )
    on = [*REPLICA, "segment", "position"]
    return batches.where(~col("torn")).join(broadcast(misplaced), on, "left_anti")


def _between(both: Sequence[Bounds]) -> tuple[int, int]:
    """Return from where to where two logs must have the same bytes."""
    start = max(max(each.start, each.cleaned_end) for each in both)
    return start, min(each.end for each in both)


def _sides(
    spark: SparkSession, pairs: Iterable[tuple[TopicPartition, int, Bounds, Bounds]]
) -> DataFrame:
    """Return the two sides of numbered pairs of logs, with the offsets to compare."""
    rows = []
    for name, number, *both in pairs:
        start, end = _between(both)
        if start < end:
            rows += [
                (*name, number, each.broker, is_first, start, end)
                for each, is_first in zip(both, (True, False), strict=True)
            ]
    return from_rows(spark, _SIDES, rows)


def _suspected(batches: DataFrame, logs: Logs) -> list[TopicPartition]:
    """Return the partitions in which a log differs from the reference: none in a sound cluster."""
    pairs = (
        (name, number, reference, other)
        for name, compared in logs.items()
        for reference in compared
        if reference.is_reference
        for number, other in enumerate(compared)
        if not other.is_reference
    )
    buckets = _differing_buckets(batches, _sides(batches.sparkSession, pairs))
    found = buckets.select(*PARTITION).distinct().collect()
    return sorted(TopicPartition(*row) for row in found)


def _differing_pairs(batches: DataFrame, logs: Logs) -> dict[TopicPartition, list[Pair]]:
    """Return each pair of logs of these partitions, with their first difference."""
    found: dict[TopicPartition, list[Pair]] = {}
    if not logs:
        return found
    compared = {
        (name, number): both
        for name, bounds in logs.items()
        for number, both in enumerate(combinations(sorted(bounds), 2))
    }
    spark = batches.sparkSession
    sides = _sides(spark, ((name, number, *both) for (name, number), both in compared.items()))
    some = batches.join(broadcast(sides.select(*PARTITION).distinct()), [*PARTITION], "left_semi")
    differences = {
        (TopicPartition(row.topic, row.partition), row.pair): row
        for row in _first_differences(some, sides).collect()
    }
    for (name, number), both in compared.items():
        start, end = _between(both)
        pair = Pair((both[0].broker, both[1].broker), start, end)
        if row := differences.get((name, number)):
            batches_there = (_batch(row["first"]["here"]), _batch(row["first"]["there"]))
            pair = pair._replace(
                offset=row["first"]["base_offset"], batches=batches_there, differing=row.differing
            )
        found.setdefault(name, []).append(pair)
    return found


def _judge_bodies(
    tables: Tables, pairs: Mapping[TopicPartition, Sequence[Pair]]
) -> dict[TopicPartition, list[Pair]]:
    """Return the pairs; a batch whose records cannot be read is not sound, whatever its CRC."""
    spoilt: dict[TopicPartition, set[tuple[int, int | None, int | None]]] = {}
    offsets = {pair.offset for each in pairs.values() for pair in each} - {None}
    if tables.bodies_of is not None and offsets:
        bodies = tables.bodies_of(pairs.keys()).where(col("base_offset").isin(*offsets))
        for row in bodies.collect():
            place = (row.broker, row.segment, row.position)
            spoilt.setdefault(TopicPartition(row.topic, row.partition), set()).add(place)
    return {
        name: [pair.with_spoilt(spoilt.get(name, ())) for pair in each]
        for name, each in pairs.items()
    }


def _batch(row: Row | None) -> Batch | None:
    return None if row is None else Batch(*(row[name] for name in Batch._fields))


def _first_differences(batches: DataFrame, sides: DataFrame) -> DataFrame:
    """Return the first batch that differs in each pair, and how many stretches differ."""
    buckets = _differing_buckets(batches, sides)
    looked_into = _in_buckets(batches, sides.join(broadcast(buckets), [*_PAIR]))
    here = _side(looked_into, is_first=True)
    there = _side(looked_into, is_first=False)
    is_same = lit(True)
    for name in ("last_offset", "identity", "leader_epoch"):
        is_same &= col(f"here.{name}").eqNullSafe(col(f"there.{name}"))
    return (
        here.join(there, [*_PAIR, "base_offset"], "full")
        .where(~is_same)
        .groupBy(*_PAIR)
        .agg(smallest_of(struct("base_offset", "here", "there")).alias("first"))
        .join(buckets.groupBy(*_PAIR).agg(largest_of("differing").alias("differing")), [*_PAIR])
    )


def _bucket() -> Column:
    return shiftright("last_offset", BUCKET_BITS)


def _differing_buckets(batches: DataFrame, sides: DataFrame) -> DataFrame:
    """Return the buckets of each pair to look into, and how many differ.

    The first bucket that lies completely within the pair's bounds does hold a difference. One that
    the bounds cut may differ only beyond them, so those are looked into as well. The result is
    collected: otherwise each query on it would compute all digests again.
    """
    digests = batches.groupBy(*REPLICA, _bucket().alias("bucket")).agg(
        digest_of_batches().alias("digest"),
        count("*").alias("batches"),
        sum_of("size").alias("bytes"),
    )
    sign = when(col("is_first"), -1).otherwise(1)
    differing = (
        digests.join(broadcast(sides), [*REPLICA])
        .groupBy(*_PAIR, "start", "end", "bucket")
        .agg(
            bit_xor("digest").alias("digest"),
            sum_of(sign * col("batches")).alias("batches"),
            sum_of(sign * col("bytes")).alias("bytes"),
        )
        .where("digest != 0 or batches != 0 or bytes != 0")
    )
    first = col("bucket") * BUCKET_OFFSETS
    pair = Window.partitionBy(*_PAIR)
    is_whole = (first >= col("start")) & (first <= col("end") - BUCKET_OFFSETS)
    found = (
        differing.where((first > col("start") - BUCKET_OFFSETS) & (first < col("end")))
        .withColumns(
            {
                "is_whole": is_whole,
                "first_whole": smallest_of(when(is_whole, col("bucket"))).over(pair),
                "differing": count("*").over(pair),
            }
        )
        .where(~col("is_whole") | (col("bucket") == col("first_whole")))
        .select(*_PAIR, "bucket", "differing")
    )
    return collect_small(found)


def _in_buckets(batches: DataFrame, places: DataFrame) -> DataFrame:
    """Return the batches of both logs of each pair in the buckets to look into."""
    return (
        batches.select(*REPLICA, *_BATCH, _bucket().alias("bucket"))
        .join(broadcast(places), [*REPLICA, "bucket"])
        .where((col("last_offset") >= col("start")) & (col("last_offset") < col("end")))
    )


def _side(batches: DataFrame, *, is_first: bool) -> DataFrame:
    """Return the batches of one log of each pair, by base offset."""
    name = "here" if is_first else "there"
    batch = struct(*_BATCH).alias(name)
    return batches.where(col("is_first") == is_first).select(*_PAIR, "base_offset", batch)


def _ledger_evidence(
    tables: Tables, pairs: Mapping[TopicPartition, Sequence[Pair]]
) -> dict[TopicPartition, dict[tuple[int, int], bool]]:
    """Return whether brokers hold what ledgers say of the batches at which logs diverge: by
    partition, offset and broker, without entries for what no ledger names."""
    places = {
        (*name, pair.offset, max(batch.last_offset for batch in pair.batches if batch))
        for name, each in pairs.items()
        for pair in each
        if pair.offset is not None
    }
    found = _commit_evidence(tables, pairs)
    if tables.ledger is None or not places:
        return found
    known = suspects(acknowledged(tables)).where(
        col("state").isin(State.HELD, State.OTHER, State.ABSENT)
    )
    where = from_rows(tables.ledger.sparkSession, _STRETCHES, places)
    rows = (
        known.join(broadcast(where), [*PARTITION])
        .where((col("offset") >= col("first")) & (col("offset") <= col("last")))
        .where(col("event").isin(Event.ACKED, Event.SHOWN, Event.SHOWN_OFFSET))
        .groupBy(*PARTITION, "first", "broker")
        .agg(bool_and(col("state") == State.HELD.value).alias("is_held"))
        .collect()
    )
    for row in rows:
        name = TopicPartition(row.topic, row.partition)
        place = (row["first"], row.broker)
        # Of several stretches that begin there, the longest ones differ, too.
        found.setdefault(name, {})[place] = found.get(name, {}).get(place, True) and row.is_held
    return found


def _commit_evidence(
    tables: Tables, pairs: Mapping[TopicPartition, Sequence[Pair]]
) -> dict[TopicPartition, dict[tuple[int, int], bool]]:
    """Return the same for the offsets topic, whose records are in no ledger as such: whether a
    broker has stored the last commits that groups were told of."""
    homes = {name for name in pairs if name.topic == OFFSETS_TOPIC}
    if not homes or tables.ledger is None or tables.committed is None:
        return {}
    told = {
        (row.group, row.topic, row.partition): row.offset
        for row in last_commits(acknowledged(tables)).collect()
    }
    stored: dict[tuple[int, int], dict[tuple[str, str, int], int | None]] = {}
    for row in tables.committed.where(col("problem").isNull()).collect():
        key = (row.group, row.topic, row.partition)
        stored.setdefault((row.home, row.broker), {})[key] = row.offset
    found: dict[TopicPartition, dict[tuple[int, int], bool]] = {}
    for name in homes:
        logs = {broker: kept for (home, broker), kept in stored.items() if home == name.partition}
        keys = {key for kept in logs.values() for key in kept if key in told}
        right = {
            broker: all(kept.get(key) == told[key] for key in keys) for broker, kept in logs.items()
        }
        if keys and len(set(right.values())) > 1:
            found[name] = {
                (pair.offset, broker): is_right
                for pair in pairs[name]
                if pair.offset is not None
                for broker, is_right in right.items()
            }
    return found


def _doubtful(tables: Tables) -> dict[TopicPartition, set[int]]:
    """Return the brokers whose logs of a partition are known to lack or repeat something: they end
    below what they once had, or offsets, epochs or sequences do not continue, or a record is one
    that no coordinator writes."""
    found: dict[TopicPartition, set[int]] = {}
    joints = wrong_joints(tables).select(*REPLICA).distinct().collect()
    steps = wrong_steps(tables).where("NOT is_snapshot").select(*REPLICA).distinct().collect()
    short = [
        row
        for row in tables.replicas.collect()
        if row.log_end < max(row.left_end or 0, row.led_end or 0, row.recovery_point or 0)
    ]
    for row in (*joints, *steps, *short):
        found.setdefault(TopicPartition(row.topic, row.partition), set()).add(row.broker)
    if tables.committed is not None:
        for row in tables.committed.where("problem IS NOT NULL AND is_grave").collect():
            found.setdefault(TopicPartition(OFFSETS_TOPIC, row.home), set()).add(row.broker)
    return found


def _finding(name: TopicPartition, found: Divergence, *, is_promised: bool) -> tuple[object, ...]:
    """Return a row of FINDINGS."""
    batch, other = found.batch, found.other_batch
    verb = "differs" if found.differing == 1 else "differ"
    detail = (
        f"{found.said}; here is {_in_words(found.offset, batch)},"
        f" on broker {found.other_broker} {_in_words(found.offset, other)};"
        f" {plural(found.differing, 'stretch', 'stretches')} of {BUCKET_OFFSETS} offsets {verb}"
    )
    grade = Severity.ERROR if is_promised else Severity.WARNING
    place = (None, None) if batch is None else (batch.segment, batch.position)
    brokers = (found.broker, found.other_broker)
    return ("divergence", grade.value, *name, *brokers, found.offset, *place, detail, None)


def _finding_below(
    name: TopicPartition, difference: Difference, found: Divergence, *, is_promised: bool
) -> tuple[object, ...]:
    """Return a row of FINDINGS for a difference below the cleaning points."""
    if difference.what == "batch":
        what = "no compaction shows in the batches here and on"
    elif difference.what == "header":
        what = "compaction keeps offsets, leader epoch and sequences, and they differ on"
    else:
        what = "compaction keeps records as they are, and another one is on"
    detail = f"{found.said}; the {difference.what} at offset {found.offset} differs: {what}"
    detail += f" broker {found.other_broker}"
    return (*_finding(name, found, is_promised=is_promised)[:-2], detail, None)


def _in_words(offset: int, batch: Batch | None) -> str:
    if batch is None:
        return "no such batch"
    place = ""
    if batch.segment is not None:
        place = f" (segment {batch.segment}, position {batch.position})"
    return (
        f"the batch of offsets {offset} to {batch.last_offset}, epoch {batch.leader_epoch},"
        f" identity {batch.identity & (2**64 - 1):016x}{place}"
    )


CHECKS: Final[Mapping[str, Callable[[Tables], DataFrame | None]]] = {"divergence": divergence}
