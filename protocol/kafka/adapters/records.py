"""Records and their offsets: PRODUCE, FETCH, LIST_OFFSETS, OFFSET_FOR_LEADER_EPOCH, DELETE_RECORDS
and INIT_PRODUCER_ID."""

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from minibroker.protocol.constants import (
    EARLIEST_LOCAL_TIMESTAMP,
    EARLIEST_TIMESTAMP,
    LATEST_TIERED_TIMESTAMP,
    MAX_TIMESTAMP,
    NO_EPOCH,
    NO_NODE,
    NO_RECORD,
    UNKNOWN_TIMESTAMP,
    ApiKey,
    ErrorCode,
)
from minibroker.protocol.errors import ProtocolError
from minibroker.protocol.kafka import admin_apis, apis
from minibroker.protocol.kafka.adapters.adapter import (
    Adapter,
    Array,
    Converted,
    by_topic,
    by_topic_id,
    cut_text,
)
from minibroker.protocol.kafka.adapters.transactions import fenced_error
from minibroker.protocol.kafka.schema import Version
from minibroker.protocol.messages.delete_records import (
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    PartitionDeleteRecords,
    PartitionRecordsDeleted,
)
from minibroker.protocol.messages.fetch import (
    FetchRequest,
    FetchResponse,
    PartitionFetch,
    PartitionFetched,
)
from minibroker.protocol.messages.offsets import (
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetsForLeaderEpochRequest,
    OffsetsForLeaderEpochResponse,
    PartitionEpoch,
    PartitionEpochEnd,
    PartitionListOffsets,
    PartitionOffset,
)
from minibroker.protocol.messages.produce import (
    PartitionProduce,
    PartitionProduced,
    ProduceRequest,
    ProduceResponse,
)
from minibroker.protocol.messages.producer_id import InitProducerIdRequest, InitProducerIdResponse
from minibroker.protocol.messages.transactions import FIRST_PROTOCOL, SECOND_PROTOCOL
from minibroker.protocol.types import TopicIdPartition, TopicPartition

Item = TypeVar("Item")


PRODUCE_BY_ID_SINCE: Final[Version] = 13
FETCH_BY_ID_SINCE: Final[Version] = 13
SECOND_PROTOCOL_SINCE: Final[Version] = 12  # of Produce


# Makes the named tuples of PRODUCE. Their own `__new__` is a function of Python: a call more.
_new: Final[Any] = tuple.__new__


def _produce_request(asked: Any, version: Version) -> ProduceRequest:
    is_by_id = version >= PRODUCE_BY_ID_SINCE
    partitions = tuple(
        [
            _new(PartitionProduce, (name, index, records, topic_id if is_by_id else b""))
            for name, topic_id, data in asked.topic_data
            for index, records in data
        ]
    )
    protocol = SECOND_PROTOCOL if version >= SECOND_PROTOCOL_SINCE else FIRST_PROTOCOL
    fields = (asked.acks, asked.timeout_ms, partitions, asked.transactional_id, protocol)
    request: ProduceRequest = _new(ProduceRequest, fields)
    return request


_PRODUCE_RESPONSE = apis.PRODUCE.response.make
_PRODUCED_TOPIC = apis.PRODUCE.response.of("responses").make
_PRODUCED = apis.PRODUCE.response.of("responses").of("partition_responses").make
_WRONG = apis.PRODUCE.response.of("responses").of("partition_responses").of("record_errors").make
_PRODUCED_LEADER = (
    apis.PRODUCE.response.of("responses").of("partition_responses").of("current_leader").make
)


def _produce_response(answer: ProduceResponse, version: Version) -> Any:
    topics = by_topic_id(_PRODUCED_TOPIC, _produced, answer.partitions)
    return _new(_PRODUCE_RESPONSE, (topics, 0, [(*node, None) for node in answer.nodes]))


def _produced(one: PartitionProduced) -> Any:
    _, partition, error, base, time_ms, start, text, leader_id, epoch, topic_id, wrong = one
    text = text and cut_text(text)
    fields = (
        partition,
        _error_by_id(one) if error and topic_id else error,
        base,
        time_ms,
        start,
        () if wrong == NO_RECORD else (_WRONG(wrong, text),),
        text,
        None if epoch == NO_EPOCH else _PRODUCED_LEADER(leader_id, epoch),
    )
    return _new(_PRODUCED, fields)


def _error_by_id(one: PartitionProduced | PartitionFetched) -> int:
    """Return the error for a client that knows a topic by its id: another topic of the same name is
    none to it."""
    is_other = one.error == ErrorCode.INCONSISTENT_TOPIC_ID
    return ErrorCode.UNKNOWN_TOPIC_ID if is_other else one.error


