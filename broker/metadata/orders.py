"""Checks of a controller's order, before a broker obeys it.

Any client that reaches the port can pose as a controller, and a defect of the real one should not
break every broker. So the partition states of an order are checked where it arrives. The order is
refused if, for example, a topic name is a path, a leader is not in the ISR, or a member of the ISR
is not assigned.
"""

from collections.abc import Iterable
from typing import Final

from minibroker.protocol.constants import (
    DELETED_LEADER,
    INT64_MAX,
    NO_EPOCH,
    NO_NODE,
)
from minibroker.protocol.messages.control import PartitionState
from minibroker.protocol.topic_names import is_topic_name

TOPIC_ID_BYTES: Final = 16


def are_sound(states: Iterable[PartitionState]) -> bool:
    """Whether all of these states are possible."""
    return all(map(_is_sound, states))


def _is_sound(state: PartitionState) -> bool:
    if not is_topic_name(state.topic) or not 0 <= state.partition < 2**31:
        return False
    if state.leader == DELETED_LEADER:
        return True
    return (
        len(state.topic_id) == TOPIC_ID_BYTES
        and 0 <= state.leader_epoch < 2**31
        and 0 <= state.partition_epoch <= INT64_MAX
        and NO_EPOCH <= state.unclean_epoch <= state.leader_epoch
        and 0 < len(set(state.isr)) == len(state.isr)
        and {*state.isr} <= {*state.replicas}
        and {*state.original} <= {*state.replicas}
        and min(state.replicas) >= 0
        and (state.leader == NO_NODE or state.leader in state.isr)
    )
