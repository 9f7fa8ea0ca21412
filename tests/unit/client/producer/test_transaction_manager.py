"""The states of a transactional producer: which calls are legal in each, and what answers mean."""

from collections.abc import Callable
from typing import Final

import pytest

from minibroker.client.committed_offsets import ConsumerGroupMetadata, OffsetAndMetadata
from minibroker.client.errors import (
    ClientError,
    ClientTimeout,
    ProducerFailed,
    ProducerFenced,
    TransactionAbortable,
    TransactionError,
)
from minibroker.client.producer.batches import ProducerIdAndEpoch
from minibroker.client.producer.transaction_manager import (
    TRANSITIONS,
    State,
    TransactionManager,
)
from minibroker.protocol.constants import ErrorCode
from minibroker.protocol.errors import BrokerError
from minibroker.protocol.messages.group_offsets import PartitionCommit, PartitionCommitted
from minibroker.protocol.messages.producer_id import InitProducerIdResponse
from minibroker.protocol.messages.transactions import (
    SECOND_PROTOCOL,
    EndTxnRequest,
    EndTxnResponse,
    TxnOffsetCommitResponse,
)
from minibroker.protocol.types import TopicPartition

NAME: Final = TopicPartition("t", 0)
GROUP: Final = ConsumerGroupMetadata("g", 3, "member", "instance")
OFFSETS: Final = {NAME: OffsetAndMetadata(5, "text", 2)}

Call = Callable[[TransactionManager], object]


def ready() -> TransactionManager:
    """A producer with id 7 in epoch 0."""
    manager = TransactionManager("id", 60_000)
    assert manager.init().transactional_id == "id"
    assert manager.handle_init(InitProducerIdResponse(0, 7, 0)) == ErrorCode.NONE
    return manager


def in_state(state: State) -> TransactionManager:
    """A producer in a state, with a batch sent if a transaction is open."""
    if state is State.UNINITIALIZED:
        return TransactionManager("id", 60_000)
    manager = ready()
    if state is State.READY:
        return manager
    manager.begin()
    manager.on_written()
    if state is State.COMMITTING:
        manager.begin_commit()
    elif state is State.ABORTING:
        manager.begin_abort()
    elif state is State.ABORTABLE_ERROR:
        manager.on_batch_failed(ClientTimeout("late"))
    elif state is State.FATAL_ERROR:
        manager.on_batch_failed(BrokerError(ErrorCode.PRODUCER_FENCED))
    return manager


