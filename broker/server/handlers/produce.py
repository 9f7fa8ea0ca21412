"""PRODUCE: append the batches, then answer as `acks` demands.

The partitions of a request are independent: each batch is appended or refused on its own, and the
answer has one entry for each, in the request's order. An answer waits only for appended batches:
with acks=all until the high watermark has passed them, with acks=1 on a `flush=always` topic until
they are durable here. A duplicate waits like the original, which may not be committed yet either.

The in-sync set must be large enough at the append, and again before acks=all is acknowledged: it
may have shrunk in between. A broker whose session may have ended, or which may be fenced, refuses
acks 0 and 1, because another broker may lead already. It still accepts acks=all, since only the
newest leader's in-sync set can confirm those. If its followers have not fetched for long either, it
refuses acks=all too, also for requests that wait: they would wait in vain.

A request with many batches, or with many bytes, is appended in turns. Its batches are views of the
request's own memory then, not of the shared receive buffer (`wires.py`, `frame_reader.py`). So is
the rest of a request whose batches unpack to more than one turn may take; a single batch of that
size is looked into by a worker thread.

The records of a valid batch are looked into before the append, as far as that costs little
(`protocol.records.producer_check`): what no client can decode is INVALID_RECORD, which producers do
not send again. A largest timestamp that is not that of the records is corrected, as in Kafka:
retention and look-ups by time go by it. A batch with a wrong checksum was damaged on its way: it is
CORRUPT_MESSAGE, which they send again.

A transactional batch that begins a transaction in its partition is appended once the transaction's
coordinator has verified it (`replication/verified_appends.py`); its answer waits for that first. A
request with transactional batches names its transactional id, or all of it is refused, as in Kafka.

A waiting request holds offsets and epochs, never the request itself, whose records are views of the
receive buffer. No failure here is UNKNOWN_SERVER_ERROR: clients have doubled records after it.
"""

import logging
from collections import deque
from collections.abc import Hashable, Iterable
from functools import partial
from typing import Any, NamedTuple

import trio

from minibroker.broker.errors import Refused
from minibroker.broker.log.outcomes import Appended
from minibroker.broker.replication.partition import Partition
from minibroker.broker.replication.purgatory import Parked
from minibroker.broker.replication.roles import Leader
from minibroker.broker.replication.verified_appends import ProducerTransaction, WaitingAppend
from minibroker.broker.server.services import HangUp, Services
from minibroker.broker.transactions.coordinator import check_transactional_id
from minibroker.broker.turns import Steps, at_once
from minibroker.protocol.constants import (
    ACKS_ALL,
    ACKS_LEADER,
    ACKS_NONE,
    ELEMENTS_AT_ONCE,
    INTERNAL_TOPICS,
    MAGIC,
    NO_EPOCH,
    NO_NODE,
    NO_RECORD,
    NO_TIMESTAMP,
    OFFSETS_TOPIC,
    ErrorCode,
)
from minibroker.protocol.messages.produce import (
    PartitionProduce,
    PartitionProduced,
    ProduceRequest,
    ProduceResponse,
)
from minibroker.protocol.records.batch import (
    BatchHeader,
    has_valid_crc,
    is_transactional,
    read_header,
    read_max_timestamp,
    stamp_max_timestamp,
)
from minibroker.protocol.records.producer_check import Budget, Examined, examine, examine_large
from minibroker.protocol.records.retained import COMPACTED_RECORDS_MAX
from minibroker.protocol.types import TopicPartition

logger = logging.getLogger(__name__)

BATCHES_AT_ONCE = 50
BYTES_AT_ONCE = 4 * 1024 * 1024  # above the size of the shared receive buffer
ACKS = (ACKS_ALL, ACKS_NONE, ACKS_LEADER)


class _Waiting(NamedTuple):
    """An appended batch whose answer waits until everything below `end` counts."""

    place: int  # in the answer
    partition: Partition
    leader_epoch: int
    end: int


class _Unverified(NamedTuple):
    """A batch that is appended once its transaction is verified."""

    place: int  # in the answer
    name: TopicPartition
    waiting: WaitingAppend
    partition: Partition


