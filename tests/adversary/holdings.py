"""What the members of the group did in an adversarial run, held against the log and the commits."""

from array import array
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tests.adversary.journal import Event
from tests.adversary.verdict import Identities, Process, Run, Verdict, count_event

CLOSE_SLACK_S = 5.0  # beyond its timeout, on a busy machine
UNTIL_NEVER = float("inf")
# What a client warns of when something could not be committed.
WARNINGS = {
    "auto commit": "its automatic commit failed",
    "closed after": "its close ran out of time",
    "callback failed": "its callback failed",
}


@dataclass
class Holding:
    """A partition in the hands of one member, from the moment that it was assigned."""

    who: str
    partition: int
    since: float
    first: int = -1
    end: int = 0  # behind the last record handled
    acked: int = 0  # behind the last record whose commit was acknowledged
    is_over: bool = False
    excuses: set[str] = field(default_factory=set)
    last_interrupt: str = "none"

    def __str__(self) -> str:
        why = ", ".join(sorted(self.excuses)) or "no excuse"
        return (
            f"{self.who} p{self.partition} [{self.first}, {self.end}), known to be committed up to"
            f" {self.acked}, since {self.since:.3f}"
            f" ({why}; last interrupt: {self.last_interrupt})"
        )


class Members:
    """What the members of the group did, in one pass over each journal."""

    def __init__(
        self, run: Run, log: Mapping[int, array], ids: Identities, verdict: Verdict
    ) -> None:
        self._run = run
        self._log = log
        self._ids = ids
        self._findings = verdict.findings
        self._counts = verdict.counts
        self._excused = verdict.excused
        self.verdict = verdict
        self._all: list[Holding] = []
        # When each record was handled first, by partition and offset.
        self._handled = {
            partition: array("d", [UNTIL_NEVER]) * len(values) for partition, values in log.items()
        }
        self._looked: dict[int, int] = {}  # what was committed at the last look
        # By partition: what was committed, and when that was known.
        self._floors: dict[int, list[tuple[float, int]]] = defaultdict(list)

    def judge(self) -> None:
        """Say what is wrong."""
        for process in self._run.consumers:
            _Journal(self, process).read()
        self._judge_commits()
        self._judge_losses()
        self._judge_repetitions()

    def hold(self, who: str, partition: int, since: float) -> Holding:
        """A member begins with a partition."""
        self._all.append(Holding(who, partition, since))
        return self._all[-1]

    def handle(self, holding: Holding, time: float, offset: int, value: str) -> None:
        """A member has handled a record."""
        partition, values = holding.partition, self._log[holding.partition]
        self._counts["records handled"] += 1
        if offset >= len(values) or values[offset] != self._ids.of(value.encode()):
            self._findings.add("other records than in the log", f"{holding} {offset} {value[:60]}")
            return
        if holding.first < 0:
            holding.first = holding.acked = offset
        elif offset > holding.end:
            text = f"{holding} went on at {offset}, {time:.3f}"
            self._findings.add("records skipped by a member", text, offset - holding.end)
        elif offset < holding.end:
            text = f"{holding} was given {offset} again, {time:.3f}"
            self._findings.add("unexplained repetitions", text)
        holding.end = max(holding.end, offset + 1)
        self._handled[partition][offset] = min(time, self._handled[partition][offset])

    def acknowledge(self, time: float, partition: int, offset: int) -> None:
        """A commit of a member was acknowledged."""
        self._floors[partition].append((time, offset))

    def _judge_commits(self) -> None:
        """Committed offsets never go back, and nothing is committed that was not handled."""
        highest: dict[int, int] = {}
        acked = sorted(
            (time, partition, offset)
            for partition, floors in self._floors.items()
            for time, offset in floors
        )
        acked.reverse()
        self._counts["commits acknowledged"] = len(acked)
        self._counts["looks at what is committed"] = len(self._run.seen)
        for seen in self._run.seen:
            while acked and acked[-1][0] < seen.asked:
                _, partition, offset = acked.pop()
                highest[partition] = max(offset, highest.get(partition, 0))
            for partition, offset in seen.offsets.items():
                before = highest.get(partition, 0)
                if offset < before:
                    text = f"p{partition} was {before}, and {offset} at {seen.time:.3f}"
                    self._findings.add("commits that went back", text)
                last = self._looked.get(partition, 0)
                if offset > last:
                    self._judge_commit(seen.time, partition, last, offset)
                self._looked[partition] = highest[partition] = offset
                self._floors[partition].append((seen.time, offset))

    def _judge_commit(self, time: float, partition: int, before: int, offset: int) -> None:
        handled = self._handled[partition][before:offset]
        missing = [before + index for index, at in enumerate(handled) if at > time]
        if missing:
            text = f"p{partition} {_ranges(missing)} by {time:.3f}, in the commit of {offset}"
            self._findings.add("records committed and not handled", text, len(missing))

    def _judge_losses(self) -> None:
        for partition, handled in self._handled.items():
            lost = [offset for offset, at in enumerate(handled) if at == UNTIL_NEVER]
            if lost:
                text = f"p{partition} {_ranges(lost)} of {len(handled)}"
                self._findings.add("losses: records never handled", text, len(lost))

    def _judge_repetitions(self) -> None:
        for partition in self._log:
            floors = sorted(self._floors[partition])
            highest = 0
            for index, (time, offset) in enumerate(floors):
                highest = max(highest, offset)
                floors[index] = (time, highest)
            times = [time for time, _ in floors]
            ends: list[Holding] = []
            for holding in self._all:
                if holding.partition == partition and holding.first >= 0:
                    self._judge_start(holding, floors, times)
                    ends.append(holding)
            self._judge_excuses(ends)

    def _judge_start(
        self, holding: Holding, floors: list[tuple[float, int]], times: list[float]
    ) -> None:
        index = bisect_left(times, holding.since)
        floor = floors[index - 1][1] if index else 0
        if holding.first < floor:
            text = f"{holding} began at {holding.first}, committed was {floor}"
            count = min(floor, holding.end) - holding.first
            self._findings.add("repetitions of committed records", text, count)

    def _judge_excuses(self, holdings: list[Holding]) -> None:
        """Of one partition. Who has handled a record before needs an excuse for what it left."""
        holdings.sort(key=lambda each: each.since)
        # The last holding to which each record belongs so far.
        latest: dict[int, Holding] = {}
        unexplained: dict[tuple[int, int], list[int]] = defaultdict(list)
        for holding in holdings:
            for offset in range(holding.first, holding.end):
                before = latest.get(offset)
                latest[offset] = holding
                if before is None:
                    continue
                self._counts["repetitions"] += 1
                if before.excuses and offset >= before.acked:
                    self._excused[min(before.excuses)] += 1
                else:
                    unexplained[id(before), id(holding)].append(offset)
        by_id = {id(holding): holding for holding in holdings}
        for (before_id, holding_id), offsets in unexplained.items():
            text = f"{_ranges(offsets)}: first {by_id[before_id]}; again {by_id[holding_id]}"
            self._findings.add("unexplained repetitions", text, len(offsets))


