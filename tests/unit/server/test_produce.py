"""PRODUCE through its handler (rows PRO)."""

import errno
import random

import pytest
import trio
import trio.testing

from minibroker.broker.replication.purgatory import Parked
from minibroker.broker.server.handlers import produce
from minibroker.broker.server.services import HangUp
from minibroker.protocol.constants import (
    ACKS_ALL,
    ACKS_LEADER,
    ACKS_NONE,
    BATCH_HEADER_BYTES,
    ErrorCode,
)
from minibroker.protocol.messages.control import PartitionAltered
from minibroker.protocol.messages.produce import (
    PartitionProduce,
    PartitionProduced,
    ProduceRequest,
    ProduceResponse,
)
from minibroker.protocol.records.batch import ProducerStamp
from minibroker.protocol.types import TopicPartition
from minibroker.testing.disk import SimulatedFiles
from tests.unit.node import T0, Node, batch_of, state_of

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


@pytest.mark.parametrize("acks", [-2, 2, 32_767])
def test_unknown_acks_append_nothing(acks: int) -> None:
    """PRO-01: acks outside -1, 0, 1 are refused for every partition, and nothing is appended."""
    node = Node()
    node.lead()
    outcome = produce.handle(node.services, request_of(batch_of(), batch_of(), acks=acks), 0.0)
    assert isinstance(outcome, ProduceResponse)
    assert [p.error for p in outcome.partitions] == [ErrorCode.INVALID_REQUIRED_ACKS] * 2
    assert node.partition().log.log_end == 0


def test_acks_leader_tells_where_it_lies() -> None:
    """PRO-02: acks=1 answers after the append with base offset, no append time, and log start."""
    node = Node()
    node.lead()
    assert answer(node, request_of(batch_of(3))).base_offset == 0
    produced = answer(node, request_of(batch_of(2)))
    assert produced == PartitionProduced("t", 0, 0, 3, -1, 0)


def test_the_append_time_is_told() -> None:
    """PRO-02: a topic that stamps records tells the time it gave them."""
    node = Node()
    node.lead(overrides={"message.timestamp.type": "LogAppendTime"})
    node.wall_time_ms = 77_000
    assert answer(node, request_of(batch_of())).log_append_time_ms == 77_000


def test_acks_none_is_silent() -> None:
    """PRO-03: acks=0 appends and has no answer."""
    node = Node()
    node.lead()
    assert produce.handle(node.services, request_of(batch_of(), acks=ACKS_NONE), 0.0) is None
    assert node.partition().log.log_end == 1


def test_acks_none_hangs_up_on_errors() -> None:
    """PRO-03: with acks=0 an error of any partition ends the connection."""
    node = Node()
    node.lead()
    request = ProduceRequest(
        ACKS_NONE, 0, (PartitionProduce("t", 0, batch_of()), PartitionProduce("u", 0, batch_of()))
    )
    with pytest.raises(HangUp):
        produce.handle(node.services, request, 0.0)
    assert node.partition().log.log_end == 1


def test_acks_all_alone_is_answered_at_once() -> None:
    """PAR-02: with a single replica acks=all needs no fetch of anybody."""
    node = Node()
    node.lead()
    assert answer(node, request_of(batch_of(2), acks=ACKS_ALL)).base_offset == 0
    assert node.partition().high_watermark == 2


def test_too_few_replicas_append_nothing() -> None:
    """PRO-04: acks=all below the min ISR is NOT_ENOUGH_REPLICAS without an append; acks=1 works."""
    node = Node(min_insync_replicas="2")
    node.lead(state_of(isr=(1,), replicas=(1, 2)))
    refused = answer(node, request_of(batch_of(), acks=ACKS_ALL))
    assert refused.error == ErrorCode.NOT_ENOUGH_REPLICAS
    assert node.partition().log.log_end == 0
    assert answer(node, request_of(batch_of())).error == 0
    assert node.partition().log.log_end == 1


