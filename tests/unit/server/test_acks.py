"""What a produce waits for, and what ends its wait (A16, K1, K4; rows PRO, RM)."""

import pytest
import trio
import trio.testing

from minibroker.broker.server.handlers import produce
from minibroker.broker.server.services import HangUp
from minibroker.broker.turns import without_pause
from minibroker.protocol.constants import ACKS_ALL, ACKS_LEADER, ACKS_NONE, ErrorCode
from minibroker.protocol.messages.control import PartitionAltered
from minibroker.protocol.messages.produce import (
    PartitionProduce,
    PartitionProduced,
    ProduceRequest,
    ProduceResponse,
)
from minibroker.protocol.records.batch import ProducerStamp
from minibroker.protocol.types import TopicPartition
from tests.unit.node import T0, Node, batch_of, state_of
from tests.unit.server.producing import answer, parked, request_of


def stamped_request() -> ProduceRequest:
    """The same two records of the same idempotent producer, each time it is called."""
    return request_of(batch_of(2, producer=ProducerStamp(7, 0, 0)), acks=ACKS_ALL)


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


async def test_a_duplicate_waits_for_the_isr(autojump_clock: trio.testing.MockClock) -> None:
    """A14.1: a batch that is sent again waits for the high watermark like its original, and both
    are answered with the same offset; once it is committed a third is answered at once."""
    node = Node()
    node.lead(state_of(isr=(1, 2), replicas=(1, 2)))
    original, duplicate = (parked(node, stamped_request()) for _ in range(2))
    assert node.partition().log.log_end == 2
    node.followed(2, 1)
    assert (original.attempt(0.0), duplicate.attempt(0.0)) == (None, None)
    node.followed(2, 2)
    expected = ProduceResponse((PartitionProduced("t", 0, 0, 0, -1, 0),))
    assert original.attempt(0.0) == duplicate.attempt(0.0) == expected
    assert answer(node, stamped_request()).base_offset == 0


async def test_a_duplicate_that_is_not_committed_times_out(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A14.1, PRO-06: it is not acknowledged because it is known; it may still be lost."""
    node = Node()
    node.lead(state_of(isr=(1, 2), replicas=(1, 2)))
    for _ in range(2):
        late = await node.purgatory.wait_for_answer(parked(node, stamped_request()))
        assert late.partitions[0].error == ErrorCode.REQUEST_TIMED_OUT
    assert node.partition().log.log_end == 2


async def test_a_follower_s_fetch_wakes_the_producer(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A16: the answer comes when the last follower's fetch is noted, or the shrink confirmed, and
    not at the deadline."""
    node = Node()
    node.lead(state_of(isr=(1, 2), replicas=(1, 2)))
    first = parked(node, request_of(batch_of(), acks=ACKS_ALL))

    async def fetch() -> None:
        await trio.sleep(0.1)
        node.followed(2, 1)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(fetch)
        assert (await node.purgatory.wait_for_answer(first)).partitions[0].error == 0
    assert trio.current_time() < 0.2
    second = parked(node, request_of(batch_of(), acks=ACKS_ALL))

    async def shrink() -> None:
        await trio.sleep(0.1)
        without_pause(node.replicas.review_isrs(1e6))
        (proposal,) = node.isr_proposals.next_batch_nowait()
        node.replicas.resolve(proposal, PartitionAltered(*T0, 0, 1, 0, 1, (1,)), 1e6)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(shrink)
        assert (await node.purgatory.wait_for_answer(second)).partitions[0].error == 0
    assert trio.current_time() < 0.4


async def test_acks_all_late_says_so_and_keeps_the_record(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """PRO-06: not committed in time is REQUEST_TIMED_OUT; the record stays."""
    node = Node()
    node.lead(state_of(isr=(1, 2), replicas=(1, 2)))
    request = request_of(batch_of(), acks=ACKS_ALL, timeout_ms=300)
    start = trio.current_time()
    late = await node.purgatory.wait_for_answer(parked(node, request))
    assert trio.current_time() - start == pytest.approx(0.3)
    assert late.partitions[0].error == ErrorCode.REQUEST_TIMED_OUT
    assert node.partition().log.log_end == 1


async def test_below_the_min_isr_nothing_new_is_committed(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A2: the high watermark stands still. A record with acks=1 is acknowledged and stays unread;
    one with acks=all that was appended before waits out its time."""
    node = Node(min_insync_replicas="2")
    node.lead(state_of(isr=(1, 2), replicas=(1, 2)))
    waiting = parked(node, request_of(batch_of(), acks=ACKS_ALL))
    node.apply(state_of(epochs=(0, 1), isr=(1,), replicas=(1, 2)))
    assert answer(node, request_of(batch_of())).base_offset == 1
    assert (node.partition().high_watermark, node.partition().log.log_end) == (0, 2)
    late = await node.purgatory.wait_for_answer(waiting)
    assert late.partitions[0].error == ErrorCode.REQUEST_TIMED_OUT


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
    late = await node.purgatory.wait_for_answer(waiting)
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
    done = await node.purgatory.wait_for_answer(waiting)
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
        done = await node.purgatory.wait_for_answer(waiting)
    assert done.partitions[0].error == code
    assert trio.current_time() < 0.5


@pytest.mark.parametrize("acks", [ACKS_NONE, ACKS_LEADER])
@pytest.mark.parametrize("is_registered_anew", [False, True])
def test_past_its_session_a_broker_promises_nothing_alone(
    acks: int, is_registered_anew: bool
) -> None:
    """When the session may have ended, acks 0 and 1 are refused, for somebody else may lead,
    and in the next one until it is told so there; acks=all goes on, which only the newest leader's
    ISR can confirm."""
    node = Node()
    node.lead()
    if is_registered_anew:
        node.broker_epoch = 2
    else:
        node.controller.is_session_over = True
    if acks == ACKS_NONE:
        why = "confirmed its roles" if is_registered_anew else "session may have ended"
        with pytest.raises(HangUp, match=why):
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
    without_pause(node.replicas.review_isrs(1e6))
    assert waiting.attempt(1e6) is None
    (proposal,) = node.isr_proposals.next_batch_nowait()
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
        done = await node.purgatory.wait_for_answer(waiting)
    assert trio.current_time() < 0.2
    produced = done.partitions[0]
    assert (produced.error, produced.leader_id) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, 2)
