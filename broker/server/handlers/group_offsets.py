"""OFFSET_COMMIT, OFFSET_FETCH and OFFSET_DELETE.

The offsets of one request are one batch, a record for each partition, so all of them are committed
or none. The answer comes when the batch has been replayed (GRP-02), because from then on a fetch
returns them. A partition whose offset is refused has its own error; the others are committed
(GRP-07).

The coordinator checks only what it can know: the partition exists in this broker's image, and the
offset is not negative. It accepts any other offset, because only the partition's leader knows where
the log ends; a consumer learns from its first fetch that the offset is out of range.
"""

from collections.abc import Callable
from typing import TypeVar

from minibroker.broker.errors import Refused
from minibroker.broker.groups.coordinator import Serving
from minibroker.broker.groups.records import (
    INT32_MAX,
    CommittedOffset,
    Key,
    OffsetKey,
    Value,
)
from minibroker.broker.groups.registry import append_error
from minibroker.broker.groups.states import State
from minibroker.broker.replication.purgatory import Parked
from minibroker.broker.server.services import Services
from minibroker.protocol.constants import NO_EPOCH, ErrorCode
from minibroker.protocol.messages.group_offsets import (
    GroupPartition,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    PartitionCommit,
    PartitionCommitted,
    PartitionGroupOffset,
)
from minibroker.protocol.types import TopicPartition

Answer = TypeVar("Answer")
Records = list[tuple[Key, Value | None]]


def commit(
    services: Services, request: OffsetCommitRequest, now: float
) -> OffsetCommitResponse | Parked[OffsetCommitResponse]:
    """Store the committed offsets of a group."""
    asked = request.partitions

    def answer(error: ErrorCode) -> OffsetCommitResponse:
        """Return the answer: partitions that were not refused have this outcome."""
        return OffsetCommitResponse(
            tuple(
                PartitionCommitted(item.topic, item.partition, refusal or error)
                for item, refusal in zip(asked, refusals, strict=True)
            )
        )

    refusals = [ErrorCode.NONE] * len(asked)
    try:
        serving = services.groups.serving(request.group_id, now)
    except Refused as refused:
        return answer(refused.code)
    if error := _member_error(serving, request, now):
        return answer(services.groups.sure_error(request.group_id, error, now))
    refusals = [_refusal(services, item) for item in asked]
    now_ms = services.wall_ms()
    records: Records = [
        (OffsetKey(request.group_id, item.topic, item.partition), _committed(item, now_ms))
        for item, refusal in zip(asked, refusals, strict=True)
        if not refusal
    ]
    return _write(services, serving, records, answer, now)


def _member_error(serving: Serving, request: OffsetCommitRequest, now: float) -> ErrorCode:
    """Return why the sender may not commit for the group, or NONE (GRP-05, GRP-06).

    A group that does not exist has no generation; a commit that names none creates it.
    """
    group = serving.registry.get(request.group_id, now)
    if group is not None:
        return group.check_commit(request, now)
    return ErrorCode.NONE if request.generation < 0 else ErrorCode.ILLEGAL_GENERATION


def _refusal(services: Services, item: PartitionCommit) -> ErrorCode:
    """Return why this offset cannot be committed, or NONE."""
    if services.image.partition(TopicPartition(item.topic, item.partition)) is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if item.offset < 0:
        return ErrorCode.OFFSET_OUT_OF_RANGE
    if not NO_EPOCH <= item.leader_epoch <= INT32_MAX:
        return ErrorCode.UNKNOWN_LEADER_EPOCH
    if item.metadata and len(item.metadata.encode()) > services.config.offset_metadata_max_bytes:
        return ErrorCode.OFFSET_METADATA_TOO_LARGE
    return ErrorCode.NONE


def _committed(item: PartitionCommit, now_ms: int) -> CommittedOffset:
    return CommittedOffset(item.offset, item.leader_epoch, item.metadata or "", now_ms)


