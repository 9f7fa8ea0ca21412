"""What groups have read and committed, by the ledgers of their consumers.

A consumer writes down each record before the application gets it, and each commit once it is
acknowledged. So below each commit every record was read before, by the member that commits or by
another one. What is missing is a hole: records that the group has left out, although each reaches a
group at least once. A hole is no fault where the position was set behind it (a seek, or
auto.offset.reset), below the log's start, or where a consumer without a ledger has committed.
Markers of transactions are no records, and those of aborted transactions need not be read.

Records that are read twice break no promise: a member that is killed, or loses its partitions, has
not committed all that it has read.
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import dropwhile, pairwise
from typing import Any, Final, NamedTuple, TypeAlias

from pyspark.sql import DataFrame, Window
from pyspark.sql.functions import bool_or, coalesce, col, count, lit, row_number, struct, when
from pyspark.sql.functions import max as largest_of
from pyspark.sql.functions import min as smallest_of
from pyspark.sql.functions import sum as sum_of

from minibroker.audit.checks.acknowledged import Acknowledged, acknowledged
from minibroker.audit.checks.facts import PARTITION
from minibroker.audit.checks.findings import as_findings
from minibroker.audit.checks.group_offsets import seek_command
from minibroker.audit.checks.local_frames import from_rows
from minibroker.audit.checks.memoize import memoize_per_run
from minibroker.audit.checks.stored_transactions import (
    has_transactions,
    transactions,
    uncommitted_offsets,
)
from minibroker.audit.checks.transaction_history import ABORTED
from minibroker.audit.files.ledger import Event
from minibroker.audit.model import FINDINGS, Finding, Severity, Tables
from minibroker.audit.summary import plural
from minibroker.protocol.constants import OFFSETS_TOPIC

CHECK: Final = "skipped-read"
KEY: Final = ("group", *PARTITION)
HOLES_MAX: Final = 20  # of a group in a partition, that findings name

Key: TypeAlias = tuple[str, str, int]


class Island(NamedTuple):
    """Offsets from `first` to `last` that were all read, but for `passed` ones that no member need
    read; `twice` of them more than once."""

    first: int
    last: int
    twice: int
    passed: int = 0

    @property
    def read(self) -> int:
        """How many records were read."""
        return self.last - self.first + 1 - self.passed


class FirstCommit(NamedTuple):
    """The first acknowledged commit of an offset; `is_read` if the record before it was read at
    all, `is_read_before` if that was before the commit."""

    offset: int
    where: str
    is_read: bool
    is_read_before: bool


class Hole(NamedTuple):
    """Offsets from `start` to below `end` that no member has read; `where` is the commit."""

    start: int
    end: int
    where: str


@dataclass(frozen=True, slots=True)
class Reads:
    """What ledgers say of a group in a partition: how many records it has read, how many of them
    more than once, which it has left out, and how many commits came before their record was read or
    were refused. `open_ledgers` are how many of the group's ledgers have no end."""

    read: int
    twice: int
    holes: Sequence[Hole]
    early: Sequence[FirstCommit]
    refused: int
    refusals: str
    open_ledgers: int

    @property
    def skipped(self) -> int:
        """How many records it has left out."""
        return sum(hole.end - hole.start for hole in self.holes)


def holes_of(
    islands: Sequence[Island],
    commits: Sequence[FirstCommit],
    jumps: Collection[int],
    log_start: int,
    others: Callable[[int, int], bool],
) -> list[Hole]:
    """Return what a group has left out below its commits, in order.

    `jumps` are the offsets at which positions were set: reading begins there. `others` says whether
    a client without a ledger has committed an offset from the first one to the second.
    """
    known, made = sorted(islands), sorted(commits)
    offsets, firsts = [commit.offset for commit in made], [island.first for island in known]
    spans = [(before.last + 1, after.first) for before, after in pairwise(known)]
    if known and (begun := [offset for offset in jumps if offset < known[0].first]):
        spans.append((max(begun), known[0].first))
    gaps = []
    for start, end in spans:
        behind = bisect_right(offsets, end)
        if behind < len(made):
            gaps.append(Hole(start, end, made[behind].where))
    for commit in made:
        if not commit.is_read:
            at = bisect_left(firsts, commit.offset)
            # Where no reading is known to have begun, only the record before the commit is known.
            begun = [offset for offset in jumps if offset < commit.offset]
            start = known[at - 1].last + 1 if at else max(begun, default=commit.offset - 1)
            gaps.append(Hole(start, commit.offset, commit.where))
    return _joined(
        Hole(max(start, log_start), end, where)
        for start, end, where in gaps
        if max(start, log_start) < end and end not in jumps and not others(start + 1, end)
    )


