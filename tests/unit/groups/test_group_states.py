"""A group's states: each way from one to another, and what each request is answered in each."""

from collections.abc import Callable

import pytest

from minibroker.broker.groups.states import TRANSITIONS, State
from minibroker.protocol.constants import ErrorCode
from tests.unit.groups.grouping import Bench, joined, synced

EMPTY, PREPARING, COMPLETING, STABLE, DEAD = State
E = ErrorCode


def empty(bench: Bench) -> None:
    """A group that has had members: its generation is 2."""
    names = bench.stable(members=1)
    bench.leave(names[0])
    bench.store()


def preparing(bench: Bench) -> None:
    """m1 leads and m3 follows generation 1; m5 waits for a next one."""
    bench.stable()
    bench.enter()


def completing(bench: Bench) -> None:
    """m1 leads and m3 follows generation 1, which is not assigned."""
    bench.completing()


def stable(bench: Bench) -> None:
    """m1 leads and m3 follows generation 1."""
    bench.stable()


def dead(bench: Bench) -> None:
    """The coordinator of a stable group moved."""
    bench.stable()
    bench.group.close(ErrorCode.NOT_COORDINATOR, bench.now)


IN_STATE = {EMPTY: empty, PREPARING: preparing, COMPLETING: completing, STABLE: stable, DEAD: dead}
FOLLOWER = "m3"


def bench_in(state: State) -> Bench:
    """A group in this state."""
    bench = Bench()
    IN_STATE[state](bench)
    assert bench.state is state
    return bench


def close(bench: Bench) -> None:
    """The coordinator moves."""
    bench.group.close(ErrorCode.NOT_COORDINATOR, bench.now)


def store_assignment(bench: Bench) -> None:
    """The leader assigns, and that is stored."""
    bench.sync("m1")
    bench.store()


WAYS: dict[tuple[State, State], Callable[[Bench], object]] = {
    (EMPTY, PREPARING): lambda bench: bench.enter(),
    (EMPTY, DEAD): lambda bench: bench.group.delete(bench.now),
    (PREPARING, COMPLETING): lambda bench: (bench.join("m1"), bench.join("m3")),
    (PREPARING, EMPTY): lambda bench: [bench.leave(name) for name in [*bench.group.members]],
    (PREPARING, DEAD): close,
    (COMPLETING, STABLE): store_assignment,
    (COMPLETING, PREPARING): lambda bench: bench.leave(FOLLOWER),
    (COMPLETING, DEAD): close,
    (STABLE, PREPARING): lambda bench: bench.enter(),
    (STABLE, DEAD): close,
}


def test_every_allowed_way_is_tried() -> None:
    """The table of transitions names no way that the test below does not go."""
    allowed = {(before, after) for before, afters in TRANSITIONS.items() for after in afters}
    assert allowed == WAYS.keys()


@pytest.mark.parametrize(("before", "after"), WAYS)
def test_a_group_goes_from_state_to_state(before: State, after: State) -> None:
    """Each transition of the table happens for the reason that it is there for."""
    bench = bench_in(before)
    WAYS[before, after](bench)
    assert bench.state is after


OK = E.NONE
UNKNOWN = E.UNKNOWN_MEMBER_ID
REBALANCE = E.REBALANCE_IN_PROGRESS
ILLEGAL = E.ILLEGAL_GENERATION
MOVED = E.NOT_COORDINATOR

