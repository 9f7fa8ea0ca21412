"""kcat's format strings and offsets."""

from typing import NamedTuple

import pytest

from minibroker.cli.data.formats import (
    FormatError,
    Start,
    compile_format,
    parse_end,
    parse_offset,
)


class Shown(NamedTuple):
    """What a format string can show of a record."""

    topic: str = "t"
    partition: int = 3
    offset: int = 17
    timestamp: int = 1700
    key: bytes | None = b"k"
    value: bytes | None = b"value"
    headers: tuple = (("a", b"1"), ("b", None))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"%s\n", b"value\n"),
        (r"%t %p %o %k %s %T\n", b"t 3 17 k value 1700\n"),
        ("%K:%S", b"1:5"),
        ("%R", b"\0\0\0\5"),
        ("%h", b"a=1,b="),
        (r"100%% \x41\\", b"100% A\\"),
        ("\udcff", b"\xff"),
        ("", b""),
    ],
)
def test_format_strings_mean_what_they_mean_to_kcat(text: str, expected: bytes) -> None:
    """Each token writes its part of the record."""
    assert compile_format(text)(Shown()) == expected


def test_null_is_nothing_of_length_minus_one() -> None:
    """A null key or value cannot be taken for an empty one."""
    null = Shown(key=None, value=None)
    assert compile_format("[%k|%K|%s|%S]")(null) == b"[|-1||-1]"
    assert compile_format("[%k|%K|%s|%S]", b"NULL")(null) == b"[NULL|-1|NULL|-1]"
    assert compile_format("%k %s", b"NULL")(Shown()) == b"k value"


@pytest.mark.parametrize("text", ["%q", "%", r"\z", r"\x4"])
def test_unknown_tokens_are_named(text: str) -> None:
    """A format string is refused before anything is read."""
    with pytest.raises(FormatError, match="there are"):
        compile_format(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("beginning", Start("beginning")),
        ("earliest", Start("beginning")),
        ("end", Start("end")),
        ("42", Start("offset", 42)),
        ("-5", Start("tail", 5)),
        ("s@1700000000000", Start("time", 1700000000000)),
        ("s@2023-11-14T22:13:20+00:00", Start("time", 1700000000000)),
    ],
)
def test_offsets_are_those_of_kcat(text: str, expected: Start) -> None:
    """A place to begin is a word, a number, or a time."""
    assert parse_offset(text) == expected


@pytest.mark.parametrize(
    "text", ["middle", "1.5", "s@yesterday", "", str(2**63), f"s@{2**70}", "9" * 5000]
)
def test_other_offsets_are_refused(text: str) -> None:
    """What is no offset is an error, not the beginning or the end."""
    with pytest.raises(FormatError):
        parse_offset(text)


def test_an_end_is_a_time() -> None:
    """`e@TIME` in kcat's form; other texts say where to begin."""
    assert parse_end("e@1700") == 1700
    assert parse_end("e@1970-01-01T00:00:01+00:00") == 1000
    assert parse_end("s@1700") is None
    with pytest.raises(FormatError, match="is no time"):
        parse_end("e@tomorrow")
