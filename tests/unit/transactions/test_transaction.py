"""A transactional id: what each request is answered in each state, as Apache Kafka 4.1 does."""

import pytest

from minibroker.broker.transactions.states import TRANSITIONS, State
from minibroker.broker.transactions.transaction import (
    EPOCH_LAST,
    Decision,
    Producer,
    Transaction,
    abort_to_go_on,
    abort_unasked,
    add_partitions,
    begin_session,
    complete,
    end,
    needs_fresh_id,
    verify_error,
)
from minibroker.protocol.constants import PRODUCER_EPOCH_MAX, ErrorCode
from minibroker.protocol.messages.transactions import FIRST_PROTOCOL, SECOND_PROTOCOL
from minibroker.protocol.types import TopicPartition

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
MAPPING, FENCED = ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.PRODUCER_FENCED
CONCURRENT, INVALID = ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.INVALID_TXN_STATE
NONE = ErrorCode.NONE
ID, FRESH = 7, 8
NOW, LATER = 1_000, 2_000
EMPTY = Transaction(ID, 3, 60_000, updated_ms=NOW)


def ongoing(version: int = FIRST_PROTOCOL, epoch: int = 3) -> Transaction:
    """An open transaction with one partition."""
    empty = Transaction(ID, epoch, 60_000, updated_ms=NOW)
    return write_of(add_partitions(empty, Producer(ID, epoch), [T0], version, NOW))


def ended(version: int = FIRST_PROTOCOL, epoch: int = 3, *, is_commit: bool = True) -> Transaction:
    """A decided transaction."""
    decision = end(
        ongoing(version, epoch), Producer(ID, epoch), version, FRESH, NOW, is_commit=is_commit
    )
    return write_of(decision)


def in_state(state: State, version: int = FIRST_PROTOCOL) -> Transaction:
    """A transaction of a protocol in a state."""
    return {
        State.EMPTY: lambda: EMPTY,
        State.ONGOING: lambda: ongoing(version),
        State.PREPARE_COMMIT: lambda: ended(version),
        State.PREPARE_ABORT: lambda: ended(version, is_commit=False),
        State.COMPLETE_COMMIT: lambda: complete(ended(version), NOW),
        State.COMPLETE_ABORT: lambda: complete(ended(version, is_commit=False), NOW),
    }[state]()


LIVE = [state for state in State if state is not State.DEAD]


def write_of(decision: Decision) -> Transaction:
    """What is stored."""
    assert decision.write is not None, decision
    return decision.write


def end_error(present: Transaction | None, producer: Producer, version: int, commit: bool) -> int:
    """The error of an END_TXN, or of its decision."""
    return end(present, producer, version, FRESH, LATER, is_commit=commit).error


def test_every_move_is_one_of_the_table() -> None:
    """What the table does not have is a defect, and asserts."""
    for state in LIVE:
        for after in set(State) - TRANSITIONS[state]:
            with pytest.raises(AssertionError, match="->"):
                in_state(state).moved(after, NOW)


# -- sessions


def test_a_first_session_has_a_fresh_id_and_epoch_0() -> None:
    """So it is with KIP-360 too: an id that is not known any more has no producer to fence."""
    for expected in (None, Producer(3, 4)):
        decision = begin_session(None, expected, 5_000, FRESH, NOW)
        assert decision.producer == (FRESH, 0)
        assert write_of(decision).timeout_ms == 5_000


@pytest.mark.parametrize("state", LIVE)
def test_a_new_session_raises_the_epoch_or_ends_what_is_open_first(state: State) -> None:
    """While a transaction is decided, the producer asks again; an open one is aborted with an epoch
    of its own, and the producer asks again."""
    present = in_state(state)
    decision = begin_session(present, None, 5_000, FRESH, LATER)
    if state in (State.PREPARE_COMMIT, State.PREPARE_ABORT):
        assert decision == Decision(CONCURRENT)
    elif state is State.ONGOING:
        assert decision.error == CONCURRENT
        aborted = write_of(decision)
        assert (aborted.state, aborted.producer_epoch) == (State.PREPARE_ABORT, 4)
        after = begin_session(complete(aborted, LATER), None, 5_000, FRESH, LATER)
        assert after.producer == (ID, 5)
    else:
        assert decision.producer == (ID, 4)
        session = write_of(decision)
        assert (session.state, session.timeout_ms, session.started_ms) == (State.EMPTY, 5_000, -1)


