"""What a leader knows and decides: progress, in-sync set, high watermark (A1 to A4; rows PAR)."""

import math
from dataclasses import replace

import pytest

from minibroker.broker.metadata.model import BrokerImage
from minibroker.broker.replication.follower_silence import FollowerSilence
from minibroker.broker.replication.roles import (
    NEVER,
    Committed,
    FollowerFetch,
    LastFetch,
    Leader,
    LocalBroker,
    PendingExpand,
    PendingShrink,
    Progress,
)
from minibroker.protocol.messages.control import PartitionState
from minibroker.protocol.types import Endpoint

LAG_S = 10.0
SILENCE_S = 2.0


class World:
    """Brokers that live; broker 1 leads. Nobody is silent before the lag time unless it is said."""

    def __init__(self, *live: int, silence_s: float = LAG_S) -> None:
        self.brokers = {node_id: image(node_id) for node_id in live or (1, 2, 3)}
        self.silence = FollowerSilence(silence_s)
        self.local_broker = LocalBroker(1, LAG_S, self.brokers.get, self.silence)

    def lead(
        self,
        isr: tuple[int, ...],
        replicas: tuple[int, ...] = (1, 2, 3),
        *,
        start: int = 0,
        now: float = 0.0,
        epoch: int = 5,
    ) -> Leader:
        return Leader(self.local_broker, state(isr, replicas, epoch=epoch), start, 0, now)


def image(
    node_id: int, epoch: int = 7, *, is_shutting_down: bool = False, is_fenced: bool = False
) -> BrokerImage:
    return BrokerImage(
        node_id, Endpoint("h", node_id), epoch, is_shutting_down, is_fenced=is_fenced
    )


def state(
    isr: tuple[int, ...], replicas: tuple[int, ...], *, epoch: int = 5, partition_epoch: int = 0
) -> PartitionState:
    return PartitionState("t", bytes(16), 0, 1, epoch, partition_epoch, isr, replicas)


def lead(isr: tuple[int, ...], replicas: tuple[int, ...] = (1, 2, 3), **more: int) -> Leader:
    return World().lead(isr, replicas, **more)


def fetched(leader: Leader, replica: int, offset: int, end: int, now: float = 0.0) -> bool:
    return leader.record_fetch(FollowerFetch(replica, offset, 0, 7), end, now)


def progress_of(leader: Leader, replica: int) -> Progress:
    progress = leader.progress_of(replica)
    assert progress is not None
    return progress


# -- the high watermark


def test_alone_the_log_end_is_committed() -> None:
    """PAR-02: with ISR {leader} and min ISR 1 the high watermark is the log end."""
    leader = lead((1,), (1,))
    assert leader.advance(7, 1, 0.0)
    assert leader.high_watermark == 7


def test_the_slowest_of_the_isr_decides() -> None:
    """PAR-01: the high watermark is the smallest end in the ISR; who is outside and late does not
    hold it back."""
    leader = lead((1, 2))
    fetched(leader, 2, 4, 9)
    fetched(leader, 3, 1, 9)
    assert leader.advance(9, 1, 0.0)
    assert leader.high_watermark == 4


def test_who_may_join_holds_it_back() -> None:
    """A2: a replica outside the ISR that keeps up and may join counts, for the lag time."""
    world = World()
    leader = world.lead((1,))
    fetched(leader, 2, 3, 3, now=1.0)
    assert leader.advance(9, 1, 1.0 + LAG_S)
    assert leader.high_watermark == 3
    world.brokers[2] = image(2, epoch=8)
    assert leader.advance(9, 1, 2.0)
    assert leader.high_watermark == 9


def test_who_fell_behind_outside_holds_nothing_back() -> None:
    """A2, PAR-01: past the lag time a replica outside the ISR counts no more."""
    leader = lead((1,))
    fetched(leader, 2, 3, 3, now=1.0)
    assert leader.advance(9, 1, 1.1 + LAG_S)
    assert leader.high_watermark == 9


