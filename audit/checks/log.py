"""Checks of each log by itself: are its bytes batches, and do these go on from one to the next.

All that is said of the order of batches comes from `seams`, those rows where a log does not simply
go on, which is kept between the checks.

A batch's offset and leader epoch lie outside its CRC, so they are never believed by themselves:
what does not fit to the batches around it is found by `gap`, `overlap` and `epoch-order`, and what
fits and is wrong by `divergence`.

Damage that lies below the log start has no readers any more and is only worth knowing. At and
above `judged_end` nothing was promised: there it is a warning, and on a broker that runs, whose
files are read while it writes them, no more than worth knowing.
"""

from collections.abc import Callable, Mapping
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql.functions import (
    broadcast,
    coalesce,
    col,
    concat,
    concat_ws,
    format_string,
    greatest,
    last,
    least,
    lit,
    struct,
    when,
)
from pyspark.sql.functions import count as count_of
from pyspark.sql.functions import max as largest_of
from pyspark.sql.functions import min as smallest_of

from minibroker.audit.checks.facts import REPLICA, next_offset, runs
from minibroker.audit.checks.few import few
from minibroker.audit.checks.findings import as_findings, in_sync, severity, severity_in_log
from minibroker.audit.checks.once import once
from minibroker.audit.files.directories import LIVE, STOPPED
from minibroker.audit.model import Severity, Tables
from minibroker.protocol.records.batch import COMPRESSION_MASK, LOG_APPEND_TIME

# What a batch's attributes may say: its codec and, set by a broker, that its time is the append's.
_FROM_CLIENTS: Final = COMPRESSION_MASK | LOG_APPEND_TIME
_BATCH: Final = (
    *("segment", "position", "size", "base_offset", "last_offset", "leader_epoch"),
    *("torn", "problem"),
)


@once
def seams(batches: DataFrame) -> DataFrame:
    """The rows of BATCHES where a log does not simply go on, with what is before them.

    Those are: bytes that are no batch, the first batch of each segment, and each batch that does
    not begin where the one before it ends, or is of another leader epoch. `previous` is the last
    batch before it, null if there is none, and `furthest` the largest offset before it.

    Where batches are a chain, the run of them stands for all: then there is little to sort.
    """
    known = runs(batches).withColumn("problem", lit(None).cast("string"))
    broken = broadcast(known.where(~col("is_chain")).select(*REPLICA, "segment").distinct())
    pieces = (
        known.join(broken, [*REPLICA, "segment"], "left_anti")
        .select(*REPLICA, *_BATCH)
        .unionByName(
            batches.join(broken, [*REPLICA, "segment"], "left_semi").select(*REPLICA, *_BATCH)
        )
    )
    before = (
        Window.partitionBy(*REPLICA)
        .orderBy("segment", "position")
        .rowsBetween(Window.unboundedPreceding, -1)
    )
    batch = struct("segment", "base_offset", "last_offset", "leader_epoch")
    found = pieces.withColumns(
        {
            "previous": last(when(~col("torn"), batch), ignorenulls=True).over(before),
            "furthest": largest_of("last_offset").over(before),
        }
    ).where(
        col("torn")
        | col("previous").isNull()
        | (col("segment") != col("previous.segment"))
        | (col("base_offset") != next_offset("previous.last_offset"))
        | (col("leader_epoch") != col("previous.leader_epoch"))
    )
    return few(found)


def crc(tables: Tables) -> DataFrame:
    """Batches whose CRC is wrong, and bytes before the end of a log that are no batch."""
    batch = format_string(
        "the batch of offsets %d to %d has CRC %08x, stored with it is %08x",
        *("base_offset", "last_offset", "crc_computed", "crc_stored"),
    )
    suspected = runs(tables.batches).where("has_bad_crc").select(*REPLICA, "segment").distinct()
    batches = tables.batches.join(broadcast(suspected), [*REPLICA, "segment"], "left_semi")
    damaged = _of_replicas(tables, batches).where(
        ~col("torn") & (col("crc_stored") != col("crc_computed"))
    )
    inner = _torn(tables).where(~col("is_tail"))
    columns = [*REPLICA, "segment", "position", "offset", "severity", "detail"]
    return as_findings(
        "crc",
        _found(damaged, "base_offset", batch)
        .select(columns)
        .unionByName(_found(inner, "offset", col("detail"), "offset").select(columns)),
    )