def test_a_producer_goes_on_after_an_error() -> None:
    """KIP-360: it names its id and epoch and gets the next epoch; if it did not get the answer, it
    gets the same again; another producer is fenced."""
    expected = Producer(ID, 3)
    session = write_of(begin_session(EMPTY, expected, 5_000, FRESH, NOW))
    again = begin_session(session, expected, 5_000, FRESH, LATER)
    assert again.producer == (ID, 4)
    assert begin_session(session, Producer(ID, 2), 5_000, FRESH, NOW).error == FENCED
    assert begin_session(session, Producer(9, 4), 5_000, FRESH, NOW).error == FENCED
    other = write_of(begin_session(session, None, 5_000, FRESH, NOW))
    assert begin_session(other, expected, 5_000, FRESH, NOW).error == FENCED
    assert begin_session(other, Producer(ID, 4), 5_000, FRESH, NOW).error == FENCED


@pytest.mark.parametrize("version", [FIRST_PROTOCOL, SECOND_PROTOCOL])
def test_a_producer_goes_on_after_an_error_in_a_transaction(version: int) -> None:
    """Its request aborts the transaction, and the same request again gets the epoch of the abort;
    one of another producer in between fences it. The end that failed commits nothing."""
    expected = Producer(ID, 3)
    first = begin_session(ongoing(version), expected, 5_000, FRESH, NOW)
    assert first.error == CONCURRENT
    aborted = write_of(first)
    assert begin_session(aborted, expected, 5_000, FRESH, NOW) == Decision(CONCURRENT)
    done = complete(aborted, NOW)
    assert end_error(done, expected, version, commit=True) in (FENCED, INVALID)
    assert add_partitions(aborted, expected, [T0], version, NOW).error == CONCURRENT
    assert add_partitions(done, expected, [T0], version, NOW).error == FENCED
    session = begin_session(done, expected, 5_000, FRESH, NOW)
    assert session.producer == (ID, 4)
    assert begin_session(write_of(session), expected, 5_000, FRESH, NOW).producer == (ID, 4)
    other = begin_session(done, None, 5_000, FRESH, NOW)
    assert other.producer == (ID, 5)
    assert begin_session(write_of(other), expected, 5_000, FRESH, NOW).error == FENCED


def test_the_end_of_that_transaction_is_of_the_epoch_before() -> None:
    """So a marker that comes late does not end the next transaction, in either protocol."""
    first = begin_session(ongoing(FIRST_PROTOCOL), Producer(ID, 3), 5_000, FRESH, NOW)
    assert write_of(first).version == SECOND_PROTOCOL


def test_a_producer_goes_on_after_an_error_in_the_last_epoch() -> None:
    """With a fresh id, and again with the same if it did not get the answer."""
    last = Producer(ID, EPOCH_LAST)
    aborted = write_of(begin_session(ongoing(epoch=EPOCH_LAST), last, 5_000, FRESH, NOW))
    session = begin_session(complete(aborted, NOW), last, 5_000, FRESH, NOW)
    assert session.producer == (FRESH, 0)
    again = begin_session(write_of(session), last, 5_000, FRESH + 1, NOW)
    assert again.producer == (FRESH, 0)


def test_a_producer_that_did_not_hear_of_its_end_waits_for_the_markers() -> None:
    """Then it goes on with the epoch that the end has raised."""
    present = ended(SECOND_PROTOCOL)
    expected = Producer(ID, 3)
    assert begin_session(present, expected, 5_000, FRESH, NOW) == Decision(CONCURRENT)
    session = begin_session(complete(present, NOW), expected, 5_000, FRESH, NOW)
    assert session.producer == (ID, 4)


def test_a_fenced_producer_does_not_abort_the_transaction_of_the_next() -> None:
    """It names an epoch that is over. (Kafka compares the epoch only once nothing is open.)"""
    assert begin_session(ongoing(), Producer(ID, 2), 5_000, FRESH, NOW) == Decision(FENCED)


def test_after_the_last_epoch_comes_a_fresh_id() -> None:
    """The very last epoch is kept for fencing; a producer that did not hear of its new id is told
    again."""
    last = Transaction(ID, EPOCH_LAST, 60_000, updated_ms=NOW)
    assert needs_fresh_id(last)
    assert not needs_fresh_id(EMPTY)
    assert begin_session(last, None, 5_000, FRESH, NOW).producer == (FRESH, 0)
    expected = Producer(ID, EPOCH_LAST)
    rotated = begin_session(last, expected, 5_000, FRESH, NOW)
    assert rotated.producer == (FRESH, 0)
    again = begin_session(write_of(rotated), expected, 5_000, FRESH + 1, NOW)
    assert again.producer == (FRESH, 0)
    third = begin_session(write_of(again), expected, 5_000, FRESH + 1, NOW)
    assert third.producer == (FRESH, 0)


