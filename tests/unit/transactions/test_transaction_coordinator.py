"""The coordinator of transactions of one broker: what it stores, and what the next one finishes."""

import pytest
import trio
import trio.testing

from minibroker.broker.transactions.coordinator import UNMARKED_S
from minibroker.broker.transactions.states import State
from minibroker.protocol.constants import ErrorCode
from minibroker.protocol.messages.producer_id import InitProducerIdRequest
from minibroker.protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    DescribeTransactionsRequest,
    EndTxnRequest,
    ListTransactionsRequest,
    TransactionPartitions,
)
from minibroker.protocol.types import TopicPartition
from tests.unit.groups.keeping import state_of_offsets
from tests.unit.node import Node, state_of
from tests.unit.transactions.coordinating import (
    TWO,
    CoordinatorNode,
    T,
    coordinating,
    state_of_home,
    turn,
)

CLOCK = trio.testing.MockClock


async def test_a_transaction_is_committed(autojump_clock: CLOCK) -> None:
    """From the session to the last record; the next transaction has the same producer."""
    async with coordinating(CoordinatorNode()) as node:
        producer = await node.begin()
        assert await node.add(producer, T[0], T[1]) == [0, 0]
        assert (await node.end(producer)).error == 0
        assert node.present().state is State.PREPARE_COMMIT
        assert (await node.end(producer)).error == ErrorCode.CONCURRENT_TRANSACTIONS
        [marker] = node.mark().markers
        assert (marker.producer_id, marker.producer_epoch) == producer
        assert marker.is_commit
        assert marker.coordinator_epoch == node.home.leader_epoch
        assert marker.partitions == (T[0], T[1])
        await turn()
        assert node.present().state is State.COMPLETE_COMMIT
        assert (await node.end(producer)).error == 0
        assert await node.add(producer, T[2]) == [0]


async def test_in_the_second_protocol_an_end_gives_the_next_epoch(autojump_clock: CLOCK) -> None:
    """The old epoch is fenced once the markers are written, and told to ask again before."""
    async with coordinating(CoordinatorNode()) as node:
        producer = await node.begin()
        await node.add(producer, T[0], version=2)
        answer = await node.end(producer, commit=False, version=2)
        assert (answer.producer_id, answer.producer_epoch) == (producer.producer_id, 1)
        busy = [ErrorCode.CONCURRENT_TRANSACTIONS]
        assert await node.add(producer, T[0], version=2) == busy
        node.mark()
        await turn()
        assert node.present().state is State.COMPLETE_ABORT
        assert await node.add(producer, T[0], version=2) == [ErrorCode.PRODUCER_FENCED]
        again = await node.end(producer, commit=False, version=2)
        assert (again.error, again.producer_epoch) == (0, 1)


async def test_nothing_is_answered_before_it_is_committed(autojump_clock: CLOCK) -> None:
    """A producer must not hear of what another coordinator might not know; what waits is answered
    when the coordinator moves."""
    async with coordinating(CoordinatorNode(TWO)) as node, trio.open_nursery() as nursery:
        node.catch_up()
        await turn()
        answers = []

        async def ask() -> None:
            answers.append(await node.answer(InitProducerIdRequest("x")))

        nursery.start_soon(ask)
        await turn()
        assert answers == []
        busy = await node.answer(InitProducerIdRequest("x"))
        assert busy.error == ErrorCode.CONCURRENT_TRANSACTIONS
        node.catch_up()
        await turn()
        assert answers.pop().error == 0
        nursery.start_soon(ask)
        await turn()
        node.apply(state_of_home(epochs=(1, 1), leader=2, isr=TWO, replicas=TWO))
        await turn()
        assert answers.pop().error == ErrorCode.NOT_COORDINATOR


