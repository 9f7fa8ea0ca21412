"""PRODUCE of transactional batches: the coordinator verifies the transaction before the append."""

from collections.abc import Mapping

import pytest
import trio
import trio.testing

from minibroker.broker.replication import transaction_verifier
from minibroker.broker.replication.purgatory import Parked
from minibroker.broker.replication.transaction_verifier import ASKED_AT_ONCE, TransactionVerifier
from minibroker.broker.server.handlers import markers, produce
from minibroker.broker.turns import AT_ONCE, without_pause
from minibroker.protocol.constants import ErrorCode
from minibroker.protocol.messages.produce import (
    PartitionProduce,
    PartitionProduced,
    ProduceRequest,
    ProduceResponse,
)
from minibroker.protocol.messages.transactions import (
    SECOND_PROTOCOL,
    TransactionMarker,
    TransactionPartitions,
    WriteTxnMarkersRequest,
)
from minibroker.protocol.types import TopicPartition
from tests.unit.log.transacting import transactional
from tests.unit.node import T0, Node, batch_of, state_of, state_of_transactions

T1 = TopicPartition("t", 1)
KNOWN: Mapping[TopicPartition, int] = {T0: 0, T1: 0}


def request_of(
    *batches: memoryview | bytearray,
    transactional_id: str | None = "mine",
    version: int = 1,
    acks: int = -1,
) -> ProduceRequest:
    partitions = tuple([PartitionProduce(*T0, memoryview(each)) for each in batches])
    return ProduceRequest(acks, 1_000, partitions, transactional_id, version)


@pytest.fixture
def node() -> Node:
    node = Node()
    node.lead()
    node.know(state_of_transactions())
    return node


def send(node: Node, request: ProduceRequest) -> ProduceResponse | Parked[ProduceResponse]:
    outcome = produce.handle(node.services, request, 0.0)
    assert isinstance(outcome, ProduceResponse | Parked)
    return outcome


def parked(node: Node, request: ProduceRequest) -> Parked[ProduceResponse]:
    outcome = send(node, request)
    assert isinstance(outcome, Parked)
    assert outcome.attempt(0.0) is None
    return outcome


def answer_of(node: Node, outcome: ProduceResponse | Parked[ProduceResponse]) -> PartitionProduced:
    response = outcome.attempt(0.0) if isinstance(outcome, Parked) else outcome
    assert response is not None
    return response.partitions[0]


def verify(node: Node, errors: Mapping[TopicPartition, int] = KNOWN) -> None:
    """Answer the one question that there is."""
    [(asked, version)] = node.verified_appends.take_questions()
    node.verified_appends.answer(asked, version, errors, 0.0)


def test_the_first_batch_waits_for_the_coordinator(node: Node) -> None:
    """It is asked once for the transaction and partition; the others are appended at once."""
    first = parked(node, request_of(transactional(7, 0, "a")))
    assert first.held_size > 0
    assert node.services.partition(T0).log.log_end == 0
    [(asked, version)] = node.verified_appends.take_questions()
    assert asked == TransactionPartitions("mine", 7, 0, (T0,), is_verify_only=True)
    node.verified_appends.answer(asked, version, KNOWN, 0.0)
    assert answer_of(node, first).base_offset == 0
    assert answer_of(node, send(node, request_of(transactional(7, 1, "b")))).base_offset == 1
    assert node.verified_appends.take_questions() == []
    assert len(node.verified_appends) == 0


def test_batches_that_come_meanwhile_keep_their_order(node: Node) -> None:
    """They wait behind the first one; a plain producer does not."""
    sent = [parked(node, request_of(transactional(7, number, "a"))) for number in range(3)]
    plain = send(node, request_of(batch_of(), transactional_id=None))
    assert answer_of(node, plain).base_offset == 0
    verify(node)
    assert [answer_of(node, each).base_offset for each in sent] == [1, 2, 3]
    assert [answer_of(node, each).error for each in sent] == [0, 0, 0]


async def test_after_a_marker_the_next_batch_is_verified_again(node: Node) -> None:
    """The next transaction is another one, also in the same epoch."""
    parked(node, request_of(transactional(7, 0, "a")))
    verify(node)
    marker = TransactionMarker(7, 0, True, 1, (T0,))
    markers.write(node.services, WriteTxnMarkersRequest((marker,)), 0.0)
    again = send(node, request_of(transactional(7, 0, "a")))
    assert answer_of(node, again).base_offset == 0, "a duplicate needs no verification"
    parked(node, request_of(transactional(7, 1, "b")))


async def test_a_marker_that_overtakes_the_answer_fences(node: Node) -> None:
    """The answer is about a transaction that has ended: in the first protocol the next one has the
    same epoch."""
    late = parked(node, request_of(transactional(7, 0, "a")))
    marker = TransactionMarker(7, 0, False, 1, (T0,))
    markers.write(node.services, WriteTxnMarkersRequest((marker,)), 0.0)
    verify(node)
    assert answer_of(node, late).error == ErrorCode.INVALID_TXN_STATE
    assert node.services.partition(T0).last_stable_offset == 1


