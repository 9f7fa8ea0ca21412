"""What clients recorded in ledgers, beside what the replicas hold: shared by the ledger checks.

Every record of the ledgers' topics is decoded once, and only a 64-bit hash of its key and value is
kept: equal hashes stand for equal records. For each place (topic, partition, offset) the contents
of all replicas are aggregated and joined with what the ledgers say of it: the number of records,
their brokers (as one hash), and the least and the greatest content. If every replica holds exactly
what the ledgers say, the place is sound; in a sound cluster all are. Only the rest is examined
record by record and replica by replica (`suspects`).

Large ledgers are compared with the logs by digests of ranges of offsets first (`files.digests`).
The rows of a range in which the digests of all replicas equal those of the ledgers are sound. Only
the rows of the other ranges are read again and compared one by one.

A place is judged if it lies at or above the log start and, in a growing log, below its high
watermark. If a broker was stopped or killed, a record beyond the end that the log keeps is missing:
the log may still be truncated to follow the leader's epochs.

Compaction removes records. If a log may have been compacted, and has a newer record of a key, the
older ones that it lacks are *compacted*, not lost. The same applies if the last record of the key,
by the ledgers or on any replica, is a tombstone, and the log has no record of the key any more; and
to a record that another replica has in an aborted transaction.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Row, Window
from pyspark.sql.functions import (
    array_contains,
    bit_xor,
    bool_or,
    broadcast,
    coalesce,
    col,
    collect_set,
    concat_ws,
    count,
    count_if,
    greatest,
    least,
    lit,
    struct,
    when,
    xxhash64,
)
from pyspark.sql.functions import max as max_
from pyspark.sql.functions import min as min_
from pyspark.sql.functions import sum as sum_

from minibroker.audit.checks.cached import cache
from minibroker.audit.checks.digests import compare_digests, within
from minibroker.audit.checks.facts import PARTITION, REPLICA
from minibroker.audit.checks.local_frames import (
    collect_small,
    empty_like,
    from_rows,
    is_known_empty,
    local_rows,
)
from minibroker.audit.checks.memoize import memoize_per_run
from minibroker.audit.checks.stored_transactions import has_transactions, uncommitted_offsets
from minibroker.audit.checks.transaction_history import ABORTED
from minibroker.audit.files.directories import LIVE
from minibroker.audit.files.ledger import OF_GROUPS, Event
from minibroker.audit.model import Tables
from minibroker.protocol.constants import INT64_MAX

PLACE: Final = (*PARTITION, "offset")
_ENTRY: Final = (
    "ledger",
    "line",
    "event",
    "acks",
    *PLACE,
    "content",
    "named",
    "is_tombstone",
    "topic_id",
    "timestamp",
)
_TOPIC: Final = ("topic", "topic_id")
_EARLIEST: Final = pa.schema([("topic", pa.string()), ("earliest", pa.int64())])
_OPENS: Final = {Event.BEGAN: 1, Event.ENDED: -1}


class State(StrEnum):
    """What a replica holds at a place that a ledger names."""

    HELD = "held"
    ABSENT = "absent"
    COMPACTED = "compacted"  # absent, since a later record of its key is there
    OTHER = "other"  # another record is there
    BEHIND = "behind"  # behind the end of the replica
    BELOW = "below"  # below the log start that the broker wrote down
    FORMER = "former"  # it may be of a former topic of the same name
    GONE = "gone"  # below its first segment, and the broker did not write down why
    AHEAD = "ahead"  # above the high watermark of a log that grows
    MISSING = "missing"  # the partition has no replica at hand

    @property
    def is_judged(self) -> bool:
        """Whether the state says if the record is there."""
        return self in (State.HELD, State.ABSENT, State.COMPACTED, State.OTHER, State.BEHIND)


@dataclass(frozen=True)
class Acknowledged:
    """Cached DataFrames of the ledgers and records, and what the driver knows of them.

    `entries`: the rows of LEDGER, with `content` instead of key and value; `named` is a hash of the
    key, null if there is none or the topic was not compacted.
    `records`: REPLICA, offset, content, named, is_tombstone.
    `unsound`: the entries with a place where not every replica holds exactly what they say. Of two
    entries that contradict each other at least one is among them.
    `replicas`: REPLICA, in_isr, log_start, `told_start` (the log start that the broker wrote down),
    log_end (what is kept), `limit` (judged below), is_live, `farthest` (log_end of the replica that
    has most), `earliest` (the lowest timestamp of a batch of the topic, ms), may_be_cleaned,
    cleaned_end, `expiring_ms` (older tombstones may have expired when the log was last written).
    `lines`: by ledger, event and topic the `count`, the `first` line, when the first and the last
    were written (`began`, `ended`, ms), and how many are `unplaced`, without an offset.
    `foreign`: the same for topics that had the name of a judged topic, or are not there at all.
    `earliest`: the column of that name in `replicas`, by topic.
    `is_exact`: whether the digests say that each record of the logs was acknowledged at its place,
    once, and nothing else was; None without digests.
    `aborted`: PLACE of the records of aborted transactions, on whichever replica; None: none.
    """

    entries: DataFrame
    records: DataFrame
    unsound: DataFrame
    replicas: DataFrame
    lines: tuple[Row, ...]
    foreign: tuple[Row, ...]
    earliest: Mapping[str, int]
    aborted: DataFrame | None = None
    is_exact: bool | None = None

    @property
    def incomplete(self) -> set[str]:
        """The ledgers whose clients may have stored more than the ledgers say: those without an
        end, and those of producers without idempotence."""
        open_ends = Counter[str]()
        for row in self.lines:
            open_ends[row.ledger] += row["count"] * _OPENS.get(row.event, 0)
        repeating = {row.ledger for row in self.lines if row.event == Event.REPEATING}
        return repeating | {ledger for ledger, count in open_ends.items() if count > 0}

    @property
    def has_unplaced(self) -> bool:
        """Whether records were acknowledged without an offset."""
        return self.count_lines(Event.ACKED)[1] > 0

    def count_lines(self, event: Event) -> tuple[int, int]:
        """Return how many entries of an event there are, and how many of them have no offset."""
        rows = [row for row in self.lines if row.event == event]
        return sum(row["count"] for row in rows), sum(row.unplaced for row in rows)


@memoize_per_run
def acknowledged(tables: Tables) -> Acknowledged:
    """Return the input of the ledger checks; `tables.ledger` must not be None."""
    assert tables.ledger is not None, "without a ledger its checks are not run"
    more = ("group", "member", "generation", "error")
    compacted = {row.topic for row in tables.replicas.collect() if row.may_be_cleaned}
    every = tables.ledger.withColumns({"content": _content(), **_of_key(compacted)})
    every = cache(every.select(*_ENTRY, *more))
    is_judged = _is_judged(tables.topic_ids)
    digests = None
    if tables.ledger_digests is not None:
        digests = collect_small(tables.ledger_digests)
    lines = _lines(every, is_judged) if digests is None else _digested_lines(digests, is_judged)
    foreign = tuple(row for row in lines if not row.is_judged)
    lines = [row for row in lines if row.is_judged]
    entries = every.where(is_judged) if foreign else every
    of_records = [row for row in lines if row.event not in OF_GROUPS]
    topics = {row.topic for row in of_records if row.topic is not None}
    records = tables.records(topics)
    records = records.withColumns({"content": _content(), **_of_key(compacted)})
    records = cache(records.select(*REPLICA, "offset", "content", "named", "is_tombstone"))
    replicas = collect_small(_replicas(tables))
    is_exact = None
    if digests is None:
        unsound = collect_small(_unsound(entries, records, replicas))
    else:
        assert tables.record_digests is not None, "there are digests of both, or of none"
        stored = tables.record_digests(topics)
        ranges, is_exact = compare_digests(digests.where(is_judged), stored, replicas)
        unsound = empty_like(entries.select(*_ENTRY))
        if not is_known_empty(ranges):
            few, stored = (within(rows, ranges) for rows in (entries, records))
            unsound = collect_small(_unsound(few, stored, replicas))
    known = (entries, records, unsound, replicas, tuple(lines), foreign)
    aborted = None
    if has_transactions(tables.batches):
        uncommitted = uncommitted_offsets(tables.batches).where(col("outcome") == ABORTED)
        aborted = collect_small(uncommitted.select(*PLACE).distinct())
    return Acknowledged(*known, _earliest(replicas), aborted, is_exact)


def _lines(entries: DataFrame, is_judged: Column) -> list[Row]:
    """Return the rows of `Acknowledged.lines` and `foreign`, with `is_judged`."""
    counts = {
        "count": count("*"),
        "first": min_("line"),
        "began": min_("timestamp"),
        "ended": max_("timestamp"),
        "unplaced": count_if(col("offset").isNull()),
    }
    return _lines_by_topic(entries, is_judged, counts)


def _digested_lines(digests: DataFrame, is_judged: Column) -> list[Row]:
    """Return the same as `_lines`, from LEDGER_DIGESTS."""
    counts = {
        "count": sum_("count"),
        "first": min_("line"),
        "began": min_("began"),
        "ended": max_("ended"),
        "unplaced": sum_(when(col("range").isNull(), col("count")).otherwise(0)),
    }
    return _lines_by_topic(digests, is_judged, counts)


def _lines_by_topic(rows: DataFrame, is_judged: Column, counts: Mapping[str, Column]) -> list[Row]:
    named = [found.alias(name) for name, found in counts.items()]
    lines = rows.withColumn("is_judged", is_judged).groupBy("ledger", "event", *_TOPIC, "is_judged")
    found = lines.agg(*named).collect()
    return sorted(
        found, key=lambda row: tuple(row[name] or "" for name in ("ledger", "event", *_TOPIC))
    )


def _is_judged(topic_ids: Mapping[str, str]) -> Column:
    """Whether a row of LEDGER is of the topic that has the name today, as far as its id says."""
    if not topic_ids:
        return lit(True)
    current = [f"{topic_id} {topic}" for topic, topic_id in topic_ids.items()]
    return col("topic_id").isNull() | concat_ws(" ", "topic_id", "topic").isin(current)


@memoize_per_run
def last_commits(known: Acknowledged) -> DataFrame:
    """Return ledger, line, group, PLACE, of the last commit of each group and partition."""
    commits = known.entries.where(col("event") == Event.COMMITTED.value)
    place = struct(coalesce("timestamp", lit(0)), "line", "ledger", "offset")
    last = commits.groupBy("group", *PARTITION).agg(max_(place).alias("last"))
    return last.select("group", *PARTITION, "last.ledger", "last.line", "last.offset")


@memoize_per_run
def suspects(known: Acknowledged) -> DataFrame:
    """Return the entries that are not sound, one row per replica, with its columns and `state`.

    `broker` is null if a partition has no replica.
    """
    places = known.unsound.select(*PLACE).distinct()
    held = (
        known.records.join(places, [*PLACE], "left_semi")
        .groupBy(*REPLICA, "offset")
        .agg(collect_set("content").alias("held"))
    )
    rows = known.unsound.join(broadcast(known.replicas), [*PARTITION], "left").join(
        held, [*REPLICA, "offset"], "left"
    )
    rows = _with_newest(known, rows)
    if known.aborted is None:
        rows = rows.withColumn("is_aborted", lit(False))
    else:
        aborted = known.aborted.withColumn("is_aborted", lit(True))
        rows = rows.join(broadcast(aborted), [*PLACE], "left")
    rows = rows.withColumn("state", _state())
    return collect_small(rows.drop("held", "newer", "last", "is_aborted"))


def _with_newest(known: Acknowledged, rows: DataFrame) -> DataFrame:
    """Return the rows with `newer`, the offset of the newest record of the entry's key on the
    replica, and `last`, the last record of the key by the ledgers and on all replicas."""
    keys = rows.where(col("named").isNotNull()).select(*PARTITION, "named").distinct()
    record = struct("offset", "is_tombstone")
    held = (
        known.records.where(col("named").isNotNull())
        .join(keys, [*PARTITION, "named"], "left_semi")
        .groupBy(*REPLICA, "named")
        .agg(max_(record).alias("newest"))
    )
    told = col("event").isin(Event.ACKED.value, Event.SHOWN.value) & col("offset").isNotNull()
    entries = known.entries.where(told & col("named").isNotNull())
    last = (
        held.select(*PARTITION, "named", col("newest").alias("record"))
        .unionByName(entries.select(*PARTITION, "named", record.alias("record")))
        .groupBy(*PARTITION, "named")
        .agg(max_("record").alias("last"))
    )
    newer = held.select(*REPLICA, "named", col("newest.offset").alias("newer"))
    return rows.join(newer, [*REPLICA, "named"], "left").join(last, [*PARTITION, "named"], "left")


def judged_records(known: Acknowledged) -> DataFrame:
    """Return the records that are judged: offset and content, with the columns of their replica."""
    replicas = broadcast(known.replicas)
    return known.records.join(replicas, [*REPLICA]).where(col("offset") < col("limit"))


@memoize_per_run
def is_exact(known: Acknowledged) -> bool:
    """Whether each judged record was acknowledged at its place, once, and is what the ledgers say.

    Then no record is there more often than it was sent. If all entries are sound, it is enough to
    compare the sets of offsets, by a digest; nothing has to be sorted or moved for that.
    """
    if known.has_unplaced or not is_known_empty(known.unsound):
        return False
    if known.is_exact is not None:
        return known.is_exact
    digest = (count("*").alias("records"), bit_xor(xxhash64("offset")).alias("offsets"))
    acked = known.entries.where(col("event") == Event.ACKED.value)
    told = {row[:2]: row[2:] for row in acked.groupBy(*PARTITION).agg(*digest).collect()}
    stored = judged_records(known).groupBy(*REPLICA).agg(*digest).collect()
    return all(told.get((row.topic, row.partition)) == row[3:] for row in stored)


def acknowledged_without_offset(known: Acknowledged) -> DataFrame:
    """Return the records acknowledged without an offset, and how many of them each replica lacks.

    There is a row per record and replica, with the replica's columns; `unplaced` equal records were
    acknowledged without an offset, and `missing` of them are not on the replica. `is_judged` is
    false if the missing ones may have been deleted, or may still arrive.
    """
    record = [*PARTITION, "content"]
    acked = with_former(known, known.entries.where(col("event") == Event.ACKED.value))
    unplaced = (
        acked.where("offset IS NULL")
        .groupBy(*record)
        .agg(
            count("*").alias("unplaced"),
            min_("acks").alias("acks"),
            min_(struct("ledger", "line")).alias("first"),
        )
    )
    stored = judged_records(known).groupBy(*REPLICA, "content").agg(count("*").alias("copies"))
    acked_count = acked.groupBy(*record).agg(
        count("*").alias("acked"), bool_or("is_former").alias("is_former")
    )
    lacking = col("acked") - coalesce("copies", lit(0))
    is_whole = (col("log_start") == 0) & ~col("is_live") & ~col("is_former")
    is_judged = (col("missing") == 0) | is_whole
    return (
        unplaced.join(acked_count, record)
        .join(broadcast(known.replicas), [*PARTITION], "left")
        .join(stored, [*REPLICA, "content"], "left")
        .withColumn("missing", greatest(lit(0), least(col("unplaced"), lacking)))
        .withColumn("is_judged", coalesce(is_judged, lit(False)))
    )


def _earliest(replicas: DataFrame) -> dict[str, int]:
    rows = local_rows(replicas)
    if rows is None:
        found = replicas.select("topic", "earliest").distinct().toArrow()
    else:
        found = rows.select(["topic", "earliest"])
    columns = (found[name].to_pylist() for name in ("topic", "earliest"))
    return {topic: ms for topic, ms in zip(*columns, strict=True) if ms is not None}


def with_former(known: Acknowledged, entries: DataFrame) -> DataFrame:
    """Return some of the entries, with `is_former`: they may be of a former topic of the same name.

    A record is acknowledged after it was made. So a line that is older than every record of the
    topic, and does not have the topic's id, need not be about this topic.
    """
    spark = known.entries.sparkSession
    earliest = from_rows(spark, _EARLIEST, list(known.earliest.items()))
    return (
        entries.join(broadcast(earliest), ["topic"], "left")
        .withColumn("is_former", coalesce(_is_former(), lit(False)))
        .drop("earliest")
    )


def _is_former() -> Column:
    return col("topic_id").isNull() & (col("timestamp") < col("earliest"))


def _of_key(compacted: Collection[str]) -> dict[str, Column]:
    """Return the columns that say what compaction does with a record of one of these topics."""
    is_named = col("topic").isin(*compacted) & col("key").isNotNull()
    return {"named": when(is_named, xxhash64("key")), "is_tombstone": col("value").isNull()}


def _content() -> Column:
    return xxhash64(col("key").isNull(), "key", col("value").isNull(), "value")


def _replicas(tables: Tables) -> DataFrame:
    made = when(col("max_timestamp") >= 0, col("max_timestamp"))
    segments = tables.batches.groupBy(*REPLICA).agg(
        min_("segment").alias("first_segment"), min_(made).alias("made")
    )
    log_end = coalesce("kept_end", "log_end", lit(0))
    # Segments are deleted before the checkpoint is written; a log may also have lost all batches.
    log_start = greatest(coalesce("log_start", lit(0)), coalesce("first_segment", log_end))
    partition = Window.partitionBy(*PARTITION)
    is_live = max_(col("state") == LIVE).over(partition)
    judged_end = when(is_live, coalesce("judged_end", lit(0))).otherwise(lit(INT64_MAX))
    return tables.replicas.join(segments, [*REPLICA], "left").select(
        *REPLICA,
        "in_isr",
        log_start.alias("log_start"),
        coalesce("log_start", lit(0)).alias("told_start"),
        log_end.alias("log_end"),
        judged_end.alias("judged_end"),
        least(log_end, judged_end).alias("limit"),
        is_live.alias("is_live"),
        max_(log_end).over(partition).alias("farthest"),
        min_("made").over(Window.partitionBy("topic")).alias("earliest"),
        coalesce("may_be_cleaned", lit(False)).alias("may_be_cleaned"),
        coalesce("cleaned_end", lit(0)).alias("cleaned_end"),
        (col("written_ms") - coalesce("delete_retention_ms", lit(0))).alias("expiring_ms"),
    )


def _unsound(entries: DataFrame, records: DataFrame, replicas: DataFrame) -> DataFrame:
    brokers = bit_xor(xxhash64("broker"))
    places = records.groupBy(*PLACE).agg(
        count("*").alias("held_count"),
        brokers.alias("held_by"),
        min_("content").alias("low"),
        max_("content").alias("high"),
    )
    partitions = replicas.groupBy(*PARTITION).agg(
        count("*").alias("replica_count"),
        brokers.alias("brokers"),
        max_("log_start").alias("start"),
        min_("limit").alias("end"),
    )
    is_bare = col("event") == Event.SHOWN_OFFSET.value
    is_same_content = (col("low") == col("content")) & (col("high") == col("content"))
    is_sound = (
        (col("held_count") == col("replica_count"))
        & (col("held_by") == col("brokers"))
        & (is_bare | is_same_content)
        & (col("offset") >= col("start"))
        & (col("offset") < col("end"))
    )
    return (
        entries.where(col("offset").isNotNull() & ~col("event").isin(*OF_GROUPS))
        .join(places, [*PLACE], "left")
        .join(broadcast(partitions), [*PARTITION], "left")
        .where(~coalesce(is_sound, lit(False)))
        .select(*_ENTRY)
    )


def _state() -> Column:
    is_bare = col("event") == Event.SHOWN_OFFSET.value
    is_held = col("held").isNotNull() & (is_bare | array_contains("held", col("content")))
    # What is there is there, also where the leader's log would cut it: then that one lacks it.
    found = (
        when(is_held, State.HELD.value)
        .when(coalesce(_is_former(), lit(False)), State.FORMER.value)
        .when(col("offset") >= col("log_end"), State.BEHIND.value)
        .when(col("held").isNull() & _is_compacted(), State.COMPACTED.value)
        .when(col("held").isNull(), State.ABSENT.value)
        .otherwise(State.OTHER.value)
    )
    return (
        when(col("broker").isNull(), State.MISSING.value)
        .when(col("offset") < col("told_start"), State.BELOW.value)
        .when(col("offset") < col("log_start"), State.GONE.value)
        .when(col("offset") >= col("judged_end"), State.AHEAD.value)
        .otherwise(found)
    )


def _is_compacted() -> Column:
    """Whether compaction may have removed the record of an entry from a replica that lacks it."""
    is_superseded = col("newer") > col("offset")
    is_deleted = col("newer").isNull() & col("last.is_tombstone")
    is_expired = col("timestamp").isNull() | (col("timestamp") <= coalesce("expiring_ms", lit(0)))
    is_deleted &= (col("last.offset") > col("offset")) | is_expired
    # Of a record without a key, or one of which a ledger has only the offset, no more is known.
    is_unnamed = col("named").isNull() & (col("offset") < col("cleaned_end"))
    is_allowed = coalesce(is_superseded | is_deleted | is_unnamed, lit(False))
    return col("may_be_cleaned") & (is_allowed | coalesce("is_aborted", lit(False)))