def test_a_fetch_acknowledges_what_lies_below_its_offset() -> None:
    """PAR-03: a fetch at offset f moves the high watermark to f, not beyond."""
    leader = lead((1, 2), (1, 2))
    fetched(leader, 2, 3, 10)
    assert leader.advance(10, 1, 0.0)
    assert leader.high_watermark == 3
    assert not leader.advance(11, 1, 0.0)


def test_a_follower_that_never_fetched_holds_it() -> None:
    """PAR-17: in a new term the followers' ends are unknown, so nothing more is committed."""
    leader = lead((1, 2, 3))
    fetched(leader, 2, 10, 10)
    assert not leader.advance(10, 1, 0.0)
    assert leader.high_watermark == 0


def test_it_never_falls() -> None:
    """A follower that fetches again from further back does not take back what was committed."""
    leader = lead((1, 2), (1, 2))
    fetched(leader, 2, 6, 6)
    leader.advance(6, 1, 0.0)
    fetched(leader, 2, 2, 6)
    assert not leader.advance(6, 1, 0.0)
    assert leader.high_watermark == 6


def test_it_is_frozen_below_the_min_isr() -> None:
    """A2, K2: with fewer in-sync replicas than demanded nothing is committed."""
    leader = lead((1,))
    assert not leader.advance(5, 2, 0.0)
    assert leader.high_watermark == 0


def test_more_than_all_replicas_cannot_be_demanded() -> None:
    """A2: the demand is at most the number of replicas."""
    leader = lead((1,), (1,))
    assert leader.is_isr_large_enough(3)
    assert leader.is_acknowledgeable(3)
    assert leader.advance(5, 3, 0.0)


# -- who keeps up


def rested(leader: Leader, replica: int, offset: int, last: LastFetch, now: float) -> bool:
    """Have a follower fetch at the end, and rest if it may."""
    fetched(leader, replica, offset, offset, now=now)
    last.fetched_at, last.broker_epoch = now, 7
    return leader.rest(replica, offset, last) is not None


def test_the_fetches_of_a_session_count_for_who_rests() -> None:
    """A1: times and registration are those of the session's last fetch, until the rest ends."""
    leader, last = lead((1, 2, 3), now=0.0), LastFetch()
    assert rested(leader, 2, 5, last, 1.0)
    last.fetched_at, last.broker_epoch = 9.0, 8
    known = progress_of(leader, 2)
    assert (known.caught_up_at, known.fetched_at, known.broker_epoch) == (9.0, 9.0, 8)
    assert leader.shrink_isr(5, 1, 9.0 + LAG_S) is not None  # 3 has not come at all
    known.end_rest(last)
    last.fetched_at = 20.0
    assert (known.caught_up_at, known.fetched_at, known.broker_epoch) == (9.0, 9.0, 8)
    fetched(leader, 2, 5, 6, now=21.0)
    assert known.caught_up_at == 9.0


def test_who_must_be_noted_does_not_rest() -> None:
    """Outside of the in-sync set, elsewhere than it is known to be, not noted at the end in the
    session's last fetch, resting in another session, or not assigned."""
    leader, last, other = lead((1, 2), (1, 2, 3)), LastFetch(), LastFetch()
    assert not rested(leader, 3, 5, last, 1.0)
    fetched(leader, 2, 5, 5, now=1.0)
    assert leader.rest(2, 4, last) is None
    last.fetched_at = 2.0
    assert leader.rest(2, 5, last) is None
    fetched(leader, 2, 5, 6, now=2.0)
    assert leader.rest(2, 5, last) is None
    assert rested(leader, 2, 6, last, 3.0)
    other.fetched_at = 3.0
    assert leader.rest(2, 6, other) is None
    assert leader.rest(9, 6, last) is None


def test_another_fetch_ends_a_rest() -> None:
    """A1, A2: a fetch past the session counts from then on, and the session's no more; so does the
    leader's next term."""
    leader, last = lead((1, 2), (1, 2)), LastFetch()
    assert rested(leader, 2, 5, last, 1.0)
    fetched(leader, 2, 3, 5, now=2.0)
    last.fetched_at = 9.0
    assert not leader.is_resting(2)
    assert (progress_of(leader, 2).fetched_at, progress_of(leader, 2).caught_up_at) == (2.0, 1.0)
    assert rested(leader, 2, 5, last, 10.0)
    again = lead((1, 2), (1, 2), epoch=6)
    again.succeed(leader, 12.0)
    last.fetched_at = 20.0
    assert progress_of(again, 2).caught_up_at == 12.0


