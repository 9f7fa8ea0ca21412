"""The checkers of consumer groups, on made-up histories: each finds the fault in one."""

from operator import itemgetter

import pytest

from minibroker.broker.groups.records import GroupMetadata, StoredMember
from minibroker.protocol.constants import ErrorCode
from minibroker.protocol.subscription import Assignment, encode_assignment
from minibroker.protocol.types import TopicPartition
from tests.sim.checkers import Violation
from tests.sim.group_checkers import (
    Fenced,
    Holdings,
    OneOwner,
    OnlyDone,
    PromptClose,
    RisingCommits,
    judge_log,
)
from tests.sim.group_events import (
    Assigned,
    Closed,
    Closing,
    CommitAnswered,
    CommitBegun,
    CommitEnded,
    CommitFailed,
    CommitSent,
    Crashed,
    Done,
    FetchAnswered,
    FetchSent,
    History,
    Lost,
    PutOut,
    Revoked,
    Shown,
    Synced,
)

P, Q = TopicPartition("t", 0), TopicPartition("t", 1)


def tell(checker, *events):
    """Show a checker some events, one every second."""
    for now, event in enumerate(events):
        checker.look(float(now), event)
    return checker


def shown(who, *offsets, place=P):
    """Several records."""
    return [Shown(who, place, offset) for offset in offsets]


def commit(who, number, offset, *, generation=1, error=ErrorCode.NONE):
    """A commit and its answer."""
    sent = CommitSent(who, number, generation, {P: offset})
    return [sent, CommitAnswered(who, number, {P: error})]


def fetch(who, number, offset):
    """A question for what is committed, and its answer."""
    return [FetchSent(who, number), FetchAnswered(who, number, {P: offset})]


def test_a_sound_history_passes():
    """Join, read, commit, hand over, crash and go on: no checker minds."""
    events = [
        Synced("a", 1, "a", (P, Q)),
        *fetch("a", 1, -1),
        Assigned("a", (P, Q)),
        *shown("a", 0, 1),
        Done("a", P, 0),
        Done("a", P, 1),
        *commit("a", 2, 2),
        Revoked("a", (P,)),
        Synced("a", 2, "a", (Q,)),
        Synced("b", 2, "b", (P,)),
        *fetch("b", 3, 2),
        Assigned("b", (P,)),
        *shown("b", 2, 3),
        Crashed("b"),
        Synced("a", 3, "a", (P, Q)),
        *fetch("a", 4, 2),
        Assigned("a", (P,)),
        *shown("a", 2, 3),
        Done("a", P, 2),
        Done("a", P, 3),
        *commit("a", 5, 4, generation=3),
        Closing("a", 5.0),
        Closed("a"),
    ]
    holdings, commits, closes = Holdings(), RisingCommits(), PromptClose()
    history = History((holdings, commits, closes, OneOwner(), Fenced(), OnlyDone()))
    for now, event in enumerate(events):
        history.note(float(now), event)
    assert holdings.judge_once() == 2
    holdings.judge_end({P: 4}, commits.floors)
    closes.judge(100.0)
    assert "Crashed(who='b')" in str(history)


def test_two_owners_in_one_generation_are_found():
    """The same partition for two members; a static member's new process is the same member."""
    checker = tell(OneOwner(), Synced("a", 1, "m", (P,)), Synced("b", 2, "n", (P,)))
    tell(checker, Synced("a.1", 1, "m", (P,)))
    with pytest.raises(Violation, match="given to m in generation 1, and now to n"):
        tell(checker, Synced("b", 1, "n", (Q, P)))


@pytest.mark.parametrize("answer", [4, -1])
def test_a_committed_offset_that_goes_back_is_found(answer):
    """Less than was acknowledged before it was asked for, or nothing."""
    checker = tell(RisingCommits(), *commit("a", 1, 4), *commit("a", 2, 5))
    with pytest.raises(Violation, match="was committed at 5"):
        tell(checker, *fetch("b", 3, answer))


def test_a_committed_offset_that_was_told_and_goes_back_is_found():
    """Nobody knew that the commit was done, until somebody was told so."""
    checker = tell(RisingCommits(), *commit("a", 1, 4), CommitSent("a", 2, 1, {P: 5}))
    tell(checker, *fetch("b", 3, 4), *fetch("b", 4, 5))
    with pytest.raises(Violation, match="was committed at 5"):
        tell(checker, *fetch("b", 5, 4))


