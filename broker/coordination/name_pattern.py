"""Patterns of names in RE2's syntax, matched in time linear in the name.

A client names the pattern, so none may take long: Python's `re` can backtrack for ever. A pattern
becomes an automaton of at most `STATES_MAX` states. Matching keeps the set of states that the name
can be in, and remembers where each set leads, so most names cost a look-up per character. One that
is new costs as much as the set has states: so matching is a computation in turns.

Groups, alternatives, repetitions, classes, escapes, anchors and the flags i, m, s and U are known.
What RE2 does not have (back references, looking ahead or behind) is refused, and so are word
boundaries, `\\Q`, octal numbers and Unicode's classes. A pattern must match the whole name.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable
from string import ascii_letters, digits
from typing import Final, NamedTuple, TypeAlias

from minibroker.broker.turns import Turn, Turns

CHARS_MAX: Final = 1000
STATES_MAX: Final = 500
DEPTH_MAX: Final = 50
REPEAT_MAX: Final = 1000  # RE2's own limit
STEPS_KEPT: Final = 2000
STATES_OF_AN_ITEM: Final = 4  # that take as long as an item of a turn
ITEMS: Final = 4  # of a turn, that take as long as so many characters
CHARS_OF_ITEMS: Final = 64
POINT_MAX: Final = 0x10FFFF  # the last character of Unicode
_WORD: Final = frozenset(ascii_letters + digits + "_")
_HEXADECIMAL: Final = frozenset(digits + "abcdefABCDEF")

# Characters as ranges of their numbers, both ends included.
Ranges: TypeAlias = list[tuple[int, int]]


def _ranges(text: str) -> Ranges:
    """Return the ranges of pairs of characters: "az09" is a to z and 0 to 9."""
    return [(ord(low), ord(high)) for low, high in zip(text[::2], text[1::2], strict=True)]


def _others(ranges: Ranges) -> Ranges:
    """Return the ranges of all other characters."""
    found, start = [], 0
    for low, high in sorted(ranges):
        if low > start:
            found.append((start, low - 1))
        start = max(start, high + 1)
    if start <= POINT_MAX:
        found.append((start, POINT_MAX))
    return found


_NAMED: Final[dict[str, Ranges]] = {
    "alnum": _ranges("09AZaz"),
    "alpha": _ranges("AZaz"),
    "ascii": _ranges("\x00\x7f"),
    "blank": _ranges("\t\t  "),
    "cntrl": _ranges("\x00\x1f\x7f\x7f"),
    "digit": _ranges("09"),
    "graph": _ranges("!~"),
    "lower": _ranges("az"),
    "print": _ranges(" ~"),
    "punct": _ranges("!/:@[`{~"),
    "space": _ranges("\t\r  "),
    "upper": _ranges("AZ"),
    "word": _ranges("09AZaz__"),
    "xdigit": _ranges("09AFaf"),
}
_SPACE: Final = _ranges("\t\n\f\r  ")
_SETS: Final[dict[str, Ranges]] = {
    "d": _NAMED["digit"],
    "D": _others(_NAMED["digit"]),
    "w": _NAMED["word"],
    "W": _others(_NAMED["word"]),
    "s": _SPACE,
    "S": _others(_SPACE),
}
_ANY: Final = _others([])
_OF_A_LINE: Final = _others(_ranges("\n\n"))
_CONTROLS: Final = {"a": "\a", "f": "\f", "t": "\t", "n": "\n", "r": "\r", "v": "\v"}
# Anchors of a text and of a line, as they are in `_State` and in `_Automaton.closure`.
_TEXT_BEGINS: Final = "A"
_TEXT_ENDS: Final = "z"
_LINE_BEGINS: Final = "^"
_LINE_ENDS: Final = "$"


class InvalidPatternError(ValueError):
    """A text that is no pattern, or one that is too large."""


class _Chars:
    """A set of characters. `ignores_case`: it has the other case of each, too, before it is
    negated."""

    __slots__ = ("_ends", "_ignores_case", "_is_negated", "_starts")

    def __init__(
        self, ranges: Ranges, *, ignores_case: bool = False, is_negated: bool = False
    ) -> None:
        joined: Ranges = []
        for low, high in sorted(ranges):
            if joined and low <= joined[-1][1] + 1:
                joined[-1] = joined[-1][0], max(high, joined[-1][1])
            else:
                joined.append((low, high))
        self._starts = [low for low, _ in joined]
        self._ends = [high for _, high in joined]
        self._ignores_case = ignores_case
        self._is_negated = is_negated

    def has(self, points: tuple[int, ...]) -> bool:
        """Whether it has a character: the numbers of that, and of its other cases."""
        found = any(map(self._has, points if self._ignores_case else points[:1]))
        return found != self._is_negated

    def _has(self, point: int) -> bool:
        place = bisect_right(self._starts, point) - 1
        return place >= 0 and point <= self._ends[place]


def _points(char: str) -> tuple[int, ...]:
    """Return the number of a character, and those of its other cases."""
    lower, upper = char.lower(), char.upper()
    others = dict.fromkeys((lower, upper, upper.lower(), lower.upper()))
    return (ord(char), *[ord(other) for other in others if len(other) == 1 and other != char])


class _State(NamedTuple):
    """Goes on to `targets`: with one of `chars`, or, if that is None, without a character, where
    `anchor` is "" or the present place is such a one."""

    targets: tuple[int, ...]
    chars: _Chars | None = None
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
        """Return these states and those that they lead to without a character, at a place that all
        these anchors describe."""
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


class NamePattern:
    """See the head of this module. Raises `InvalidPatternError`."""

    def __init__(self, text: str) -> None:
        if len(text) > CHARS_MAX:
            raise InvalidPatternError(f"it has more than {CHARS_MAX} characters")
        self._automaton = _Automaton()
        first = _Parser(text).parse()(self._automaton, 0)
        self._begin = self._automaton.closure((first,), _TEXT_BEGINS + _LINE_BEGINS)
        self._steps: dict[tuple[frozenset[int], str], frozenset[int]] = {}

    def matches(self, name: str, turn: Turn) -> Turns[bool]:
        """Return whether the pattern matches a whole name."""
        now = self._begin
        for at, char in enumerate(name):
            if at % CHARS_OF_ITEMS == 0 and turn.is_over(ITEMS):
                yield
            following = self._steps.get((now, char))
            if following is None:
                following = self._step(now, char)
                if turn.is_over(1 + (len(now) + len(following)) // STATES_OF_AN_ITEM):
                    yield
            if not following:
                return False
            now = following
        anchors = _TEXT_ENDS + _LINE_ENDS
        if not name:
            anchors += _TEXT_BEGINS + _LINE_BEGINS
        elif name.endswith("\n"):
            anchors += _LINE_BEGINS
        return 0 in self._automaton.closure(now, anchors)

    def _step(self, now: frozenset[int], char: str) -> frozenset[int]:
        if len(self._steps) >= STEPS_KEPT:
            self._steps.clear()
        states, points = self._automaton.states, _points(char)
        is_line_end = char == "\n"
        here = self._automaton.closure(now, _LINE_ENDS) if is_line_end else now
        ahead = [
            target
            for number in here
            if (chars := states[number].chars) is not None and chars.has(points)
            for target in states[number].targets
        ]
        following = self._automaton.closure(ahead, _LINE_BEGINS if is_line_end else "")
        self._steps[now, char] = following
        return following


class _Parser:
    """Reads a pattern from left to right."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._flags: frozenset[str] = frozenset()

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
            of_text = _TEXT_BEGINS if char == "^" else _TEXT_ENDS
            return _anchor(char if "m" in self._flags else of_text)
        if char == "\\" and self._peek() in (_TEXT_BEGINS, _TEXT_ENDS):
            return _anchor(self._next())
        if char == "[":
            return _one_of(self._class())
        if char == ".":
            return _one_of(_Chars(_ANY if "s" in self._flags else _OF_A_LINE))
        ranges = self._escaped() if char == "\\" else [(ord(char), ord(char))]
        return _one_of(_Chars(ranges, ignores_case="i" in self._flags))

    def _group(self, depth: int) -> _Build:
        outside = self._flags
        if self._takes("?") and not self._takes(":"):
            if self._takes("P<") or self._takes("<"):
                self._name()
            elif self._reads_flags():
                return _nothing
        built = self._alternatives(depth + 1)
        if not self._takes(")"):
            raise InvalidPatternError("a ( without its )")
        self._flags = outside
        return built

    def _name(self) -> None:
        name = ""
        while not self._takes(">"):
            name += self._next()
        if not name or not _WORD.issuperset(name):
            raise InvalidPatternError("a group with an invalid name, or looking behind")

    def _reads_flags(self) -> bool:
        """Read flags; return whether they are a whole group, so that they hold from here on."""
        is_on = True
        while (char := self._next()) not in ":)":
            if char == "-":
                is_on = False
            elif char not in "imsU":  # U is about which match is found first: here there is one
                raise InvalidPatternError(f"(?{char} is not known")
            else:
                self._flags = self._flags | {char} if is_on else self._flags - {char}
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

    def _escaped(self) -> Ranges:
        char = self._next()
        if char in _SETS:
            return _SETS[char]
        if char == "x":
            number = self._hexadecimal()
            return [(number, number)]
        char = _CONTROLS.get(char, char)
        if char.isalnum() or not char.isascii():
            raise InvalidPatternError(f"\\{char} is not known here")
        return [(ord(char), ord(char))]

    def _hexadecimal(self) -> int:
        text = self._next()
        if text == "{":
            text = ""
            while not self._takes("}"):
                text += self._next()
        else:
            text += self._next()
        if not text or len(text) > 6 or not _HEXADECIMAL.issuperset(text):
            raise InvalidPatternError("an invalid \\x")
        number = int(text, 16)
        if number > POINT_MAX:
            raise InvalidPatternError("an invalid \\x")
        return number

    def _class(self) -> _Chars:
        is_negated = self._takes("^")
        ranges: Ranges = []
        is_first = True
        while is_first or not self._takes("]"):
            is_first = False
            if self._takes("[:"):
                ranges += self._named_class()
                continue
            some = self._class_char()
            if self._peek() == "-" and self._text[self._at + 1 : self._at + 2] not in ("]", ""):
                self._at += 1
                some = [(_single(some), _single(self._class_char()))]
                if some[0][0] > some[0][1]:
                    raise InvalidPatternError("an invalid range of characters")
            ranges += some
        return _Chars(ranges, ignores_case="i" in self._flags, is_negated=is_negated)

    def _named_class(self) -> Ranges:
        name, _, _ = self._text[self._at :].partition(":]")
        self._at += len(name) + 2
        found = _NAMED.get(name.removeprefix("^"))
        if found is None:
            raise InvalidPatternError(f"[:{name[:20]}:] is not known")
        return _others(found) if name.startswith("^") else found

    def _class_char(self) -> Ranges:
        """Return one character, or the set that an escape stands for."""
        char = self._next()
        return self._escaped() if char == "\\" else [(ord(char), ord(char))]


def _single(ranges: Ranges) -> int:
    """Return the number of the only character."""
    [(low, high), *others] = ranges
    if others or low != high:
        raise InvalidPatternError("an invalid range of characters")
    return low


def _are_digits(text: str) -> bool:
    return 0 < len(text) <= 4 and frozenset(digits).issuperset(text)


def _nothing(automaton: _Automaton, following: int) -> int:
    return following


def _anchor(anchor: str) -> _Build:
    return lambda automaton, following: automaton.add(_State((following,), None, anchor))


def _one_of(chars: _Chars) -> _Build:
    return lambda automaton, following: automaton.add(_State((following,), chars))


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
