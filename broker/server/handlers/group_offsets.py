"""OFFSET_COMMIT, OFFSET_FETCH and OFFSET_DELETE.

The offsets of one request are one batch, a record for each partition, so all of them are committed
or none. The answer comes when the batch has been replayed (GRP-02), because from then on a fetch
returns them. A partition whose offset is refused has its own error; the others are committed
(GRP-07).

The coordinator checks only what it can know: the partition exists in this broker's image. It
accepts any offset, because only the partition's leader knows where the log ends; a consumer learns
from its first fetch that the offset is out of range. An offset below 0 stands for none, as in
Kafka: kafkajs commits -1 or -2 where a group is to begin at an end of the log.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias, TypeVar

import trio

from minibroker.broker.errors import Refused
from minibroker.broker.groups.consumer_group import ConsumerGroup
from minibroker.broker.groups.coordinator import Serving
from minibroker.broker.groups.offsets import OffsetTable
from minibroker.broker.groups.records import (
    CommittedOffset,
    Key,
    OffsetKey,
    Value,
)
from minibroker.broker.groups.registry import append_error
from minibroker.broker.groups.shard import Shard
from minibroker.broker.replication.purgatory import Parked
from minibroker.broker.server.bounds import ANSWER_BYTES_MAX, ITEM_BYTES, by_name
from minibroker.broker.server.services import Services
from minibroker.broker.turns import AT_ONCE, Turn, Turns, at_once, in_turns_if, without_pause
from minibroker.protocol.constants import INT32_MAX, NO_EPOCH, ErrorCode
from minibroker.protocol.messages.group_offsets import (
    GroupOffsets,
    GroupPartition,
    GroupPartitions,
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
ITEMS_OF_A_GROUP = 20  # that take as long as to look up its offsets
CHARS_OF_AN_ITEM = 64  # of a group's name, that take as long as an item
# Of a commit, as Kafka's coordinator says it (4.1, CoordinatorOperationExceptionHelper); some
# clients take REQUEST_TIMED_OUT as an error.
NOT_COPIED_IN_TIME = ErrorCode.COORDINATOR_NOT_AVAILABLE
# A response that may be made in turns once it is known.
Waiting: TypeAlias = Parked[Answer | Turns[Answer]]
Records: TypeAlias = list[tuple[Key, Value | None]]
_Item = TypeVar("_Item", PartitionCommit, GroupPartition)
ItemKey: TypeAlias = tuple[str, int, bytes]  # topic, partition, topic id


def commit(
    services: Services, request: OffsetCommitRequest, now: float
) -> OffsetCommitResponse | Waiting[OffsetCommitResponse] | Turns[Any]:
    """Store the committed offsets of a group."""
    is_long = len(request.partitions) > AT_ONCE
    return in_turns_if(is_long, _commit(services, request, now))


def _commit(
    services: Services, request: OffsetCommitRequest, now: float
) -> Turns[OffsetCommitResponse | Waiting[OffsetCommitResponse]]:
    turn = Turn()
    items = yield from named(services, request.partitions, turn)
    asked = yield from by_name(items, key_of, turn)
    refusals: dict[ItemKey, ErrorCode] = {}

    def answer(error: ErrorCode) -> Turns[OffsetCommitResponse]:
        """Return the answer: partitions that were not refused have this outcome. librdkafka gives
        a commit up if COORDINATOR_LOAD_IN_PROGRESS lasts for 0.3 s."""
        if error == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            error = ErrorCode.COORDINATOR_NOT_AVAILABLE
        return OffsetCommitResponse((yield from results(asked, refusals, error)))

    try:
        if turn.pauses:
            now = trio.current_time()
        serving = check_commit(services, request, now)
    except Refused as refused:
        return (yield from answer(refused.code))
    now_ms = services.wall_ms()
    records: Records = []
    growth = 0
    for name, item in asked.items():
        if why := refusal(services, item):
            refusals[name] = why
        else:
            key = OffsetKey(request.group_id, *_name_of(item))
            value = committed(item, now_ms)
            growth += serving.shard.table.growth(key, value)
            records.append((key, value))
        if turn.is_over():
            yield

    def check(now: float) -> Serving:
        """Check again, after a pause, that the sender may commit."""
        return check_commit(services, request, now)

    try:
        services.groups.check_room(growth)
    except Refused as refused:
        return (yield from answer(refused.code))
    return (yield from _write(services, serving, records, answer, turn, now, check))


def _name_of(item: _Item) -> TopicPartition:
    return TopicPartition(item.topic, item.partition)


def key_of(item: PartitionCommit | GroupPartition) -> ItemKey:
    """Return what tells the items of a request apart: topics whose ids are unknown have no name."""
    return item.topic, item.partition, item.topic_id


def named(services: Services, items: Sequence[_Item], turn: Turn) -> Turns[Sequence[_Item]]:
    """Return the items with the names of their topics, as far as their ids are known. A request
    names all its topics, or none."""
    if not items or items[0].topic:
        return items
    named: list[_Item] = []
    for item in items:
        name = services.image.topic_names.get(item.topic_id, "")
        named.append(replace(item, topic=name))
        if turn.is_over():
            yield
    return named


def _is_of_topic(services: Services, item: PartitionCommit | GroupPartition) -> bool:
    """Whether an item names no topic id, or the one that the topic of its name has."""
    return not item.topic_id or services.image.topic_names.get(item.topic_id) == item.topic


def check_commit(services: Services, request: OffsetCommitRequest, now: float) -> Serving:
    """Raise `Refused` unless the sender may commit for the group here."""
    serving = services.groups.serving(request.group_id, now)
    if error := _member_error(serving, request, now):
        error = services.groups.sure_error(request.group_id, error, now)
        raise Refused(error, "its sender may not commit for the group")
    return serving


def _member_error(serving: Serving, request: OffsetCommitRequest, now: float) -> ErrorCode:
    """Return why the sender may not commit for the group, or NONE (GRP-05, GRP-06).

    In a group of the consumer protocol, the generation is the member's epoch. A group that does not
    exist has no generation; a commit that names none creates it.
    """
    group = serving.registry.find(request.group_id, now)
    if isinstance(group, ConsumerGroup):
        return group.check_commit(request.member_id, request.generation)
    if group is not None:
        return group.check_commit(request, now)
    if request.generation < 0:
        return ErrorCode.NONE
    is_known = request.knows_unknown_group
    return ErrorCode.GROUP_ID_NOT_FOUND if is_known else ErrorCode.ILLEGAL_GENERATION


def refusal(services: Services, item: PartitionCommit) -> ErrorCode:
    """Return why this offset cannot be committed, or NONE."""
    if not _is_of_topic(services, item):
        return ErrorCode.UNKNOWN_TOPIC_ID
    if services.image.partition(TopicPartition(item.topic, item.partition)) is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if not NO_EPOCH <= item.leader_epoch <= INT32_MAX:
        return ErrorCode.UNKNOWN_LEADER_EPOCH
    if item.metadata and len(item.metadata.encode()) > services.config.offset_metadata_max_bytes:
        return ErrorCode.OFFSET_METADATA_TOO_LARGE
    return ErrorCode.NONE


def committed(item: PartitionCommit, now_ms: int) -> CommittedOffset:
    return CommittedOffset(item.offset, item.leader_epoch, item.metadata or "", now_ms)


def _write(
    services: Services,
    serving: Serving,
    records: Records,
    answer: Callable[[ErrorCode], Turns[Answer]],
    turn: Turn,
    now: float,
    check: Callable[[float], Serving],
) -> Turns[Answer | Waiting[Answer]]:
    """Append records as one batch, and answer with the outcome. `check` is called after a pause,
    because the group may be another broker's by then, or in another generation."""
    if not records:
        return (yield from answer(ErrorCode.NONE))
    deadline = now + services.config.offsets_commit_timeout_ms / 1000
    shard, registry = serving
    try:
        batch = yield from encode(services, shard, records, turn)
        if turn.pauses:
            now = trio.current_time()
            if check(now) != serving:
                raise Refused(ErrorCode.NOT_COORDINATOR)
        end = services.groups.append_encoded(shard, batch, records, now)
    except Refused as refused:
        return (yield from answer(append_error(refused.code)))

    def attempt(now: float) -> Answer | Turns[Answer] | None:
        services.groups.catch_up(shard, now)
        error = shard.outcome(end, registry)
        return None if error is None else finish(error)

    def finish(error: ErrorCode) -> Answer | Turns[Answer]:
        return in_turns_if(len(records) > AT_ONCE, answer(error))

    name = shard.partition.topic_partition
    return Parked((name,), lambda: deadline, attempt, lambda: finish(NOT_COPIED_IN_TIME))


