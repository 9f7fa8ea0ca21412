"""TXN_OFFSET_COMMIT: store a group's offsets as part of a producer's transaction.

The offsets are one batch of the group's partition, with the producer's id and epoch, and the
batch is written once the transaction's coordinator has verified that partition, as for a PRODUCE.
They count when the transaction's COMMIT marker is replayed; until then an OFFSET_FETCH that asks
for stable offsets gets UNSTABLE_OFFSET_COMMIT.

Member, generation and instance id are checked as in an OFFSET_COMMIT (KIP-447). A request that has
none of them is from a producer that does not know its consumer's group, and is not checked.
"""

from collections.abc import Mapping
from typing import Any

import trio

from minibroker.broker.errors import Refused
from minibroker.broker.groups.coordinator import Serving
from minibroker.broker.groups.records import OffsetKey
from minibroker.broker.groups.registry import append_error
from minibroker.broker.replication.purgatory import Parked
from minibroker.broker.replication.verified_appends import ProducerTransaction, WaitingAppend
from minibroker.broker.server.bounds import by_name
from minibroker.broker.server.handlers import group_offsets
from minibroker.broker.server.services import Services
from minibroker.broker.transactions.coordinator import check_transactional_id
from minibroker.broker.turns import AT_ONCE, Turn, Turns, in_turns_if
from minibroker.protocol.constants import (
    ACKS_ALL,
    NO_SEQUENCE,
    PRODUCER_EPOCH_MAX,
    ErrorCode,
)
from minibroker.protocol.messages.group_offsets import OffsetCommitRequest, PartitionCommit
from minibroker.protocol.messages.groups import NO_GENERATION
from minibroker.protocol.messages.transactions import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)
from minibroker.protocol.records.batch import ProducerStamp, stamp_transaction

Answer = TxnOffsetCommitResponse | Turns[TxnOffsetCommitResponse]


def commit(
    services: Services, request: TxnOffsetCommitRequest, now: float
) -> TxnOffsetCommitResponse | Parked[Any] | Turns[Any]:
    """Store the offsets, which count once the transaction commits."""
    is_long = len(request.partitions) > AT_ONCE
    return in_turns_if(is_long, _commit(services, request, now))


def _commit(services: Services, request: TxnOffsetCommitRequest, now: float) -> Turns[Any]:
    turn = Turn()
    items = yield from group_offsets.named(services, request.partitions, turn)
    asked = yield from by_name(items, group_offsets.key_of, turn)
    refusals: dict[group_offsets.ItemKey, ErrorCode] = {}

    def answer(error: ErrorCode) -> Turns[TxnOffsetCommitResponse]:
        results = yield from group_offsets.results(asked, refusals, error)
        return TxnOffsetCommitResponse(results)

    try:
        if turn.pauses:
            now = trio.current_time()
        serving = _check(services, request, now)
        records = yield from _records(services, serving, request, asked, refusals, turn)
        if not records:
            return (yield from answer(ErrorCode.NONE))
        batch = bytearray((yield from group_offsets.encode(services, serving.shard, records, turn)))
        if turn.pauses:
            now = trio.current_time()
            if _check(services, request, now) != serving:
                raise Refused(ErrorCode.NOT_COORDINATOR)
        producer = ProducerStamp(request.producer_id, request.producer_epoch, NO_SEQUENCE)
        stamp_transaction(batch, producer)
        transaction = ProducerTransaction(request.transactional_id, request.transaction_version)
        partition = serving.shard.partition
        header = partition.log.check_batch(memoryview(batch))
        waiting = services.verified_appends.submit(
            partition, memoryview(batch), header, transaction, ACKS_ALL
        )
        write = _Write(services, serving, records, waiting)
        if waiting is None:
            write.append(memoryview(batch), now)
    except Refused as refused:
        return (yield from answer(append_error(refused.code)))

    def finish(error: ErrorCode) -> Answer:
        return in_turns_if(len(records) > AT_ONCE, answer(error))

    def attempt(now: float) -> Answer | None:
        error = write.outcome(now)
        return None if error is None else finish(error)

    deadline = now + services.config.offsets_commit_timeout_ms / 1000
    keys = (serving.shard.partition.topic_partition, *([waiting] if waiting else []))
    return Parked(
        keys,
        lambda: deadline,
        attempt,
        lambda: finish(group_offsets.NOT_COPIED_IN_TIME),
        waiting.held_size if waiting else 0,
    )


def _records(
    services: Services,
    serving: Serving,
    request: TxnOffsetCommitRequest,
    asked: Mapping[group_offsets.ItemKey, PartitionCommit],
    refusals: dict[group_offsets.ItemKey, ErrorCode],
    turn: Turn,
) -> Turns[group_offsets.Records]:
    """Return the records of the offsets that can be committed, and add why others cannot. Raises
    `Refused` if groups would take too much memory."""
    group_id, producer_id = request.group_id, request.producer_id
    records: group_offsets.Records = []
    growth, now_ms = 0, services.wall_ms()
    for name, item in asked.items():
        if why := group_offsets.refusal(services, item):
            refusals[name] = why
        else:
            key = OffsetKey(group_id, item.topic, item.partition)
            value = group_offsets.committed(item, now_ms)
            growth += serving.shard.table.unstable_growth(producer_id, key, value)
            records.append((key, value))
        if turn.is_over():
            yield
    services.groups.check_room(growth)
    return records


def _check(services: Services, request: TxnOffsetCommitRequest, now: float) -> Serving:
    """Raise `Refused` unless the sender may commit for the group here."""
    if request.producer_id < 0:
        what = f"there is no producer {request.producer_id}"
        raise Refused(ErrorCode.INVALID_PRODUCER_ID_MAPPING, what)
    if not 0 <= request.producer_epoch <= PRODUCER_EPOCH_MAX:
        what = f"no producer has epoch {request.producer_epoch}"
        raise Refused(ErrorCode.INVALID_PRODUCER_EPOCH, what)
    check_transactional_id(request.transactional_id)
    is_unknown = (request.generation, request.member_id, request.instance_id) == (
        NO_GENERATION,
        "",
        None,
    )
    if is_unknown:
        return services.groups.serving(request.group_id, now)
    plain = OffsetCommitRequest(
        request.group_id, request.generation, request.member_id, request.instance_id
    )
    try:
        return group_offsets.check_commit(services, plain, now)
    except Refused as refused:
        if refused.code == ErrorCode.STALE_MEMBER_EPOCH:  # which producers do not know
            raise Refused(ErrorCode.ILLEGAL_GENERATION, refused.message) from None
        raise


class _Write:
    """The batch of one request, from its verification to its replay."""

    def __init__(
        self,
        services: Services,
        serving: Serving,
        records: group_offsets.Records,
        waiting: WaitingAppend | None,
    ) -> None:
        self._services = services
        self._serving = serving
        self._records = records
        self._waiting = waiting
        self._end: int | None = None

    def append(self, batch: memoryview, now: float) -> None:
        """Append the batch of a transaction that is open. Raises `Refused`."""
        shard = self._serving.shard
        self._end = self._services.groups.append_encoded(shard, batch, self._records, now)

    def outcome(self, now: float) -> ErrorCode | None:
        """Return the result, once it is known."""
        shard, registry = self._serving
        if self._end is None:
            appended = None if self._waiting is None else self._waiting.outcome
            if appended is None:
                return None
            if isinstance(appended, Refused):
                return append_error(appended.code)
            self._end = appended.last_offset + 1
            shard.record_appended(self._records, appended)
        self._services.groups.catch_up(shard, now)
        return shard.outcome(self._end, registry)
