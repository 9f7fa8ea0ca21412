"""Patterns of topic names in RE2's syntax, matched in time linear in the name.

A client names the pattern, so none may take long: Python's `re` can backtrack for ever. A pattern
becomes an automaton of at most `STATES_MAX` states. Matching keeps the set of states that the name
can be in, and remembers where each set leads, so most names cost a look-up per character. One that
is new costs as much as the set has states: so matching is a computation in turns.

Only the characters of topic names count: a class of characters is the set of those in it. Groups,
alternatives, repetitions, classes, escapes, `^`, `$` and the flag `(?i)` are known. What RE2 does
not have (back references, looking ahead or behind) is refused, and word boundaries, too. A pattern
must match the whole name.
"""

from collections.abc import Callable, Iterable
from string import ascii_letters, ascii_lowercase, ascii_uppercase, digits
from typing import Final, NamedTuple, TypeAlias

from minibroker.broker.turns import Turn, Turns

ALPHABET: Final = frozenset(ascii_letters + digits + "._-")  # of topic names
CHARS_MAX: Final = 1000
STATES_MAX: Final = 500
DEPTH_MAX: Final = 50
REPEAT_MAX: Final = 1000  # RE2's own limit
STEPS_KEPT: Final = 2000
STATES_OF_AN_ITEM: Final = 16  # that take as long as an item of a turn
_WORD: Final = frozenset(ascii_letters + digits + "_")
_SETS: Final[dict[str, frozenset[str]]] = {
    "d": frozenset(digits),
    "D": ALPHABET - frozenset(digits),
    "w": _WORD,
    "W": ALPHABET - _WORD,
    "s": frozenset(),
    "S": ALPHABET,
}
_NAMED: Final[dict[str, frozenset[str]]] = {
    "alnum": frozenset(ascii_letters + digits),
    "alpha": frozenset(ascii_letters),
    "digit": frozenset(digits),
    "lower": frozenset(ascii_lowercase),
    "upper": frozenset(ascii_uppercase),
    "punct": frozenset("._-"),
    "word": _WORD,
    "xdigit": frozenset(digits + "abcdefABCDEF"),
}
_CONTROLS: Final = "aftnrv"


class InvalidPatternError(ValueError):
    """A text that is no pattern, or one that is too large."""


class _State(NamedTuple):
    """Goes on to `targets`: with one of `chars`, or, if that is None, without a character, where
    `anchor` is "", "^" or "$"."""

    targets: tuple[int, ...]
    chars: frozenset[str] | None = None
    anchor: str = ""


# Adds what matches a part, in front of a state, and returns its first state.
_Build: TypeAlias = Callable[["_Automaton", int], int]


class _Automaton:
    """The states; the last one that matches is 0."""

    def __init__(self) -> None:
        self.states: list[_State] = [_State(())]

    def add(self, state: _State) -> int:
        if len(self.states) >= STATES_MAX:
            raise InvalidPatternError(f"it takes more than {STATES_MAX} states")
        self.states.append(state)
        return len(self.states) - 1

    def closure(self, states: Iterable[int], anchors: str) -> frozenset[int]:
        """Return these states and those that they lead to without a character."""
        found: set[int] = set()
        waiting = [*states]
        while waiting:
            number = waiting.pop()
            if number not in found:
                found.add(number)
                state = self.states[number]
                if state.chars is None and (not state.anchor or state.anchor in anchors):
                    waiting += state.targets
        return frozenset(found)