async def test_the_next_coordinator_finishes_what_is_decided(autojump_clock: CLOCK) -> None:
    """With its own epoch, and nothing that was decided is decided again."""
    async with coordinating(CoordinatorNode()) as node:
        producer = await node.begin()
        await node.add(producer, T[0], T[1])
        await node.end(producer)
        assert node.markers() is not None  # under way when the coordinator moves
        node.apply(state_of_home(epochs=(1, 1), leader=2, isr=TWO, replicas=TWO))
        await turn()
        assert node.transactions.markers.statistics() == 0
        node.transactions.markers.on_lost(1, trio.current_time())
        node.apply(state_of_home(epochs=(2, 2), isr=TWO, replicas=TWO))
        node.catch_up()
        await turn()
        [marker] = node.mark().markers
        assert marker.coordinator_epoch == 2
        assert marker.partitions == (T[0], T[1])
        node.catch_up()
        await turn()
        node.catch_up()
        await turn()
        assert node.present().state is State.COMPLETE_COMMIT


async def test_it_is_logged_what_a_decided_transaction_waits_for(
    autojump_clock: CLOCK, caplog: pytest.LogCaptureFixture
) -> None:
    """With the partition and its last error, now and then, and no more of them than a few."""
    async with coordinating(CoordinatorNode()) as node:
        producer = await node.begin()
        await node.add(producer, T[0], T[1])
        await node.end(producer)
        node.mark(ErrorCode.NOT_ENOUGH_REPLICAS)
        await trio.sleep(UNMARKED_S)
        assert "its marker is not written" not in caplog.text
        await trio.sleep(UNMARKED_S + 1)
        [told] = [line for line in caplog.messages if "its marker is not written" in line]
        assert "'x' is decided for" in told
        assert told.endswith("to t-0: NOT_ENOUGH_REPLICAS")
        node.mark()
        await turn()
        caplog.clear()
        await trio.sleep(3 * UNMARKED_S)
        assert "its marker is not written" not in caplog.text


