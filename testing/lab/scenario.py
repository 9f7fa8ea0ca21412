"""A scenario as text, and as the steps that the lab plays.

    # The title, in one line
    #
    # The description: what happens, and why.

    brokers 1 2                    the head: the settings of every run
    rules epoch hw
    with min.insync.replicas=1
    unclean-return seen

    run first                      a run begins with its own settings, if any
    # A comment among the steps is printed in the transcript.
    produce 1 a
    fetch 2

    run second
    repeat first                   the steps of an earlier run, and maybe more
    with min.insync.replicas=2

    === rule epoch                 the expected output, for each rule that a run names
    ...

`USAGES` has the syntax of all steps: a word in capitals stands for a value, the others for
themselves, and together they name the method of the lab that plays the step. So a new step needs
one line here and one method there, and every error can quote the syntax.

A wrong file raises `ScenarioError` with the number of the line. The transcripts are not parsed
here: they are text to compare with (`tests/scripts`).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from types import MappingProxyType
from typing import Final, NamedTuple

from minibroker.broker.config import ConfigError, load
from minibroker.testing.lab.strategies import RULES, SETTINGS

USAGES: Final = (
    "produce BROKER VALUE",
    "produce BROKER VALUE by PRODUCER epoch EPOCH sequence SEQUENCE",
    "produce BROKER VALUE acks ACKS",
    "produce BROKER VALUE in PRODUCER",
    "burst BROKER COUNT",
    "claim BROKER",
    "init BROKER PRODUCER",
    "read BROKER",
    "read BROKER from OFFSET",
    "read BROKER waiting",
    "read BROKER committed",
    "session PRODUCER of ID",
    "commit PRODUCER",
    "abort PRODUCER",
    "mark BROKER",
    "ask BROKER",
    "answer BROKER",
    "fetch BROKER",
    "copy BROKER",
    "check BROKER",
    "flush BROKER",
    "checkpoint BROKER",
    "retain BROKER",
    "hold BROKER",
    "release BROKER",
    "crash BROKER process",
    "crash BROKER power tail kept",
    "crash BROKER power tail lost",
    "crash BROKER disk lost",
    "expire BROKER",
    "start BROKER",
    "replace-controller",
    "order BROKER leader BROKER epoch EPOCH controller EPOCH",
    "stop-replica BROKER epoch EPOCH controller EPOCH",
    "stop-replica BROKER epoch EPOCH controller EPOCH delete",
    "wait SECONDS",
    "wait SECONDS fetching BROKERS",
)
WORDS: Final = ("VALUE", "PRODUCER", "ID")
NUMBERS_FROM_0: Final = ("EPOCH", "OFFSET", "SEQUENCE")
UNCLEAN_RETURN: Final = {"seen": True, "unseen": False}
TRANSCRIPT: Final = "=== rule "
BROKERS_MAX: Final = 3  # more columns do not fit a terminal


class ScenarioError(Exception):
    """The text of a scenario is wrong, at a line (from 1) of it."""

    def __init__(self, line: int, message: str, name: str = "") -> None:
        super().__init__(f"{name}, line {line}: {message}" if name else f"line {line}: {message}")
        self.line = line
        self._message = message

    def of(self, name: str) -> "ScenarioError":
        """Return the same error with the name of the scenario."""
        return ScenarioError(self.line, self._message, name)


class Step(NamedTuple):
    """One line of a run. `action` names the method that plays it; "comment" is printed as it is."""

    line: int
    action: str
    arguments: tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Run:
    """One run. `brokers` are the replicas in order of preference: the first leads.

    `settings` are all that the text sets; brokers do not know those of an old rule (`SETTINGS`).
    With `is_unclean_return_seen` the controller is told when a log's tail may be lost (K2); else it
    takes every replica that comes back for sound.
    """

    name: str
    brokers: tuple[int, ...]
    rules: tuple[str, ...]
    settings: Mapping[str, str]
    is_unclean_return_seen: bool
    steps: tuple[Step, ...]

    @property
    def broker_settings(self) -> dict[str, str]:
        """The settings of every broker."""
        return of_brokers(self.settings)


@dataclass(frozen=True, slots=True)
class Scenario:
    """The content of a file. `transcripts` has, by rule, the expected text."""

    title: str
    description: str
    runs: tuple[Run, ...]
    transcripts: Mapping[str, str]

    @property
    def rules(self) -> tuple[str, ...]:
        """Every rule that a run names, the first one first."""
        return tuple(dict.fromkeys(rule for run in self.runs for rule in run.rules))


def of_brokers(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the settings that a broker knows."""
    return {name: value for name, value in settings.items() if name not in SETTINGS}