def _joined(holes: Iterable[Hole]) -> list[Hole]:
    """Return the holes without those that lie in others."""
    kept: list[Hole] = []
    for hole in sorted(holes):
        if not kept or hole.start >= kept[-1].end:
            kept.append(hole)
        elif hole.end > kept[-1].end:
            kept[-1] = kept[-1]._replace(end=hole.end)
    return kept


@memoize_per_run
def group_reads(tables: Tables) -> Mapping[Key, Reads]:
    """Return what ledgers say, by group and partition; empty if they name no group."""
    if tables.ledger is None:
        return {}
    known = acknowledged(tables)
    events = (Event.SHOWN, Event.COMMITTED, Event.REFUSED)
    if not any(known.count_lines(event)[0] for event in events):
        return {}
    entries = known.entries.where(col("group").isNotNull())
    refused = _refused(entries) if known.count_lines(Event.REFUSED)[0] else {}
    # Others' ledgers have commits, and do not say which group has read a record.
    shows = col("event").isin(Event.BEGAN.value, Event.SHOWN.value)
    ledgers = entries.where(shows).select("group", "ledger").distinct().toArrow().to_pylist()
    if not ledgers and not refused:
        return {}
    islands = _islands(entries, _passable(tables))
    commits = _first_commits(entries.where(col("ledger").isin(*{row["ledger"] for row in ledgers})))
    jumps = _jumps(entries)
    starts = _log_starts(tables)
    keys = islands.keys() | commits.keys() | refused.keys()
    suspects = [
        key
        for key in keys
        if holes_of(
            islands.get(key, ()),
            commits.get(key, ()),
            jumps.get(key, ()),
            starts.get(key[1:], 0),
            _no_others,
        )
    ]
    others = _commits_of_others(tables, known, suspects) if suspects else {}
    found = {}
    for key in keys:
        mine, committed = islands.get(key, ()), commits.get(key, ())

        def is_other(begin: int, end: int, offsets: Collection[int] = others.get(key, ())) -> bool:
            return any(begin <= offset <= end for offset in offsets)

        found[key] = Reads(
            read=sum(each.read for each in mine),
            twice=sum(each.twice for each in mine),
            holes=holes_of(mine, committed, jumps.get(key, ()), starts.get(key[1:], 0), is_other),
            early=[each for each in committed if each.is_read and not each.is_read_before],
            refused=sum(refused.get(key, {}).values()),
            refusals=", ".join(f"{error} {times}" for error, times in refused.get(key, {}).items()),
            open_ledgers=sum(
                row["group"] == key[0] and row["ledger"] in known.incomplete for row in ledgers
            ),
        )
    return found


def skipped_read(tables: Tables) -> DataFrame | None:
    """Return the records that groups have left out below their commits, and the commits that came
    before their record was read."""
    lines = acknowledged(tables).lines
    # What cannot be read of a ledger may have been a record, and compaction may have removed the
    # commits of clients without ledgers.
    is_whole = not any(row.event in (Event.UNREADABLE, Event.TORN) for row in lines)
    logs = tables.replicas.collect()
    is_whole &= not any(row.cleaned_end for row in logs if row.topic == OFFSETS_TOPIC)
    severity = Severity.ERROR if is_whole else Severity.WARNING
    rows = [
        tuple(getattr(finding, name) for name in FINDINGS.names)
        for key, reads in sorted(group_reads(tables).items())
        for finding in findings_of(key, reads, severity)
    ]
    if not rows:
        return None
    return as_findings(CHECK, from_rows(tables.replicas.sparkSession, FINDINGS, rows))


