"""Patterns of topic names: RE2's syntax, in bounded time."""

import random
import re

import pytest

from minibroker.broker.groups.topic_pattern import STATES_MAX, InvalidPatternError, TopicPattern

NAMES = ["", "a", "b", "ab", "abc", "aab", "orders", "orders.eu", "Orders", "o-1", "o_2", "x.y.z"]


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
    pattern = TopicPattern(text)
    for name in NAMES:
        assert pattern.matches(name) == bool(re.fullmatch(text, name)), name


def test_random_patterns_match_what_re_matches() -> None:
    """Patterns of few parts, against names of few letters."""
    rng = random.Random(7)
    parts = ["a", "b", ".", "(a|b)", "[ab]", "(?:ab)?", "a*", "b+", "(a|)b{0,2}", "^", "$"]
    names = ["".join(rng.choices("ab", k=rng.randrange(6))) for _ in range(40)]
    for _ in range(300):
        text = "|".join(
            "".join(rng.choices(parts, k=rng.randrange(1, 5))) for _ in range(rng.randrange(1, 3))
        )
        pattern = TopicPattern(text)
        for name in names:
            assert pattern.matches(name) == bool(re.fullmatch(text, name)), (text, name)


@pytest.mark.parametrize("text", ["[[:digit:]]+", r"o-[[:^alpha:]]"])
def test_posix_classes_are_known(text: str) -> None:
    """`re` does not have these."""
    assert TopicPattern(text).matches("7" if text.endswith("+") else "o-7")
    assert not TopicPattern(text).matches("x")


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
        TopicPattern(text)


def test_no_pattern_takes_long() -> None:
    """A pattern on which `re` backtracks for ever is matched in few steps: as many sets of states
    as the name has characters."""
    pattern = TopicPattern("(a*)*(a|aa)+(a{0,50}){0,3}b")
    assert not pattern.matches("a" * 249)
    assert len(pattern._steps) <= 249
    assert len(pattern._automaton.states) < STATES_MAX
