"""Checks of what idempotent producers left in a log: their sequences, and the producer snapshots.

A producer's batches carry (producer id, epoch, sequence of the first record). Within an epoch each
batch continues where the one before it ended, from 2^31-1 on to 0; an epoch begins at 0. A batch
that breaks this rule shows that a leader lost batches or stored one twice, whatever the offsets
say. A log that does not begin at offset 0 has lost its first batches to retention, so a producer's
first batch in it may begin anywhere. A producer's epoch never falls: brokers refuse an older one.
Compaction removes batches. So below the offset up to which a log was visibly compacted
(`cleaned_end`), as many sequences may be missing as there are offsets between two batches, and a
snapshot may be of a batch that is gone.

A snapshot holds each producer's state at the offset in its name. A broker rebuilds a lost snapshot
from the batches, hence the warnings. Brokers forget a producer that has not written for a while, so
one may be missing in a snapshot; but not if a producer is in it whose last batch is older, or if
another broker's snapshot of that offset has it.

One sort of all batches and snapshots, by log, producer and span of offsets, finds the wrong
snapshots and the producers that are not sound; only these are examined closely. One task examines
one span, so a producer that wrote most of a large log keeps more than one task busy. The few steps
at the ends of spans are put together afterwards.

A batch that is in a log twice would also look like a gap, before it and behind it. So repetitions
are found first, and gaps are looked for in the rest.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Window, WindowSpec
from pyspark.sql.functions import (
    broadcast,
    coalesce,
    col,
    floor,
    format_string,
    lag,
    last,
    lead,
    least,
    lit,
    pmod,
    struct,
    when,
)
from pyspark.sql.functions import max as largest_of

from minibroker.audit.arrow import compute as pc
from minibroker.audit.checks.findings import as_findings, in_sync, severity_in_log
from minibroker.audit.checks.local_frames import collect_small, empty_like, from_rows, local_rows
from minibroker.audit.checks.memoize import memoize_per_run
from minibroker.audit.files.directories import LIVE
from minibroker.audit.model import Severity, Tables

_LOG: Final = ("broker", "topic", "partition")
_PRODUCER: Final = (*_LOG, "producer_id")
_SEQUENCES: Final = 2**31  # how many there are; after the last one 0 comes again
_IN_ORDER: Final = ("base_offset", "segment", "position")
SPAN_OFFSETS = 1 << 20
_REPLICA: Final = (
    pa.field("broker", pa.int32()),
    pa.field("topic", pa.string()),
    pa.field("partition", pa.int32()),
)
_NEWEST: Final = pa.schema([*_REPLICA, pa.field("newest", pa.int64())])
_LACKING: Final = pa.schema(
    [
        *_REPLICA,
        pa.field("offset", pa.int64()),
        pa.field("segment", pa.int64()),
        pa.field("severity", pa.string()),
        pa.field("detail", pa.string()),
    ]
)


def sequence_gap(tables: Tables) -> DataFrame | None:
    """Return the batches of a producer that do not continue where the one before them ended, or
    whose epoch is older."""
    if not _is_any_wrong(tables, is_snapshot=False):
        return None
    not_repeated = _suspects(tables).where("NOT is_repeated")
    falls = coalesce(col("producer_epoch") < col("earlier_epoch"), lit(False))
    detail = when(
        falls,
        format_string(
            "producer %d: epoch %d follows on epoch %d, which is newer",
            "producer_id",
            "producer_epoch",
            "earlier_epoch",
        ),
    ).otherwise(
        format_string(
            "producer %d epoch %d: sequence %d comes where %d is next",
            "producer_id",
            "producer_epoch",
            "base_sequence",
            "expected",
        )
    )
    is_removed = _is_removed(
        col("base_sequence"), col("expected"), col("after"), col("base_offset")
    )
    is_wrong = falls | ((col("base_sequence") != col("expected")) & ~is_removed)
    found = _expected(not_repeated).where(is_wrong).withColumn("detail", detail)
    return _found("sequence-gap", found, in_sync())


def sequence_duplicate(tables: Tables) -> DataFrame | None:
    """Return the batches of a producer that are in a log twice.

    Sequence 0 again with other records is a warning: a producer whose state the brokers have
    dropped may begin at 0 again.
    """
    if not _is_any_wrong(tables, is_snapshot=False):
        return None
    is_same = col("identity") == col("earlier_identity")
    detail = format_string(
        "producer %d epoch %d: sequence %d again; %s with it is at offset %d",
        "producer_id",
        "producer_epoch",
        "base_sequence",
        when(is_same, "the same batch").otherwise("another batch"),
        "earlier_offset",
    )
    is_promised = in_sync() & (is_same | (col("base_sequence") != 0))
    found = _suspects(tables).where("is_repeated").withColumn("detail", detail)
    return _found("sequence-duplicate", found, is_promised)


def snapshot(tables: Tables) -> DataFrame | None:
    """Return the producers for which a snapshot differs from the batches before it, and those that
    are missing in the newest snapshot of a log.

    Two cases cannot be judged: a producer whose batches are all gone from the log, and, on a
    running broker, a snapshot that was taken after the log was read.
    """
    missing = _missing_in_snapshots(tables)
    if not missing and not _is_any_wrong(tables, is_snapshot=True):
        return None
    state = "epoch %d, sequence %d, offset %d"
    detail = format_string(
        f"the snapshot says of producer %d: {state}; the batches before it say: %s",
        "producer_id",
        "stand.epoch",
        "stand.sequence",
        "stand.offset",
        when(col("previous").isNull(), "nothing").otherwise(
            format_string(state, "previous.epoch", "previous.sequence", "previous.offset")
        ),
    )
    found = (
        wrong_steps(tables)
        .where("is_snapshot")
        .withColumns(
            {
                "segment": col("offset"),  # the file's name
                "severity": lit(Severity.WARNING.value),
                "detail": detail,
            }
        )
    )
    columns = [*_LOG, "offset", "segment", "severity", "detail"]
    lacking = from_rows(tables.batches.sparkSession, _LACKING, missing)
    return as_findings("snapshot", found.select(columns).unionByName(lacking))


def _missing_in_snapshots(tables: Tables) -> list[tuple[object, ...]]:
    """Return rows of `_LACKING` for the producers that the newest snapshot of a log must have."""
    snapshots = local_rows(tables.producers)
    found = (snapshots or tables.producers.toArrow()).to_pylist()
    newest: dict[tuple[Any, ...], int] = {}
    known: dict[tuple[Any, ...], dict[int, int | None]] = {}
    for row in found:
        log: tuple[Any, ...] = tuple(row[name] for name in _LOG)
        newest[log] = max(row["offset"], newest.get(log, 0))
        states = known.setdefault((*log, row["offset"]), {})
        if row["producer_id"] is not None:  # after a marker of a new epoch it has no batch
            states[row["producer_id"]] = row["last_offset"]
    live = {
        tuple(row[name] for name in _LOG)
        for row in tables.replicas.where(col("state") == LIVE).toArrow().to_pylist()
    }
    newest = {log: offset for log, offset in newest.items() if log not in live}
    rows: list[tuple[object, ...]] = []
    for *place, producer, last_offset in _last_batches(tables, newest) if newest else ():
        log = tuple(place)
        offset = newest[log]
        states = known[(*log, offset)]
        if producer in states:
            continue
        is_elsewhere = any(
            producer in theirs
            for (_, *other), theirs in known.items()
            if other == [*log[1:], offset]
        )
        others = [each for each in states.values() if each is not None]
        if is_elsewhere or any(each < last_offset for each in others):
            detail = (
                f"the snapshot lacks producer {producer}, whose last batch before it ends at offset"
                f" {last_offset}"
            )
            rows.append((*log, offset, offset, Severity.WARNING.value, detail))
    return rows


def _last_batches(
    tables: Tables, newest: Mapping[tuple[Any, ...], int]
) -> Iterator[tuple[Any, ...]]:
    """Yield the name of a log, a producer and the last offset of its last batch below the offset of
    the log's newest snapshot."""
    batches = local_rows(tables.batches)
    if batches is None:
        upto = from_rows(
            tables.batches.sparkSession, _NEWEST, [(*log, end) for log, end in newest.items()]
        )
        last = largest_of("last_offset").alias("last_offset")
        asked = _batches(tables).join(broadcast(upto), [*_LOG]).where("base_offset < newest")
        yield from map(tuple, asked.groupBy(*_PRODUCER).agg(last).orderBy(*_PRODUCER).collect())
        return
    ends: dict[tuple[Any, ...], int] = {}
    for row in batches.to_pylist():
        if row["torn"] or row["producer_id"] < 0 or row["base_sequence"] < 0:
            continue
        producer = tuple(row[name] for name in _PRODUCER)
        if row["base_offset"] < newest.get(producer[:-1], -1):
            ends[producer] = max(row["last_offset"], ends.get(producer, 0))
    yield from ((*producer, end) for producer, end in sorted(ends.items()))