def undecodable(tables: Tables) -> DataFrame:
    """Batches that nobody can read although their CRC is right: of a kind that no broker stores, or
    with bytes that are no records."""
    columns = [*REPLICA, "segment", "position", "offset", "severity", "detail"]
    count = col("last_offset") - col("base_offset") + 1
    # A batch that compaction has thinned out has fewer records than offsets.
    is_short = ~col("is_compacted") & (col("count") != count)
    attributes = format_string("its attributes are %02x", col("attributes").cast("int"))
    why = when(
        col("attributes").bitwiseAND(_FROM_CLIENTS) != col("attributes"),
        concat(attributes, lit(", which no producer may send")),
    ).when(is_short, format_string("it counts %d records", "count"))
    is_odd = (col("attributes").bitwiseAND(_FROM_CLIENTS) != col("attributes")) | (
        col("count") != count
    )
    odd = _of_replicas(
        tables,
        tables.batches.where(~col("torn") & (col("crc_stored") == col("crc_computed")) & is_odd),
    ).withColumn("problem", why)
    bodies = _of_replicas(tables, tables.bodies)
    batch = format_string("the batch of offsets %d to %d: ", "base_offset", "last_offset")
    found = [
        _found(rows, "base_offset", concat(batch, "problem")).select(columns)
        for rows in (odd.where(why.isNotNull()), bodies)
    ]
    return as_findings("undecodable", found[0].unionByName(found[1]))


def torn_tail(tables: Tables) -> DataFrame:
    """Bytes after the last whole batch of a log: a clean stop leaves none."""
    tail = _torn(tables).where(col("is_tail"))
    is_clean = col("state") == STOPPED
    found = tail.withColumn(
        "severity", when(is_clean, severity(in_sync())).otherwise(lit(Severity.INFO.value))
    )
    return as_findings("torn-tail", found)


def _torn(tables: Tables) -> DataFrame:
    """Bytes that are no batch; `is_tail`: no batch follows them in the log."""
    torn = seams(tables.batches).where(col("torn"))
    ends = (
        tables.batches.join(broadcast(torn.select(*REPLICA).distinct()), [*REPLICA], "left_semi")
        .where(~col("torn"))
        .groupBy(*REPLICA)
        .agg(largest_of(struct("segment", "position")).alias("end"))
    )
    return (
        _of_replicas(tables, torn)
        .join(broadcast(ends), [*REPLICA], "left")
        .withColumns(
            {
                "is_tail": coalesce(struct("segment", "position") > col("end"), lit(True)),
                "offset": coalesce(next_offset("previous.last_offset"), col("segment")),
                "detail": concat_ws(
                    ": ", format_string("%,d bytes are no batch", "size"), "problem"
                ),
            }
        )
    )


def gap(tables: Tables) -> DataFrame:
    """Offsets that no batch of a log has, between two batches or between its start and the first.

    In a compacted topic there may be such.
    """
    missing = format_string(
        "offset %d should follow, the next batch begins at %d", "expected", "base_offset"
    )
    joints = _joints(tables).where(col("leaves_out") & ~col("is_compacted"))
    return as_findings("gap", _found(joints, "expected", missing))


def overlap(tables: Tables) -> DataFrame:
    """Batches that begin before the end of the one before them."""
    again = format_string(
        "offsets %d to %d stand where %d should follow",
        *("base_offset", "last_offset", "expected"),
    )
    joints = _joints(tables).where(
        col("previous").isNotNull() & (col("base_offset") < col("expected"))
    )
    return as_findings("overlap", _found(joints, "base_offset", again))


def segment_name(tables: Tables) -> DataFrame:
    """Segments whose name is not their first offset.

    Where the name fits to what is before it, the first batch is what is wrong: then it is a gap.
    """
    is_first = col("previous").isNull() | (col("segment") != col("previous.segment"))
    fits = (col("segment") == col("expected")) | (col("previous").isNull() & col("leaves_out"))
    may_differ = col("is_compacted") & (col("base_offset") > col("segment"))
    wrong = is_first & (col("base_offset") != col("segment")) & ~fits & ~may_differ
    detail = format_string("its name says %d, its first batch %d", "segment", "base_offset")
    return as_findings("segment-name", _found(_joints(tables).where(wrong), "base_offset", detail))


def epoch_order(tables: Tables) -> DataFrame:
    """Batches of an older leader epoch than the one before them."""
    falls = col("leader_epoch") < coalesce(col("previous.leader_epoch"), lit(0))
    before = format_string(
        "leader epoch %d follows on %d, in which offset %d is",
        *("leader_epoch", "previous.leader_epoch", "previous.last_offset"),
    )
    alone = format_string("leader epoch %d is none", "leader_epoch")
    detail = when(col("previous").isNull(), alone).otherwise(before)
    return as_findings("epoch-order", _found(_joints(tables).where(falls), "base_offset", detail))


def _joints(tables: Tables) -> DataFrame:
    """Seams between batches. `expected`: where the batch would have to begin; `leaves_out`: it
    begins later, and not where an earlier one ended, as the batch after two swapped ones does.

    The first batch begins at or below the log start. While a broker runs, that may have moved
    between the reading of the checkpoint and that of the log.
    """
    is_inner = col("previous").isNotNull()
    expected = when(is_inner, next_offset("previous.last_offset")).otherwise(
        coalesce(col("log_start"), col("segment"))
    )
    leaves_out = (
        (col("base_offset") > expected)
        & (col("base_offset") != coalesce(next_offset("furthest"), lit(-1)))
        & (col("base_offset") > coalesce(col("log_start"), lit(0)))
        & (is_inner | (col("state") != LIVE))
    )
    joints = seams(tables.batches).where(~col("torn"))
    return _of_replicas(tables, joints).withColumns(
        {"expected": expected, "leaves_out": leaves_out}
    )


