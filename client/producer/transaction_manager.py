"""A transactional producer as a state machine: which calls are legal, which requests they lead to,
and what answers mean.

    UNINITIALIZED ---> READY <------------------------------+------------+
                         |                                  |            |
                         v                                  |            |
                   IN_TRANSACTION ---------------------> COMMITTING      |
                     |        |                             |            |
                     |        `---> ABORTABLE_ERROR <-------'            |
                     v                     v                             |
                  ABORTING <---------------+ ----------------------------'
    any of them ---> FATAL_ERROR

Pure: transactions.py sends the requests and waits. The producer speaks the second protocol of
transactions (KIP-890) alone. A request that writes to a partition adds it to the transaction, and
each end gives the producer its next epoch. So a late batch of a transaction cannot enter the next
one, and an abort needs no answer to the batches that are under way.

A batch that fails for good makes the transaction fail: committed, it would lack records. So do
offsets that the group does not take. Then nothing is sent any more, and only an abort is legal. An
end that is not answered in time may have been decided: in COMMITTING and ABORTING only the same end
is legal again, which the coordinator recognizes by the epoch.

A transaction that takes too long is aborted by its coordinator. The producer hears that its epoch
is not the present one, or that there is nothing to commit; it gets the next epoch by an abort, and
goes on.

Two kinds of error are fatal. The producer is fenced if another producer began, or an operator ended
its transaction: then the coordinator does not take the abort. It has failed if the coordinator does
not know its id any more, or answers what cannot be.
"""

from enum import Enum, auto
from typing import Final