@memoize_per_run
def wrong_steps(tables: Tables) -> DataFrame:
    """Return the result of `ask_wrong`; without a query if the driver knows that it is empty."""
    found = ask_wrong(tables)
    return empty_like(found) if is_known_sound(tables) else collect_small(found)


def ask_wrong(tables: Tables) -> DataFrame:
    """Return the batches that do not continue where their producer's last one ended, and the
    snapshots that differ from the batches before them.

    `stand` is the producer's state by the batch or snapshot, `previous` the state by the batch
    before it (null if there is none); `is_snapshot` tells which of the two a row is.
    """
    steps = _steps(tables)
    in_span = _in_order(*_PRODUCER, "span")
    ends_run = ~col("is_snapshot") & coalesce(lead("is_snapshot").over(in_span), lit(True))
    known = tables.replicas.select(*_LOG, "first_offset", "log_end", "state", "cleaned_end")
    is_known = col("previous").isNotNull() | (col("first_offset") == 0)
    following = (col("previous.sequence").cast("bigint") + 1) % _SEQUENCES
    expected = when(col("previous.epoch") == col("stand.epoch"), following).when(is_known, 0)
    is_judged = is_known & ((col("state") != LIVE) | (col("offset") <= col("log_end")))
    after = coalesce(col("previous.offset") + 1, lit(0))
    is_removed = _is_removed(col("base_sequence"), expected, after, col("offset"))
    is_wrong = when(
        col("is_snapshot"),
        is_judged & ~col("stand").eqNullSafe(col("previous")) & ~_is_of_removed(),
    ).otherwise(
        coalesce((col("base_sequence") != expected) & ~is_removed, lit(False)) | _is_epoch_older()
    )
    # The steps that need the span before theirs, and the steps that a later span needs.
    at_ends = (
        steps.withColumns({"previous": _stand_before(in_span), "ends_run": ends_run})
        .join(broadcast(known), [*_LOG], "left")
        .where(col("previous").isNull() | col("ends_run") | is_wrong)
    )
    earlier = _stand_before(_in_order(*_PRODUCER))
    return (
        at_ends.withColumn("previous", coalesce("previous", earlier))
        .where(is_wrong)
        .select(*_PRODUCER, "offset", "stand", "previous", "is_snapshot")
    )