async def test_acks_all_waits_for_the_isr(autojump_clock: trio.testing.MockClock) -> None:
    """A16: acks=all is answered when the high watermark passes the batch, not before."""
    node = Node()
    node.lead(state_of(isr=(1, 2), replicas=(1, 2)))
    waiting = parked(node, request_of(batch_of(2), acks=ACKS_ALL))
    assert waiting.attempt(0.0) is None
    node.followed(2, 1)
    assert waiting.attempt(0.0) is None
    node.followed(2, 2)
    done = waiting.attempt(0.0)
    assert done is not None
    assert done.partitions[0] == PartitionProduced("t", 0, 0, 0, -1, 0)


async def test_acks_all_late_says_so_and_keeps_the_record(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """PRO-06: not committed in time is REQUEST_TIMED_OUT; the record stays."""
    node = Node()
    node.lead(state_of(isr=(1, 2), replicas=(1, 2)))
    request = request_of(batch_of(), acks=ACKS_ALL, timeout_ms=300)
    start = trio.current_time()
    late = await node.purgatory.settle(parked(node, request))
    assert trio.current_time() - start == pytest.approx(0.3)
    assert late.partitions[0].error == ErrorCode.REQUEST_TIMED_OUT
    assert node.partition().log.log_end == 1


async def test_entries_settle_one_by_one(autojump_clock: trio.testing.MockClock) -> None:
    """A16: at the time-out only what is still waiting has failed, and errors come with the rest."""
    node = Node()
    other = TopicPartition("t", 1)
    node.lead(
        state_of(isr=(1, 2), replicas=(1, 2)),
        state_of(other, isr=(1, 2), replicas=(1, 2)),
    )
    names = (T0, other, TopicPartition("u", 0))
    request = ProduceRequest(
        ACKS_ALL, 300, tuple(PartitionProduce(*name, batch_of()) for name in names)
    )
    waiting = parked(node, request)
    node.followed(2, 1, name=other)
    late = await node.purgatory.settle(waiting)
    assert [p.error for p in late.partitions] == [
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]


async def test_the_isr_may_shrink_meanwhile(autojump_clock: trio.testing.MockClock) -> None:
    """A16: committed by too small an ISR is NOT_ENOUGH_REPLICAS_AFTER_APPEND, never success."""
    node = Node(min_insync_replicas="2")
    node.lead(state_of(isr=(1, 2), replicas=(1, 2)))
    waiting = parked(node, request_of(batch_of(), acks=ACKS_ALL))
    node.followed(2, 1)
    node.apply(state_of(epochs=(0, 1), isr=(1,), replicas=(1, 2)))
    done = waiting.attempt(0.0)
    assert done is not None
    assert done.partitions[0].error == ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND


async def test_a_lost_leadership_is_told(autojump_clock: trio.testing.MockClock) -> None:
    """RM-06, A16: another term answers NOT_LEADER_OR_FOLLOWER, even if this broker leads again."""
    node = Node()
    node.lead(state_of(isr=(1, 2), replicas=(1, 2)))
    waiting = parked(node, request_of(batch_of(), acks=ACKS_ALL))
    node.lead(state_of(epochs=(1, 1), isr=(1, 2), replicas=(1, 2)))
    node.followed(2, 1)
    done = await node.purgatory.settle(waiting)
    assert done.partitions[0].error == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert done.partitions[0].leader_id == 1
    assert done.partitions[0].leader_epoch == 1


@pytest.mark.parametrize(
    ("is_known", "code"),
    [(True, ErrorCode.NOT_LEADER_OR_FOLLOWER), (False, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)],
)
async def test_a_stopped_replica_answers_its_waiters(
    is_known: bool, code: ErrorCode, autojump_clock: trio.testing.MockClock
) -> None:
    """RM-14: a stop wakes waiting produces: not leader, or unknown if the topic is gone."""
    node = Node()
    state = state_of(isr=(1, 2), replicas=(1, 2))
    node.lead(state)
    waiting = parked(node, request_of(batch_of(), acks=ACKS_ALL))
    if not is_known:
        node.forget(state)

    async def stop() -> None:
        await trio.sleep(0.1)
        node.stop(state, delete=True, leader_epoch=0)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(stop)
        done = await node.purgatory.settle(waiting)
    assert done.partitions[0].error == code
    assert trio.current_time() < 0.5


def test_whom_to_ask_instead() -> None:
    """PRO-08, MET-07: led elsewhere, or only known: NOT_LEADER with a hint; unknown: UNKNOWN."""
    node = Node()
    node.lead(state_of(leader=2, epochs=(4, 0), isr=(2,), replicas=(1, 2)))
    elsewhere = TopicPartition("e", 0)
    node.know(state_of(elsewhere, leader=3, epochs=(7, 0), isr=(3,), replicas=(3,)))
    led_by_two = answer(node, request_of(batch_of()))
    assert led_by_two.error == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert (led_by_two.leader_id, led_by_two.leader_epoch) == (2, 4)
    on_three = answer(node, request_of(batch_of(), name=elsewhere))
    assert on_three.error == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert (on_three.leader_id, on_three.leader_epoch) == (3, 7)
    for unknown in (TopicPartition("u", 0), TopicPartition("t", 1), TopicPartition("t", -1)):
        refused = answer(node, request_of(batch_of(), name=unknown))
        assert refused.error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_exactly_one_batch() -> None:
    """PRO-09: no batch, or two, is INVALID_RECORD."""
    node = Node()
    node.lead()
    two = memoryview(bytearray(bytes(batch_of()) * 2))
    for records in (memoryview(bytearray()), two):
        assert answer(node, request_of(records)).error == ErrorCode.INVALID_RECORD
    assert node.partition().log.log_end == 0


def test_times_out_of_the_window() -> None:
    """PRO-10: a timestamp too far from the broker's clock is INVALID_TIMESTAMP."""
    node = Node()
    node.lead(overrides={"message.timestamp.after.max.ms": "10"})
    late = answer(node, request_of(batch_of(time_ms=node.wall_time_ms + 11)))
    assert late.error == ErrorCode.INVALID_TIMESTAMP
    assert answer(node, request_of(batch_of(time_ms=node.wall_time_ms + 10))).error == 0


def test_a_repeated_batch_gets_its_first_answer() -> None:
    """R1: a batch that is sent again is answered with its original offset and not written."""
    node = Node()
    node.lead()
    stamp = ProducerStamp(7, 0, 0)
    first = answer(node, request_of(batch_of(2, producer=stamp)))
    answer(node, request_of(batch_of(1, producer=ProducerStamp(7, 0, 2))))
    assert answer(node, request_of(batch_of(2, producer=stamp))) == first
    assert node.partition().log.log_end == 3


def test_a_full_disk_is_told_and_passes() -> None:
    """A full disk is KAFKA_STORAGE_ERROR; nothing of the batch stays, and later it works again."""
    node = Node()
    node.lead()
    answer(node, request_of(batch_of()))
    size = node.partition().log.size
    node.files.fail("append", number=errno.ENOSPC)
    refused = answer(node, request_of(batch_of(100)))
    assert refused.error == ErrorCode.KAFKA_STORAGE_ERROR
    assert node.partition().log.size == size
    assert answer(node, request_of(batch_of())).base_offset == 1


def test_any_bytes_have_a_known_error() -> None:
    """R6: whatever is sent as a batch, the code is one that a producer can handle."""
    rng = random.Random(3)
    node = Node(SimulatedFiles(rng))
    node.lead()
    good = bytes(batch_of(3))
    for _ in range(2_000):
        bad = bytearray(good)
        for _ in range(rng.randint(1, 3)):
            bad[rng.randrange(BATCH_HEADER_BYTES)] = rng.randrange(256)
        del bad[rng.choice((rng.randrange(len(bad)), len(bad))) :]
        before = node.partition().log.log_end
        produced = answer(node, request_of(memoryview(bad)))
        assert produced.error or node.partition().log.log_end > before


async def test_nothing_parked_holds_the_receive_buffer(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """4.5: a produce that waits keeps no view of its request, so the buffer can be used again."""
    node = Node()
    node.lead(state_of(isr=(1, 2), replicas=(1, 2)))
    received = bytearray(bytes(batch_of(5)))
    waiting = parked(node, request_of(memoryview(received), acks=ACKS_ALL))
    received.append(0)
    received.pop()
    assert waiting.attempt(0.0) is None


async def test_flush_always_acknowledges_what_is_durable(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    """4.12: with flush=always acks=1 and acks=all wait for the fsync, and share it."""
    node = Node(flush="always")
    node.lead()
    nursery.start_soon(node.flusher.run)
    await trio.testing.wait_all_tasks_blocked()
    first = parked(node, request_of(batch_of(), acks=ACKS_LEADER))
    second = parked(node, request_of(batch_of(), acks=ACKS_ALL))
    assert node.partition().high_watermark == 0
    assert node.partition().log.durable_end == 0
    assert (await node.purgatory.settle(first)).partitions[0].error == 0
    assert (await node.purgatory.settle(second)).partitions[0].base_offset == 1
    assert node.partition().high_watermark == node.partition().log.durable_end == 2
    assert node.files.sync_count <= 3


@pytest.mark.parametrize("acks", [ACKS_NONE, ACKS_LEADER])
def test_past_its_session_a_broker_promises_nothing_alone(acks: int) -> None:
    """4.9: when the session may have ended, acks 0 and 1 are refused, for somebody else may lead;
    acks=all goes on, which only the newest leader's ISR can confirm."""
    node = Node()
    node.lead()
    node.controller.is_session_over = True
    if acks == ACKS_NONE:
        with pytest.raises(HangUp, match="session"):
            produce.handle(node.services, request_of(batch_of(), acks=acks), 0.0)
    else:
        refused = answer(node, request_of(batch_of(), acks=acks))
        assert refused.error == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert node.partition().log.log_end == 0
    assert answer(node, request_of(batch_of(), acks=ACKS_ALL)).error == 0


async def test_a_shrink_counts_only_when_confirmed(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """K1: cut off from its followers a leader answers no acks=all with success: before the shrink
    is confirmed it waits, after it too few are left."""
    node = Node(min_insync_replicas="2")
    node.lead(state_of(isr=(1, 2), replicas=(1, 2)))
    waiting = parked(node, request_of(batch_of(), acks=ACKS_ALL))
    node.replicas.review_isrs(1e6)
    assert waiting.attempt(1e6) is None
    (proposal,) = node.isr_changes.take_nowait()
    confirmed = PartitionAltered(*T0, 0, 1, 0, 1, (1,))
    assert node.replicas.resolve(proposal, confirmed, 1e6)
    assert waiting.attempt(1e6) is None
    assert node.partition().high_watermark == 0
    refused = answer(node, request_of(batch_of(), acks=ACKS_ALL))
    assert refused.error == ErrorCode.NOT_ENOUGH_REPLICAS


async def test_who_is_about_to_join_counts_for_the_ack(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A16, PAR-08: the ISR is looked at again before the ack, with who is joining; a batch that
    was accepted while two were in sync is acknowledged if a third takes the second's place."""
    node = Node(min_insync_replicas="2")
    node.live(1, 2, 3)
    node.lead(state_of(isr=(1, 2), replicas=(1, 2, 3)))
    waiting = parked(node, request_of(batch_of(), acks=ACKS_ALL))
    node.followed(2, 1)
    node.apply(state_of(epochs=(0, 1), isr=(1,), replicas=(1, 2, 3)))
    node.followed(3, 1)
    done = waiting.attempt(0.0)
    assert done is not None
    assert done.partitions[0].error == 0


def test_weak_acks_on_a_replicated_topic_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    """K4: the operator hears that a producer does not wait for the followers."""
    node = Node()
    node.lead(state_of(isr=(1, 2), replicas=(1, 2)))
    answer(node, request_of(batch_of()))
    answer(node, request_of(batch_of()))
    assert [r.getMessage() for r in caplog.records if "acks=1" in r.getMessage()] == [
        "topic t has 2 replicas, and a producer asks for acks=1: what it sends may be lost when a"
        " leader fails"
    ]


async def test_a_follower_that_was_leader_answers_its_waiters(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """RM-06: becoming follower wakes waiting produces, which hear who leads now."""
    node = Node()
    node.lead(state_of(isr=(1, 2), replicas=(1, 2)))
    waiting = parked(node, request_of(batch_of(), acks=ACKS_ALL))

    async def demote() -> None:
        await trio.sleep(0.1)
        node.lead(state_of(epochs=(1, 1), leader=2, isr=(1, 2), replicas=(1, 2)))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(demote)
        done = await node.purgatory.settle(waiting)
    assert trio.current_time() < 0.2
    produced = done.partitions[0]
    assert (produced.error, produced.leader_id) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, 2)
