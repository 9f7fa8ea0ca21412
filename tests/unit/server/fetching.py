"""FETCH requests through the handler, for the tests of it."""

from collections.abc import Sequence
from typing import Any

from minibroker.broker.replication.purgatory import Parked
from minibroker.broker.server.handlers import fetch, produce
from minibroker.protocol.constants import ACKS_LEADER
from minibroker.protocol.messages.fetch import (
    FetchRequest,
    FetchResponse,
    PartitionFetch,
    PartitionFetched,
)
from minibroker.protocol.messages.produce import PartitionProduce, ProduceRequest
from minibroker.protocol.types import TopicPartition
from tests.unit.node import T0, Node, batch_of

SMALL = len(batch_of())


def append(node: Node, *batches: memoryview, name: TopicPartition = T0) -> None:
    for batch in batches:
        request = ProduceRequest(ACKS_LEADER, 0, (PartitionProduce(*name, batch),))
        outcome = produce.handle(node.services, request, 0.0)
        assert not outcome.partitions[0].error


def want(offset: int = 0, *, name: TopicPartition = T0, **more: Any) -> PartitionFetch:
    return PartitionFetch(*name, offset, **more)


def ask(
    node: Node, *wanted: PartitionFetch, now: float = 0.0, **more: int
) -> FetchResponse | Parked[FetchResponse]:
    request = FetchRequest(partitions=wanted, **{"wait_ms_max": 1_000, **more})
    return fetch.handle(node.services, request, now)


def answers(node: Node, *wanted: PartitionFetch, **more: Any) -> Sequence[PartitionFetched]:
    outcome = ask(node, *wanted, **more)
    assert isinstance(outcome, FetchResponse)
    assert outcome.error == 0
    return outcome.partitions


def answer(node: Node, *wanted: PartitionFetch, **more: Any) -> PartitionFetched:
    (only,) = answers(node, *wanted, **more)
    return only


def waits(node: Node, *wanted: PartitionFetch, **more: int) -> Parked[FetchResponse]:
    outcome = ask(node, *wanted, **more)
    assert isinstance(outcome, Parked)
    return outcome