def split(text: str) -> tuple[str, dict[str, str]]:
    """Split a file's text into the scenario and, by rule, the transcripts after it."""
    source, *parts = f"\n{text}".split(f"\n{TRANSCRIPT}")
    transcripts = {}
    for part in parts:
        rule, _, transcript = part.partition("\n")
        transcripts[rule.strip()] = transcript.strip("\n") + "\n"
    return source[1:].rstrip("\n") + "\n", transcripts


def join(source: str, transcripts: Mapping[str, str]) -> str:
    """The opposite of `split`."""
    parts = (f"\n{TRANSCRIPT}{rule}\n{text}" for rule, text in transcripts.items())
    return source + "".join(parts)


def parse(text: str) -> Scenario:
    """Read a scenario. Raises `ScenarioError`."""
    source, transcripts = split(text)
    lines = source.splitlines()
    head = _head_comment(lines)
    if not head:
        raise ScenarioError(1, "begin with the title: # TITLE")
    draft = _Draft()
    for number, line in enumerate(lines[len(head) :], len(head) + 1):
        if line.strip():
            draft.read_line(number, line.strip())
    runs = draft.finish(len(lines))
    head_text = "\n".join(line.removeprefix("#").removeprefix(" ") for line in head)
    title, _, rest = head_text.partition("\n")
    return Scenario(title.strip(), rest.strip("\n"), runs, MappingProxyType(transcripts))


def _head_comment(lines: list[str]) -> list[str]:
    count = next((n for n, line in enumerate(lines) if not line.startswith("#")), len(lines))
    return lines[:count]


@dataclass(slots=True)
class _RunDraft:
    """A run that is being read; the head of the file is one too, without steps."""

    name: str = ""
    brokers: tuple[int, ...] = ()
    rules: tuple[str, ...] = ()
    settings: dict[str, str] = field(default_factory=dict)
    is_unclean_return_seen: bool | None = None
    steps: list[Step] = field(default_factory=list)
    has_own_steps: bool = False

    def finish(self) -> Run:
        """Return the run; missing parts were reported before."""
        assert self.is_unclean_return_seen is not None
        return Run(
            self.name,
            self.brokers,
            self.rules,
            MappingProxyType(self.settings),
            self.is_unclean_return_seen,
            tuple(self.steps),
        )


class _Draft:
    """The file as far as it was read, line by line."""

    def __init__(self) -> None:
        self._head = _RunDraft()
        self._runs: list[_RunDraft] = []
        self._keywords: dict[str, Callable[[int, list[str]], None]] = {
            "brokers": self._brokers,
            "rules": self._rules,
            "with": self._with,
            "unclean-return": self._unclean_return,
            "run": self._run,
            "repeat": self._repeat,
        }

    @property
    def _open(self) -> _RunDraft:
        return self._runs[-1] if self._runs else self._head

    def read_line(self, line: int, text: str) -> None:
        """Read one line that is not empty."""
        if text.startswith("#"):
            self._step(Step(line, "comment", (text.removeprefix("#").strip(),)))
            return
        word, *rest = text.split()
        if word in self._keywords:
            if word != "run" and self._open.has_own_steps:
                raise ScenarioError(line, f"{word!r} stands before the steps of a run")
            self._keywords[word](line, rest)
        else:
            self._step(_step(line, [word, *rest], self._head.brokers, self._keywords))

    def finish(self, last_line: int) -> tuple[Run, ...]:
        """Return all runs. Raises `ScenarioError` if there is nothing to play."""
        if not self._runs:
            raise ScenarioError(max(1, last_line), "there is no run: run NAME")
        return tuple(run.finish() for run in self._runs)

    def _step(self, step: Step) -> None:
        if not self._runs:
            raise ScenarioError(step.line, "a step stands in a run: begin one with: run NAME")
        self._open.has_own_steps = True
        self._open.steps.append(step)

    def _brokers(self, line: int, words: list[str]) -> None:
        if self._runs:
            raise ScenarioError(line, "brokers are named in the head, for all runs")
        numbers = [int(word) for word in words if word.isdecimal() and int(word)]
        if len(set(numbers)) != len(words) or not 1 <= len(words) <= BROKERS_MAX:
            what = f"brokers takes 1 to {BROKERS_MAX} different numbers above 0"
            raise ScenarioError(line, f"{what}, not {' '.join(words)!r}")
        self._head.brokers = tuple(numbers)

    def _rules(self, line: int, words: list[str]) -> None:
        if not words:
            raise ScenarioError(line, "rules takes at least one NAME")
        for word in words:
            if word not in RULES:
                raise ScenarioError(line, nearest(f"there is no rule {word!r}", word, RULES))
        self._open.rules = tuple(words)

    def _with(self, line: int, words: list[str]) -> None:
        name, separator, value = " ".join(words).partition("=")
        if not separator or not name.strip():
            raise ScenarioError(line, f"with takes NAME=VALUE, not {' '.join(words)!r}")
        name, value = name.strip(), value.strip()
        self._open.settings[name] = value
        if name in SETTINGS:
            if not value.isdecimal():
                raise ScenarioError(line, f"{name} is a number, not {value!r}")
            return
        try:
            load(flags=of_brokers(self._open.settings))
        except ConfigError as error:
            raise ScenarioError(line, str(error)) from None

    def _unclean_return(self, line: int, words: list[str]) -> None:
        if len(words) != 1 or words[0] not in UNCLEAN_RETURN:
            raise ScenarioError(line, "unclean-return is seen or unseen")
        self._open.is_unclean_return_seen = UNCLEAN_RETURN[words[0]]

    def _run(self, line: int, words: list[str]) -> None:
        head = self._head
        if len(words) != 1 or any(run.name == words[0] for run in self._runs):
            raise ScenarioError(line, "run takes a NAME of its own")
        for said, keyword in (
            (head.brokers, "brokers"),
            (head.rules, "rules"),
            (head.is_unclean_return_seen is not None, "unclean-return"),
        ):
            if not said:
                raise ScenarioError(line, f"the head does not say {keyword!r}")
        settings = dict(head.settings)
        self._runs.append(
            _RunDraft(words[0], head.brokers, head.rules, settings, head.is_unclean_return_seen)
        )

    def _repeat(self, line: int, words: list[str]) -> None:
        earlier = {run.name: run for run in self._runs[:-1]}
        if len(words) != 1 or words[0] not in earlier:
            what = f"repeat names an earlier run, not {' '.join(words)!r}"
            raise ScenarioError(line, nearest(what, " ".join(words), earlier))
        self._open.steps.extend(earlier[words[0]].steps)


