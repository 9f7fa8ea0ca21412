"""What clients were told, beside what the replicas hold: what the checks of ledgers share.

Every record of the ledgers' topics is decoded once, and only a hash of its key and value is kept:
two of 64 bits that are equal stand for equal records. What all replicas hold in a place (topic,
partition, offset) is brought together and joined with what was told of it. Where every replica
holds just that, nothing more is asked; in a sound cluster that settles all. Only the rest is
judged replica by replica (`suspects`).

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
    array,
    array_distinct,
    broadcast,
    coalesce,
    col,
    collect_list,
    collect_set,
    count,
    count_if,
    exists,
    greatest,
    inline,
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
    """DataFrames, of which Spark keeps the first three, and what the driver knows of them.

    `tellings`: a row for each of LEDGER, with `content` instead of key and value.
    `places`: PLACE, `holders`: the (broker, content) there.
    `placed`: the tellings that name a place; `is_sound` if every replica holds just that, and
    else `holders`.
    `replicas`: LOG, in_isr, log_start, log_end (what is kept), `limit` (judged below),
    is_live, `farthest` (log_end of the replica that has most).
    `incomplete`: the ledgers of which more may be stored than they tell: those without an end, and
    of producers that repeat themselves. `has_unplaced`: records were acknowledged without an
    offset. `sound_count`: acknowledged records that are sound. `has_suspects`: some telling is not.
    """

    tellings: DataFrame
    places: DataFrame
    placed: DataFrame
    replicas: DataFrame
    incomplete: tuple[str, ...]
    has_unplaced: bool
    sound_count: int
    has_suspects: bool


@lru_cache(maxsize=1)  # for the checks of one audit
def told(tables: Tables) -> Told:
    """What the checks need of an audit's tables; `tables.ledger` must not be None."""
    assert tables.ledger is not None, "without a ledger its checks are not run"
    tellings = tables.ledger.withColumn("content", _content()).select(*_TELLING).persist()
    event = col("event")
    open_ends = count_if(event == Event.BEGAN.value) - count_if(event == Event.ENDED.value)
    unplaced = count_if((event == Event.ACKED.value) & col("offset").isNull())
    ledgers = (
        tellings.groupBy("ledger")
        .agg(
            open_ends.alias("open_ends"),
            unplaced.alias("unplaced"),
            count_if(event == Event.REPEATING.value).alias("repeating"),
            collect_set("topic").alias("topics"),
        )
        .collect()
    )
    topics = {topic for row in ledgers for topic in row.topics}
    records = tables.records.where(col("topic").isin(*topics))
    holder = struct("broker", _content().alias("content"))
    places = records.groupBy(*PLACE).agg(collect_list(holder).alias("holders")).persist()
    replicas = _replicas(tables)
    placed = _placed(tellings, places, replicas).persist()
    is_sound = col("is_sound")
    sound = placed.agg(
        count_if((event == Event.ACKED.value) & is_sound).alias("acked"),
        count_if(~is_sound).alias("suspects"),
    ).collect()[0]
    return Told(
        tellings,
        places,
        placed,
        replicas,
        incomplete=tuple(row.ledger for row in ledgers if row.open_ends > 0 or row.repeating),
        has_unplaced=any(row.unplaced for row in ledgers),
        sound_count=sound.acked,
        has_suspects=sound.suspects > 0,
    )


def suspects(known: Told) -> DataFrame:
    """Tellings that are not sound, one row for each replica, with its columns and its `state`.

    `broker` is null where a partition has no replica.
    """
    rows = known.placed.where("NOT is_sound").join(broadcast(known.replicas), [*PARTITION], "left")
    held = filter_("holders", lambda holder: holder.broker == col("broker"))
    return rows.withColumn("held", held).withColumn("state", _state()).drop("held", "holders")


def kept(known: Told) -> DataFrame:
    """The records that are judged: LOG, offset and content, with the columns of their replica."""
    holders = known.places.select(*PLACE, inline("holders"))
    return holders.join(broadcast(known.replicas), [*LOG]).where(col("offset") < col("limit"))


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


def _placed(tellings: DataFrame, places: DataFrame, replicas: DataFrame) -> DataFrame:
    partitions = replicas.groupBy(*PARTITION).agg(
        count("*").alias("replica_count"),
        max_("log_start").alias("start"),
        min_("limit").alias("end"),
    )
    rows = (
        tellings.where("offset IS NOT NULL")
        .join(places, [*PLACE], "left")
        .join(broadcast(partitions), [*PARTITION], "left")
    )
    is_bare = col("event") == Event.SHOWN_OFFSET.value
    is_sound = (
        (size(array_distinct("holders.broker")) == col("replica_count"))
        & (is_bare | (array_distinct("holders.content") == array("content")))
        & (col("offset") >= col("start"))
        & (col("offset") < col("end"))
    )
    marked = rows.withColumn("is_sound", coalesce(is_sound, lit(False)))
    return marked.select(
        *_TELLING, "is_sound", when(~col("is_sound"), col("holders")).alias("holders")
    )


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
