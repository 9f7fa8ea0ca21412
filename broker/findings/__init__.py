"""What is wrong with a cluster, and what to do about it: pure functions from facts to findings.

`minibroker doctor` collects the facts; a broker may, too. A finding says what is the case and,
unless all is well, what to do about it. A problem keeps a client from its work or endangers data
now. A note names a state that an operator may have chosen, and should know. Most checks that find
nothing wrong say so, so that the operator knows what was checked.
"""

from collections.abc import Iterable
from enum import StrEnum
from typing import Final, NamedTuple

NAMED_MAX: Final = 5  # things in one finding


class Level(StrEnum):
    """How bad a finding is."""

    OK = "ok"
    NOTE = "note"
    PROBLEM = "problem"


class Finding(NamedTuple):
    """`advice` is what to do; "" where nothing is to be done."""

    level: Level
    what: str
    advice: str = ""


def listed(things: Iterable[object]) -> str:
    """Return the first few things as text, joined by commas, with the number of the others."""
    texts = list(map(str, things))
    more = f", and {len(texts) - NAMED_MAX} more" if len(texts) > NAMED_MAX else ""
    return ", ".join(texts[:NAMED_MAX]) + more


def counted(count: int, noun: str) -> str:
    """Return a count with its noun: `1 replica`, `2 replicas`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
