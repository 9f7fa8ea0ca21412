"""Checks of the ledgers against what the replicas hold, and how much of the ledgers was judged.

An acknowledgement is worth what its `acks` promise: with all, every replica in the ISR has the
record, and its absence is an error. With 1 or 0 a failover may lose the record: its absence is a
warning, as is everything that a replica outside the ISR lacks. If the ISR is unknown, a replica
that ends early may be outside it, if another one goes further.

A client does not always learn where its record went (acks=0; a repetition that the broker no longer
remembers). Then equal records are counted: a partition must hold as many as were acknowledged, and
no more than were sent. Counting also finds duplicates, since programs may well send equal records.
A ledger without an end is that of a program that may have sent more than the ledger says, and a
producer without idempotence may have stored more than it sent.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from pyspark.sql import Column, DataFrame, Row, Window
from pyspark.sql.functions import (
    array_max,
    array_sort,
    bool_and,
    bool_or,
    broadcast,
    coalesce,
    col,
    collect_list,
    collect_set,
    concat,
    concat_ws,
    count,
    count_distinct,
    count_if,
    format_string,
    lit,
    min_by,
    size,
    struct,
    when,
)
from pyspark.sql.functions import max as max_
from pyspark.sql.functions import min as min_
from pyspark.sql.functions import slice as slice_
from pyspark.sql.functions import sum as sum_

from minibroker.audit.checks.acknowledged import (
    PLACE,
    Acknowledged,
    State,
    acknowledged,
    acknowledged_without_offset,
    is_exact,
    judged_records,
    suspects,
    with_former,
)
from minibroker.audit.checks.facts import PARTITION, REPLICA
from minibroker.audit.checks.findings import as_findings, in_sync, severity
from minibroker.audit.checks.local_frames import collect_small, is_known_empty, local_rows
from minibroker.audit.files.ledger import ACKS_ALL, Event
from minibroker.audit.model import Tables
from minibroker.audit.summary import LedgerCounts, Unjudged
from minibroker.protocol.constants import OFFSETS_TOPIC

_OFFSETS_LISTED_MAX: Final = 10
_WRONG: Final = (State.ABSENT, State.OTHER)


def lost_write(tables: Tables) -> DataFrame | None:
    """Return the acknowledged records in whose place a replica holds nothing, or another record.

    Records without an offset are one finding per replica.
    """
    known = acknowledged(tables)
    if is_known_empty(known.unsound) and not known.has_unplaced:
        return None
    acked = _states(known, [Event.ACKED], _WRONG)
    placed = _by_place(acked, "acks").withColumns(
        {
            "severity": severity(in_sync() & _is_acks_all()),
            "detail": concat(_acknowledged(), lit(": "), _what_is_there()),
        }
    )
    columns = [*REPLICA, "offset", "severity", "detail"]
    found = placed.select(columns)
    if known.has_unplaced:
        found = found.unionByName(_lacking(known).select(columns))
    return as_findings("lost-write", found)


def unseen(tables: Tables) -> DataFrame | None:
    """Return the acknowledged records beyond a replica's end, one finding per `acks` value."""
    if is_known_empty(acknowledged(tables).unsound):
        return None
    found = _behind(_states(acknowledged(tables), [Event.ACKED], [State.BEHIND]), "acks")
    return as_findings(
        "unseen",
        found.withColumns(
            {
                "severity": severity(col("is_promised") & _is_acks_all()),
                "detail": concat(_acknowledged(), lit(": "), _what_is_behind()),
            }
        ),
    )


def aborted_read(tables: Tables) -> DataFrame | None:
    """Return the records shown to a consumer that a replica does not hold in their place."""
    known = acknowledged(tables)
    if is_known_empty(known.unsound):
        return None
    shown = [Event.SHOWN, Event.SHOWN_OFFSET]
    seen = concat(lit("shown to a consumer ("), _first(), lit("): "))
    wrong = _by_place(_states(known, shown, _WRONG)).withColumns(
        {"severity": severity(in_sync()), "detail": concat(seen, _what_is_there())}
    )
    behind = _behind(_states(known, shown, [State.BEHIND])).withColumns(
        {"severity": severity(col("is_promised")), "detail": concat(seen, _what_is_behind())}
    )
    columns = [*REPLICA, "offset", "severity", "detail"]
    return as_findings("aborted-read", wrong.select(columns).unionByName(behind.select(columns)))