def _write(
    services: Services,
    serving: Serving,
    records: Records,
    answer: Callable[[ErrorCode], Answer],
    now: float,
) -> Answer | Parked[Answer]:
    """Append records, and answer with the outcome."""
    if not records:
        return answer(ErrorCode.NONE)
    shard, registry = serving
    try:
        end = services.groups.append(shard, records, now)
    except Refused as refused:
        return answer(append_error(refused.code))

    def attempt(now: float) -> Answer | None:
        shard.catch_up(now)
        error = shard.outcome(end, registry)
        return None if error is None else answer(error)

    deadline = now + services.config.offsets_commit_timeout_ms / 1000
    name = shard.partition.topic_partition
    late = ErrorCode.REQUEST_TIMED_OUT
    return Parked((name,), lambda: deadline, attempt, lambda: answer(late))


def fetch(services: Services, request: OffsetFetchRequest, now: float) -> OffsetFetchResponse:
    """Return the committed offsets of a group (GRP-02, GRP-08)."""
    try:
        shard = services.groups.serving(request.group_id, now).shard
        services.groups.check_session(shard, now)
    except Refused as refused:
        return OffsetFetchResponse(refused.code)
    offsets = shard.table.offsets(request.group_id)
    asked = request.partitions
    if asked is None:
        asked = tuple(GroupPartition(*name) for name in offsets)
    answers = []
    for topic, partition in ((item.topic, item.partition) for item in asked):
        committed = offsets.get(TopicPartition(topic, partition))
        if request.require_stable and shard.table.is_pending(
            OffsetKey(request.group_id, topic, partition)
        ):
            unstable = ErrorCode.UNSTABLE_OFFSET_COMMIT
            answers.append(PartitionGroupOffset(topic, partition, unstable, metadata=""))
        elif committed is None:
            answers.append(PartitionGroupOffset(topic, partition, metadata=""))
        else:
            answers.append(
                PartitionGroupOffset(
                    topic,
                    partition,
                    ErrorCode.NONE,
                    committed.offset,
                    committed.leader_epoch,
                    committed.metadata,
                )
            )
    return OffsetFetchResponse(partitions=tuple(answers))


def delete(
    services: Services, request: OffsetDeleteRequest, now: float
) -> OffsetDeleteResponse | Parked[OffsetDeleteResponse]:
    """Delete some of a group's offsets.

    GROUP_SUBSCRIBED_TO_TOPIC if a member subscribes to the topic; NON_EMPTY_GROUP if the members
    are not consumers, because then the coordinator does not know their topics. To delete an offset
    that was not committed is no error.
    """
    try:
        serving = services.groups.serving(request.group_id, now)
    except Refused as refused:
        return OffsetDeleteResponse(refused.code)
    group = serving.registry.get(request.group_id, now)
    if group is None:
        return OffsetDeleteResponse(ErrorCode.GROUP_ID_NOT_FOUND)
    subscribed = set() if group.state is State.EMPTY else group.subscribed_topics()
    if subscribed is None:
        return OffsetDeleteResponse(ErrorCode.NON_EMPTY_GROUP)
    offsets = serving.shard.table.offsets(request.group_id)
    refusals = []
    for item in request.partitions:
        name = TopicPartition(item.topic, item.partition)
        is_read = item.topic in subscribed
        error = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if is_read else ErrorCode.NONE
        if not is_read and name not in offsets and services.image.partition(name) is None:
            error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        refusals.append(error)

    def answer(error: ErrorCode) -> OffsetDeleteResponse:
        return OffsetDeleteResponse(
            partitions=tuple(
                PartitionCommitted(item.topic, item.partition, refusal or error)
                for item, refusal in zip(request.partitions, refusals, strict=True)
            )
        )

    records: Records = [
        (OffsetKey(request.group_id, item.topic, item.partition), None)
        for item, refusal in zip(request.partitions, refusals, strict=True)
        if not refusal and TopicPartition(item.topic, item.partition) in offsets
    ]
    return _write(services, serving, records, answer, now)