class _Produce:
    """One request: its answers so far, and the batches whose answers are not final yet."""

    __slots__ = (
        "_acks",
        "_answers",
        "_budget",
        "_client_id",
        "_is_without_id",
        "_may_decide_alone",
        "_names_leader",
        "_peer",
        "_refusal",
        "_services",
        "_transaction",
        "_unverified",
        "_waiting",
    )

    def __init__(
        self,
        services: Services,
        request: ProduceRequest,
        now: float,
        client_id: str | None,
        peer: str,
        *,
        is_without_id: bool,
    ) -> None:
        self._services = services
        acks = request.acks
        self._is_without_id = is_without_id
        self._transaction = None
        if request.transactional_id is not None:
            self._transaction = _transaction_of(request.transactional_id, request)
        self._client_id = client_id
        self._peer = peer
        self._acks = acks
        self.renew(now)
        self._answers: list[PartitionProduced] = []
        self._names_leader = False  # whether one of them does
        self._waiting: list[_Waiting] = []
        self._unverified: deque[_Unverified] = deque()

    def renew(self, now: float) -> None:
        """Begin a turn: ask whether this broker may still decide alone."""
        self._budget = Budget()
        self._may_decide_alone = self._services.controller.may_decide_alone(now)
        self._refusal = _refusal(self._acks, may_decide_alone=self._may_decide_alone)
        if self._is_without_id:
            what = "transactional batches, and no transactional id"
            self._refusal = Refused(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, what)

    def append(
        self, asked: PartitionProduce, now: float, now_ms: int, examined: Examined | None = None
    ) -> bool:
        """Append one batch or refuse it, and add its answer. Return False, and do nothing, if what
        is left of this turn's budget is too little for it. `examined` is what a worker found."""
        topic_id = b"" if asked.topic else asked.topic_id  # of a topic without a name
        if topic_id:
            asked = self._named(asked)
        # Not by its own `__new__`, a call more: as all that is made for each PRODUCE.
        name = tuple.__new__(TopicPartition, (asked.topic, asked.partition))
        replicas = self._services.replicas
        partition = None
        try:
            if self._refusal is not None:
                raise self._refusal
            if topic_id and not asked.topic:
                raise Refused(ErrorCode.UNKNOWN_TOPIC_ID, "no topic has this id")
            if name.topic in INTERNAL_TOPICS:
                apis = "group apis" if name.topic == OFFSETS_TOPIC else "apis of transactions"
                what = f"{name.topic} is written by brokers only; use the {apis}"
                raise Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, what)
            partition = self._services.partition(name, asked.topic_id)
            if not (self._may_decide_alone and replicas.is_role_present(name)):
                if self._acks != ACKS_ALL:
                    what = "the controller has not confirmed its roles since it registered again"
                    raise Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, what)
                self._services.refuse_if_abandoned(partition.leader(), now)
            # A decoded request has views; an empty one is refused like any other non-batch.
            batch: memoryview = asked.records  # type: ignore[assignment]
            log = partition.log
            header = log.check_batch(batch)
            checked = self._check_records(batch, header, log.limits.is_compacted, examined)
            if checked is None:
                return False
            if self._transaction is not None and checked.is_transactional:
                if isinstance(self._transaction, Refused):
                    raise self._transaction
                verified = self._services.verified_appends
                waiting = verified.submit(partition, batch, checked, self._transaction, self._acks)
                if waiting is not None:
                    place = len(self._answers)
                    self._unverified.append(_Unverified(place, name, waiting, partition))
                    self._answers.append(PartitionProduced(*name, topic_id=topic_id))
                    return True
            appended = replicas.append(partition, batch, self._acks, now, now_ms, header=checked)
        except Refused as refused:
            failure = self._failure(name, refused.code, refused.message, topic_id)
            failure = failure._replace(wrong_record=refused.record)
            self._log_refusal(name, refused, now)
            if partition is not None:  # a forgotten producer needs this to continue
                failure = failure._replace(log_start=partition.log.log_start)
            self._answers.append(failure)
            return True
        stamp = checked.max_timestamp
        self._on_appended(len(self._answers), partition, stamp, appended, now, now_ms)
        self._answers.append(_offsets_of(name, appended, partition.log.log_start, topic_id))
        return True

    def _on_appended(
        self,
        place: int,
        partition: Partition,
        max_timestamp: int,
        appended: Appended,
        now: float,
        now_ms: int,
    ) -> None:
        """Note the largest timestamp (ms) that the producer gave an appended batch, whose answer
        has this place; wait for what `acks` demands. `now_ms` is the wall clock."""
        if appended.append_time_ms == NO_TIMESTAMP and max_timestamp >= 0:
            topic = partition.topic_partition.topic
            self._services.far_stamps.record(topic, max_timestamp, now_ms)
        if self._acks != ACKS_ALL:
            self._services.replicas.warn_of_weak_acks(partition, self._acks, now)
            if not partition.is_synced_before_ack:
                return  # it counts from the append on
        end = appended.last_offset + 1
        if not self._counts(partition, end):
            self._waiting.append(_Waiting(place, partition, partition.leader_epoch, end))

    def _on_verified(self, item: _Unverified, now: float) -> bool:
        """Whether it is known what became of a batch that waited for its verification."""
        place, name, waiting, partition = item
        outcome = waiting.outcome
        if outcome is None:
            return False
        topic_id = self._answers[place].topic_id
        if isinstance(outcome, Refused):
            self._log_refusal(name, outcome, now)
            failure = self._failure(name, outcome.code, outcome.message, topic_id)
            self._answers[place] = failure._replace(log_start=partition.log.log_start)
        else:
            stamp = read_max_timestamp(waiting.batch)
            self._on_appended(place, partition, stamp, outcome, now, self._services.wall_ms())
            answer = _offsets_of(name, outcome, partition.log.log_start, topic_id)
            self._answers[place] = answer
        return True

    def _named(self, asked: PartitionProduce) -> PartitionProduce:
        """Return a request with the name of its topic, if the id is known."""
        if asked.topic or not asked.topic_id:
            return asked
        return asked._replace(topic=self._services.image.topic_names.get(asked.topic_id, ""))

    def needs_keys(self, asked: PartitionProduce) -> bool:
        """Whether each record needs a key, since the topic is compacted."""
        asked = self._named(asked)
        partition = self._services.replicas.get(TopicPartition(asked.topic, asked.partition))
        return partition is not None and partition.log.limits.is_compacted

    def _check_records(
        self, batch: memoryview, header: BatchHeader, needs_keys: bool, examined: Examined | None
    ) -> BatchHeader | None:
        """Raise `Refused` if no client can decode the records of a valid batch, or compaction could
        not keep one, and correct their largest timestamp. Return the header as it is then; None if
        the budget is too small to say."""
        if needs_keys and header.record_count > COMPACTED_RECORDS_MAX:
            what = (
                f"{header.record_count} records in one batch of a compacted topic, which takes"
                f" {COMPACTED_RECORDS_MAX}: send smaller batches"
            )
            raise Refused(ErrorCode.MESSAGE_TOO_LARGE, what)
        flaw, max_timestamp, is_unpacked, keyless = examined or examine(
            batch, header, self._budget, needs_keys=needs_keys
        )
        if flaw:
            raise Refused(ErrorCode.INVALID_RECORD, f"no client can decode the records: {flaw}")
        if keyless is not None:
            what = f"record {keyless} of the batch has no key, which a compacted topic needs"
            raise Refused(ErrorCode.INVALID_RECORD, what, keyless)
        if not is_unpacked:
            return None
        if max_timestamp is None or max_timestamp == header.max_timestamp:
            return header
        stamp_max_timestamp(batch, max_timestamp)
        return read_header(batch)

    def _log_refusal(self, name: TopicPartition, refused: Refused, now: float) -> None:
        reason = f"{name}: {refused.message}"
        line = self._services.refused_batches.record(
            self._client_id or "", self._peer, refused.code, reason, now
        )
        if line is not None:
            logger.warning("%s", line)

    @property
    def failures(self) -> list[PartitionProduced]:
        """The answers with errors."""
        return [answer for answer in self._answers if answer.error]

    @property
    def keys(self) -> tuple[Hashable, ...]:
        """What the final answers depend on: partitions, and batches that are not verified yet."""
        unverified = [item.waiting for item in self._unverified]
        partitions = [item.partition for item in self._waiting]
        partitions += [item.partition for item in self._unverified]
        names = dict.fromkeys([partition.topic_partition for partition in partitions])
        return (*unverified, *names)

    @property
    def held_size(self) -> int:
        """The memory of batches that are not verified yet, about."""
        return sum([item.waiting.held_size for item in self._unverified])

    def attempt(self, now: float) -> ProduceResponse | None:
        """Return the answer once none of its entries can change any more; None before."""
        while self._unverified and self._on_verified(self._unverified[0], now):
            self._unverified.popleft()
        if self._waiting:
            self._waiting = [item for item in self._waiting if not self._is_final(item, now)]
        return None if self._waiting or self._unverified else self._response()

    def expire(self) -> ProduceResponse:
        """Return the answer at the deadline. Appended batches stay in the log, and may yet be
        committed."""
        for item in self._waiting:
            what = "appended, but not acknowledged in time"
            self._fail(item, ErrorCode.REQUEST_TIMED_OUT, what)
        for place, name, *_ in self._unverified:
            what = "its transaction was not verified in time"
            topic_id = self._answers[place].topic_id
            failure = self._failure(name, ErrorCode.REQUEST_TIMED_OUT, what, topic_id)
            self._answers[place] = failure
        return self._response()

    def _response(self) -> ProduceResponse:
        nodes = self._services.nodes(self._answers) if self._names_leader else ()
        return tuple.__new__(ProduceResponse, (tuple(self._answers), nodes))

    def _counts(self, partition: Partition, end: int) -> bool:
        """Whether everything below `end` satisfies `acks`."""
        if self._acks != ACKS_ALL:
            return partition.own_end >= end
        role = partition.role
        return isinstance(role, Leader) and role.is_committed(end)

    def _is_final(self, item: _Waiting, now: float) -> bool:
        """Whether the batch counts, or cannot count any more in this leader epoch."""
        partition = item.partition
        name = partition.topic_partition
        role = partition.role
        if not isinstance(role, Leader) or role.leader_epoch != item.leader_epoch:
            code = ErrorCode.NOT_LEADER_OR_FOLLOWER
            if self._services.image.partition(name) is None:
                code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            self._fail(item, code, "its leader changed")
            return True
        if not self._counts(partition, item.end):
            if self._services.is_abandoned_and_replaceable(role, now):
                what = "appended, but its followers may have another leader"
                self._fail(item, ErrorCode.NOT_LEADER_OR_FOLLOWER, what)
                return True
            return False
        if self._acks == ACKS_ALL and not role.is_acknowledgeable(
            partition.settings.min_insync_replicas
        ):
            code = ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
            self._fail(item, code, "the in-sync set shrank")
        return True

    def _fail(self, item: _Waiting, code: ErrorCode, message: str) -> None:
        """Replace the answer about an appended batch."""
        name, topic_id = item.partition.topic_partition, self._answers[item.place].topic_id
        self._answers[item.place] = self._failure(name, code, message, topic_id)

    def _failure(
        self, name: TopicPartition, code: ErrorCode, message: str, topic_id: bytes
    ) -> PartitionProduced:
        leader_id, leader_epoch = self._services.leader_hint(name, code)
        self._names_leader |= leader_id >= 0
        return PartitionProduced(
            name.topic,
            name.partition,
            code,
            error_message=message,
            leader_id=leader_id,
            leader_epoch=leader_epoch,
            topic_id=topic_id,
        )