class _Journal:
    """One member's journal."""

    def __init__(self, members: Members, process: Process) -> None:
        self._members = members
        self._process = process
        self._verdict = members.verdict
        self._who = process.name
        self._commit_by = ""
        self._held: dict[int, Holding] = {}
        # Of this life, those in which something may not be committed yet.
        self._open: list[Holding] = []
        self._asked: dict[str, dict[int, int]] = {}
        self._closing: dict[str, tuple[float, float]] = {}
        self._has_foreign_close = self._has_revoked = False
        self._has_ended = True
        self._last_interrupt = "none"

    def read(self) -> None:
        """All of it."""
        for event in self._process.events:
            count_event(self._process, event, self._verdict)
            self._look(event)
        if not self._has_ended:
            if self._process.killed is None:
                text = f"{self._who} ended without the end of its life"
                self._verdict.findings.add("deaths of processes", text)
            self._excuse(self._open, "it was killed")

    def _look(self, event: Event) -> None:
        words = event.words
        match event.kind:
            case "record":
                self._handle(event)
            case "begin":
                self._begin(words)
            case "assigned":
                self._settle()
                for partition in map(int, words):
                    self._assign(event.time, partition)
            case "revoked":
                for partition in map(int, words):
                    if partition in self._held:
                        self._held[partition].is_over = True
                self._has_revoked = True
            case "lost":
                lost = [self._held[each] for each in map(int, words) if each in self._held]
                self._excuse(lost, "it lost its generation")
                for holding in lost:
                    holding.is_over = True
            case "commit":
                self._ask_commit(words)
            case "committed":
                self._acknowledge(event.time, words[0])
            case "unsubscribe" if self._commit_by == "auto":
                # Committed is what the application has come back from, by a poll.
                self._excuse(self._open, "it unsubscribed before it polled again")
            case "refused":
                self._excuse(self._open, "its commit was refused")
            case "unknown":
                why = "was interrupted" if words[1:] == ("interrupted",) else "timed out"
                self._excuse(self._open, f"its commit {why}")
            case "warning":
                for part, why in WARNINGS.items():
                    if part in event.text:
                        self._excuse(self._open, why)
            case "interrupt":
                self._last_interrupt = f"{words[0]} at {event.time:.3f}"
            case "closing":
                self._close(event)
            case "closed":
                self._judge_close(event)
            case "end":
                self._has_ended = True
                if words[1] not in ("block", "close"):
                    self._excuse(self._open, f"its block was left by: {words[1]}")

    def _begin(self, words: Sequence[str]) -> None:
        self._who = f"{self._process.name}:{words[0]} ({words[1]}, {words[2]}, {words[3]})"
        self._commit_by = words[1]
        self._held, self._open, self._asked, self._closing = {}, [], {}, {}
        self._has_foreign_close = self._has_ended = self._has_revoked = False

    def _settle(self) -> None:
        """The poll in which partitions were revoked has gone on: they were committed before."""
        if not self._has_foreign_close:
            self._open = [holding for holding in self._open if not holding.is_over]

    def _assign(self, time: float, partition: int) -> Holding:
        holding = self._members.hold(self._who, partition, time)
        self._held[partition] = holding
        self._open.append(holding)
        return holding

    def _handle(self, event: Event) -> None:
        if self._has_revoked:
            self._settle()
            self._has_revoked = False
        partition, offset = int(event.words[0]), int(event.words[1])
        holding = self._held.get(partition)
        if holding is None:
            text = f"{self._who} p{partition} {offset} at {event.time:.3f}"
            self._verdict.findings.add("partitions not announced by on_assigned", text)
            holding = self._assign(event.time, partition)
        elif holding.is_over and not self._has_foreign_close:
            text = f"{holding} {offset} at {event.time:.3f}"
            self._verdict.findings.add("records of partitions that were revoked", text)
            holding.is_over = False
        holding.last_interrupt = self._last_interrupt
        self._members.handle(holding, event.time, offset, event.words[2])

    def _ask_commit(self, words: Sequence[str]) -> None:
        pairs = (word.split("=") for word in words[1:])
        self._asked[words[0]] = {int(partition): int(end) for partition, end in pairs}

    def _acknowledge(self, time: float, number: str) -> None:
        asked = self._asked.pop(number)
        if self._has_foreign_close and self._commit_by == "positions":
            return  # how much counts as done then, only the client knows
        for partition, end in asked.items():
            holding = self._held.get(partition)
            if holding is None or holding.first < 0:
                continue
            holding.acked = max(holding.acked, end)
            self._members.acknowledge(time, partition, end)

    def _close(self, event: Event) -> None:
        self._closing[event.words[0]] = event.time, float(event.words[1])
        if event.words[0] == "other":
            self._has_foreign_close = True
            self._excuse(self._open, "it was closed by another thread")

    def _judge_close(self, event: Event) -> None:
        begin, timeout_s = self._closing[event.words[0]]
        took_s = event.time - begin
        paused_s = sum(
            max(0.0, min(end, event.time) - max(since, begin))
            for since, end in self._process.pauses
        )
        if took_s - paused_s > timeout_s + CLOSE_SLACK_S:
            text = f"{self._who} took {took_s:.1f} s for close({timeout_s}) by {event.words[0]}"
            self._verdict.findings.add("closes that took too long", text)

    def _excuse(self, holdings: list[Holding], why: str) -> None:
        for holding in holdings:
            holding.excuses.add(why)


def _ranges(offsets: list[int]) -> str:
    """Offsets in words, the first few."""
    found: list[list[int]] = []
    for offset in offsets:
        if found and found[-1][1] == offset - 1:
            found[-1][1] = offset
        else:
            found.append([offset, offset])
    shown = ", ".join(f"{first}-{last}" for first, last in found[:8])
    return shown + (f" and {len(found) - 8} more" if len(found) > 8 else "")
