"""INIT_PRODUCER_ID: assigns the id under which a producer numbers its batches."""

from dataclasses import dataclass

from minibroker.protocol.constants import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from minibroker.protocol.messages import Request


@dataclass(frozen=True, slots=True)
class InitProducerIdRequest(Request["InitProducerIdResponse"]):
    """A `transactional_id` is refused: there are no transactions. A producer may name its id and
    epoch, or neither; it gets another id in any case."""

    transactional_id: str | None = None
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH


@dataclass(frozen=True, slots=True)
class InitProducerIdResponse:
    """An id that no producer had before."""

    error: int = 0
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH
    error_message: str | None = None