def _offsets_of(
    name: TopicPartition, appended: Appended, log_start: int, topic_id: bytes
) -> PartitionProduced:
    """Return the answer about an appended batch."""
    fields = (
        name.topic,
        name.partition,
        0,  # no error
        appended.base_offset,
        appended.append_time_ms,
        log_start,
        None,
        NO_NODE,
        NO_EPOCH,
        topic_id,
        NO_RECORD,
    )
    return tuple.__new__(PartitionProduced, fields)


def _transaction_of(
    transactional_id: str, request: ProduceRequest
) -> ProducerTransaction | Refused:
    """Return the transaction that a request names, or why it cannot be one."""
    try:
        check_transactional_id(transactional_id)
    except Refused as refused:
        return refused
    return ProducerTransaction(transactional_id, request.transaction_version)


def _is_without_id(request: ProduceRequest, partitions: Iterable[PartitionProduce]) -> bool:
    """Whether one of these batches is transactional, in a request without a transactional id. A
    batch that was damaged on its way is not."""
    if request.transactional_id is not None:
        return False
    for asked in partitions:
        batch: memoryview = asked.records  # type: ignore[assignment]
        if is_transactional(batch):
            header = read_header(batch)
            is_whole = header.magic == MAGIC and header.size == len(batch)
            if is_whole and has_valid_crc(batch, header):
                return True
    return False


