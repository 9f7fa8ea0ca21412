"""Checks of the offsets that consumer groups committed, which brokers store in the offsets topic.

The last record of a key is what a group has committed for a partition. Each in-sync replica of the
offsets topic is read separately, below the judged end of its log, and all must agree; the commits
on the reference replica are compared with the logs of the partitions that they name.

On a live cluster this is sound because high watermarks are read before the logs: a commit below the
offsets topic's high watermark at that time concerns records that were committed before it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql.functions import (
    broadcast,
    coalesce,
    col,
    concat,
    format_string,
    lit,
    max_by,
    when,
)
from pyspark.sql.functions import max as largest_of
from pyspark.sql.functions import min as smallest_of
from pyspark.sql.pandas.types import from_arrow_schema

from minibroker.audit.checks.acknowledged import acknowledged
from minibroker.audit.checks.facts import PARTITION
from minibroker.audit.checks.findings import as_findings, in_sync, severity
from minibroker.audit.checks.local_frames import collect_small, local_frame, local_rows
from minibroker.audit.files.commits import read_commit
from minibroker.audit.files.directories import LIVE
from minibroker.audit.model import COMMITTED, Severity, Tables
from minibroker.audit.summary import Committed
from minibroker.protocol.constants import OFFSETS_TOPIC
from minibroker.protocol.types import TopicPartition

MARKS_MAX: Final = 2_000
KEY: Final = ("home", "group", "topic", "partition")


def committed_by_groups(records: DataFrame, replicas: DataFrame) -> DataFrame:
    """Return the table COMMITTED, from RECORDS and REPLICAS."""
    judged = replicas.where((col("topic") == OFFSETS_TOPIC) & in_sync())
    stored = records.where(col("topic") == OFFSETS_TOPIC).join(
        broadcast(judged.select("broker", *PARTITION, "judged_end")), ["broker", *PARTITION]
    )
    wanted = stored.where(col("offset") < col("judged_end")).select(
        "broker", "partition", "offset", "key", "value"
    )
    schema = from_arrow_schema(COMMITTED)
    if local_rows(records) is None:
        read = wanted.mapInArrow(_read, schema)
    else:  # few enough for the driver, so that no Python worker has to start
        there = _read(wanted.toArrow().to_batches())
        read = local_frame(records.sparkSession, pa.Table.from_batches(there, COMMITTED), schema)
    return collect_small(
        read.groupBy("broker", *KEY, "problem")
        .agg(
            max_by("offset", "at").alias("offset"),
            largest_of("at").alias("at"),
            largest_of("highest").alias("highest"),
        )
        .select(*COMMITTED.names)
    )


def _read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield rows of COMMITTED for records; one row per key and batch is enough."""
    for batch in batches:
        last: dict[tuple[object, ...], tuple[object, ...]] = {}
        highest_at: dict[tuple[object, ...], int] = {}
        for broker, home, at, key, value in zip(
            *(column.to_pylist() for column in batch.columns), strict=True
        ):
            try:
                commit = read_commit(key, value)
            except ValueError as error:
                unreadable = (broker, home, at, None, None, None, None, None, str(error))
                last[broker, home, at] = unreadable
                continue
            if commit is not None:
                place = (broker, home, commit[:3])
                highest = max(commit.offset or 0, highest_at.get(place, 0))
                highest_at[place] = highest
                last[place] = (broker, home, at, *commit, highest, None)
        columns = list(zip(*last.values(), strict=True)) or [()] * len(COMMITTED)
        arrays = [
            pa.array(column, each.type) for column, each in zip(columns, COMMITTED, strict=True)
        ]
        yield pa.RecordBatch.from_arrays(arrays, schema=COMMITTED)


def committed_offset(tables: Tables) -> DataFrame | None:
    """Return the wrong committed offsets: outside their partition's log, different on in-sync
    replicas, or acknowledged to a member of the group and not stored."""
    assert tables.committed is not None, "without an offsets topic this check is not run"
    columns = [*PARTITION, "broker", "other_broker", "offset", "severity", "detail"]
    found = _outside(tables).select(columns)
    if tables.ledger is not None:
        found = found.unionByName(_unkept(tables).select(columns))
    found = found.unionByName(_disagreeing(tables).select(columns))
    return as_findings("committed-offset", found.unionByName(_unreadable(tables).select(columns)))


def marks(tables: Tables) -> dict[TopicPartition, tuple[Committed, ...]]:
    """Return the committed offsets for the report, by partition: at most MARKS_MAX of them."""
    found: dict[TopicPartition, tuple[Committed, ...]] = {}
    if tables.committed is None:
        return found
    kept = _kept_by_reference(tables).where(col("offset").isNotNull())
    rows = kept.orderBy(*PARTITION, "group").limit(MARKS_MAX).collect()
    for row in rows:
        name = TopicPartition(row["topic"], row["partition"])
        found[name] = (*found.get(name, ()), Committed(row["group"], row["offset"]))
    return found


def _kept_by_reference(tables: Tables) -> DataFrame:
    """Return the commits that count: KEY, offset, at, and the broker that stores them."""
    assert tables.committed is not None
    reference = tables.replicas.where((col("topic") == OFFSETS_TOPIC) & col("is_reference"))
    reference = reference.select(col("partition").alias("home"), "broker")
    return tables.committed.where(col("problem").isNull()).join(
        broadcast(reference), ["home", "broker"]
    )


