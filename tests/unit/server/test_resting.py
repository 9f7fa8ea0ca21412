"""Partitions that rest in fetch sessions: nothing is missed, and nothing is done for them."""

from dataclasses import replace

import pytest
import trio
import trio.testing

from minibroker.broker.replication.partition import Partition
from minibroker.broker.replication.purgatory import Parked
from minibroker.broker.replication.replicas import Replicas
from minibroker.broker.server.fetch_sessions import IDLE_S_MAX
from minibroker.broker.server.handlers import fetch
from minibroker.broker.turns import without_pause
from minibroker.protocol.constants import ErrorCode
from minibroker.protocol.messages.control import PartitionAltered
from minibroker.protocol.messages.fetch import FetchRequest, FetchResponse
from minibroker.protocol.types import TopicPartition
from tests.unit.node import Node, batch_of, records_of, state_of
from tests.unit.server.fetching import SMALL, append, ask, waits, want

NAMES = [TopicPartition("t", number) for number in range(3)]
LAG_S = 30.0


def resting(*names: TopicPartition) -> tuple[Node, int]:
    """Broker 2 follows partitions of broker 1, in a session in which nothing is new. The lag time
    alone decides when it leaves the in-sync sets."""
    node = Node(broker_fence_timeout_ms="60000")
    node.live(1, 2)
    node.lead(*(state_of(name, isr=(1, 2), replicas=(1, 2)) for name in names))
    opened = ask(node, *(want(0, name=name) for name in names), replica_id=2, session_epoch=0)
    assert isinstance(opened, FetchResponse)
    waits(node, replica_id=2, session_id=opened.session_id, session_epoch=1)
    return node, opened.session_id


def test_who_rests_keeps_up() -> None:
    """A1: each fetch counts for the partitions in which nothing happened too: a follower at the
    end is caught up as of its newest fetch."""
    node, session_id = resting(*NAMES)
    request = FetchRequest(2, 1_000, session_id=session_id, session_epoch=2, broker_epoch=7)
    assert isinstance(fetch.handle(node.services, request, 50.0), Parked)
    for name in NAMES:
        progress = node.leader(name).progress_of(2)
        assert progress is not None
        assert progress.caught_up_at == progress.fetched_at == 50.0
        assert progress.broker_epoch == 7


def test_what_wakes_up_is_told_alone() -> None:
    """A17: records in one partition end the wait, and the resting ones do not travel; the follower
    that comes back with its offset is told the high watermark."""
    node, session_id = resting(*NAMES)
    waiting = waits(node, replica_id=2, session_id=session_id, session_epoch=2)
    append(node, batch_of(), name=NAMES[1])
    done = waiting.attempt(0.0)
    assert done is not None
    (fetched,) = done.partitions
    assert (fetched.partition, fetched.high_watermark) == (1, 0)
    session = {"session_id": session_id, "session_epoch": 3}
    (fetched,) = waits(node, want(1, name=NAMES[1]), replica_id=2, **session).expire().partitions
    assert (fetched.partition, fetched.high_watermark, len(fetched.records)) == (1, 1, 0)


@pytest.mark.parametrize("change", ["demoted", "led anew", "deleted", "replaced"])
def test_another_role_ends_the_rest(change: str) -> None:
    """A17: whatever becomes of a resting partition is seen by waiting and by the next fetch."""
    node, session_id = resting(*NAMES[:2])
    session = {"replica_id": 2, "session_id": session_id}
    waiting = waits(node, session_epoch=2, **session)
    state = state_of(NAMES[0], epochs=(1, 1), isr=(1, 2), replicas=(1, 2))
    match change:
        case "demoted":
            node.apply(replace(state, leader=2))
        case "led anew":
            node.apply(state)
            node.append(1, name=NAMES[0])
        case "deleted":
            node.stop(state, delete=True, leader_epoch=-2)
        case "replaced":
            node.stop(state, delete=True, leader_epoch=-2)
            node.apply(replace(state, topic_id=b"j" * 16, isr=(1,), replicas=(1,)))
    for outcome in (waiting.attempt(0.0), ask(node, session_epoch=3, **session)):
        assert isinstance(outcome, FetchResponse)
        (fetched,) = outcome.partitions
        assert fetched.partition == 0
        assert fetched.error or len(fetched.records)


