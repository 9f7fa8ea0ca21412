"""What time does to a group: sessions that end, phases that are over."""

import math

import pytest

from minibroker.broker.groups.states import State
from minibroker.protocol.constants import ErrorCode
from tests.unit.groups.grouping import Bench, joined, synced


def test_a_member_that_is_not_heard_of_is_removed() -> None:
    """GRP-11: a missed session time-out removes the member and starts a rebalance."""
    bench = Bench()
    names = bench.stable()
    bench.beat_on(9.9, names[0])
    assert bench.state is State.STABLE
    bench.beat_on(0.2, names[0])
    assert bench.state is State.PREPARING_REBALANCE
    assert [*bench.group.members] == [names[0]]
    assert bench.heartbeat(names[0]) == ErrorCode.REBALANCE_IN_PROGRESS
    assert bench.heartbeat(names[1]) == ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("speak", ["heartbeat", "commit", "sync", "join"])
def test_a_member_that_speaks_keeps_its_session(speak: str) -> None:
    """GRP-11: a heartbeat, a commit, and a join or sync that is answered extend the session."""
    bench = Bench()
    names = bench.stable()
    for _ in range(5):
        bench.wait(8)
        getattr(bench, speak)(names[1])
        bench.heartbeat(names[0])
    assert [*bench.group.members] == names
    assert bench.state is State.STABLE


def test_a_refused_request_keeps_no_session() -> None:
    """GRP-11: only a valid heartbeat counts; a zombie of an old generation does not keep itself."""
    bench = Bench()
    names = bench.stable()
    for _ in range(3):
        bench.wait(4)
        bench.heartbeat(names[0])
        assert bench.heartbeat(names[1], generation=0) in (
            ErrorCode.ILLEGAL_GENERATION,
            ErrorCode.UNKNOWN_MEMBER_ID,
        )
    assert [*bench.group.members] == [names[0]]


def test_who_waits_for_the_group_does_not_expire() -> None:
    """A member whose JOIN or SYNC waits has said all it can; its session begins with the answer."""
    bench = Bench()
    names = bench.stable()
    waiting, ticket = bench.enter()
    bench.beat_on(30, *names)
    assert waiting in bench.group.members
    for name in names:
        bench.join(name)
    assert joined(ticket).generation == 2
    bench.sync(waiting)
    bench.beat_on(30, *names)
    assert waiting in bench.group.members
    bench.sync(names[0])
    bench.store()
    bench.beat_on(9.9, *names)
    assert waiting in bench.group.members
    bench.beat_on(0.2, *names)
    assert waiting not in bench.group.members


def test_who_does_not_join_in_time_is_out() -> None:
    """GRP-13: after the rebalance time-out the generation is made of those who joined."""
    bench = Bench()
    names = bench.stable(members=3)
    late, ticket = bench.enter()
    bench.join(names[2])
    bench.beat_on(59.9, *names)
    assert ticket.answer is None
    bench.beat_on(0.2, *names)
    answer = joined(ticket)
    assert (answer.generation, answer.leader) == (2, names[2])
    assert [*bench.group.members] == [names[2], late]
    assert bench.heartbeat(names[0]) == ErrorCode.UNKNOWN_MEMBER_ID


def test_the_slowest_member_decides_how_long_a_rebalance_takes() -> None:
    """GRP-13: a join phase lasts as long as the largest rebalance time-out of the members."""
    bench = Bench()
    first, _ = bench.enter(rebalance_timeout_ms=20_000)
    second, _ = bench.enter(rebalance_timeout_ms=40_000)
    bench.wait(0.2)
    bench.sync_all([first, second])
    _, ticket = bench.enter(rebalance_timeout_ms=5000)
    bench.beat_on(39.9, first, second)
    assert ticket.answer is None
    bench.beat_on(0.2, first, second)
    assert joined(ticket).generation == 2


def test_a_group_whose_members_are_all_gone_is_empty() -> None:
    """GRP-13: with the last session the group becomes Empty, one generation on, and says so."""
    bench = Bench()
    bench.stable()
    bench.wait(10.5)
    assert bench.state is State.EMPTY
    assert bench.group.generation == 2
    value = bench.take().value
    assert (value.generation, value.members, value.leader, value.protocol) == (2, (), None, None)
    assert value.protocol_type == "consumer"
    assert bench.group.deadline == math.inf


def test_a_leader_that_does_not_assign_is_out() -> None:
    """No SYNC of the leader for the rebalance time-out: the others go on without it."""
    bench = Bench()
    names = bench.completing()
    sync = bench.sync(names[1])
    bench.beat_on(59.5, names[0])
    assert sync.answer is None
    bench.beat_on(0.2, names[0])
    assert synced(sync).error == ErrorCode.REBALANCE_IN_PROGRESS
    assert [*bench.group.members] == [names[1]]
    answer = joined(bench.join(names[1]))
    assert (answer.generation, answer.leader) == (2, names[1])


def test_a_follower_that_does_not_take_its_part_is_out() -> None:
    """A member that lives but never asks for its part would leave partitions unread."""
    bench = Bench()
    names = bench.completing()
    bench.sync(names[0], {names[1]: b"part"})
    bench.store()
    bench.beat_on(59.5, *names)
    assert bench.state is State.STABLE
    bench.beat_on(0.2, *names)
    assert [*bench.group.members] == [names[0]]
    assert bench.state is State.PREPARING_REBALANCE


def test_all_that_is_due_at_once_makes_one_rebalance() -> None:
    """Several sessions that end together cost the others one join phase."""
    bench = Bench()
    names = bench.stable(members=4)
    bench.wait(5)
    bench.heartbeat(names[0])
    bench.wait(6)
    assert joined(bench.join(names[0])).generation == 2


def test_the_wildest_time_outs_are_kept_within_their_fields() -> None:
    """A rebalance time-out that no record can hold is cut to the nearest that one can."""
    bench = Bench()
    name, _ = bench.enter(rebalance_timeout_ms=2**60)
    other, _ = bench.enter(rebalance_timeout_ms=-5)
    bench.wait(0.1)
    members = bench.group.members
    assert members[name].rebalance_timeout_ms == 2**31 - 1
    assert members[other].rebalance_timeout_ms == 0
