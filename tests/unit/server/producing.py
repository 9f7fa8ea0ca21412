"""PRODUCE requests through the handler, for the tests of it."""

import trio

from minibroker.broker.replication.purgatory import Parked
from minibroker.broker.server.handlers import produce
from minibroker.protocol.constants import ACKS_LEADER, ErrorCode
from minibroker.protocol.messages.produce import (
    PartitionProduce,
    PartitionProduced,
    ProduceRequest,
    ProduceResponse,
)
from minibroker.protocol.types import TopicPartition
from tests.unit.node import T0, Node

# What a client knows how to handle after a produce. UNKNOWN_SERVER_ERROR is not among them.
PRODUCE_ERRORS = {
    ErrorCode.NONE,
    ErrorCode.CORRUPT_MESSAGE,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.MESSAGE_TOO_LARGE,
    ErrorCode.RECORD_LIST_TOO_LARGE,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ErrorCode.INVALID_REQUIRED_ACKS,
    ErrorCode.INVALID_TIMESTAMP,
    ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
    ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
    ErrorCode.INVALID_RECORD,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.UNKNOWN_PRODUCER_ID,
    ErrorCode.INCONSISTENT_TOPIC_ID,
}


def request_of(
    *batches: memoryview,
    acks: int = ACKS_LEADER,
    name: TopicPartition = T0,
    timeout_ms: int = 1_000,
) -> ProduceRequest:
    return ProduceRequest(acks, timeout_ms, tuple(PartitionProduce(*name, b) for b in batches))


def answer(node: Node, request: ProduceRequest) -> PartitionProduced:
    """The one entry of an answer that comes at once."""
    outcome = produce.handle(node.services, request, 0.0)
    assert isinstance(outcome, ProduceResponse)
    (produced,) = outcome.partitions
    assert produced.error in PRODUCE_ERRORS
    return produced


def parked(node: Node, request: ProduceRequest) -> Parked[ProduceResponse]:
    outcome = produce.handle(node.services, request, trio.current_time())
    assert isinstance(outcome, Parked)
    return outcome
