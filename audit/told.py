"""What clients were told, beside what the replicas hold: what the checks of ledgers share.

Every record of the ledgers' topics is decoded once, and only a hash of its key and value is kept:
two of 64 bits that are equal stand for equal records. All copies of a place (topic, partition,
offset) are brought together and joined with what was told of it. Where every replica holds just
that, nothing more is asked; in a sound cluster that settles all. Only the rest is judged replica
by replica (`suspects`).

A place is judged from the log's start on; of a log that grows, below its high watermark. Where a
broker was stopped or killed, a place behind the end that the log keeps (its tail may be cut to
follow the leader's epochs) is one where the record is missing.
"""

from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql.functions import (
    broadcast,
    coalesce,
    col,
    collect_set,
    count,
    exists,
    forall,
    greatest,
    least,
    lit,
    size,
    struct,
    when,
    xxhash64,
)
from pyspark.sql.functions import filter as filter_
from pyspark.sql.functions import max as max_
from pyspark.sql.functions import min as min_
from pyspark.sql.functions import sum as sum_

from minibroker.audit.ledger import Event
from minibroker.audit.model import Tables

LOG: Final = ("broker", "topic", "partition")
PARTITION: Final = ("topic", "partition")
PLACE: Final = (*PARTITION, "offset")
_TELLING: Final = ("ledger", "line", "event", "acks", *PLACE, "content")
_NO_END: Final = 2**63 - 1


class State(StrEnum):
    """How a replica stands to a place that a client was told."""

    HELD = "held"
    ABSENT = "absent"
    OTHER = "other"  # another record is there
    BEHIND = "behind"  # behind the end of the replica
    GONE = "gone"  # below its log start
    AHEAD = "ahead"  # above the high watermark of a log that grows
    MISSING = "missing"  # there is no replica

    @property
    def is_judged(self) -> bool:
        """Whether it says if the record is there."""
        return self in (State.HELD, State.ABSENT, State.OTHER, State.BEHIND)


@dataclass(frozen=True, slots=True)
class Told:
    """DataFrames; the first three are kept by Spark.

    `tellings`: _TELLING, a row each of LEDGER; `is_complete` is false where its ledger has no end.
    `contents`: a row each record: LOG, offset, content.
    `placed`: the tellings that name a place; `is_sound` if every replica holds just that, and
    else `holders`, the (broker, content) found there.
    `replicas`: LOG, in_isr, log_start, log_end (what is kept), `limit` (judged below),
    is_live, `farthest` (log_end of the replica that has most).
    """

    tellings: DataFrame
    contents: DataFrame
    placed: DataFrame
    replicas: DataFrame


@lru_cache(maxsize=1)  # for the checks of one audit
def told(tables: Tables) -> Told:
    """What the checks need of an audit's tables; `tables.ledger` must not be None."""
    assert tables.ledger is not None, "without a ledger its checks are not run"
    ledger = tables.ledger.withColumn("content", _content()).select(*_TELLING)
    tellings = ledger.join(broadcast(_complete(ledger)), "ledger").persist()
    topics = [row.topic for row in tellings.select("topic").distinct().collect() if row.topic]
    records = tables.records.where(col("topic").isin(topics))
    contents = records.select(*LOG, "offset", _content().alias("content")).persist()
    replicas = _replicas(tables)
    return Told(tellings, contents, _placed(tellings, contents, replicas).persist(), replicas)


def suspects(known: Told) -> DataFrame:
    """Tellings that are not sound, one row for each replica, with its columns and its `state`.

    `broker` is null where a partition has no replica.
    """
    rows = known.placed.where("NOT is_sound").join(broadcast(known.replicas), [*PARTITION], "left")
    held = filter_("holders", lambda holder: holder.broker == col("broker"))
    return rows.withColumn("held", held).withColumn("state", _state()).drop("held", "holders")


def kept(known: Told) -> DataFrame:
    """`contents` of what is judged, with the columns of its replica."""
    rows = known.contents.join(broadcast(known.replicas), [*LOG])
    return rows.where(col("offset") < col("limit"))