def test_at_the_end_is_caught_up() -> None:
    """A1: a fetch at the leader's end is caught up as of now."""
    leader = lead((1, 2), now=0.0)
    fetched(leader, 2, 5, 5, now=3.0)
    assert progress_of(leader, 2).caught_up_at == 3.0


def test_behind_a_busy_leader_the_fetch_before_counts() -> None:
    """A1: who reaches what the leader had at the last fetch was caught up at that fetch's time;
    who does not, was not."""
    leader = lead((1,))
    fetched(leader, 2, 0, 5, now=1.0)
    assert progress_of(leader, 2).caught_up_at == NEVER
    fetched(leader, 2, 5, 9, now=2.0)
    assert progress_of(leader, 2).caught_up_at == 1.0
    fetched(leader, 2, 8, 20, now=3.0)
    assert progress_of(leader, 2).caught_up_at == 1.0


def test_a_clock_that_begins_at_zero_makes_nobody_caught_up() -> None:
    """A1: never is minus infinity, so who never fetched is not caught up at time 0."""
    leader = lead((1,))
    assert not leader.is_caught_up(progress_of(leader, 2), 1, 0.0)
    assert -math.inf == NEVER


def test_a_follower_at_the_end_is_never_out() -> None:
    """PAR-11: however long ago its last fetch was, at the leader's end it stays."""
    leader = lead((1, 2), (1, 2))
    fetched(leader, 2, 5, 5)
    assert leader.shrink_isr(5, 1, 1e9) is None


def test_nobody_is_behind_an_empty_log() -> None:
    """PAR-11: where nothing was written, who never fetched stays; from the first record on the lag
    time counts."""
    leader = lead((1, 2), (1, 2))
    assert leader.shrink_isr(0, 1, 1e9) is None
    pending = leader.shrink_isr(1, 1, 1.0 + LAG_S)
    assert pending is not None
    assert pending.proposed == (1,)


def test_the_lag_time_is_inclusive() -> None:
    """PAR-11: at exactly the lag time a follower stays, after it it is out."""
    leader = lead((1, 2), (1, 2))
    fetched(leader, 2, 5, 5, now=1.0)
    assert leader.shrink_isr(6, 1, 1.0 + LAG_S) is None
    pending = leader.shrink_isr(6, 1, 1.001 + LAG_S)
    assert pending is not None
    assert pending.proposed == (1,)


def test_who_fetches_but_never_catches_up_is_out() -> None:
    """PAR-13: a follower that keeps fetching and stays behind is out after the lag time, like one
    that never fetched."""
    leader = lead((1, 2, 3), now=0.0)
    for second in range(12):
        fetched(leader, 2, second, 100 + 50 * second, now=float(second))
    pending = leader.shrink_isr(1_000, 1, 11.0)
    assert pending is not None
    assert pending.proposed == (1,)


# -- the in-sync set


def test_a_follower_joins_at_the_high_watermark_and_the_start_of_the_term() -> None:
    """PAR-06: it needs both; the high watermark alone may lag behind what was committed before."""
    leader = lead((1,), start=8)
    fetched(leader, 2, 7, 9)
    assert leader.grow_isr(2) is None
    fetched(leader, 2, 8, 9)
    assert leader.advance(9, 1, 100.0)
    assert leader.grow_isr(2) is None
    fetched(leader, 2, 9, 9)
    pending = leader.grow_isr(2)
    assert pending is not None
    assert pending.proposed == (1, 2)


