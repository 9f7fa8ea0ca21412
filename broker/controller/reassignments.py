"""Reassignments: the replicas of a partition move to other brokers, step by step, as plans.

A reassignment leads from the assignment `original` to `target`. The store has both, so a next
controller continues from there. For one partition, in order:

1. The target replicas are added: `replicas` becomes the target, then those that leave. The added
   ones copy from the leader and join the in-sync set like any follower. At most
   `num.concurrent.partition.movements` partitions add replicas at a time; the others wait.
2. When the replicas that stay *suffice*, and the leader is one of those that leave, it hands over
   to the first target replica that is active and in sync (`handovers.py`).
3. One write takes those that leave out of the in-sync set and the assignment. They are `former`
   replicas until their brokers have deleted the files.

The replicas that stay suffice if all target replicas are in sync. If the target adds none (a
smaller replication factor, or a cancelled reassignment), `min.insync.replicas` of them are enough:
otherwise a replica that is down would keep a reassignment from being cancelled. So a removal never
leaves fewer in-sync replicas than acks=all needs.

To cancel is to reassign to the original assignment. A reassignment that replaces another one keeps
its original assignment. Until a reassignment is done, `min.insync.replicas` counts with as many
replicas as the original assignment has: a partition with one replica goes on while its second one
copies.
"""

import logging
from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import NamedTuple

from minibroker.broker.config import Config
from minibroker.broker.controller.moves import Move
from minibroker.broker.controller.plans import NO_CHANGE, Change, Draft, Plan, Report
from minibroker.broker.controller.state import PartitionRecord, Reassignment, State, TopicRecord
from minibroker.broker.errors import Refused
from minibroker.broker.turns import Turns, at_once
from minibroker.protocol.constants import NO_NODE, ErrorCode
from minibroker.protocol.messages.reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingReassignment,
    PartitionReassigned,
    PartitionReassignment,
)
from minibroker.protocol.types import TopicPartition


class FormerReplica(NamedTuple):
    """A replica that a reassignment removed, of the topic with this id."""

    name: TopicPartition
    topic_id: bytes
    node_id: int


def reassigned(state: State, names: Iterable[TopicPartition]) -> set[TopicPartition]:
    """Return those of the partitions that have a reassignment under way."""
    return {
        name
        for name in names
        if (record := state.partition(name)) is not None and record.reassignment is not None
    }