def _step(line: int, words: list[str], brokers: tuple[int, ...], others: Iterable[str]) -> Step:
    """Find the syntax that the words follow; `others` are the words that begin no step."""
    usages = [usage.split() for usage in USAGES if usage.split()[0] == words[0]]
    if not usages:
        known = dict.fromkeys([*(usage.split()[0] for usage in USAGES), *others])
        raise ScenarioError(line, nearest(f"there is no step {words[0]!r}", words[0], known))
    for usage in usages:
        arguments = _match(usage, words, brokers)
        if arguments is not None:
            literals = [word for word in usage if word.islower()]
            return Step(line, "_".join(literals).replace("-", "_"), tuple(arguments))
    said = ", or: ".join(" ".join(usage) for usage in usages)
    there = f" (brokers: {' '.join(map(str, brokers))})" if "BROKER" in said else ""
    meant = _with_unit(usages, words, brokers)
    hint = f"; did you mean {meant!r}?" if meant else ""
    raise ScenarioError(line, f"{' '.join(words)!r} is not: {said}{there}{hint}")


def _with_unit(usages: Sequence[Sequence[str]], words: list[str], brokers: tuple[int, ...]) -> str:
    """Return the line with the unit that a number of seconds lacks; "" if that is not the
    mistake."""
    for usage in usages:
        if "SECONDS" in usage and len(words) >= len(usage):
            place = usage.index("SECONDS")
            mended = [*words[:place], f"{words[place]}s", *words[place + 1 :]]
            if _match(usage, mended, brokers) is not None:
                return " ".join(mended)
    return ""


def _match(usage: Sequence[str], words: list[str], brokers: tuple[int, ...]) -> list[object] | None:
    """Return the values in a line that follows a syntax; None for another line."""
    if usage[-1] == "BROKERS" and len(words) >= len(usage):
        last = len(usage) - 1
        usage = [*usage[:last], *["BROKER"] * (len(words) - last)]
    if len(usage) != len(words):
        return None
    arguments: list[object] = []
    for kind, word in zip(usage, words, strict=True):
        if kind.islower():
            if kind != word:
                return None
            continue
        value = _value(kind, word)
        if value is None or (kind == "BROKER" and value not in brokers):
            return None
        arguments.append(value)
    return arguments


def _value(kind: str, word: str) -> object | None:
    """Return a word as a value of the kind that the syntax has there; None if it is not one."""
    if kind in WORDS:
        return word
    if kind == "ACKS":
        return int(word) if word in ("0", "1") else None
    if kind == "SECONDS":
        number = word.removesuffix("s")
        is_number = number.replace(".", "", 1).isdecimal()
        return float(number) if is_number and number != word and float(number) > 0 else None
    is_number = word.isdecimal() and (int(word) > 0 or kind in NUMBERS_FROM_0)
    return int(word) if is_number else None


def nearest(what: str, word: str, known: Iterable[str]) -> str:
    """Return the error text, with the name that was perhaps meant, or all names."""
    names = list(known)
    close = get_close_matches(word, names, n=1)
    return f"{what}; did you mean {close[0]!r}?" if close else f"{what}; known: {', '.join(names)}"
