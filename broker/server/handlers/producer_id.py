"""INIT_PRODUCER_ID: an identity for a producer that numbers its batches.

Ids come from a block that was claimed in the metadata store. While the next block is under way
there may be none to give: the client is told to ask again.
"""

from minibroker.broker.server.services import Services
from minibroker.protocol.constants import ErrorCode
from minibroker.protocol.messages.producer_id import (
    InitProducerIdRequest,
    InitProducerIdResponse,
)


def handle(
    services: Services, request: InitProducerIdRequest, now: float
) -> InitProducerIdResponse:
    """A new id with epoch 0."""
    if request.transactional_id is not None:
        return InitProducerIdResponse(
            ErrorCode.INVALID_REQUEST,
            error_message="there are no transactions here: leave transactional.id unset",
        )
    producer_id = services.controller.next_producer_id()
    if producer_id is None:
        trouble = services.controller.store_trouble()
        return InitProducerIdResponse(
            ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
            error_message=trouble or "the next block of producer ids is under way",
        )
    return InitProducerIdResponse(0, producer_id, 0)
