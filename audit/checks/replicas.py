"""Checks of the replicas of a partition against each other, and against what was committed.

Each replica is compared with the partition's reference (`extent` chooses it), batch by batch: the
same bytes at the same offset in the same leader epoch. To compare every batch with its counterpart
means to move all of them. So first each log is made into digests, one for the batches that end in
the same BUCKET_OFFSETS offsets; only where two digests differ are batches looked at.

A pair of logs is compared from where both begin to where both are judged. A batch counts if its
last offset lies there: then one that holds the log start is compared, too.
"""

from collections.abc import Callable, Mapping
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql.functions import (
    bit_xor,
    broadcast,
    coalesce,
    col,
    concat,
    count,
    format_string,
    greatest,
    least,
    lit,
    shiftright,
    struct,
    when,
    xxhash64,
)
from pyspark.sql.functions import max as largest_of
from pyspark.sql.functions import min as smallest_of
from pyspark.sql.functions import sum as sum_of

from minibroker.audit.checks.facts import PARTITION, REPLICA, next_offset
from minibroker.audit.checks.few import few
from minibroker.audit.checks.findings import as_findings, in_sync, severity
from minibroker.audit.checks.log import seams
from minibroker.audit.files.directories import LIVE
from minibroker.audit.model import Tables

BUCKET_BITS: Final = 12
BUCKET_OFFSETS: Final = 1 << BUCKET_BITS
_PAIR: Final = (*PARTITION, "compared")
_BATCH: Final = ("base_offset", "last_offset", "identity", "leader_epoch", "segment", "position")


def divergence(tables: Tables) -> DataFrame:
    """Replicas that differ from the reference: the first batch of each that does."""
    sides = _sides(tables.replicas)
    batches = _placed(tables.batches)
    buckets = _differing_buckets(batches, sides)
    looked_into = _in_buckets(batches, sides.join(broadcast(buckets), [*_PAIR]))
    here = _side(looked_into, is_reference=False)
    there = _side(looked_into, is_reference=True)
    is_same = lit(True)
    for name in ("last_offset", "identity", "leader_epoch"):
        is_same &= col(f"here.{name}").eqNullSafe(col(f"there.{name}"))
    first = (
        here.join(there, [*_PAIR, "base_offset"], "full")
        .where(~is_same)
        .groupBy(*_PAIR)
        .agg(smallest_of(struct("base_offset", "here", "there")).alias("first"))
    )
    differing = buckets.groupBy(*_PAIR).agg(largest_of("differing").alias("differing"))
    detail = concat(
        lit("here is "),
        _batch_in_words("first.here"),
        format_string(", on broker %d ", "other_broker"),
        _batch_in_words("first.there"),
        format_string(f"; %,d stretches of {BUCKET_OFFSETS} offsets differ", "differing"),
    )
    found = (
        first.join(broadcast(sides.where(~col("is_reference"))), [*_PAIR])
        .join(broadcast(differing), [*_PAIR])
        .withColumns({"detail": detail, "offset": col("first.base_offset")})
        .withColumns({name: col(f"first.here.{name}") for name in ("segment", "position")})
    )
    return as_findings("divergence", found)


def _placed(batches: DataFrame) -> DataFrame:
    """Whole batches, without those that begin before the end of the one that they follow.

    Such a one may claim, by a flipped bit, the place of another. That it does is an `overlap`; here
    it is absent from its own place.
    """
    misplaced = (
        seams(batches)
        .where(~col("torn") & (col("base_offset") < next_offset("previous.last_offset")))
        .select(*REPLICA, "segment", "position")
    )
    on = [*REPLICA, "segment", "position"]
    return batches.where(~col("torn")).join(broadcast(misplaced), on, "left_anti")


def _sides(replicas: DataFrame) -> DataFrame:
    """Two rows for each replica that is compared with a reference: one for each log to be read.

    `compared` is the replica's broker, `start` and `end` bound what is compared.
    """
    known = when(col("state") == LIVE, greatest("log_start", "first_offset")).otherwise(
        coalesce("log_start", "first_offset")
    )
    judged_end = when(in_sync(), col("judged_end")).otherwise(least("judged_end", "kept_end"))
    logs = replicas.where(~col("is_compacted")).withColumns(
        {
            "start": coalesce(known, lit(0)),
            "end": least(judged_end, "log_end"),
            "severity": severity(in_sync()),
        }
    )
    references = logs.where("is_reference").select(
        *PARTITION,
        col("broker").alias("other_broker"),
        col("start").alias("other_start"),
        col("end").alias("other_end"),
    )
    pairs = (
        logs.where(~col("is_reference"))
        .join(references, [*PARTITION])
        .select(
            *PARTITION,
            col("broker").alias("compared"),
            "other_broker",
            "severity",
            greatest("start", "other_start").alias("start"),
            least("end", "other_end").alias("end"),
        )
        .where(col("start") < col("end"))
    )
    return pairs.withColumns({"broker": col("compared"), "is_reference": lit(False)}).unionByName(
        pairs.withColumns({"broker": col("other_broker"), "is_reference": lit(True)})
    )