def test_who_went_back_meanwhile_does_not_rest() -> None:
    """A2: a fetch past the session, from further back, holds the high watermark; the session's next
    one lets it rise, though nothing else has changed for that partition."""
    node = Node()
    node.live(1, 2, 3)
    node.lead(state_of(isr=(1, 2, 3), replicas=(1, 2, 3)))
    append(node, batch_of())
    opened = ask(node, want(1), replica_id=2, session_epoch=0)
    assert isinstance(opened, FetchResponse)
    waits(node, replica_id=2, session_id=opened.session_id, session_epoch=1)
    ask(node, want(0), replica_id=2)
    ask(node, want(1), replica_id=3, wait_ms_max=0)
    assert node.partition().high_watermark == 0
    ask(node, replica_id=2, session_id=opened.session_id, session_epoch=2)
    assert node.partition().high_watermark == 1


def test_an_impatient_fetch_of_resting_partitions_is_answered_at_once() -> None:
    """FET-03: min bytes 0 does not wait, though there is nothing to say."""
    node, session_id = resting(*NAMES)
    done = ask(node, replica_id=2, session_id=session_id, session_epoch=2, bytes_min=0)
    assert isinstance(done, FetchResponse)
    assert done.partitions == ()


def test_who_rests_outside_the_isr_asks_to_join() -> None:
    """A3: the fetch of a replica at the end that was taken out of the in-sync set proposes it."""
    node, session_id = resting(*NAMES[:2])
    node.apply(state_of(NAMES[1], epochs=(0, 1), isr=(1,), replicas=(1, 2)))
    ask(node, replica_id=2, session_id=session_id, session_epoch=2, broker_epoch=1)
    (proposal,) = node.isr_proposals.next_batch_nowait()
    assert (proposal.partition, proposal.pending.proposed) == (1, (1, 2))


