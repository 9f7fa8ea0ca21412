"""The requests to a transaction's coordinator. No broker coordinates transactions yet."""

from minibroker.broker.server.services import Services
from minibroker.protocol.constants import ErrorCode
from minibroker.protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    EndTxnRequest,
    EndTxnResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
    TransactionDescription,
)


def add_partitions(
    services: Services, request: AddPartitionsToTxnRequest, now: float
) -> AddPartitionsToTxnResponse:
    """Refuse the request."""
    return AddPartitionsToTxnResponse(ErrorCode.NOT_COORDINATOR)


def add_offsets(
    services: Services, request: AddOffsetsToTxnRequest, now: float
) -> AddOffsetsToTxnResponse:
    """Refuse the request."""
    return AddOffsetsToTxnResponse(ErrorCode.NOT_COORDINATOR)


def end(services: Services, request: EndTxnRequest, now: float) -> EndTxnResponse:
    """Refuse the request."""
    return EndTxnResponse(ErrorCode.NOT_COORDINATOR)


def describe(
    services: Services, request: DescribeTransactionsRequest, now: float
) -> DescribeTransactionsResponse:
    """Refuse the request for each id."""
    return DescribeTransactionsResponse(
        tuple(
            [
                TransactionDescription(each, ErrorCode.NOT_COORDINATOR)
                for each in request.transactional_ids
            ]
        )
    )


def list_transactions(
    services: Services, request: ListTransactionsRequest, now: float
) -> ListTransactionsResponse:
    """Return no transactions."""
    return ListTransactionsResponse()