@pytest.mark.parametrize("reason", ["dead", "shutting down", "fenced", "older", "newer"])
def test_only_who_lives_and_stays_may_join(reason: str) -> None:
    """A3.3: dead, about to stop, not heard, or seen in another registration: no."""
    world = World()
    match reason:
        case "dead":
            del world.brokers[2]
        case "shutting down":
            world.brokers[2] = image(2, is_shutting_down=True)
        case "fenced":
            world.brokers[2] = replace(image(2), is_fenced=True)
        case "older":
            world.brokers[2] = image(2, epoch=8)
        case "newer":
            world.brokers[2] = image(2, epoch=6)
    leader = world.lead((1,))
    fetched(leader, 2, 0, 0)
    assert leader.grow_isr(2) is None


def heard(world: World, leader: Leader, replica: int, offset: int, end: int, now: float) -> None:
    """A FETCH of a follower arrived, and was granted."""
    world.silence.record_arrival(replica, now)
    fetched(leader, replica, offset, end, now=now)


def test_who_is_silent_is_out_before_the_lag_time() -> None:
    """A follower that lacks records and sends no FETCH leaves after the time-out. One that sends a
    FETCH stays, for another partition too, and so does one that lacks nothing."""
    world = World(silence_s=SILENCE_S)
    leader = world.lead((1, 2, 3))
    for follower in (2, 3):
        heard(world, leader, follower, 5, 5, now=1.0)
    assert leader.shrink_isr(6, 2, 1.0 + SILENCE_S) is None
    world.silence.record_arrival(3, 2.0)
    assert leader.shrink_isr(5, 2, 1.1 + SILENCE_S) is None
    heard(world, leader, 2, 4, 6, now=1.5)
    assert leader.shrink_isr(6, 2, 1.4 + SILENCE_S) is None
    pending = leader.shrink_isr(6, 2, 1.6 + SILENCE_S)
    assert pending is not None
    assert pending.proposed == (1, 3)


@pytest.mark.parametrize(
    ("min_insync_replicas", "staying"), [(1, (1,)), (2, None), (3, None), (4, None)]
)
def test_the_silent_stay_if_too_few_would(
    min_insync_replicas: int, staying: tuple[int, ...] | None
) -> None:
    """Without min.insync.replicas acks=all would only be refused sooner. None of several leaves
    alone: the others are waited for all the same."""
    world = World(silence_s=SILENCE_S)
    leader = world.lead((1, 2, 3))
    for follower in (2, 3):
        heard(world, leader, follower, 5, 5, now=1.0)
    pending = leader.shrink_isr(6, min_insync_replicas, 1.1 + SILENCE_S)
    assert (pending and pending.proposed) == staying


def test_who_lags_leaves_though_the_silent_stay() -> None:
    """PAR-13 holds as before."""
    world = World(silence_s=SILENCE_S)
    leader = world.lead((1, 2, 3))
    heard(world, leader, 3, 4, 5, now=1.0)
    heard(world, leader, 2, 5, 5, now=LAG_S)
    for at in (LAG_S, 2 * LAG_S):
        heard(world, leader, 3, 4, 6, now=at)
    pending = leader.shrink_isr(6, 3, LAG_S + SILENCE_S + 0.1)
    assert pending is not None
    assert pending.proposed == (1, 2)


def test_who_is_silent_has_a_time_out_in_each_term() -> None:
    """A member that a new leader has not heard yet is not silent yet."""
    world = World(silence_s=SILENCE_S)
    leader = world.lead((1, 2), replicas=(1, 2), start=5, now=50.0)
    assert leader.shrink_isr(5, 1, 50.0 + SILENCE_S) is None
    assert leader.shrink_isr(5, 1, 50.1 + SILENCE_S)


def test_a_change_under_way_is_the_only_one() -> None:
    """PAR-10: while a change is in flight neither growth nor shrinking is asked for."""
    leader = lead((1, 3))
    fetched(leader, 2, 0, 0)
    assert isinstance(leader.grow_isr(2), PendingExpand)
    assert leader.grow_isr(2) is None
    assert leader.shrink_isr(5, 1, 1e9) is None
    leader = lead((1, 3))
    assert isinstance(leader.shrink_isr(5, 1, 1e9), PendingShrink)
    fetched(leader, 2, 5, 5)
    assert leader.grow_isr(2) is None