def epoch_checkpoint(tables: Tables) -> DataFrame:
    """The first epoch of a log of which `leader-epoch-checkpoint` says other than the batches.

    The file is written before the batches and cut after them, so a broker that is killed leaves
    entries behind the log's end or without batches of their own: they are passed over when the log
    is opened, and here. Of both sides only what holds at and above the log start is compared.
    A broker that opens the log compares the first and the last epoch only. So a difference between
    them is an error; else the file will be made anew.
    """
    in_log = (
        runs(tables.batches)
        .where(~col("torn"))
        .groupBy(*REPLICA, col("leader_epoch").alias("epoch"))
        .agg(smallest_of(struct("segment", "position", "base_offset")).alias("first"))
        .select(*REPLICA, "epoch", col("first.base_offset").alias("start"))
    )
    log = _compared_epochs(tables, in_log).withColumnRenamed("begin", "in_log")
    file = _compared_epochs(tables, tables.epoch_starts).withColumnRenamed("begin", "in_file")
    both = log.join(file, [*REPLICA, "epoch"], "full")
    newest = Window.partitionBy(*REPLICA)
    has_newest = largest_of(when(col("in_log").isNotNull(), col("epoch"))).over(
        newest
    ) == largest_of(when(col("in_file").isNotNull(), col("epoch"))).over(newest)
    first = (
        both.withColumn("has_newest", coalesce(has_newest, lit(False)))
        .where(~col("in_log").eqNullSafe(col("in_file")))
        .groupBy(*REPLICA)
        .agg(
            smallest_of(
                struct(
                    least("in_log", "in_file").alias("offset"),
                    *("epoch", "in_log", "in_file", "has_newest"),
                )
            ).alias("first"),
            count_of("*").alias("differing"),
        )
    )
    detail = format_string(
        "epoch %d starts at %s in the log and at %s in the checkpoint; %d differ in all",
        col("first.epoch"),
        *(
            coalesce(col(f"first.{side}").cast("string"), lit("no offset"))
            for side in ("in_log", "in_file")
        ),
        col("differing"),
    )
    found = _of_replicas(tables, first).withColumns(
        {
            "offset": col("first.offset"),
            "severity": severity(in_sync() & col("first.has_newest")),
            "detail": detail,
        }
    )
    return as_findings("epoch-checkpoint", found)


def _compared_epochs(tables: Tables, epochs: DataFrame) -> DataFrame:
    """Epochs of logs and where they begin, at the log start at the lowest, as far as is judged.

    Where no checkpoint says the log start and the front is gone, the file's lowest start is it.
    """
    lowest = tables.epoch_starts.groupBy(*REPLICA).agg(smallest_of("start").alias("lowest"))
    told = coalesce("log_start", when(col("first_offset") > 0, col("lowest")), lit(0))
    log_start = greatest(told, "first_offset")
    end = when(col("state") == LIVE, col("judged_end")).otherwise(col("log_end"))
    return (
        _of_replicas(tables, epochs)
        .join(lowest, [*REPLICA], "left")
        .withColumn("begin", greatest("start", log_start))
        .where(col("begin") < end)
        .groupBy(*REPLICA, "begin")
        .agg(largest_of("epoch").alias("epoch"))
    )


def index(tables: Tables) -> DataFrame:
    """Entries of the index files that are wrong; a broker makes such a file anew."""
    wrong = tables.index_entries.where(col("problem").isNotNull())
    entry = when(col("entry").isNotNull(), format_string("entry %d of the", "entry"))
    detail = concat_ws(
        " ", entry, when(col("entry").isNull(), "the"), "kind", lit("file:"), "problem"
    )
    return as_findings(
        "index",
        _of_replicas(tables, wrong).withColumns(
            {"severity": lit(Severity.WARNING.value), "detail": detail}
        ),
    )


def _of_replicas(tables: Tables, rows: DataFrame) -> DataFrame:
    """Rows about logs with what is known of these; rows of logs that are not judged are dropped."""
    return rows.join(broadcast(tables.replicas), [*REPLICA])


def _found(rows: DataFrame, offset: str, detail: Column, last: str = "last_offset") -> DataFrame:
    """Rows with offset, severity and detail of findings; the damage is from `offset` to `last`."""
    return rows.withColumns(
        {
            "severity": severity_in_log(in_sync(), offset, last),
            "offset": col(offset),
            "detail": detail,
        }
    )


CHECKS: Final[Mapping[str, Callable[[Tables], DataFrame]]] = {
    "crc": crc,
    "undecodable": undecodable,
    "torn-tail": torn_tail,
    "gap": gap,
    "overlap": overlap,
    "segment-name": segment_name,
    "epoch-order": epoch_order,
    "epoch-checkpoint": epoch_checkpoint,
    "index": index,
}