def _outside(tables: Tables) -> DataFrame:
    """Return the commits outside the log, each with what is wrong.

    That is: above the end of every in-sync log, where no member can have read; above the end of
    some in-sync log; or below the start of all of them, where retention leaves an idle group.
    """
    bounds = (
        tables.replicas.where(in_sync())
        .groupBy(*PARTITION)
        .agg(
            smallest_of(coalesce("log_start", "first_offset", lit(0))).alias("start"),
            largest_of("log_end").alias("end"),
            largest_of(when(col("state") != LIVE, col("judged_end"))).alias("judged_end"),
        )
    )
    is_above = col("offset") > col("end")
    is_short = col("offset") > col("judged_end")
    why = when(is_above, format_string("; the in-sync log that has most ends at %d", "end"))
    why = why.when(is_short, format_string("; an in-sync log ends at %d", "judged_end"))
    why = why.otherwise(format_string("; the log begins at %d", "start"))
    said = format_string("group %s has committed %d", "group", "offset")
    place = format_string(" (%s-%d, offset %d)", lit(OFFSETS_TOPIC), "home", "at")
    return (
        _kept_by_reference(tables)
        .join(broadcast(bounds), [*PARTITION])
        .where(is_above | is_short | (col("offset") < col("start")))
        .withColumns(
            {
                "broker": lit(None).cast("int"),
                "other_broker": lit(None).cast("int"),
                "severity": severity(is_above),
                "detail": concat(said, place, why),
            }
        )
    )


def _unkept(tables: Tables) -> DataFrame:
    """Return the commits that were acknowledged to members and that the offsets topic lacks.

    Only the last acknowledged commit of each group and partition counts. A commit that was stored
    and deleted since is no loss.
    """
    kept_there = _kept_by_reference(tables).select(
        "group", *PARTITION, col("offset").alias("kept"), "highest"
    )
    homes = tables.replicas.where(col("topic") == OFFSETS_TOPIC)
    # The high watermarks read do not cover what running brokers have acknowledged since.
    is_live = homes.where(col("state") == LIVE).limit(1).count() > 0
    is_enough = col("kept").isNull() | (col("highest") >= col("offset"))
    is_known = col("highest").isNotNull() & is_enough
    last_acknowledged = format_string(
        "group %s was told that %d is committed (%s line %d)", "group", "offset", "ledger", "line"
    )
    there = when(col("highest").isNull(), lit(f"; {OFFSETS_TOPIC} says nothing")).otherwise(
        format_string(f"; {OFFSETS_TOPIC} says %d at most", "highest")
    )
    return (
        acknowledged(tables)
        .commits.join(kept_there, ["group", *PARTITION], "left")
        .where(~is_known)
        .withColumns(
            {
                "broker": lit(None).cast("int"),
                "other_broker": lit(None).cast("int"),
                "severity": lit(Severity.INFO.value) if is_live else severity(lit(True)),
                "detail": concat(last_acknowledged, there),
            }
        )
    )


def _disagreeing(tables: Tables) -> DataFrame:
    """Return the replicas of the offsets topic whose commit differs from the reference's."""
    assert tables.committed is not None
    right = _kept_by_reference(tables).select(
        *KEY, col("offset").alias("right"), col("at").alias("right_at")
    )
    homes = tables.replicas.where((col("topic") == OFFSETS_TOPIC) & in_sync())
    homes = homes.select("broker", col("partition").alias("home"), "is_reference")
    reference = homes.where("is_reference").select("home", col("broker").alias("other_broker"))
    others = homes.where(~col("is_reference")).join(reference, "home").drop("is_reference")
    theirs = tables.committed.where(col("problem").isNull()).join(
        broadcast(others.drop("other_broker")), ["home", "broker"]
    )
    keys = right.select(*KEY).unionByName(theirs.select(*KEY)).distinct()
    everybody = keys.join(broadcast(others), ["home"])
    found = everybody.join(theirs, ["broker", *KEY], "left").join(right, [*KEY], "left")
    it_says = concat(
        format_string("of group %s in %s-%d it says ", "group", "topic", "partition"),
        _in_words("offset", "at"),
        format_string(", broker %d says ", "other_broker"),
        _in_words("right", "right_at"),
    )
    nowhere = lit(-1)
    return found.where(coalesce("offset", nowhere) != coalesce("right", nowhere)).select(
        lit(OFFSETS_TOPIC).alias("topic"),
        col("home").alias("partition"),
        "broker",
        "other_broker",
        coalesce("at", "right_at").alias("offset"),
        severity(lit(True)).alias("severity"),
        it_says.alias("detail"),
    )


def _in_words(offset: str, at: str) -> Column:
    words = format_string("%d (at offset %d)", offset, at)
    return when(col(offset).isNull(), lit("nothing")).otherwise(words)


def _unreadable(tables: Tables) -> DataFrame:
    """Return the records of the offsets topic that cannot be decoded."""
    assert tables.committed is not None
    return tables.committed.where(col("problem").isNotNull()).select(
        lit(OFFSETS_TOPIC).alias("topic"),
        col("home").alias("partition"),
        "broker",
        lit(None).cast("int").alias("other_broker"),
        col("at").alias("offset"),
        severity(lit(False)).alias("severity"),
        concat(lit("no record of a group: "), "problem").alias("detail"),
    )


CHECKS: Final[Mapping[str, Callable[[Tables], DataFrame | None]]] = {
    "committed-offset": committed_offset,
}
