"""The states of a transactional id, and the legal moves between them.

    Empty ---------------------> Ongoing          a first partition is added
    Ongoing -------------------> Ongoing          more partitions are added
    Ongoing -------------------> PrepareCommit    the producer commits: decided
    Ongoing -------------------> PrepareAbort     the producer aborts, or is fenced, or is late
    Empty, Complete... --------> PrepareAbort     second protocol: the producer aborts nothing
    PrepareCommit -------------> CompleteCommit   every partition has its marker
    PrepareAbort --------------> CompleteAbort    as above
    Complete... ---------------> Ongoing          the next transaction
    Empty, Complete... --------> Empty            the producer begins a session
    Empty, Complete... --------> Dead             the id has expired

The names and numbers are Kafka's. A transaction is decided in PrepareCommit and PrepareAbort: from
there only one move is legal. So every later coordinator finishes it in the same way.
"""

from enum import StrEnum
from typing import Final


class State(StrEnum):
    """The state of a transactional id."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"
    DEAD = "Dead"


IDLE: Final = frozenset({State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT})
DECIDED: Final = frozenset({State.PREPARE_COMMIT, State.PREPARE_ABORT})

TRANSITIONS: Final = {
    State.EMPTY: {State.EMPTY, State.ONGOING, State.PREPARE_ABORT, State.DEAD},
    State.ONGOING: {State.ONGOING, State.PREPARE_COMMIT, State.PREPARE_ABORT},
    State.PREPARE_COMMIT: {State.COMPLETE_COMMIT},
    State.PREPARE_ABORT: {State.COMPLETE_ABORT},
    State.COMPLETE_COMMIT: {State.EMPTY, State.ONGOING, State.PREPARE_ABORT, State.DEAD},
    State.COMPLETE_ABORT: {State.EMPTY, State.ONGOING, State.PREPARE_ABORT, State.DEAD},
    State.DEAD: set[State](),
}

# The number of a state in a stored record.
STATUS: Final = {
    State.EMPTY: 0,
    State.ONGOING: 1,
    State.PREPARE_COMMIT: 2,
    State.PREPARE_ABORT: 3,
    State.COMPLETE_COMMIT: 4,
    State.COMPLETE_ABORT: 5,
    State.DEAD: 6,
}
