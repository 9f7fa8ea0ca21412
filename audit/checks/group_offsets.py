"""Whether the offsets that groups have committed can be right, by the logs that they lie in.

A commit names the offset of the next record to read, O, and the leader epoch E of the record before
it, if the client knew that. The log still has what the group read below O if no leader epoch above
E begins below O (KIP-101): otherwise the log was truncated there, and other records have taken
their places. An epoch above that of the metadata never was.

A consumer reads only committed records. So each in-sync log goes at least as far as each commit,
and one that ends before has lost records. (An application may commit any offset, but then its group
has no place to go on, either.)
"""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from minibroker.audit.checks.log_ends import EpochEnd
from minibroker.audit.files.cluster import Assignment
from minibroker.audit.files.commits import NONE, home_of
from minibroker.audit.model import Finding, Severity
from minibroker.protocol.constants import OFFSETS_TOPIC
from minibroker.protocol.types import TopicPartition

OFFSET_CHECK: Final = "committed-offset"
LOST_CHECK: Final = "lost-commit"
RECORD_CHECK: Final = "group-record"

CommitRow = Mapping[str, Any]  # a row of COMMITTED


@dataclass(frozen=True, slots=True)
class LogBounds:
    """Where the logs of a partition begin and end, as far as a commit needs it.

    `log_end` is that of the in-sync log that has most, `ends` those of all in-sync logs by broker.
    `epochs` are the leader epochs of the reference log, whose first record is at `first_offset`.
    """

    log_start: int
    log_end: int
    judged_end: int
    ends: Mapping[int, int] = field(default_factory=dict)
    first_offset: int = 0
    epochs: Sequence[EpochEnd] = ()

    def cut_below(self, offset: int, leader_epoch: int) -> tuple[int, int] | None:
        """Return the leader epoch that has replaced records below `offset`, and where it begins;
        None if there is none."""
        start = self.first_offset
        for epoch, end, _ in self.epochs:
            if epoch > leader_epoch:
                return (epoch, start) if start < offset else None
            start = end
        return None

    def epoch_at(self, offset: int) -> int:
        """Return the leader epoch of a record; -1 if the log does not have it."""
        return next((epoch for epoch, end, _ in self.epochs if offset < end), NONE)


class Told(NamedTuple):
    """A commit that `count_of_lines` of ledgers say was acknowledged; the last of them is `line` of
    `ledger`, from the time `time`."""

    time: int
    line: int
    ledger: str
    offset: int
    count_of_lines: int
    by: str


@dataclass(frozen=True, slots=True)
class Home:
    """A partition of the offsets topic: what counts, and who says otherwise.

    `reference` is the broker whose rows count. `is_decided` is false if as many in-sync replicas
    say something else. `rows` are by broker, then by group, topic and partition. `is_cleaned`:
    compaction has visibly changed a replica, so commits that later ones replaced may be gone.
    """

    number: int
    reference: int
    is_decided: bool
    is_live: bool
    rows: Mapping[int, Mapping[tuple[str, str, int], CommitRow]]
    problems: Sequence[CommitRow]
    bounds: LogBounds
    is_cleaned: bool = False

    @property
    def right(self) -> Mapping[tuple[str, str, int], CommitRow]:
        """The rows that count."""
        return self.rows[self.reference]