ASKED: dict[str, Callable[[Bench], object]] = {
    "heartbeat": lambda bench: bench.heartbeat(FOLLOWER),
    "heartbeat of an old generation": lambda bench: bench.heartbeat(FOLLOWER, generation=0),
    "heartbeat of a newer generation": lambda bench: bench.heartbeat(FOLLOWER, generation=9),
    "heartbeat of a stranger": lambda bench: bench.heartbeat("who"),
    "commit": lambda bench: bench.commit(FOLLOWER),
    "commit of an old generation": lambda bench: bench.commit(FOLLOWER, generation=0),
    "commit of a stranger": lambda bench: bench.commit("who"),
    "commit without a generation": lambda bench: bench.commit(generation=-1),
    "commit of a member without a generation": lambda bench: bench.commit(FOLLOWER, generation=-1),
    "commit as an instance that is unknown": lambda bench: bench.commit(FOLLOWER, "i"),
    "sync of a stranger": lambda bench: synced(bench.sync("who")).error,
    "sync of an old generation": lambda bench: synced(bench.sync(FOLLOWER, generation=0)).error,
    "leave": lambda bench: bench.leave(FOLLOWER),
    "leave of a stranger": lambda bench: bench.leave("who"),
    "leave of nobody": lambda bench: bench.leave(),
    "leave of an unknown instance": lambda bench: bench.leave(instance_id="i"),
    "join of a stranger": lambda bench: joined(bench.join("who")).error,
    "join of an unknown instance with an id": lambda bench: joined(bench.join("who", "i")).error,
    "join without an id": lambda bench: joined(bench.join()).error,
    "delete": lambda bench: bench.group.delete(bench.now),
}
# In the order of the states: Empty, PreparingRebalance, CompletingRebalance, Stable, Dead.
ANSWERS: dict[str, tuple[ErrorCode, ErrorCode, ErrorCode, ErrorCode, ErrorCode]] = {
    "heartbeat": (UNKNOWN, REBALANCE, OK, OK, MOVED),
    "heartbeat of an old generation": (UNKNOWN, ILLEGAL, ILLEGAL, ILLEGAL, MOVED),
    "heartbeat of a newer generation": (UNKNOWN, ILLEGAL, ILLEGAL, ILLEGAL, MOVED),
    "heartbeat of a stranger": (UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, MOVED),
    "commit": (UNKNOWN, OK, REBALANCE, OK, MOVED),  # GRP-05
    "commit of an old generation": (UNKNOWN, ILLEGAL, ILLEGAL, ILLEGAL, MOVED),
    "commit of a stranger": (UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, MOVED),
    "commit without a generation": (OK, UNKNOWN, UNKNOWN, UNKNOWN, MOVED),  # GRP-06
    "commit of a member without a generation": (OK, UNKNOWN, UNKNOWN, UNKNOWN, MOVED),
    "commit as an instance that is unknown": (UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, MOVED),
    "sync of a stranger": (UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, MOVED),
    "sync of an old generation": (UNKNOWN, ILLEGAL, ILLEGAL, ILLEGAL, MOVED),
    "leave": (UNKNOWN, OK, OK, OK, MOVED),
    "leave of a stranger": (UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, MOVED),
    "leave of nobody": (UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, MOVED),
    "leave of an unknown instance": (UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, MOVED),
    "join of a stranger": (UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, MOVED),  # GRP-12
    "join of an unknown instance with an id": (UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, MOVED),
    "join without an id": (*[E.MEMBER_ID_REQUIRED] * 4, MOVED),
    "delete": (OK, *[E.NON_EMPTY_GROUP] * 3, MOVED),
}


@pytest.mark.parametrize("what", ASKED)
@pytest.mark.parametrize("state", State)
def test_each_request_is_answered_in_each_state(what: str, state: State) -> None:
    """GRP-05, GRP-06, GRP-12: what a request is answered, by the state it finds the group in."""
    bench = bench_in(state)
    assert ASKED[what](bench) == ANSWERS[what][list(State).index(state)]


def test_a_sync_is_answered_at_once_where_it_can_be() -> None:
    """While a group prepares a SYNC is sent back to join; in Stable it gets the stored part."""
    assert synced(bench_in(PREPARING).sync(FOLLOWER)).error == REBALANCE
    assert synced(bench_in(STABLE).sync(FOLLOWER)).assignment == b"m3"
    assert bench_in(COMPLETING).sync(FOLLOWER).answer is None


def test_whoever_waits_is_told_that_the_coordinator_moved() -> None:
    """No ticket outlives the group: joins and syncs that wait get the error of its end."""
    bench = bench_in(PREPARING)
    _, waiting = bench.enter()
    close(bench)
    assert joined(waiting).error == MOVED
    bench = bench_in(COMPLETING)
    syncs = [bench.sync(FOLLOWER), bench.sync("m1")]
    close(bench)
    assert {synced(sync).error for sync in syncs} == {MOVED}
    assert bench.group.pop_writes() == (), "it may not write any more"
    close(bench)
    assert bench.group.deadline == float("inf")


def test_a_deleted_group_sends_everybody_away_for_a_moment() -> None:
    """After a deletion the answer is COORDINATOR_NOT_AVAILABLE, which clients try again."""
    bench = bench_in(EMPTY)
    assert bench.group.delete(bench.now) == OK
    assert joined(bench.join()).error == E.COORDINATOR_NOT_AVAILABLE
    assert bench.group.pop_writes() == ()