def _steps(tables: Tables) -> DataFrame:
    """Return the batches and snapshots of all producers, with the states by them."""
    batch = struct(
        col("producer_epoch").alias("epoch"),
        _sequence_after(col("last_offset") - col("base_offset")).cast("int").alias("sequence"),
        col("last_offset").alias("offset"),
    )
    snapshot = struct(
        col("producer_epoch").alias("epoch"),
        col("last_sequence").alias("sequence"),
        col("last_offset").alias("offset"),
    )
    nothing = lit(None).cast("bigint")
    batches = _batches(tables).select(
        *_PRODUCER,
        "base_sequence",
        "segment",
        "position",
        col("base_offset").alias("offset"),
        batch.alias("stand"),
        lit(False).alias("is_snapshot"),
    )
    snapshots = tables.producers.where("last_offset >= 0 AND last_sequence >= 0").select(
        *_PRODUCER,
        nothing.cast("int").alias("base_sequence"),
        nothing.alias("segment"),
        nothing.alias("position"),
        "offset",
        snapshot.alias("stand"),
        lit(True).alias("is_snapshot"),
    )
    return batches.unionByName(snapshots).withColumn("span", floor(col("offset") / SPAN_OFFSETS))


def _is_removed(sequence: Column, expected: Column, after: Column, offset: Column) -> Column:
    """Whether compaction may have removed the batches with the sequences from `expected` to
    `sequence`: it has compacted that many of the offsets from `after` to `offset`."""
    missing = pmod(sequence.cast("bigint") - expected, lit(_SEQUENCES))
    return missing <= least(offset, coalesce("cleaned_end", lit(0))) - after


