"""Transactional ids of 32767 bytes, the most that a record takes: what is written for many of them
at once is more than one batch."""

import trio
import trio.testing

from minibroker.broker.replication.purgatory import Parked
from minibroker.broker.transactions.states import State
from minibroker.protocol.constants import ErrorCode
from minibroker.protocol.messages.producer_id import InitProducerIdRequest
from minibroker.protocol.messages.transactions import (
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    TransactionPartitions,
)
from tests.unit.transactions.coordinating import TWO, CoordinatorNode, T, coordinating, turn

CLOCK = trio.testing.MockClock
IDS = [f"{number:_>32767}" for number in range(40)]
SETTINGS = {
    "transaction_abort_timed_out_transaction_cleanup_interval_ms": "1000",
    "transaction_remove_expired_transaction_cleanup_interval_ms": "1000",
    "transactional_id_expiration_ms": "3600000",
}


async def open_all(node: CoordinatorNode) -> list[EndTxnRequest]:
    """Open a transaction of each id; the requests that commit them."""
    ends = []
    for each in IDS:
        producer = await node.begin(each)
        added = TransactionPartitions(each, *producer, (T[0],))
        answer = await node.answer(AddPartitionsToTxnRequest((added,)))
        assert answer.transactions[0].partitions[0].error == 0
        ends.append(EndTxnRequest(each, *producer, is_commit=True))
    return ends


def states(node: CoordinatorNode) -> set[State]:
    return {each.state for each in node.shard.table.transactions.values()}


async def test_late_transactions_are_aborted(autojump_clock: CLOCK) -> None:
    """All of them, and their ids expire later."""
    async with coordinating(CoordinatorNode(**SETTINGS)) as node:
        await open_all(node)
        node.wall_time_ms += 60_001
        await trio.sleep(2)
        assert states(node) == {State.PREPARE_ABORT}
        node.mark()
        await turn()
        assert states(node) == {State.COMPLETE_ABORT}
        node.wall_time_ms += 3_600_001
        await trio.sleep(2)
        assert states(node) == set()


async def test_transactions_that_get_their_markers_at_once_end(autojump_clock: CLOCK) -> None:
    """Each has its last record."""
    async with coordinating(CoordinatorNode(**SETTINGS)) as node:
        for each in await open_all(node):
            assert (await node.answer(each)).error == 0
        node.mark()
        await turn()
        assert states(node) == {State.COMPLETE_COMMIT}


async def test_ids_that_are_being_written_count_as_memory(autojump_clock: CLOCK) -> None:
    """While a follower is away, none of them is committed."""
    settings = {"transaction_coordinator_max_bytes": str(1024 * 1024)}
    async with coordinating(CoordinatorNode(TWO, **settings)) as node:
        node.catch_up()
        await turn()
        waiting = [node.ask(InitProducerIdRequest(each)) for each in IDS]
        refused = [each for each in waiting if not isinstance(each, Parked)]
        assert {each.error for each in refused} == {ErrorCode.COORDINATOR_NOT_AVAILABLE}
        assert node.transactions.held_bytes < 1024 * 1024
        node.catch_up()
        await turn()
        assert node.transactions.held_bytes < 1024 * 1024