@pytest.mark.parametrize("error", [ErrorCode.NONE, ErrorCode.PRODUCER_FENCED])
async def test_after_a_marker_the_coordinator_is_asked_again(node: Node, error: int) -> None:
    """In the second protocol the marker may be that of the transaction before, which its producer
    was told as ended; else the epoch is over."""
    late = parked(node, request_of(transactional(7, 0, "a", epoch=1), version=SECOND_PROTOCOL))
    marker = TransactionMarker(7, 1, True, 1, (T0,), SECOND_PROTOCOL)
    markers.write(node.services, WriteTxnMarkersRequest((marker,)), 0.0)
    verify(node)
    assert late.attempt(0.0) is None
    verify(node, {T0: error})
    told = ErrorCode.INVALID_PRODUCER_EPOCH if error else ErrorCode.NONE
    assert answer_of(node, late).error == told
    assert node.services.partition(T0).log.log_end == (1 if error else 2)
    assert len(node.verified_appends) == len(node.verified_appends.take_questions()) == 0


@pytest.mark.parametrize("epochs", [(5, 4), (4, 5)])
def test_a_batch_of_another_epoch_refuses_none_that_waits(
    node: Node, epochs: tuple[int, int]
) -> None:
    """The coordinator says which of them has the transaction."""
    sent = {
        epoch: parked(
            node, request_of(transactional(7, 0, "a", epoch=epoch), version=SECOND_PROTOCOL)
        )
        for epoch in epochs
    }
    for asked, version in node.verified_appends.take_questions():
        error = ErrorCode.NONE if asked.producer_epoch == 5 else ErrorCode.PRODUCER_FENCED
        node.verified_appends.answer(asked, version, {T0: error}, 0.0)
    assert answer_of(node, sent[5]).error == ErrorCode.NONE
    assert answer_of(node, sent[4]).error == ErrorCode.INVALID_PRODUCER_EPOCH
    assert len(node.verified_appends) == 0


