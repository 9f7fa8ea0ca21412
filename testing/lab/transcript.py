"""The events of a run as a table: one line for each event, one column for each replica.

A run is repeatable, so all of it is played before a line is printed, and the columns are as wide as
this run needs. A text that is too long for its column continues in the next line; the state is in
the first one.

Each replica shows its own view of its state after the event: role and leader epoch, log end offset
(LEO), high watermark (HW), and the ISR if it leads. If a run has a reader, the last column shows
the next offset that it fetches, and every value that it has been given.
"""

from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from textwrap import wrap
from typing import Final, NamedTuple

COLUMNS_MAX: Final = 100
INDENT: Final = 7  # the time, and a space
READER_HEAD: Final = "next seen"
LEGEND: Final = (
    "L leads, F follows, N neither, ! has failed, x is down; behind it the leader epoch it knows."
    " LEO: the next offset. HW: the first one that is not known to be committed. next, seen: what a"
    " reader asks for, and all that it was given."
)


class RoleMark(StrEnum):
    """A role in one letter."""

    LEADER = "L"
    FOLLOWER = "F"
    OFFLINE = "N"
    FAILED = "!"
    DOWN = "x"


class ReplicaState(NamedTuple):
    """One column of a line."""

    mark: RoleMark
    leader_epoch: int = 0
    log_end: int = 0
    high_watermark: int = 0
    isr: tuple[int, ...] = ()


class Event(NamedTuple):
    """What happened at `now` (seconds), the state of the replicas after it, and the reader's."""

    now: float
    text: str
    replicas: tuple[ReplicaState, ...]
    reader: str = ""


class Comment(NamedTuple):
    """A comment of the scenario."""

    text: str


Line = Event | Comment


def render(brokers: Sequence[int], lines: Sequence[Line]) -> Iterator[str]:
    """Yield the head of the table, then the text of each line, which may have several lines."""
    events = [line for line in lines if isinstance(line, Event)]
    numbers = [n for event in events for s in event.replicas for n in (s.log_end, s.high_watermark)]
    number_width = max(3, len(str(max(numbers, default=0))))
    cell_width = 3 + 2 * (number_width + 1) + 1 + max(3, 2 * len(brokers) - 1)
    text_width = COLUMNS_MAX - INDENT - len(brokers) * (cell_width + 3)
    reader_width = max((len(event.reader) for event in events), default=0)
    has_reader = reader_width > 0
    if has_reader:
        text_width -= max(reader_width, len(READER_HEAD)) + 3
    number_heads = f"{'LEO':>{number_width}} {'HW':>{number_width}} ISR"
    titles = [*(f"broker {broker}" for broker in brokers), *["reader"] * has_reader]
    columns = [*[f"    {number_heads}"] * len(brokers), *[READER_HEAD] * has_reader]
    names = _join("", titles, text_width, cell_width)
    heads = _join("event", columns, text_width, cell_width)
    yield f"{' ' * INDENT}{names}\n{'time s':<{INDENT}}{heads}"
    for line in lines:
        if isinstance(line, Comment):
            yield "\n".join(wrap(f"# {line.text}", COLUMNS_MAX, subsequent_indent="# "))
            continue
        text, *more = wrap(line.text, text_width)
        cells = [_cell(state, number_width) for state in line.replicas]
        cells += [line.reader] * has_reader
        first = f"{line.now:<{INDENT}g}{_join(text, cells, text_width, cell_width)}"
        yield "\n".join([first, *(f"{' ' * INDENT}{part}" for part in more)])


def legend() -> str:
    """Return the explanation of the letters."""
    return "\n".join(wrap(LEGEND, COLUMNS_MAX))


def _join(text: str, cells: Iterable[str], text_width: int, cell_width: int) -> str:
    padded = "".join(f" | {cell:<{cell_width}}" for cell in cells)
    return f"{text:<{text_width}}{padded}".rstrip()


def _cell(state: ReplicaState, number_width: int) -> str:
    if state.mark is RoleMark.DOWN:
        return state.mark.value
    numbers = f"{state.log_end:>{number_width}} {state.high_watermark:>{number_width}}"
    isr = ",".join(map(str, state.isr))
    epoch = "-" if state.leader_epoch < 0 else str(state.leader_epoch)
    return f"{state.mark}{epoch:<2} {numbers} {isr}".rstrip()