def _fetch_request(asked: Any, version: Version) -> FetchRequest:
    """Convert a consumer's request. A follower of Kafka names itself in a tagged field from version
    15 on; it is served as a consumer."""
    if asked.replica_id >= 0:
        raise ProtocolError("brokers do not fetch by this wire")
    is_by_id = version >= FETCH_BY_ID_SINCE
    partitions = tuple(
        [
            PartitionFetch(
                topic.topic,
                partition.partition,
                partition.fetch_offset,
                partition.partition_max_bytes,
                max(NO_EPOCH, partition.current_leader_epoch),
                partition.last_fetched_epoch,
                topic_id=topic.topic_id if is_by_id else b"",
            )
            for topic in asked.topics
            for partition in topic.partitions
        ]
    )
    forgotten = asked.forgotten_topics_data
    return FetchRequest(
        NO_NODE,
        asked.max_wait_ms,
        asked.min_bytes,
        asked.max_bytes,
        asked.session_id,
        asked.session_epoch,
        partitions,
        () if is_by_id else _forgotten(TopicPartition, "topic", forgotten),
        isolation_level=asked.isolation_level,
        is_by_id=is_by_id,
        forgotten_by_id=_forgotten(TopicIdPartition, "topic_id", forgotten) if is_by_id else (),
    )


def _forgotten(
    make: Callable[[Any, int], Item], key: str, topics: Sequence[Any]
) -> tuple[Item, ...]:
    return tuple(
        [make(getattr(topic, key), number) for topic in topics for number in topic.partitions]
    )


_NOT_THERE: Final = (
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.INCONSISTENT_TOPIC_ID,
)
_FETCHED_TOPIC = apis.FETCH.response.of("responses").make
_FETCHED = apis.FETCH.response.of("responses").of("partitions").make
_ABORTED = apis.FETCH.response.of("responses").of("partitions").of("aborted_transactions").make
_FETCHED_LEADER = apis.FETCH.response.of("responses").of("partitions").of("current_leader").make
_DIVERGENCE = apis.FETCH.response.of("responses").of("partitions").of("diverging_epoch").make


def _fetch_response(answer: FetchResponse, version: Version) -> Any:
    """Convert the answer."""
    return apis.FETCH.response.make(
        0,
        answer.error,
        answer.session_id,
        by_topic_id(_FETCHED_TOPIC, _fetched, answer.partitions),
        [(*node, None) for node in answer.nodes],
    )


def _fetched(one: PartitionFetched) -> Any:
    is_hint = one.leader_epoch != NO_EPOCH
    is_divergence = one.diverging_epoch != NO_EPOCH
    return _FETCHED(
        one.partition,
        _error_by_id(one) if one.error and one.topic_id else one.error,
        one.high_watermark,
        one.last_stable_offset,
        one.log_start,
        _aborted(one),
        NO_NODE,
        one.records,
        _DIVERGENCE(one.diverging_epoch, one.diverging_end) if is_divergence else None,
        _FETCHED_LEADER(one.leader_id, one.leader_epoch) if is_hint else None,
    )


def _aborted(one: PartitionFetched) -> Any:
    """Convert the aborted transactions: null unless they were asked for, and none of a partition
    that is not there."""
    if one.aborted_transactions is None:
        return [] if one.error in _NOT_THERE else None
    return Converted(lambda each: _ABORTED(*each), one.aborted_transactions)


def _list_offsets_request(asked: Any, version: Version) -> ListOffsetsRequest:
    return ListOffsetsRequest(
        NO_NODE,
        isolation_level=asked.isolation_level,
        partitions=tuple(
            PartitionListOffsets(
                topic.name,
                partition.partition_index,
                _timestamp(partition.timestamp, version),
                partition.current_leader_epoch,
            )
            for topic in asked.topics
            for partition in topic.partitions
        ),
    )


def _timestamp(asked: int, version: Version) -> int:
    """Return a timestamp, or `UNKNOWN_TIMESTAMP` for one that means something in later versions
    only."""
    lowest = next(stamp for since, stamp in _LOWEST_TIMESTAMPS if version >= since)
    return UNKNOWN_TIMESTAMP if asked < lowest else asked


# The lowest timestamp that has a meaning, since a version.
_LOWEST_TIMESTAMPS: Final = (
    (9, LATEST_TIERED_TIMESTAMP),
    (8, EARLIEST_LOCAL_TIMESTAMP),
    (7, MAX_TIMESTAMP),
    (0, EARLIEST_TIMESTAMP),
)


