"""Checks of each log by itself: whether its bytes are batches, and each batch continues the last.

The checks of the order of batches start from `seams`: the rows where a log does not simply
continue, computed once for all of them. A check that sees in `seams` and `runs` that it has nothing
to examine plans no query.

A batch's offset and leader epoch lie outside its CRC, so they are never believed by themselves:
`gap`, `overlap` and `epoch-order` find values that do not fit the batches around them, and
`divergence` finds values that fit and are wrong.

Damage below the log start has no readers any more: it is info. At and above `judged_end` nothing is
promised: there damage is a warning, or info on a running broker, whose files are read while it
writes them.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import reduce
from itertools import groupby, pairwise, starmap
from operator import itemgetter, or_
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Row, Window
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

from minibroker.audit.arrow import compute as pc
from minibroker.audit.checks.facts import (
    REPLICA,
    has_horizon,
    has_odd_attributes,
    is_cleaned,
    is_no_marker,
    is_odd,
    next_offset,
    runs,
)
from minibroker.audit.checks.findings import as_findings, in_sync, severity, severity_in_log
from minibroker.audit.checks.local_frames import (
    collect_small,
    empty_like,
    is_known_empty,
    local_rows,
)
from minibroker.audit.checks.memoize import memoize_per_run
from minibroker.audit.files.directories import LIVE, STOPPED, Replica
from minibroker.audit.model import Severity, Tables

_BATCH: Final = (
    "segment",
    "position",
    "size",
    "base_offset",
    "last_offset",
    "leader_epoch",
    "torn",
    "problem",
)


@memoize_per_run
def seams(batches: DataFrame) -> DataFrame:
    """Return the rows of BATCHES where a log does not simply continue, with what precedes them.

    Those are: bytes that are not a batch, the first batch of a log that does not begin at 0, and
    each batch that does not begin where the one before it ends, or is of an older leader epoch, or
    is the first of a segment named after another offset. `previous` is the last batch before the
    row, null if there is none, and `furthest` the largest offset before it.

    A run whose batches form a chain stands for all of them, so there is little to sort.
    """
    rows = local_rows(runs(batches))
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
    is_inner = col("previous").isNotNull()
    is_first_of_segment = ~is_inner | (col("segment") != col("previous.segment"))
    found = pieces.withColumns(
        {
            "previous": last(when(~col("torn"), batch), ignorenulls=True).over(before),
            "furthest": largest_of("last_offset").over(before),
        }
    ).where(
        col("torn")
        | (~is_inner & (col("base_offset") != 0))
        | (is_first_of_segment & (col("base_offset") != col("segment")))
        | (is_inner & (col("base_offset") != next_offset("previous.last_offset")))
        | (col("leader_epoch") < coalesce(col("previous.leader_epoch"), lit(0)))
    )
    return empty_like(found) if rows is not None and is_seamless(rows) else collect_small(found)


def is_seamless(rows: pa.Table) -> bool:
    """Whether the runs, held by the driver, show that `seams` would find nothing."""
    in_order = sorted(rows.to_pylist(), key=itemgetter(*REPLICA, "segment", "position"))
    for _, log in groupby(in_order, key=itemgetter(*REPLICA)):
        runs_of_log = list(log)
        if not all(row["is_chain"] for row in runs_of_log):
            return False
        first = runs_of_log[0]
        if first["base_offset"] != 0 or first["segment"] != 0 or first["leader_epoch"] < 0:
            return False
        if not all(starmap(_goes_on, pairwise(runs_of_log))):
            return False
    return True


def _goes_on(before: Mapping[str, Any], row: Mapping[str, Any]) -> bool:
    """Whether a run begins where the one before it ends, in the same segment or one named so."""
    return (
        row["base_offset"] == before["last_offset"] + 1
        and row["segment"] in (before["segment"], row["base_offset"])
        and row["leader_epoch"] >= before["leader_epoch"]
    )


def has_torn(batches: DataFrame) -> bool:
    """Whether there may be bytes that are not a batch."""
    rows = local_rows(seams(batches))
    return rows is None or bool(pc.any(rows["torn"]).as_py())


def is_any_run(batches: DataFrame, name: str) -> bool:
    """Whether there may be a run for which this column is true."""
    rows = local_rows(runs(batches))
    return rows is None or bool(pc.any(rows[name]).as_py())


def crc(tables: Tables) -> DataFrame | None:
    """Return the batches whose CRC is wrong, and the bytes before a log's end that are no batch."""
    if not (is_any_run(tables.batches, "has_bad_crc") or has_torn(tables.batches)):
        return None
    batch = format_string(
        "the batch of offsets %d to %d has CRC %08x, stored with it is %08x",
        "base_offset",
        "last_offset",
        "crc_computed",
        "crc_stored",
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


def undecodable(tables: Tables) -> DataFrame | None:
    """Return the batches whose records cannot be read although their CRC is right: of a kind that
    no broker stores, or with bytes that are not records. What compaction makes of a batch belongs
    only into logs that may have been compacted."""
    bodies = collect_small(tables.bodies)
    is_any_foreign = any(
        row.cleaned_end and not row.may_be_cleaned for row in tables.replicas.collect()
    )
    if is_known_empty(bodies) and not (is_any_foreign or is_any_run(tables.batches, "has_odd")):
        return None
    bodies = _on_all_replicas(bodies, tables.batches)
    columns = [*REPLICA, "segment", "position", "offset", "severity", "detail"]
    attributes = format_string("its attributes are %02x", col("attributes").cast("int"))
    counted = format_string("it counts %d records", "count")
    foreign = concat(
        when(has_horizon(), attributes).otherwise(counted),
        lit(", as after compaction, and this log was never to be compacted"),
    )
    is_foreign = is_cleaned() & ~coalesce(col("may_be_cleaned"), lit(False))
    why = (
        when(has_odd_attributes(), concat(attributes, lit(", which no producer may send")))
        .when(is_no_marker(), lit("it is a control batch, and no marker of a transaction"))
        .when(is_odd(), counted)
        .when(is_foreign, foreign)
    )
    suspected = tables.batches.where(is_odd() | is_cleaned())
    odd = _of_replicas(tables, suspected).withColumn("problem", why)
    batch = format_string("the batch of offsets %d to %d: ", "base_offset", "last_offset")
    found = [
        _found(rows, "base_offset", concat(batch, "problem")).select(columns)
        for rows in (odd.where(why.isNotNull()), _of_replicas(tables, bodies))
    ]
    return as_findings("undecodable", found[0].unionByName(found[1]))


def _on_all_replicas(bodies: DataFrame, batches: DataFrame) -> DataFrame:
    """Return the rows of BODIES also for the copies of each batch: only those of the reference logs
    were decoded."""
    if is_known_empty(bodies):
        return bodies
    place = [*REPLICA, "segment", "position"]
    sound = batches.where(~col("torn") & col("crc_stored").eqNullSafe(col("crc_computed")))
    copies = [*REPLICA[1:], "base_offset", "identity"]
    known = bodies.join(sound.select(*place, "identity"), place)
    known = known.select(*copies, "problem", col("broker").alias("decoded"))
    found = (
        sound.select(*place, "base_offset", "last_offset", "identity")
        .join(broadcast(known), copies)
        .where("broker != decoded")
        .select(*bodies.columns)
    )
    return collect_small(bodies.unionByName(found))


def torn_tail(tables: Tables) -> DataFrame | None:
    """Return the bytes after the last whole batch of a log: a clean stop leaves none."""
    if not has_torn(tables.batches):
        return None
    tail = _torn(tables).where(col("is_tail"))
    is_clean = col("state") == STOPPED
    found = tail.withColumn(
        "severity", when(is_clean, severity(in_sync())).otherwise(lit(Severity.INFO.value))
    )
    return as_findings("torn-tail", found)


def _torn(tables: Tables) -> DataFrame:
    """Return the bytes that are not a batch; `is_tail`: no batch follows them in the log."""
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


def gap(tables: Tables) -> DataFrame | None:
    """Return the offsets missing between two batches, or between a log's start and its first batch.

    Compaction leaves no gaps: a batch without records covers the offsets of what it removes.
    """
    missing = format_string(
        "offset %d should follow, the next batch begins at %d", "expected", "base_offset"
    )
    return _of_joints(tables, "gap", "expected", missing)


def overlap(tables: Tables) -> DataFrame | None:
    """Return the batches that begin before the end of the one before them."""
    again = format_string(
        "offsets %d to %d stand where %d should follow",
        "base_offset",
        "last_offset",
        "expected",
    )
    return _of_joints(tables, "overlap", "base_offset", again)


def segment_name(tables: Tables) -> DataFrame | None:
    """Return the segments whose name is not their first offset.

    If the name fits what comes before it, the first batch is wrong: then `gap` reports it.
    """
    detail = format_string("its name says %d, its first batch %d", "segment", "base_offset")
    return _of_joints(tables, "segment-name", "base_offset", detail)


def epoch_order(tables: Tables) -> DataFrame | None:
    """Return the batches of an older leader epoch than the one before them."""
    before = format_string(
        "leader epoch %d follows on %d, in which offset %d is",
        "leader_epoch",
        "previous.leader_epoch",
        "previous.last_offset",
    )
    alone = format_string("leader epoch %d is none", "leader_epoch")
    detail = when(col("previous").isNull(), alone).otherwise(before)
    return _of_joints(tables, "epoch-order", "base_offset", detail)


def _of_joints(tables: Tables, check: str, offset: str, detail: Column) -> DataFrame | None:
    """Return the findings of a check on `wrong_joints`; None if there are none."""
    wrong = wrong_joints(tables)
    rows = local_rows(wrong)
    if rows is not None and not pc.any(rows[check]).as_py():
        return None
    return as_findings(check, _found(wrong.where(col(check)), offset, detail))


@memoize_per_run
def wrong_joints(tables: Tables) -> DataFrame:
    """Return the seams between batches where something is wrong; a column for each check.

    `expected`: where the batch should begin. `leaves_out`: it begins later, and not where an
    earlier batch ended, as the batch after two swapped ones does.

    The first batch may begin at or below the log start. While a broker runs, its log start may move
    between the reading of the checkpoint and of the log.
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
    is_first = col("previous").isNull() | (col("segment") != col("previous.segment"))
    fits = (col("segment") == col("expected")) | (col("previous").isNull() & col("leaves_out"))
    wrong = {
        "gap": col("leaves_out"),
        "overlap": is_inner & (col("base_offset") < col("expected")),
        "segment-name": is_first & (col("base_offset") != col("segment")) & ~fits,
        "epoch-order": col("leader_epoch") < coalesce(col("previous.leader_epoch"), lit(0)),
    }
    joints = seams(tables.batches).where(~col("torn"))
    found = (
        _of_replicas(tables, joints)
        .withColumns({"expected": expected, "leaves_out": leaves_out})
        .withColumns({name: coalesce(each, lit(False)) for name, each in wrong.items()})
        .where(reduce(or_, map(col, wrong)))
    )
    return collect_small(found)


def epoch_checkpoint(tables: Tables) -> DataFrame | None:
    """Return the first epoch of a log for which `leader-epoch-checkpoint` and the batches differ.

    The file is written before the batches and truncated after them, so a killed broker leaves
    entries beyond the log's end or without batches of their own. The broker ignores them when it
    opens the log, and so does this check. Of both sides only the part that applies at and above the
    log start is compared. A broker that opens the log compares the first and the last epoch only.
    So a difference between those is an error; otherwise the broker rebuilds the file.
    """
    if _have_same_epochs(tables):
        return None
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
                    "epoch",
                    "in_log",
                    "in_file",
                    "has_newest",
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


def _have_same_epochs(tables: Tables) -> bool:
    """Whether the checkpoints of all logs are known to agree with the batches, as far as these are
    judged: then there is nothing to compare."""
    rows = local_rows(runs(tables.batches))
    if rows is None:
        return False
    first: dict[tuple[Replica, int], tuple[int, int, int]] = {}
    for row in rows.filter(pc.invert(rows["torn"])).to_pylist():
        at = (_replica(row), row["leader_epoch"])
        place = (row["segment"], row["position"], row["base_offset"])
        first[at] = min(place, first.get(at, place))
    logs = _epoch_sets((*at, place[-1]) for at, place in first.items())
    files = _epoch_sets(
        (_replica(row), row["epoch"], row["start"])
        for row in map(Row.asDict, tables.epoch_starts.collect())
    )
    ends = {
        _replica(row): row["judged_end" if row["state"] == LIVE else "log_end"]
        for row in map(Row.asDict, tables.replicas.collect())
    }
    return all(
        {each for each in logs.get(replica, ()) if each[1] < end}
        == {each for each in files.get(replica, ()) if each[1] < end}
        for replica, end in ends.items()
    )


def _replica(row: Mapping[str, Any]) -> Replica:
    return Replica(*(row[name] for name in REPLICA))


def _epoch_sets(rows: Iterable[tuple[Replica, int, int]]) -> dict[Replica, set[tuple[int, int]]]:
    """Return the pairs of epoch and start offset, by log."""
    found: dict[Replica, set[tuple[int, int]]] = {}
    for replica, epoch, start in rows:
        found.setdefault(replica, set()).add((epoch, start))
    return found


def _compared_epochs(tables: Tables, epochs: DataFrame) -> DataFrame:
    """Return the epochs of logs and where they begin, as far as the logs are judged.

    An epoch that begins below the log start counts as beginning there. If no checkpoint has the log
    start and the log's first batches are gone, it is the lowest start in the file.
    """
    lowest = tables.epoch_starts.groupBy(*REPLICA).agg(smallest_of("start").alias("lowest"))
    recorded_start = coalesce("log_start", when(col("first_offset") > 0, col("lowest")), lit(0))
    log_start = greatest(recorded_start, "first_offset")
    end = when(col("state") == LIVE, col("judged_end")).otherwise(col("log_end"))
    return (
        _of_replicas(tables, epochs)
        .join(lowest, [*REPLICA], "left")
        .withColumn("begin", greatest("start", log_start))
        .where(col("begin") < end)
        .groupBy(*REPLICA, "begin")
        .agg(largest_of("epoch").alias("epoch"))
    )


def index(tables: Tables) -> DataFrame | None:
    """Return the wrong entries of the index files; a broker rebuilds such a file."""
    entries = tables.index_entries
    wrong = collect_small(entries.where(col("problem").isNotNull()))
    if is_known_empty(wrong):
        return None
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
    """Return the rows with their log's columns of REPLICAS; rows of logs not judged are dropped."""
    return rows.join(broadcast(tables.replicas), [*REPLICA])


def _found(rows: DataFrame, offset: str, detail: Column, last: str = "last_offset") -> DataFrame:
    """Return the rows with offset, severity and detail; the damage is from `offset` to `last`."""
    return rows.withColumns(
        {
            "severity": severity_in_log(in_sync(), offset, last),
            "offset": col(offset),
            "detail": detail,
        }
    )


CHECKS: Final[Mapping[str, Callable[[Tables], DataFrame | None]]] = {
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