def uncounted(known: Told) -> DataFrame:
    """Records that were acknowledged without an offset, with what each replica lacks of them.

    A row for each record and replica, with its columns; `unplaced` equal ones were acknowledged
    so, and `missing` of them are not there. Where they may have been there, or may yet come, that
    is not `is_judged`.
    """
    record = [*PARTITION, "content"]
    acked = known.tellings.where(col("event") == Event.ACKED.value)
    unplaced = (
        acked.where("offset IS NULL")
        .groupBy(*record)
        .agg(
            count("*").alias("unplaced"),
            min_("acks").alias("acks"),
            min_(struct("ledger", "line")).alias("first"),
        )
    )
    stored = kept(known).groupBy(*LOG, "content").agg(count("*").alias("copies"))
    acked_count = acked.groupBy(*record).agg(count("*").alias("acked"))
    lacking = col("acked") - coalesce("copies", lit(0))
    is_judged = (col("missing") == 0) | ((col("log_start") == 0) & ~col("is_live"))
    return (
        unplaced.join(acked_count, record)
        .join(broadcast(known.replicas), [*PARTITION], "left")
        .join(stored, [*LOG, "content"], "left")
        .withColumn("missing", greatest(lit(0), least(col("unplaced"), lacking)))
        .withColumn("is_judged", coalesce(is_judged, lit(False)))
    )


def _content() -> Column:
    return xxhash64(col("key").isNull(), "key", col("value").isNull(), "value")


def _complete(ledger: DataFrame) -> DataFrame:
    """For each ledger, whether each program that began to write in it ended in good order."""
    balance = sum_(
        when(col("event") == Event.BEGAN.value, 1)
        .when(col("event") == Event.ENDED.value, -1)
        .otherwise(0)
    )
    return ledger.groupBy("ledger").agg((balance <= 0).alias("is_complete"))


def _replicas(tables: Tables) -> DataFrame:
    segments = tables.batches.groupBy(*LOG).agg(min_("segment").alias("first_segment"))
    log_end = coalesce("kept_end", "log_end", lit(0))
    # Segments are deleted before a checkpoint says so; a log may also have lost all its batches.
    log_start = greatest(coalesce("log_start", lit(0)), coalesce("first_segment", log_end))
    partition = Window.partitionBy(*PARTITION)
    is_live = max_(col("state") == "live").over(partition)
    judged_end = when(is_live, coalesce("judged_end", lit(0))).otherwise(lit(_NO_END))
    return tables.replicas.join(segments, [*LOG], "left").select(
        *LOG,
        "in_isr",
        log_start.alias("log_start"),
        log_end.alias("log_end"),
        judged_end.alias("judged_end"),
        least(log_end, judged_end).alias("limit"),
        is_live.alias("is_live"),
        max_(log_end).over(partition).alias("farthest"),
    )


def _placed(tellings: DataFrame, contents: DataFrame, replicas: DataFrame) -> DataFrame:
    holders = contents.groupBy(*PLACE).agg(
        collect_set(struct("broker", "content")).alias("holders")
    )
    partitions = replicas.groupBy(*PARTITION).agg(
        count("*").alias("replica_count"),
        max_("log_start").alias("start"),
        min_("limit").alias("end"),
    )
    rows = (
        tellings.where("offset IS NOT NULL")
        .join(holders, [*PLACE], "left")
        .join(broadcast(partitions), [*PARTITION], "left")
    )
    is_bare = col("event") == Event.SHOWN_OFFSET.value
    is_sound = (
        (size("holders") == col("replica_count"))
        & (is_bare | forall("holders", lambda holder: holder.content == col("content")))
        & (col("offset") >= col("start"))
        & (col("offset") < col("end"))
    )
    marked = rows.withColumn("is_sound", coalesce(is_sound, lit(False)))
    kept = when(~col("is_sound"), col("holders"))
    return marked.select(*_TELLING, "is_sound", kept.alias("holders"))


def _state() -> Column:
    is_bare = col("event") == Event.SHOWN_OFFSET.value
    is_same = exists("held", lambda holder: holder.content == col("content"))
    return (
        when(col("broker").isNull(), State.MISSING.value)
        .when(col("offset") < col("log_start"), State.GONE.value)
        .when(col("offset") >= col("judged_end"), State.AHEAD.value)
        .when(col("offset") >= col("log_end"), State.BEHIND.value)
        .when(coalesce(size("held"), lit(0)) <= 0, State.ABSENT.value)
        .when(is_bare | is_same, State.HELD.value)
        .otherwise(State.OTHER.value)
    )
