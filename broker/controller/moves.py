"""Moves of leaderships away from live leaders, as plans: preferred leader election (CTL-10), and
leaders that leave by a reassignment.

The preferred leader of a partition is its first replica. It is elected only if it is active and in
the ISR, and only after the leader has handed over (`handovers.py`). Each `Move` names the leader
and the leader epoch at the decision; the controller drops it if they have changed.

The controller looks by itself every `leader.imbalance.check.interval.seconds`. It moves leaderships
to a broker if other brokers lead more than `leader.imbalance.per.broker.percentage` of the
partitions that prefer it. It waits until no broker has come or gone for a whole interval: a broker
that was just admitted still copies, and during a rolling restart the next one stops soon.
"""

import logging
import math
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from minibroker.broker.controller.plans import Draft, Plan, Report
from minibroker.broker.controller.state import PartitionRecord, State
from minibroker.broker.turns import Turns, at_once
from minibroker.protocol.constants import NO_NODE, ErrorCode
from minibroker.protocol.messages.leaders import PartitionElected
from minibroker.protocol.types import TopicPartition


class Move(NamedTuple):
    """A decision that `target` leads instead of `leader`, which leads in `leader_epoch`."""

    name: TopicPartition
    topic_id: bytes
    leader: int
    leader_epoch: int
    target: int


class Selection(NamedTuple):
    """The moves, and the results of the partitions that do not move."""

    moves: tuple[Move, ...]
    others: tuple[PartitionElected, ...]


class Balance:
    """When to look for imbalance; times in seconds."""

    def __init__(self, interval_s: float, now: float) -> None:
        self._interval_s = interval_s
        self.due_at = math.inf
        self.restart(now)

    def restart(self, now: float) -> None:
        """Wait a whole interval from now: a broker came, went or asked to stop, or the controller
        has just looked."""
        self.due_at = now + self._interval_s


def preferred_moves(
    state: State, names: Collection[TopicPartition] | None = None
) -> Turns[Selection]:
    """Select the moves that elect the preferred leaders of these partitions, or of all.

    With None (all) the result leaves out partitions whose preferred replica leads.
    """
    moves: list[Move] = []
    others: list[PartitionElected] = []
    wanted: Iterable[TopicPartition] = names or ()
    if names is None:
        wanted = (name for name, _ in state.partitions())
    for some in at_once(wanted):
        for name in some:
            found = _preferred_move(state, name)
            if isinstance(found, Move):
                moves.append(found)
            elif names is not None or found.error != ErrorCode.ELECTION_NOT_NEEDED:
                others.append(found)
        yield
    return Selection(tuple(moves), tuple(others))


def _preferred_move(state: State, name: TopicPartition) -> Move | PartitionElected:
    record = state.partition(name)
    if record is None:
        code, what = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {name}"
        return PartitionElected(*name, code, what)
    preferred = record.replicas[0]
    if record.leader == preferred:
        return PartitionElected(*name, ErrorCode.ELECTION_NOT_NEEDED, f"broker {preferred} leads")
    if reason := _obstacle(state, record, preferred):
        return PartitionElected(*name, ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, reason)
    return Move(name, state.topics[name.topic].id, record.leader, record.leader_epoch, preferred)


def _obstacle(state: State, record: PartitionRecord, target: int) -> str:
    """Return why a replica cannot replace a live leader; "" if it can."""
    if record.leader == NO_NODE:
        return "the partition has no leader"
    if target not in state.brokers:
        return f"broker {target} is not alive"
    if state.is_leaving(target):
        return f"broker {target} is about to stop"
    if target in state.fenced:
        return f"broker {target} is fenced: the controller does not hear it"
    if target not in record.isr:
        return f"broker {target} is not in sync"
    return ""


def imbalanced(state: State, percentage: int) -> Turns[tuple[Move, ...]]:
    """Return the moves to brokers whose preferred partitions are led by others for more than a
    percentage; none while a broker is about to stop."""
    if any(state.is_leaving(node) for node in state.brokers):
        return ()
    preferred, misplaced = Counter[int](), Counter[int]()
    for some in at_once(state.partitions()):
        for _, record in some:
            preferred[record.replicas[0]] += 1
            misplaced[record.replicas[0]] += record.leader != record.replicas[0]
        yield
    selection = yield from preferred_moves(state)
    return tuple(
        move
        for move in selection.moves
        if 100 * misplaced[move.target] > percentage * preferred[move.target]
    )


def moves_from(state: State, leaving: int) -> Turns[tuple[Move, ...]]:
    """Return the moves away from a broker that asks to stop, to the replicas that a review would
    elect (CTL-11)."""
    moves: list[Move] = []
    for some in at_once(state.partitions()):
        for name, record in some:
            if record.leader != leaving:
                continue
            heirs = [
                node
                for node in record.replicas
                if node != leaving and node in record.isr and state.is_active(node)
            ]
            if heirs:
                topic_id = state.topics[name.topic].id
                moves.append(Move(name, topic_id, leaving, record.leader_epoch, heirs[0]))
        yield
    return tuple(moves)


def plan_moves(state: State, moves: Sequence[Move]) -> Turns[Plan[tuple[TopicPartition, ...]]]:
    """Plan to elect the targets where nothing has changed; the answer names the partitions moved.

    The ISR loses only fenced members: the leader before the move stays in it as a follower.
    """
    draft = Draft(state)
    moved: list[TopicPartition] = []
    counts = Counter[int]()
    for some in at_once(moves):
        for move in some:
            record = state.partition(move.name)
            if record is None or not _is_current(state, record, move):
                continue
            elected = replace(
                record,
                isr=tuple(node for node in record.isr if node not in state.fenced),
                leader=move.target,
                leader_epoch=record.leader_epoch + 1,
                partition_epoch=record.partition_epoch + 1,
            )
            draft.set_partition(state.topics[move.name.topic], elected)
            moved.append(move.name)
            counts[move.target] += 1
        yield
    if moved:
        to = ", ".join(f"{count} to broker {node}" for node, count in sorted(counts.items()))
        text = f"{len(moved)} leaderships moved from live leaders ({to})"
        draft.reports.append(Report(logging.INFO, text))
    return draft.plan(tuple(moved))


def _is_current(state: State, record: PartitionRecord, move: Move) -> bool:
    return (
        state.topics[move.name.topic].id == move.topic_id
        and (record.leader, record.leader_epoch) == (move.leader, move.leader_epoch)
        and not _obstacle(state, record, move.target)
    )