def test_a_question_that_was_asked_before_may_be_answered_with_less():
    """The commit was acknowledged while the question was under way."""
    checker = tell(RisingCommits(), *commit("a", 1, 4), FetchSent("b", 2), *commit("a", 3, 5))
    tell(checker, FetchAnswered("b", 2, {P: 4}))


def test_an_offset_that_nobody_committed_is_found():
    """What is told was sent by somebody."""
    with pytest.raises(Violation, match="nobody has committed that"):
        tell(RisingCommits(), *commit("a", 1, 4), *fetch("b", 2, 5))


def test_a_commit_without_an_answer_may_arrive_late():
    """Its sender has given it up and committed more; a newer generation ends that."""
    checker = tell(RisingCommits(), CommitSent("a", 1, 1, {P: 4}), *commit("a", 2, 5))
    tell(checker, *fetch("b", 3, 4))
    assert checker.late == 1
    with pytest.raises(Violation, match="was committed at 5"):
        tell(checker, Synced("a", 2, "a", (P,)), *fetch("b", 4, 4))


def test_a_refused_commit_explains_nothing():
    """It was answered, so it does not arrive any more."""
    late = commit("a", 1, 4, error=ErrorCode.REQUEST_TIMED_OUT)
    with pytest.raises(Violation, match="was committed at 5"):
        tell(RisingCommits(), *late, *commit("a", 2, 5), *fetch("b", 3, 4))


def test_a_commit_of_an_old_generation_is_found():
    """It was sent after a newer generation had begun, and was taken."""
    checker = tell(Fenced(), Synced("a", 2, "a", (P,)), *commit("a", 1, 1, generation=2))
    tell(checker, CommitSent("a", 2, 2, {P: 2}), Synced("a", 3, "a", (P,)))
    tell(checker, CommitAnswered("a", 2, {P: ErrorCode.NONE}))
    tell(checker, *commit("a", 3, 3, generation=2, error=ErrorCode.ILLEGAL_GENERATION))
    with pytest.raises(Violation, match="may commit in generation 2, after 3 began"):
        tell(checker, *commit("a", 4, 3, generation=2))


def test_a_commit_of_what_is_not_done_is_found():
    """The application was shown two records, and has come back from one."""
    checker = tell(OnlyDone(), *shown("a", 0, 1), Done("a", P, 0), *commit("a", 1, 1))
    with pytest.raises(Violation, match="commits t-0 at 2, and is done up to 1"):
        tell(checker, *commit("a", 2, 2))


def test_a_commit_of_where_the_member_began_is_sound():
    """It was told that offset, and has finished nothing yet."""
    tell(OnlyDone(), *fetch("a", 1, 7), *commit("a", 2, 7))


@pytest.mark.parametrize(
    ("events", "reason"),
    [
        (shown("a", 0), "which is not its own"),
        ([Assigned("a", (P,)), *shown("a", 0, 2)], "shown t-0 2 behind 0"),
        ([Assigned("a", (P,)), *shown("a", 0, 0)], "shown t-0 0 behind 0"),
        ([Assigned("a", (P,)), *shown("a", 1)], "nobody was shown 0"),
        ([Assigned("a", (P,)), Assigned("a", (P,))], "a second time"),
        ([Revoked("a", (P,))], "does not have it"),
        ([Assigned("a", (P,)), Lost("a", (P,)), *shown("a", 0)], "which is not its own"),
    ],
)
def test_what_a_member_may_not_be_shown_is_found(events, reason):
    """Not its own, with a gap, twice, or behind what the group has not seen."""
    with pytest.raises(Violation, match=reason):
        tell(Holdings(), *events)


