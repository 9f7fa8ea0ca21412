"""INIT_PRODUCER_ID: assigns the id and the epoch under which a producer numbers its batches."""

from dataclasses import dataclass

from minibroker.protocol.constants import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from minibroker.protocol.messages import Request


@dataclass(frozen=True, slots=True)
class InitProducerIdRequest(Request["InitProducerIdResponse"]):
    """A producer may name its id and epoch, or neither. Without a `transactional_id` it gets a new
    id in any case.

    With one, the producer gets the id that belongs to it, in the next epoch, which fences the
    producers before; an open transaction is aborted. If it names the current id and epoch, it goes
    on after an error (KIP-360); any other pair is that of a fenced producer. The coordinator aborts
    a transaction that is open for `transaction_timeout_ms`.
    """

    transactional_id: str | None = None
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH
    transaction_timeout_ms: int = 60_000


@dataclass(frozen=True, slots=True)
class InitProducerIdResponse:
    """The producer's id, and the epoch from now on. Without a transactional id no producer had the
    id before."""

    error: int = 0
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH
    error_message: str | None = None
