"""What the requests that may change a transactional id share: decide, store, answer once the record
is committed.

An answer without a record of its own says something about the present state. A broker that may have
been replaced as coordinator does not know the present state, and answers with an error after which
the client asks again. Otherwise a producer could be told by a former coordinator that it is fenced,
or that its transaction is open.
"""

from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias, TypeVar

from minibroker.broker.coordination.shard import APPEND_ERRORS
from minibroker.broker.errors import Refused
from minibroker.broker.replication.purgatory import Parked
from minibroker.broker.server.services import Services
from minibroker.broker.transactions.shard import TransactionShard
from minibroker.broker.transactions.transaction import (
    NO_PRODUCER,
    Decision,
    Producer,
    Transaction,
)
from minibroker.protocol.constants import ErrorCode

Answer = TypeVar("Answer")
# Decides by the present state of an id and the wall clock. May raise `Refused`.
Decide: TypeAlias = Callable[[Transaction | None, int], Decision]

WRITE_WAIT_S: Final = 5.0
# Errors that hold whatever is being written: the request is of another producer.
OF_ANOTHER: Final = (ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.PRODUCER_FENCED)
LATE: Final = "it is not committed yet"


class WriteResult(NamedTuple):
    """What a request has led to: its error, or the producer from then on."""

    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    producer: Producer = NO_PRODUCER


def decide(
    services: Services,
    transactional_id: str,
    by: Decide,
    answer: Callable[[WriteResult], Answer],
    now: float,
    *,
    is_pending_first: bool = False,
) -> Answer | Parked[Answer]:
    """Decide about an id, store the decision, and answer once that is committed.

    `is_pending_first`: while a record of the id is being written, the answer is
    CONCURRENT_TRANSACTIONS even for another producer, because that record may change the producer.
    """
    try:
        shard = services.transactions.serving(transactional_id, now)
        decision = _decision(services, shard, transactional_id, by, is_pending_first)
        if decision.write is None:
            services.transactions.check_session(shard, now)
            return answer(WriteResult(decision.error, None, decision.producer))
        before = shard.table.get(transactional_id)
        services.transactions.check_room(transactional_id, before, decision.write)
        end = services.transactions.append(shard, [(transactional_id, decision.write)], now)
    except Refused as refused:
        code = APPEND_ERRORS.get(refused.code, refused.code)
        return answer(WriteResult(code, refused.message or None))
    services.transactions.review()
    return _once_committed(services, shard, end, decision, answer, now)


def _decision(
    services: Services,
    shard: TransactionShard,
    transactional_id: str,
    by: Decide,
    is_pending_first: bool,
) -> Decision:
    is_pending = shard.table.is_pending(transactional_id)
    if is_pending and is_pending_first:
        return Decision(ErrorCode.CONCURRENT_TRANSACTIONS)
    decision = by(shard.table.get(transactional_id), services.transactions.wall_ms())
    if is_pending and (decision.write is not None or decision.error not in OF_ANOTHER):
        return Decision(ErrorCode.CONCURRENT_TRANSACTIONS)
    return decision


def _once_committed(
    services: Services,
    shard: TransactionShard,
    end: int,
    decision: Decision,
    answer: Callable[[WriteResult], Answer],
    now: float,
) -> Answer | Parked[Answer]:
    registry = shard.registry
    assert registry is not None

    def attempt(now: float) -> Answer | None:
        services.transactions.catch_up(shard, now)
        error = shard.outcome(end, registry)
        if error is None:
            return None
        if error:
            return answer(WriteResult(error))
        return answer(WriteResult(decision.error, None, decision.producer))

    def expire() -> Answer:
        return answer(WriteResult(ErrorCode.COORDINATOR_NOT_AVAILABLE, LATE))

    keys = (shard.partition.topic_partition,)
    return attempt(now) or Parked(keys, lambda: now + WRITE_WAIT_S, attempt, expire)
