"""A group's member as a pure machine: tables of what each answer does in each state."""

import math
from itertools import product

import pytest

from minibroker.client.errors import CommitFailed
from minibroker.client.groups.membership import Membership, NextStep, State
from minibroker.client.options import ConsumerOptions, read_options
from minibroker.protocol.constants import ErrorCode
from minibroker.protocol.errors import BrokerError, ProtocolError
from minibroker.protocol.messages.group_offsets import PartitionCommit
from minibroker.protocol.messages.groups import (
    GroupProtocol,
    JoinGroupResponse,
    LeavingMember,
    SyncGroupResponse,
)
from minibroker.protocol.subscription import Assignment, encode_assignment
from minibroker.protocol.types import TopicPartition

A = TopicPartition("t", 0)
PROTOCOLS = (GroupProtocol("range", b"x"),)
ASSIGNED = SyncGroupResponse(assignment=encode_assignment(Assignment((A,))))
REBALANCE = ErrorCode.REBALANCE_IN_PROGRESS


def member_of(state: State, **options: object) -> Membership:
    """A member in generation 7, or on the way there; its session is 45 s, last heard of at 0."""
    given = {"group_id": "g", **options}
    member = Membership(read_options(ConsumerOptions, "a:1", given))
    member.request_join()
    if state is State.OUT:
        return member
    member.begin_join()
    if state is State.JOINING:
        return member
    member.handle_join(JoinGroupResponse(0, 7, "range", "m-1", "m-1"), now=0)
    if state is State.SYNCING:
        return member
    member.handle_sync(ASSIGNED, sent_at=0)
    if state is State.ASSIGNED:
        return member
    member.complete_rebalance(must_join=False)
    return member


def test_a_member_joins_step_by_step() -> None:
    """GRP-12: the id that the coordinator gives is what the member joins with."""
    member = member_of(State.JOINING, session_timeout_ms=6000, max_poll_interval_ms=9000)
    first = member.join(PROTOCOLS)
    assert (first.group_id, first.member_id, first.instance_id) == ("g", "", None)
    assert (first.session_timeout_ms, first.rebalance_timeout_ms) == (6000, 9000)
    told = JoinGroupResponse(ErrorCode.MEMBER_ID_REQUIRED, member_id="m-1")
    assert member.handle_join(told, 1) is NextStep.RETRY
    assert member.join(PROTOCOLS).member_id == "m-1"
    joined = JoinGroupResponse(0, 7, "range", "m-0", "m-1")
    assert member.handle_join(joined, 2) is NextStep.CONTINUE
    assert (member.sync().generation, member.sync().member_id) == (7, "m-1")
    assert member.handle_sync(ASSIGNED, 3) is NextStep.CONTINUE
    assert (member.state, member.assignment) == (State.ASSIGNED, (A,))
    member.complete_rebalance(must_join=False)
    assert (member.state, member.held_generation, member.may_join) == (State.STABLE, 7, False)


def test_a_static_member_insists_on_an_id_only_once_it_was_stored() -> None:
    """An id without an assignment dies with its coordinator, and the next one would fence it."""
    member = member_of(State.SYNCING, group_instance_id="i")
    member.on_disconnect()
    assert (member.member_id, member.join(PROTOCOLS).member_id) == ("m-1", "")
    member = member_of(State.STABLE, group_instance_id="i")
    member.request_join()
    member.begin_join()
    assert member.join(PROTOCOLS).member_id == "m-1"


# The error, the next step, the state after it, whether the member keeps its id, and its partitions.
JOIN_TABLE = [
    (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, NextStep.RETRY_LATER, State.JOINING, True, True),
    (ErrorCode.COORDINATOR_NOT_AVAILABLE, NextStep.FIND_COORDINATOR, State.JOINING, True, True),
    (ErrorCode.NOT_COORDINATOR, NextStep.FIND_COORDINATOR, State.JOINING, True, True),
    (ErrorCode.REBALANCE_IN_PROGRESS, NextStep.RETRY_LATER, State.JOINING, True, True),
    (ErrorCode.UNKNOWN_MEMBER_ID, NextStep.STOP, State.OUT, False, False),
    (ErrorCode.ILLEGAL_GENERATION, NextStep.STOP, State.OUT, True, False),
    (ErrorCode.FENCED_INSTANCE_ID, NextStep.STOP, State.OUT, True, False),
    (ErrorCode.GROUP_MAX_SIZE_REACHED, NextStep.STOP, State.OUT, True, False),
    (ErrorCode.INCONSISTENT_GROUP_PROTOCOL, NextStep.STOP, State.OUT, True, False),
    (ErrorCode.MESSAGE_TOO_LARGE, NextStep.STOP, State.OUT, True, False),
]