def inconsistent_offsets(tables: Tables) -> DataFrame | None:
    """Return the offsets for which clients recorded two values."""
    known = acknowledged(tables)
    if is_known_empty(known.unsound):
        return None
    suspected = known.unsound.select(*PLACE).distinct()
    told = col("event").isin(Event.ACKED.value, Event.SHOWN.value)
    entries = known.entries.where(told).join(suspected, [*PLACE], "left_semi")
    entries = with_former(known, entries).where(~col("is_former"))
    places = entries.groupBy(*PLACE).agg(
        min_("content").alias("low"),
        max_("content").alias("high"),
        # Consumers are shown only committed records, whatever acks the producer asked for.
        bool_and((col("event") == Event.SHOWN.value) | _is_acks_all()).alias("is_promised"),
    )
    lines = entries.join(places.where("low != high"), [*PLACE])
    first = min_(struct("ledger", "line", "event"))
    each = lines.groupBy(*PLACE, "is_promised", "content").agg(first.alias("first"))
    listed = format_string("%s in %s line %d", "first.event", "first.ledger", "first.line")
    found = each.groupBy(*PLACE, "is_promised").agg(
        array_sort(collect_list(listed)).alias("lines"), count("*").alias("count")
    )
    detail = concat(
        format_string("told as %d different records: ", "count"),
        concat_ws("; ", slice_("lines", 1, _OFFSETS_LISTED_MAX)),
    )
    return as_findings(
        "inconsistent-offsets",
        found.withColumns(
            {
                "broker": lit(None).cast("int"),
                "severity": severity(col("is_promised")),
                "detail": detail,
            }
        ),
    )


def duplicate(tables: Tables) -> DataFrame | None:
    """Return the records of which a replica holds more copies than the ledgers say were sent."""
    known = acknowledged(tables)
    if is_exact(known):
        return None
    record = [*PARTITION, "content"]
    is_complete = ~col("ledger").isin(*known.incomplete)
    sent = known.entries.where(col("event").isin(Event.ACKED.value, Event.FAILED.value))
    stored = judged_records(known).groupBy(*REPLICA, "content").agg(count("*").alias("copies"))
    repeated = stored.where("copies > 1")
    copies_max = collect_small(repeated.groupBy(*record).agg(max_("copies").alias("copies_max")))
    if is_known_empty(copies_max):
        return None
    # Two lines that name one place tell of one record, in whichever ledgers they stand.
    unplaced = count_if((col("event") != Event.ACKED.value) | col("offset").isNull())
    placed = count_distinct(when(col("event") == Event.ACKED.value, col("offset")))
    entries = (
        sent.join(copies_max, record, "left_semi")
        .groupBy(*record)
        .agg(
            (unplaced + placed).alias("sent"),
            bool_and(_is_acks_all() & is_complete).alias("is_promised"),
        )
    )
    # Kafka's tool does not say of a failed record which partition it was for.
    anywhere = sent.where("partition IS NULL").groupBy("topic", "content")
    suspected = (
        copies_max.join(entries, record)
        .where("copies_max > sent")
        .join(anywhere.agg(count("*").alias("more")), ["topic", "content"], "left")
        .withColumn("sent", col("sent") + coalesce("more", lit(0)))
        .where("copies_max > sent")
        .drop("copies_max", "more")
    )
    suspected = collect_small(suspected)
    if is_known_empty(suspected):
        return None
    acked = sent.where(col("event") == Event.ACKED.value).select(*PLACE, "content").distinct()
    first = sent.groupBy(*record).agg(min_(struct("ledger", "line")).alias("first"))
    found = (
        judged_records(known)
        .join(suspected, record)
        .join(acked.withColumn("is_acknowledged", lit(True)), [*PLACE, "content"], "left")
        .groupBy(*REPLICA, "in_isr", "content", "sent", "is_promised")
        .agg(
            array_sort(collect_list("offset")).alias("offsets"),
            min_(when(col("is_acknowledged").isNull(), col("offset"))).alias("unacknowledged"),
        )
        .withColumn("copies", size("offsets"))
        .where("copies > sent")
        .join(first, record)
    )
    return as_findings("duplicate", _describe_duplicates(found))