@pytest.mark.parametrize(
    ("error", "version", "told"),
    [
        (ErrorCode.TRANSACTION_ABORTABLE, 1, ErrorCode.INVALID_TXN_STATE),
        (ErrorCode.TRANSACTION_ABORTABLE, 2, ErrorCode.TRANSACTION_ABORTABLE),
        (ErrorCode.INVALID_PRODUCER_ID_MAPPING, 1, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        (ErrorCode.PRODUCER_FENCED, 1, ErrorCode.INVALID_PRODUCER_EPOCH),
        (ErrorCode.CONCURRENT_TRANSACTIONS, 1, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.NOT_COORDINATOR, 2, ErrorCode.NOT_ENOUGH_REPLICAS),
        (12_345, 1, ErrorCode.INVALID_TXN_STATE),
    ],
)
def test_what_is_not_verified_is_refused(node: Node, error: int, version: int, told: int) -> None:
    """All that waits for it, with an error that producers know."""
    sent = [
        parked(node, request_of(transactional(7, number, "a"), version=version))
        for number in range(2)
    ]
    verify(node, {T0: error})
    assert [answer_of(node, each).error for each in sent] == [told, told]
    assert node.services.partition(T0).log.log_end == 0


def test_in_the_second_protocol_the_leader_adds_the_partition(node: Node) -> None:
    """KIP-890: the question is not only one."""
    parked(node, request_of(transactional(7, 0, "a"), version=SECOND_PROTOCOL))
    [(asked, version)] = node.verified_appends.take_questions()
    assert (asked.is_verify_only, version) == (False, SECOND_PROTOCOL)


def test_without_a_transactional_id_the_whole_request_is_refused(node: Node) -> None:
    """As in Kafka, its plain batches, too; with an id both kinds are appended."""
    both = (transactional(7, 0, "a"), batch_of())
    response = send(node, request_of(*both, transactional_id=None))
    assert isinstance(response, ProduceResponse)
    code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert [each.error for each in response.partitions] == [code, code]
    waiting = parked(node, request_of(*both))
    verify(node)
    done = waiting.attempt(0.0)
    assert done is not None
    assert [each.base_offset for each in done.partitions] == [1, 0]


def test_what_would_be_refused_is_not_verified(node: Node) -> None:
    """A damaged batch, one out of order, one of an old epoch."""
    parked(node, request_of(transactional(7, 0, "a", epoch=1)))
    verify(node)
    damaged = transactional(8, 0, "a")
    damaged[-1] ^= 1
    for batch, code in (
        (damaged, ErrorCode.CORRUPT_MESSAGE),
        (transactional(7, 5, "a", epoch=1), ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
        (transactional(7, 0, "a"), ErrorCode.INVALID_PRODUCER_EPOCH),
    ):
        assert answer_of(node, send(node, request_of(batch))).error == code
    assert node.verified_appends.take_questions() == []


def test_a_replica_that_leads_no_more_appends_nothing(node: Node) -> None:
    """The answer may come late."""
    late = parked(node, request_of(transactional(7, 0, "a")))
    node.stop(state_of(), delete=True, leader_epoch=1)
    verify(node)
    assert answer_of(node, late).error == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_time_may_be_up_before_the_answer(node: Node) -> None:
    """The producer sends again; its batch may be appended meanwhile."""
    late = parked(node, request_of(transactional(7, 0, "a")))
    assert late.expire().partitions[0].error == ErrorCode.REQUEST_TIMED_OUT


async def test_the_verifier_is_asked(node: Node, autojump_clock: trio.testing.MockClock) -> None:
    """Each question by a task of its own; one that cannot be asked is answered with an error."""
    asked: list[TransactionPartitions] = []

    async def ask(question: TransactionPartitions, version: int) -> Mapping[TopicPartition, int]:
        asked.append(question)
        await trio.sleep(0.5)
        if question.producer_id == 8:
            raise OSError("nobody is there")
        return KNOWN

    answers: list[PartitionProduced] = []

    async def wait(producer_id: int) -> None:
        waiting = parked(node, request_of(transactional(producer_id, 0, "a")))
        response = await node.purgatory.wait_for_answer(waiting)
        answers.append(response.partitions[0])

    async with trio.open_nursery() as nursery:
        nursery.start_soon(TransactionVerifier(node.verified_appends, ask).run)
        await trio.testing.wait_all_tasks_blocked()
        async with trio.open_nursery() as waiting:
            waiting.start_soon(wait, 7)
            waiting.start_soon(wait, 8)
        nursery.cancel_scope.cancel()
    assert sorted(each.error for each in answers) == [0, ErrorCode.NOT_ENOUGH_REPLICAS]
    assert {each.producer_id for each in asked} == {7, 8}


async def test_a_coordinator_that_is_not_reached_is_logged_now_and_then(
    node: Node,
    autojump_clock: trio.testing.MockClock,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One request may have thousands of batches, and its producer sends them again."""
    caplog.set_level("INFO")
    monkeypatch.setattr(transaction_verifier, "TOLD_S", 0.5)

    async def ask(question: TransactionPartitions, version: int) -> Mapping[TopicPartition, int]:
        raise OSError("no way")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(TransactionVerifier(node.verified_appends, ask).run)
        for count in (1, 2):
            caplog.clear()
            for number in range(20):
                waiting = parked(node, request_of(transactional(number, 0, "a")))
                await node.purgatory.wait_for_answer(waiting)
            assert sum("is not reached: no way" in line for line in caplog.messages) == 1, count
            await trio.sleep(0.6)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("transactional_id", ["", "x" * 32_768])
def test_an_id_that_no_record_can_hold_is_refused(node: Node, transactional_id: str) -> None:
    """No coordinator is asked: to find it would take long."""
    response = send(node, request_of(transactional(7, 0, "a"), transactional_id=transactional_id))
    assert answer_of(node, response).error == ErrorCode.INVALID_REQUEST
    assert node.verified_appends.take_questions() == []


async def test_many_questions_about_an_id_are_asked_in_turns(
    node: Node, autojump_clock: trio.testing.MockClock
) -> None:
    """One request may have thousands, each of another producer. Another id does not wait."""
    count = 2 * AT_ONCE
    batches = [transactional(number, 0, "a") for number in range(count)]
    turns = produce.handle_in_turns(node.services, request_of(*batches), 0.0)
    many = without_pause(turns)
    assert isinstance(many, Parked)
    under_way, most, other_ids = 0, 0, 0

    async def ask(question: TransactionPartitions, version: int) -> Mapping[TopicPartition, int]:
        nonlocal under_way, most, other_ids
        other_ids += question.transactional_id != "mine" and under_way > 0
        under_way += 1
        most = max(most, under_way)
        await trio.sleep(0.5)
        under_way -= 1
        return KNOWN

    async with trio.open_nursery() as nursery:
        nursery.start_soon(TransactionVerifier(node.verified_appends, ask).run)
        batch = transactional(9_999, 0, "a")
        other = parked(node, request_of(batch, transactional_id="other"))
        response = await node.purgatory.wait_for_answer(other)
        assert (response.partitions[0].error, other_ids) == (0, 1)
        assert trio.current_time() < 2
        await trio.sleep(count)
        assert many.attempt(0.0) is not None
        assert most <= ASKED_AT_ONCE + 1
        nursery.cancel_scope.cancel()


def test_what_waits_counts_as_memory(node: Node) -> None:
    """A batch of some bytes takes more while it waits."""
    waiting = parked(node, request_of(transactional(7, 0, "a")))
    assert waiting.held_size > 1_000