@pytest.mark.parametrize(("error", "step", "state", "keeps_id", "keeps_partitions"), JOIN_TABLE)
def test_a_refused_join(
    error: ErrorCode, step: NextStep, state: State, keeps_id: bool, keeps_partitions: bool
) -> None:
    """What passes is tried again as the same member; what does not, the application is told."""
    member = member_of(State.STABLE)
    member.request_join()
    member.begin_join()
    assert member.handle_join(JoinGroupResponse(error), 1) is step
    assert member.state is state
    assert (member.member_id == "m-1") is keeps_id
    assert member.is_lost is not keeps_partitions
    failure = member.pop_failure()
    is_told = error not in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION)
    assert isinstance(failure, BrokerError) is (step is NextStep.STOP and is_told)


SYNC_TABLE = [
    (ErrorCode.REBALANCE_IN_PROGRESS, NextStep.RETRY, State.JOINING),
    (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, NextStep.RETRY_LATER, State.JOINING),
    (ErrorCode.REQUEST_TIMED_OUT, NextStep.RETRY_LATER, State.JOINING),
    (ErrorCode.COORDINATOR_NOT_AVAILABLE, NextStep.FIND_COORDINATOR, State.JOINING),
    (ErrorCode.NOT_COORDINATOR, NextStep.FIND_COORDINATOR, State.JOINING),
    (ErrorCode.UNKNOWN_MEMBER_ID, NextStep.STOP, State.OUT),
    (ErrorCode.ILLEGAL_GENERATION, NextStep.STOP, State.OUT),
    (ErrorCode.FENCED_INSTANCE_ID, NextStep.STOP, State.OUT),
]


@pytest.mark.parametrize(("error", "step", "state"), SYNC_TABLE)
def test_a_refused_sync(error: ErrorCode, step: NextStep, state: State) -> None:
    """Who gets no part because others joined, or the coordinator went, joins again."""
    member = member_of(State.SYNCING)
    assert member.handle_sync(SyncGroupResponse(error), 1) is step
    assert member.state is state
    assert member.is_lost is (state is State.OUT)


def test_a_lost_answer_leaves_the_member_who_it_is() -> None:
    """After a lost connection the same member id joins, so that no ghost of it is waited for."""
    member = member_of(State.SYNCING)
    member.on_disconnect()
    assert member.state is State.JOINING
    assert member.join(PROTOCOLS).member_id == "m-1"
    assert not member.is_lost


def test_an_assignment_that_nobody_can_read_is_told() -> None:
    """Bytes of a leader that are no assignment stop the member with an error, not with a crash."""
    member = member_of(State.SYNCING)
    assert member.handle_sync(SyncGroupResponse(assignment=b"\0\0\0"), 1) is NextStep.STOP
    assert isinstance(member.pop_failure(), ProtocolError)
    assert member.failure is None
    assert member.is_lost


HEARTBEATS = {
    ErrorCode.NONE: (False, False),  # must join, is lost
    REBALANCE: (True, False),
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: (False, False),
    ErrorCode.UNKNOWN_SERVER_ERROR: (False, False),
    ErrorCode.UNKNOWN_MEMBER_ID: (True, True),
    ErrorCode.ILLEGAL_GENERATION: (True, True),
    ErrorCode.FENCED_INSTANCE_ID: (True, True),
}


@pytest.mark.parametrize(("error", "state"), list(product(HEARTBEATS, State)))
def test_a_heartbeat_counts_for_who_has_a_part(error: ErrorCode, state: State) -> None:
    """Who joins is told by the answer to that; nobody else believes an answer about the past."""
    member = member_of(state)
    member.must_join = False
    member.handle_heartbeat(member.heartbeat(), error, sent_at=9)
    if state not in (State.ASSIGNED, State.STABLE):
        assert (member.state, member.must_join, member.is_lost) == (state, False, False)
    else:
        assert (member.must_join, member.is_lost) == HEARTBEATS[error]
        assert member.is_fenced is (error == ErrorCode.FENCED_INSTANCE_ID)


@pytest.mark.parametrize("error", [ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR])
@pytest.mark.parametrize("state", [State.JOINING, State.STABLE])
def test_a_heartbeat_finds_out_that_the_coordinator_moved(error: ErrorCode, state: State) -> None:
    """Whatever the state, another coordinator is looked for, and nothing is lost."""
    member = member_of(state)
    assert member.handle_heartbeat(member.heartbeat(), error, 9) is NextStep.FIND_COORDINATOR
    assert (member.state, member.is_lost) == (state, False)