def unexpected(tables: Tables) -> DataFrame | None:
    """Return the records that no ledger has, if the ledgers are complete: the first of each
    replica."""
    known = acknowledged(tables)
    if is_exact(known):
        return None
    sent = known.entries.where(col("event").isin(Event.ACKED.value, Event.FAILED.value))
    placed = sent.where("partition IS NOT NULL").select(*PARTITION, "content").distinct()
    # Kafka's tool does not say of a failed record which partition it was for.
    anywhere = sent.where("partition IS NULL").select("topic", "content").distinct()
    topics = sent.select("topic").distinct()
    found = (
        judged_records(known)
        .join(broadcast(topics), ["topic"], "left_semi")
        .join(placed, [*PARTITION, "content"], "left_anti")
        .join(anywhere, ["topic", "content"], "left_anti")
        .groupBy(*REPLICA, "in_isr")
        .agg(min_("offset").alias("offset"), count("*").alias("count"))
    )
    detail = format_string("no ledger tells of %,d records from here on", "count")
    # A program that crashed may have sent records that its ledger does not have.
    is_promised = in_sync() & lit(not known.incomplete)
    return as_findings(
        "unexpected",
        found.withColumns({"severity": severity(is_promised), "detail": detail}),
    )


def ledger_counts(tables: Tables) -> tuple[LedgerCounts, tuple[Unjudged, ...]]:
    """Return how many acknowledged records were judged and are there, and what was not judged.

    A record is there if every replica in the ISR has it. One that compaction has removed from a
    replica in the ISR, with a reason, counts as neither. Unreadable lines of a ledger count as not
    judged.
    """
    known = acknowledged(tables)
    acked, unplaced = known.count_lines(Event.ACKED)
    unsound = _count_acked(known.unsound)
    judged = present = acked - unplaced - unsound
    nowhere = 0
    unjudged = [
        *_lines_not_read(known),
        *_ledgers_without_lines(tables, known),
        *_lines_of_others(tables, known),
        *_older_than_topics(tables, known),
    ]
    below = compacted = 0
    if tables.committed is None and known.count_lines(Event.COMMITTED)[0]:
        reason = f"groups were told of commits, and there is no {OFFSETS_TOPIC}"
        unjudged.append(Unjudged(reason, holds_back=True))
    for row in () if is_known_empty(known.unsound) else _judged_singly(known).collect():
        if row.event != Event.ACKED:
            if row.reason in (State.MISSING, State.FORMER):
                unjudged.append(_unjudged(row, _REASONS_SHOWN[row.reason], row["count"]))
        elif row.is_compacted:
            compacted += row["count"]
        elif row.reason is None:
            judged += row["count"]
            present += row["count"] if row.is_held else 0
            nowhere += 0 if row.is_anywhere else row["count"]
        else:
            is_below = row.reason == State.BELOW
            below += row["count"] if is_below else 0
            reason = _REASONS[row.reason]
            unjudged.append(_unjudged(row, reason, row["count"], holds_back=not is_below))
    for row in _judged_by_counting(known).collect() if known.has_unplaced else ():
        judged += row.unplaced - row.unjudged
        present += row.unplaced - row.unjudged - row.missing
        nowhere += row.nowhere
        if row.unjudged:
            unjudged.append(_unjudged(row, _REASON_UNCOUNTED, row.unjudged))
    shown, bare, committed = (
        known.count_lines(event)[0] for event in (Event.SHOWN, Event.SHOWN_OFFSET, Event.COMMITTED)
    )
    if not judged and not compacted and not any(each.holds_back for each in unjudged):
        if below:
            reason = "all acknowledged records lie below the log starts: none could be judged"
            unjudged.append(Unjudged(reason, holds_back=True))
        elif not (shown or bare or committed):
            reason = "the ledgers name no acknowledged record of these logs"
            unjudged.append(Unjudged(reason, holds_back=True))
    counted = (acked, judged, present, shown, nowhere, below, compacted, _count_aborted(known))
    return LedgerCounts(*counted), tuple(unjudged)


