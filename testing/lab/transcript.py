"""The events of a run as a table: one line for each event, one column for each replica.

A run is repeatable, so all of it is played before a line is printed, and the columns are as wide as
this run needs. A text that is too long for its column continues in the next line; the state is in
the first one.

Each replica shows its own view of its state after the event: role and leader epoch, log end offset
(LEO), high watermark (HW), and the ISR if it leads. If a run has a reader, the last column shows
the next offset that it fetches, and every value that it has been given.

Two more things are shown in lines below the event that changed them: the leader epochs of a log,
and what a leader knows of each follower. The leader moves its HW by that, not by the follower's
own LEO.
"""

from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from textwrap import wrap
from typing import Final, NamedTuple

from minibroker.protocol.constants import NO_OFFSET
from minibroker.protocol.epoch_history import EpochStart

COLUMNS_MAX: Final = 100
INDENT: Final = 7  # the time, and a space
READER_HEAD: Final = "next seen"
LEGEND: Final = (
    "L leads, F follows, N neither, ! has failed, x is down; behind it the leader epoch it knows."
    " LEO: the next offset. HW: the first one that is not known to be committed. next, seen: what a"
    " reader asks for, and all that it was given. Lines below an event: the epochs of a log as"
    " (epoch, start), and what a leader knows of a follower: its LEO as of its last FETCH in this"
    " leader epoch (remote LEO), when that came, and when it last had all that the leader had. LSO:"
    " where a reader of committed records must stop, which transactions may hold below the HW."
)


class RoleMark(StrEnum):
    """A role in one letter."""

    LEADER = "L"
    FOLLOWER = "F"
    OFFLINE = "N"
    FAILED = "!"
    DOWN = "x"


class FollowerView(NamedTuple):
    """What a leader knows of a follower: the log end that its last FETCH named, -1 before the first
    one, and in seconds when that came and when the follower last had everything; None: never."""

    broker: int
    log_end: int = NO_OFFSET
    fetched_at: float | None = None
    caught_up_at: float | None = None


class ReplicaState(NamedTuple):
    """One column of a line, and what is told below it: the epochs of the log, and if it leads the
    followers, and the last stable offset where that is below the high watermark."""

    mark: RoleMark
    leader_epoch: int = 0
    log_end: int = 0
    high_watermark: int = 0
    isr: tuple[int, ...] = ()
    epochs: tuple[EpochStart, ...] = ()
    followers: tuple[FollowerView, ...] = ()
    held_back_to: int | None = None


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
    changes = _Changes()
    for line in lines:
        if isinstance(line, Comment):
            yield "\n".join(wrap(f"# {line.text}", COLUMNS_MAX, subsequent_indent="# "))
            continue
        text, *more = wrap(line.text, text_width)
        cells = [_cell(state, number_width) for state in line.replicas]
        cells += [line.reader] * has_reader
        first = f"{line.now:<{INDENT}g}{_join(text, cells, text_width, cell_width)}"
        below = [f"  {told}" for told in changes.texts(brokers, line.replicas)]
        yield "\n".join([first, *(f"{' ' * INDENT}{part}" for part in (*more, *below))])


def legend() -> str:
    """Return the explanation of the letters."""
    return "\n".join(wrap(LEGEND, COLUMNS_MAX))


class _Changes:
    """What was told last of epochs and followers: only what has changed is told again."""

    def __init__(self) -> None:
        self._epochs: dict[int, tuple[EpochStart, ...]] = {}
        self._followers: dict[int, tuple[int, dict[int, FollowerView]]] = {}
        self._stable: dict[int, int | None] = {}  # where an LSO is below the HW, else None

    def texts(self, brokers: Sequence[int], replicas: Sequence[ReplicaState]) -> Iterator[str]:
        """Yield a text for each log whose epochs changed, and for each follower of which a leader
        knows something else. A leader of another leader epoch knows nothing yet."""
        for broker, state in zip(brokers, replicas, strict=True):
            if state.mark is RoleMark.DOWN:
                continue
            if state.epochs != self._epochs.get(broker, ()):
                self._epochs[broker] = state.epochs
                pairs = " ".join(f"({epoch},{start})" for epoch, start in state.epochs)
                yield f"epochs of {broker}: {pairs or 'none'}"
            term, known = self._followers.get(broker, (state.leader_epoch, {}))
            if term != state.leader_epoch:
                known = {}
            for view in state.followers:
                if view != known.get(view.broker):
                    yield f"{broker} knows of {view.broker}: {_view_text(view)}"
            known = {view.broker: view for view in state.followers}
            self._followers[broker] = state.leader_epoch, known
            is_leader = state.mark is RoleMark.LEADER
            if is_leader and state.held_back_to != self._stable.get(broker):
                at = "the HW" if state.held_back_to is None else state.held_back_to
                yield f"LSO of {broker}: {at}"
            self._stable[broker] = state.held_back_to


def _view_text(view: FollowerView) -> str:
    end = "?" if view.log_end == NO_OFFSET else view.log_end
    fetched = "no FETCH" if view.fetched_at is None else f"last FETCH at {view.fetched_at:g} s"
    caught_up = "never" if view.caught_up_at is None else f"at {view.caught_up_at:g} s"
    return f"remote LEO {end}, {fetched}, caught up {caught_up}"


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
