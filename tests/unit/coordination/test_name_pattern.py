"""Patterns of topic names and transactional ids: RE2's syntax, in bounded time."""

import random
import re
from collections.abc import Iterable

import pytest

from minibroker.broker.coordination.name_pattern import (
    STATES_MAX,
    STATES_OF_AN_ITEM,
    InvalidPatternError,
    NamePattern,
)
from minibroker.broker.turns import AT_ONCE, Turn, without_pause

NAMES = ["", "a", "b", "ab", "abc", "aab", "orders", "orders.eu", "Orders", "o-1", "o_2", "x.y.z"]


def matches(pattern: NamePattern, name: str) -> bool:
    return without_pause(pattern.matches(name, Turn()))


@pytest.mark.parametrize(
    "text",
    [
        "",
        ".*",
        "orders.*",
        r"orders\.eu",
        "(?:a|b)+",
        "(a|b|)c?",
        "a{2}b",
        "a{1,2}b?",
        "a{1,}b",
        "a{x",
        "[a-c]+",
        "[^a-c]*",
        "[]a]+",
        "[a-]+",
        r"[\w]+",
        r"\w+",
        r"\d",
        r"o[-_]\d",
        "^a.*$",
        r"\Aab",
        "a$|ab",
        "a^b",
        "(?i)ORDERS",
        "(?P<name>a)b",
        "a*?b+?",
        "(a*)*",
        "(a|ab)(c|bcd)?",
        r"\x61b",
        "(?i:ORD)ers",
    ],
)
def test_a_pattern_matches_what_re_matches(text: str) -> None:
    """Whole names, as `re.fullmatch`."""
    pattern = NamePattern(text)
    for name in NAMES:
        assert matches(pattern, name) == bool(re.fullmatch(text, name)), name


def test_random_patterns_match_what_re_matches() -> None:
    """Patterns of few parts, against names of few letters."""
    rng = random.Random(7)
    parts = ["a", "b", ".", "(a|b)", "[ab]", "(?:ab)?", "a*", "b+", "(a|)b{0,2}", "^", "$"]
    names = ["".join(rng.choices("ab", k=rng.randrange(6))) for _ in range(40)]
    for _ in range(300):
        text = "|".join(
            "".join(rng.choices(parts, k=rng.randrange(1, 5))) for _ in range(rng.randrange(1, 3))
        )
        pattern = NamePattern(text)
        for name in names:
            assert matches(pattern, name) == bool(re.fullmatch(text, name)), (text, name)


@pytest.mark.parametrize("text", ["[[:digit:]]+", r"o-[[:^alpha:]]"])
def test_posix_classes_are_known(text: str) -> None:
    """`re` does not have these."""
    assert matches(NamePattern(text), "7" if text.endswith("+") else "o-7")
    assert not matches(NamePattern(text), "x")


# What may be in a transactional id, and in no name of a topic.
IDS = [
    "",
    "app:0_1",
    "app 1",
    "app/eu#1",
    "größe-1",
    "GRÖSSE-1",
    "\u4ea4\u6613 7",
    "\U0001f600",
    "a\nb",
    "a\tb",
    "a\n",
    "\x00\xff",
    "[x]",
    "s\u017f",
]


@pytest.mark.parametrize(
    "text",
    [
        ".*",
        "(?s).*",
        "(?s:.)*",
        "(?s)(?-s).*",
        ".+:.+",
        r"app[ :/]\S+",
        r"\S+\s\d",
        r"\S*",
        r"\D+\s\D+",
        r"\W+",
        r"[\W\d]+",
        r"[^\w]+",
        r"[^a-z]*",
        r"[\x{0}-\x{10ffff}]+",
        r"[^\x00-\x7f]+",
        r"\x{1F600}",
        r"a\nb",
        r"a[\n\t]b",
        "größe-1",
        "(?i)GRÖẞE-1|GRÖSSE-1|größe-1",
        "(?i)[Ö-öa-z-]+1?",
        "(?i)[^A-Z]+",
        "(?m)a$\nb?",
        "(?m)a\n^b?",
        "(?m)^a$(?s:.)^b$",
        "(?m)a(?s:.)^$",
        "a^\nb|a$\nb",
        "\u4ea4.+",
        r"\[x\]",
        r"[]x[]+",
        "[!-~]+",
    ],
)
def test_a_pattern_matches_any_character_as_re_does(text: str) -> None:
    """Classes are ASCII's, `.` is no end of a line, and `$` only the end, as in RE2."""
    pattern = NamePattern(text)
    python = text.replace("\\x{1F600}", "\U0001f600").replace("\\x{0}", "\\x00")
    python = python.replace("\\x{10ffff}", "\U0010ffff")
    python = python.replace("(?s)(?-s)", "").replace("[!-~]", r"[!-\~]").replace("[]x[]", r"[]x\[]")
    if "(?m)" not in text:
        python = python.replace("$", r"\Z")
    for name in IDS:
        expected = bool(re.fullmatch(python, name, re.ASCII if text.isascii() else 0))
        assert matches(pattern, name) == expected, name