def test_who_registered_anew_rests_no_more() -> None:
    """RM-02: a session of a former life is refused in all its partitions."""
    node, session_id = resting(*NAMES[:2])
    node.live(1, 2, epoch=5)
    done = ask(node, replica_id=2, session_id=session_id, session_epoch=2, broker_epoch=1)
    assert isinstance(done, FetchResponse)
    assert [p.error for p in done.partitions] == [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 2


def test_a_consumer_rests_at_the_high_watermark() -> None:
    """FET-01: a consumer at the high watermark waits while records are not committed, and gets
    them when they are."""
    node = Node()
    node.live(1, 2)
    node.lead(state_of(isr=(1, 2), replicas=(1, 2)))
    opened = ask(node, want(0), session_epoch=0, wait_ms_max=0)
    assert isinstance(opened, FetchResponse)
    waiting = waits(node, session_id=opened.session_id, session_epoch=1)
    append(node, batch_of())
    assert waiting.attempt(0.0) is None
    node.followed(2, 1)
    done = waiting.attempt(0.0)
    assert done is not None
    assert len(records_of(done.partitions[0])) == SMALL


# -- what a resting partition costs


class CountedPartition(Partition):
    """Counts how often a request looks at a partition."""

    __slots__ = ()
    looks = 0

    def readable_end(
        self, replica_id: int, leader_epoch: int = -1, isolation_level: int = 0
    ) -> int:
        """Each look asks for it."""
        CountedPartition.looks += 1
        return super().readable_end(replica_id, leader_epoch, isolation_level)


class CountedReplicas(Replicas):
    """All partitions of a broker."""

    partition_type = CountedPartition


MANY = [TopicPartition("many", number) for number in range(100)]


def looks_of(node: Node, session_id: int, session_epoch: int, **more: int) -> int:
    """How often a request of a session and its answer look at partitions."""
    before = CountedPartition.looks
    session = {"session_id": session_id, "session_epoch": session_epoch}
    request = FetchRequest(wait_ms_max=500, **session, **more)
    outcome = fetch.handle(node.services, request, 0.0)
    assert isinstance(outcome, Parked)
    assert outcome.attempt(0.0) is None
    assert outcome.keys == outcome.keys[:1], "it waits on its session, not on each partition"
    assert outcome.expire().partitions == ()
    return CountedPartition.looks - before


@pytest.mark.parametrize("replica_id", [2, -1])
def test_a_request_does_not_look_at_what_rests(replica_id: int) -> None:
    """Of 100 partitions without news none is looked at; of one that gets a record, that one."""
    node = Node(replicas_type=CountedReplicas)
    node.live(1, 2)
    node.lead(*(state_of(name, isr=(1, 2), replicas=(1, 2)) for name in MANY))
    asker = {"replica_id": replica_id}
    opened = ask(
        node, *(want(0, name=name) for name in MANY), session_epoch=0, wait_ms_max=0, **asker
    )
    assert isinstance(opened, FetchResponse)
    for epoch in (1, 2, 3):
        assert looks_of(node, opened.session_id, epoch, **asker) == 0
    before = CountedPartition.looks
    waiting = waits(node, session_id=opened.session_id, session_epoch=4, **asker)
    append(node, batch_of(), name=MANY[7])
    waiting.attempt(0.0)
    waiting.expire()
    assert 0 < CountedPartition.looks - before < 10


async def test_the_request_that_waits_is_woken_again_and_again(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A consumer's partition wakes up for a record that is not committed, and is still watched
    when it is."""
    node, _ = resting(*NAMES)
    opened = ask(node, *(want(0, name=name) for name in NAMES), session_epoch=0, wait_ms_max=0)
    assert isinstance(opened, FetchResponse)
    waiting = waits(node, session_id=opened.session_id, session_epoch=1)
    answers: list[FetchResponse] = []

    async def settle() -> None:
        answers.append(await node.purgatory.wait_for_answer(waiting))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(settle)
        await trio.testing.wait_all_tasks_blocked()
        append(node, batch_of(), name=NAMES[1])
        await trio.testing.wait_all_tasks_blocked()
        assert not answers
        node.followed(2, 1, name=NAMES[1])
    assert trio.current_time() < waiting.deadline()
    assert [each.partition for each in answers[0].partitions] == [1]


# -- what is told of it


def test_retention_is_told() -> None:
    """A log start that retention has moved travels with the next answer, to followers and
    consumers."""
    node = Node(log_retention_ms="1000")
    node.live(1, 2)
    node.lead(state_of(isr=(1, 2), replicas=(1, 2)))
    append(node, batch_of())
    node.followed(2, 1)
    sessions = {}
    for replica_id in (2, -1):
        opened = ask(node, want(1), replica_id=replica_id, session_epoch=0)
        done = opened.expire() if isinstance(opened, Parked) else opened
        sessions[replica_id] = done.session_id
    node.wall_time_ms += 10_000
    without_pause(node.replicas.apply_retention(node.wall_time_ms))
    for replica_id, session_id in sessions.items():
        session = {"session_id": session_id, "session_epoch": 1}
        (told,) = waits(node, replica_id=replica_id, **session).expire().partitions
        assert (told.log_start, told.high_watermark) == (1, 1)


# -- what a leader knows of who rests


def shrunk_at(node: Node, name: TopicPartition, now: float) -> bool:
    """Whether a leader wants its follower out of the in-sync set."""
    without_pause(node.replicas.review_isrs(now))
    return any(each.partition == name.partition for each in node.isr_proposals.next_batch_nowait())


def next_fetch(node: Node, session_id: int, epoch: int, now: float, **more: object) -> None:
    """The follower's next request, in which it names no partition."""
    session = {"session_id": session_id, "session_epoch": epoch}
    request = FetchRequest(2, 500, **session, **more)
    outcome = fetch.handle(node.services, request, now)
    assert isinstance(outcome, Parked), outcome
    outcome.expire()


def test_a_session_that_goes_on_keeps_its_follower_current() -> None:
    """A1, A4: after a record that it does not fetch, a follower that rested falls behind as of the
    last fetch of its session, and not as of when the partition was last looked at."""
    node, session_id = resting(*NAMES[:2])
    for epoch, now in ((2, 40.0), (3, 80.0)):
        next_fetch(node, session_id, epoch, now)
    node.append(name=NAMES[0], now=100.0)
    assert not shrunk_at(node, NAMES[0], 80.0 + LAG_S)
    assert shrunk_at(node, NAMES[0], 80.001 + LAG_S)


@pytest.mark.parametrize("end", ["silent", "evicted", "replaced", "another registration"])
def test_a_session_that_ends_lets_its_follower_fall_behind(end: str) -> None:
    """A4: whatever becomes of the session, the follower is current as of its last fetch."""
    node, session_id = resting(*NAMES[:2])
    next_fetch(node, session_id, 2, 10.0)
    match end:
        case "evicted":
            ask(node, want(0), now=11.0 + IDLE_S_MAX)
            assert node.services.fetch_sessions.statistics() == 0
        case "replaced":
            ask(node, replica_id=2, session_id=session_id, session_epoch=0, now=11.0)
        case "another registration":
            node.live(1, 2, epoch=5)
            session = {"session_id": session_id, "session_epoch": 3}
            ask(node, replica_id=2, broker_epoch=1, now=50.0, **session)
    node.append(name=NAMES[0], now=51.0)
    assert not shrunk_at(node, NAMES[0], 10.0 + LAG_S)
    assert shrunk_at(node, NAMES[0], 10.001 + LAG_S)


def test_a_follower_that_forgets_a_partition_falls_behind_in_it() -> None:
    """A4: from then on the session's fetches count for its other partitions alone."""
    node, session_id = resting(*NAMES[:2])
    next_fetch(node, session_id, 2, 10.0)
    next_fetch(node, session_id, 3, 20.0, forgotten=(NAMES[0],))
    for name in NAMES[:2]:
        node.append(name=name, now=21.0)
    assert shrunk_at(node, NAMES[0], 15.0 + LAG_S)
    assert not shrunk_at(node, NAMES[1], 15.0 + LAG_S)


def test_who_does_not_fetch_what_came_falls_behind() -> None:
    """A4, PAR-13: a follower that is given a record and does not come for the next one is behind,
    though its session goes on."""
    node, session_id = resting(*NAMES[:2])
    node.append(name=NAMES[0], now=1.0)
    session = {"replica_id": 2, "session_id": session_id}
    for epoch, now in ((2, 10.0), (3, 20.0), (4, 31.0)):
        done = ask(node, now=now, session_epoch=epoch, **session)
        assert isinstance(done, FetchResponse)
        assert [each.partition for each in done.partitions] == [0]
    assert shrunk_at(node, NAMES[0], 31.0)


def test_who_is_taken_out_of_the_isr_asks_to_join_again() -> None:
    """A3, A5: the controller confirms that a follower leaves; its session's next fetch proposes
    it, though nothing was written."""
    node, session_id = resting(NAMES[0])
    node.append(name=NAMES[0], now=0.0)
    without_pause(node.replicas.review_isrs(100.0))
    (proposal,) = node.isr_proposals.next_batch_nowait()
    session = {"replica_id": 2, "session_id": session_id, "broker_epoch": 1}
    ask(node, want(1, name=NAMES[0]), now=100.0, session_epoch=2, **session)
    ask(node, now=100.0, session_epoch=3, bytes_min=0, **session)
    assert node.leader(NAMES[0]).is_resting(2)
    altered = PartitionAltered(*NAMES[0], 0, 1, 0, 1, (1,))
    assert node.replicas.resolve(proposal, altered, 100.0)
    ask(node, now=101.0, session_epoch=4, **session)
    (proposal,) = node.isr_proposals.next_batch_nowait()
    assert proposal.pending.proposed == (1, 2)


# -- what is left of it


@pytest.mark.parametrize("end", ["forgotten", "evicted", "replaced", "closed"])
def test_nothing_is_left_of_a_session(end: str) -> None:
    """No watch stands under the partitions, and no progress rests in it."""
    node, session_id = resting(*NAMES)
    assert node.purgatory.statistics() == len(NAMES)
    assert all(node.leader(name).is_resting(2) for name in NAMES)
    match end:
        case "forgotten":
            session = {"session_id": session_id, "session_epoch": 2}
            fetch.handle(node.services, FetchRequest(2, forgotten=tuple(NAMES), **session), 0.0)
        case "evicted":
            ask(node, want(0), wait_ms_max=0, now=IDLE_S_MAX)
        case "replaced":
            ask(node, replica_id=2, session_id=session_id, session_epoch=0)
        case "closed":
            ask(node, session_id=session_id, wait_ms_max=0)
    assert node.purgatory.statistics() == 0
    assert not any(node.leader(name).is_resting(2) for name in NAMES)
