"""Transactions of many partitions, and many of them at once: work is done in turns."""

import trio.testing

from minibroker.broker.server.dispatch import dispatch
from minibroker.broker.transactions.markers import MarkerQueue
from minibroker.broker.transactions.registry import TransactionRegistry
from minibroker.broker.transactions.states import State
from minibroker.broker.transactions.table import TransactionTable
from minibroker.broker.transactions.transaction import Transaction
from minibroker.protocol.constants import ApiKey
from minibroker.protocol.messages import RequestEnvelope
from minibroker.protocol.messages.transactions import (
    AddPartitionsToTxnRequest,
    TransactionPartitions,
)
from minibroker.protocol.types import TopicPartition
from tests.unit.node import state_of
from tests.unit.transactions.coordinating import HOME, CoordinatorNode, coordinating

MANY = [TopicPartition("many", number) for number in range(501)]


async def test_what_a_transaction_has_already_counts_as_work(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Each record has all partitions of its transaction: so many are encoded for one more."""
    async with coordinating(CoordinatorNode()) as node:
        node.know(*(state_of(name, topic_id=b"m" * 16) for name in MANY))
        producers = [(each, await node.begin(each)) for each in "abcde"]

        def adding(*names: TopicPartition) -> AddPartitionsToTxnRequest:
            items = [TransactionPartitions(each, *one, names) for each, one in producers]
            return AddPartitionsToTxnRequest(tuple(items))

        answer = await node.answer(adding(*MANY[:500]))
        assert {each.error for one in answer.transactions for each in one.partitions} == {0}
        envelope = RequestEnvelope(ApiKey.ADD_PARTITIONS_TO_TXN, 0, 1, "app", adding(MANY[500]))
        turns = dispatch(node.services, envelope, "10.0.0.1:5000", trio.current_time())
        assert len(list(turns)) == len(producers)


def test_a_coordinator_with_many_decided_transactions_begins_in_turns() -> None:
    """Each of them gets into the queue of markers."""
    table, queue = TransactionTable(), MarkerQueue()
    for number in range(1_200):
        value = Transaction(number, 0, 1_000, State.PREPARE_COMMIT, frozenset(MANY[:1]))
        table.replay(number, f"{number}", value)
    registry = TransactionRegistry(0, HOME, table, queue, lambda records, now: 0, lambda: 0)
    assert len(list(registry.start(0.0))) > 2
    assert queue.statistics() == 1_200