async def test_who_does_not_coordinate_says_so(autojump_clock: CLOCK) -> None:
    """No topic, or led elsewhere; an id that cannot be is refused anywhere."""
    node = Node()
    node.live(1)
    other = CoordinatorNode()
    other.apply(state_of_home(epochs=(1, 1), leader=2, isr=TWO, replicas=TWO))
    ask = CoordinatorNode.ask
    for each, error in (
        (node, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (other, ErrorCode.NOT_COORDINATOR),
        (CoordinatorNode(), ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
    ):
        assert ask(each, InitProducerIdRequest("x")).error == error  # type: ignore[arg-type]
        assert ask(each, EndTxnRequest("x", 1, 0)).error == error  # type: ignore[arg-type]
        described = ask(each, DescribeTransactionsRequest(("x",)))  # type: ignore[arg-type]
        [told] = described.transactions
        assert told.error == error
    for bad in ("", "x" * 32768):
        assert other.ask(InitProducerIdRequest(bad)).error == ErrorCode.INVALID_REQUEST
        assert other.ask(EndTxnRequest(bad, 1, 0)).error == ErrorCode.INVALID_REQUEST


async def test_a_coordinator_that_may_be_replaced_says_nothing_of_the_present(
    autojump_clock: CLOCK,
) -> None:
    """The next one may know more: the producer might be told that it is fenced, or that its
    transaction is open, and both may be wrong by now."""
    async with coordinating(CoordinatorNode()) as node:
        producer = await node.begin()
        await node.add(producer, T[0])
        node.controller.is_session_over = True
        loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert await node.add(producer, T[0]) == [loading]
        assert await node.add(producer, T[0], is_verify_only=True) == [loading]
        stranger = producer._replace(epoch=9)
        assert (await node.end(stranger)).error == loading


async def test_a_late_transaction_is_aborted(autojump_clock: CLOCK) -> None:
    """With the next epoch; one that has time left goes on."""
    settings = {"transaction_abort_timed_out_transaction_cleanup_interval_ms": "1000"}
    async with coordinating(CoordinatorNode(**settings)) as node:
        producer = await node.begin(transaction_timeout_ms=5_000)
        await node.add(producer, T[0])
        node.wall_time_ms += 5_000
        await trio.sleep(2)
        assert node.present().state is State.ONGOING
        node.wall_time_ms += 1
        await trio.sleep(2)
        assert node.present().state is State.PREPARE_ABORT
        assert (await node.end(producer)).error == ErrorCode.PRODUCER_FENCED
        [marker] = node.mark().markers
        assert (marker.producer_epoch, marker.is_commit) == (producer.epoch + 1, False)
        await turn()
        assert node.present().state is State.COMPLETE_ABORT


async def test_an_unused_id_expires(autojump_clock: CLOCK) -> None:
    """It gets a new producer id when it comes again."""
    settings = {
        "transaction_remove_expired_transaction_cleanup_interval_ms": "1000",
        "transactional_id_expiration_ms": "60000",
    }
    async with coordinating(CoordinatorNode(**settings)) as node:
        producer = await node.begin()
        node.wall_time_ms += 60_000
        await trio.sleep(2)
        assert node.present() is not None
        node.wall_time_ms += 1
        await trio.sleep(2)
        assert node.present() is None
        assert (await node.end(producer)).error == ErrorCode.INVALID_PRODUCER_ID_MAPPING
        again = await node.begin()
        assert again.producer_id > producer.producer_id


async def test_a_partition_is_verified(autojump_clock: CLOCK) -> None:
    """The leader of a partition asks before it appends: what is not of the transaction is not
    added."""
    async with coordinating(CoordinatorNode()) as node:
        producer = await node.begin()
        await node.add(producer, T[0])
        answer = await node.add(producer, T[0], T[1], is_verify_only=True)
        assert answer == [0, ErrorCode.TRANSACTION_ABORTABLE]
        assert node.present().partitions == {T[0]}
        await node.end(producer)
        concurrent = [ErrorCode.CONCURRENT_TRANSACTIONS]
        assert await node.add(producer, T[0], is_verify_only=True) == concurrent


async def test_an_unknown_partition_adds_none(autojump_clock: CLOCK) -> None:
    """As in Kafka: the others are not attempted."""
    async with coordinating(CoordinatorNode()) as node:
        producer = await node.begin()
        answer = await node.add(producer, T[0], TopicPartition("t", 9))
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert answer == [ErrorCode.OPERATION_NOT_ATTEMPTED, unknown]
        assert node.present().state is State.EMPTY


async def test_several_transactions_are_added_in_one_request(autojump_clock: CLOCK) -> None:
    """Each with its own result."""
    async with coordinating(CoordinatorNode()) as node:
        first, second = await node.begin("x"), await node.begin("y")
        answer = await node.answer(
            AddPartitionsToTxnRequest(
                (
                    TransactionPartitions("x", *first, (T[0],)),
                    TransactionPartitions("y", *second._replace(epoch=5), (T[0],)),
                    TransactionPartitions("y", *second, (T[1],)),
                )
            )
        )
        told = [(one.transactional_id, one.partitions[0].error) for one in answer.transactions]
        assert told == [("x", 0), ("y", ErrorCode.PRODUCER_FENCED), ("y", 0)]
        assert node.present("y").partitions == {T[1]}


async def test_the_offsets_of_a_group_are_a_partition(autojump_clock: CLOCK) -> None:
    """That one which stores the group."""
    async with coordinating(CoordinatorNode()) as node:
        node.know(state_of_offsets())
        producer = await node.begin()
        answer = await node.answer(AddOffsetsToTxnRequest("x", *producer, "g"))
        assert answer.error == 0
        assert node.present().partitions == {TopicPartition("__consumer_offsets", 0)}


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
async def test_a_timeout_is_bounded(autojump_clock: CLOCK, timeout_ms: int) -> None:
    """By transaction.max.timeout.ms."""
    async with coordinating(CoordinatorNode()) as node:
        answer = await node.answer(InitProducerIdRequest("x", transaction_timeout_ms=timeout_ms))
        assert answer.error == ErrorCode.INVALID_TRANSACTION_TIMEOUT
        assert "transaction.max.timeout.ms" in answer.error_message


async def test_without_producer_ids_a_producer_asks_again(autojump_clock: CLOCK) -> None:
    """Nothing is stored meanwhile."""
    async with coordinating(CoordinatorNode()) as node:
        node.controller.has_producer_ids = False
        answer = await node.answer(InitProducerIdRequest("x"))
        assert answer.error == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert node.present() is None


async def test_transactions_take_bounded_memory(autojump_clock: CLOCK) -> None:
    """Beyond transaction.coordinator.max.bytes no new id is taken; those there go on."""
    settings = {"transaction_coordinator_max_bytes": str(1024 * 1024)}
    async with coordinating(CoordinatorNode(**settings)) as node:
        producer = await node.begin()
        errors = {
            (await node.answer(InitProducerIdRequest(f"{'y' * 30_000}{number}"))).error
            for number in range(40)
        }
        assert errors == {0, ErrorCode.COORDINATOR_NOT_AVAILABLE}
        again = await node.begin()
        assert again == producer._replace(epoch=1)


async def test_transactions_are_described_and_listed(autojump_clock: CLOCK) -> None:
    """By state, by producer, by how long they are open, and by a pattern."""
    async with coordinating(CoordinatorNode()) as node:
        producer, other = await node.begin("x"), await node.begin("y")
        await node.add(producer, T[1], T[0])
        node.wall_time_ms += 1_000
        answer = await node.answer(DescribeTransactionsRequest(("x", "y", "z")))
        open_one, idle, unknown = answer.transactions
        assert open_one.state == "Ongoing"
        assert open_one.start_time_ms == node.wall_time_ms - 1_000 == open_one.open_since_ms
        assert open_one.timeout_ms == 60_000
        assert (open_one.producer_id, open_one.producer_epoch) == producer
        assert open_one.partitions == (T[0], T[1])
        assert (idle.state, idle.start_time_ms, idle.partitions) == ("Empty", -1, ())
        assert unknown.error == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        for filters, found in (
            ({}, ["x", "y"]),
            ({"states": ("Ongoing", "Opn")}, ["x"]),
            ({"producer_ids": (other.producer_id,)}, ["y"]),
            ({"duration_ms": 999}, ["x"]),
            ({"duration_ms": 1_000}, []),
            ({"transactional_id_pattern": "[yz]"}, ["y"]),
        ):
            listed = await node.answer(ListTransactionsRequest(**filters))
            assert sorted(one.transactional_id for one in listed.transactions) == found, filters
            assert listed.unknown_states == (("Opn",) if "states" in filters else ())
        await node.begin("app:größe 1")
        by_pattern = ListTransactionsRequest(transactional_id_pattern=r"app:\S+ \d")
        [one] = (await node.answer(by_pattern)).transactions
        assert one.transactional_id == "app:größe 1"
        bad = await node.answer(ListTransactionsRequest(transactional_id_pattern="("))
        assert bad.error == ErrorCode.INVALID_REGULAR_EXPRESSION


async def test_an_ended_transaction_is_described_with_its_start(autojump_clock: CLOCK) -> None:
    """As in Kafka, until the producer's next session begins; but it is not open any more."""
    async with coordinating(CoordinatorNode()) as node:
        producer = await node.begin()
        await node.add(producer, T[0])
        began_ms = node.wall_time_ms
        node.wall_time_ms += 1_000
        await node.end(producer)
        node.mark()
        await turn()
        [ended] = (await node.answer(DescribeTransactionsRequest(("x",)))).transactions
        assert (ended.state, ended.partitions) == ("CompleteCommit", ())
        assert (ended.start_time_ms, ended.open_since_ms) == (began_ms, -1)
        await node.begin()
        [begun] = (await node.answer(DescribeTransactionsRequest(("x",)))).transactions
        assert (begun.state, begun.start_time_ms) == ("Empty", -1)


async def test_a_transaction_of_deleted_topics_ends(autojump_clock: CLOCK) -> None:
    """It needs no marker there."""
    async with coordinating(CoordinatorNode()) as node:
        producer = await node.begin()
        await node.add(producer, T[0])
        node.forget(state_of(T[0]))
        await node.end(producer)
        assert node.markers() is None
        node.transactions.on_marked()
        await turn()
        assert node.present().state is State.COMPLETE_COMMIT
