"""INIT_PRODUCER_ID: give an idempotent producer its id.

Ids come from a block that was claimed in the metadata store. While the next block is being
claimed there may be no id left: the client gets an error after which it asks again.
"""

from minibroker.broker.server.services import Services
from minibroker.protocol.constants import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, ErrorCode
from minibroker.protocol.messages.producer_id import (
    InitProducerIdRequest,
    InitProducerIdResponse,
)


def handle(
    services: Services, request: InitProducerIdRequest, now: float
) -> InitProducerIdResponse:
    """Return a new id with epoch 0."""
    if request.transactional_id is not None:
        return InitProducerIdResponse(
            ErrorCode.INVALID_REQUEST,
            error_message="there are no transactions here: leave transactional.id unset",
        )
    if (request.producer_id == NO_PRODUCER_ID) != (request.producer_epoch == NO_PRODUCER_EPOCH):
        what = "a producer names its id and its epoch, or neither"
        return InitProducerIdResponse(ErrorCode.INVALID_REQUEST, error_message=what)
    producer_id = services.controller.next_producer_id()
    if producer_id is None:
        trouble = services.controller.store_trouble()
        return InitProducerIdResponse(
            ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
            error_message=trouble or "the next block of producer ids is under way",
        )
    return InitProducerIdResponse(0, producer_id, 0)