from minibroker.client.committed_offsets import ConsumerGroupMetadata, Offsets
from minibroker.client.errors import (
    ClientError,
    ProducerFailed,
    ProducerFenced,
    TransactionAbortable,
    TransactionError,
    TransactionInDoubt,
    error_code,
    named,
)
from minibroker.client.producer.batches import ProducerIdAndEpoch
from minibroker.protocol.constants import NO_PRODUCER_ID, ErrorCode
from minibroker.protocol.errors import NOT_A_MEMBER, RETRIABLE, BrokerError
from minibroker.protocol.messages.group_offsets import PartitionCommit
from minibroker.protocol.messages.groups import TRANSACTION_KEY
from minibroker.protocol.messages.producer_id import (
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from minibroker.protocol.messages.transactions import (
    SECOND_PROTOCOL,
    EndTxnRequest,
    EndTxnResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)


class State(Enum):
    """The state of a transactional producer."""

    UNINITIALIZED = auto()
    READY = auto()
    IN_TRANSACTION = auto()
    COMMITTING = auto()
    ABORTING = auto()
    ABORTABLE_ERROR = auto()
    FATAL_ERROR = auto()


TRANSITIONS: Final = {
    State.UNINITIALIZED: {State.READY, State.FATAL_ERROR},
    State.READY: {State.IN_TRANSACTION, State.FATAL_ERROR},
    State.IN_TRANSACTION: {
        State.COMMITTING,
        State.ABORTING,
        State.ABORTABLE_ERROR,
        State.FATAL_ERROR,
    },
    State.COMMITTING: {State.READY, State.ABORTABLE_ERROR, State.FATAL_ERROR},
    State.ABORTING: {State.READY, State.FATAL_ERROR},
    State.ABORTABLE_ERROR: {State.ABORTING, State.FATAL_ERROR},
    State.FATAL_ERROR: set[State](),
}
FAILED: Final = (State.ABORTABLE_ERROR, State.FATAL_ERROR)

# The coordinator has given the next epoch to another producer, or to nobody.
FENCED: Final = frozenset({ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED})
# No request of this producer can succeed any more, whatever it asks for.
FATAL: Final = frozenset(
    {
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ErrorCode.UNSUPPORTED_VERSION,
    }
)
WHY: Final = {
    ErrorCode.INVALID_PRODUCER_ID_MAPPING: "its coordinator does not know this producer (any"
    " more): it may have expired (transactional.id.expiration.ms)",
    ErrorCode.INVALID_TRANSACTION_TIMEOUT: "the broker allows no such transaction.timeout.ms"
    " (transaction.max.timeout.ms)",
    ErrorCode.INVALID_REQUEST: "a transactional.id has 1 to 32767 bytes",
}
LATE: Final = "the transaction was aborted after transaction.timeout.ms"
STALE: Final = f"{LATE}, or another producer with this transactional.id has begun"
NONE_OPEN: Final = "there is no transaction: begin one (`transaction()`, or begin_transaction)"
IS_ENDING: Final = "the transaction is ending: begin another one once it has ended"


class TransactionManager:
    """See the head of this module. Read its fields; only its methods change them.

    `identity` is that of the next batches. `has_writes`: brokers may know of the transaction.
    `is_flushing`: a commit waits for the records, and takes no more.
    """

    def __init__(self, transactional_id: str, timeout_ms: int) -> None:
        self.transactional_id = transactional_id
        self._timeout_ms = timeout_ms
        self.state = State.UNINITIALIZED
        self.identity: ProducerIdAndEpoch | None = None
        self.has_writes = False
        self.is_flushing = False
        self._ends_sent = 0  # END_TXN requests about this transaction
        self._failure: tuple[type[TransactionError], str, Exception | None] | None = None

    # -- what is legal

    @property
    def takes_records(self) -> bool:
        """Whether records and offsets may be sent now."""
        return self.state is State.IN_TRANSACTION and not self.is_flushing

    @property
    def has_failed(self) -> bool:
        """Whether nothing more of the transaction may be sent."""
        return self.state in FAILED

    @property
    def may_abort(self) -> bool:
        """Whether a transaction is open, and its end is not decided."""
        return self.state in (State.IN_TRANSACTION, State.ABORTABLE_ERROR)

    def check_taking(self) -> None:
        """Raise unless records and offsets may be sent now: `TransactionError` if the transaction
        has failed, else `ClientError`."""
        self.raise_failure()
        if not self.takes_records:
            is_open = self.state in (State.IN_TRANSACTION, State.COMMITTING, State.ABORTING)
            raise ClientError(IS_ENDING if is_open else NONE_OPEN)

    def raise_failure(self) -> None:
        """Raise the `TransactionError` of a transaction or producer that has failed."""
        if self.has_failed:
            raise self.failure()

    def failure(self) -> TransactionError:
        """Return the error of a transaction or producer that has failed, each time a new one."""
        assert self._failure is not None, "it has failed"
        kind, text, cause = self._failure
        advice = "abort the transaction" if kind is TransactionAbortable else "close this producer"
        error = kind(f"{named(self.transactional_id, TRANSACTION_KEY)}: {text}; {advice}")
        error.__cause__ = cause
        return error

    # -- sessions

    def init(self) -> InitProducerIdRequest:
        """Make the request that begins the session, and fences earlier producers of the id."""
        assert self.state is State.UNINITIALIZED
        return InitProducerIdRequest(self.transactional_id, transaction_timeout_ms=self._timeout_ms)

    def handle_init(self, answer: InitProducerIdResponse) -> ErrorCode:
        """Handle its answer. Return NONE if that settles it, else why it is to be sent again."""
        error = error_code(answer.error)
        if error == ErrorCode.NONE:
            self.identity = ProducerIdAndEpoch(answer.producer_id, answer.producer_epoch)
            self._move(State.READY)
        elif error in RETRIABLE:
            return error
        else:
            self._fail_for_good(error)
        return ErrorCode.NONE

    # -- transactions

    def begin(self) -> None:
        """Begin a transaction, of which brokers learn with its first batch."""
        self.raise_failure()
        if self.state is not State.READY:
            raise ClientError("a transaction is open: commit or abort it first")
        self._move(State.IN_TRANSACTION)

    def on_written(self) -> None:
        """Record that a batch was sent, or offsets."""
        self.has_writes = True

    def on_batch_failed(self, error: Exception) -> Exception:
        """Handle that a batch is given up. Return the error to report for it."""
        if self.state is State.IN_TRANSACTION:
            code = error.code if isinstance(error, BrokerError) else ErrorCode.NONE
            if code == ErrorCode.INVALID_PRODUCER_EPOCH:
                self._fail_as_stale(error)
            elif code in FENCED or code in FATAL:
                self._fail_for_good(code, error)
            else:
                self.fail(TransactionAbortable, str(error), error)
        return self.failure() if self.has_failed else error

    def offsets(self, offsets: Offsets, group: ConsumerGroupMetadata) -> TxnOffsetCommitRequest:
        """Make the request that commits a group's offsets in the transaction."""
        assert self.identity is not None, "a transaction is open"
        self.on_written()
        return TxnOffsetCommitRequest(
            self.transactional_id,
            group.group_id,
            self.identity.producer_id,
            self.identity.epoch,
            group.generation,
            group.member_id,
            group.instance_id,
            tuple(
                PartitionCommit(*name, each.offset, each.leader_epoch, each.metadata)
                for name, each in offsets.items()
            ),
            SECOND_PROTOCOL,
        )

    def handle_offsets(self, group_id: str, answer: TxnOffsetCommitResponse) -> ErrorCode:
        """Handle its answer, as `handle_init` does. One partition that is refused is enough for the
        transaction to fail."""
        errors = {error_code(each.error): each for each in answer.partitions if each.error}
        for error, each in errors.items():
            if error == ErrorCode.INVALID_PRODUCER_EPOCH:
                self._fail_as_stale()
            elif error in FENCED or error in FATAL:
                self._fail_for_good(error)
            elif error in NOT_A_MEMBER:
                self.fail(
                    TransactionAbortable,
                    f"{named(group_id)} takes no offsets from this consumer ({error.name}): it is"
                    " not a member any more, and others may read its partitions",
                )
            elif error not in RETRIABLE or error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                what = f"{named(group_id)} does not take the offset of {each.topic}-"
                self.fail(TransactionAbortable, f"{what}{each.partition}: {error.name}")
        return ErrorCode.NONE if self.has_failed else next(iter(errors), ErrorCode.NONE)

    # -- the end

    def check_commit(self) -> None:
        """Raise unless a commit is legal, for the first time or again."""
        self.raise_failure()
        if self.state is State.ABORTING:
            raise ClientError("the transaction is being aborted: call abort_transaction again")
        if self.state not in (State.IN_TRANSACTION, State.COMMITTING):
            raise ClientError(NONE_OPEN)

    def begin_commit(self) -> None:
        """Begin to commit, once all records are delivered; or go on with it."""
        self.check_commit()
        if self.state is State.IN_TRANSACTION:
            self._move(State.COMMITTING)

    def begin_abort(self) -> None:
        """Begin to abort, or go on with it."""
        if self.state is State.FATAL_ERROR:
            raise self.failure()
        if self.state is State.COMMITTING:
            raise ClientError(
                "the transaction may be committed already: call commit_transaction again"
            )
        if self.may_abort:
            self._failure = None
            self._move(State.ABORTING)
        elif self.state is not State.ABORTING:
            raise ClientError(NONE_OPEN)

    def end(self) -> EndTxnRequest:
        """Make the request that ends the transaction; once more, if the last one was lost."""
        assert self.identity is not None
        assert self.state in (State.COMMITTING, State.ABORTING)
        self._ends_sent += 1
        return EndTxnRequest(
            self.transactional_id,
            self.identity.producer_id,
            self.identity.epoch,
            self.state is State.COMMITTING,
            SECOND_PROTOCOL,
        )

    def handle_end(self, answer: EndTxnResponse) -> ErrorCode:
        """Handle its answer, as `handle_init` does."""
        error = error_code(answer.error)
        if error in RETRIABLE:
            return error
        if error == ErrorCode.NONE and answer.producer_id != NO_PRODUCER_ID:
            self.identity = ProducerIdAndEpoch(answer.producer_id, answer.producer_epoch)
            self.complete()
        elif error == ErrorCode.TRANSACTION_ABORTABLE and self.state is State.COMMITTING:
            self.fail(TransactionAbortable, f"its coordinator does not commit it: {error.name}")
        elif error == ErrorCode.INVALID_TXN_STATE and self.state is State.COMMITTING:
            self.fail(TransactionAbortable, f"{error.name}: {LATE}")
        else:
            self._fail_for_good(error or ErrorCode.UNSUPPORTED_VERSION)
        return ErrorCode.NONE

    def complete(self) -> None:
        """Handle that the transaction has ended. Without writes no request is needed for it."""
        self.has_writes = False
        self._ends_sent = 0
        self._move(State.READY)

    def in_doubt(self, last: Exception, timeout_ms: int) -> TransactionInDoubt:
        """Return the error of an end that was not answered in time."""
        name = "commit_transaction"
        what = "whether the transaction is committed is not known"
        if self.state is State.ABORTING:
            name, what = "abort_transaction", "the transaction may still be open"
        return TransactionInDoubt(
            f"{named(self.transactional_id, TRANSACTION_KEY)}: no end within max.block.ms"
            f" ({timeout_ms}): {last}: {what}; call {name} again"
        )

    # -- failures

    def on_refused(self, error: BrokerError) -> None:
        """Handle that a request could not be asked at all: there is no coordinator for it, or the
        brokers do not serve it."""
        is_abortable = self.state is State.IN_TRANSACTION and error.code not in FATAL
        kind = TransactionAbortable if is_abortable else ProducerFailed
        self.fail(kind, str(error), error)

    def fail(self, kind: type[TransactionError], text: str, cause: Exception | None = None) -> None:
        """Handle that the transaction can only be aborted, or the producer only be closed."""
        is_fatal = issubclass(kind, ProducerFailed)
        if self.state is State.FATAL_ERROR or (self.has_failed and not is_fatal):
            return
        self._failure = (kind, text, cause)
        self._move(State.FATAL_ERROR if is_fatal else State.ABORTABLE_ERROR)

    def _fail_as_stale(self, cause: Exception | None = None) -> None:
        self.fail(TransactionAbortable, f"{ErrorCode.INVALID_PRODUCER_EPOCH.name}: {STALE}", cause)

    def _fail_for_good(self, error: ErrorCode, cause: Exception | None = None) -> None:
        doubt = ""
        if self.state is State.COMMITTING and self._ends_sent > 1:
            doubt = ", and whether the transaction is committed is not known"
        if error in FENCED:
            self.fail(
                ProducerFenced,
                f"{error.name}: another producer with this transactional.id has begun, or an"
                f" operator has aborted the transaction{doubt}",
                cause,
            )
        else:
            why = WHY.get(error, "the coordinator refuses this producer")
            self.fail(ProducerFailed, f"{error.name}: {why}{doubt}", cause)

    def _move(self, state: State) -> None:
        assert state in TRANSITIONS[self.state], f"{self.state} to {state}"
        self.state = state