def _count_aborted(known: Acknowledged) -> int:
    """Return how many acknowledged records are of aborted transactions."""
    if known.aborted is None or is_known_empty(known.aborted):
        return 0
    acked = known.entries.where(col("event") == Event.ACKED.value)
    return acked.join(known.aborted, [*PLACE], "left_semi").count()


def _count_acked(entries: DataFrame) -> int:
    rows = local_rows(entries)
    if rows is None:
        return entries.where(col("event") == Event.ACKED.value).count()
    return sum(event == Event.ACKED.value for event in rows["event"].to_pylist())


_REASONS: Final = {
    State.BELOW: (
        "acknowledged records lie below the log start that the broker wrote down: retention or"
        " DELETE_RECORDS may have deleted them"
    ),
    State.FORMER: (
        "acknowledged records are not in their places; the ledger has no topic ids, and these lines"
        " are older than every record of the topic: they may be of a former topic of that name"
    ),
    State.GONE: "acknowledged records lie below the first segment of a replica",
    State.AHEAD: "acknowledged records lie above the high watermark of a log that grows",
    State.MISSING: "acknowledged records are of a partition without a replica at hand",
}
_REASONS_SHOWN: Final = {
    State.FORMER: _REASONS[State.FORMER].replace("acknowledged records", "records that were read"),
    State.MISSING: "records that were read are of a partition without a replica at hand",
}
_REASON_UNCOUNTED: Final = (
    "acknowledged without an offset, and fewer equal records are there than were acknowledged; "
    "the others may be deleted, or not yet committed"
)


def _unjudged(row: Row, reason: str, records: int, *, holds_back: bool = True) -> Unjudged:
    return Unjudged(reason, holds_back, row.topic, row.partition, None, records)


def _judged_singly(known: Acknowledged) -> DataFrame:
    """Return the counts of acknowledged and read records that have an offset and are not sound."""
    is_unjudged = ~col("state").isin(*(state.value for state in State if state.is_judged))
    is_there = col("state").isin(State.HELD.value, State.COMPACTED.value)
    reason = max_(when(in_sync() & is_unjudged, col("state")))
    nobody = when(~bool_or(in_sync()), State.MISSING.value)
    records = (
        suspects(known)
        .withColumn("event", when(col("event") != Event.ACKED.value, "").otherwise(col("event")))
        .groupBy("ledger", "line", "event", *PARTITION)
        .agg(
            coalesce(reason, nobody).alias("reason"),
            bool_and(~in_sync() | is_there).alias("is_held"),
            bool_or(is_there).alias("is_anywhere"),
            bool_or(in_sync() & (col("state") == State.COMPACTED.value)).alias("is_compacted"),
        )
    )
    is_compacted = col("reason").isNull() & col("is_held") & col("is_compacted")
    records = records.withColumn("is_compacted", is_compacted)
    # Of a record that is not judged it says nothing, and would split the count of a reason.
    is_anywhere = col("reason").isNull() & col("is_anywhere")
    records = records.withColumn("is_anywhere", is_anywhere)
    columns = (*PARTITION, "event", "reason", "is_compacted")
    return records.groupBy(*columns, "is_held", "is_anywhere").count().orderBy(*columns)


def _judged_by_counting(known: Acknowledged) -> DataFrame:
    """Return the counts of acknowledged records without an offset, by partition."""
    is_missing = in_sync() & (col("missing") > 0)
    records = (
        acknowledged_without_offset(known)
        .groupBy(*PARTITION, "content", "unplaced")
        .agg(
            max_(when(is_missing & col("is_judged"), col("missing")).otherwise(0)).alias("missing"),
            max_(when(is_missing & ~col("is_judged"), col("missing")).otherwise(0)).alias(
                "unjudged"
            ),
            min_(when(col("is_judged"), col("missing")).otherwise(0)).alias("nowhere"),
        )
    )
    names = ("unplaced", "missing", "unjudged", "nowhere")
    counts = {name: sum_(name).alias(name) for name in names}
    return records.groupBy(*PARTITION).agg(*counts.values()).orderBy(*PARTITION)