def test_an_answer_to_an_older_generation_changes_nothing() -> None:
    """A heartbeat sent before a rebalance cannot put the member out after it."""
    member = member_of(State.STABLE)
    asked = member.heartbeat()
    member.request_join()
    member.begin_join()
    member.handle_join(JoinGroupResponse(0, 8, "range", "m-0", "m-1"), 1)
    member.handle_sync(ASSIGNED, 1)
    assert member.handle_heartbeat(asked, ErrorCode.ILLEGAL_GENERATION, 0) is NextStep.CONTINUE
    assert not member.is_lost


def test_a_coordinator_that_loads_keeps_a_member_and_ends_no_doubt() -> None:
    """However long it loads, it puts nobody out; what the one before it did, it cannot know."""
    member = member_of(State.STABLE, session_timeout_ms=6000)
    for now in (5, 10, 15):
        member.handle_heartbeat(member.heartbeat(), ErrorCode.NONE, now, is_loading=True)
    assert not member.is_in_doubt(21)
    member.handle_heartbeat(member.heartbeat(), ErrorCode.NONE, sent_at=21.1, is_loading=True)
    assert member.is_in_doubt(21.2)
    member.handle_heartbeat(member.heartbeat(), ErrorCode.NONE, sent_at=21.1)
    assert not member.is_in_doubt(21.2)


def test_a_session_counts_from_when_the_request_was_sent() -> None:
    """GRP-11: an answer that took long proves nothing about now; any good one ends the doubt."""
    member = member_of(State.STABLE, session_timeout_ms=6000)
    assert not member.is_in_doubt(6)
    assert member.is_in_doubt(6.1)
    member.handle_heartbeat(member.heartbeat(), ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, 6)
    assert member.is_in_doubt(6.1)
    member.handle_heartbeat(member.heartbeat(), REBALANCE, sent_at=6)
    assert not member.is_in_doubt(12)
    assert member.contact_age_s(8) == 2
    commit = member.commit((PartitionCommit("t", 0, 1),))
    member.handle_commit(commit, ErrorCode.NONE, sent_at=20)
    assert not member.is_in_doubt(26)
    assert not member_of(State.OUT).is_in_doubt(math.inf)


COMMITS = [
    (ErrorCode.NONE, State.STABLE, NextStep.CONTINUE, False),
    (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, State.STABLE, NextStep.RETRY_LATER, False),
    (ErrorCode.REQUEST_TIMED_OUT, State.STABLE, NextStep.RETRY_LATER, False),
    (ErrorCode.COORDINATOR_NOT_AVAILABLE, State.STABLE, NextStep.FIND_COORDINATOR, False),
    (ErrorCode.NOT_COORDINATOR, State.STABLE, NextStep.FIND_COORDINATOR, False),
    (ErrorCode.REBALANCE_IN_PROGRESS, State.SYNCING, NextStep.RETRY_LATER, False),
    (ErrorCode.ILLEGAL_GENERATION, State.SYNCING, NextStep.RETRY_LATER, False),
    (ErrorCode.UNKNOWN_MEMBER_ID, State.SYNCING, NextStep.RETRY_LATER, False),
    (ErrorCode.ILLEGAL_GENERATION, State.STABLE, NextStep.STOP, True),
    (ErrorCode.UNKNOWN_MEMBER_ID, State.ASSIGNED, NextStep.STOP, True),
    (ErrorCode.FENCED_INSTANCE_ID, State.STABLE, NextStep.STOP, True),
    (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, State.STABLE, NextStep.STOP, False),
    (ErrorCode.OFFSET_METADATA_TOO_LARGE, State.STABLE, NextStep.STOP, False),
    (ErrorCode.INVALID_COMMIT_OFFSET_SIZE, State.STABLE, NextStep.STOP, False),
]


@pytest.mark.parametrize(("error", "state", "step", "is_lost"), COMMITS)
def test_a_refused_commit(error: ErrorCode, state: State, step: NextStep, is_lost: bool) -> None:
    """GRP-05: what a rebalance refuses may be accepted after it; who is put out has lost all."""
    member = member_of(state)
    asked = member.commit((PartitionCommit("t", 0, 1),))
    assert (asked.generation, asked.member_id) == (7, "m-1")
    assert member.handle_commit(asked, error, 1) is step
    assert member.is_lost is is_lost


def test_a_commit_tries_the_generation_that_a_new_coordinator_knows() -> None:
    """GRP-05: a generation dies with its coordinator if it was not stored. The next coordinator
    knows the last synced one, or has read the later one; a member that joins tries both."""
    member = member_of(State.STABLE)
    member.request_join()
    member.begin_join()
    member.handle_join(JoinGroupResponse(0, 8, "range", "m-0", "m-1"), 1)
    member.on_disconnect()
    partitions = (PartitionCommit("t", 0, 1), PartitionCommit("t", 1, 1))
    for generation in (8, 7, 8):
        asked = member.commit(partitions)
        assert asked.generation == generation
        for _ in partitions:
            step = member.handle_commit(asked, ErrorCode.ILLEGAL_GENERATION, 1)
            assert step is NextStep.RETRY_LATER
    assert member.handle_commit(member.commit(()), ErrorCode.NONE, 1) is NextStep.CONTINUE
    member.handle_join(JoinGroupResponse(0, 9, "range", "m-0", "m-1"), 2)
    assert member.commit(()).generation == 9
    member.handle_sync(ASSIGNED, 2)
    assert (member.commit(()).generation, member.is_lost) == (9, False)


