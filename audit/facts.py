"""What the batches say of each log, as far as the driver has to know it.

The header's offset and epoch lie outside the CRC, so one flipped bit can make a batch claim any
offset. So a log ends where its last batch by position ends, not where the largest offset lies, and
an epoch, too; only if the last batch claims less than others do, and they no more than all batches
end to end come to, those are believed.
"""

from functools import reduce
from itertools import groupby
from operator import xor
from typing import Final

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql.functions import bit_xor, bool_or, col, greatest, lit, struct, when
from pyspark.sql.functions import max as largest_of
from pyspark.sql.functions import min as smallest_of
from pyspark.sql.functions import sum as sum_of

from minibroker.audit.directories import Replica
from minibroker.audit.extent import EpochEnd, LogFacts, ascending
from minibroker.protocol.constants import INT64_MAX

REPLICA: Final = ("broker", "topic", "partition")  # the columns that name a log


def next_offset(last_offset: str) -> Column:
    """The offset after this one; a damaged header may claim the largest that there is."""
    return when(col(last_offset) < INT64_MAX, col(last_offset) + 1).otherwise(col(last_offset))


def log_facts(batches: DataFrame) -> dict[Replica, LogFacts]:
    """Of each log with at least one batch, where it begins and ends. One pass over the batches."""
    epochs = (
        batches.where(~col("torn"))
        .withColumn("next_offset", next_offset("last_offset"))
        .groupBy(*REPLICA, "leader_epoch")
        .agg(
            smallest_of(struct("segment", "position", "base_offset")).alias("first"),
            largest_of(struct("segment", "position", "next_offset")).alias("last"),
            largest_of("next_offset").alias("largest"),
            sum_of(col("next_offset") - greatest("base_offset", lit(0))).alias("length"),
            # Where each batch begins where another ends, all but the outermost cancel out.
            bit_xor(col("base_offset").bitwiseXOR(col("next_offset"))).alias("seams"),
            bool_or(col("crc_stored") != col("crc_computed")).alias("has_bad_crc"),
        )
        .orderBy(*REPLICA)
        .collect()
    )
    by_log = groupby(epochs, key=lambda row: Replica(*row[: len(REPLICA)]))
    return {name: _facts(list(rows)) for name, rows in by_log}


def _facts(epochs: list[Row]) -> LogFacts:
    first_offset = min(row["first"] for row in epochs)["base_offset"]
    log_end = max(row["last"] for row in epochs)["next_offset"]
    largest = max(row["largest"] for row in epochs)
    if largest <= first_offset + sum(row["length"] for row in epochs):
        log_end = largest
    seams = reduce(xor, (row["seams"] for row in epochs))
    epoch_ends = ascending(
        EpochEnd(row["leader_epoch"], row["last"]["next_offset"], row["length"]) for row in epochs
    )
    is_whole = (
        seams == first_offset ^ log_end
        and len(epoch_ends) == len(epochs)
        and not any(row["has_bad_crc"] for row in epochs)
    )
    return LogFacts(first_offset, log_end, epoch_ends, is_whole)
