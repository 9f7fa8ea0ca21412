"""What one process of the adversarial run writes down, as it does it.

Each event is one line and one write of its own, so a `kill -9` leaves every event that had
happened. Times are those of CLOCK_MONOTONIC, which all processes of a machine share.

    TIME KIND WORD...
"""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class Event(NamedTuple):
    """Something that happened in a process, at this moment of `time.monotonic`."""

    time: float
    kind: str
    words: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """All words."""
        return " ".join(self.words)


class Journal:
    """The journal of this process. Any thread may write."""

    def __init__(self, path: Path) -> None:
        self._output = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def log(self, kind: str, *words: object) -> None:
        """Write an event; it has happened now."""
        text = " ".join([f"{time.monotonic():.6f}", kind, *map(str, words)])
        os.write(self._output, text.replace("\n", " | ").encode() + b"\n")


def read_journal(path: Path) -> Iterator[Event]:
    """Return the events of a journal in their order. A last line that was cut is an error."""
    with path.open("rb") as lines:
        for line in lines:
            assert line.endswith(b"\n"), f"{path.name} ends within a line"
            moment, kind, *words = line.decode().split()
            yield Event(float(moment), kind, tuple(words))