def _lines_not_read(known: Acknowledged) -> Iterator[Unjudged]:
    for row in known.lines:
        if row.event == Event.TORN:
            what = "cut off, as by a program that was killed"
        elif row.event == Event.UNREADABLE:
            what = "not what a ledger holds"
        else:
            continue
        text = f"{row.ledger}: {row['count']:,} lines are {what}, the first is line {row.first:,}"
        yield Unjudged(text, row.event == Event.UNREADABLE, records=row["count"])


def _ledgers_without_lines(tables: Tables, known: Acknowledged) -> Iterator[Unjudged]:
    """Return the files that were given as ledgers and have no line of a ledger."""
    read = {row.ledger for row in (*known.lines, *known.foreign)}
    for path in tables.ledgers:
        if path not in read:
            yield Unjudged(f"{path}: it has no line of a ledger", holds_back=True)


def _lines_of_others(tables: Tables, known: Acknowledged) -> Iterator[Unjudged]:
    """Return the entries about topics whose ids are not those of the logs as not judged.

    They cannot show a loss if their topic was deleted: the metadata say so, or a topic that has its
    name today has records, all of them newer than the entries. Any other id may be one of another
    cluster, or of a topic that is newer than the metadata.
    """
    for row in known.foreign:
        follows = row.ended is not None and row.ended <= known.earliest.get(row.topic, -1)
        is_old = row.topic_id in tables.deleted_ids or follows
        why = "a topic that was deleted" if is_old else "a topic of which there are no metadata"
        count = f"{row['count']:,} lines, the first is line {row['first']:,}"
        text = f"{row.ledger}: {count}, are of {why}, {row.topic} with the id {row.topic_id}"
        yield Unjudged(text, not is_old, records=row["count"])


def _older_than_topics(tables: Tables, known: Acknowledged) -> Iterator[Unjudged]:
    """Return the ledgers without topic ids that begin before the first record of a topic."""
    rows = [row for row in known.lines if row.event in (Event.ACKED, Event.SHOWN)]
    unnamed = {row.topic for row in rows if row.topic_id is None and row.began is not None}
    if not unnamed:
        return
    firsts = tables.batches.where(col("topic").isin(*unnamed) & (col("base_offset") == 0))
    made = {
        row.topic: row.made
        for row in firsts.groupBy("topic").agg(min_("max_timestamp").alias("made")).collect()
    }
    for row in rows:
        if row.topic_id is None and row.began is not None and row.began < made.get(row.topic, 0):
            yield Unjudged(
                f"{row.ledger}: it tells of {row.topic} from before its first record was made, and"
                " does not say which topic of that name it means; what is not in its place there is"
                " not judged",
                holds_back=False,
                records=row["count"],
            )


# -- rows of one kind of fault, and the words for them


def _states(known: Acknowledged, events: Sequence[Event], states: Sequence[State]) -> DataFrame:
    """Return the entries of these events that have one of these states on a replica. `holders` are
    the brokers whose replicas have what the entry says."""
    entry = Window.partitionBy("event", "ledger", "line", *PLACE)
    is_held = col("state") == State.HELD.value
    holders = array_sort(collect_set(when(is_held, col("broker"))).over(entry))
    named = suspects(known).where(col("event").isin(*events)).withColumn("holders", holders)
    return named.where(col("state").isin(*states))


def _by_place(entries: DataFrame, *more: str) -> DataFrame:
    """Return one row per place on a replica, however many entries name it."""
    line = struct("ledger", "line")
    return entries.groupBy(*REPLICA, "in_isr", "offset", "state", *more).agg(
        min_(line).alias("first"), min_by("holders", line).alias("holders")
    )