def test_the_last_epoch_of_all_fences_and_is_given_to_nobody() -> None:
    """A producer that claims to have it may do nothing: no epoch would be left to fence it."""
    fenced = complete(abort_unasked(ongoing(epoch=EPOCH_LAST), NOW), NOW)
    assert fenced.producer_epoch == PRODUCER_EPOCH_MAX
    claimed = Producer(ID, PRODUCER_EPOCH_MAX)
    assert add_partitions(fenced, claimed, [T0], FIRST_PROTOCOL, NOW).error == FENCED
    for version in (FIRST_PROTOCOL, SECOND_PROTOCOL):
        assert end_error(fenced, claimed, version, commit=False) == FENCED
    assert begin_session(fenced, None, 5_000, FRESH, NOW).producer == (FRESH, 0)


# -- partitions


@pytest.mark.parametrize("state", LIVE)
def test_partitions_are_added_by_the_present_producer_only(state: State) -> None:
    """The first one opens a transaction; what is there already needs no record."""
    present = in_state(state)
    is_decided = state in (State.PREPARE_COMMIT, State.PREPARE_ABORT)
    others = {Producer(9, 3): MAPPING, Producer(ID, 2): FENCED, Producer(ID, 4): FENCED}
    for other, expected in others.items():
        refusal = add_partitions(present, other, [T1], FIRST_PROTOCOL, NOW)
        assert refusal == Decision(CONCURRENT if is_decided else expected)
    decision = add_partitions(present, Producer(ID, 3), [T1], FIRST_PROTOCOL, LATER)
    if is_decided:
        assert decision == Decision(CONCURRENT)
        return
    opened = write_of(decision)
    assert opened.state is State.ONGOING
    if state is State.ONGOING:
        assert opened.partitions == {T0, T1}
        assert opened.started_ms == NOW
        assert add_partitions(opened, Producer(ID, 3), [T1], FIRST_PROTOCOL, LATER) == Decision()
    else:
        assert opened.partitions == {T1}
        assert opened.started_ms == LATER


def test_a_producer_with_a_fresh_id_waits_for_the_markers_of_the_old_one() -> None:
    """Its end is answered with the fresh id, while the markers still need the old one: it may add
    partitions when they are written, and is no stranger before."""
    decided = ended(SECOND_PROTOCOL, EPOCH_LAST)
    assert add_partitions(decided, decided.producer, [T0], 2, NOW) == Decision(CONCURRENT)
    opened = write_of(add_partitions(complete(decided, NOW), decided.producer, [T0], 2, NOW))
    assert (opened.state, opened.producer_id) == (State.ONGOING, FRESH)


def test_an_unknown_id_has_no_producer() -> None:
    """Whoever asks before INIT_PRODUCER_ID, or after the id has expired."""
    assert add_partitions(None, Producer(ID, 0), [T0], FIRST_PROTOCOL, NOW).error == MAPPING
    assert verify_error(None, Producer(ID, 0)) == MAPPING
    for version in (FIRST_PROTOCOL, SECOND_PROTOCOL):
        assert end_error(None, Producer(ID, 0), version, commit=True) == MAPPING


# -- ends

