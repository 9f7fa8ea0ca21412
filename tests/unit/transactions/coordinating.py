"""A broker that coordinates transactions, for tests that speak to it without connections.

It leads the one partition of `__transaction_state`, and topic `t` of three partitions. With
`replicas=(1, 2)` broker 2 is a follower of `__transaction_state`, and nothing is committed before a
test says how far it has come. No task sends the markers: a test writes them.
"""

from collections.abc import AsyncIterator, Generator
from contextlib import asynccontextmanager
from typing import Any

import trio
import trio.testing

from minibroker.broker.replication.partition import Partition
from minibroker.broker.replication.purgatory import Parked
from minibroker.broker.server.dispatch import dispatch
from minibroker.broker.transactions.shard import TransactionShard
from minibroker.broker.transactions.transaction import Producer, Transaction
from minibroker.broker.turns import without_pause
from minibroker.protocol.constants import TRANSACTIONS_TOPIC
from minibroker.protocol.messages import APIS, RequestEnvelope
from minibroker.protocol.messages.producer_id import InitProducerIdRequest, InitProducerIdResponse
from minibroker.protocol.messages.transactions import (
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    TransactionMarkerResult,
    TransactionPartitionResult,
    TransactionPartitions,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from minibroker.protocol.types import TopicPartition
from minibroker.testing.cluster import in_worker
from tests.unit.node import Node, state_of

HOME = TopicPartition(TRANSACTIONS_TOPIC, 0)
API_OF = {api.request: key for key, api in APIS.items()}
T = [TopicPartition("t", number) for number in range(3)]
TWO = (1, 2)  # replicas
HOUR_S = 3600.0


def state_of_home(**more: Any) -> Any:
    """What the partition of `__transaction_state` shall be."""
    return state_of(HOME, topic_id=b"x" * 16, **more)


class CoordinatorNode(Node):
    """See the head of this module."""

    def __init__(self, replicas: tuple[int, ...] = (1,), **settings: str) -> None:
        super().__init__(**settings)
        self.live(1, 2)
        self.lead(*(state_of(name) for name in T))
        self.lead(state_of_home(isr=replicas, replicas=replicas))

    @property
    def home(self) -> Partition:
        """The partition of `__transaction_state`."""
        return self.partition(HOME)

    @property
    def shard(self) -> TransactionShard:
        """What the coordinator has of it."""
        return self.transactions._shards[HOME]

    def present(self, transactional_id: str = "x") -> Transaction | None:
        """The state of an id."""
        return self.shard.table.get(transactional_id)

    def ask(self, message: Any) -> Any:
        """The answer to a request, or the `Parked` one."""
        envelope = RequestEnvelope(API_OF[type(message)], 0, 1, "app", message)
        outcome = dispatch(self.services, envelope, "10.0.0.1:5000", trio.current_time())
        return without_pause(outcome) if isinstance(outcome, Generator) else outcome

    async def answer(self, message: Any) -> Any:
        """The answer to a request, waited for."""
        outcome = self.ask(message)
        if isinstance(outcome, Parked):
            outcome = await self.purgatory.wait_for_answer(outcome)
        return without_pause(outcome) if isinstance(outcome, Generator) else outcome

    async def begin(self, transactional_id: str = "x", **more: Any) -> Producer:
        """Begin a producer's session."""
        answer: InitProducerIdResponse = await self.answer(
            InitProducerIdRequest(transactional_id, **more)
        )
        assert not answer.error, answer
        return Producer(answer.producer_id, answer.producer_epoch)

    async def add(
        self, producer: Producer, *names: TopicPartition, version: int = 1, **more: Any
    ) -> list[int]:
        """Add partitions; the error of each."""
        one = TransactionPartitions("x", *producer, names, **more)
        answer = await self.answer(AddPartitionsToTxnRequest((one,), version))
        return [each.error for each in answer.transactions[0].partitions]

    async def end(self, producer: Producer, commit: bool = True, version: int = 1) -> Any:
        """End the open transaction."""
        return await self.answer(EndTxnRequest("x", *producer, commit, version))

    def markers(self, node_id: int = 1) -> WriteTxnMarkersRequest | None:
        """What a broker would be sent now."""
        while self.transactions.markers.route(self.replicas.image, trio.current_time()):
            pass
        return self.transactions.markers.take(node_id)

    def mark(self, error: int = 0, node_id: int = 1) -> WriteTxnMarkersRequest:
        """All markers for a broker are written."""
        request = self.markers(node_id)
        assert request is not None, "there are no markers to write"
        answer = WriteTxnMarkersResponse(
            tuple(
                TransactionMarkerResult(
                    marker.producer_id,
                    tuple(TransactionPartitionResult(*name, error) for name in marker.partitions),
                )
                for marker in request.markers
            )
        )
        self.transactions.markers.on_answer(node_id, answer, trio.current_time())
        self.transactions.on_marked()
        return request

    def catch_up(self) -> None:
        """Broker 2 has all of `__transaction_state`."""
        self.followed(2, self.home.log.log_end, name=HOME, now=trio.current_time())


@asynccontextmanager
async def coordinating(node: CoordinatorNode) -> AsyncIterator[CoordinatorNode]:
    """The coordinator's task runs, and has done what it can. A test has an hour for the rest."""
    is_done = False
    async with trio.open_nursery() as nursery:
        nursery.cancel_scope.deadline = trio.current_time() + HOUR_S
        nursery.start_soon(node.transactions.run, in_worker)
        await trio.testing.wait_all_tasks_blocked()
        yield node
        is_done = True
        nursery.cancel_scope.cancel()
    assert is_done, "something waits in vain"


async def turn() -> None:
    """Let everybody do what can be done now."""
    await trio.testing.wait_all_tasks_blocked()