def results(
    asked: Iterable[ItemKey], refusals: Mapping[ItemKey, ErrorCode], error: ErrorCode
) -> Turns[tuple[PartitionCommitted, ...]]:
    """Return the result for each partition: its refusal, or else `error`."""
    results: list[PartitionCommitted] = []
    for some in at_once(asked):
        if results:
            yield
        results += [
            PartitionCommitted(key[0], key[1], refusals.get(key, error), key[2]) for key in some
        ]
    return tuple(results)


def encode(services: Services, shard: Shard, records: Records, turn: Turn) -> Turns[memoryview]:
    """Encode the batch of these records. One that a single turn can encode does not pause."""
    encoding = shard.encode(records, services.wall_ms())
    if len(records) <= AT_ONCE:
        return without_pause(encoding)
    turn.pauses += 1
    return (yield from encoding)


def fetch(
    services: Services,
    request: OffsetFetchRequest,
    now: float,
    *,
    is_member: Callable[[str], bool] = lambda group_id: False,
) -> OffsetFetchResponse | Turns[OffsetFetchResponse]:
    """Return the committed offsets of a group, or of several (GRP-02, GRP-08).

    INVALID_REQUEST for more than an answer has room for. Otherwise the error is one of two after
    which clients ask again: COORDINATOR_LOAD_IN_PROGRESS, the only one that librdkafka survives,
    where the sender will learn of another coordinator by its heartbeats (`is_member`), or there
    may be none; NOT_COORDINATOR elsewhere. The error stands beside each partition, too: aiokafka
    looks only there, and takes a partition that is missing for one without a commit.
    """
    if request.groups is not None:
        return _fetch_groups(services, request, now, is_member)
    is_long = request.partitions is None or len(request.partitions) > AT_ONCE
    turns = _fetch_or_refuse(services, request, now, is_member(request.group_id), ANSWER_BYTES_MAX)
    return in_turns_if(is_long, turns)


