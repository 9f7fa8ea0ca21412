"""The result of an audit: its figures, the verdict in one sentence, and `summary.json`.

The run fills a `Summary` with what it saw. Verdict, sentence and exit code are computed from it and
never stored beside it, so they cannot contradict the figures. `summary.json` contains them too, for
readers of the file alone; reading it back computes them again.

The rules of the verdict, in this order: an audit that could not finish has *failed* (3); findings
as severe as `fail_on` are *findings* (1); input that had to be judged and could not be makes it
*could not check* (2), never clean; everything else is *clean* (0), and states how many lesser
findings there are. The verdict claims no more than the checks that were run can know. If the ledger
counts show losses that no check that was run names, it is held back. Times are seconds unless a
name ends in `_ms`.
"""

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field, is_dataclass
from enum import StrEnum
from types import NoneType, UnionType
from typing import Any, Final, get_args, get_origin, get_type_hints

from minibroker.audit.catalogue import CHOSEN, GRAVITY, in_words
from minibroker.audit.model import Finding, Severity
from minibroker.protocol.constants import OFFSETS_TOPIC, TRANSACTIONS_TOPIC

VERSION: Final = 1
SEVERITIES: Final = tuple(Severity)  # the worst first
# These two checks name every acknowledged record that is not there as promised.
_NAME_LOSSES: Final = frozenset({"lost-write", "unseen"})


class Verdict(StrEnum):
    """The outcome of an audit."""

    CLEAN = "clean"
    FINDINGS = "findings"
    COULD_NOT_CHECK = "could not check"
    FAILED = "failed"

    @property
    def exit_code(self) -> int:
        """The exit code of the process."""
        return list(Verdict).index(self)


@dataclass(frozen=True, slots=True)
class BrokerSeen:
    """A broker's data directory; `state` is "stopped", "killed" or "live"."""

    broker: int
    path: str
    state: str
    logs: int


