"""The apis of transactions' coordinators as messages."""

from collections.abc import Generator
from typing import Any, Final

from minibroker.protocol.constants import ELEMENTS_AT_ONCE, ApiKey, ErrorCode
from minibroker.protocol.kafka import transaction_apis as apis
from minibroker.protocol.kafka.adapters.adapter import (
    Adapter,
    Converted,
    all_at_once,
    by_topic,
)
from minibroker.protocol.kafka.schema import Version
from minibroker.protocol.messages.transactions import (
    FIRST_PROTOCOL,
    SECOND_PROTOCOL,
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    EndTxnRequest,
    EndTxnResponse,
    ListedTransaction,
    ListTransactionsRequest,
    ListTransactionsResponse,
    TransactionDescription,
    TransactionPartitionResult,
    TransactionPartitions,
    TransactionPartitionsAdded,
)
from minibroker.protocol.types import TopicPartition

FENCED_SINCE: Final[Version] = 2  # clients of older versions know INVALID_PRODUCER_EPOCH only
SEVERAL_SINCE: Final[Version] = 4  # transactions in one request
ADDED_BY_WRITES_SINCE: Final[Version] = 5  # of EndTxn and AddPartitionsToTxn

_ADD: Final = apis.ADD_PARTITIONS_TO_TXN.response
_OF_TRANSACTION: Final = _ADD.of("results_by_transaction")
_DESCRIBED: Final = apis.DESCRIBE_TRANSACTIONS.response.of("transaction_states")
_LISTED: Final = apis.LIST_TRANSACTIONS.response.of("transaction_states").make


def fenced_error(error: int, version: Version, known_since: Version = FENCED_SINCE) -> int:
    """Return an error as clients of this version know it."""
    if error == ErrorCode.PRODUCER_FENCED and version < known_since:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return error


def _transaction_version(version: Version) -> int:
    return SECOND_PROTOCOL if version >= ADDED_BY_WRITES_SINCE else FIRST_PROTOCOL


def _add_partitions_in_turns(
    asked: Any, version: Version
) -> Generator[None, None, AddPartitionsToTxnRequest]:
    transactions: list[TransactionPartitions] = []
    count = 0
    for one in asked.transactions if version >= SEVERAL_SINCE else (asked,):
        names: list[TopicPartition] = []
        for topic in one.topics:
            for start in range(0, len(topic.partitions), ELEMENTS_AT_ONCE):
                some = topic.partitions[start : start + ELEMENTS_AT_ONCE]
                names += [TopicPartition(topic.name, number) for number in some]
                count += len(some)
            count += 1
            if count >= ELEMENTS_AT_ONCE:
                count = 0
                yield
        producer = one.transactional_id, one.producer_id, one.producer_epoch
        is_verify_only = version >= SEVERAL_SINCE and one.verify_only
        transactions.append(TransactionPartitions(*producer, tuple(names), is_verify_only))
        count += 1
        if count >= ELEMENTS_AT_ONCE:
            count = 0
            yield
    return AddPartitionsToTxnRequest(tuple(transactions), _transaction_version(version))


def _add_partitions_request(asked: Any, version: Version) -> AddPartitionsToTxnRequest:
    return all_at_once(_add_partitions_in_turns(asked, version))


def _add_partitions_response(answer: AddPartitionsToTxnResponse, version: Version) -> Any:
    if version >= SEVERAL_SINCE:
        of_transactions = Converted(_of_transaction, answer.transactions)
        return _ADD.make(0, answer.error, of_transactions)
    topic = _ADD.of("results_by_topic")
    make = topic.of("results_by_partition").make

    def convert(one: TransactionPartitionResult) -> Any:
        return make(one.partition, fenced_error(one.error, version))

    results = answer.transactions[0].partitions if answer.transactions else ()
    return _ADD.make(0, answer.error, results_by_topic=by_topic(topic.make, convert, results))


def _of_transaction(one: TransactionPartitionsAdded) -> Any:
    topic = _OF_TRANSACTION.of("topic_results")
    make = topic.of("results_by_partition").make

    def convert(result: TransactionPartitionResult) -> Any:
        return make(result.partition, result.error)

    topics = by_topic(topic.make, convert, one.partitions)
    return _OF_TRANSACTION.make(one.transactional_id, topics)


def _add_offsets_request(asked: Any, version: Version) -> AddOffsetsToTxnRequest:
    return AddOffsetsToTxnRequest(
        asked.transactional_id, asked.producer_id, asked.producer_epoch, asked.group_id
    )


def _add_offsets_response(answer: AddOffsetsToTxnResponse, version: Version) -> Any:
    return apis.ADD_OFFSETS_TO_TXN.response.make(0, fenced_error(answer.error, version))


def _end_request(asked: Any, version: Version) -> EndTxnRequest:
    return EndTxnRequest(
        asked.transactional_id,
        asked.producer_id,
        asked.producer_epoch,
        asked.committed,
        _transaction_version(version),
    )


def _end_response(answer: EndTxnResponse, version: Version) -> Any:
    error = fenced_error(answer.error, version)
    return apis.END_TXN.response.make(0, error, answer.producer_id, answer.producer_epoch)


def _describe_request(asked: Any, version: Version) -> DescribeTransactionsRequest:
    return DescribeTransactionsRequest(tuple(asked.transactional_ids))


def _describe_response(answer: DescribeTransactionsResponse, version: Version) -> Any:
    return apis.DESCRIBE_TRANSACTIONS.response.make(0, Converted(_described, answer.transactions))


def _described(one: TransactionDescription) -> Any:
    def numbers(name: TopicPartition) -> int:
        return name.partition

    return _DESCRIBED.make(
        one.error,
        one.transactional_id,
        one.state,
        one.timeout_ms,
        one.start_time_ms,
        one.producer_id,
        one.producer_epoch,
        by_topic(_DESCRIBED.of("topics").make, numbers, one.partitions),
    )


def _list_request(asked: Any, version: Version) -> ListTransactionsRequest:
    return ListTransactionsRequest(
        tuple(asked.state_filters),
        tuple(asked.producer_id_filters),
        asked.duration_filter,
        asked.transactional_id_pattern,
    )


def _list_response(answer: ListTransactionsResponse, version: Version) -> Any:
    listed = Converted(_listed, answer.transactions)
    return apis.LIST_TRANSACTIONS.response.make(0, answer.error, answer.unknown_states, listed)


def _listed(one: ListedTransaction) -> Any:
    return _LISTED(one.transactional_id, one.producer_id, one.state)


ADAPTERS: Final = (
    Adapter(
        apis.ADD_PARTITIONS_TO_TXN,
        ApiKey.ADD_PARTITIONS_TO_TXN,
        _add_partitions_request,
        _add_partitions_response,
        in_turns=_add_partitions_in_turns,
    ),
    Adapter(
        apis.ADD_OFFSETS_TO_TXN,
        ApiKey.ADD_OFFSETS_TO_TXN,
        _add_offsets_request,
        _add_offsets_response,
    ),
    Adapter(apis.END_TXN, ApiKey.END_TXN, _end_request, _end_response),
    Adapter(
        apis.DESCRIBE_TRANSACTIONS,
        ApiKey.DESCRIBE_TRANSACTIONS,
        _describe_request,
        _describe_response,
    ),
    Adapter(apis.LIST_TRANSACTIONS, ApiKey.LIST_TRANSACTIONS, _list_request, _list_response),
)
