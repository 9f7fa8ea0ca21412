"""The apis of transactions as messages."""

from collections.abc import Generator, Sequence
from typing import Any, Final

from minibroker.protocol.constants import ELEMENTS_AT_ONCE, ApiKey, ErrorCode
from minibroker.protocol.kafka import transaction_apis as apis
from minibroker.protocol.kafka.adapters.adapter import (
    Adapter,
    Array,
    Converted,
    all_at_once,
    by_topic,
    cut_text,
)
from minibroker.protocol.kafka.schema import Version
from minibroker.protocol.messages.group_offsets import PartitionCommit, PartitionCommitted
from minibroker.protocol.messages.transactions import (
    FIRST_PROTOCOL,
    SECOND_PROTOCOL,
    ActiveProducer,
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    EndTxnRequest,
    EndTxnResponse,
    ListedTransaction,
    ListTransactionsRequest,
    ListTransactionsResponse,
    PartitionProducers,
    TransactionDescription,
    TransactionMarker,
    TransactionMarkerResult,
    TransactionPartitionResult,
    TransactionPartitions,
    TransactionPartitionsAdded,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from minibroker.protocol.types import TopicPartition

FENCED_SINCE: Final[Version] = 2  # clients of older versions know INVALID_PRODUCER_EPOCH only
SEVERAL_SINCE: Final[Version] = 4  # transactions in one request
ADDED_BY_WRITES_SINCE: Final[Version] = 5  # of EndTxn, AddPartitionsToTxn and TxnOffsetCommit

_ADD: Final = apis.ADD_PARTITIONS_TO_TXN.response
_OF_TRANSACTION: Final = _ADD.of("results_by_transaction")
_OF_MARKER: Final = apis.WRITE_TXN_MARKERS.response.of("markers")
_DESCRIBED: Final = apis.DESCRIBE_TRANSACTIONS.response.of("transaction_states")
_PRODUCER: Final = (
    apis.DESCRIBE_PRODUCERS.response.of("topics").of("partitions").of("active_producers").make
)
_LISTED: Final = apis.LIST_TRANSACTIONS.response.of("transaction_states").make


def fenced_error(error: int, version: Version, known_since: Version = FENCED_SINCE) -> int:
    """Return an error as clients of this version know it."""
    if error == ErrorCode.PRODUCER_FENCED and version < known_since:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return error


def _transaction_version(version: Version) -> int:
    return SECOND_PROTOCOL if version >= ADDED_BY_WRITES_SINCE else FIRST_PROTOCOL


class _Elements:
    """Counts the elements that were converted since the last pause."""

    def __init__(self) -> None:
        self._count = 0

    def is_over(self, count: int = 1) -> bool:
        """Count some more, and return whether it is time for a pause."""
        self._count += count
        if self._count < ELEMENTS_AT_ONCE:
            return False
        self._count = 0
        return True


def _names_in_turns(
    topics: Sequence[Any], numbers: str, elements: _Elements
) -> Generator[None, None, tuple[TopicPartition, ...]]:
    """Return the partitions of topics, which have them in the field `numbers`."""
    names: list[TopicPartition] = []
    for topic in topics:
        partitions = getattr(topic, numbers)
        for start in range(0, len(partitions), ELEMENTS_AT_ONCE):
            some = partitions[start : start + ELEMENTS_AT_ONCE]
            names += [TopicPartition(topic.name, number) for number in some]
            if elements.is_over(len(some)):
                yield
        if elements.is_over():
            yield
    return tuple(names)


def _add_partitions_in_turns(
    asked: Any, version: Version
) -> Generator[None, None, AddPartitionsToTxnRequest]:
    transactions: list[TransactionPartitions] = []
    elements = _Elements()
    for one in asked.transactions if version >= SEVERAL_SINCE else (asked,):
        names = yield from _names_in_turns(one.topics, "partitions", elements)
        producer = one.transactional_id, one.producer_id, one.producer_epoch
        is_verify_only = version >= SEVERAL_SINCE and one.verify_only
        transactions.append(TransactionPartitions(*producer, names, is_verify_only))
        if elements.is_over():
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


def _offset_commit_request(asked: Any, version: Version) -> TxnOffsetCommitRequest:
    return TxnOffsetCommitRequest(
        asked.transactional_id,
        asked.group_id,
        asked.producer_id,
        asked.producer_epoch,
        asked.generation_id,
        asked.member_id,
        asked.group_instance_id,
        tuple(
            PartitionCommit(
                topic.name,
                one.partition_index,
                one.committed_offset,
                one.committed_leader_epoch,
                one.committed_metadata,
            )
            for topic in asked.topics
            for one in topic.partitions
        ),
        _transaction_version(version),
    )


def _offset_commit_response(answer: TxnOffsetCommitResponse, version: Version) -> Any:
    topics = apis.TXN_OFFSET_COMMIT.response.of("topics")
    make = topics.of("partitions").make

    def committed(one: PartitionCommitted) -> Any:
        return make(one.partition, fenced_error(one.error, version))

    return apis.TXN_OFFSET_COMMIT.response.make(
        0, by_topic(topics.make, committed, answer.partitions)
    )


def _producers_request(asked: Any, version: Version) -> DescribeProducersRequest:
    return DescribeProducersRequest(
        tuple(
            TopicPartition(topic.name, number)
            for topic in asked.topics
            for number in topic.partition_indexes
        )
    )


def _producers_response(answer: DescribeProducersResponse, version: Version) -> Any:
    topics = apis.DESCRIBE_PRODUCERS.response.of("topics")
    make = topics.of("partitions").make

    def described(one: PartitionProducers) -> Any:
        text = cut_text(one.error_message)
        return make(one.partition, one.error, text, Converted(_producer, one.producers))

    return apis.DESCRIBE_PRODUCERS.response.make(
        0, by_topic(topics.make, described, answer.partitions)
    )


def _producer(one: ActiveProducer) -> Any:
    return _PRODUCER(
        one.producer_id,
        one.producer_epoch,
        one.last_sequence,
        one.last_timestamp_ms,
        one.coordinator_epoch,
        one.transaction_start,
    )


def _markers_in_turns(
    asked: Any, version: Version
) -> Generator[None, None, WriteTxnMarkersRequest]:
    markers: list[TransactionMarker] = []
    elements = _Elements()
    for one in asked.markers:
        names = yield from _names_in_turns(one.topics, "partition_indexes", elements)
        producer = one.producer_id, one.producer_epoch
        marker = TransactionMarker(*producer, one.transaction_result, one.coordinator_epoch, names)
        markers.append(marker)
        if elements.is_over():
            yield
    return WriteTxnMarkersRequest(tuple(markers))


def _markers_request(asked: Any, version: Version) -> WriteTxnMarkersRequest:
    return all_at_once(_markers_in_turns(asked, version))


def _markers_response(answer: WriteTxnMarkersResponse, version: Version) -> Any:
    return apis.WRITE_TXN_MARKERS.response.make(Converted(_of_marker, answer.markers))


def _of_marker(one: TransactionMarkerResult) -> Any:
    topic = _OF_MARKER.of("topics")
    make = topic.of("partitions").make

    def convert(result: TransactionPartitionResult) -> Any:
        return make(result.partition, result.error)

    return _OF_MARKER.make(one.producer_id, by_topic(topic.make, convert, one.partitions))


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
    Adapter(
        apis.TXN_OFFSET_COMMIT,
        ApiKey.TXN_OFFSET_COMMIT,
        _offset_commit_request,
        _offset_commit_response,
        Array("topics", "partitions", "partitions"),
    ),
    Adapter(
        apis.DESCRIBE_PRODUCERS,
        ApiKey.DESCRIBE_PRODUCERS,
        _producers_request,
        _producers_response,
        Array("topics", "partitions", "partition_indexes"),
    ),
    Adapter(
        apis.WRITE_TXN_MARKERS,
        ApiKey.WRITE_TXN_MARKERS,
        _markers_request,
        _markers_response,
        in_turns=_markers_in_turns,
    ),
)
