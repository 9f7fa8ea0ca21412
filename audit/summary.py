"""What an audit came to: its figures, the verdict in one sentence, and `summary.json`.

The run fills a `Summary` with what it saw; verdict, sentence and exit code are asked of it and
never stored beside it, so they cannot contradict the figures. `summary.json` holds them too, for
whoever reads only the file; reading it back works them out again.

The rules of the verdict, in this order: an audit that could not be finished has *failed* (3);
findings as severe as `fail_on` are *findings* (1); what had to be judged and could not be makes it
*could not check* (2), never clean; all else is *clean* (0), and says how many lesser findings
there are. It claims no more than the checks that were run can know; records that the ledgers count
and that no check named hold it back. Times are seconds unless a name ends in `_ms`.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, is_dataclass
from enum import StrEnum
from types import NoneType, UnionType
from typing import Any, Final, get_args, get_origin, get_type_hints

from minibroker.audit.catalogue import CHOSEN, GRAVITY, in_words
from minibroker.audit.model import Finding, Severity

VERSION: Final = 1
SEVERITIES: Final = tuple(Severity)  # the worst first
# Between them they name every acknowledged record that is not there as promised.
_NAME_LOSSES: Final = frozenset({"lost-write", "unseen"})


class Verdict(StrEnum):
    """How an audit ends."""

    CLEAN = "clean"
    FINDINGS = "findings"
    COULD_NOT_CHECK = "could not check"
    FAILED = "failed"

    @property
    def exit_code(self) -> int:
        """What the process ends with."""
        return list(Verdict).index(self)


@dataclass(frozen=True, slots=True)
class BrokerSeen:
    """A data directory; `state` is "stopped", "killed" or "live"."""

    broker: int
    path: str
    state: str
    logs: int


@dataclass(frozen=True, slots=True)
class Stage:
    """How long a part of the run took."""

    name: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Sizes:
    """What was read, all replicas together; `files` and `bytes` are of segments."""

    logs: int = 0
    files: int = 0
    bytes: int = 0
    batches: int = 0
    records: int = 0


@dataclass(frozen=True, slots=True)
class LedgerCounts:
    """Of the records that clients were told are stored: how many could be judged, and how many of
    those are there as promised. Every one that could not be judged is in an `Unjudged`."""

    acknowledged: int
    judged: int
    present: int
    shown: int = 0  # to consumers


@dataclass(frozen=True, slots=True)
class Unjudged:
    """What was not judged, and why.

    `holds_back` says that the verdict cannot be "clean": acknowledged records that nobody looked
    at, or input that cannot be read. Else it is said and no more, as the tail of a live log is.
    `records` is how many it concerns, None where that means nothing.
    """

    reason: str
    holds_back: bool
    topic: str | None = None
    partition: int | None = None
    broker: int | None = None
    records: int | None = None

    def __str__(self) -> str:
        """The reason, and of what."""
        log = "" if self.topic is None else f"{self.topic}-{self.partition}"
        broker = "" if self.broker is None or self.broker < 0 else f"broker {self.broker}"
        where = " on ".join(filter(None, (log, broker)))
        return f"{where}: {self.reason}" if where else self.reason


@dataclass(frozen=True, slots=True)
class CheckRun:
    """A check that was asked for; `not_run` is why it was not run. Several run at once."""

    name: str
    not_run: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class FindingCount:
    """How many findings of one kind there are."""

    check: str
    severity: Severity
    count: int


@dataclass(frozen=True, slots=True)
class EpochSpan:
    """The offsets from `start` up to `end`, which is excluded, were written in one leader epoch."""

    epoch: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Lane:
    """One replica in the picture; `path` is the log's directory.

    `is_leader` and `in_isr` are None where no metadata was given; offsets are None where nothing
    says them.
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
    """Up to where a consumer group has read."""

    group: str
    offset: int


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
    """All that an audit has to say but the findings themselves.

    `worst` is the finding that the sentence names; `notes` are sentences on how it was judged
    ("No metadata was given: ..."); `failure` is what ended the audit before it was done.
    """

    started_at_ms: int
    master: str = "local[*]"
    fail_on: Severity = Severity.ERROR
    cluster_id: str | None = None
    brokers: tuple[BrokerSeen, ...] = ()
    stages: tuple[Stage, ...] = ()
    sizes: Sizes = field(default_factory=Sizes)
    ledger: LedgerCounts | None = None
    checks: tuple[CheckRun, ...] = ()
    counts: tuple[FindingCount, ...] = ()
    worst: Finding | None = None
    unjudged: tuple[Unjudged, ...] = ()
    notes: tuple[str, ...] = ()
    partitions: tuple[PartitionPicture, ...] = ()
    failure: str = ""

    @property
    def verdict(self) -> Verdict:
        """By the rules in the module's header."""
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
        """The verdict in one sentence for a person."""
        match self.verdict:
            case Verdict.FAILED:
                return f"The audit failed: {self.failure}."
            case Verdict.FINDINGS:
                return f"{self._found()}: {in_words(self.worst) if self.worst else 'see below'}."
            case Verdict.COULD_NOT_CHECK:
                return f"Could not check: {self._held_back()}."
            case Verdict.CLEAN:
                return f"{self._clean_beside()}: {self._promise_kept()}."

    @property
    def seconds(self) -> float:
        """How long the run took."""
        return sum(stage.seconds for stage in self.stages)

    def count(self, severity: Severity) -> int:
        """How many findings of a severity there are."""
        return sum(each.count for each in self.counts if each.severity is severity)

    def _found(self) -> str:
        told = [
            plural(self.count(severity), severity)
            for severity in (Severity.ERROR, Severity.WARNING)
            if self.count(severity)
        ]
        return " and ".join(told)

    def _reasons(self) -> list[str]:
        """What holds the verdict back."""
        held = [str(unjudged) for unjudged in self.unjudged if unjudged.holds_back]
        unnamed = self._unnamed()
        return [f"{unnamed}, and no check that was run names them all", *held] if unnamed else held

    def _unnamed(self) -> str:
        """Acknowledged records that are not there as promised, unless findings name them."""
        lost = self.ledger.judged - self.ledger.present if self.ledger else 0
        is_named = any(each.check in _NAME_LOSSES for each in self.counts)
        if not lost or (is_named and self._ran() >= _NAME_LOSSES):
            return ""
        return f"{plural(lost, 'acknowledged record')} absent or different"

    def _ran(self) -> set[str]:
        """The checks that were run."""
        return {check.name for check in self.checks if not check.not_run}

    def _held_back(self) -> str:
        reasons = self._reasons()
        records = self.ledger.acknowledged - self.ledger.judged if self.ledger else 0
        what = f"{plural(records, 'acknowledged record')} not judged; " if records else ""
        more = f" (and {plural(len(reasons) - 1, 'more reason')})" if len(reasons) > 1 else ""
        found = self._found() or ("" if self._unnamed() else "what could be judged is sound")
        return "; ".join(filter(None, (f"{what}{reasons[0]}{more}", found)))

    def _clean_beside(self) -> str:
        warnings = self.count(Severity.WARNING)
        return f"Clean, with {plural(warnings, 'warning')}" if warnings else "Clean"

    def _promise_kept(self) -> str:
        """What the checks that were run know to hold; which these are, unless it is all."""
        ran = self._ran()
        is_compared = "divergence" in ran
        kept = f"{plural(self.sizes.logs, 'log')}, {in_bytes(self.sizes.bytes)}"
        if self.ledger is not None:
            present = plural(self.ledger.present, "acknowledged record")
            verb = "is" if self.ledger.present == 1 else "are"
            is_once = "duplicate" in ran and all(each.check != "duplicate" for each in self.counts)
            once = " exactly once" if is_once else ""
            kept = f"{present} {verb} on every in-sync replica{once}; {kept}"
            kept += ", compared below their high watermarks" if is_compared else ""
        else:
            judged = plural(sum(partition.judged for partition in self.partitions), "record")
            same = ", the same on every in-sync replica" if is_compared else ""
            kept = f"{judged} below the high watermarks{same}; {kept}"
            kept += "; no ledger of acknowledged records was given"
        if {check.name for check in self.checks} != set(CHOSEN):
            kept += f"; run was only {', '.join(sorted(ran)) or 'no check'}"
        return kept

    def to_json(self) -> str:
        """The text of `summary.json`."""
        said = {
            "version": VERSION,
            "verdict": self.verdict,
            "sentence": self.sentence,
            "exit_code": self.exit_code,
        }
        return json.dumps(said | asdict(self), indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "Summary":
        """Raises `ValueError` for what `to_json` has not written."""
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


def count_findings(findings: Iterable[Finding]) -> tuple[FindingCount, ...]:
    """The worst kinds first."""
    counted = Counter((finding.check, finding.severity) for finding in findings)
    ordered = sorted(counted.items(), key=lambda each: (SEVERITIES.index(each[0][1]), each[0][0]))
    return tuple(FindingCount(check, severity, count) for (check, severity), count in ordered)


def in_order(findings: Iterable[Finding]) -> list[Finding]:
    """The worst first, then by log and offset: how findings are listed everywhere."""
    return sorted(findings, key=lambda each: (SEVERITIES.index(each.severity), *_place(each)))


def worst_of(findings: Iterable[Finding]) -> Finding | None:
    """The one to name first: of the worst severity and the gravest check, by log and offset."""
    return min(
        findings,
        key=lambda each: (SEVERITIES.index(each.severity), _gravity(each), *_place(each)),
        default=None,
    )


def _place(finding: Finding) -> tuple[str, int, int, int, int]:
    partition, offset, broker = (
        -1 if each is None else each for each in (finding.partition, finding.offset, finding.broker)
    )
    return finding.topic or "", partition, offset, broker, _gravity(finding)


def _gravity(finding: Finding) -> int:
    return GRAVITY.get(finding.check, len(GRAVITY))


def plural(count: int, noun: str, nouns: str = "") -> str:
    """`1 record`, `2,000 records`; `nouns` where an s is not enough."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {nouns or noun + 's'}"


def visible(text: str) -> str:
    """The text with whatever does not show as itself, such as a control character, as `\\x1b`."""
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape", "backslashreplace").decode()
        for each in text
    )


def in_bytes(size: int) -> str:
    """`96.1 MB`, in units of 1,000."""
    value = float(size)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{size} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"


def _restored(kind: Any, value: Any) -> Any:
    """A value of a type that is written in this file, out of what JSON makes of it."""
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