@dataclass(frozen=True, slots=True)
class Stage:
    """A part of the run, and how long it took."""

    name: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much was read, all replicas together; `files` and `bytes` are of segments."""

    logs: int = 0
    files: int = 0
    bytes: int = 0
    batches: int = 0
    records: int = 0


@dataclass(frozen=True, slots=True)
class Reading:
    """A table that was read from files of `bytes` bytes, by `tasks` tasks of Spark; 0: by the
    driver."""

    table: str
    bytes: int
    tasks: int = 0

    @property
    def reader(self) -> str:
        """Who read, in words."""
        return f"{plural(self.tasks, 'task')} of Spark" if self.tasks else "the driver"

    def __str__(self) -> str:
        return f"{self.table}, {in_bytes(self.bytes)} by {self.reader}"


@dataclass(frozen=True, slots=True)
class LedgerCounts:
    """The counts of acknowledged records: how many could be judged, how many of those are there as
    promised (`present`: on every in-sync replica), and how many are `nowhere`, on no replica. Every
    record that could not be judged is in an `Unjudged`; `below_start` are those of them that lie
    below a log start. `compacted` are neither judged nor unjudged: a newer record of their key, or
    its tombstone, has let compaction remove them. `aborted` are those of the acknowledged ones that
    are of aborted transactions: no reader of committed records gets them."""

    acknowledged: int
    judged: int
    present: int
    shown: int = 0  # to consumers
    nowhere: int = 0
    below_start: int = 0
    compacted: int = 0
    aborted: int = 0

    @property
    def unjudged(self) -> int:
        """How many acknowledged records could not be judged."""
        return self.acknowledged - self.judged - self.compacted


@dataclass(frozen=True, slots=True)
class Unjudged:
    """Something that was not judged, and why.

    `holds_back`: the verdict cannot be "clean", since acknowledged records were not examined or
    input cannot be read. Otherwise it is only reported, such as the tail of a live log.
    `records` is how many records it concerns, None if that is meaningless.
    """

    reason: str
    holds_back: bool
    topic: str | None = None
    partition: int | None = None
    broker: int | None = None
    records: int | None = None

    def __str__(self) -> str:
        """Return the reason, with the partition and broker that it concerns."""
        log = "" if self.topic is None else f"{self.topic}-{self.partition}"
        broker = "" if self.broker is None or self.broker < 0 else f"broker {self.broker}"
        where = " on ".join(filter(None, (log, broker)))
        return f"{where}: {self.reason}" if where else self.reason


@dataclass(frozen=True, slots=True)
class CheckRun:
    """A check that was requested; `not_run` is why it was not run. Several run at once."""

    name: str
    not_run: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class FindingCount:
    """The number of findings of one check and severity; `is_capped` if others were left out."""

    check: str
    severity: Severity
    count: int
    is_capped: bool = False


@dataclass(frozen=True, slots=True)
class EpochSpan:
    """The offsets from `start` up to, not including, `end` were written in one leader epoch."""

    epoch: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Lane:
    """One replica in the picture; `path` is the log's directory.

    `is_leader` and `in_isr` are None if no metadata were given; offsets are None if unknown.
    """

    broker: int
    path: str
    is_leader: bool | None = None
    in_isr: bool | None = None
    log_start: int | None = None
    log_end: int | None = None
    high_watermark: int | None = None
    epochs: tuple[EpochSpan, ...] = ()


@dataclass(frozen=True, slots=True)
class Committed:
    """The offset that a consumer group has committed."""

    group: str
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOffset:
    """What a consumer group has committed for a partition, by the records of the offsets topic.

    `committed` is None if the commit was deleted, `lag` if the log is not at hand. `highest` is the
    largest offset ever committed; `commits` and `deletions` count records. `went_back` counts
    commits below the one before, of which `back` describes the last; `by` says who can have made
    the newest commit. `home` is the partition of the offsets topic, and `coordinator` the broker
    that leads it, None without metadata.

    By the ledgers of the group's consumers, None without one: how many records it has `read`, how
    many of them more than once (`twice`), how many it has `skipped` below its commits, how many
    commits came too `early`, before their record was read, and how many were `refused`, by error in
    `refusals`. `open_ledgers` are how many of these ledgers have no end, as of a killed member.
    """

    group: str
    topic: str
    partition: int
    committed: int | None
    lag: int | None
    highest: int
    commits: int
    went_back: int
    back: str
    by: str
    deletions: int
    generation: int | None
    home: int
    coordinator: int | None
    read: int | None = None
    twice: int | None = None
    skipped: int | None = None
    early: int | None = None
    refused: int | None = None
    refusals: str = ""
    open_ledgers: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTransactionSeen:
    """A transaction that is open in a partition from `offset` on, for `open_ms` when the logs were
    judged. `transactional_id` and the coordinator's `state` are None if they are not known."""

    topic: str
    partition: int
    offset: int
    producer_id: int
    producer_epoch: int
    open_ms: int
    severity: Severity
    why: str
    transactional_id: str | None = None
    state: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionsSeen:
    """The transactions of the logs that others are compared with. A transaction counts once in each
    partition that has records of it: so many were `committed`, `aborted`, are open. `records` are
    those of the aborted ones. `oldest` has the first of the open ones."""

    committed: int = 0
    aborted: int = 0
    records: int = 0
    open: int = 0
    oldest: tuple[OpenTransactionSeen, ...] = ()