def findings_of(key: Key, reads: Reads, severity: Severity) -> Iterator[Finding]:
    """Yield the findings about one group in one partition."""
    group, topic, partition = key
    more = len(reads.holes) - HOLES_MAX
    for number, hole in enumerate(reads.holes[:HOLES_MAX], 1):
        size = hole.end - hole.start
        them = f"from offset {hole.start:,} to {hole.end - 1:,}" if size > 1 else ""
        them = them or f"at offset {hole.start:,}"
        detail = (
            f"group {group} has skipped {plural(size, 'record')} {them}; no ledger of a member"
            f" shows that they were read, and the group has committed past them ({hole.where})"
            f"; {seek_command(*key, f'--to-offset {hole.start}')}"
        )
        detail += f"; and {more} more" if number == HOLES_MAX and more > 0 else ""
        yield Finding(CHECK, severity, topic, partition, offset=hole.start, detail=detail)
    if reads.early:
        first = min(reads.early)
        detail = (
            f"group {group} has committed {first.offset:,} ({first.where}) before a member had read"
            f" the record before it, which one did later; so did"
            f" {plural(len(reads.early), 'commit')} in all"
        )
        place = (topic, partition)
        yield Finding(CHECK, Severity.WARNING, *place, offset=first.offset, detail=detail)


def _passable(tables: Tables) -> DataFrame | None:
    """Return PARTITION and `offset` of what is no record, or one of an aborted transaction; None if
    there are no transactions."""
    if not has_transactions(tables.batches):
        return None
    place = [*PARTITION, "offset"]
    markers = transactions(tables.batches).where("marker_offset IS NOT NULL")
    aborted = uncommitted_offsets(tables.batches).where(col("outcome") == ABORTED)
    found = markers.select(*PARTITION, col("marker_offset").alias("offset"))
    return found.unionByName(aborted.select(place)).distinct()


def _islands(entries: DataFrame, passable: DataFrame | None) -> dict[Key, list[Island]]:
    reads = (
        entries.where(col("event") == Event.SHOWN.value)
        .groupBy(*KEY, "offset")
        .agg(count("*").alias("times"))
    )
    if passable is not None:
        passed = reads.select(*KEY).distinct().join(passable, [*PARTITION])
        passed = passed.select(*KEY, "offset", lit(0).alias("times"))
        times = sum_of("times").alias("times")
        reads = reads.unionByName(passed).groupBy(*KEY, "offset").agg(times)
    place = Window.partitionBy(*KEY).orderBy("offset")
    islands = (
        reads.withColumn("island", col("offset") - row_number().over(place))
        .groupBy(*KEY, "island")
        .agg(
            smallest_of("offset").alias("first"),
            largest_of("offset").alias("last"),
            sum_of(when(col("times") > 1, 1).otherwise(0)).alias("twice"),
            sum_of(when(col("times") == 0, 1).otherwise(0)).alias("passed"),
        )
    )
    found: dict[Key, list[Island]] = defaultdict(list)
    for row in islands.toArrow().to_pylist():
        found[_key(row)].append(Island(*(row[name] for name in Island._fields)))
    return {key: _from_first_read(each) for key, each in found.items()}


def _from_first_read(islands: Sequence[Island]) -> list[Island]:
    """Return the islands without those in which nothing was read before reading began."""
    return [*dropwhile(lambda island: not island.read, sorted(islands))]


