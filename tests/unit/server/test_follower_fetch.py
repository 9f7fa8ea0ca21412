"""FETCH of followers: progress, in-sync sets, the high watermark (A1 to A3, A7, A17)."""

import trio
import trio.testing

from minibroker.protocol.constants import ErrorCode
from minibroker.protocol.messages.fetch import FetchResponse
from tests.unit.node import Node, batch_of, records_of, state_of
from tests.unit.server.fetching import SMALL, answer, append, ask, waits, want


def replicated(*, min_isr: str = "1") -> Node:
    """Broker 1 leads, 2 and 3 live and are in sync."""
    node = Node(min_insync_replicas=min_isr)
    node.live(1, 2, 3)
    node.lead(state_of(isr=(1, 2), replicas=(1, 2)))
    return node


def test_the_two_rounds_of_the_high_watermark() -> None:
    """A7: the fetch that brings a record does not commit it, the next one does, and its own answer
    says so."""
    node = replicated()
    append(node, batch_of())
    first = answer(node, want(0), replica_id=2)
    assert len(records_of(first)) == SMALL
    assert first.high_watermark == node.partition().high_watermark == 0
    second = answer(node, want(1), replica_id=2, wait_ms_max=0)
    assert second.high_watermark == node.partition().high_watermark == 1


def test_followers_hear_of_the_high_watermark_soon() -> None:
    """A17: a waiting follower is answered soon after the high watermark is another than it was
    told, in a session and without; a consumer at the same place waits for records."""
    node = Node()
    node.live(1, 2, 3)
    node.lead(state_of(isr=(1, 2, 3), replicas=(1, 2, 3)))
    append(node, batch_of())
    told = ask(node, want(1), replica_id=2, session_epoch=0)
    assert isinstance(told, FetchResponse)
    assert told.partitions[0].high_watermark == 0
    session = {"replica_id": 2, "session_id": told.session_id}
    waiting = waits(node, session_epoch=1, **session)
    alone = waits(node, want(1), replica_id=2)
    consumer = waits(node, want(1))
    ask(node, want(1), replica_id=3, wait_ms_max=0)
    for parked in (waiting, alone):
        assert parked.attempt(0.5) is None
        assert parked.attempt(0.505) is None
        assert parked.deadline() == 0.51
        done = parked.attempt(0.51)
        assert done is not None
        assert done.partitions[0].high_watermark == 1
    assert consumer.attempt(0.51) is None
    assert consumer.deadline() == 1.0
    again = waits(node, session_epoch=2, **session)
    assert again.attempt(0.51) is None
    assert again.deadline() == 1.0


def test_records_bring_the_high_watermark_along() -> None:
    """A17: records that come before it is time to tell of the high watermark alone are sent at
    once, and the high watermark with them."""
    node = replicated()
    append(node, batch_of())
    waiting = waits(node, want(1), replica_id=2)
    assert waiting.deadline() == 0.01
    append(node, batch_of())
    done = waiting.attempt(0.005)
    assert done is not None
    assert len(records_of(done.partitions[0])) == SMALL
    assert done.partitions[0].high_watermark == 1


def test_nothing_is_saved_up_where_that_is_wanted() -> None:
    """A17: with replica.high.watermark.wait.max.ms=0 a high watermark is told at once."""
    node = Node(replica_high_watermark_wait_max_ms="0")
    node.live(1, 2)
    node.lead(state_of(isr=(1, 2), replicas=(1, 2)))
    append(node, batch_of())
    assert answer(node, want(1), replica_id=2).high_watermark == 1


def test_what_was_missed_between_two_fetches_is_told_soon() -> None:
    """A17: a follower whose session was not told the newest high watermark hardly waits."""
    node = Node()
    node.live(1, 2, 3)
    node.lead(state_of(isr=(1, 2, 3), replicas=(1, 2, 3)))
    append(node, batch_of())
    told = ask(node, want(1), replica_id=2, session_epoch=0)
    assert isinstance(told, FetchResponse)
    ask(node, want(1), replica_id=3, wait_ms_max=0)
    again = waits(node, replica_id=2, session_id=told.session_id, session_epoch=1)
    done = again.attempt(again.deadline())
    assert done is not None
    assert (again.deadline(), done.partitions[0].high_watermark) == (0.01, 1)