@dataclass(frozen=True, slots=True)
class Judge:
    """Judges the commits of one cluster. `assignments` is None without metadata."""

    homes: Sequence[Home]
    bounds: Mapping[TopicPartition, LogBounds]
    assignments: Mapping[TopicPartition, Assignment] | None

    @property
    def home_count(self) -> int | None:
        """How many partitions the offsets topic has; None if the metadata do not say it, or lack
        one that has a log."""
        names = [name for name in self.assignments or () if name.topic == OFFSETS_TOPIC]
        is_known = all(home.number < len(names) for home in self.homes)
        return len(names) if names and is_known else None

    def findings(self) -> Iterator[Finding]:
        """Yield all that is wrong with the stored commits."""
        for home in self.homes:
            yield from _disagreeing(home)
            yield from (_problem(home, row) for row in home.problems)
            for key, row in home.right.items():
                if key[1]:
                    yield from self._commit(home, row)
                elif row["offset"] is not None:
                    yield from self._misplaced(home, row)

    def coordinator(self, home: int | None) -> tuple[int | None, str]:
        """Return the broker that coordinates the groups of a partition, None if the metadata do not
        say it, and the same in words."""
        assignment = None
        if home is not None:
            assignment = (self.assignments or {}).get(TopicPartition(OFFSETS_TOPIC, home))
        if assignment is None or assignment.leader < 0:
            return None, ""
        epoch = assignment.leader_epoch
        words = f"; its coordinator is broker {assignment.leader} (leader epoch {epoch})"
        return assignment.leader, words

    def _commit(self, home: Home, row: CommitRow) -> Iterator[Finding]:
        name = TopicPartition(row["topic"], row["partition"])
        offset, bounds = row["offset"], self.bounds.get(name)
        if offset is None:
            if row["dropped"] is not None:
                yield self._dropped(home, row, bounds)
            return
        if offset < 0:
            return  # it stands for none: kafkajs commits -1 and -2
        yield from self._misplaced(home, row)
        yield from self._impossible_epoch(home, row)
        if unknown := self._unknown(name, bounds):
            severity, why = unknown
            yield _finding(OFFSET_CHECK, severity, row, offset, f"{_said(home, row)}; {why}")
            return
        if bounds is not None:
            yield from self._outside(home, row, bounds)

    def _misplaced(self, home: Home, row: CommitRow) -> Iterator[Finding]:
        """Yield a record in a partition where no coordinator looks for its group."""
        if self.home_count is None:
            return
        right = home_of(row["group"], self.home_count)
        if right != home.number:
            what = f"{row['topic']}-{row['partition']}" if row["topic"] else "a generation"
            yield Finding(
                RECORD_CHECK,
                Severity.ERROR,
                OFFSETS_TOPIC,
                home.number,
                home.reference,
                offset=row["at"],
                detail=f"group {row['group']} ({what}) is in the wrong partition; its coordinator"
                f" reads {OFFSETS_TOPIC}-{right} alone, and so nothing of this",
            )

    def _impossible_epoch(self, home: Home, row: CommitRow) -> Iterator[Finding]:
        name = TopicPartition(row["topic"], row["partition"])
        assignment = (self.assignments or {}).get(name)
        bounds = self.bounds.get(name)
        newest = max((epoch for epoch, *_ in bounds.epochs), default=NONE) if bounds else NONE
        if assignment is None or newest > assignment.leader_epoch:
            return  # metadata that are older than the logs
        if row["leader_epoch"] > assignment.leader_epoch:
            why = (
                f"of leader epoch {row['leader_epoch']}, which never was: the partition is in"
                f" {assignment.leader_epoch}"
            )
            detail = f"{_said(home, row)}; {why}"
            yield _finding(OFFSET_CHECK, Severity.ERROR, row, row["offset"], detail)

    def _unknown(
        self, name: TopicPartition, bounds: LogBounds | None
    ) -> tuple[Severity, str] | None:
        """Return why no log can have the offset; None if one can."""
        if bounds is not None:
            return None
        if self.assignments is None:
            return Severity.WARNING, "no log of this partition was given"
        if name in self.assignments:
            return None
        if any(known.topic == name.topic for known in self.assignments):
            return Severity.ERROR, "the topic does not have this partition"
        return Severity.WARNING, "the metadata do not know this topic: was it deleted?"

    def _outside(self, home: Home, row: CommitRow, bounds: LogBounds) -> Iterator[Finding]:
        offset, said = row["offset"], _said(home, row)
        cut = None
        if row["leader_epoch"] >= 0:
            cut = bounds.cut_below(offset, row["leader_epoch"])
        if cut is not None:
            epoch, start = cut
            why = (
                f"the records from offset {start:,} to {offset:,} that it had read are gone: the"
                f" log was cut there, and goes on in leader epoch {epoch}; the group read them in"
                f" epoch {row['leader_epoch']}; {_seek(row, f'--to-offset {start}')}"
            )
            yield _finding(OFFSET_CHECK, Severity.ERROR, row, start, f"{said}; {why}")
        if offset > bounds.log_end:
            why = f"the in-sync log that has most ends at {bounds.log_end}"
            why += f"; {_seek(row, '--to-latest')}"
            yield _finding(OFFSET_CHECK, Severity.ERROR, row, offset, f"{said}; {why}")
        elif cut is None and offset < bounds.log_start:
            why = f"the log begins at {bounds.log_start}"
            yield _finding(OFFSET_CHECK, Severity.WARNING, row, offset, f"{said}; {why}")
        else:
            yield from self._short(row, said, bounds)

    def _short(self, row: CommitRow, said: str, bounds: LogBounds) -> Iterator[Finding]:
        """Yield the in-sync logs that end before what the group has read, where others do not."""
        # Without metadata a log that ends early may be out of sync.
        severity = Severity.WARNING if self.assignments is None else Severity.ERROR
        for broker, end in sorted(bounds.ends.items()):
            if end < row["offset"] <= bounds.log_end:
                why = f"the log of broker {broker} ends at {end}"
                found = _finding(OFFSET_CHECK, severity, row, row["offset"], f"{said}; {why}")
                yield Finding(
                    found.check,
                    severity,
                    found.topic,
                    found.partition,
                    broker,
                    offset=end,
                    detail=found.detail,
                )

    def _dropped(self, home: Home, row: CommitRow, bounds: LogBounds | None) -> Finding:
        """Return the deletion of a commit under its reader: a topic that is deleted explains it."""
        offset = row["dropped"]
        is_there = bounds is not None and offset <= bounds.log_end
        detail = (
            f"the commit of group {row['group']}, {offset}, was deleted"
            f" ({OFFSETS_TOPIC}-{home.number}, offset {row['at']}) while the partition was read"
            f" {row['by']}; the group goes on by auto.offset.reset"
            f"; {_seek(row, f'--to-offset {offset}')}"
        )
        severity = Severity.ERROR if is_there else Severity.WARNING
        return _finding(OFFSET_CHECK, severity, row, offset, detail)


