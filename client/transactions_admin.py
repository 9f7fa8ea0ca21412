"""The requests of `Admin` about transactions: list, describe, abort.

As groups, transactional ids have coordinators (`groups.admin`).
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from minibroker.client.errors import error_code, named
from minibroker.client.groups.admin import PASSING, ask_all, ask_coordinator, leaderless_of
from minibroker.client.net.cluster import Cluster
from minibroker.protocol.constants import ApiKey, ErrorCode
from minibroker.protocol.errors import BrokerError
from minibroker.protocol.messages.groups import TRANSACTION_KEY
from minibroker.protocol.messages.metadata import MetadataResponse
from minibroker.protocol.messages.producer_id import InitProducerIdRequest
from minibroker.protocol.messages.transactions import (
    DescribeTransactionsRequest,
    ListedTransaction,
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from minibroker.protocol.types import TopicPartition

PASSING_WHILE_ABORTED: Final = PASSING | {ErrorCode.CONCURRENT_TRANSACTIONS}
WHAT_TO_DO: Final = {
    ErrorCode.TRANSACTIONAL_ID_NOT_FOUND: "there is no such transactional id",
    ErrorCode.INVALID_REQUEST: "a transactional id has 1 to 32767 bytes",
}


class TransactionsReport(NamedTuple):
    """The transactional ids of the brokers that answered, and the errors of the others.

    `leaderless` are the partitions of `__transaction_state` without a leader: their ids are in no
    broker's answer.
    """

    transactions: tuple[ListedTransaction, ...]
    silent: dict[int, str]
    leaderless: tuple[TopicPartition, ...] = ()


class TransactionDescription(NamedTuple):
    """A transactional id, as its coordinator, the broker `coordinator_id`, describes it.

    `state` is Empty, Ongoing, PrepareCommit, PrepareAbort, CompleteCommit or CompleteAbort. While a
    transaction is open, `started_ms` is when it began, and `partitions` are those that it has
    written to.
    """

    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    started_ms: int
    partitions: tuple[TopicPartition, ...]
    coordinator_id: int


async def list_transactions(
    cluster: Cluster, metadata: MetadataResponse, states: Sequence[str]
) -> TransactionsReport:
    """Ask all brokers for transactional ids in one of these states, or in any."""
    found: dict[str, ListedTransaction] = {}

    def keep(answer: ListTransactionsResponse) -> None:
        found.update({one.transactional_id: one for one in answer.transactions})

    request = ListTransactionsRequest(tuple(states))
    silent = await ask_all(cluster, metadata, ApiKey.LIST_TRANSACTIONS, request, keep)
    transactions = tuple(found[name] for name in sorted(found))
    return TransactionsReport(transactions, silent, leaderless_of(metadata))


async def describe_transactions(
    cluster: Cluster, ids: Sequence[str]
) -> list[TransactionDescription]:
    """Describe transactional ids, in order. Raises `BrokerError` for one that does not exist."""
    described = []
    for transactional_id in ids:
        answer = await ask_coordinator(
            cluster,
            transactional_id,
            ApiKey.DESCRIBE_TRANSACTIONS,
            DescribeTransactionsRequest((transactional_id,)),
            lambda message: message.transactions[0].error,
            key_type=TRANSACTION_KEY,
        )
        one = answer.message.transactions[0]
        _raise_refusal(transactional_id, one.error)
        described.append(
            TransactionDescription(
                transactional_id,
                one.state,
                one.producer_id,
                one.producer_epoch,
                one.timeout_ms,
                one.start_time_ms,
                one.partitions,
                answer.node_id,
            )
        )
    return described


async def abort_transaction(cluster: Cluster, transactional_id: str) -> None:
    """Begin a session of this id, which aborts its open transaction and fences its producer; wait
    until that is done. Raises `BrokerError` for an id that does not exist."""
    [present] = await describe_transactions(cluster, (transactional_id,))
    answer = await ask_coordinator(
        cluster,
        transactional_id,
        ApiKey.INIT_PRODUCER_ID,
        InitProducerIdRequest(transactional_id, transaction_timeout_ms=present.timeout_ms),
        lambda message: message.error,
        key_type=TRANSACTION_KEY,
        passing=PASSING_WHILE_ABORTED,
    )
    _raise_refusal(transactional_id, answer.message.error)


def _raise_refusal(transactional_id: str, number: int) -> None:
    if number:
        error = error_code(number)
        name, why = named(transactional_id, TRANSACTION_KEY), WHAT_TO_DO.get(error)
        raise BrokerError(error, f"{name}: {why}" if why else name)
