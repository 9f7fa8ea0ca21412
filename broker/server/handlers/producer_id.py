"""INIT_PRODUCER_ID: give an idempotent producer its id, or begin a transactional producer's
session.

Ids come from a block that was claimed in the metadata store. While the next block is being
claimed there may be no id left: the client gets an error after which it asks again. The session of
a transactional producer begins at the coordinator of its transactional id.
"""

from typing import TypeAlias

from minibroker.broker.errors import Refused
from minibroker.broker.replication.purgatory import Parked
from minibroker.broker.server.handlers.transaction_writes import WriteResult, decide
from minibroker.broker.server.services import Services
from minibroker.broker.transactions.transaction import (
    Decision,
    Producer,
    Transaction,
    begin_session,
    needs_fresh_id,
)
from minibroker.protocol.constants import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, ErrorCode
from minibroker.protocol.messages.producer_id import (
    InitProducerIdRequest,
    InitProducerIdResponse,
)

Answer: TypeAlias = InitProducerIdResponse


def handle(
    services: Services, request: InitProducerIdRequest, now: float
) -> Answer | Parked[Answer]:
    """Return a new id with epoch 0, or the id and epoch of a transactional producer's session."""
    if (request.producer_id == NO_PRODUCER_ID) != (request.producer_epoch == NO_PRODUCER_EPOCH):
        what = "a producer names its id and its epoch, or neither"
        return Answer(ErrorCode.INVALID_REQUEST, error_message=what)
    try:
        if request.transactional_id is None:
            return Answer(0, fresh_producer_id(services), 0)
        return _begin_session(services, request, request.transactional_id, now)
    except Refused as refused:
        return Answer(refused.code, error_message=refused.message or None)


def fresh_producer_id(services: Services) -> int:
    """Return a new producer id. Raises `Refused` (COORDINATOR_LOAD_IN_PROGRESS) while the next
    block is being claimed."""
    producer_id = services.controller.next_producer_id()
    if producer_id is None:
        trouble = services.controller.store_trouble()
        what = trouble or "the next block of producer ids is under way"
        raise Refused(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, what)
    return producer_id


def _begin_session(
    services: Services, request: InitProducerIdRequest, transactional_id: str, now: float
) -> Answer | Parked[Answer]:
    timeout_ms = request.transaction_timeout_ms
    timeout_ms_max = services.config.transaction_max_timeout_ms
    if not 0 < timeout_ms <= timeout_ms_max:
        what = f"transaction.timeout.ms is {timeout_ms}, and at most {timeout_ms_max}"
        what += " (transaction.max.timeout.ms)"
        raise Refused(ErrorCode.INVALID_TRANSACTION_TIMEOUT, what)
    expected = None
    if request.producer_id != NO_PRODUCER_ID:
        expected = Producer(request.producer_id, request.producer_epoch)

    def begin(present: Transaction | None, now_ms: int) -> Decision:
        fresh_id = NO_PRODUCER_ID
        if needs_fresh_id(present):
            fresh_id = fresh_producer_id(services)
        return begin_session(present, expected, timeout_ms, fresh_id, now_ms)

    def answer(result: WriteResult) -> Answer:
        if result.error:
            return Answer(result.error, error_message=result.message)
        return Answer(0, *result.producer)

    return decide(services, transactional_id, begin, answer, now, is_pending_first=True)