def _refusal(acks: int, *, may_decide_alone: bool) -> Refused | None:
    """Return the refusal that holds for all batches of a request; None without one."""
    if acks not in ACKS:
        return Refused(ErrorCode.INVALID_REQUIRED_ACKS, f"acks={acks} does not exist")
    if acks != ACKS_ALL and not may_decide_alone:
        return Refused(
            ErrorCode.NOT_LEADER_OR_FOLLOWER, "its session may have ended, or it may be fenced"
        )
    return None


def handle(
    services: Services,
    request: ProduceRequest,
    now: float,
    client_id: str | None = None,
    peer: str = "",
) -> ProduceResponse | Parked[ProduceResponse] | Steps[Any] | None:
    """Append each partition's batch. The rest goes on in turns if to look into it takes too long.
    Raises `HangUp` for a refused batch with acks=0, which has no answer."""
    is_without_id = _is_without_id(request, request.partitions)
    produce = _Produce(services, request, now, client_id, peer, is_without_id=is_without_id)
    now_ms = services.wall_ms()
    for place, asked in enumerate(request.partitions):
        if not produce.append(asked, now, now_ms):
            own = [*map(_owned, request.partitions[place:])]
            return _append_in_turns(services, produce, request, own)
    return _answer(produce, request, now)


def _owned(asked: PartitionProduce) -> PartitionProduce:
    """Return the same with a copy of the records, which are in the shared receive buffer."""
    batch: memoryview = asked.records  # type: ignore[assignment]
    return asked._replace(records=memoryview(bytearray(batch)))