def test_a_follower_at_the_end_asks_its_way_into_the_isr() -> None:
    """A3: the fetch of a replica outside the ISR that has all makes the leader propose it; a fetch
    that waits makes no second proposal."""
    node = Node()
    node.live(1, 2)
    node.lead(state_of(isr=(1,), replicas=(1, 2)))
    append(node, batch_of())
    ask(node, want(0), replica_id=2, broker_epoch=1)
    assert node.isr_proposals.statistics() == 0
    ask(node, want(1), replica_id=2, broker_epoch=1)
    (proposal,) = node.isr_proposals.next_batch_nowait()
    assert proposal.pending.proposed == (1, 2)
    assert proposal.broker_epochs == (-1, 1)


def test_a_former_life_of_a_follower_is_refused() -> None:
    """A1, RM-02: a fetch with an older broker epoch than the cluster knows is refused and moves
    nothing; a newer one, of which the image has not been told yet, is not."""
    node = replicated()
    append(node, batch_of())
    node.live(1, 2, epoch=5)
    old = answer(node, want(1), replica_id=2, broker_epoch=4)
    assert old.error == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert node.partition().high_watermark == 0
    assert answer(node, want(1), replica_id=2, broker_epoch=6, wait_ms_max=0).error == 0
    assert node.partition().high_watermark == 1


async def test_a_demoted_leader_answers_waiting_fetches(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """RM-06, A17: a fetch that waits is answered when the broker leads no more."""
    node = replicated()
    waiting = waits(node, want(0, leader_epoch=0), replica_id=2)

    async def demote() -> None:
        await trio.sleep(0.1)
        node.lead(state_of(epochs=(1, 1), leader=2, isr=(1, 2), replicas=(1, 2)))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(demote)
        done = await node.purgatory.wait_for_answer(waiting)
    assert done.partitions[0].error == ErrorCode.FENCED_LEADER_EPOCH
    assert trio.current_time() < 0.2


def test_a_waiting_fetch_counts_once() -> None:
    """A1: what a waiting fetch reads at its end is no progress of the follower."""
    node = replicated()
    append(node, batch_of())
    ask(node, want(1), replica_id=2)
    waiting = waits(node, want(1), replica_id=2, bytes_min=10_000)
    append(node, batch_of())
    before = node.leader().progress_of(2)
    assert before is not None
    known = (before.log_end, before.leader_end, before.fetched_at)
    waiting.expire()
    assert (before.log_end, before.leader_end, before.fetched_at) == known


def test_a_follower_of_another_topic_of_this_name_is_refused() -> None:
    """RM-11: epochs of two topics of one name may be equal; neither records nor progress pass
    between a deleted one, which a leader that was cut off still leads, and the one made since."""
    node = replicated()
    append(node, batch_of())
    refused = answer(node, want(1, topic_id=b"\x99" * 16), replica_id=2)
    assert refused.error == ErrorCode.INCONSISTENT_TOPIC_ID
    assert not refused.records
    assert node.partition().high_watermark == 0
    own = node.partition().topic_id
    answer(node, want(1, topic_id=own), replica_id=2, wait_ms_max=0)
    assert node.partition().high_watermark == 1


def test_who_was_left_by_its_followers_sends_consumers_away() -> None:
    """A leader whose session may have ended, and of which no follower in sync has asked anything
    for longer than a session and a follower's wait (1.5 s here), may have been replaced."""
    node = replicated()
    append(node, batch_of())
    answer(node, want(1), replica_id=2, wait_ms_max=0)
    opened = ask(node, want(1), session_epoch=0, wait_ms_max=0)
    session = {"session_id": opened.session_id, "wait_ms_max": 0}
    assert ask(node, session_epoch=1, now=9.0, **session).partitions == ()
    node.controller.is_session_over = True
    assert ask(node, session_epoch=2, now=1.5, **session).partitions == ()
    [gone] = ask(node, session_epoch=3, now=1.6, **session).partitions
    assert gone.error == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert answer(node, want(0), now=1.6).error == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert answer(node, want(0), now=1.6, replica_id=2).error == ErrorCode.NONE
    assert len(records_of(answer(node, want(0), now=1.6))) == SMALL


def test_a_leader_alone_in_sync_goes_on_without_its_session() -> None:
    """Nobody else can have been elected."""
    node = Node()
    node.live(1, 2)
    node.lead(state_of(isr=(1,), replicas=(1, 2)))
    append(node, batch_of())
    node.controller.is_session_over = True
    assert len(records_of(answer(node, want(0), now=100.0))) == SMALL