def test_who_is_no_member_cannot_commit() -> None:
    """After a loss a commit fails at once, and the error says what to do; alone it has no id."""
    member = member_of(State.STABLE)
    asked = member.commit(())
    member.handle_heartbeat(member.heartbeat(), ErrorCode.UNKNOWN_MEMBER_ID, 1)
    with pytest.raises(CommitFailed, match=r"Poll, to join again.*max\.poll\.interval\.ms"):
        member.commit(())
    assert member.handle_commit(asked, ErrorCode.UNKNOWN_MEMBER_ID, 1) is NextStep.STOP
    alone = Membership(read_options(ConsumerOptions, "a:1", {"group_id": "g"}))
    asked = alone.commit(())
    assert (asked.generation, asked.member_id) == (-1, "")
    assert alone.handle_commit(asked, ErrorCode.UNKNOWN_MEMBER_ID, 1) is NextStep.STOP
    assert "it has members" in str(alone.commit_failed("UNKNOWN_MEMBER_ID"))


def test_after_a_loss_the_application_comes_first() -> None:
    """No JOIN before the application knows what it has lost."""
    member = member_of(State.STABLE)
    member.handle_heartbeat(member.heartbeat(), ErrorCode.ILLEGAL_GENERATION, 1)
    assert not member.may_join
    member.accept_loss()
    assert member.may_join
    member.begin_join()
    assert member.join(PROTOCOLS).member_id == "m-1"


def test_an_error_is_told_once_but_for_a_fenced_member() -> None:
    """Who can try again does so after the error; who was replaced is told in every poll."""
    refused = member_of(State.JOINING)
    refused.handle_join(JoinGroupResponse(ErrorCode.GROUP_MAX_SIZE_REACHED), 1)
    refused.accept_loss()
    assert not refused.may_join
    assert refused.pop_failure() is not None
    assert refused.pop_failure() is None
    assert refused.may_join
    fenced = member_of(State.STABLE, group_instance_id="i")
    fenced.handle_heartbeat(fenced.heartbeat(), ErrorCode.FENCED_INSTANCE_ID, 1)
    fenced.accept_loss()
    assert str(fenced.pop_failure()) == str(fenced.pop_failure())
    assert "group.instance.id 'i'" in str(fenced.failure)
    assert not fenced.may_join


def test_a_poll_is_due_only_between_polls() -> None:
    """While the application polls, or is no member, it is not missed."""
    member = member_of(State.STABLE, max_poll_interval_ms=9000)
    member.end_poll(10)
    assert member.poll_deadline == 19
    member.begin_poll()
    assert member.poll_deadline == math.inf


def test_who_does_not_poll_leaves_and_loses_all() -> None:
    """The member goes, so that others can go on, and joins under a new id when it is told."""
    member = member_of(State.STABLE)
    request = member.expire()
    assert request is not None
    assert request.members == (LeavingMember("m-1"),)
    assert (member.state, member.member_id, member.is_lost) == (State.OUT, "", True)
    member.accept_loss()
    assert member.may_join


@pytest.mark.parametrize("state", State)
def test_a_member_can_leave_from_every_state(state: State) -> None:
    """Who has an id tells that it goes; a static member keeps its place, and says nothing."""
    member = member_of(state)
    request = member.leave()
    has_id = state in (State.SYNCING, State.ASSIGNED, State.STABLE)
    assert (request is not None) is has_id
    assert (member.state, member.is_lost, member.may_join) == (State.OUT, False, False)
    static = member_of(state, group_instance_id="i")
    assert static.leave() is None
    assert static.state is State.OUT


@pytest.mark.parametrize(
    ("error", "is_known"),
    [(ErrorCode.ILLEGAL_GENERATION, True), (ErrorCode.UNKNOWN_MEMBER_ID, False)],
)
def test_a_member_that_lost_its_partitions_leaves(error: ErrorCode, is_known: bool) -> None:
    """A coordinator that knows its id, in another generation, would wait for it."""
    member = member_of(State.STABLE)
    member.handle_heartbeat(member.heartbeat(), error, 1)
    assert (member.state, member.is_lost) == (State.OUT, True)
    assert (member.leave() is not None) is is_known
    assert member.leave() is None