def _first_commits(entries: DataFrame) -> dict[Key, list[FirstCommit]]:
    time = coalesce("timestamp", lit(0)).alias("time")
    commits = (
        entries.where((col("event") == Event.COMMITTED.value) & (col("offset") > 0))
        .groupBy(*KEY, "offset")
        .agg(smallest_of(struct(time, "line", "ledger")).alias("commit"))
    )
    reads = entries.where(col("event") == Event.SHOWN.value).select(
        *KEY,
        (col("offset") + 1).alias("offset"),
        time.alias("read_time"),
        col("line").alias("read_line"),
        col("ledger").alias("read_in"),
    )
    is_same = col("read_in") == col("commit.ledger")
    is_before = when(is_same, col("read_line") < col("commit.line")).otherwise(
        col("read_time") <= col("commit.time")
    )
    judged = (
        commits.join(reads, [*KEY, "offset"], "left")
        .groupBy(*KEY, "offset", "commit")
        .agg(
            bool_or(col("read_in").isNotNull()).alias("is_read"),
            bool_or(coalesce(is_before, lit(False))).alias("is_before"),
        )
    )
    found: dict[Key, list[FirstCommit]] = defaultdict(list)
    for row in judged.toArrow().to_pylist():
        where = f"{row['commit']['ledger']} line {row['commit']['line']}"
        commit = FirstCommit(row["offset"], where, row["is_read"], row["is_before"])
        found[_key(row)].append(commit)
    return found


def _jumps(entries: DataFrame) -> dict[Key, set[int]]:
    jumps = entries.where(col("event") == Event.JUMPED.value).select(*KEY, "offset").distinct()
    found: dict[Key, set[int]] = defaultdict(set)
    for row in jumps.toArrow().to_pylist():
        found[_key(row)].add(row["offset"])
    return found


def _refused(entries: DataFrame) -> dict[Key, dict[str, int]]:
    refused = entries.where(col("event") == Event.REFUSED.value).groupBy(*KEY, "error").count()
    found: dict[Key, dict[str, int]] = defaultdict(dict)
    for row in sorted(refused.toArrow().to_pylist(), key=lambda row: row["error"] or ""):
        found[_key(row)][row["error"] or "?"] = row["count"]
    return found


def _log_starts(tables: Tables) -> dict[tuple[str, int], int]:
    """Return below which offset a partition has no records on any replica, or some that compaction
    may have removed before a group could read them."""
    starts: dict[tuple[str, int], int] = {}
    rows = tables.replicas.toArrow().to_pylist()
    for row in rows:
        name = (row["topic"], row["partition"])
        own = [row[each] for each in ("log_start", "first_offset") if row[each] is not None]
        starts[name] = min(starts.get(name, 1 << 62), max(own, default=0))
    for row in rows:
        name = (row["topic"], row["partition"])
        starts[name] = max(starts[name], row["cleaned_end"] or 0)
    return starts


def _commits_of_others(
    tables: Tables, known: Acknowledged, suspects: Sequence[Key]
) -> dict[Key, set[int]]:
    """Return the offsets that are stored more often than ledgers say they were committed."""
    found: dict[Key, set[int]] = defaultdict(set)
    if tables.stored is None:
        return found
    names = {name: [*{key[at] for key in suspects}] for at, name in enumerate(KEY[:2])}
    are_suspect = col("group").isin(*names["group"]) & col("topic").isin(*names["topic"])
    stored = (
        tables.stored.where(are_suspect & col("offset").isNotNull() & col("problem").isNull())
        .groupBy("broker", *KEY, "offset")
        .count()
    )
    told = known.entries.where(are_suspect & (col("event") == Event.COMMITTED.value))
    counts = told.groupBy(*KEY, "offset").agg(count("*").alias("told"))
    more = (
        stored.join(counts, [*KEY, "offset"], "left")
        .where(col("count") > coalesce("told", lit(0)))
        .select(*KEY, "offset")
        .distinct()
    )
    for row in more.toArrow().to_pylist():
        found[_key(row)].add(row["offset"])
    return found


def _no_others(_begin: int, _end: int) -> bool:
    return False


def _key(row: Mapping[str, Any]) -> Key:
    return row["group"], row["topic"], row["partition"]


CHECKS: Final[Mapping[str, Callable[[Tables], DataFrame | None]]] = {CHECK: skipped_read}