def _bucket() -> Column:
    return shiftright("last_offset", BUCKET_BITS)


def _differing_buckets(batches: DataFrame, sides: DataFrame) -> DataFrame:
    """Of each pair the buckets to look into, and how many differ.

    The first that lies within the pair's bounds as a whole does hold a difference. One that the
    bounds cut may differ beyond them only, so those are looked into as well. They are kept, for
    what is made of them would make all digests again.
    """
    digests = batches.groupBy(*REPLICA, _bucket().alias("bucket")).agg(
        bit_xor(xxhash64("identity", "base_offset", "leader_epoch")).alias("digest"),
        count("*").alias("batches"),
        sum_of("size").alias("bytes"),
    )
    sign = when(col("is_reference"), -1).otherwise(1)
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
    return few(found)


def _in_buckets(batches: DataFrame, places: DataFrame) -> DataFrame:
    """The batches of both logs of each pair in the buckets to look into."""
    return (
        batches.select(*REPLICA, *_BATCH, _bucket().alias("bucket"))
        .join(broadcast(places), [*REPLICA, "bucket"])
        .where((col("last_offset") >= col("start")) & (col("last_offset") < col("end")))
    )


def _side(batches: DataFrame, *, is_reference: bool) -> DataFrame:
    """The batches of one log of each pair, by base offset."""
    name = "there" if is_reference else "here"
    batch = struct(*_BATCH).alias(name)
    return batches.where(col("is_reference") == is_reference).select(*_PAIR, "base_offset", batch)


def _batch_in_words(batch: str) -> Column:
    fields = ("base_offset", "last_offset", "leader_epoch", "identity", "segment", "position")
    words = format_string(
        "the batch of offsets %d to %d, epoch %d, identity %016x (segment %d, position %d)",
        *(f"{batch}.{field}" for field in fields),
    )
    return when(col(batch).isNull(), lit("no such batch")).otherwise(words)


def missing_committed(tables: Tables) -> DataFrame:
    """In-sync replicas that end below what any replica's broker knew to be committed.

    They end there now, or will once they have cut what the leader's epochs do not know; that is
    said only where no in-sync log is too short itself, for it would be the consequence.
    """
    partition = Window.partitionBy(*PARTITION)
    known = struct(least(coalesce("high_watermark", lit(0)), "log_end").alias("offset"), "broker")
    ends = tables.replicas.withColumns(
        {
            "committed": largest_of(known).over(partition),
            "shortest": smallest_of(when(in_sync(), col("log_end"))).over(partition),
        }
    )
    committed = col("committed.offset")
    is_short = col("log_end") < committed
    is_cut = (col("kept_end") < committed) & (col("shortest") >= committed) & (col("state") != LIVE)
    end = when(is_short, format_string("it ends at %d", "log_end")).otherwise(
        format_string("the leader's epochs cut it to %d", "kept_end")
    )
    said = format_string(
        "; broker %d has checkpointed a high watermark of %d", "committed.broker", committed
    )
    found = ends.where(in_sync() & (is_short | is_cut)).withColumns(
        {
            "offset": least("log_end", "kept_end"),
            "other_broker": col("committed.broker"),
            "severity": severity(coalesce("in_isr", lit(False))),
            "detail": concat(end, said),
        }
    )
    return as_findings("missing-committed", found)


def hw_beyond_leo(tables: Tables) -> DataFrame:
    """Replicas whose checkpointed high watermark lies above their log end."""
    detail = format_string("high watermark %d, log end %d", "high_watermark", "log_end")
    found = tables.replicas.where(col("high_watermark") > col("log_end")).withColumns(
        {"offset": col("log_end"), "severity": severity(in_sync()), "detail": detail}
    )
    return as_findings("hw-beyond-leo", found)


CHECKS: Final[Mapping[str, Callable[[Tables], DataFrame]]] = {
    "divergence": divergence,
    "missing-committed": missing_committed,
    "hw-beyond-leo": hw_beyond_leo,
}
