"""Checks of the offsets that consumer groups committed, which brokers store in the offsets topic.

The last record of a key is what a group has committed for a partition. All in-sync replicas of the
offsets topic must agree. What counts is what confirms most of the commits that consumers' ledgers
say were acknowledged; among equals a log without records that no coordinator writes; then what most
replicas say; among those the reference replica.

On a live cluster this is sound because high watermarks are read before the logs: a commit below the
offsets topic's high watermark at that time concerns records that were committed before it.

The rows of COMMITTED come to the driver: one per replica, group and partition.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

from pyspark.sql import DataFrame
from pyspark.sql.functions import coalesce as coalesced
from pyspark.sql.functions import col, count, lit, struct
from pyspark.sql.functions import max as largest_of

from minibroker.audit.checks.acknowledged import acknowledged
from minibroker.audit.checks.facts import PARTITION, runs
from minibroker.audit.checks.findings import as_findings
from minibroker.audit.checks.group_offsets import (
    LOST_CHECK,
    OFFSET_CHECK,
    RECORD_CHECK,
    CommitRow,
    Home,
    Judge,
    LogBounds,
    Told,
    seek_command,
)
from minibroker.audit.checks.group_reads import Reads, group_reads
from minibroker.audit.checks.local_frames import from_rows
from minibroker.audit.checks.log_ends import EpochEnd, ascending
from minibroker.audit.checks.memoize import memoize_per_run
from minibroker.audit.files.commits import NONE, home_of
from minibroker.audit.files.directories import LIVE
from minibroker.audit.files.ledger import Event
from minibroker.audit.model import FINDINGS, Finding, Severity, Tables
from minibroker.audit.summary import Committed, GroupOffset
from minibroker.protocol.constants import OFFSETS_TOPIC
from minibroker.protocol.types import TopicPartition

SHOWN_MAX: Final = 2_000
KEY: Final = ("group", *PARTITION)

Key: TypeAlias = tuple[str, str, int]
# By group and partition: the acknowledged commits, and how often each replica has them stored.
Commits: TypeAlias = Mapping[Key, Sequence[Told]]
Stored: TypeAlias = Mapping[tuple[Key, int], Mapping[int, int]]
Replicas: TypeAlias = Mapping[TopicPartition, Sequence[dict[str, Any]]]


def committed_offset(tables: Tables) -> DataFrame | None:
    """Return the wrong committed offsets: outside their partition's log, of records that are gone,
    or different on in-sync replicas."""
    return _found(OFFSET_CHECK, tables, _judge(tables).findings())


def group_record(tables: Tables) -> DataFrame | None:
    """Return the records of the offsets topic that no coordinator reads, or that none writes."""
    return _found(RECORD_CHECK, tables, _judge(tables).findings())


def lost_commit(tables: Tables) -> DataFrame | None:
    """Return the last acknowledged commits of groups that are not stored, or that no longer count.

    A commit that was stored and deleted since is no loss.
    """
    if tables.ledger is None:
        return None
    untold = None
    if tables.is_ledger_complete:
        # A program that was killed may have committed more than it wrote down.
        untold = Severity.WARNING if acknowledged(tables).incomplete else Severity.ERROR
    found = _lost(_judge(tables), _told(tables), _stored(tables), untold)
    return _found(LOST_CHECK, tables, found)


def group_offsets(tables: Tables) -> tuple[list[GroupOffset], int]:
    """Return the committed offsets for the report, by group and partition: at most SHOWN_MAX of
    them, and how many there are."""
    if tables.committed is None:
        return [], 0
    judge, reads = _judge(tables), group_reads(tables)
    rows = [
        (key, home, row)
        for home in judge.homes
        for key, row in home.right.items()
        if key[1] and row["commits"]
    ]
    rows.sort(key=lambda each: each[0])
    shown = []
    for key, home, row in rows[:SHOWN_MAX]:
        bounds = judge.bounds.get(TopicPartition(*key[1:]))
        offset = row["offset"]
        lag = None
        if bounds is not None and offset is not None and offset >= 0:
            lag = max(0, bounds.judged_end - offset)
        generation = home.right.get((key[0], "", -1))
        shown.append(
            GroupOffset(
                group=key[0],
                topic=key[1],
                partition=key[2],
                committed=offset,
                lag=lag,
                highest=row["highest"],
                commits=row["commits"],
                went_back=row["went_back"],
                back=row["back"] or "",
                by=row["by"] or "",
                deletions=row["deletions"],
                generation=None if generation is None else generation["offset"],
                home=home.number,
                coordinator=judge.coordinator(home.number)[0],
                **_read(reads.get(key)),
            )
        )
    return shown, len(rows)


def _read(reads: Reads | None) -> dict[str, Any]:
    """Return what ledgers say of a group in a partition, by the names of fields."""
    if reads is None:
        return {}
    names = ("read", "twice", "skipped", "refused", "refusals", "open_ledgers")
    return {name: getattr(reads, name) for name in names} | {"early": len(reads.early)}


def marks(shown: Iterable[GroupOffset]) -> dict[TopicPartition, tuple[Committed, ...]]:
    """Return the committed offsets for the pictures, by partition."""
    found: dict[TopicPartition, tuple[Committed, ...]] = {}
    for each in shown:
        if each.committed is not None:
            name = TopicPartition(each.topic, each.partition)
            found[name] = (*found.get(name, ()), Committed(each.group, each.committed))
    return found


def _found(check: str, tables: Tables, findings: Iterable[Finding]) -> DataFrame | None:
    """Return the findings of a check as a table; None if there are none."""
    rows = [
        tuple(getattr(finding, name) for name in FINDINGS.names)
        for finding in findings
        if finding.check == check
    ]
    if not rows:
        return None
    return as_findings(check, from_rows(tables.replicas.sparkSession, FINDINGS, rows))


@memoize_per_run
def _judge(tables: Tables) -> Judge:
    assert tables.committed is not None, "without an offsets topic this check is not run"
    replicas = _by_partition(tables.replicas.toArrow().to_pylist())
    rows = tables.committed.toArrow().to_pylist()
    is_of_epoch = any(
        row["leader_epoch"] not in (None, NONE) or row["before"] is not None for row in rows
    )
    epochs = _epochs(tables, replicas) if is_of_epoch else {}
    bounds = {
        name: _bounds(logs, epochs.get(name, ()))
        for name, logs in replicas.items()
        if any(map(_is_in_sync, logs))
    }
    told, stored = _told(tables), _stored(tables)
    homes = [
        _home(name.partition, logs, rows, bounds[name], told, stored)
        for name, logs in sorted(replicas.items())
        if name.topic == OFFSETS_TOPIC and name in bounds
    ]
    return Judge(homes, bounds, tables.assignments)


def _by_partition(rows: Iterable[dict[str, Any]]) -> Replicas:
    found: dict[TopicPartition, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        found[TopicPartition(row["topic"], row["partition"])].append(row)
    return found


def _is_in_sync(log: Mapping[str, Any]) -> bool:
    return log["in_isr"] is not False


def _bounds(logs: Sequence[Mapping[str, Any]], epochs: Sequence[EpochEnd]) -> LogBounds:
    in_sync = [log for log in logs if _is_in_sync(log)]
    reference = next((log for log in logs if log["is_reference"]), in_sync[0])
    starts = [_first(log["log_start"], log["first_offset"], 0) for log in in_sync]
    # The logs of running brokers are of different moments: what a restart would truncate is not
    # known of them.
    ends = {
        log["broker"]: log["log_end"]
        if log["state"] == LIVE
        else _first(log["kept_end"], log["log_end"], 0)
        for log in in_sync
    }
    return LogBounds(
        min(starts),
        max(log["log_end"] or 0 for log in in_sync),
        max(log["judged_end"] or 0 for log in logs),
        ends,
        _first(reference["first_offset"], 0),
        epochs,
    )


def _first(*offsets: int | None) -> int:
    return next(offset for offset in offsets if offset is not None)


def _epochs(tables: Tables, replicas: Replicas) -> dict[TopicPartition, tuple[EpochEnd, ...]]:
    """Return the leader epochs of the reference logs."""
    references = {
        (log["broker"], *name)
        for name, logs in replicas.items()
        for log in logs
        if log["is_reference"]
    }
    columns = ("broker", *PARTITION, "leader_epoch", "segment", "end", "next_offset", "length")
    whole = runs(tables.batches).where(~col("torn")).select(*columns).toArrow().to_pylist()
    last: dict[tuple[TopicPartition, int], tuple[int, int, int]] = {}
    length: dict[tuple[TopicPartition, int], int] = defaultdict(int)
    for run in whole:
        name = TopicPartition(run["topic"], run["partition"])
        if (run["broker"], *name) in references:
            place = name, run["leader_epoch"]
            there = (run["segment"], run["end"], run["next_offset"])
            last[place] = max(last.get(place, there), there)
            length[place] += run["length"]
    found: dict[TopicPartition, list[EpochEnd]] = defaultdict(list)
    for (name, epoch), (_, _, end) in last.items():
        found[name].append(EpochEnd(epoch, end, length[name, epoch]))
    return {name: ascending(ends) for name, ends in found.items()}


def _home(
    number: int,
    logs: Sequence[Mapping[str, Any]],
    rows: Sequence[dict[str, Any]],
    bounds: LogBounds,
    told: Commits,
    stored: Stored,
) -> Home:
    """Return what counts in a partition of the offsets topic; see the head of this module."""
    in_sync = [log for log in logs if _is_in_sync(log)]
    by_broker: dict[int, dict[Key, CommitRow]] = {log["broker"]: {} for log in in_sync}
    problems = []
    for row in rows:
        if row["home"] == number and row["problem"] is None:
            by_broker[row["broker"]][row["group"], row["topic"], row["partition"]] = row
        elif row["home"] == number:
            problems.append(row)
    contents = {
        broker: {key: row["offset"] for key, row in keys.items() if row["offset"] is not None}
        for broker, keys in by_broker.items()
    }
    reference = next(
        (log["broker"] for log in in_sync if log["is_reference"]), in_sync[0]["broker"]
    )
    here = {key for keys in by_broker.values() for key in keys}
    last = {(key, max(told[key]).offset) for key in here & told.keys()}

    spoilt = {row["broker"] for row in problems if row["is_grave"]}

    def claim(broker: int) -> tuple[int, bool, int, int]:
        """Return how many acknowledged commits a broker has stored, whether one that says the same
        has no record that no coordinator writes, how many of these commits count on it, and how
        many say the same."""
        confirmed = sum(broker in stored.get(each, ()) for each in last)
        counting = sum(contents[broker].get(key) == offset for key, offset in last)
        agreeing = [each for each, theirs in contents.items() if theirs == contents[broker]]
        return confirmed, not spoilt.issuperset(agreeing), counting, len(agreeing)

    best = max(map(claim, contents))
    right = [broker for broker in contents if claim(broker) == best]
    chosen = reference if reference in right else min(right)
    return Home(
        number,
        chosen,
        all(contents[broker] == contents[chosen] for broker in right),
        any(log["state"] == LIVE for log in logs),
        by_broker,
        problems,
        bounds,
        any(log["cleaned_end"] for log in logs),
    )


# -- what ledgers say


@memoize_per_run
def _told(tables: Tables) -> Commits:
    """Return the commits that ledgers say were acknowledged."""
    found: dict[Key, list[Told]] = defaultdict(list)
    if tables.ledger is None or not acknowledged(tables).count_lines(Event.COMMITTED)[0]:
        return found
    place = struct(
        coalesced("timestamp", lit(0)).alias("timestamp"), "line", "ledger", "member", "generation"
    )
    commits = (
        acknowledged(tables)
        .entries.where(col("event") == Event.COMMITTED.value)
        .groupBy(*KEY, "offset")
        .agg(largest_of(place).alias("last"), count("*").alias("count"))
    )
    for row in commits.toArrow().to_pylist():
        last = row["last"]
        by = "" if last["member"] is None else f", member {last['member']}"
        by += "" if last["generation"] is None else f" of generation {last['generation']}"
        key = (row["group"], row["topic"], row["partition"])
        where = (last["timestamp"], last["line"], last["ledger"])
        found[key].append(Told(*where, row["offset"], row["count"], by))
    return found


@memoize_per_run
def _stored(tables: Tables) -> Stored:
    """Return how often each replica of the offsets topic has what ledgers say was acknowledged."""
    found: dict[tuple[Key, int], dict[int, int]] = defaultdict(dict)
    if tables.stored is None or not _told(tables):
        return found
    commits = acknowledged(tables).entries.where(col("event") == Event.COMMITTED.value)
    is_there = (
        tables.stored.where(col("problem").isNull() & col("offset").isNotNull())
        .join(commits.select(*KEY, "offset").distinct(), [*KEY, "offset"], "left_semi")
        .groupBy("broker", *KEY, "offset")
        .count()
    )
    for row in is_there.toArrow().to_pylist():
        key = (row["group"], row["topic"], row["partition"])
        found[key, row["offset"]][row["broker"]] = row["count"]
    return found


def _lost(
    judge: Judge, told: Commits, stored: Stored, untold: Severity | None
) -> Iterator[Finding]:
    """Yield the acknowledged commits that do not count; `untold` is how bad it is if a lower one
    counts of which no ledger tells, None if that is no fault."""
    homes = {home.number: home for home in judge.homes}
    where = {key: home.number for home in judge.homes for key in home.right}
    for key, commits in sorted(told.items()):
        count = judge.home_count
        number = where.get(key) if count is None else home_of(key[0], count)
        home = None if number is None else homes.get(number)
        last = max(commits)
        said = (
            f"group {key[0]} was told that {last.offset} of {key[1]}-{key[2]} is committed"
            f" ({last.ledger} line {last.line}{last.by})"
        )
        has = stored.get((key, last.offset), {})
        brokers = sorted(has) if home is None else sorted(home.rows)
        lacking = [broker for broker in brokers if broker not in has]
        is_replaced = False
        if home is not None and home.is_cleaned:
            is_replaced = not has and _is_replaced(home, key, last, commits, stored)
            lacking = [] if is_replaced else [*_not_replaced(home, key, has, lacking)]
        coordinator, words = judge.coordinator(number)
        if not has and not is_replaced:
            there = _what_counts(home, key)
            detail = f"{said}, and {OFFSETS_TOPIC} says {there}{words}"
            yield _lost_at(key, number, coordinator, last, detail, judge)
        elif lacking:
            holders = ", ".join(map(str, sorted(has)))
            for broker in lacking:
                detail = f"{said}, and broker {broker} does not have it; {holders} has"
                yield _lost_at(key, number, broker, last, detail, judge)
        elif home is not None and (older := _counts_instead(home, key, last, commits, stored)):
            detail = (
                f"{said}, and {OFFSETS_TOPIC} says {_what_counts(home, key)}, which was"
                f" acknowledged before it ({older.ledger} line {older.line}){words}"
            )
            yield _lost_at(key, number, coordinator, last, detail, judge)
        elif untold is not None and home is not None and _is_lower(home, key, last):
            there = f"{_what_counts(home, key)}, of which no ledger tells"
            detail = f"{said}, and {OFFSETS_TOPIC} says {there}{words}"
            yield _lost_at(key, number, coordinator, last, detail, judge, untold)


def _is_replaced(home: Home, key: Key, last: Told, commits: Sequence[Told], stored: Stored) -> bool:
    """Whether compaction may have removed an acknowledged commit everywhere, for a later one of
    which no ledger tells: what counts is no older acknowledged one."""
    is_older = _counts_instead(home, key, last, commits, stored) is not None
    return home.right.get(key) is not None and not is_older


def _not_replaced(
    home: Home, key: Key, has: Collection[int], lacking: Iterable[int]
) -> Iterator[int]:
    """Yield the brokers that lack an acknowledged commit which others have, unless compaction may
    have removed it: they have the later record of the key that those have, too, or this is the
    deletion of the commit."""
    later = [home.rows[broker].get(key) for broker in has if broker in home.rows]
    is_deleted = all(row is not None and row["offset"] is None for row in later)
    newest = {row["at"] for row in later if row is not None}
    for broker in lacking:
        row = home.rows[broker].get(key)
        if not (is_deleted if row is None else row["at"] in newest):
            yield broker


def _counts_instead(
    home: Home, key: Key, last: Told, commits: Sequence[Told], stored: Stored
) -> Told | None:
    """Return the older acknowledged commit that counts instead of the last one; None if the last
    one counts, or a commit of which no ledger tells."""
    row = home.right.get(key)
    if row is None or row["offset"] in (None, last.offset):
        return None
    older = next((each for each in commits if each.offset == row["offset"]), None)
    if older is None:
        return None
    # The answers to two members may come in another order than their commits were made.
    is_sure = older.offset < last.offset or older.ledger == last.ledger
    is_other = stored.get((key, older.offset), {}).get(home.reference, 0) > older.count_of_lines
    return None if is_other or not is_sure else older


def _is_lower(home: Home, key: Key, last: Told) -> bool:
    row = home.right.get(key)
    return row is not None and row["offset"] is not None and bool(row["offset"] < last.offset)


def _what_counts(home: Home | None, key: Key) -> str:
    row = None if home is None else home.right.get(key)
    if row is None or row["offset"] is None:
        return "nothing"
    return f"{row['offset']} (offset {row['at']})"


def _lost_at(
    key: Key,
    home: int | None,
    broker: int | None,
    last: Told,
    detail: str,
    judge: Judge,
    severity: Severity = Severity.ERROR,
) -> Finding:
    # The high watermarks read do not cover what running brokers have acknowledged since.
    is_live = any(each.is_live for each in judge.homes if home in (None, each.number))
    severity = Severity.INFO if is_live else severity
    place = key[1:] if home is None else (OFFSETS_TOPIC, home)
    advice = f"; {seek_command(*key, f'--to-offset {last.offset}')}"
    return Finding(LOST_CHECK, severity, *place, broker, detail=detail + advice)


CHECKS: Final[Mapping[str, Callable[[Tables], DataFrame | None]]] = {
    OFFSET_CHECK: committed_offset,
    LOST_CHECK: lost_commit,
    RECORD_CHECK: group_record,
}