class Reassignments:
    """The partitions that have a reassignment under way, by `names`. `is_due`: a step of one may
    have become possible."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self.names: set[TopicPartition] = set()
        self.is_due = False

    def on_change(self, state: State, change: Change) -> None:
        """Handle a change that was written, after which the state is this."""
        self.names.difference_update(change.partitions)
        self.names |= reassigned(state, change.partitions)
        self.is_due |= bool(self.names) and change != NO_CHANGE

    def plan(self, state: State) -> Turns[Plan[None]]:
        """Plan the steps that are possible now."""
        self.is_due = False
        return plan_progress(state, self._config, self.names)

    def moves(self, state: State) -> Turns[tuple[Move, ...]]:
        """Return the moves of leaderships that reassignments wait for."""
        return moves_to_targets(state, self._config, tuple(self.names))


# -- requests


def plan_alter(
    state: State,
    config: Config,
    request: AlterPartitionReassignmentsRequest,
    ongoing: Collection[TopicPartition],
) -> Turns[Plan[AlterPartitionReassignmentsResponse]]:
    """Plan to begin, replace and cancel reassignments; `ongoing` are those under way. The last
    entry of a partition counts."""
    draft = Draft(state)
    room = yield from _room(state, config, ongoing)
    results: list[PartitionReassigned] = []
    for some in at_once(request.partitions):
        for wanted in some:
            name = TopicPartition(wanted.topic, wanted.partition)
            try:
                room -= _alter(draft, config, request, wanted, has_room=room > 0)
                results.append(PartitionReassigned(*name))
            except Refused as refused:
                results.append(PartitionReassigned(*name, refused.code, refused.message))
        yield
    is_allowed = request.allow_replication_factor_change
    answer = AlterPartitionReassignmentsResponse(
        partitions=tuple(results), allow_replication_factor_change=is_allowed
    )
    return draft.plan(answer)


def _alter(
    draft: Draft,
    config: Config,
    request: AlterPartitionReassignmentsRequest,
    wanted: PartitionReassignment,
    *,
    has_room: bool,
) -> bool:
    """Change the reassignment of one partition; return whether it takes a place among those that
    add replicas. Raises `Refused`."""
    name = TopicPartition(wanted.topic, wanted.partition)
    record = draft.partition(name)
    if record is None:
        raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {name}")
    target = wanted.replicas
    if target is None:
        if record.reassignment is None:
            what = f"no reassignment of {name} is under way"
            raise Refused(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, what)
        target = record.original
    elif target != record.original:
        _check_target(draft.state, name, target)
        if not request.allow_replication_factor_change and len(target) != len(record.original):
            what = f"{name} has {len(record.original)} replicas, the target {len(target)}"
            raise Refused(ErrorCode.INVALID_REPLICATION_FACTOR, what)
    if target == record.target:
        return False
    topic = draft.state.topics[name.topic]
    was_adding = is_adding(record)
    after = _with_target(record, target)
    after = _advanced(topic, after, config, has_room=has_room or was_adding)
    _set(draft, topic, after)
    return is_adding(after) and not was_adding


def _check_target(state: State, name: TopicPartition, target: tuple[int, ...]) -> None:
    """Raise `Refused` (INVALID_REPLICA_ASSIGNMENT) if no partition can have these replicas."""
    what = ""
    if not target:
        what = "has no broker"
    elif len({*target}) < len(target):
        what = "has a broker twice"
    elif unknown := [node for node in target if node not in state.admissions]:
        what = f"has the unknown broker {unknown[0]}"
    if what:
        raise Refused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"the target of {name} {what}")


def _with_target(record: PartitionRecord, target: tuple[int, ...]) -> PartitionRecord:
    """Return the partition with this target, before any step towards it.

    Replicas that only an earlier target had leave at once if they are not in sync: nothing depends
    on them. The others leave as those of the original assignment do.
    """
    original = record.original
    kept = [node for node in record.replicas if node in {*original, *target, *record.isr}]
    gone = [node for node in record.replicas if node not in kept]
    return replace(
        record,
        replicas=(*original, *(node for node in kept if node not in original)),
        reassignment=Reassignment(original, target),
        former=(*record.former, *gone),
    )


def list_ongoing(
    state: State, request: ListPartitionReassignmentsRequest, ongoing: Collection[TopicPartition]
) -> Turns[Plan[ListPartitionReassignmentsResponse]]:
    """List the reassignments under way; the plan changes nothing."""
    names = sorted(ongoing) if request.partitions is None else request.partitions
    found: dict[TopicPartition, OngoingReassignment] = {}
    for some in at_once(names):
        for name in some:
            record = state.partition(name) if name in ongoing else None
            if record is not None and record.reassignment is not None:
                adding, removing = record.reassignment.adding, record.removing
                found[name] = OngoingReassignment(*name, record.replicas, adding, removing)
        yield
    return Plan(ListPartitionReassignmentsResponse(partitions=tuple(found.values())), state)


# -- progress


def plan_progress(
    state: State, config: Config, ongoing: Collection[TopicPartition]
) -> Turns[Plan[None]]:
    """Plan the next steps of all reassignments under way, as far as they are possible now."""
    draft = Draft(state)
    room = yield from _room(state, config, ongoing)
    for some in at_once(sorted(ongoing)):
        for name in some:
            record = state.partition(name)
            if record is None:
                continue
            topic = state.topics[name.topic]
            after = _advanced(topic, record, config, has_room=room > 0)
            if after is not record:
                room += is_adding(record) - is_adding(after)
                _set(draft, topic, after)
        yield
    return draft.plan(None)


def is_adding(record: PartitionRecord) -> bool:
    """Whether added replicas copy, so that the partition counts as one that moves."""
    moving = record.reassignment
    return moving is not None and bool(moving.adding) and record.has_added


def _room(state: State, config: Config, ongoing: Collection[TopicPartition]) -> Turns[int]:
    """Return how many more partitions may add replicas now."""
    moving = 0
    for some in at_once(tuple(ongoing)):
        records = map(state.partition, some)
        moving += sum(record is not None and is_adding(record) for record in records)
        yield
    return config.num_concurrent_partition_movements - moving


def _advanced(
    topic: TopicRecord, record: PartitionRecord, config: Config, *, has_room: bool
) -> PartitionRecord:
    """Return the partition after the steps that are possible now, in the same partition epoch;
    itself if none is."""
    after = record
    if record.has_added or has_room:
        after = _assigned(after)
    if (after.leader in after.target or not after.removing) and may_end(topic, after, config):
        after = ended(after)
    return record if after == record else after


def _assigned(record: PartitionRecord) -> PartitionRecord:
    """Return the partition with the target replicas, then those that leave, as Kafka orders
    them."""
    replicas = (*record.target, *record.removing)
    former = tuple(node for node in record.former if node not in replicas)
    return replace(record, replicas=replicas, former=former)


def may_end(topic: TopicRecord, record: PartitionRecord, config: Config) -> bool:
    """Whether the replicas that stay suffice without those that leave."""
    moving = record.reassignment
    if moving is None or not record.has_added:
        return False
    needed = 0
    if moving.adding:
        needed = len(moving.target)
    elif record.removing:
        min_isr = config.for_topic(topic.configs).min_insync_replicas
        needed = min(max(1, min_isr), len(moving.target))
    return sum(node in record.isr for node in moving.target) >= needed


def ended(record: PartitionRecord) -> PartitionRecord:
    """Return the partition with its target alone; what leaves is remembered as former replicas."""
    return replace(
        record,
        replicas=record.target,
        isr=tuple(node for node in record.target if node in record.isr),
        reassignment=None,
        former=(*record.former, *record.removing),
    )


def _set(draft: Draft, topic: TopicRecord, record: PartitionRecord) -> None:
    """Replace a partition, in the next partition epoch, and report what is done."""
    record = replace(record, partition_epoch=record.partition_epoch + 1)
    draft.set_partition(topic, record)
    text = _described(TopicPartition(topic.name, record.number), record)
    draft.reports.append(Report(logging.INFO, text))


def _described(name: TopicPartition, record: PartitionRecord) -> str:
    if record.reassignment is None:
        replicas = _listed(record.replicas)
        return f"Partition {name}: reassigned to brokers {replicas}, in sync {_listed(record.isr)}"
    what = "adds" if record.has_added else "waits to add"
    return (
        f"Partition {name}: the reassignment {what} brokers"
        f" {_listed(record.reassignment.adding)} and removes {_listed(record.removing)}"
    )


def _listed(nodes: Iterable[int]) -> str:
    return ",".join(map(str, nodes)) or "none"


def moves_to_targets(
    state: State, config: Config, ongoing: Collection[TopicPartition]
) -> Turns[tuple[Move, ...]]:
    """Return the moves of leaderships that reassignments wait for: from leaders that are to leave,
    once the replicas that stay suffice."""
    moves: list[Move] = []
    for some in at_once(sorted(ongoing)):
        for name in some:
            record = state.partition(name)
            if record is None or record.leader == NO_NODE or record.leader in record.target:
                continue
            topic = state.topics[name.topic]
            if not may_end(topic, record, config):
                continue
            heirs = (node for node in record.target if node in record.isr and state.is_active(node))
            if (target := next(heirs, None)) is not None:
                moves.append(Move(name, topic.id, record.leader, record.leader_epoch, target))
        yield
    return tuple(moves)


# -- former replicas


def plan_forgetting(state: State, deleted: Iterable[FormerReplica]) -> Plan[None]:
    """Plan to forget former replicas whose brokers have deleted the files."""
    draft = Draft(state)
    for name, topic_id, node_id in deleted:
        record = draft.partition(name)
        if record is None or node_id not in record.former:
            continue
        topic = draft.state.topics[name.topic]
        if topic.id == topic_id:
            left = tuple(node for node in record.former if node != node_id)
            draft.set_partition(topic, replace(record, former=left))
    return draft.plan(None)