def _finding(check: str, severity: Severity, row: CommitRow, offset: int, detail: str) -> Finding:
    place = (row["topic"], row["partition"])
    return Finding(check, severity, *place, offset=offset, detail=detail)


def _said(home: Home, row: CommitRow) -> str:
    place = f"{OFFSETS_TOPIC}-{home.number}, offset {row['at']}"
    return f"group {row['group']} has committed {row['offset']} ({place})"


def seek_command(group: str, topic: str, partition: int, where: str) -> str:
    """Return what to do about a group that stands at a wrong offset."""
    place = shlex.quote(f"{topic}:{partition}")
    return f"to do: minibroker group seek {shlex.quote(group)} --topic {place} {where}"


def _seek(row: CommitRow, where: str) -> str:
    return seek_command(row["group"], row["topic"], row["partition"], where)


def _problem(home: Home, row: CommitRow) -> Finding:
    """Return a record that no coordinator reads, or that none writes."""
    is_grave, detail = row["is_grave"], row["problem"]
    if row["group"] is not None and "of group" not in detail:
        which = f" in {row['topic']}-{row['partition']}" if row["topic"] else ""
        detail = f"group {row['group']}{which}: {detail}"
    elif row["group"] is None:
        detail = f"no record of a group: {detail}; a coordinator skips it"
    if row["before"] is not None:
        epochs = {home.bounds.epoch_at(row[name]) for name in ("before", "at")}
        if len(epochs) > 1:
            is_grave = False
            detail += "; or the clock of the next coordinator was behind"
    return Finding(
        RECORD_CHECK,
        Severity.ERROR if is_grave else Severity.WARNING,
        OFFSETS_TOPIC,
        home.number,
        row["broker"],
        offset=row["at"],
        detail=detail,
    )


def _disagreeing(home: Home) -> Iterator[Finding]:
    """Yield where a replica of the offsets topic says something else than the reference; if it
    cannot be told which is right, both."""
    for broker in sorted(home.rows):
        theirs = home.rows[broker]
        for key in sorted(home.right.keys() | theirs.keys()):
            their, right = theirs.get(key), home.right.get(key)
            if _offset(their) == _offset(right):
                continue
            yield _differing(home, key, (broker, their), (home.reference, right))
            if not home.is_decided:
                yield _differing(home, key, (home.reference, right), (broker, their))


def _differing(
    home: Home,
    key: tuple[str, str, int],
    its: tuple[int, CommitRow | None],
    other: tuple[int, CommitRow | None],
) -> Finding:
    group, topic, partition = key
    (broker, row), (other_broker, other_row) = its, other
    at = next(each["at"] for each in (row, other_row) if each is not None)
    what = f" in {topic}-{partition}" if topic else ", its generation,"
    unknown = "" if home.is_decided else "; which is right cannot be told"
    return Finding(
        OFFSET_CHECK,
        Severity.ERROR,
        OFFSETS_TOPIC,
        home.number,
        broker,
        other_broker,
        at,
        detail=f"of group {group}{what} it says {_in_words(row)}, broker {other_broker} says"
        f" {_in_words(other_row)}{unknown}",
    )


def _offset(row: CommitRow | None) -> int | None:
    offset: int | None = None if row is None else row["offset"]
    return offset


def _in_words(row: CommitRow | None) -> str:
    if row is None or row["offset"] is None:
        return "nothing"
    return f"{row['offset']} (at offset {row['at']})"