def is_large(request: ProduceRequest) -> bool:
    """Whether a request is to be handled in turns: it is then not in the shared receive buffer."""
    count = len(request.partitions)
    if count == 1:
        return len(request.partitions[0].records) > BYTES_AT_ONCE
    return (
        count > ELEMENTS_AT_ONCE
        or sum([len(asked.records) for asked in request.partitions]) > BYTES_AT_ONCE
    )


def handle_in_turns(
    services: Services,
    request: ProduceRequest,
    now: float,
    client_id: str | None = None,
    peer: str = "",
) -> Steps[ProduceResponse | Parked[ProduceResponse] | None]:
    """As `handle`, for a large request. Whether this broker may decide alone is asked in each
    turn."""
    is_without_id = False
    for some in at_once(request.partitions):
        is_without_id |= _is_without_id(request, some)
        yield None
    now = trio.current_time()
    produce = _Produce(services, request, now, client_id, peer, is_without_id=is_without_id)
    return (yield from _append_in_turns(services, produce, request, request.partitions))


def _append_in_turns(
    services: Services,
    produce: _Produce,
    request: ProduceRequest,
    partitions: Iterable[PartitionProduce],
) -> Steps[ProduceResponse | Parked[ProduceResponse] | None]:
    """Append the batches of these partitions, the last ones of the request, and answer it."""
    appended, at_once = 0, 0
    now = trio.current_time()
    for asked in partitions:
        if not produce.append(asked, now, services.wall_ms()):
            yield None  # and try it with a whole budget
            appended = at_once = 0
            now = trio.current_time()
            produce.renew(now)
            if not produce.append(asked, now, services.wall_ms()):
                batch: memoryview = asked.records  # type: ignore[assignment]
                needs_keys = produce.needs_keys(asked)
                examined = yield partial(examine_large, batch, read_header(batch), needs_keys)
                now = trio.current_time()
                produce.renew(now)
                produce.append(asked, now, services.wall_ms(), examined)
        appended += len(asked.records)
        at_once += 1
        if at_once >= BATCHES_AT_ONCE or appended >= BYTES_AT_ONCE:
            appended = at_once = 0
            yield None
            now = trio.current_time()
            produce.renew(now)
    return _answer(produce, request, now)


def _answer(
    produce: _Produce, request: ProduceRequest, now: float
) -> ProduceResponse | Parked[ProduceResponse] | None:
    if request.acks == ACKS_NONE:
        for failure in produce.failures:
            raise HangUp(f"a batch that asked for no answer was refused: {failure.error_message}")
        return None
    answer = produce.attempt(now)
    if answer is not None:
        return answer
    deadline = now + max(0, request.timeout_ms) / 1000
    return Parked(
        produce.keys, lambda: deadline, produce.attempt, produce.expire, produce.held_size
    )
