"""Which ranges of offsets hold exactly what ledgers say, on every replica, by their digests.

A range is sound if the digests of all replicas are equal, each line of an event of a ledger tells
of one of its places, and every place is told of. Whoever acknowledges a partition's records, all
producers together must have told of each once; so must the consumers of each group. A group that
has read only a part of a range, or has read a record twice, makes the range one to look into.
"""

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql.functions import (
    bit_xor,
    bool_and,
    broadcast,
    coalesce,
    col,
    count,
    lit,
    shiftright,
    when,
)
from pyspark.sql.functions import max as max_
from pyspark.sql.functions import min as min_
from pyspark.sql.functions import sum as sum_

from minibroker.audit.checks.facts import PARTITION, REPLICA
from minibroker.audit.checks.local_frames import collect_small
from minibroker.audit.files.digests import RANGE_BITS
from minibroker.audit.files.ledger import OF_GROUPS, Event

_RANGE: Final = (*PARTITION, "range")
_NUMBERS: Final = ("count", "places_xor", "places_sum", "offsets_xor")


def compare_digests(
    told: DataFrame, stored: DataFrame, replicas: DataFrame
) -> tuple[DataFrame, bool]:
    """Return topic, partition and range of those that are not sound as a whole, of all of which a
    ledger tells; and whether each stored record was acknowledged at its place, once.

    `told` are LEDGER_DIGESTS, `stored` RECORD_DIGESTS, `replicas` those of `Acknowledged`.
    """
    told = told.where(col("range").isNotNull() & ~col("event").isin(*OF_GROUPS))
    stored = stored.join(broadcast(replicas.select(*REPLICA)), [*REPLICA], "left_semi")
    held = collect_small(_same_on_all(_summed(stored, *REPLICA, "range"), replicas))
    is_acked = col("event") == Event.ACKED.value
    # Every group is shown all; all producers together have sent all.
    reader = when(~is_acked, coalesce("group", col("ledger")))
    told = collect_small(_summed(told.withColumn("reader", reader), *_RANGE, "event", "reader"))
    is_bare = col("event") == Event.SHOWN_OFFSET.value
    is_whole = _is_same("count") & _is_same("offsets_xor")
    is_whole &= is_bare | (_is_same("places_xor") & _is_same("places_sum"))
    is_inside = (col("first_offset") >= col("start")) & (col("last_offset") < col("end"))
    compared = told.join(_named(held, "held"), [*_RANGE], "left")
    is_sound = coalesce(col("is_same") & is_whole & is_inside, lit(False))
    ranges = collect_small(compared.where(~is_sound).select(*_RANGE).distinct())
    acked = _named(told.where(is_acked), "told")
    each = held.join(acked, [*_RANGE], "left")
    is_acked_once = col("is_same")
    for name in _NUMBERS:
        is_acked_once &= col(name) == col(f"told_{name}")
    is_exact = (
        each.agg(bool_and(coalesce(is_acked_once, lit(False))).alias("is_exact"))
        .collect()[0]
        .is_exact
    )
    return ranges, is_exact is not False


def within(rows: DataFrame, ranges: DataFrame) -> DataFrame:
    """Return the rows with an offset of these ranges."""
    ranged = rows.withColumn("range", shiftright("offset", RANGE_BITS))
    return ranged.join(broadcast(ranges), [*_RANGE], "left_semi").drop("range")


def _summed(digests: DataFrame, *keys: str) -> DataFrame:
    """Return one row for all digests of the same keys."""
    return digests.groupBy(*keys).agg(
        sum_("count").alias("count"),
        bit_xor("places_xor").alias("places_xor"),
        sum_("places_sum").alias("places_sum"),
        bit_xor("offsets_xor").alias("offsets_xor"),
        min_("first_offset").alias("first_offset"),
        max_("last_offset").alias("last_offset"),
    )


def _same_on_all(held: DataFrame, replicas: DataFrame) -> DataFrame:
    """Return a row for each range: what the replicas hold, whether all hold the same (`is_same`),
    and between which offsets all are judged."""
    partitions = replicas.groupBy(*PARTITION).agg(
        count("*").alias("replica_count"),
        max_("log_start").alias("start"),
        min_("limit").alias("end"),
    )
    is_one = lit(True)
    for name in _NUMBERS:
        is_one &= col(name) == col(f"greatest_{name}")
    return (
        held.groupBy(*_RANGE)
        .agg(
            count("*").alias("holders"),
            *[min_(name).alias(name) for name in _NUMBERS],
            *[max_(name).alias(f"greatest_{name}") for name in _NUMBERS],
        )
        .join(broadcast(partitions), [*PARTITION])
        .withColumn("is_same", is_one & (col("holders") == col("replica_count")))
        .select(*_RANGE, *_NUMBERS, "is_same", "start", "end")
    )


def _named(digests: DataFrame, prefix: str) -> DataFrame:
    """Return the same with other names of the numbers."""
    return digests.withColumnsRenamed({name: f"{prefix}_{name}" for name in _NUMBERS})


def _is_same(name: str) -> Column:
    return col(name) == col(f"held_{name}")