def _is_of_removed() -> Column:
    """Whether a snapshot may be of a batch that compaction has removed since."""
    stand, previous = col("stand"), col("previous")
    since = stand["offset"] - previous["offset"]
    sequences = pmod((stand["sequence"] - previous["sequence"]).cast("bigint"), lit(_SEQUENCES))
    is_later = (since > 0) & (
        (stand["epoch"] > previous["epoch"])
        | ((stand["epoch"] == previous["epoch"]) & (sequences <= since))
    )
    is_cleaned = stand["offset"] < coalesce("cleaned_end", lit(0))
    return is_cleaned & (previous.isNull() | coalesce(is_later, lit(False)))


def _is_epoch_older() -> Column:
    return coalesce(col("previous.epoch") > col("stand.epoch"), lit(False))


def _in_order(*columns: str) -> WindowSpec:
    """Return the window of steps with the same values of these columns, in order.

    A snapshot comes before the batch that begins where the snapshot ends.
    """
    order = ("offset", col("is_snapshot").desc(), "segment", "position")
    return Window.partitionBy(*columns).orderBy(*order)


def _stand_before(steps: WindowSpec) -> Column:
    """Return the producer's state after the latest batch before a step."""
    stand = last(when(~col("is_snapshot"), col("stand")), ignorenulls=True)
    return stand.over(steps.rowsBetween(Window.unboundedPreceding, -1))


def is_known_sound(tables: Tables) -> bool:
    """Whether the driver holds all batches and can tell that `ask_wrong` would find nothing."""
    batches, snapshots, logs = (
        local_rows(frame) for frame in (tables.batches, tables.producers, tables.replicas)
    )
    if batches is None or snapshots is None or logs is None:
        return False
    known = {tuple(log[name] for name in _LOG): log for log in logs.to_pylist()}
    steps: dict[tuple[Any, ...], list[_Step]] = {}
    for row in batches.to_pylist():
        if not row["torn"] and row["producer_id"] >= 0 and row["base_sequence"] >= 0:
            length = row["last_offset"] - row["base_offset"]
            last_sequence = (row["base_sequence"] + length) % _SEQUENCES
            step = _Step(
                (row["base_offset"], 1, row["segment"], row["position"]),
                (row["producer_epoch"], last_sequence, row["last_offset"]),
                row["base_sequence"],
            )
            steps.setdefault(tuple(row[name] for name in _PRODUCER), []).append(step)
    for row in snapshots.to_pylist():
        stand = (row["producer_epoch"], row["last_sequence"], row["last_offset"])
        if None not in stand and min(stand[1:]) >= 0:
            step = _Step((row["offset"], 0, 0, 0), stand, None)
            steps.setdefault(tuple(row[name] for name in _PRODUCER), []).append(step)
    return all(
        _is_sound(sorted(each), known.get(producer[:-1])) for producer, each in steps.items()
    )


class _Step(NamedTuple):
    """A batch of a producer, or a snapshot of it if `base_sequence` is None.

    `stand` is the column of that name in `ask_wrong`. The steps of a producer ascend by `place`.
    """

    place: tuple[int, int, int, int]
    stand: tuple[int, int, int]
    base_sequence: int | None


def _is_sound(steps: Iterable[_Step], log: Mapping[str, Any] | None) -> bool:
    """Whether each step of a producer in a log follows from the one before it."""
    if log is None:
        return False
    previous: tuple[int, int, int] | None = None
    cleaned_end = log["cleaned_end"] or 0
    for place, stand, base_sequence in steps:
        is_known = previous is not None or log["first_offset"] == 0
        if base_sequence is None:
            is_judged = is_known and (log["state"] != LIVE or place[0] <= log["log_end"])
            if is_judged and stand != previous and not _may_follow(stand, previous, cleaned_end):
                return False
        else:
            is_same_epoch = previous is not None and previous[0] == stand[0]
            following = (previous[1] + 1) % _SEQUENCES if previous and is_same_epoch else 0
            is_older = previous is not None and previous[0] > stand[0]
            after = 0 if previous is None else previous[2] + 1
            missing = (base_sequence - following) % _SEQUENCES
            is_removed = missing <= min(place[0], cleaned_end) - after
            if is_older or (is_known and base_sequence != following and not is_removed):
                return False
            previous = stand
    return True