def _lacking(known: Acknowledged) -> DataFrame:
    """Return one row per replica that lacks records acknowledged without an offset."""
    counted = (
        acknowledged_without_offset(known)
        .where("missing > 0 AND is_judged")
        .groupBy(*REPLICA, "in_isr", "acks")
    )
    detail = format_string(
        "%s: %,d records without an offset are not there, by the count of equal ones",
        _acknowledged(),
        "count",
    )
    return counted.agg(sum_("missing").alias("count"), min_("first").alias("first")).withColumns(
        {
            "offset": lit(None).cast("bigint"),
            "severity": severity(in_sync() & _is_acks_all()),
            "detail": detail,
        }
    )


def _behind(entries: DataFrame, *more: str) -> DataFrame:
    """Return one row per replica that ends before places that ledgers name.

    `is_promised` if it must have them: it is in the ISR, or, if the ISR is unknown, no other
    replica goes further.
    """
    is_promised = coalesce("in_isr", col("offset") >= col("farthest")).alias("is_promised")
    line = struct("ledger", "line")
    places = entries.groupBy(*REPLICA, "log_end", "offset", is_promised, *more).agg(
        min_(line).alias("first"), min_by("holders", line).alias("holders")
    )
    replica = (*REPLICA, "log_end", "is_promised", *more)
    same = places.groupBy(*replica, "holders").agg(
        min_("offset").alias("offset"),
        min_by("first", "offset").alias("first"),
        count("*").alias("count"),
    )
    words = concat(_who_has(), format_string(" %,d of them", "count"))
    return same.groupBy(*replica).agg(
        min_by("first", "offset").alias("first"),
        min_by("holders", "offset").alias("holders"),
        sum_("count").alias("count"),
        array_sort(collect_list(struct("offset", words.alias("words")))).alias("holdings"),
        min_("offset").alias("offset"),
    )


def _is_acks_all() -> Column:
    return col("acks") == ACKS_ALL


def _first() -> Column:
    return format_string("%s line %d", "first.ledger", "first.line")


def _acknowledged() -> Column:
    acks = when(_is_acks_all(), "all").otherwise(col("acks").cast("string"))
    return concat(lit("acknowledged with acks="), acks, lit(" ("), _first(), lit(")"))


def _what_is_there() -> Column:
    is_absent = col("state") == State.ABSENT.value
    there = when(is_absent, "no record is there").otherwise("another record is there")
    return concat(there, lit("; "), _who_has(), lit(" it"))


def _what_is_behind() -> Column:
    several = format_string("%,d records from here on lie", "count")
    which = when(col("count") == 1, "it lies").otherwise(several)
    it = when(col("count") == 1, " it").otherwise(" them")
    who = concat_ws(", ", col("holdings.words"))
    who = when(size("holdings") == 1, concat(_who_has(), it)).otherwise(who)
    return concat(which, format_string(" behind the log end %,d; ", "log_end"), who)


def _who_has() -> Column:
    """Return `brokers 1, 3 have`, of the column `holders`."""
    some = concat(
        when(size("holders") == 1, "broker ").otherwise("brokers "),
        concat_ws(", ", col("holders").cast("array<string>")),
        when(size("holders") == 1, " has").otherwise(" have"),
    )
    return when(size("holders") == 0, "no replica has").otherwise(some)


def _describe_duplicates(places: DataFrame) -> DataFrame:
    """Return the rows with severity and detail, at the first offset that no client was told."""
    offsets = concat_ws(", ", slice_("offsets", 1, _OFFSETS_LISTED_MAX))
    detail = concat(
        format_string("%,d equal records at offsets ", "copies"),
        offsets,
        when(col("copies") > _OFFSETS_LISTED_MAX, ", ...").otherwise(""),
        format_string(", of which %,d were sent (", "sent"),
        _first(),
        lit(")"),
    )
    return places.withColumns(
        {
            "offset": coalesce("unacknowledged", array_max("offsets")),
            "severity": severity(in_sync() & col("is_promised")),
            "detail": detail,
        }
    )


CHECKS: Final[Mapping[str, Callable[[Tables], DataFrame | None]]] = {
    "lost-write": lost_write,
    "unseen": unseen,
    "duplicate": duplicate,
    "inconsistent-offsets": inconsistent_offsets,
    "aborted-read": aborted_read,
    "unexpected": unexpected,
}
