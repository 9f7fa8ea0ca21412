"""TXN_OFFSET_COMMIT: store a group's offsets as part of a transaction. It is not served yet."""

from minibroker.broker.server.services import Services
from minibroker.protocol.constants import ErrorCode
from minibroker.protocol.messages.group_offsets import PartitionCommitted
from minibroker.protocol.messages.transactions import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)


def commit(
    services: Services, request: TxnOffsetCommitRequest, now: float
) -> TxnOffsetCommitResponse:
    """Refuse each offset."""
    return TxnOffsetCommitResponse(
        tuple(
            [
                PartitionCommitted(
                    each.topic, each.partition, ErrorCode.NOT_COORDINATOR, each.topic_id
                )
                for each in request.partitions
            ]
        )
    )