# By protocol and state: the answers to a commit, and to an abort, of the epoch before the present
# one (in the second protocol that of an end which is sent again), the present one and the next.
WAITING = (FENCED, CONCURRENT, FENCED)
BUSY = (CONCURRENT, CONCURRENT, CONCURRENT)
ENDS = {
    (FIRST_PROTOCOL, State.EMPTY): ((FENCED, INVALID, FENCED), (FENCED, INVALID, FENCED)),
    (FIRST_PROTOCOL, State.ONGOING): ((FENCED, NONE, FENCED), (FENCED, NONE, FENCED)),
    (FIRST_PROTOCOL, State.PREPARE_COMMIT): (WAITING, WAITING),
    (FIRST_PROTOCOL, State.PREPARE_ABORT): (WAITING, WAITING),
    (FIRST_PROTOCOL, State.COMPLETE_COMMIT): ((FENCED, NONE, FENCED), (FENCED, INVALID, FENCED)),
    (FIRST_PROTOCOL, State.COMPLETE_ABORT): ((FENCED, INVALID, FENCED), (FENCED, NONE, FENCED)),
    (SECOND_PROTOCOL, State.EMPTY): ((FENCED, INVALID, FENCED), (FENCED, NONE, FENCED)),
    (SECOND_PROTOCOL, State.ONGOING): ((FENCED, NONE, FENCED), (FENCED, NONE, FENCED)),
    (SECOND_PROTOCOL, State.PREPARE_COMMIT): (BUSY, BUSY),
    (SECOND_PROTOCOL, State.PREPARE_ABORT): (BUSY, BUSY),
    (SECOND_PROTOCOL, State.COMPLETE_COMMIT): ((NONE, INVALID, FENCED), (INVALID, NONE, FENCED)),
    (SECOND_PROTOCOL, State.COMPLETE_ABORT): ((INVALID, INVALID, FENCED), (NONE, NONE, FENCED)),
}
# Where an end without an error stores something: elsewhere it is answered as it was before.
STORED = {
    (FIRST_PROTOCOL, State.ONGOING),
    (SECOND_PROTOCOL, State.ONGOING),
    (SECOND_PROTOCOL, State.EMPTY),
    (SECOND_PROTOCOL, State.COMPLETE_COMMIT),
    (SECOND_PROTOCOL, State.COMPLETE_ABORT),
}


@pytest.mark.parametrize("is_commit", [True, False])
@pytest.mark.parametrize(("version", "state"), ENDS)
def test_an_end(version: int, state: State, is_commit: bool) -> None:
    """What is decided is decided. The opposite outcome is an error once the markers are written;
    before that, producers ask again. A stranger's id is refused in each state."""
    present = in_state(state, version)
    answers = ENDS[version, state][0 if is_commit else 1]
    for difference, expected in zip((-1, 0, 1), answers, strict=True):
        producer = Producer(ID, present.producer_epoch + difference)
        decision = end(present, producer, version, FRESH, LATER, is_commit=is_commit)
        assert decision.error == expected, producer
        is_stored = expected == NONE and difference == 0 and (version, state) in STORED
        assert (decision.write is not None) == is_stored, producer
        if expected == NONE and not is_stored:
            assert decision.producer == present.producer
    assert end_error(present, Producer(9, 3), version, is_commit) == MAPPING


@pytest.mark.parametrize("state", [State.COMPLETE_COMMIT, State.COMPLETE_ABORT])
def test_an_end_before_the_last_one_is_fenced(state: State) -> None:
    """Only the last end is answered again."""
    present = in_state(state, SECOND_PROTOCOL)
    older = Producer(ID, present.producer_epoch - 2)
    for is_commit in (True, False):
        assert end_error(present, older, SECOND_PROTOCOL, is_commit) == FENCED


def test_an_end_in_the_second_protocol_raises_the_epoch() -> None:
    """KIP-890: the answer has the next epoch. The same request again gets the same answer, once the
    markers are there, and none any more when the next transaction is open."""
    first, second = Producer(ID, 3), Producer(ID, 4)
    decided = ended(SECOND_PROTOCOL)
    assert decided.producer == second
    assert end_error(decided, first, SECOND_PROTOCOL, commit=True) == CONCURRENT
    done = complete(decided, NOW)
    again = end(done, first, SECOND_PROTOCOL, FRESH, NOW, is_commit=True)
    assert again == Decision(producer=second)
    opened = write_of(add_partitions(done, second, [T1], SECOND_PROTOCOL, NOW))
    assert end_error(opened, first, SECOND_PROTOCOL, commit=True) == FENCED


@pytest.mark.parametrize("epoch", [3, EPOCH_LAST])
def test_the_next_end_waits_for_the_markers_of_the_last_one(epoch: int) -> None:
    """In the second protocol a producer may abort what it has not opened, at once after an end:
    it tries again, and is not fenced."""
    decided = ended(SECOND_PROTOCOL, epoch)
    next_one = decided.producer
    assert end_error(decided, next_one, SECOND_PROTOCOL, commit=False) == CONCURRENT
    again = end(complete(decided, NOW), next_one, SECOND_PROTOCOL, FRESH, LATER, is_commit=False)
    assert again.producer == Producer(next_one.producer_id, next_one.epoch + 1)


@pytest.mark.parametrize("state", [State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT])
def test_in_the_second_protocol_nothing_can_be_aborted(state: State) -> None:
    """A producer does not know whether its first record opened a transaction: it may abort what is
    not open, and gets the next epoch all the same."""
    decision = end(in_state(state), Producer(ID, 3), 2, FRESH, LATER, is_commit=False)
    aborted = write_of(decision)
    assert (aborted.state, aborted.partitions, decision.producer) == (
        State.PREPARE_ABORT,
        frozenset(),
        (ID, 4),
    )
    assert aborted.started_ms == LATER