def _fetch_groups(
    services: Services,
    request: OffsetFetchRequest,
    now: float,
    is_member: Callable[[str], bool],
) -> Turns[OffsetFetchResponse]:
    """Return the offsets of each group; of one that is named several times, the last entry's. The
    groups share the room of the answer."""
    turn = Turn()
    pauses = 0
    asked = yield from by_name(request.groups or (), lambda each: each.group_id, turn)
    answers: list[GroupOffsets] = []
    room = ANSWER_BYTES_MAX
    for group_id, item in asked.items():
        one = OffsetFetchRequest(group_id, item.partitions, request.require_stable)
        if error := _reader_error(services, item, now):
            found = OffsetFetchResponse(error)
        else:
            found = yield from _fetch_or_refuse(services, one, now, is_member(group_id), room)
        room -= len(group_id) + (yield from _size_of(found.partitions, turn))
        answers.append(GroupOffsets(group_id, found.error, found.partitions))
        if turn.is_over(ITEMS_OF_A_GROUP + len(group_id) // CHARS_OF_AN_ITEM):
            yield
        if turn.pauses > pauses:
            pauses, now = turn.pauses, trio.current_time()
    return OffsetFetchResponse(groups=tuple(answers))


def _size_of(partitions: Iterable[PartitionGroupOffset], turn: Turn) -> Turns[int]:
    """Return how many bytes offsets take in an answer, about."""
    size = 0
    for some in at_once(partitions):
        size += sum([_size_of_one(each) for each in some])
        if turn.is_over(len(some)):
            yield
    return size


def _size_of_one(partition: PartitionGroupOffset) -> int:
    return ITEM_BYTES + len(partition.topic) + len(partition.metadata or "")


def _reader_error(services: Services, item: GroupPartitions, now: float) -> ErrorCode:
    """Return why a member of a group of the consumer protocol may not read its offsets, or NONE. A
    request without a member is an administrator's."""
    if not item.member_id and item.member_epoch < 0:
        return ErrorCode.NONE
    try:
        registry = services.groups.serving(item.group_id, now).registry
    except Refused:
        return ErrorCode.NONE  # the fetch is refused in its own way
    group = registry.consumers(item.group_id, now)
    if group is None:
        return ErrorCode.NONE
    error = group.check_member(item.member_id, item.member_epoch)
    return services.groups.sure_error(item.group_id, error, now)


def _fetch_or_refuse(
    services: Services, request: OffsetFetchRequest, now: float, is_member: bool, room: int
) -> Turns[OffsetFetchResponse]:
    answer = yield from _fetch(services, request, now, room)
    if not answer.error:
        return answer
    if answer.error == ErrorCode.COORDINATOR_NOT_AVAILABLE:
        answer = OffsetFetchResponse(ErrorCode.NOT_COORDINATOR)
    if answer.error == ErrorCode.NOT_COORDINATOR and is_member:
        answer = OffsetFetchResponse(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    refused: list[PartitionGroupOffset] = []
    asked = yield from by_name(request.partitions or (), key_of, Turn())
    for some in at_once(asked.values()):
        if refused:
            yield
        refused += [
            PartitionGroupOffset(
                item.topic, item.partition, answer.error, metadata="", topic_id=item.topic_id
            )
            for item in some
        ]
    return replace(answer, partitions=tuple(refused))


def _fetch(
    services: Services, request: OffsetFetchRequest, now: float, room: int
) -> Turns[OffsetFetchResponse]:
    turn = Turn()
    group_id = request.group_id
    try:
        shard = _readable(services, group_id, now)
        if request.partitions is None:
            asked = [_with_id(services, name) for name in shard.table.offsets(group_id)]
        else:
            items = yield from named(services, request.partitions, turn)
            asked = [*(yield from by_name(items, key_of, turn)).values()]
        answers: list[PartitionGroupOffset] = []
        answer_size = 0
        for item in asked:
            answers.append(_offset_of(services, shard.table, request, item))
            answer_size += _size_of_one(answers[-1])
            if answer_size > room:
                return OffsetFetchResponse(ErrorCode.INVALID_REQUEST)
            if turn.is_over():
                yield
        # What was read before a pause holds if no other broker was the coordinator until now.
        if turn.pauses and _readable(services, group_id, trio.current_time()) is not shard:
            return OffsetFetchResponse(ErrorCode.NOT_COORDINATOR)
    except Refused as refused:
        return OffsetFetchResponse(refused.code)
    return OffsetFetchResponse(partitions=tuple(answers))


def _readable(services: Services, group_id: str, now: float) -> Shard:
    """Return the shard of a group whose offsets this broker may tell. Raises `Refused`."""
    shard = services.groups.serving(group_id, now).shard
    services.groups.check_session(shard, now)
    return shard


def _with_id(services: Services, name: TopicPartition) -> GroupPartition:
    """Return a partition with a committed offset, and its topic's id if that still exists."""
    topic = services.image.topics.get(name.topic)
    return GroupPartition(*name, b"" if topic is None else topic.id)


def _offset_of(
    services: Services, table: OffsetTable, request: OffsetFetchRequest, item: GroupPartition
) -> PartitionGroupOffset:
    name, group_id, topic_id = _name_of(item), request.group_id, item.topic_id
    if not _is_of_topic(services, item):
        unknown = ErrorCode.UNKNOWN_TOPIC_ID
        return PartitionGroupOffset(*name, unknown, metadata="", topic_id=topic_id)
    if request.require_stable and table.is_pending(OffsetKey(group_id, *name)):
        unstable = ErrorCode.UNSTABLE_OFFSET_COMMIT
        return PartitionGroupOffset(*name, unstable, metadata="", topic_id=topic_id)
    committed = table.offsets(group_id).get(name)
    if committed is None:
        return PartitionGroupOffset(*name, metadata="", topic_id=topic_id)
    offset, leader_epoch = committed.offset, committed.leader_epoch
    return PartitionGroupOffset(
        *name, ErrorCode.NONE, offset, leader_epoch, committed.metadata, topic_id
    )


def delete(
    services: Services, request: OffsetDeleteRequest, now: float
) -> Turns[OffsetDeleteResponse | Waiting[OffsetDeleteResponse]]:
    """Delete some of a group's offsets.

    GROUP_SUBSCRIBED_TO_TOPIC if a member subscribes to the topic; NON_EMPTY_GROUP if the members
    are not consumers, because then the coordinator does not know their topics. To delete an offset
    that was not committed is no error.
    """
    turn = Turn()
    asked = yield from by_name(request.partitions, key_of, turn)
    refusals: dict[ItemKey, ErrorCode] = {}

    def answer(error: ErrorCode) -> Turns[OffsetDeleteResponse]:
        return OffsetDeleteResponse(partitions=(yield from results(asked, refusals, error)))

    try:
        serving, subscribed = _check_delete(services, request.group_id, now)
    except Refused as refused:
        return OffsetDeleteResponse(refused.code)
    records: Records = []
    for key, item in asked.items():
        name = _name_of(item)
        is_committed = name in serving.shard.table.offsets(request.group_id)
        if name.topic in subscribed:
            refusals[key] = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
        elif is_committed:
            records.append((OffsetKey(request.group_id, *name), None))
        elif services.image.partition(name) is None:
            refusals[key] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if turn.is_over():
            yield

    def check(now: float) -> Serving:
        """Check again, after a pause, that no member reads what is deleted."""
        serving, now_subscribed = _check_delete(services, request.group_id, now)
        if not now_subscribed <= subscribed:
            raise Refused(ErrorCode.NON_EMPTY_GROUP, "its members changed their subscriptions")
        return serving

    return (yield from _write(services, serving, records, answer, turn, now, check))


def _check_delete(services: Services, group_id: str, now: float) -> tuple[Serving, set[str]]:
    """Return the group's coordinator and its subscribed topics. Raises `Refused` if offsets of the
    group cannot be deleted here and now."""
    serving = services.groups.serving(group_id, now)
    group = serving.registry.find(group_id, now)
    if group is None:
        raise Refused(ErrorCode.GROUP_ID_NOT_FOUND, "there is no such group")
    subscribed = group.subscribed_topics()
    if subscribed is None:
        raise Refused(ErrorCode.NON_EMPTY_GROUP, "the topics of its members are not known")
    return serving, subscribed