@dataclass(frozen=True, slots=True)
class PartitionPicture:
    """A partition's replicas, and the offsets between which they were judged."""

    topic: str
    partition: int
    judged_start: int | None
    judged_end: int | None
    lanes: tuple[Lane, ...]
    leader: int | None = None
    isr: tuple[int, ...] | None = None
    committed: tuple[Committed, ...] = ()

    @property
    def judged(self) -> int:
        """How many offsets were judged."""
        return max(0, (self.judged_end or 0) - (self.judged_start or 0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The whole result of an audit, without the findings themselves.

    `worst` is the finding that the sentence names; `notes` are sentences on how it was judged
    ("No metadata was given: ..."); `failure` is the error that ended the audit early.
    """

    started_at_ms: int
    master: str = "local[*]"
    fail_on: Severity = Severity.ERROR
    cluster_id: str | None = None
    brokers: tuple[BrokerSeen, ...] = ()
    stages: tuple[Stage, ...] = ()
    sizes: Sizes = field(default_factory=Sizes)
    readings: tuple[Reading, ...] = ()
    ledger: LedgerCounts | None = None
    checks: tuple[CheckRun, ...] = ()
    counts: tuple[FindingCount, ...] = ()
    worst: Finding | None = None
    unjudged: tuple[Unjudged, ...] = ()
    notes: tuple[str, ...] = ()
    partitions: tuple[PartitionPicture, ...] = ()
    groups: tuple[GroupOffset, ...] = ()
    group_count: int = 0  # of committed offsets, of which `groups` has the first
    transactions: TransactionsSeen | None = None  # None: the logs have none
    failure: str = ""

    @property
    def verdict(self) -> Verdict:
        """The verdict, by the rules in the module's docstring."""
        if self.failure:
            return Verdict.FAILED
        failing = SEVERITIES[: SEVERITIES.index(self.fail_on) + 1]
        if any(self.count(severity) for severity in failing):
            return Verdict.FINDINGS
        if self._reasons():
            return Verdict.COULD_NOT_CHECK
        return Verdict.CLEAN

    @property
    def exit_code(self) -> int:
        """0 clean, 1 findings, 2 could not check, 3 the audit itself failed."""
        return self.verdict.exit_code

    @property
    def sentence(self) -> str:
        """The verdict in one sentence for the user."""
        match self.verdict:
            case Verdict.FAILED:
                return f"The audit failed: {self.failure}."
            case Verdict.FINDINGS:
                found = self._found()
                named = in_words(self.worst) if self.worst else "see below"
                return f"{found[:1].upper()}{found[1:]}: {named}."
            case Verdict.COULD_NOT_CHECK:
                return f"Could not check: {self._held_back()}."
            case Verdict.CLEAN:
                return f"{self._clean_beside()}: {self._promise_kept()}."

    @property
    def seconds(self) -> float:
        """The duration of the run."""
        return sum(stage.seconds for stage in self.stages)

    def count(self, severity: Severity) -> int:
        """Return how many findings of a severity there are."""
        return sum(each.count for each in self.counts if each.severity is severity)

    def counted(self, severity: Severity) -> str:
        """Return how many findings of a severity there are, in words: `3 errors`; if some were left
        out, `at least 100 errors`."""
        counted = plural(self.count(severity), severity)
        return f"at least {counted}" if self.is_capped(severity) else counted

    def is_capped(self, severity: Severity) -> bool:
        """Whether findings of a severity were left out of the count."""
        return any(each.is_capped for each in self.counts if each.severity is severity)

    def _found(self) -> str:
        counts = [
            self.counted(severity)
            for severity in (Severity.ERROR, Severity.WARNING)
            if self.count(severity)
        ]
        return " and ".join(counts)

    def _reasons(self) -> list[str]:
        """Return what holds the verdict back."""
        held = [str(unjudged) for unjudged in self.unjudged if unjudged.holds_back]
        unnamed = self._unnamed()
        return [f"{unnamed}, and no check that was run names them all", *held] if unnamed else held

    def _unnamed(self) -> str:
        """Return the acknowledged records that are not as promised, in words; "" if findings name
        them all."""
        lost = self.ledger.judged - self.ledger.present if self.ledger else 0
        is_named = any(each.check in _NAME_LOSSES for each in self.counts)
        if not lost or (is_named and self._ran() >= _NAME_LOSSES):
            return ""
        return f"{plural(lost, 'acknowledged record')} absent or different"

    def _ran(self) -> set[str]:
        """Return the checks that were run."""
        return {check.name for check in self.checks if not check.not_run}

    def _held_back(self) -> str:
        reasons = self._reasons()
        records = 0
        if self.ledger:
            records = self.ledger.unjudged - self.ledger.below_start
        what = f"{plural(records, 'acknowledged record')} not judged; " if records else ""
        more = f" (and {plural(len(reasons) - 1, 'more reason')})" if len(reasons) > 1 else ""
        found = self._found() or ("" if self._unnamed() else "what could be judged is sound")
        return "; ".join(filter(None, (f"{what}{reasons[0]}{more}", found)))

    def _clean_beside(self) -> str:
        warnings = self.count(Severity.WARNING)
        return f"Clean, with {self.counted(Severity.WARNING)}" if warnings else "Clean"

    def _promise_kept(self) -> str:
        """Return what holds by the checks that were run; it names them unless all were run."""
        ran = self._ran()
        is_compared = "divergence" in ran
        kept = f"{plural(self.sizes.logs, 'log')}, {in_bytes(self.sizes.bytes)}"
        if self.ledger is not None and self.ledger.acknowledged:
            present = plural(self.ledger.present, "acknowledged record")
            verb = "is" if self.ledger.present == 1 else "are"
            is_once = "duplicate" in ran and all(each.check != "duplicate" for each in self.counts)
            once = " exactly once" if is_once else ""
            below = f", {self.ledger.below_start:,} more lie below the log start"
            below = below if self.ledger.below_start else ""
            newer = f", {self.ledger.compacted:,} more are compacted, for newer ones of their keys"
            below += newer if self.ledger.compacted else ""
            rest = f", {self.ledger.aborted:,} of them in aborted transactions"
            once += rest if self.ledger.aborted else ""
            kept = f"{present} {verb} on every in-sync replica{once}{below}; {kept}"
            kept += ", compared below their high watermarks" if is_compared else ""
        else:
            judged = plural(sum(partition.judged for partition in self.partitions), "record")
            same = ", the same on every in-sync replica" if is_compared else ""
            kept = f"{judged} below the high watermarks{same}; {kept}"
            if self.ledger is None:
                kept += "; no ledger of acknowledged records was given"
            elif self.ledger.shown:
                kept += f"; compared with {plural(self.ledger.shown, 'record')} that were read"
        if {check.name for check in self.checks} != set(CHOSEN):
            kept += f"; run was only {', '.join(sorted(ran)) or 'no check'}"
        return kept

    def to_json(self) -> str:
        """Return the text of `summary.json`."""
        said = {
            "version": VERSION,
            "verdict": self.verdict,
            "sentence": self.sentence,
            "exit_code": self.exit_code,
        }
        return json.dumps(said | asdict(self), indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "Summary":
        """Read what `to_json` wrote. Raises `ValueError` for anything else."""
        try:
            held = json.loads(text)
            if held.pop("version") != VERSION:
                raise ValueError("written by another version of minibroker")
            for name in ("verdict", "sentence", "exit_code"):
                del held[name]
            summary = _restored(cls, held)
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"not the summary of an audit: {error!r}") from None
        assert isinstance(summary, Summary)
        return summary


def count_findings(
    findings: Iterable[Finding], capped: Collection[str] = ()
) -> tuple[FindingCount, ...]:
    """Return the number of findings by check and severity, the worst first; `capped` are checks
    that found more than are kept."""
    counted: Counter[tuple[str, Severity]] = Counter()
    left_out = set[tuple[str, Severity]]()
    for finding in findings:
        counted[finding.check, finding.severity] += 1
        if finding.more or finding.check in capped:
            left_out.add((finding.check, finding.severity))
    ordered = sorted(counted.items(), key=lambda each: (SEVERITIES.index(each[0][1]), each[0][0]))
    return tuple(FindingCount(*kind, count, kind in left_out) for kind, count in ordered)


def in_order(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings with the worst first, then by log and offset, as all lists show them."""
    return sorted(findings, key=lambda each: (SEVERITIES.index(each.severity), *_place(each)))


def worst_of(findings: Iterable[Finding]) -> Finding | None:
    """Return the finding to name first: of the worst severity and gravest check, by log, offset."""
    return min(
        findings,
        key=lambda each: (SEVERITIES.index(each.severity), _gravity(each), *_place(each)),
        default=None,
    )


def is_internal(topic: str | None) -> bool:
    """Whether a topic is the brokers' own; lists have it last."""
    return topic in (OFFSETS_TOPIC, TRANSACTIONS_TOPIC)


def _place(finding: Finding) -> tuple[bool, str, int, int, int, int]:
    partition, offset, broker = (
        -1 if each is None else each for each in (finding.partition, finding.offset, finding.broker)
    )
    topic = finding.topic or ""
    return is_internal(topic), topic, partition, offset, broker, _gravity(finding)


def _gravity(finding: Finding) -> int:
    return GRAVITY.get(finding.check, len(GRAVITY))


def plural(count: int, noun: str, nouns: str = "") -> str:
    """Return a count with its noun: `1 record`, `2,000 records`; `nouns` is an irregular plural."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {nouns or noun + 's'}"


def visible(text: str) -> str:
    """Return the text with unprintable characters escaped, such as `\\x1b`."""
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape", "backslashreplace").decode()
        for each in text
    )


def in_bytes(size: int) -> str:
    """Return a size in words: `96.1 MB`, in units of 1,000."""
    value = float(size)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{size} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"


def _restored(kind: Any, value: Any) -> Any:
    """Return a value of a type that is defined in this file, from its decoded JSON."""
    if get_origin(kind) is UnionType:
        wanted = next(each for each in get_args(kind) if each is not NoneType)
        return None if value is None else _restored(wanted, value)
    if get_origin(kind) is tuple:
        return tuple(_restored(get_args(kind)[0], each) for each in value)
    if isinstance(kind, type) and is_dataclass(kind):
        if not isinstance(value, Mapping):
            raise TypeError(f"{kind.__name__} is {value!r}")
        hints = get_type_hints(kind)
        return kind(**{name: _restored(hints[name], each) for name, each in value.items()})
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return kind(value)
    if not isinstance(value, (int, float) if kind is float else kind):
        raise TypeError(f"{value!r} is no {kind.__name__}")
    return value