def _may_follow(
    stand: tuple[int, int, int], previous: tuple[int, int, int] | None, cleaned_end: int
) -> bool:
    """Return `_is_of_removed` for a snapshot of which the driver knows the state before it."""
    epoch, sequence, offset = stand
    if previous is None or offset >= cleaned_end:
        return offset < cleaned_end
    since, sequences = offset - previous[2], (sequence - previous[1]) % _SEQUENCES
    is_later = epoch > previous[0] or (epoch == previous[0] and sequences <= since)
    return since > 0 and is_later


def _is_any_wrong(tables: Tables, *, is_snapshot: bool) -> bool:
    """Whether there may be a wrong snapshot or, without `is_snapshot`, a wrong batch."""
    rows = local_rows(wrong_steps(tables))
    return rows is None or bool(pc.any(pc.equal(rows["is_snapshot"], is_snapshot)).as_py())


def _batches(tables: Tables) -> DataFrame:
    """The batches of idempotent producers."""
    return tables.batches.where("NOT torn AND producer_id >= 0 AND base_sequence >= 0")


def _sequence_after(count: Column) -> Column:
    """Return the sequence `count` records after the first one of a batch."""
    return (col("base_sequence") + count) % _SEQUENCES


def _expected(batches: DataFrame) -> DataFrame:
    """Return the batches with the sequence that each should begin with, null if unknown, and the
    offset `after` the producer's batch before it."""
    order = Window.partitionBy(*_PRODUCER).orderBy(*_IN_ORDER)
    following = _sequence_after(col("last_offset") - col("base_offset") + 1)
    earlier_epoch = lag("producer_epoch").over(order)
    begins = earlier_epoch.isNotNull() | (col("first_offset") == 0)
    expected = when(earlier_epoch == col("producer_epoch"), lag(following).over(order)).when(
        begins, 0
    )
    after = coalesce(lag("last_offset").over(order) + 1, lit(0))
    return batches.withColumns(
        {"expected": expected, "earlier_epoch": earlier_epoch, "after": after}
    )


@memoize_per_run
def _suspects(tables: Tables) -> DataFrame:
    """Return all batches of the producers that are not sound, with repetitions marked."""
    facts = tables.replicas.select(
        *_LOG, "in_isr", "first_offset", "log_start", "judged_end", "state", "cleaned_end"
    )
    batches = (
        _batches(tables)
        .select(
            *_PRODUCER, "producer_epoch", "base_sequence", "last_offset", *_IN_ORDER, "identity"
        )
        .join(broadcast(facts), [*_LOG], "left")
    )
    unsound = wrong_steps(tables).where("NOT is_snapshot").select(*_PRODUCER).distinct()
    order = Window.partitionBy(*_PRODUCER, "producer_epoch", "base_sequence").orderBy(*_IN_ORDER)
    earlier_offset = lag("base_offset").over(order)
    marked = batches.join(broadcast(unsound), [*_PRODUCER], "left_semi").withColumns(
        {
            "earlier_offset": earlier_offset,
            "earlier_identity": lag("identity").over(order),
            # If they are further apart, all other sequences may lie in between.
            "is_repeated": coalesce(col("base_offset") - earlier_offset < _SEQUENCES, lit(False)),
        }
    )
    return collect_small(marked)


def _found(check: str, found: DataFrame, is_promised: Column) -> DataFrame:
    """Return findings at the batches of these rows."""
    columns = {
        "offset": col("base_offset"),
        "severity": severity_in_log(is_promised, "base_offset", "last_offset"),
    }
    return as_findings(check, found.withColumns(columns))


CHECKS: Final[Mapping[str, Callable[[Tables], DataFrame | None]]] = {
    "sequence-gap": sequence_gap,
    "sequence-duplicate": sequence_duplicate,
    "snapshot": snapshot,
}