CALLS: Final[dict[str, Call]] = {
    "begin": TransactionManager.begin,
    "send": TransactionManager.check_taking,
    "commit": TransactionManager.begin_commit,
    "abort": TransactionManager.begin_abort,
}
# What each call leads to in each state: the next state, or the error that it raises.
LEGAL: Final[dict[State, dict[str, State | type[Exception]]]] = {
    State.UNINITIALIZED: dict.fromkeys(CALLS, ClientError),
    State.READY: {
        "begin": State.IN_TRANSACTION,
        "send": ClientError,
        "commit": ClientError,
        "abort": ClientError,
    },
    State.IN_TRANSACTION: {
        "begin": ClientError,
        "send": State.IN_TRANSACTION,
        "commit": State.COMMITTING,
        "abort": State.ABORTING,
    },
    State.COMMITTING: {
        "begin": ClientError,
        "send": ClientError,
        "commit": State.COMMITTING,
        "abort": ClientError,
    },
    State.ABORTING: {
        "begin": ClientError,
        "send": ClientError,
        "commit": ClientError,
        "abort": State.ABORTING,
    },
    State.ABORTABLE_ERROR: dict.fromkeys(CALLS, TransactionAbortable) | {"abort": State.ABORTING},
    State.FATAL_ERROR: dict.fromkeys(CALLS, ProducerFenced),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("state", State)
def test_each_call_is_legal_or_not_in_each_state(state: State, call: str) -> None:
    """What is not legal raises and changes nothing; a transaction that has failed says so."""
    manager, expected = in_state(state), LEGAL[state][call]
    assert manager.state is state
    if isinstance(expected, State):
        CALLS[call](manager)
        assert manager.state is expected
        return
    with pytest.raises(expected) as caught:
        CALLS[call](manager)
    assert type(caught.value) is expected
    assert manager.state is state


def test_a_table_has_every_move() -> None:
    """Each state can be left but the fatal one, and that can be reached from all others."""
    assert TRANSITIONS.keys() == set(State)
    assert not TRANSITIONS[State.FATAL_ERROR]
    for state in set(State) - {State.FATAL_ERROR}:
        assert State.FATAL_ERROR in TRANSITIONS[state]
    assert State.ABORTABLE_ERROR not in TRANSITIONS[State.ABORTING], "an abort has no way back"


def test_a_commit_that_waits_for_records_takes_no_more() -> None:
    """They would be in the transaction or not, as it happens."""
    manager = in_state(State.IN_TRANSACTION)
    manager.is_flushing = True
    assert not manager.takes_records
    with pytest.raises(ClientError, match="is ending"):
        manager.check_taking()


def test_each_end_gives_the_next_epoch() -> None:
    """The request names the epoch of the transaction; the answer's is that of the next one, and may
    be of another id."""
    manager = ready()
    for is_commit, given in ((True, (7, 1)), (False, (7, 2)), (True, (9, 0))):
        before = manager.identity
        assert before is not None
        manager.begin()
        manager.on_written()
        if is_commit:
            manager.begin_commit()
        else:
            manager.begin_abort()
        assert manager.end() == EndTxnRequest("id", *before, is_commit, SECOND_PROTOCOL)
        assert manager.handle_end(EndTxnResponse(0, *given)) == ErrorCode.NONE
        assert manager.state is State.READY
        assert manager.identity == ProducerIdAndEpoch(*given)
        assert not manager.has_writes


# What an error in the answer to each request leads to: None if it is sent again.
INIT: Final[dict[ErrorCode, type[TransactionError] | None]] = {
    ErrorCode.CONCURRENT_TRANSACTIONS: None,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: None,
    ErrorCode.NOT_COORDINATOR: None,
    ErrorCode.COORDINATOR_NOT_AVAILABLE: None,
    ErrorCode.INVALID_TRANSACTION_TIMEOUT: ProducerFailed,
    ErrorCode.INVALID_REQUEST: ProducerFailed,
    ErrorCode.PRODUCER_FENCED: ProducerFenced,
}
COMMIT: Final[dict[ErrorCode, type[TransactionError] | None]] = {
    ErrorCode.CONCURRENT_TRANSACTIONS: None,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: None,
    ErrorCode.NOT_COORDINATOR: None,
    ErrorCode.COORDINATOR_NOT_AVAILABLE: None,
    ErrorCode.TRANSACTION_ABORTABLE: TransactionAbortable,
    ErrorCode.PRODUCER_FENCED: ProducerFenced,
    ErrorCode.INVALID_PRODUCER_EPOCH: ProducerFenced,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING: ProducerFailed,
    ErrorCode.INVALID_TXN_STATE: TransactionAbortable,
    ErrorCode.UNKNOWN_SERVER_ERROR: ProducerFailed,
}
ABORT: Final = COMMIT | {
    ErrorCode.TRANSACTION_ABORTABLE: ProducerFailed,
    ErrorCode.INVALID_TXN_STATE: ProducerFailed,
}
PRODUCE: Final[dict[ErrorCode, type[TransactionError]]] = {
    ErrorCode.TRANSACTION_ABORTABLE: TransactionAbortable,
    ErrorCode.INVALID_TXN_STATE: TransactionAbortable,
    ErrorCode.MESSAGE_TOO_LARGE: TransactionAbortable,
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER: TransactionAbortable,
    ErrorCode.INVALID_PRODUCER_EPOCH: TransactionAbortable,
    ErrorCode.PRODUCER_FENCED: ProducerFenced,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING: ProducerFailed,
}
COMMIT_OFFSETS: Final[dict[ErrorCode, type[TransactionError] | None]] = {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: None,
    ErrorCode.NOT_COORDINATOR: None,
    ErrorCode.COORDINATOR_NOT_AVAILABLE: None,
    ErrorCode.REBALANCE_IN_PROGRESS: None,
    ErrorCode.UNKNOWN_MEMBER_ID: TransactionAbortable,
    ErrorCode.ILLEGAL_GENERATION: TransactionAbortable,
    ErrorCode.FENCED_INSTANCE_ID: TransactionAbortable,
    ErrorCode.OFFSET_METADATA_TOO_LARGE: TransactionAbortable,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: TransactionAbortable,
    ErrorCode.TRANSACTION_ABORTABLE: TransactionAbortable,
    ErrorCode.INVALID_PRODUCER_EPOCH: TransactionAbortable,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING: ProducerFailed,
}


def check(
    manager: TransactionManager,
    again: ErrorCode,
    error: ErrorCode,
    expected: type[TransactionError] | None,
) -> None:
    """Check what an error has led to, and that its message says what to do."""
    if expected is None:
        assert again == error
        assert not manager.has_failed
        return
    assert again == ErrorCode.NONE
    with pytest.raises(expected, match=error.name) as caught:
        manager.raise_failure()
    assert type(caught.value) is expected
    is_abortable = expected is TransactionAbortable
    assert expected.remedy == ("abort" if is_abortable else "close")
    advice = "abort the transaction" if is_abortable else "close this producer"
    assert str(caught.value).endswith(f"; {advice}")


@pytest.mark.parametrize(("error", "expected"), INIT.items())
def test_errors_of_a_session(error: ErrorCode, expected: type[TransactionError] | None) -> None:
    """A predecessor's transaction is waited for; nothing else passes but a move of coordinators."""
    manager = TransactionManager("id", 60_000)
    again = manager.handle_init(InitProducerIdResponse(error))
    check(manager, again, error, expected)


@pytest.mark.parametrize(("error", "expected"), COMMIT.items())
def test_errors_of_a_commit(error: ErrorCode, expected: type[TransactionError] | None) -> None:
    """A commit that is refused for good can be aborted only if the coordinator says so, or has
    aborted it after its time."""
    manager = in_state(State.COMMITTING)
    manager.end()
    check(manager, manager.handle_end(EndTxnResponse(error)), error, expected)


@pytest.mark.parametrize(("error", "expected"), ABORT.items())
def test_errors_of_an_abort(error: ErrorCode, expected: type[TransactionError] | None) -> None:
    """There is no way but the end of the producer."""
    manager = in_state(State.ABORTING)
    manager.end()
    check(manager, manager.handle_end(EndTxnResponse(error)), error, expected)


@pytest.mark.parametrize(("error", "expected"), PRODUCE.items())
def test_errors_of_a_batch(error: ErrorCode, expected: type[TransactionError]) -> None:
    """The error of the batch is the cause of the transaction's, which is reported for it."""
    manager = in_state(State.IN_TRANSACTION)
    refused = BrokerError(error, "refused")
    reported = manager.on_batch_failed(refused)
    check(manager, ErrorCode.NONE, error, expected)
    assert type(reported) is expected
    assert reported.__cause__ is refused


@pytest.mark.parametrize(("error", "expected"), COMMIT_OFFSETS.items())
def test_errors_of_offsets(error: ErrorCode, expected: type[TransactionError] | None) -> None:
    """One partition that is refused for good is enough."""
    manager = in_state(State.IN_TRANSACTION)
    partitions = (PartitionCommitted("t", 0), PartitionCommitted("t", 1, error))
    again = manager.handle_offsets("g", TxnOffsetCommitResponse(partitions))
    check(manager, again, error, expected)


def test_offsets_are_sent_in_the_name_of_the_member() -> None:
    """With the producer's epoch, and as the second protocol has it."""
    manager = ready()
    manager.begin()
    request = manager.offsets(OFFSETS, GROUP)
    assert manager.has_writes
    assert (request.producer_id, request.producer_epoch) == (7, 0)
    assert (request.group_id, request.generation) == ("g", 3)
    assert (request.member_id, request.instance_id) == ("member", "instance")
    assert request.transaction_version == SECOND_PROTOCOL
    assert request.partitions == (PartitionCommit("t", 0, 5, 2, "text"),)


def test_only_a_repeated_commit_leaves_a_doubt() -> None:
    """A producer that is fenced by its first commit has committed nothing."""
    for ends in (1, 2):
        manager = in_state(State.COMMITTING)
        for _ in range(ends):
            manager.end()
        manager.handle_end(EndTxnResponse(ErrorCode.PRODUCER_FENCED))
        with pytest.raises(ProducerFenced) as caught:
            manager.raise_failure()
        assert ("is not known" in str(caught.value)) == (ends == 2)


def test_an_answer_of_the_first_protocol_is_no_answer() -> None:
    """Without the next epoch the producer cannot go on."""
    manager = in_state(State.COMMITTING)
    manager.end()
    manager.handle_end(EndTxnResponse())
    with pytest.raises(ProducerFailed, match="UNSUPPORTED_VERSION"):
        manager.raise_failure()


def test_an_end_without_an_answer_names_the_same_call() -> None:
    """It is the only legal one."""
    for state, name in ((State.COMMITTING, "commit"), (State.ABORTING, "abort")):
        error = in_state(state).in_doubt(OSError("silence"), 100)
        assert error.remedy == "retry"
        assert isinstance(error, ClientTimeout)
        assert str(error).endswith(f"call {name}_transaction again")


def test_a_batch_of_an_aborted_transaction_is_no_failure() -> None:
    """It is given up on purpose."""
    manager = in_state(State.ABORTING)
    given_up = ClientError("aborted")
    assert manager.on_batch_failed(given_up) is given_up
    assert manager.state is State.ABORTING


def test_fenced_is_worse_than_failed() -> None:
    """A producer whose transaction has failed may hear that it is fenced; the first fatal error
    stays."""
    manager = in_state(State.ABORTABLE_ERROR)
    manager.begin_abort()
    manager.end()
    manager.handle_end(EndTxnResponse(ErrorCode.PRODUCER_FENCED))
    assert manager.state is State.FATAL_ERROR
    manager.fail(ProducerFailed, "later")
    with pytest.raises(ProducerFenced):
        manager.raise_failure()


@pytest.mark.parametrize(
    ("state", "code", "expected"),
    [
        (State.UNINITIALIZED, ErrorCode.UNSUPPORTED_VERSION, ProducerFailed),
        (State.IN_TRANSACTION, ErrorCode.INVALID_GROUP_ID, TransactionAbortable),
        (State.IN_TRANSACTION, ErrorCode.UNSUPPORTED_VERSION, ProducerFailed),
        (State.COMMITTING, ErrorCode.UNSUPPORTED_VERSION, ProducerFailed),
    ],
)
def test_a_request_that_cannot_be_asked(
    state: State, code: ErrorCode, expected: type[TransactionError]
) -> None:
    """Offsets for a group without a coordinator can be aborted; nothing else helps."""
    manager = in_state(state)
    manager.on_refused(BrokerError(code, "no"))
    check(manager, ErrorCode.NONE, code, expected)
