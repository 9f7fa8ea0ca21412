"""DELETE_RECORDS: raise log starts, and answer when no replica that may lead brings records back.

The leader raises its own log start at once, and asks for its checkpoint. Its followers learn it
from their next FETCH answer, and report their own with the FETCH after that. The request waits for
the checkpoint, for every in-sync replica, and for the live replicas that may join. A replica that
is down raises its log start when it returns, before it may join the in-sync set (A3.6). The next
retention deletes the segments that lie completely below.
"""

import math
from typing import Any, NamedTuple

import trio

from minibroker.broker.errors import Refused
from minibroker.broker.replication.log_starts import LOG_STARTS, CheckpointTicket
from minibroker.broker.replication.partition import Partition
from minibroker.broker.replication.purgatory import Parked
from minibroker.broker.replication.replicas import IMAGE
from minibroker.broker.replication.roles import Leader
from minibroker.broker.server.bounds import by_name
from minibroker.broker.server.services import Services
from minibroker.broker.turns import Turn, Turns, at_once, in_turns_if
from minibroker.protocol.constants import INTERNAL_TOPICS, ErrorCode
from minibroker.protocol.messages.delete_records import (
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    PartitionDeleteRecords,
    PartitionRecordsDeleted,
)
from minibroker.protocol.types import TopicPartition

PARTITIONS_AT_ONCE = 200


class _Waiting(NamedTuple):
    """A partition that waits until its replicas start at `offset`; `place` is in the answer."""

    place: int
    partition: Partition
    leader_epoch: int
    offset: int


class _DeleteRecords:
    """One request: its answers so far, and the partitions that still wait."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._answers: list[PartitionRecordsDeleted] = []
        self._waiting: list[_Waiting] = []
        self._ticket: CheckpointTicket | None = None  # until the checkpoint has the log starts

    def delete(self, asked: PartitionDeleteRecords, now: float) -> None:
        """Raise one log start or refuse it, and add the answer."""
        name = TopicPartition(asked.topic, asked.partition)
        services = self._services
        try:
            if name.topic in INTERNAL_TOPICS:
                what = f"{name.topic} {INTERNAL_TOPICS[name.topic]}"
                raise Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, what)
            partition = services.partition(name, asked.topic_id)
            if not partition.settings.does_delete:
                what = f"cleanup.policy of {name.topic} is {partition.settings.cleanup_policy}"
                raise Refused(ErrorCode.POLICY_VIOLATION, what)
            if services.may_be_replaced(name, now):
                services.refuse_if_abandoned(partition.leader(), now)
            offset = services.replicas.delete_records(partition, asked.offset)
        except Refused as refused:
            code, message = refused.code, refused.message
            if code == ErrorCode.OFFSET_OUT_OF_RANGE and services.may_be_replaced(name, now):
                code = ErrorCode.NOT_LEADER_OR_FOLLOWER
                message = "another broker may lead, and have committed more: ask for metadata"
            self._answers.append(PartitionRecordsDeleted(*name, code, message))
            return
        place = len(self._answers)
        self._waiting.append(_Waiting(place, partition, partition.leader_epoch, offset))
        self._answers.append(PartitionRecordsDeleted(*name))

    def checkpoint(self) -> None:
        """Ask for a checkpoint of the log starts, which the answer waits for."""
        if self._waiting:
            self._ticket = self._services.replicas.log_starts.ask()

    @property
    def keys(self) -> tuple[object, ...]:
        """The keys that the final answers depend on: the partitions, the checkpoint, and the live
        brokers."""
        names = [item.partition.topic_partition for item in self._waiting]
        return (*names, LOG_STARTS, IMAGE)

    def attempt(self, now: float) -> DeleteRecordsResponse | None:
        """Return the answer once none of its entries can change any more; None before."""
        if self._ticket is not None:
            is_durable = self._services.replicas.log_starts.outcome(self._ticket)
            if is_durable is None:
                return None
            self._ticket = None
            if not is_durable:
                self._fail_all()
        self._waiting = [item for item in self._waiting if not self._is_final(item, now)]
        return None if self._waiting else DeleteRecordsResponse(tuple(self._answers))

    def _fail_all(self) -> None:
        for item in self._waiting:
            what = "the disk is full, or no file descriptor is free"
            self._fail(item, ErrorCode.KAFKA_STORAGE_ERROR, what)
        self._waiting.clear()

    def deadline(self, request_deadline: float) -> float:
        """Return until when to wait: without a limit for this broker's own disk."""
        return request_deadline if self._ticket is None else math.inf

    def expire(self) -> DeleteRecordsResponse:
        """Return the answer at the deadline. The leader's log start stays raised."""
        for item in self._waiting:
            what = "not all replicas have deleted the records yet"
            self._fail(item, ErrorCode.REQUEST_TIMED_OUT, what)
        return DeleteRecordsResponse(tuple(self._answers))

    def _is_final(self, item: _Waiting, now: float) -> bool:
        partition, role = item.partition, item.partition.role
        if not isinstance(role, Leader) or role.leader_epoch != item.leader_epoch:
            code = ErrorCode.NOT_LEADER_OR_FOLLOWER
            if self._services.image.partition(partition.topic_partition) is None:
                code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            self._fail(item, code, "its leader changed")
            return True
        low_watermark = role.low_watermark(partition.log.log_start)
        if low_watermark < item.offset:
            if self._services.is_abandoned_and_replaceable(role, now):
                what = "its followers may have another leader"
                self._fail(item, ErrorCode.NOT_LEADER_OR_FOLLOWER, what)
                return True
            return False
        name = partition.topic_partition
        self._answers[item.place] = PartitionRecordsDeleted(*name, low_watermark=low_watermark)
        return True

    def _fail(self, item: _Waiting, code: ErrorCode, message: str) -> None:
        name, role = item.partition.topic_partition, item.partition.role
        answer = PartitionRecordsDeleted(*name, code, message)
        if isinstance(role, Leader):
            low_watermark = role.low_watermark(item.partition.log.log_start)
            answer = PartitionRecordsDeleted(*name, code, message, low_watermark)
        self._answers[item.place] = answer


def handle(
    services: Services, request: DeleteRecordsRequest, now: float
) -> DeleteRecordsResponse | Parked[DeleteRecordsResponse] | Turns[Any]:
    """Raise the log starts, and wait for the followers."""
    is_long = len(request.partitions) > PARTITIONS_AT_ONCE
    return in_turns_if(is_long, _delete_all(services, request, now))


def _delete_all(
    services: Services, request: DeleteRecordsRequest, now: float
) -> Turns[DeleteRecordsResponse | Parked[DeleteRecordsResponse]]:
    asked = yield from by_name(request.partitions, _name_of, Turn())
    deletion = _DeleteRecords(services)
    for some in at_once(asked.values(), PARTITIONS_AT_ONCE):
        for each in some:
            deletion.delete(each, now)
        if len(some) == PARTITIONS_AT_ONCE:
            yield
            now = trio.current_time()
    return _finish(deletion, request, now)


def _name_of(asked: PartitionDeleteRecords) -> tuple[str, int]:
    return asked.topic, asked.partition


def _finish(
    deletion: _DeleteRecords, request: DeleteRecordsRequest, now: float
) -> DeleteRecordsResponse | Parked[DeleteRecordsResponse]:
    deletion.checkpoint()
    answer = deletion.attempt(now)
    if answer is not None:
        return answer
    deadline = now + max(0, request.timeout_ms) / 1000
    return Parked(
        deletion.keys, lambda: deletion.deadline(deadline), deletion.attempt, deletion.expire
    )