class TopicPattern:
    """See the head of this module. Raises `InvalidPatternError`."""

    def __init__(self, text: str) -> None:
        if len(text) > CHARS_MAX:
            raise InvalidPatternError(f"it has more than {CHARS_MAX} characters")
        self._automaton = _Automaton()
        first = _Parser(text).parse()(self._automaton, 0)
        self._begin = self._automaton.closure((first,), "^")
        self._steps: dict[tuple[frozenset[int], str], frozenset[int]] = {}

    def matches(self, name: str, turn: Turn) -> Turns[bool]:
        """Return whether the pattern matches a whole name."""
        now = self._begin
        if turn.is_over(1 + len(name) // 16):
            yield
        for char in name:
            following = self._steps.get((now, char))
            if following is None:
                following = self._step(now, char)
                if turn.is_over(1 + (len(now) + len(following)) // STATES_OF_AN_ITEM):
                    yield
            if not following:
                return False
            now = following
        return 0 in self._automaton.closure(now, "^$" if not name else "$")

    def _step(self, now: frozenset[int], char: str) -> frozenset[int]:
        if len(self._steps) >= STEPS_KEPT:
            self._steps.clear()
        states = self._automaton.states
        ahead = [
            target
            for number in now
            for target in states[number].targets
            if char in (states[number].chars or ())
        ]
        following = self._steps[now, char] = self._automaton.closure(ahead, "")
        return following


class _Parser:
    """Reads a pattern from left to right."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._ignores_case = False

    def parse(self) -> _Build:
        built = self._alternatives(0)
        if self._at < len(self._text):
            raise InvalidPatternError("a ) without its (")
        return built

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _next(self) -> str:
        char = self._peek()
        if not char:
            raise InvalidPatternError("it ends too early")
        self._at += 1
        return char

    def _takes(self, text: str) -> bool:
        is_next = self._text.startswith(text, self._at)
        self._at += len(text) * is_next
        return is_next

    def _alternatives(self, depth: int) -> _Build:
        if depth > DEPTH_MAX:
            raise InvalidPatternError(f"more than {DEPTH_MAX} groups inside one another")
        branches = [self._sequence(depth)]
        while self._takes("|"):
            branches.append(self._sequence(depth))

        def build(automaton: _Automaton, following: int) -> int:
            return automaton.add(_State(tuple(each(automaton, following) for each in branches)))

        return branches[0] if len(branches) == 1 else build

    def _sequence(self, depth: int) -> _Build:
        parts: list[_Build] = []
        while self._peek() not in ("", "|", ")"):
            parts.append(self._repeated(self._part(depth)))

        def build(automaton: _Automaton, following: int) -> int:
            for part in reversed(parts):
                following = part(automaton, following)
            return following

        return build

    def _part(self, depth: int) -> _Build:
        char = self._next()
        if char == "(":
            return self._group(depth)
        if char in "*+?":
            raise InvalidPatternError(f"nothing before {char}")
        if char in "^$":
            return _anchor(char)
        if char == "\\" and self._peek() in ("A", "z"):
            return _anchor("^" if self._next() == "A" else "$")
        if char == "[":
            return self._chars(self._class())
        if char == ".":
            return self._chars(ALPHABET)
        return self._chars(self._escaped() if char == "\\" else frozenset(char))

    def _group(self, depth: int) -> _Build:
        outside = self._ignores_case
        if self._takes("?") and not self._takes(":"):
            if self._takes("P<") or self._takes("<"):
                self._name()
            elif self._flags():
                return _nothing
        built = self._alternatives(depth + 1)
        if not self._takes(")"):
            raise InvalidPatternError("a ( without its )")
        self._ignores_case = outside
        return built

    def _name(self) -> None:
        name = ""
        while not self._takes(">"):
            name += self._next()
        if not name or not _WORD.issuperset(name):
            raise InvalidPatternError("a group with an invalid name, or looking behind")

    def _flags(self) -> bool:
        """Read flags; return whether they are a whole group, so that they hold from here on."""
        is_on = True
        while (char := self._next()) not in ":)":
            if char == "-":
                is_on = False
            elif char == "i":
                self._ignores_case = is_on
            elif char not in "msU":
                raise InvalidPatternError(f"(?{char} is not known")
        return char == ")"

    def _repeated(self, part: _Build) -> _Build:
        while char := self._peek():
            if char in "*+?":
                self._at += 1
                low, high = {"*": (0, None), "+": (1, None), "?": (0, 1)}[char]
            elif (counts := self._counts()) is not None:
                low, high = counts
            else:
                break
            self._takes("?")  # fewest first: the same names match
            part = _repeat(part, low, high)
        return part

    def _counts(self) -> tuple[int, int | None] | None:
        """Return the numbers of {low,high}; None if there are none, since a { stands for itself."""
        end = self._text.find("}", self._at)
        if self._peek() != "{" or end < 0:
            return None
        low, comma, high = self._text[self._at + 1 : end].partition(",")
        if not _are_digits(low) or (high and not _are_digits(high)):
            return None
        self._at = end + 1
        last = int(high) if high else (None if comma else int(low))
        if int(low) > REPEAT_MAX or (last is not None and not int(low) <= last <= REPEAT_MAX):
            raise InvalidPatternError("a repetition out of bounds")
        return int(low), last

    def _escaped(self) -> frozenset[str]:
        char = self._next()
        if char in _SETS:
            return _SETS[char]
        if char == "Q" or char == "E" or char == "p" or char == "P" or char == "C":
            raise InvalidPatternError(f"\\{char} is not known here")
        if char == "x":
            return frozenset(self._hexadecimal())
        if char in _CONTROLS:
            return frozenset()
        if char.isalnum():
            raise InvalidPatternError(f"\\{char} is not known")
        return frozenset(char)

    def _hexadecimal(self) -> str:
        text = self._next()
        if text == "{":
            text = ""
            while not self._takes("}"):
                text += self._next()
        else:
            text += self._next()
        if not text or len(text) > 6 or not _NAMED["xdigit"].issuperset(text):
            raise InvalidPatternError("an invalid \\x")
        number = int(text, 16)
        return chr(number) if number < 128 else "\x80"

    def _class(self) -> frozenset[str]:
        is_negated = self._takes("^")
        chars: set[str] = set()
        is_first = True
        while is_first or not self._takes("]"):
            is_first = False
            if self._takes("[:"):
                chars |= self._named_class()
                continue
            low = self._class_char()
            if self._peek() == "-" and self._text[self._at + 1 : self._at + 2] not in ("]", ""):
                self._at += 1
                high = self._class_char()
                if not isinstance(low, str) or not isinstance(high, str) or low > high:
                    raise InvalidPatternError("an invalid range of characters")
                chars |= {char for char in ALPHABET if low <= char <= high}
            else:
                chars |= {low} if isinstance(low, str) else low
        found = self._cased(frozenset(chars))
        return ALPHABET - found if is_negated else found

    def _named_class(self) -> frozenset[str]:
        name, _, _ = self._text[self._at :].partition(":]")
        self._at += len(name) + 2
        found = _NAMED.get(name.removeprefix("^"))
        if found is None:
            raise InvalidPatternError(f"[:{name[:20]}:] is not known")
        return ALPHABET - found if name.startswith("^") else found

    def _class_char(self) -> str | frozenset[str]:
        """Return one character, or the set that an escape stands for."""
        char = self._next()
        if char != "\\":
            return char
        chars = self._escaped()
        return next(iter(chars)) if len(chars) == 1 else chars

    def _cased(self, chars: frozenset[str]) -> frozenset[str]:
        if self._ignores_case:
            chars |= {each for char in chars for each in (char.lower(), char.upper())}
        return chars & ALPHABET

    def _chars(self, chars: frozenset[str]) -> _Build:
        cased = self._cased(chars)

        def build(automaton: _Automaton, following: int) -> int:
            return automaton.add(_State((following,), cased))

        return build


def _are_digits(text: str) -> bool:
    return 0 < len(text) <= 4 and frozenset(digits).issuperset(text)


def _nothing(automaton: _Automaton, following: int) -> int:
    return following


def _anchor(anchor: str) -> _Build:
    return lambda automaton, following: automaton.add(_State((following,), None, anchor))


def _repeat(part: _Build, low: int, high: int | None) -> _Build:
    def build(automaton: _Automaton, following: int) -> int:
        if high is None:
            loop = automaton.add(_State(()))
            automaton.states[loop] = _State((part(automaton, loop), following))
            following = loop
        else:
            end = following
            for _ in range(high - low):
                following = automaton.add(_State((part(automaton, following), end)))
        for _ in range(low):
            automaton.add(_State(()))  # counts the work of an empty part, too
            following = part(automaton, following)
        return following

    return build
