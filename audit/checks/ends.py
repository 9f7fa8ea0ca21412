"""Checks of where logs end, against what their brokers, or the partition, once had."""

from collections.abc import Callable, Mapping
from typing import Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Row, Window
from pyspark.sql.functions import (
    broadcast,
    coalesce,
    col,
    concat,
    format_string,
    least,
    lit,
    struct,
    when,
)
from pyspark.sql.functions import max as largest_of
from pyspark.sql.functions import sum as sum_of

from minibroker.audit.checks.facts import PARTITION, REPLICA
from minibroker.audit.checks.findings import as_findings, in_sync, severity
from minibroker.audit.checks.local_frames import from_rows
from minibroker.audit.checks.log import wrong_joints
from minibroker.audit.checks.producers import wrong_steps
from minibroker.audit.files.directories import LIVE
from minibroker.audit.model import Tables
from minibroker.protocol.types import TopicPartition

_NAMES: Final = pa.schema([("topic", pa.string()), ("partition", pa.int32())])


def missing_committed(tables: Tables) -> DataFrame | None:
    """Return the replicas that end below what they, or their partition, once had.

    That is, by what is worst first: where a log ended when its broker stopped in order; how far a
    leader's log went, by the logs of its followers; up to where the broker had flushed it; and, for
    in-sync replicas, the high watermark of the partition.
    """
    if not any(map(_is_short, tables.replicas.collect())):
        return None
    partition = Window.partitionBy(*PARTITION)
    # A single checkpoint that nothing else agrees with may be the one that is wrong.
    is_unflushed = coalesce(col("log_end") < col("recovery_point"), lit(False))
    is_unflushed &= col("state") != LIVE
    is_lone = (col("unflushed") == 1) & (col("log_end") == col("farthest"))
    claimed = least(coalesce("high_watermark", lit(0)), "log_end")
    is_believed = claimed <= coalesce("committed_end", claimed)
    known = struct(when(is_believed, claimed).alias("offset"), "broker")
    ends = (
        _without_refuted(tables)
        .withColumn("committed", largest_of(known).over(partition))
        .withColumn("of_leader", largest_of("led_end").over(partition))
        .withColumn(
            "longest",
            largest_of(when(col("log_end") == col("of_leader"), col("broker"))).over(partition),
        )
        .withColumns(
            {
                "farthest": largest_of("log_end").over(partition),
                "unflushed": sum_of(when(is_unflushed, 1).otherwise(0)).over(partition),
            }
        )
    )
    committed = col("committed.offset")
    # Nothing touches a log between a stop and the next start, in sync or not.
    is_less = coalesce(col("log_end") < col("left_end"), lit(False))
    is_led = coalesce(col("log_end") < col("led_end"), lit(False))
    is_short = in_sync() & (col("log_end") < committed)
    why = _what_was_there(is_less, is_led, is_unflushed)
    is_known = is_less | is_led
    found = ends.where(is_known | is_unflushed | is_short).withColumns(
        {
            "offset": col("log_end"),
            "other_broker": when(is_less | (is_unflushed & ~is_led), lit(None))
            .when(is_led, col("longest"))
            .otherwise(col("committed.broker")),
            "severity": severity(
                is_known
                | (is_unflushed & in_sync() & ~is_lone)
                | (is_short & coalesce("in_isr", lit(False)))
            ),
            "detail": concat(format_string("it ends at %d; ", "log_end"), why),
        }
    )
    return as_findings("missing-committed", found)


def _what_was_there(is_less: Column, is_led: Column, is_unflushed: Column) -> Column:
    """Return how far a log once went and how that is known, in words."""
    committed = format_string(
        "broker %d has checkpointed a high watermark of %d", "committed.broker", "committed.offset"
    )
    led = format_string(
        "broker %d has replicated up to %d from it, in the newest epoch: it leads with less than"
        " its followers have, and what they have must not be truncated",
        "longest",
        "led_end",
    )
    return (
        when(is_less, format_string("its broker had stopped in order with %d", "left_end"))
        .when(is_led, led)
        .when(is_unflushed, format_string("its broker had flushed it up to %d", "recovery_point"))
        .otherwise(committed)
    )


def _is_short(row: Row) -> bool:
    """Whether a log may end below what is known of it or its partition."""
    ends = (row.left_end, row.led_end, row.recovery_point, row.high_watermark, row.committed_end)
    return bool(row.log_end < max(end or 0 for end in ends)) or row.committed_end is None


def hw_beyond_leo(tables: Tables) -> DataFrame | None:
    """Return the replicas whose checkpointed high watermark lies above their log end, or above what
    can have been committed."""
    logs = tables.replicas.collect()
    if all(
        (row.high_watermark or 0) <= row.log_end
        and min(row.high_watermark or 0, row.log_end) <= (row.committed_end or row.log_end)
        for row in logs
    ):
        return None
    is_beyond = col("high_watermark") > col("log_end")
    is_refuted = col("high_watermark") > col("committed_end")
    detail = format_string("high watermark %d, log end %d", "high_watermark", "log_end")
    detail = when(is_beyond, detail).otherwise(
        format_string(
            "high watermark %d; by the leader's and by another in-sync log no more than %d was"
            " committed",
            "high_watermark",
            "committed_end",
        )
    )
    found = tables.replicas.where(is_beyond | coalesce(is_refuted, lit(False))).withColumns(
        {
            "offset": least("log_end", "high_watermark"),
            "severity": severity(in_sync()),
            "detail": detail,
        }
    )
    return as_findings("hw-beyond-leo", found)


def _without_refuted(tables: Tables) -> DataFrame:
    """Return REPLICAS without `led_end` where only wrong batches say that the leader had more: they
    do not continue the log that they are in, so no leader has appended them."""
    rows = tables.replicas.collect()
    ends = {_name(row): row.log_end for row in rows if row.led_end is not None}
    if not ends:
        return tables.replicas
    joints = wrong_joints(tables).select(*REPLICA, col("base_offset").alias("offset"))
    steps = wrong_steps(tables).where("NOT is_snapshot").select(*REPLICA, "offset")
    wrong = {
        (_name(row), row.broker)
        for row in joints.unionByName(steps).collect()
        if row.offset >= ends.get(_name(row), row.offset + 1)
    }
    longer: dict[TopicPartition, list[int]] = {name: [] for name in ends}
    for row in rows:
        if row.log_end > ends.get(_name(row), row.log_end):
            longer[_name(row)].append(row.broker)
    refuted = [
        name
        for name, brokers in longer.items()
        if all((name, broker) in wrong for broker in brokers)
    ]
    listed = from_rows(tables.replicas.sparkSession, _NAMES, refuted)
    known = tables.replicas.join(
        broadcast(listed.withColumn("is_refuted", lit(True))), [*PARTITION], "left"
    )
    is_believed = col("is_refuted").isNull()
    return known.withColumn("led_end", when(is_believed, col("led_end"))).drop("is_refuted")


def _name(row: Row) -> TopicPartition:
    return TopicPartition(row.topic, row.partition)


CHECKS: Final[Mapping[str, Callable[[Tables], DataFrame | None]]] = {
    "missing-committed": missing_committed,
    "hw-beyond-leo": hw_beyond_leo,
}
