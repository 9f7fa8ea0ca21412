"""A transactional producer against a broker that answers what a test says, on virtual time."""

import logging
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import trio

from minibroker.client.committed_offsets import ConsumerGroupMetadata
from minibroker.client.errors import (
    ClientClosed,
    ClientError,
    ClientTimeout,
    ProducerFenced,
    TransactionAbortable,
    TransactionInDoubt,
)
from minibroker.client.options import Seams
from minibroker.client.producer.producer import Producer
from minibroker.client.producer.transaction_manager import State
from minibroker.protocol.constants import ApiKey, ErrorCode
from minibroker.protocol.messages.group_offsets import PartitionCommitted
from minibroker.protocol.messages.groups import (
    GROUP_KEY,
    TRANSACTION_KEY,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from minibroker.protocol.messages.metadata import (
    BrokerMetadata,
    MetadataResponse,
    PartitionMetadata,
    TopicMetadata,
)
from minibroker.protocol.messages.produce import PartitionProduced, ProduceRequest, ProduceResponse
from minibroker.protocol.messages.producer_id import InitProducerIdRequest, InitProducerIdResponse
from minibroker.protocol.messages.transactions import (
    SECOND_PROTOCOL,
    EndTxnRequest,
    EndTxnResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)
from minibroker.protocol.records.batch import has_valid_crc, read_header
from minibroker.protocol.types import TopicPartition

GROUP = ConsumerGroupMetadata("g", 3, "member")
OFFSETS = {TopicPartition("in", 0): 5}


class Stored(NamedTuple):
    """A batch as the broker got it."""

    partition: int
    epoch: int
    sequence: int
    record_count: int


class Coordinator:
    """One broker that leads topic "t", of three partitions, and coordinates everything.

    Each list of errors is for the next requests of a kind. `lost` END_TXN requests are carried out
    and not answered.
    """

    def __init__(self, broker: Any) -> None:
        self.broker = broker
        self.stored: list[Stored] = []
        self.ends: list[EndTxnRequest] = []
        self.epoch = 0
        self.produce_errors: list[ErrorCode] = []
        self.end_errors: list[ErrorCode] = []
        self.offset_errors: list[ErrorCode] = []
        self.init_errors: list[ErrorCode] = []
        self.lost = 0
        self.is_silent = False  # to PRODUCE
        answers: dict[ApiKey, Callable[[Any], Any]] = {
            ApiKey.METADATA: self.metadata,
            ApiKey.FIND_COORDINATOR: lambda _: FindCoordinatorResponse(0, None, 1, "a", 9092),
            ApiKey.INIT_PRODUCER_ID: self.init,
            ApiKey.PRODUCE: self.produce,
            ApiKey.END_TXN: self.end,
            ApiKey.TXN_OFFSET_COMMIT: self.commit_offsets,
        }
        broker.answers.update(answers)

    def metadata(self, _: object) -> MetadataResponse:
        partitions = tuple(PartitionMetadata(number, leader_id=1) for number in range(3))
        return MetadataResponse(
            brokers=(BrokerMetadata(1, "a", 9092),),
            topics=(TopicMetadata("t", partitions=partitions),),
        )

    def init(self, _: InitProducerIdRequest) -> InitProducerIdResponse:
        if self.init_errors:
            return InitProducerIdResponse(self.init_errors.pop(0))
        return InitProducerIdResponse(0, 7, self.epoch)

    async def produce(self, request: ProduceRequest) -> ProduceResponse:
        if self.is_silent:
            await trio.sleep_forever()
        assert request.transactional_id == "id"
        assert request.transaction_version == SECOND_PROTOCOL
        error = self.produce_errors.pop(0) if self.produce_errors else ErrorCode.NONE
        for asked in request.partitions:
            header = read_header(asked.records)
            assert header.is_transactional
            assert has_valid_crc(asked.records, header)
            assert header.producer_id == 7
            if not error:
                stored = Stored(
                    asked.partition,
                    header.producer_epoch,
                    header.base_sequence,
                    header.record_count,
                )
                self.stored.append(stored)
        return ProduceResponse(
            tuple(
                PartitionProduced(each.topic, each.partition, error) for each in request.partitions
            )
        )

    async def end(self, request: EndTxnRequest) -> EndTxnResponse:
        self.ends.append(request)
        if self.end_errors:
            return EndTxnResponse(self.end_errors.pop(0))
        if request.producer_epoch == self.epoch:
            self.epoch += 1
        assert request.producer_epoch + 1 == self.epoch, "an end that was carried out is repeated"
        if self.lost:
            self.lost -= 1
            await trio.sleep_forever()
        return EndTxnResponse(0, 7, self.epoch)

    def commit_offsets(self, request: TxnOffsetCommitRequest) -> TxnOffsetCommitResponse:
        error = self.offset_errors.pop(0) if self.offset_errors else ErrorCode.NONE
        results = [PartitionCommitted(each.topic, each.partition) for each in request.partitions]
        results[-1] = PartitionCommitted(results[-1].topic, results[-1].partition, error)
        return TxnOffsetCommitResponse(tuple(results))


@pytest.fixture
async def coordinator(start_broker: Any, autojump_clock: Any) -> Coordinator:
    """The broker."""
    return Coordinator(await start_broker("a"))


@pytest.fixture
def producer(seams: Seams) -> Any:
    """Makes producers with the transactional id "id"."""

    def make(**options: Any) -> Producer:
        return Producer("a:9092", seams=seams, transactional_id="id", linger_ms=0, **options)

    return make


def state_of(producer: Producer) -> State:
    """The state of its transaction."""
    assert producer._transactions is not None
    return producer._transactions.manager.state


async def test_each_transaction_has_an_epoch_and_sequences_of_its_own(
    coordinator: Coordinator, producer: Any
) -> None:
    """A session begins at the coordinator of the id. Commits and aborts give the next epoch."""
    async with producer(transaction_timeout_ms=5000) as it:
        for number in range(3):
            async with it.transaction():
                await it.send("t", b"one", partition=0)
                await it.flush()
                await it.send("t", b"two", partition=0)
                await it.send("t", b"other", partition=number)
        with pytest.raises(KeyError):  # noqa: PT012
            async with it.transaction():
                await it.send_and_wait("t", b"aborted", partition=0)
                raise KeyError
        async with it.transaction():
            await it.send_and_wait("t", b"last", partition=0)
    [session] = coordinator.broker.asked(InitProducerIdRequest)
    assert session == InitProducerIdRequest("id", transaction_timeout_ms=5000)
    found = coordinator.broker.asked(FindCoordinatorRequest)
    assert {(each.group_id, each.key_type) for each in found} == {("id", TRANSACTION_KEY)}
    first = [batch for batch in coordinator.stored if batch.partition == 0]
    assert [batch.epoch for batch in first if batch.sequence == 0] == [0, 1, 2, 3, 4]
    for epoch in range(5):
        batches = [batch for batch in first if batch.epoch == epoch]
        ends = [batch.sequence + batch.record_count for batch in batches]
        assert [batch.sequence for batch in batches] == [0, *ends[:-1]]
    assert [(end.producer_epoch, end.is_commit) for end in coordinator.ends] == [
        (0, True),
        (1, True),
        (2, True),
        (3, False),
        (4, True),
    ]


async def test_send_outside_of_a_transaction_is_an_error_at_once(
    coordinator: Coordinator, producer: Any
) -> None:
    """Before the first one, between two, and while one ends; by each way of sending."""
    async with producer() as it:
        for _ in range(2):
            with pytest.raises(ClientError, match="there is no transaction: begin one"):
                await it.send("t", b"x")
            with pytest.raises(ClientError, match="there is no transaction"):
                it.send_nowait("t", b"x", b"key")
            with pytest.raises(ClientError, match="there is no transaction"):
                it.send_many("t", [b"x"])
            with pytest.raises(ClientError, match="there is no transaction"):
                await it.send_and_wait("t", b"x")
            with pytest.raises(ClientError, match="there is no transaction"):
                await it.send_offsets_to_transaction(OFFSETS, GROUP)
            with pytest.raises(ClientError, match="there is no transaction"):
                await it.commit_transaction()
            with pytest.raises(ClientError, match="there is no transaction"):
                await it.abort_transaction()
            async with it.transaction():
                with pytest.raises(ClientError, match="a transaction is open"):
                    await it.begin_transaction()
                await it.send("t", b"x", b"key")
        coordinator.is_silent = True
        await it.begin_transaction()
        await it.send("t", b"x", b"key")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(it.commit_transaction)
            await trio.sleep(1)
            with pytest.raises(ClientError, match="the transaction is ending"):
                await it.send("t", b"late", b"key")
            nursery.cancel_scope.cancel()
        assert state_of(it) is State.IN_TRANSACTION, "nothing was decided"
        await it.abort_transaction()
    with pytest.raises(ClientClosed):
        await it.begin_transaction()
    assert sum(batch.record_count for batch in coordinator.stored) == 2


async def test_a_producer_without_an_id_has_no_transactions(
    coordinator: Coordinator, seams: Seams
) -> None:
    """The error names the option."""
    async with Producer("a:9092", seams=seams) as it:
        with pytest.raises(ClientError, match="give it a transactional_id"):
            await it.begin_transaction()


async def test_a_transaction_without_records_needs_no_request(
    coordinator: Coordinator, producer: Any
) -> None:
    """No broker knows of it."""
    async with producer() as it:
        async with it.transaction():
            pass
        await it.begin_transaction()
        await it.abort_transaction()
    assert not coordinator.ends


async def test_a_batch_that_fails_makes_the_transaction_fail(
    coordinator: Coordinator, producer: Any
) -> None:
    """Nothing more is sent, each call says to abort, and the next transaction is sound."""
    coordinator.produce_errors = [ErrorCode.INVALID_RECORD]
    async with producer() as it:
        await it.begin_transaction()
        with pytest.raises(TransactionAbortable, match="INVALID_RECORD") as caught:
            await it.send_and_wait("t", b"refused", partition=0)
        assert caught.value.remedy == "abort"
        for call in (
            lambda: it.send("t", b"x"),
            it.flush,
            it.commit_transaction,
            it.begin_transaction,
            lambda: it.send_offsets_to_transaction(OFFSETS, GROUP),
        ):
            with pytest.raises(TransactionAbortable, match="abort the transaction"):
                await call()
        await it.abort_transaction()
        async with it.transaction():
            await it.send("t", b"good", partition=0)
    assert coordinator.stored == [Stored(0, 1, 0, 1)]
    assert [end.is_commit for end in coordinator.ends] == [False, True]


async def test_a_failed_batch_takes_all_others_with_it(
    coordinator: Coordinator, producer: Any
) -> None:
    """Those that wait are not sent, and a refused sequence is not numbered anew in this epoch. The
    block of the transaction aborts it, and the end of the producer has nothing to add."""
    async with producer() as it:
        with pytest.raises(TransactionAbortable):  # noqa: PT012
            async with it.transaction():
                await it.send_and_wait("t", b"first", partition=0)
                coordinator.produce_errors = [ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER]
                for number in range(50):
                    await it.send("t", bytes(1000), partition=number % 2)
        assert state_of(it) is State.READY
        before = len(coordinator.stored)
        async with it.transaction():
            await it.send_and_wait("t", b"next", partition=0)
    assert coordinator.stored[before:] == [Stored(0, 1, 0, 1)]
    assert all(batch.epoch == 0 for batch in coordinator.stored[:before])


async def test_an_abort_waits_for_no_record(coordinator: Coordinator, producer: Any) -> None:
    """A batch under way is of an epoch that is over then; the next transaction goes behind it."""
    async with producer(request_timeout_ms=1000) as it:
        coordinator.is_silent = True
        with trio.fail_after(0.5):
            await it.begin_transaction()
            pending = it.send_for_delivery("t", b"under way", partition=0)
            await trio.sleep(0.1)
            it.send_nowait("t", b"waits", partition=0)
            await it.abort_transaction()
        with pytest.raises(ClientError, match="their transaction is aborted"):
            await pending.wait()
        coordinator.is_silent = False
        async with it.transaction():
            await it.send("t", b"next", partition=0)
    assert coordinator.stored == [Stored(0, 1, 0, 1)]


async def test_markers_of_the_transaction_before_are_waited_for(
    coordinator: Coordinator, producer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """A broker takes no batch of the next one until then, which is usual: the producer asks again
    soon, and logs nothing."""
    async with producer() as it:
        coordinator.produce_errors = [ErrorCode.NOT_ENOUGH_REPLICAS] * 2
        began = trio.current_time()
        async with it.transaction():
            await it.send_and_wait("t", b"x", partition=0)
        assert trio.current_time() - began < 0.1
        assert not caplog.records
        async with it.transaction():
            await it.send_and_wait("t", b"x", partition=0)
            coordinator.produce_errors = [ErrorCode.NOT_ENOUGH_REPLICAS]
            await it.send_and_wait("t", b"x", partition=0)
    assert "NOT_ENOUGH_REPLICAS" in caplog.text


async def test_an_end_without_an_answer_is_repeated(
    coordinator: Coordinator, producer: Any
) -> None:
    """With the same epoch, by which the coordinator recognizes it."""
    coordinator.lost = 1
    async with producer(request_timeout_ms=1000) as it:
        coordinator.end_errors = [
            ErrorCode.CONCURRENT_TRANSACTIONS,
            ErrorCode.NOT_COORDINATOR,
            ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ]
        async with it.transaction():
            await it.send("t", b"x", partition=0)
        async with it.transaction():
            await it.send("t", b"y", partition=0)
    assert [end.producer_epoch for end in coordinator.ends] == [0, 0, 0, 0, 0, 1]
    assert [batch.epoch for batch in coordinator.stored] == [0, 1]
    assert len(coordinator.broker.asked(FindCoordinatorRequest)) == 4


@pytest.mark.parametrize("is_commit", [True, False])
async def test_an_end_in_doubt_can_only_be_repeated(
    coordinator: Coordinator, producer: Any, is_commit: bool
) -> None:
    """After max.block.ms, and after a cancellation: the other end might be the wrong one."""
    async with producer(max_block_ms=2000) as it:
        end, other = it.commit_transaction, it.abort_transaction
        if not is_commit:
            end, other = other, end
        await it.begin_transaction()
        await it.send_and_wait("t", b"x", partition=0)
        coordinator.lost = 1
        with pytest.raises(TransactionInDoubt, match=f"call {end.__name__} again") as caught:
            await end()
        assert caught.value.remedy == "retry"
        with trio.move_on_after(1):
            await end()
        for call in (other, it.begin_transaction, lambda: it.send("t", b"y")):
            with pytest.raises(ClientError):
                await call()
        for connection in coordinator.broker.connections:
            connection.close()
        await end()
        async with it.transaction():
            await it.send("t", b"z", partition=0)
    assert {(each.producer_epoch, each.is_commit) for each in coordinator.ends} == {
        (0, is_commit),
        (1, True),
    }


@pytest.mark.parametrize("where", ["produce", "end", "offsets"])
async def test_a_fenced_producer_can_only_be_closed(
    coordinator: Coordinator, producer: Any, where: str
) -> None:
    """Whichever broker says so. The block of a transaction does not try to abort it."""
    errors = {
        "produce": coordinator.produce_errors,
        "end": coordinator.end_errors,
        "offsets": coordinator.offset_errors,
    }[where]
    errors.append(ErrorCode.PRODUCER_FENCED)
    async with producer() as it:
        with pytest.raises(ProducerFenced, match="close this producer") as caught:  # noqa: PT012
            async with it.transaction():
                await it.send("t", b"x", partition=0)
                await it.send_offsets_to_transaction(OFFSETS, GROUP)
        assert caught.value.remedy == "close"
        for call in (it.begin_transaction, it.commit_transaction, it.abort_transaction, it.flush):
            with pytest.raises(ProducerFenced):
                await call()
    assert len(coordinator.ends) == (where == "end")


@pytest.mark.parametrize("is_fenced", [True, False], ids=["fenced", "late"])
@pytest.mark.parametrize("where", ["produce", "offsets"])
async def test_a_stale_epoch_is_settled_by_the_abort(
    coordinator: Coordinator, producer: Any, where: str, is_fenced: bool
) -> None:
    """A broker that sees only the epoch cannot tell a late transaction from another producer."""
    stale = {"produce": coordinator.produce_errors, "offsets": coordinator.offset_errors}
    stale[where].append(ErrorCode.INVALID_PRODUCER_EPOCH)
    if is_fenced:
        coordinator.end_errors.append(ErrorCode.PRODUCER_FENCED)
    async with producer() as it:
        error = ProducerFenced if is_fenced else TransactionAbortable
        with pytest.raises(error, match="another producer"):  # noqa: PT012
            async with it.transaction():
                await it.send("t", b"x", partition=0)
                await it.send_offsets_to_transaction(OFFSETS, GROUP)
        if is_fenced:
            with pytest.raises(ProducerFenced):
                await it.begin_transaction()
        else:
            async with it.transaction():
                await it.send("t", b"next", partition=0)
    assert [end.is_commit for end in coordinator.ends] == [False, True][: 2 - is_fenced]


async def test_offsets_are_sent_to_the_coordinator_of_the_group(
    coordinator: Coordinator, producer: Any
) -> None:
    """As often as needed, in the producer's epoch and the member's name. A commit of offsets alone
    is one."""
    coordinator.offset_errors = [
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    ]
    async with producer() as it:
        async with it.transaction():
            await it.send_offsets_to_transaction(OFFSETS, GROUP)
            await it.send_offsets_to_transaction({}, GROUP)
        with pytest.raises(TypeError, match=r"what group_metadata\(\) returns, not str"):
            await it.send_offsets_to_transaction(OFFSETS, "g")
        with pytest.raises(TypeError, match="offsets to commit are those of a record"):
            await it.send_offsets_to_transaction(5, GROUP)
    requests = coordinator.broker.asked(TxnOffsetCommitRequest)
    assert len(requests) == 3
    assert {(each.producer_epoch, each.member_id, each.generation) for each in requests} == {
        (0, "member", 3)
    }
    found = coordinator.broker.asked(FindCoordinatorRequest)
    assert [each.key_type for each in found if each.group_id == "g"] == [GROUP_KEY, GROUP_KEY]
    assert [end.is_commit for end in coordinator.ends] == [True]


async def test_without_its_offsets_a_transaction_is_not_committed(
    coordinator: Coordinator, producer: Any
) -> None:
    """Refused, not answered in time, or cancelled: each makes it fail."""
    async with producer(max_block_ms=1000) as it:
        coordinator.offset_errors = [ErrorCode.ILLEGAL_GENERATION]
        with pytest.raises(TransactionAbortable, match="not a member any more"):
            async with it.transaction():
                await it.send_offsets_to_transaction(OFFSETS, GROUP)
        coordinator.offset_errors = [ErrorCode.COORDINATOR_NOT_AVAILABLE] * 1000
        with pytest.raises(TransactionAbortable, match="COORDINATOR_NOT_AVAILABLE"):
            async with it.transaction():
                await it.send_offsets_to_transaction(OFFSETS, GROUP)
        with pytest.raises(TransactionAbortable, match="cancelled"):  # noqa: PT012
            async with it.transaction():
                with trio.move_on_after(0.3):
                    await it.send_offsets_to_transaction(OFFSETS, GROUP)
        coordinator.offset_errors.clear()
        async with it.transaction():
            await it.send_offsets_to_transaction(OFFSETS, GROUP)
    assert [end.is_commit for end in coordinator.ends] == [False, False, False, True]


async def test_a_session_begins_when_the_transaction_before_has_ended(
    coordinator: Coordinator, producer: Any
) -> None:
    """The start of the producer waits for it, and for max.block.ms at most."""
    coordinator.init_errors = [ErrorCode.CONCURRENT_TRANSACTIONS] * 5
    async with producer() as it, it.transaction():
        await it.send("t", b"x")
    assert len(coordinator.broker.asked(InitProducerIdRequest)) == 6
    coordinator.init_errors = [ErrorCode.CONCURRENT_TRANSACTIONS] * 10_000
    with pytest.raises(ClientTimeout, match=r"'id' within 3000 ms: CONCURRENT_TRANSACTIONS"):
        async with producer(max_block_ms=3000):
            raise AssertionError("it does not start")


async def test_the_end_of_a_producer_aborts_its_transaction(
    coordinator: Coordinator, producer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Its records are given up, and the log says so; nothing is raised."""
    coordinator.is_silent = True
    async with producer() as it:
        await it.begin_transaction()
        await it.send("t", b"x", partition=0)
        await trio.sleep(0.1)
    assert [end.is_commit for end in coordinator.ends] == [False]
    assert "the producer ends in a transaction: aborting it" in caplog.text
    assert caplog.records[0].levelno == logging.WARNING


async def test_a_cancelled_block_is_aborted(coordinator: Coordinator, producer: Any) -> None:
    """Within a second. If the coordinator does not answer, the abort is left to be called again."""
    async with producer() as it:
        for _ in range(2):
            began = trio.current_time()
            with trio.move_on_after(1):
                async with it.transaction():
                    await it.send_and_wait("t", b"x", partition=0)
                    await trio.sleep_forever()
            assert trio.current_time() - began <= 2.1
            coordinator.lost = 1
        assert state_of(it) is State.ABORTING
        for connection in coordinator.broker.connections:
            connection.close()
        await it.abort_transaction()
        async with it.transaction():
            await it.send("t", b"x", partition=0)
    assert [batch.epoch for batch in coordinator.stored] == [0, 1, 2]


async def test_an_abort_that_fails_is_a_note_of_the_exception(
    coordinator: Coordinator, producer: Any
) -> None:
    """The block's own exception is what matters."""
    async with producer(max_block_ms=500) as it:
        coordinator.end_errors = [ErrorCode.COORDINATOR_NOT_AVAILABLE] * 1000
        with pytest.raises(KeyError) as caught:  # noqa: PT012
            async with it.transaction():
                await it.send_and_wait("t", b"x", partition=0)
                raise KeyError
        [note] = caught.value.__notes__
        assert "call abort_transaction again" in note
        coordinator.end_errors.clear()
        await it.abort_transaction()


async def test_a_close_during_a_commit_commits_no_part(
    coordinator: Coordinator, producer: Any
) -> None:
    """Records that the close gave up are missing, so the commit fails."""
    caught: list[Exception] = []

    async def commit(it: Producer) -> None:
        try:
            await it.commit_transaction()
        except (ClientError, TransactionAbortable) as error:
            caught.append(error)

    async with producer() as it, trio.open_nursery() as nursery:
        await it.begin_transaction()
        await it.send_and_wait("t", b"stored", partition=0)
        coordinator.is_silent = True
        await it.send("t", b"given up", partition=0)
        nursery.start_soon(commit, it)
        await trio.sleep(0.1)
        await it.close(1.0)
    assert [type(each) for each in caught] == [TransactionAbortable]
    assert not any(end.is_commit for end in coordinator.ends)
