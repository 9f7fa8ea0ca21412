"""The topics that an application names: names, lists of names, patterns.

    subscribe("orders")    subscribe("orders", "bills")    subscribe(["orders", "bills"])
    subscribe(re.compile("ord.*"))    subscribe("^ord.*")

A pattern is a compiled regular expression, or a text that begins with `^`, as in librdkafka. It
matches from the beginning of a name, as `re.match` does; end it with `$` for whole names. A mistake
is a `TypeError` or `ValueError` of the call, not an error of a task later.
"""

import re
from collections.abc import Iterable
from typing import NamedTuple, TypeAlias

from minibroker.protocol.topic_names import is_topic_name

Topics: TypeAlias = str | Iterable[str]
TopicsOrPattern: TypeAlias = Topics | re.Pattern[str]


class TopicSelection(NamedTuple):
    """The topics that were named, or the pattern that their names match."""

    topics: tuple[str, ...]
    pattern: re.Pattern[str] | None = None


def select_topics(given: tuple[TopicsOrPattern, ...]) -> TopicSelection:
    """Return the topics for the arguments of `subscribe`."""
    each = _flat(given)
    if not each:
        raise ValueError(
            "subscribe names no topic: give names or a pattern; unsubscribe leaves the group"
        )
    if not any(map(_is_pattern, each)):
        return TopicSelection(_names(each))
    if len(each) > 1:
        raise ValueError(f"subscribe takes names, or one pattern: join them with |, not {each!r}")
    text = next(iter(each))
    if isinstance(text, re.Pattern):
        if not isinstance(text.pattern, str):
            raise TypeError("a pattern is one of str, not of bytes")
        return TopicSelection((), text)
    try:
        return TopicSelection((), re.compile(str(text)))
    except re.error as error:
        raise ValueError(f"{text!r} is no regular expression: {error}") from None


def name_topics(given: tuple[Topics, ...]) -> tuple[str, ...]:
    """Return the topics for arguments of which none may be a pattern."""
    each = _flat(given)
    for one in each:
        if _is_pattern(one):
            raise ValueError(f"{one!r} is a pattern, which only subscribe takes")
    return _names(each)


def _flat(given: tuple[object, ...]) -> tuple[object, ...]:
    """Replace a single list by its items."""
    only = given[0] if len(given) == 1 else None
    if isinstance(only, Iterable) and not isinstance(only, str | bytes | bytearray):
        return tuple(only)
    return given


def _is_pattern(one: object) -> bool:
    return isinstance(one, re.Pattern) or (isinstance(one, str) and one.startswith("^"))


def _names(given: tuple[object, ...]) -> tuple[str, ...]:
    for name in given:
        if not isinstance(name, str):
            hint = "; decode it first" if isinstance(name, bytes) else ""
            raise TypeError(f"a topic is a str, not {type(name).__name__} ({name!r}){hint}")
        if not is_topic_name(name):
            hint = ": give each name by itself" if "," in name else ""
            raise ValueError(
                f"{name!r} is no topic name, which has letters, digits, '.', '_' and '-'{hint}"
            )
    return tuple(name for name in given if isinstance(name, str))
