"""ALTER_PARTITION: whether a leader gets the ISR that it proposes (A6, CTL-08, CTL-09).

The checks have the order of A6. Whether the partition has this ISR already is checked before the
version is compared, so that a repeated request succeeds. Several requests are checked one after
another and written in one transaction.
"""

from collections.abc import Sequence
from dataclasses import replace

from minibroker.broker.controller.plans import Draft, Plan
from minibroker.broker.controller.state import PartitionRecord, State
from minibroker.broker.turns import Turns, at_once
from minibroker.protocol.constants import NO_EPOCH, ErrorCode
from minibroker.protocol.messages.control import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    PartitionAltered,
    PartitionChange,
)
from minibroker.protocol.types import TopicPartition


def plan_alterations(
    state: State, requests: Sequence[AlterPartitionRequest]
) -> Turns[Plan[tuple[AlterPartitionResponse, ...]]]:
    """Plan the changes; the answer has one response for each request, in their order."""
    draft = Draft(state)
    answers = []
    for request in requests:
        answer = yield from _alter(draft, request)
        answers.append(answer)
    return draft.plan(tuple(answers))


def would_shrink(state: State, request: AlterPartitionRequest) -> bool:
    """Whether a request proposes a smaller in-sync set for some partition."""
    return any(
        (record := state.partition(TopicPartition(wanted.topic, wanted.partition))) is not None
        and len(wanted.isr) < len(record.isr)
        for wanted in request.partitions
    )


def _alter(draft: Draft, request: AlterPartitionRequest) -> Turns[AlterPartitionResponse]:
    sender = draft.state.brokers.get(request.broker_id)
    if sender is None or sender.epoch != request.broker_epoch:
        return AlterPartitionResponse(ErrorCode.STALE_BROKER_EPOCH)
    altered: list[PartitionAltered] = []
    for some in at_once(request.partitions):
        altered += [_alter_partition(draft, sender.node_id, wanted) for wanted in some]
        yield
    return AlterPartitionResponse(0, tuple(altered))


def _alter_partition(draft: Draft, sender: int, wanted: PartitionChange) -> PartitionAltered:
    record = draft.partition(TopicPartition(wanted.topic, wanted.partition))
    if record is None:
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return PartitionAltered(wanted.topic, wanted.partition, code)
    topic = draft.state.topics[wanted.topic]
    if topic.id != wanted.topic_id:
        return PartitionAltered(wanted.topic, wanted.partition, ErrorCode.UNKNOWN_TOPIC_ID)
    isr = tuple(member.node_id for member in wanted.isr)
    error = _refusal(draft.state, record, sender, wanted)
    if error is None:
        in_order = tuple(node for node in record.replicas if node in isr)
        record = replace(record, isr=in_order, partition_epoch=record.partition_epoch + 1)
        draft.set_partition(topic, record)
    return PartitionAltered(
        wanted.topic,
        wanted.partition,
        error or ErrorCode.NONE,
        record.leader,
        record.leader_epoch,
        record.partition_epoch,
        record.isr,
    )


def _refusal(
    state: State, record: PartitionRecord, sender: int, wanted: PartitionChange
) -> ErrorCode | None:
    """Return why a change is refused; NONE if it was made before, None if it may be made."""
    isr = [member.node_id for member in wanted.isr]
    if wanted.leader_epoch > record.leader_epoch or wanted.partition_epoch > record.partition_epoch:
        return ErrorCode.NOT_CONTROLLER  # the leader knows a newer state than this controller
    if wanted.leader_epoch < record.leader_epoch:
        return ErrorCode.FENCED_LEADER_EPOCH
    if sender != record.leader:
        return ErrorCode.INVALID_REQUEST
    if sorted(isr) == sorted(record.isr):
        return ErrorCode.NONE
    if wanted.partition_epoch < record.partition_epoch:
        return ErrorCode.INVALID_UPDATE_VERSION
    if len(set(isr)) < len(isr) or not set(isr) <= set(record.replicas) or record.leader not in isr:
        return ErrorCode.INVALID_REQUEST
    for member in wanted.isr:
        broker = state.brokers.get(member.node_id)
        is_added = member.node_id not in record.isr
        if (
            broker is None
            or member.broker_epoch not in (NO_EPOCH, broker.epoch)
            or (is_added and state.is_leaving(member.node_id))
            or (is_added and member.node_id in state.fenced)
        ):
            return ErrorCode.INELIGIBLE_REPLICA
    return None