def test_a_last_end_gives_a_fresh_id() -> None:
    """The markers still have the old id; a request that is sent again gets the new one."""
    last = Producer(ID, EPOCH_LAST)
    decided = ended(SECOND_PROTOCOL, EPOCH_LAST)
    assert (decided.producer_id, decided.producer_epoch) == (ID, PRODUCER_EPOCH_MAX)
    assert decided.producer == (FRESH, 0)
    assert end_error(decided, last, SECOND_PROTOCOL, commit=True) == CONCURRENT
    done = complete(decided, NOW)
    assert (done.producer_id, done.producer_epoch) == (FRESH, 0)
    again = end(done, last, SECOND_PROTOCOL, FRESH, NOW, is_commit=True)
    assert again == Decision(producer=Producer(FRESH, 0))


@pytest.mark.parametrize("version", [FIRST_PROTOCOL, SECOND_PROTOCOL])
def test_a_producer_whose_transaction_was_late_goes_on(version: int) -> None:
    """It may write no more, nor commit. It gets the epoch of the abort: by a session in which it
    says its present one, or by an abort of the second protocol (KIP-588, and as Apache Kafka)."""
    producer = Producer(ID, 3)
    aborted = abort_to_go_on(ongoing(version), LATER)
    assert begin_session(aborted, producer, 5_000, FRESH, LATER).error == CONCURRENT
    assert end_error(aborted, producer, SECOND_PROTOCOL, commit=False) == CONCURRENT
    done = complete(aborted, LATER)
    assert begin_session(done, producer, 5_000, FRESH, LATER).producer == (ID, 4)
    again = end(done, producer, SECOND_PROTOCOL, FRESH, LATER, is_commit=False)
    assert again == Decision(producer=Producer(ID, 4))
    assert end_error(done, producer, SECOND_PROTOCOL, commit=True) == ErrorCode.INVALID_TXN_STATE
    for is_commit in (True, False):
        assert end_error(done, producer, FIRST_PROTOCOL, is_commit) == FENCED
    assert verify_error(done, producer) == FENCED
    session = write_of(begin_session(done, None, 5_000, FRESH, LATER))
    assert session.producer == (ID, 5)
    assert begin_session(session, producer, 5_000, FRESH, LATER).error == FENCED
    assert end_error(session, producer, SECOND_PROTOCOL, commit=False) == FENCED


def test_a_late_transaction_of_the_last_epoch_needs_a_new_id() -> None:
    """The epoch of its abort is nobody's; a session gives an id that no producer had."""
    last = Producer(ID, EPOCH_LAST)
    done = complete(abort_to_go_on(ongoing(epoch=EPOCH_LAST), LATER), LATER)
    assert end_error(done, last, SECOND_PROTOCOL, commit=False) == FENCED
    assert begin_session(done, last, 5_000, FRESH, LATER).producer == (FRESH, 0)


@pytest.mark.parametrize("version", [FIRST_PROTOCOL, SECOND_PROTOCOL])
def test_a_producer_whose_transaction_was_aborted_unasked_is_fenced(version: int) -> None:
    """It may not take that abort for its own and go on with the next epoch: another session may be
    about to begin."""
    aborted = abort_unasked(ongoing(version), LATER)
    is_second = version == SECOND_PROTOCOL
    for present in (aborted, complete(aborted, LATER)):
        expected = CONCURRENT if is_second and present is aborted else FENCED
        for is_commit in (True, False):
            assert end_error(present, Producer(ID, 3), version, is_commit) == expected
        assert verify_error(present, Producer(ID, 3)) == FENCED


# -- time


def test_only_an_open_transaction_is_late() -> None:
    """After its timeout, counted from its first partition."""
    present = ongoing()
    assert not present.is_late(NOW + 60_000)
    assert present.is_late(NOW + 60_001)
    assert not ended().is_late(NOW + 60_001)


@pytest.mark.parametrize("state", LIVE)
def test_an_id_expires_only_while_nothing_is_open(state: State) -> None:
    """And was last used before that time."""
    is_idle = state not in (State.ONGOING, State.PREPARE_COMMIT, State.PREPARE_ABORT)
    assert in_state(state).is_expired(NOW + 1) == is_idle
    assert not in_state(state).is_expired(NOW)
