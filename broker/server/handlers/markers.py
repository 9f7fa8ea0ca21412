"""The requests about transactions to the leaders of partitions: WRITE_TXN_MARKERS and
DESCRIBE_PRODUCERS. Neither is served yet."""

from minibroker.broker.server.services import Services
from minibroker.protocol.constants import ErrorCode
from minibroker.protocol.messages.transactions import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionProducers,
    TransactionMarkerResult,
    TransactionPartitionResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)


def write(
    services: Services, request: WriteTxnMarkersRequest, now: float
) -> WriteTxnMarkersResponse:
    """Refuse each marker."""
    return WriteTxnMarkersResponse(
        tuple(
            [
                TransactionMarkerResult(
                    marker.producer_id,
                    tuple(
                        [
                            TransactionPartitionResult(*each, ErrorCode.NOT_LEADER_OR_FOLLOWER)
                            for each in marker.partitions
                        ]
                    ),
                )
                for marker in request.markers
            ]
        )
    )


def describe_producers(
    services: Services, request: DescribeProducersRequest, now: float
) -> DescribeProducersResponse:
    """Refuse each partition."""
    return DescribeProducersResponse(
        tuple(
            [
                PartitionProducers(*each, ErrorCode.NOT_LEADER_OR_FOLLOWER)
                for each in request.partitions
            ]
        )
    )