@pytest.mark.parametrize(
    ("text", "match", "other"),
    [
        ("[[:space:]]", "\v", "x"),
        ("[[:punct:]]+", "!/:@[`{~", "a"),
        ("[[:cntrl:]]", "\x7f", " "),
        ("[[:^ascii:]]", "é", "e"),
        ("[[:graph:]]", "~", " "),
        ("[[:print:]]", " ", "\t"),
        (r"\s", "\f", "\v"),
        ("(?i)k", "\u212a", "\u212b"),  # the sign of Kelvin
    ],
)
def test_classes_are_those_of_re2(text: str, match: str, other: str) -> None:
    """Also where Python has others, or none."""
    assert matches(NamePattern(text), match)
    assert not matches(NamePattern(text), other)


@pytest.mark.parametrize(
    "text",
    [
        "(",
        ")",
        "a)",
        "*",
        "+a",
        "[a",
        "[b-a]",
        "a{3,2}",
        "a{1001}",
        r"(a)\1",
        "(?=a)",
        "(?!a)",
        "(?<=a)b",
        "(?<!a)b",
        r"\b",
        r"\pL",
        "[[:nothing:]]",
        "a\\",
        r"\x{",
        r"\x{110000}",
        r"\Qa\E",
        r"\é",
        r"[\d-z]",
        "(?P<>a)",
        "(" * 60 + ")" * 60,
        "((a{100}){100}){100}",
        "(((){1000}){1000}){1000}",
        "a" * 1001,
    ],
)
def test_what_is_no_pattern_is_refused(text: str) -> None:
    """So is one that RE2 does not have, or that takes too many states."""
    with pytest.raises(InvalidPatternError):
        NamePattern(text)


def test_no_pattern_takes_long() -> None:
    """A pattern on which `re` backtracks for ever is matched in few steps: as many sets of states
    as the name has characters."""
    pattern = NamePattern("(a*)*(a|aa)+(a{0,50}){0,3}b")
    assert not matches(pattern, "a" * 249)
    assert len(pattern._steps) <= 249
    assert len(pattern._automaton.states) < STATES_MAX


@pytest.mark.parametrize(
    "text", ["(.?){150}", ".*[ab].{200}", "((a?|b?|c?){60})", "(.*[ab].{200})*"]
)
def test_a_pattern_with_many_states_is_matched_in_turns(text: str) -> None:
    """The sets of states are large and new at each character: a turn ends after some milliseconds,
    inside of a name, too."""
    rng = random.Random(1)
    name = "".join(rng.choices("abc", k=249))
    turn = Turn()
    pattern, visited = NamePattern(text), 0
    closure = pattern._automaton.closure

    def counted(states: Iterable[int], anchors: str) -> frozenset[int]:
        nonlocal visited
        found = closure(states, anchors)
        visited += len(found)
        return found

    pattern._automaton.closure = counted  # type: ignore[method-assign]
    longest = 0
    for _ in pattern.matches(name, turn):
        longest, visited = max(longest, visited), 0
    assert turn.pauses > 2
    assert longest <= STATES_OF_AN_ITEM * AT_ONCE + STATES_MAX


def test_a_long_name_is_matched_in_turns() -> None:
    """Also where each of its steps is known."""
    pattern, turn = NamePattern("a*"), Turn()
    assert matches(pattern, "aa")
    assert sum(1 for _ in pattern.matches("a" * 32_767, turn)) > 2
