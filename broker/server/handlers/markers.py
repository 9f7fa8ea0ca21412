"""WRITE_TXN_MARKERS and DESCRIBE_PRODUCERS: what partitions' leaders do for transactions.

A coordinator that has decided a transaction sends a marker to the leaders of its partitions. A
marker is appended like a batch with acks=all: its answer waits until the high watermark has passed
it. The coordinator repeats a marker until it has an answer, so one may be in a log several times,
which changes nothing.
"""

from collections.abc import Generator
from typing import Final, NamedTuple, TypeAlias

import trio

from minibroker.broker.errors import Refused
from minibroker.broker.metadata.model import ClusterImage
from minibroker.broker.replication.partition import Partition
from minibroker.broker.replication.purgatory import Parked
from minibroker.broker.replication.roles import Leader
from minibroker.broker.server.bounds import ANSWER_BYTES_MAX, ITEM_BYTES, by_name
from minibroker.broker.server.services import Services
from minibroker.broker.turns import AT_ONCE, Turn, Turns, in_turns_if
from minibroker.protocol.constants import (
    INT32_MAX,
    NO_EPOCH,
    PRODUCER_EPOCH_MAX,
    TRANSACTIONS_TOPIC,
    ErrorCode,
)
from minibroker.protocol.messages.transactions import (
    ActiveProducer,
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionProducers,
    TransactionMarker,
    TransactionMarkerResult,
    TransactionPartitionResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from minibroker.protocol.types import TopicPartition

WAIT_S: Final = 30.0  # for the in-sync replicas
ITEMS_OF_A_MARKER: Final = 10  # that take as long as to append one

Answer: TypeAlias = WriteTxnMarkersResponse | Turns[WriteTxnMarkersResponse]
Written: TypeAlias = WriteTxnMarkersResponse | Parked[Answer]


class _Waiting(NamedTuple):
    """A marker that was appended, and is answered once everything below `end` is committed."""

    marker: int
    place: int
    partition: Partition
    leader_epoch: int
    end: int


class _Markers:
    """One request: the errors of its markers and partitions so far, and what is waited for."""

    def __init__(self, services: Services, request: WriteTxnMarkersRequest) -> None:
        self._services = services
        self._request = request
        self._errors: dict[tuple[int, int], int] = {}  # by marker and place; others have none
        self.size = len(request.markers)  # in elements
        self.size += sum([len(marker.partitions) for marker in request.markers])
        self._waiting: list[_Waiting] = []
        self._newest_epoch = _newest_coordinator_epoch(services.image)

    def append_all(self) -> Turns[Written]:
        """Append the markers, and return the answer, or wait for it."""
        turn = Turn()
        now = trio.current_time()
        for index, marker in enumerate(self._request.markers):
            for place, name in enumerate(marker.partitions):
                self._append(index, place, marker, TopicPartition(*name), now)
                if turn.is_over(ITEMS_OF_A_MARKER):
                    yield
                    now = trio.current_time()
        answer = self.attempt(now)
        if isinstance(answer, Generator):
            return (yield from answer)
        if answer is not None:
            return answer
        deadline = now + WAIT_S
        keys = tuple({item.partition.topic_partition: None for item in self._waiting})
        return Parked(keys, lambda: deadline, self.attempt, self._expire)

    def _append(
        self, index: int, place: int, marker: TransactionMarker, name: TopicPartition, now: float
    ) -> None:
        services = self._services
        try:
            _check(marker, self._newest_epoch)
            partition = services.partition(name)
            if services.may_be_replaced(name, now):
                services.refuse_if_abandoned(partition.leader(), now)
            appended = services.replicas.append_marker(partition, marker, now, services.wall_ms())
        except Refused as refused:
            self._errors[index, place] = refused.code
            return
        end = appended.last_offset + 1
        self._waiting.append(_Waiting(index, place, partition, partition.leader_epoch, end))

    def attempt(self, now: float) -> Answer | None:
        """Return the answer once no entry of it can change any more; None before."""
        while self._waiting and self._is_final(self._waiting[-1], now):
            self._waiting.pop()
        return None if self._waiting else self._answer()

    def _is_final(self, item: _Waiting, now: float) -> bool:
        """Whether a marker is committed, or cannot be in this leader epoch."""
        partition, role = item.partition, item.partition.role
        code = ErrorCode.NONE
        if not isinstance(role, Leader) or role.leader_epoch != item.leader_epoch:
            code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        elif not role.is_committed(item.end):
            if not self._services.is_abandoned_and_replaceable(role, now):
                return False
            code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        elif not role.is_acknowledgeable(partition.settings.min_insync_replicas):
            code = ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        self._errors[item.marker, item.place] = code
        return True

    def _expire(self) -> Answer:
        for item in self._waiting:
            self._errors[item.marker, item.place] = ErrorCode.REQUEST_TIMED_OUT
        return self._answer()

    def _answer(self) -> Answer:
        return in_turns_if(self.size > AT_ONCE, self._response())

    def _response(self) -> Turns[WriteTxnMarkersResponse]:
        answers: list[TransactionMarkerResult] = []
        turn = Turn()
        for index, marker in enumerate(self._request.markers):
            results: list[TransactionPartitionResult] = []
            for place, name in enumerate(marker.partitions):
                error = self._errors.get((index, place), ErrorCode.NONE)
                results.append(TransactionPartitionResult(*name, error))
                if turn.is_over():
                    yield
            answers.append(TransactionMarkerResult(marker.producer_id, tuple(results)))
            if turn.is_over():
                yield
        return WriteTxnMarkersResponse(tuple(answers))


def _newest_coordinator_epoch(image: ClusterImage) -> int:
    """Return the newest leader epoch of a partition of `__transaction_state`; -1 without one."""
    topic = image.topics.get(TRANSACTIONS_TOPIC)
    partitions = () if topic is None else topic.partitions
    return max([partition.leader_epoch for partition in partitions], default=NO_EPOCH)


def _check(marker: TransactionMarker, newest_epoch: int) -> None:
    """Raise `Refused` for a marker that no record can hold, and for one of a coordinator that this
    broker has not heard of: an epoch that no coordinator had would fence all of them. A coordinator
    whose election is news here sends its marker again.
    """
    is_sound = (
        marker.producer_id >= 0
        and 0 <= marker.producer_epoch <= PRODUCER_EPOCH_MAX
        and 0 <= marker.coordinator_epoch <= INT32_MAX
    )
    if not is_sound:
        what = (
            f"a marker of producer {marker.producer_id} epoch {marker.producer_epoch}, coordinator"
            f" epoch {marker.coordinator_epoch}"
        )
        raise Refused(ErrorCode.INVALID_REQUEST, what)
    if marker.coordinator_epoch > newest_epoch:
        what = f"no coordinator of epoch {marker.coordinator_epoch} is known here"
        raise Refused(ErrorCode.NOT_COORDINATOR, what)


def write(
    services: Services, request: WriteTxnMarkersRequest, now: float
) -> Written | Turns[Written]:
    """Append the markers, and answer when they are committed."""
    markers = _Markers(services, request)
    return in_turns_if(markers.size * ITEMS_OF_A_MARKER > AT_ONCE, markers.append_all())


def describe_producers(
    services: Services, request: DescribeProducersRequest, now: float
) -> Turns[DescribeProducersResponse]:
    """Return the producers that the log of each partition knows."""
    turn = Turn()
    named = yield from by_name(request.partitions, lambda name: TopicPartition(*name), turn)
    answers: list[PartitionProducers] = []
    size = 0
    for name in named:
        producers: list[ActiveProducer] = []
        try:
            if size > ANSWER_BYTES_MAX:
                what = "the answer is too large: ask for fewer partitions"
                raise Refused(ErrorCode.INVALID_REQUEST, what)
            log = services.partition(name).log
            services.partition(name).leader()
            for producer_id, entry in log.producers.entries():
                producers.append(
                    ActiveProducer(
                        producer_id,
                        entry.epoch,
                        entry.last_sequence,
                        entry.last_timestamp,
                        entry.coordinator_epoch,
                        entry.transaction_start,
                    )
                )
                size += ITEM_BYTES
                if size > ANSWER_BYTES_MAX:
                    break
                if turn.is_over():
                    yield
            answers.append(PartitionProducers(*name, producers=tuple(producers)))
        except Refused as refused:
            answers.append(PartitionProducers(*name, refused.code, refused.message))
        size += ITEM_BYTES
        if turn.is_over():
            yield
    return DescribeProducersResponse(tuple(answers))
