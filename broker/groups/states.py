"""The states of a group, how one follows another, and what a member is told in each.

    Empty ----------> PreparingRebalance    a first member joins
    Preparing ------> CompletingRebalance   all have joined, or the time for it is over
    Preparing ------> Empty                 nobody is left
    Completing -----> Stable                the leader's assignment is stored
    Completing, Stable -> Preparing         a member joins, goes, or wants something else
    any ------------> Dead                  the group was deleted, or its coordinator moved

The names are Kafka's, as they are told to clients. The tables are the only place where a rule
about a state as such stands; `group.py` asks them, and asserts each transition.
"""

from enum import StrEnum
from typing import Final

from minibroker.protocol.constants import ErrorCode


class State(StrEnum):
    """Where a group is between two generations."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


TRANSITIONS: Final = {
    State.EMPTY: {State.PREPARING_REBALANCE, State.DEAD},
    State.PREPARING_REBALANCE: {State.COMPLETING_REBALANCE, State.EMPTY, State.DEAD},
    State.COMPLETING_REBALANCE: {State.STABLE, State.PREPARING_REBALANCE, State.DEAD},
    State.STABLE: {State.PREPARING_REBALANCE, State.DEAD},
    State.DEAD: set[State](),
}

# What a member of the current generation is answered. An empty group has none, a dead one answers
# what it died of.
HEARTBEAT: Final = {
    State.PREPARING_REBALANCE: ErrorCode.REBALANCE_IN_PROGRESS,
    State.COMPLETING_REBALANCE: ErrorCode.NONE,
    State.STABLE: ErrorCode.NONE,
}
# GRP-05. While a group prepares, what its members hold is still theirs to commit; in the new
# generation they hold nothing before the assignment is there.
COMMIT: Final = {
    State.PREPARING_REBALANCE: ErrorCode.NONE,
    State.COMPLETING_REBALANCE: ErrorCode.REBALANCE_IN_PROGRESS,
    State.STABLE: ErrorCode.NONE,
}
