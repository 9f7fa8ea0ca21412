"""The states of a group, the transitions, and the errors for members in each state.

    Empty ----------> PreparingRebalance    a first member joins
    Preparing ------> CompletingRebalance   all have joined, or the time for it is over
    Preparing ------> Empty                 no member is left
    Completing -----> Stable                the leader's assignments are stored
    Completing, Stable -> Preparing         a member joins, leaves, or changes its subscription
    any ------------> Dead                  the group was deleted, or its coordinator moved

The names are Kafka's, as clients see them. Only these tables have rules about states; `group.py`
uses them, and asserts each transition.
"""

from enum import StrEnum
from typing import Final

from minibroker.protocol.constants import ErrorCode


class State(StrEnum):
    """The state of a group."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


class ConsumerGroupState(StrEnum):
    """The state of a group of the consumer protocol; it follows from the group's epochs."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"  # the target assignment is older than the group
    RECONCILING = "Reconciling"  # a member does not have yet what the target gives it
    STABLE = "Stable"
    DEAD = "Dead"


TRANSITIONS: Final = {
    State.EMPTY: {State.PREPARING_REBALANCE, State.DEAD},
    State.PREPARING_REBALANCE: {State.COMPLETING_REBALANCE, State.EMPTY, State.DEAD},
    State.COMPLETING_REBALANCE: {State.STABLE, State.PREPARING_REBALANCE, State.DEAD},
    State.STABLE: {State.PREPARING_REBALANCE, State.DEAD},
    State.DEAD: set[State](),
}

# The answers to a member of the current generation. An empty group has no members; a dead group
# answers the error it ended with.
HEARTBEAT: Final = {
    State.PREPARING_REBALANCE: ErrorCode.REBALANCE_IN_PROGRESS,
    State.COMPLETING_REBALANCE: ErrorCode.NONE,
    State.STABLE: ErrorCode.NONE,
}
# GRP-05. While a group prepares, members may commit what they still hold. In the new generation
# they hold nothing before they have the assignment.
COMMIT: Final = {
    State.PREPARING_REBALANCE: ErrorCode.NONE,
    State.COMPLETING_REBALANCE: ErrorCode.REBALANCE_IN_PROGRESS,
    State.STABLE: ErrorCode.NONE,
}
