"""Checks of what idempotent producers left in a log: their sequences, and the snapshots of them.

A producer's batches carry (producer id, epoch, sequence of the first record). Within an epoch each
batch goes on where the one before it ended, from 2^31-1 on to 0; an epoch begins at 0. What broke
this was lost or stored twice by a leader, whatever the offsets say. A log that does not begin at
offset 0 has lost its first batches to retention, so a producer's first batch may begin anywhere
in it.

A batch that is twice in a log would also look like a gap, before it and behind it. So repetitions
are told first, and gaps are looked for in what remains. One sort of all batches finds the
producers that are not sound; only these are looked at closely.

A snapshot says where each producer stood at the offset in its name. A broker makes it again from
the batches if it is lost, hence the warnings.
"""

from collections.abc import Callable, Mapping
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql.functions import (
    broadcast,
    coalesce,
    col,
    format_string,
    lag,
    last,
    lit,
    struct,
    when,
)

from minibroker.audit.checks.few import few
from minibroker.audit.checks.findings import as_findings, in_sync, severity_in_log
from minibroker.audit.checks.once import once
from minibroker.audit.model import Severity, Tables

_LOG: Final = ("broker", "topic", "partition")
_PRODUCER: Final = (*_LOG, "producer_id")
_SEQUENCES: Final = 2**31  # so many, then 0 comes again
_IN_ORDER: Final = ("base_offset", "segment", "position")


def sequence_gap(tables: Tables) -> DataFrame:
    """Batches of a producer that do not go on where the one before them ended."""
    once = _suspects(tables).where("NOT is_repeated")
    detail = format_string(
        "producer %d epoch %d: sequence %d comes where %d is next",
        *("producer_id", "producer_epoch", "base_sequence", "expected"),
    )
    found = _expected(once).where("base_sequence != expected").withColumn("detail", detail)
    return _found("sequence-gap", found, in_sync())


def sequence_duplicate(tables: Tables) -> DataFrame:
    """Batches of a producer that are in a log twice.

    Sequence 0 again with other records is a warning: a producer that brokers have forgotten may
    begin anew.
    """
    is_same = col("identity") == col("earlier_identity")
    detail = format_string(
        "producer %d epoch %d: sequence %d again; %s with it is at offset %d",
        *("producer_id", "producer_epoch", "base_sequence"),
        when(is_same, "the same batch").otherwise("another batch"),
        "earlier_offset",
    )
    is_promised = in_sync() & (is_same | (col("base_sequence") != 0))
    found = _suspects(tables).where("is_repeated").withColumn("detail", detail)
    return _found("sequence-duplicate", found, is_promised)


def snapshot(tables: Tables) -> DataFrame:
    """Producers of whom a snapshot says other than the batches before it.

    Nothing can be said of a producer whose batches are all gone from the log, nor, on a broker
    that runs, of a snapshot that was taken after its log was read.
    """
    nothing = lit(None).cast("struct<epoch: smallint, sequence: int, offset: bigint>")
    stored = struct(
        col("producer_epoch").alias("epoch"),
        _sequence_after(col("last_offset") - col("base_offset")).cast("int").alias("sequence"),
        col("last_offset").alias("offset"),
    )
    told = struct(
        col("producer_epoch").alias("epoch"),
        col("last_sequence").alias("sequence"),
        col("last_offset").alias("offset"),
    )
    batches = _batches(tables).select(
        *_PRODUCER,
        col("base_offset").alias("offset"),
        stored.alias("stored"),
        nothing.alias("told"),
    )
    snapshots = tables.producers.where("last_offset >= 0 AND last_sequence >= 0").select(
        *_PRODUCER, "offset", nothing.alias("stored"), told.alias("told")
    )
    # A snapshot comes before the batch that begins where it ends.
    order = Window.partitionBy(*_PRODUCER).orderBy("offset", col("told").isNull())
    both = batches.unionByName(snapshots)
    latest = both.withColumn("stored", last("stored", ignorenulls=True).over(order))
    known = tables.replicas.select(*_LOG, "first_offset", "log_end", "state")
    judged = (
        latest.where("told IS NOT NULL")
        .join(broadcast(known), [*_LOG])
        .where("stored IS NOT NULL OR first_offset = 0")
        .where("state != 'live' OR offset <= log_end")
    )
    state = "epoch %d, sequence %d, offset %d"
    detail = format_string(
        f"the snapshot says of producer %d: {state}; the batches before it say: %s",
        *("producer_id", "told.epoch", "told.sequence", "told.offset"),
        when(col("stored").isNull(), "nothing").otherwise(
            format_string(state, "stored.epoch", "stored.sequence", "stored.offset")
        ),
    )
    found = judged.where("NOT told <=> stored").withColumns(
        {
            "segment": col("offset"),  # the file's name
            "severity": lit(Severity.WARNING.value),
            "detail": detail,
        }
    )
    return as_findings("snapshot", found)


def _batches(tables: Tables) -> DataFrame:
    """The batches of idempotent producers."""
    return tables.batches.where("NOT torn AND producer_id >= 0 AND base_sequence >= 0")


def _sequence_after(count: Column) -> Column:
    """So many records after the first one of a batch."""
    return (col("base_sequence") + count) % _SEQUENCES


def _expected(batches: DataFrame) -> DataFrame:
    """Batches with the sequence that each should begin with, null where that is not known."""
    order = Window.partitionBy(*_PRODUCER).orderBy(*_IN_ORDER)
    following = _sequence_after(col("last_offset") - col("base_offset") + 1)
    earlier_epoch = lag("producer_epoch").over(order)
    begins = earlier_epoch.isNotNull() | (col("first_offset") == 0)
    expected = when(earlier_epoch == col("producer_epoch"), lag(following).over(order)).when(
        begins, 0
    )
    return batches.withColumn("expected", expected)


@once
def _suspects(tables: Tables) -> DataFrame:
    """All batches of the producers that are not sound, with those that came before marked."""
    facts = tables.replicas.select(
        *_LOG, "in_isr", "first_offset", "log_start", "judged_end", "state"
    )
    batches = (
        _batches(tables)
        .select(
            *_PRODUCER, "producer_epoch", "base_sequence", "last_offset", *_IN_ORDER, "identity"
        )
        .join(broadcast(facts), [*_LOG], "left")
    )
    unsound = few(
        _expected(batches).where("base_sequence != expected").select(*_PRODUCER).distinct()
    )
    order = Window.partitionBy(*_PRODUCER, "producer_epoch", "base_sequence").orderBy(*_IN_ORDER)
    earlier_offset = lag("base_offset").over(order)
    marked = batches.join(broadcast(unsound), [*_PRODUCER], "left_semi").withColumns(
        {
            "earlier_offset": earlier_offset,
            "earlier_identity": lag("identity").over(order),
            # Further apart, all the others may have come in between.
            "is_repeated": coalesce(col("base_offset") - earlier_offset < _SEQUENCES, lit(False)),
        }
    )
    return few(marked)


def _found(check: str, found: DataFrame, is_promised: Column) -> DataFrame:
    """Findings at the batches of these rows."""
    columns = {
        "offset": col("base_offset"),
        "severity": severity_in_log(is_promised, "base_offset", "last_offset"),
    }
    return as_findings(check, found.withColumns(columns))


CHECKS: Final[Mapping[str, Callable[[Tables], DataFrame]]] = {
    "sequence-gap": sequence_gap,
    "sequence-duplicate": sequence_duplicate,
    "snapshot": snapshot,
}