def _list_offsets_response(answer: ListOffsetsResponse, version: Version) -> Any:
    topics = apis.LIST_OFFSETS.response.of("topics")
    return apis.LIST_OFFSETS.response.make(
        topics=by_topic(topics.make, _listed_offset, answer.partitions)
    )


_LISTED_OFFSET = apis.LIST_OFFSETS.response.of("topics").of("partitions").make


def _listed_offset(one: PartitionOffset) -> Any:
    return _LISTED_OFFSET(one.partition, one.error, one.timestamp, one.offset, one.leader_epoch)


def _offset_for_leader_epoch_request(asked: Any, version: Version) -> OffsetsForLeaderEpochRequest:
    """Convert a consumer's request, whatever replica id it claims."""
    partitions = tuple(
        PartitionEpoch(topic.topic, one.partition, one.leader_epoch, one.current_leader_epoch)
        for topic in asked.topics
        for one in topic.partitions
    )
    return OffsetsForLeaderEpochRequest(NO_NODE, partitions)


def _offset_for_leader_epoch_response(
    answer: OffsetsForLeaderEpochResponse, version: Version
) -> Any:
    return apis.OFFSET_FOR_LEADER_EPOCH.response.make(
        topics=by_topic(_ENDED_TOPIC, _epoch_end, answer.partitions)
    )


_ENDED_TOPIC = apis.OFFSET_FOR_LEADER_EPOCH.response.of("topics").make
_ENDED = apis.OFFSET_FOR_LEADER_EPOCH.response.of("topics").of("partitions").make


def _epoch_end(one: PartitionEpochEnd) -> Any:
    return _ENDED(one.error, one.partition, one.epoch, one.end_offset)


def _delete_records_request(asked: Any, version: Version) -> DeleteRecordsRequest:
    partitions = tuple(
        PartitionDeleteRecords(topic.name, one.partition_index, one.offset)
        for topic in asked.topics
        for one in topic.partitions
    )
    return DeleteRecordsRequest(partitions, asked.timeout_ms)


def _delete_records_response(answer: DeleteRecordsResponse, version: Version) -> Any:
    topics = admin_apis.DELETE_RECORDS.response.of("topics")
    make = topics.of("partitions").make

    def deleted(one: PartitionRecordsDeleted) -> Any:
        return make(one.partition, one.low_watermark, one.error)

    return admin_apis.DELETE_RECORDS.response.make(
        topics=by_topic(topics.make, deleted, answer.partitions)
    )


INIT_FENCED_SINCE: Final[Version] = 4  # as `FENCED_SINCE`, of InitProducerId


def _init_producer_id_request(asked: Any, version: Version) -> InitProducerIdRequest:
    return InitProducerIdRequest(
        asked.transactional_id,
        asked.producer_id,
        asked.producer_epoch,
        asked.transaction_timeout_ms,
    )


def _init_producer_id_response(answer: InitProducerIdResponse, version: Version) -> Any:
    return apis.INIT_PRODUCER_ID.response.make(
        0,
        fenced_error(answer.error, version, INIT_FENCED_SINCE),
        answer.producer_id,
        answer.producer_epoch,
    )


ADAPTERS: Final = (
    Adapter(
        admin_apis.DELETE_RECORDS,
        ApiKey.DELETE_RECORDS,
        _delete_records_request,
        _delete_records_response,
        Array("topics", "partitions", "partitions"),
    ),
    Adapter(
        apis.PRODUCE,
        ApiKey.PRODUCE,
        _produce_request,
        _produce_response,
        Array("topic_data", "partitions", "partition_data"),
    ),
    Adapter(
        apis.FETCH,
        ApiKey.FETCH,
        _fetch_request,
        _fetch_response,
        Array("topics", "partitions", "partitions"),
        also=(
            Array("forgotten_topics_data", "forgotten", "partitions"),
            Array("forgotten_topics_data", "forgotten_by_id", "partitions"),
        ),
    ),
    Adapter(
        apis.LIST_OFFSETS,
        ApiKey.LIST_OFFSETS,
        _list_offsets_request,
        _list_offsets_response,
        Array("topics", "partitions", "partitions"),
    ),
    Adapter(
        apis.OFFSET_FOR_LEADER_EPOCH,
        ApiKey.OFFSETS_FOR_LEADER_EPOCH,
        _offset_for_leader_epoch_request,
        _offset_for_leader_epoch_response,
        Array("topics", "partitions", "partitions"),
    ),
    Adapter(
        apis.INIT_PRODUCER_ID,
        ApiKey.INIT_PRODUCER_ID,
        _init_producer_id_request,
        _init_producer_id_response,
    ),
)