def test_who_is_to_join_counts_at_once() -> None:
    """PAR-08: a pending member holds the high watermark and counts for acks; the ISR as reported
    is still the old one."""
    leader = lead((1,))
    fetched(leader, 2, 0, 0)
    assert leader.grow_isr(2)
    assert leader.isr == (1,)
    assert leader.maximal_isr == (1, 2)
    assert leader.is_acknowledgeable(2)
    assert not leader.is_isr_large_enough(2)
    assert not leader.advance(5, 1, 1e9)


def test_min_isr_counts_with_the_assignment_before_a_reassignment() -> None:
    """A partition with one replica goes on while its second one copies; one that is to have fewer
    needs as many as before until they are gone."""
    world = World()
    leader = world.lead((1,), (1,))
    leader.update(replace(state((1,), (1, 2)), original=(1,)))
    assert leader.is_isr_large_enough(2)
    leader.update(state((1,), (1, 2)))
    assert not leader.is_isr_large_enough(2)
    leader.update(replace(state((1,), (1, 2, 3)), original=(1, 2, 3)))
    assert not leader.is_isr_large_enough(2)
    moving = replace(state((1,), (1, 2)), original=(1,))
    assert Leader(world.local_broker, moving, 0, 0, 0.0).is_isr_large_enough(2)  # in a new term


def test_who_is_to_leave_counts_until_confirmed() -> None:
    """K1, A4: a shrink counts only when the controller has confirmed it."""
    leader = lead((1, 2), (1, 2))
    assert leader.shrink_isr(5, 1, 1e9)
    assert not leader.advance(5, 1, 1e9)
    assert leader.isr == leader.maximal_isr == (1, 2)
    leader.update(state((1,), (1, 2), partition_epoch=1))
    assert leader.isr_state == Committed((1,))
    assert leader.advance(5, 1, 1e9)


# -- terms


def test_a_new_isr_keeps_what_is_known_of_followers() -> None:
    """A18: another in-sync set in the same term keeps the followers' progress, and decides what
    was pending."""
    leader = lead((1, 2, 3))
    fetched(leader, 2, 8, 9)
    leader.shrink_isr(9, 1, 1e9)
    leader.update(state((1, 2), (1, 2, 3), partition_epoch=1))
    assert leader.maximal_isr == (1, 2)
    assert leader.advance(9, 1, 1e9)
    assert leader.high_watermark == 8


def test_members_begin_a_term_as_caught_up_others_as_never() -> None:
    """PAR-17: the ISR has the lag time to show up; others must catch up first."""
    leader = lead((1, 2), now=50.0)
    assert leader.shrink_isr(5, 1, 50.0 + LAG_S) is None
    assert progress_of(leader, 3).caught_up_at == NEVER
    assert leader.shrink_isr(5, 1, 50.1 + LAG_S)


def test_the_next_term_of_the_same_leader_keeps_the_ends() -> None:
    """A1: re-elected at once, a leader keeps what it knows of the followers' logs."""
    world = World()
    leader = world.lead((1, 2, 3))
    fetched(leader, 2, 8, 9, now=1.0)
    again = world.lead((1, 2), start=9, now=4.0, epoch=6)
    again.succeed(leader, 4.0)
    kept = progress_of(again, 2)
    assert (kept.log_end, kept.broker_epoch, kept.leader_end) == (8, 7, 9)
    assert kept.caught_up_at == kept.fetched_at == 4.0
    assert progress_of(again, 3).caught_up_at == NEVER


def test_after_a_foreign_term_nothing_is_kept() -> None:
    """PAR-17: somebody else may have led and cut the followers' logs in between."""
    world = World()
    with pytest.raises(AssertionError):
        world.lead((1, 2), epoch=7).succeed(world.lead((1, 2), epoch=5), 0.0)


def test_another_term_is_another_leader() -> None:
    """A leader cannot be carried into another epoch."""
    leader = lead((1,))
    with pytest.raises(AssertionError):
        leader.update(state((1,), (1,), epoch=6))