@pytest.mark.parametrize(
    "end",
    [
        [Revoked("a", (P,))],
        [Closing("a", 5.0), Closed("a")],
        [*commit("a", 1, 1), Revoked("a", (P,)), Crashed("a")],
        [*commit("a", 1, 1, error=ErrorCode.REQUEST_TIMED_OUT), Revoked("a", (P,))],
        [Revoked("a", (P,)), Assigned("a", ()), Crashed("a")],
        [PutOut("a", 1), Revoked("a", (P,))],
        [*commit("a", 1, 1), Revoked("a", (P,)), PutOut("a", 1)],
        [Revoked("a", (P,)), PutOut("a", 0)],
        [Revoked("a", (P,)), PutOut("b", 1)],
        [Revoked("a", (P,)), Assigned("a", ()), PutOut("a", 1)],
        # Three commits that are no reason to go on: before one with an answer, of another member,
        # and of a moment ago.
        [CommitSent("a", 1, 1, {P: 1}), *commit("a", 2, 0), Revoked("a", (P,)), Assigned("a", ())],
        [CommitSent("b", 1, 1, {P: 1}), Revoked("a", (P,)), Assigned("a", ())],
        [*shown("a", 1), Revoked("a", (P,)), *commit("a", 1, 1), Assigned("a", ())],
    ],
)
def test_a_duplicate_without_an_excuse_is_found(end):
    """Who gave the partition back in order has committed; what comes later is no excuse, nor what
    happens to others or in another generation. Who still has it when put out has to say so."""
    synced = (Synced("a", 1, "a", (P,)), Synced("b", 1, "b", ()))
    holdings = tell(Holdings(), *synced, Assigned("a", (P,)), *shown("a", 0), *end)
    tell(holdings, Assigned("b", (P,)), *shown("b", 0))
    holdings.judge_unexcused(brokers_suffer=True)
    with pytest.raises(Violation, match="gave it back in order, and to b again"):
        holdings.judge_once()


ELSEWHERE = commit("a", 2, 1, error=ErrorCode.NOT_COORDINATOR)


@pytest.mark.parametrize(
    "end",
    [
        [Crashed("a")],
        [Lost("a", (P,))],
        [*commit("a", 1, 1, error=ErrorCode.UNKNOWN_MEMBER_ID), Revoked("a", (P,))],
        [Revoked("a", (P,)), *commit("a", 1, 1, error=ErrorCode.UNKNOWN_MEMBER_ID)],
        [CommitFailed("a", "no coordinator"), Revoked("a", (P,))],
        [Revoked("a", (P,)), Crashed("a")],
        [Revoked("a", (P,)), CommitSent("a", 1, 1, {P: 1}), PutOut("a", 1)],
        [Revoked("a", (P,)), CommitSent("a", 1, 1, {P: 1}), Assigned("a", ())],
        # Of less than was shown; no coordinator is found for the next one.
        [CommitSent("a", 1, 1, {P: 0}), Revoked("a", (P,)), Assigned("a", ())],
        # It is sent again, to a broker that is not the coordinator.
        [CommitSent("a", 1, 1, {P: 1}), *ELSEWHERE, Revoked("a", (P,)), Assigned("a", ())],
        [Closing("a", 0.5), Closed("a")],
    ],
)
def test_a_duplicate_with_an_excuse_is_counted(end):
    """A crash, a lost partition, a generation that ended before the commit was done, a commit that
    was refused, failed or was not answered for a session, a close that ran out."""
    begun = (Synced("a", 1, "a", (P,)), Assigned("a", (P,)))
    holdings = tell(Holdings(), *begun, *shown("a", 0), *end)
    tell(holdings, Assigned("b", (P,)), *shown("b", 0, 1))
    assert holdings.judge_once() == 1
    with pytest.raises(Violation, match="though nothing was done to it"):
        holdings.judge_unexcused(brokers_suffer=True)


@pytest.mark.parametrize(
    ("answered_at", "is_outage"), [([], True), ([4.5], True), ([2.5, 3.4], False)]
)
def test_an_outage_excuses_a_commit_that_fails(answered_at, is_outage):
    """One that lasts for a session within that commit, of which coordinators answer others."""
    holdings = tell(Holdings(), Assigned("a", (P,)), *shown("a", 0))
    events = [(2.0, CommitBegun("a")), (4.6 if is_outage else 4.3, CommitFailed("a", "in doubt"))]
    for number, at in enumerate(answered_at):
        refused = commit("a", number, 1, error=ErrorCode.ILLEGAL_GENERATION)
        events += zip((at - 0.1, at), refused, strict=True)
    for now, event in sorted(events, key=itemgetter(0)):
        holdings.look(now, event)
    for brokers_suffer in (True, False):
        if is_outage and brokers_suffer:
            holdings.judge_unexcused(brokers_suffer=True)
        else:
            with pytest.raises(Violation, match="its commit failed"):
                holdings.judge_unexcused(brokers_suffer=brokers_suffer)


