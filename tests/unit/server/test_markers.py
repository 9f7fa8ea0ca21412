"""WRITE_TXN_MARKERS, DESCRIBE_PRODUCERS, and what readers see of transactions."""

from collections.abc import Generator
from typing import Any

import pytest
import trio
import trio.testing

from minibroker.broker.errors import Refused
from minibroker.broker.replication.purgatory import Parked
from minibroker.broker.server.handlers import markers, offsets
from minibroker.broker.turns import without_pause
from minibroker.protocol.constants import LATEST_TIMESTAMP, READ_COMMITTED, ErrorCode
from minibroker.protocol.messages.fetch import AbortedTransaction
from minibroker.protocol.messages.offsets import ListOffsetsRequest, PartitionListOffsets
from minibroker.protocol.messages.transactions import (
    ActiveProducer,
    DescribeProducersRequest,
    DescribeProducersResponse,
    TransactionMarker,
    TransactionPartitionResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from minibroker.protocol.records.batch import iterate_headers
from minibroker.protocol.types import TopicPartition
from tests.unit.log.transacting import transactional
from tests.unit.node import T0, Node, batch_of, records_of, state_of, state_of_transactions
from tests.unit.server.fetching import answer, append, waits, want

NOWHERE = TopicPartition("u", 0)


@pytest.fixture
async def clock(autojump_clock: trio.testing.MockClock) -> trio.testing.MockClock:
    return autojump_clock


def knowing(**settings: str) -> Node:
    """A broker that knows the coordinator of transactions."""
    node = Node(**settings)
    node.know(state_of_transactions())
    return node


def begin(node: Node, producer_id: int, sequence: int = 0, epoch: int = 0) -> int:
    """Append a transactional batch that was verified; return its offset."""
    partition = node.services.partition(T0)
    verification = partition.log.verifications.begin(producer_id, epoch)
    batch = memoryview(transactional(producer_id, sequence, "k", epoch=epoch))
    now = trio.current_time()
    appended = node.replicas.append(partition, batch, -1, now, 1_000, verification)
    partition.log.verifications.end(verification)
    return appended.base_offset


def request_of(*names: TopicPartition, commit: bool = True, **more: Any) -> WriteTxnMarkersRequest:
    fields = {"producer_id": 7, "producer_epoch": 0, "coordinator_epoch": 3, **more}
    return WriteTxnMarkersRequest(
        (TransactionMarker(is_commit=commit, partitions=names or (T0,), **fields),)
    )


def write(node: Node, request: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse:
    outcome = markers.write(node.services, request, 0.0)
    assert isinstance(outcome, WriteTxnMarkersResponse)
    return outcome


def errors_of(response: WriteTxnMarkersResponse) -> list[int]:
    return [each.error for marker in response.markers for each in marker.partitions]


async def test_a_marker_waits_for_the_in_sync_replicas(clock: trio.testing.MockClock) -> None:
    """As with acks=all: the answer comes when the high watermark has passed it."""
    node = knowing()
    node.lead(state_of(isr=(1, 2), replicas=(1, 2)))
    begin(node, 7)
    outcome = markers.write(node.services, request_of(T0, NOWHERE), 0.0)
    assert isinstance(outcome, Parked)
    assert outcome.attempt(0.0) is None
    node.followed(2, 1)
    assert outcome.attempt(0.0) is None
    node.followed(2, 2)
    done = outcome.attempt(0.0)
    assert done is not None
    [marker] = done.markers
    assert marker.producer_id == 7
    assert marker.partitions == (
        TransactionPartitionResult(*T0),
        TransactionPartitionResult(*NOWHERE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    )


async def test_a_marker_of_a_leader_that_was_replaced_fails(clock: trio.testing.MockClock) -> None:
    """The coordinator sends it to the next leader."""
    node = knowing()
    node.lead(state_of(isr=(1, 2), replicas=(1, 2)))
    outcome = markers.write(node.services, request_of(), 0.0)
    assert isinstance(outcome, Parked)
    assert errors_of(outcome.expire()) == [ErrorCode.REQUEST_TIMED_OUT]
    outcome = markers.write(node.services, request_of(), 0.0)
    assert isinstance(outcome, Parked)
    node.apply(state_of(leader=2, isr=(1, 2), replicas=(1, 2), epochs=(1, 1)))
    assert errors_of(write(node, request_of())) == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    node.lead(state_of(isr=(1,), replicas=(1, 2), epochs=(2, 2)))
    done = outcome.attempt(0.0)
    assert done is not None
    assert errors_of(done) == [ErrorCode.NOT_LEADER_OR_FOLLOWER]


async def test_too_few_replicas_append_no_marker(clock: trio.testing.MockClock) -> None:
    """As acks=all."""
    node = knowing(min_insync_replicas="2")
    node.lead(state_of(isr=(1,), replicas=(1, 2)))
    assert errors_of(write(node, request_of())) == [ErrorCode.NOT_ENOUGH_REPLICAS]


async def test_a_marker_is_written_where_records_are_refused(
    clock: trio.testing.MockClock,
) -> None:
    """A transaction that has begun ends, and holds up no reader of committed records."""
    node = knowing()
    node.lead()
    begin(node, 7)
    node.manager.room.observe(0, 200)
    with pytest.raises(Refused):
        begin(node, 7, sequence=1)
    assert errors_of(write(node, request_of())) == [0]
    assert node.partition().last_stable_offset == 2


async def test_markers_of_old_epochs_are_refused(clock: trio.testing.MockClock) -> None:
    """The log's errors are the answer's."""
    node = knowing()
    node.lead()
    assert errors_of(write(node, request_of(producer_epoch=2))) == [0]
    old = [request_of(producer_epoch=1), request_of(producer_epoch=2, coordinator_epoch=2)]
    assert [errors_of(write(node, each)) for each in old] == [
        [ErrorCode.INVALID_PRODUCER_EPOCH],
        [ErrorCode.TRANSACTION_COORDINATOR_FENCED],
    ]


async def test_many_markers_pause(clock: trio.testing.MockClock) -> None:
    """A request for many partitions is served in turns."""
    node = knowing()
    node.lead()
    request = request_of(*[TopicPartition("u", number) for number in range(600)])
    turns = markers.write(node.services, request, 0.0)
    assert not isinstance(turns, WriteTxnMarkersResponse | Parked)
    assert next(turns) is None
    outcome = without_pause(turns)
    assert isinstance(outcome, WriteTxnMarkersResponse)
    assert errors_of(outcome) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 600


async def test_an_answer_about_many_markers_is_made_in_turns(clock: trio.testing.MockClock) -> None:
    """It has as many elements."""
    node = knowing()
    node.lead(state_of(isr=(1, 2), replicas=(1, 2)))
    outcome = without_pause(markers.write(node.services, request_of(*[T0] * 600), 0.0))
    assert isinstance(outcome, Parked)
    node.followed(2, 600)
    answer = outcome.attempt(0.0)
    assert isinstance(answer, Generator)
    assert errors_of(without_pause(answer)) == [0] * 600


async def test_producers_are_described(clock: trio.testing.MockClock) -> None:
    """Each with its epoch, its last sequence, and where its open transaction begins."""
    node = knowing()
    node.lead()
    append(node, batch_of())
    begin(node, 7)
    begin(node, 9, epoch=4)
    write(node, request_of(producer_id=9, producer_epoch=4))
    request = DescribeProducersRequest((T0, NOWHERE, T0))
    found = without_pause(markers.describe_producers(node.services, request, 0.0))
    assert isinstance(found, DescribeProducersResponse)
    here, nowhere = found.partitions
    time_ms = here.producers[0].last_timestamp_ms
    assert here.producers == (
        ActiveProducer(7, 0, 0, time_ms, -1, 1),
        ActiveProducer(9, 4, 0, 1_000, 3, -1),
    )
    assert nowhere.error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


# -- readers


async def test_committed_records_are_read_to_the_last_stable_offset(
    clock: trio.testing.MockClock,
) -> None:
    """Others to the high watermark; both answers name both offsets."""
    node = knowing()
    node.lead()
    append(node, batch_of())
    begin(node, 7)
    append(node, batch_of())
    stable = answer(node, want(), isolation_level=READ_COMMITTED)
    everything = answer(node, want())
    for one, count, aborted in ((stable, 1, ()), (everything, 3, None)):
        assert len([*iterate_headers(records_of(one))]) == count
        assert (one.high_watermark, one.last_stable_offset) == (3, 1)
        assert one.aborted_transactions == aborted
    waits(node, want(1), isolation_level=READ_COMMITTED)


async def test_a_reader_of_committed_records_is_woken_by_the_marker(
    mock_clock: trio.testing.MockClock,
) -> None:
    """Once the marker is committed, and with the aborted transactions of what it gets."""
    node = knowing()
    node.lead(state_of(isr=(1, 2), replicas=(1, 2)))
    begin(node, 7)
    begin(node, 8)
    node.followed(2, 2)
    waiting = waits(node, want(), isolation_level=READ_COMMITTED)
    answered = []

    async def wait() -> None:
        answered.append(await node.purgatory.wait_for_answer(waiting))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        markers.write(node.services, request_of(commit=False), 0.0)
        await trio.testing.wait_all_tasks_blocked()
        assert not answered
        node.followed(2, 3)
        await trio.testing.wait_all_tasks_blocked()
        [fetched] = answered[0].partitions
        assert fetched.last_stable_offset == 1
        assert fetched.aborted_transactions == (AbortedTransaction(7, 0),)
        assert trio.current_time() < waiting.deadline()


async def test_a_follower_gets_no_aborted_transactions(clock: trio.testing.MockClock) -> None:
    """It derives them from the batches, up to the log end."""
    node = knowing()
    node.lead(state_of(isr=(1, 2), replicas=(1, 2)))
    begin(node, 7)
    markers.write(node.services, request_of(commit=False), 0.0)
    fetched = answer(node, want(), replica_id=2, isolation_level=READ_COMMITTED)
    assert len([*iterate_headers(records_of(fetched))]) == 2
    assert fetched.aborted_transactions is None


async def test_a_new_leader_knows_the_last_stable_offset(clock: trio.testing.MockClock) -> None:
    """Its log has the open transaction of before."""
    node = knowing()
    node.lead()
    begin(node, 7)
    append(node, batch_of())
    node.apply(state_of(leader=2, isr=(1, 2), replicas=(1, 2), epochs=(1, 1)))
    node.lead(state_of(isr=(1,), replicas=(1, 2), epochs=(2, 2)))
    assert answer(node, want(), isolation_level=READ_COMMITTED, wait_ms_max=0).error == 0
    assert node.services.partition(T0).last_stable_offset == 0


async def test_the_latest_offset_is_the_last_stable_one(clock: trio.testing.MockClock) -> None:
    """For a consumer of committed records."""
    node = knowing()
    node.lead()
    append(node, batch_of())
    begin(node, 7)
    asked = (PartitionListOffsets(*T0, LATEST_TIMESTAMP),)
    for isolation_level, offset in ((0, 2), (READ_COMMITTED, 1)):
        request = ListOffsetsRequest(-1, asked, isolation_level)
        response = offsets.list_offsets(node.services, request, 0.0)
        assert not isinstance(response, Parked)
        assert [each.offset for each in response.partitions] == [offset]
