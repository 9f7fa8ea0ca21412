"""What is known of an adversarial run, and what is wrong with it."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.adversary.journal import Event

SHOWN_MAX = 12  # of the findings of one kind
# An interrupt that came within a weak reference's callback or a finalizer: Python prints it, and
# goes on.
IGNORED = re.compile(
    r"^Exception ignored (?:in|while).*\n(?:Traceback.*\n(?: .*\n)*)?KeyboardInterrupt.*$",
    re.MULTILINE,
)


class Seen(NamedTuple):
    """What an onlooker was told is committed: when it asked, and when it had the answer."""

    asked: float
    time: float
    offsets: Mapping[int, int]


@dataclass
class Process:
    """One process of a worker. `code` is its exit code; `killed` is when it was sent SIGKILL."""

    name: str
    events: Iterable[Event]
    code: int = 0
    killed: float | None = None
    errors: str = ""  # what it printed
    pauses: list[tuple[float, float]] = field(default_factory=list)


@dataclass
class Run:
    """All that is known. `log` has the values of each partition, by offset."""

    log: Mapping[int, Sequence[bytes]]
    producers: list[Process]
    consumers: list[Process]
    seen: list[Seen]


class Findings:
    """What is wrong, by kind: a count, and the first of each in words."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.texts: dict[str, list[str]] = defaultdict(list)

    def add(self, kind: str, text: str, count: int = 1) -> None:
        """One more, or several of one cause."""
        self.counts[kind] += count
        if len(self.texts[kind]) < SHOWN_MAX:
            self.texts[kind].append(text)

    def __iter__(self) -> Iterator[str]:
        for kind, count in self.counts.items():
            yield f"{kind}: {count:,}"
            yield from (f"    {text}" for text in self.texts[kind])


@dataclass
class Verdict:
    """The judgement: what is wrong, and what there was."""

    findings: Findings
    counts: Counter[str]
    excused: Counter[str]

    @property
    def is_sound(self) -> bool:
        """Whether nothing is wrong."""
        return not self.findings.counts


class Identities:
    """A number for each value: its incarnation's number, and its sequence."""

    def __init__(self) -> None:
        self.numbers: dict[bytes, int] = {}

    def of(self, value: bytes) -> int:
        """The number of a value."""
        producer, life, seq, _ = value.split(b":", 3)
        return self.number(producer + b":" + life, int(seq))

    def number(self, incarnation: bytes, seq: int) -> int:
        """The number of a sequence of an incarnation."""
        number = self.numbers.setdefault(incarnation, len(self.numbers))
        return number << 32 | seq


def judge_process(process: Process, verdict: Verdict) -> None:
    """Nobody prints a traceback or ends with a code that is not its own."""
    findings = verdict.findings
    errors = IGNORED.sub("", process.errors)
    if "Traceback" in errors or "Fatal Python error" in errors:
        findings.add("tracebacks", f"{process.name} printed: {errors[-3000:]}")
    if process.killed is None and process.code:
        findings.add("exit codes", f"{process.name} ended with {process.code}")


def count_event(process: Process, event: Event, verdict: Verdict) -> None:
    """What is the same in all journals."""
    counts, findings = verdict.counts, verdict.findings
    match event.kind:
        case "interrupt":
            counts["interrupts"] += 1
        case "begin":
            counts["lives"] += 1
        case "face":
            counts[f"lives with a client of the kind {event.text}"] += 1
        case "end":
            counts[f"lives ended by {event.words[1]}"] += 1
        case "error":
            findings.add("unexpected errors", f"{process.name} at {event.time:.3f}: {event.text}")
        case "hang":
            findings.add("hangs", f"{process.name} at {event.time:.3f}: {event.text}")
        case "leaked":
            findings.add("clients that were left and still run", f"{process.name}: {event.text}")