def test_a_pause_in_a_kept_partition_is_found():
    """Records of one holding are shown one after the other; a new holding may begin later."""
    holdings = tell(Holdings(), Assigned("a", (P, Q)), *shown("a", 0, 1), Revoked("a", (P,)))
    tell(holdings, *[Done("a", Q, 0)] * 9, Assigned("b", (P,)), *shown("b", 2))
    holdings.judge_steady(2.0)
    holdings.look(20.0, Shown("b", P, 3))
    with pytest.raises(Violation, match="b kept t-0, and was shown 3"):
        holdings.judge_steady(2.0)


def test_a_wait_in_an_own_commit_is_no_pause():
    """The application of a waits for its commit; that of b has nothing to wait for."""
    for who, is_found in (("a", False), ("b", True)):
        holdings = tell(Holdings(), Assigned(who, (P,)), *shown(who, 0))
        tell_later = [(2.0, CommitBegun("a")), (8.0, CommitEnded("a")), (9.0, Shown(who, P, 1))]
        for now, event in tell_later:
            holdings.look(now, event)
        if is_found:
            with pytest.raises(Violation, match="b kept t-0, and was shown 1 8"):
                holdings.judge_steady(2.0)
        else:
            holdings.judge_steady(2.0)


@pytest.mark.parametrize(("log_end", "committed"), [(3, 2), (2, 1), (2, -1)])
def test_a_group_that_has_not_read_to_the_end_is_found(log_end, committed):
    """A record that nobody was shown, or that nobody has committed."""
    holdings = tell(Holdings(), Assigned("a", (P,)), *shown("a", 0, 1))
    holdings.judge_end({P: 2, Q: 0}, {P: 2, Q: -1})
    with pytest.raises(Violation, match="t-0 ends at"):
        holdings.judge_end({P: log_end}, {P: committed})


def test_a_close_without_a_coordinator_for_a_session_is_an_excuse():
    """No commit could be sent, and the member's session has ended. One that is shorter is none."""
    events = [Assigned("a", (P,)), *shown("a", 0), Done("a", P, 0), Closing("a", 10.0)]
    again = [Assigned("b", (P,)), *shown("b", 0)]
    checker = tell(Holdings(), *events, Revoked("a", (P,)), Closed("a"), *again)
    assert checker.judge_once() == 1
    checker = Holdings()
    for now, event in enumerate([*events, Revoked("a", (P,)), Closed("a"), *again]):
        checker.look(now / 10, event)
    with pytest.raises(Violation, match="gave it back in order"):
        checker.judge_once()


def test_a_close_that_takes_too_long_is_found():
    """Longer than its time, or for ever; who crashes meanwhile need not come back."""
    checker = tell(PromptClose(), Closing("a", 5.0), Closing("b", 5.0), Crashed("b"))
    checker.look(5.4, Closed("a"))
    checker.judge(50.0)
    tell(checker, Closing("c", 5.0))
    with pytest.raises(Violation, match="c is closing for"):
        checker.judge(6.0)
    with pytest.raises(Violation, match="c took 6"):
        checker.look(6.0, Closed("c"))


def stored(generation, **places):
    """A generation as the log has it."""
    members = tuple(
        StoredMember(who, None, "", "", 0, 0, b"", encode_assignment(Assignment(given)))
        for who, given in places.items()
    )
    return GroupMetadata("consumer", generation, "range", None, 0, members)


def test_a_log_that_gives_a_partition_twice_is_found():
    """To two members of one generation; the next one may give it to another."""
    judge_log([stored(1, a=(P,), b=(Q,)), stored(2, b=(P, Q)), stored(2, b=(Q, P))])
    with pytest.raises(Violation, match="stored for a and for b in generation 2"):
        judge_log([stored(1, a=(P,)), stored(2, a=(P,), b=(Q, P))])


def test_a_log_whose_generations_go_back_is_found():
    """They only grow."""
    with pytest.raises(Violation, match="generation 1 is stored behind 2"):
        judge_log([stored(2, a=(P,)), stored(1)])
