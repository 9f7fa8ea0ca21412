"""A transactional id as a state machine without I/O: requests in, decisions out.

A `Transaction` is what the log stores of an id. It is immutable. Each function here takes the
present one, a request and the wall clock, and returns a `Decision`: an error, or the next
`Transaction` to store. The caller stores it, and answers once the record is committed and replayed.
Until then it answers CONCURRENT_TRANSACTIONS to what would change the id (the caller knows what is
being written; this module does not). So no producer hears of a state that a later coordinator might
not know, and a failed write leaves nothing to undo.

Fencing: each request of a producer names its id and epoch, and only the present pair may change
anything. INIT_PRODUCER_ID raises the epoch. If a transaction is open then, it is aborted first,
with an epoch of its own. So a marker is never older than a record that the old producer may still
have under way. Only the producer whose transaction it was may get that epoch: if it is the one that
begins the session (KIP-360), or the transaction was aborted after its time (KIP-588), and no other
has begun one since.

Kafka reserves the last epoch for such an abort, and so do we: a producer gets at most `EPOCH_LAST`,
and after that a new producer id.

In the second protocol (KIP-890) each end raises the epoch, so a late record of one transaction
cannot enter the next. There a request that ends a transaction and is sent again has the epoch
before the present one. `last_producer_epoch` is that epoch, if the answer with the present one may
have been lost, else -1: after an abort for another session, nobody may take it for its own.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from minibroker.broker.transactions.states import DECIDED, IDLE, TRANSITIONS, State
from minibroker.protocol.constants import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_TIMESTAMP,
    PRODUCER_EPOCH_MAX,
    ErrorCode,
)
from minibroker.protocol.messages.transactions import FIRST_PROTOCOL, SECOND_PROTOCOL
from minibroker.protocol.types import TopicPartition

EPOCH_LAST: Final = PRODUCER_EPOCH_MAX - 1  # that a producer is given


class Producer(NamedTuple):
    """A producer's id and epoch."""

    producer_id: int
    epoch: int


NO_PRODUCER: Final = Producer(NO_PRODUCER_ID, NO_PRODUCER_EPOCH)


@dataclass(frozen=True, slots=True)
class Transaction:
    """A transactional id as stored.

    `producer_id` and `producer_epoch` are those of its producer, or of the markers while it is
    decided. `next_producer_id` is the id after a decided transaction whose epochs are used up.
    `previous_producer_id` is the id before the present one. `started_ms` is when the first
    partition was added; `version` is the protocol of the producer's last change.
    """

    producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: State = State.EMPTY
    partitions: frozenset[TopicPartition] = frozenset()
    started_ms: int = NO_TIMESTAMP
    updated_ms: int = NO_TIMESTAMP
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    last_producer_epoch: int = NO_PRODUCER_EPOCH
    version: int = FIRST_PROTOCOL

    @property
    def producer(self) -> Producer:
        """The producer that may write, once the transaction is not decided any more."""
        if self.next_producer_id != NO_PRODUCER_ID:
            return Producer(self.next_producer_id, 0)
        return Producer(self.producer_id, self.producer_epoch)

    @property
    def is_sound(self) -> bool:
        """Whether the fields may occur together."""
        return (
            self.producer_id >= 0
            and 0 <= self.producer_epoch <= PRODUCER_EPOCH_MAX
            and (self.state in DECIDED or self.next_producer_id == NO_PRODUCER_ID)
            and (self.state not in IDLE or not self.partitions)
            and self.state is not State.DEAD
        )

    def is_given(self, producer: Producer) -> bool:
        """Whether this is the present pair of id and epoch, and one that a producer may have."""
        is_present = producer == (self.producer_id, self.producer_epoch)
        return is_present and producer.epoch <= EPOCH_LAST

    @property
    def is_open(self) -> bool:
        """Whether partitions may have records of a transaction that has no marker yet."""
        return self.state is State.ONGOING or self.state in DECIDED

    @property
    def are_epochs_used_up(self) -> bool:
        """Whether the next producer needs a new id."""
        return self.producer_epoch >= EPOCH_LAST

    def is_late(self, now_ms: int) -> bool:
        """Whether the transaction is open for longer than its timeout."""
        return self.state is State.ONGOING and now_ms > self.started_ms + self.timeout_ms

    def is_expired(self, oldest_ms: int) -> bool:
        """Whether the id was last used before a time, and no transaction is open."""
        return self.state in IDLE and self.updated_ms < oldest_ms

    def moved(self, state: State, now_ms: int, **fields: object) -> "Transaction":
        """Return the transaction after a legal move, with other values for some fields."""
        assert state in TRANSITIONS[self.state], f"{self.state} -> {state}"
        moved = replace(self, state=state, updated_ms=now_ms, **fields)  # type: ignore[arg-type]
        assert moved.is_sound, moved
        if moved.producer_id == self.producer_id:
            assert moved.producer_epoch >= self.producer_epoch, "an epoch never falls"
        return moved


class Decision(NamedTuple):
    """What a request leads to: the transaction to store, if any, and the answer after that.

    Without a `write` the error is the answer at once. `producer` is that of the answer.
    """

    error: ErrorCode = ErrorCode.NONE
    write: Transaction | None = None
    producer: Producer = NO_PRODUCER


def refused(error: ErrorCode) -> Decision:
    """Return the decision to answer with an error, and to change nothing."""
    return Decision(error)


# -- INIT_PRODUCER_ID


def begin_session(
    present: Transaction | None,
    expected: Producer | None,
    timeout_ms: int,
    fresh_id: int,
    now_ms: int,
) -> Decision:
    """Begin a producer's session, which fences all earlier ones of the id.

    `expected` is the producer that the request continues (KIP-360): another one has begun a session
    since if it is not the present one. `fresh_id` is a producer id that no producer had; it is used
    only if it is needed (`needs_fresh_id`). An open transaction is aborted first; the producer gets
    CONCURRENT_TRANSACTIONS, and asks again. If it is the one that had the transaction, it gets the
    epoch of the abort.
    """
    if present is None:
        new = Transaction(fresh_id, 0, timeout_ms, updated_ms=now_ms)
        return Decision(write=new, producer=new.producer)
    if expected is not None and not _may_continue(present, expected):
        return refused(ErrorCode.PRODUCER_FENCED)
    if present.state in DECIDED:
        return refused(ErrorCode.CONCURRENT_TRANSACTIONS)
    if present.state is State.ONGOING:
        if expected is None:
            return Decision(ErrorCode.CONCURRENT_TRANSACTIONS, abort_unasked(present, now_ms))
        return Decision(ErrorCode.CONCURRENT_TRANSACTIONS, abort_to_go_on(present, now_ms))
    producer_id, epoch = present.producer_id, present.producer_epoch + 1
    previous_id = present.previous_producer_id
    last_epoch = expected.epoch if expected is not None else NO_PRODUCER_EPOCH
    if _is_session_retried(present, expected) and present.producer_epoch <= EPOCH_LAST:
        epoch, last_epoch = present.producer_epoch, present.last_producer_epoch
    elif present.are_epochs_used_up:
        producer_id, epoch, previous_id = fresh_id, 0, producer_id
    session = present.moved(
        State.EMPTY,
        now_ms,
        producer_id=producer_id,
        producer_epoch=epoch,
        previous_producer_id=previous_id,
        last_producer_epoch=last_epoch,
        timeout_ms=timeout_ms,
        started_ms=NO_TIMESTAMP,
    )
    return Decision(write=session, producer=session.producer)


def needs_fresh_id(present: Transaction | None) -> bool:
    """Whether the next session or end of an id may need a new producer id."""
    return present is None or present.are_epochs_used_up


def _may_continue(present: Transaction, expected: Producer) -> bool:
    """Whether no other producer has begun a session since `expected` had its own."""
    is_present = expected == (present.producer_id, present.producer_epoch)
    return is_present or _is_session_retried(present, expected)


def _is_session_retried(present: Transaction, expected: Producer | None) -> bool:
    """Whether a producer asks again for a session, because it did not get the answer, or because
    its transaction is aborted first."""
    if expected is None or expected.epoch != present.last_producer_epoch:
        return False
    return _is_successor(present, expected) and present.state is not State.ONGOING


def _is_successor(present: Transaction, before: Producer) -> bool:
    """Whether the present producer directly follows another one, by its id and epoch."""
    if before.producer_id == present.producer_id:
        return before.epoch + 1 == present.producer_epoch
    is_rotated = before.producer_id == present.previous_producer_id
    return is_rotated and before.epoch >= EPOCH_LAST and present.producer_epoch == 0


# -- ADD_PARTITIONS_TO_TXN, ADD_OFFSETS_TO_TXN


def add_partitions(
    present: Transaction | None,
    producer: Producer,
    partitions: Collection[TopicPartition],
    version: int,
    now_ms: int,
) -> Decision:
    """Add partitions, before the producer writes to them; the first one opens the transaction.

    While one is decided, whoever asks is to ask again, as in Kafka: the producer may already have
    the id that follows (`Transaction.next_producer_id`).
    """
    if present is not None and present.state in DECIDED:
        return refused(ErrorCode.CONCURRENT_TRANSACTIONS)
    if error := _error_of(present, producer):
        return refused(error)
    assert present is not None
    if not partitions:
        return Decision()
    if present.state is State.ONGOING:
        if present.partitions.issuperset(partitions):
            return Decision()
        return Decision(
            write=present.moved(
                State.ONGOING,
                now_ms,
                partitions=present.partitions.union(partitions),
                version=version,
            )
        )
    opened = present.moved(
        State.ONGOING,
        now_ms,
        partitions=frozenset(partitions),
        started_ms=now_ms,
        version=version,
        last_producer_epoch=NO_PRODUCER_EPOCH,
    )
    return Decision(write=opened)


def verify_error(present: Transaction | None, producer: Producer) -> ErrorCode:
    """Return the error of a request that only asks for partitions (`Transaction.partitions`)."""
    return _error_of(present, producer)


def _error_of(present: Transaction | None, producer: Producer) -> ErrorCode:
    if present is None or present.producer_id != producer.producer_id:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if not present.is_given(producer):
        return ErrorCode.PRODUCER_FENCED
    if present.state in DECIDED:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    return ErrorCode.NONE


# -- END_TXN, and ends that no producer asks for


def end(
    present: Transaction | None,
    producer: Producer,
    version: int,
    fresh_id: int,
    now_ms: int,
    *,
    is_commit: bool,
) -> Decision:
    """Decide a transaction. `fresh_id` as in `begin_session`.

    While it is decided, both outcomes are answered with CONCURRENT_TRANSACTIONS: as in Kafka, the
    opposite one is refused once the markers are written, and not before.
    """
    if present is None:
        return refused(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    if version >= SECOND_PROTOCOL:
        return _end_raising(present, producer, fresh_id, now_ms, is_commit=is_commit)
    if present.producer_id != producer.producer_id:
        return refused(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    if not present.is_given(producer):
        return refused(ErrorCode.PRODUCER_FENCED)
    if present.state is State.ONGOING:
        write = present.moved(_decided(is_commit), now_ms, version=FIRST_PROTOCOL)
        return Decision(write=write, producer=write.producer)
    return _end_again(present, is_commit=is_commit)


def _end_raising(
    present: Transaction, producer: Producer, fresh_id: int, now_ms: int, *, is_commit: bool
) -> Decision:
    """Decide a transaction in the second protocol: with the next epoch, and again the same if the
    producer did not get the answer."""
    if _is_end_retried(present, producer):
        return _end_again(present, is_commit=is_commit)
    if producer.producer_id not in (present.producer_id, present.producer.producer_id):
        return refused(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    if present.state in DECIDED:  # whatever the epoch: it may be the next end (KAFKA-18464)
        return refused(ErrorCode.CONCURRENT_TRANSACTIONS)
    if not present.is_given(producer):
        return refused(ErrorCode.PRODUCER_FENCED)
    if present.state is not State.ONGOING and is_commit:
        return refused(ErrorCode.INVALID_TXN_STATE)
    is_open = present.state is State.ONGOING
    write = present.moved(
        _decided(is_commit),
        now_ms,
        producer_epoch=present.producer_epoch + 1,
        last_producer_epoch=present.producer_epoch,
        next_producer_id=fresh_id if present.are_epochs_used_up else NO_PRODUCER_ID,
        started_ms=present.started_ms if is_open else now_ms,
        version=SECOND_PROTOCOL,
    )
    return Decision(write=write, producer=write.producer)


def _is_end_retried(present: Transaction, producer: Producer) -> bool:
    """Whether a producer ends again what it has ended, since it did not get the answer, or what was
    aborted after its time."""
    if producer.epoch != present.last_producer_epoch or present.state in (
        State.ONGOING,
        State.EMPTY,
    ):
        return False
    return _is_successor(present, producer) and present.producer.epoch <= EPOCH_LAST


def _end_again(present: Transaction, *, is_commit: bool) -> Decision:
    """Answer a request to end what is decided, or not open."""
    if present.state in DECIDED:
        return refused(ErrorCode.CONCURRENT_TRANSACTIONS)
    if present.state is not (State.COMPLETE_COMMIT if is_commit else State.COMPLETE_ABORT):
        return refused(ErrorCode.INVALID_TXN_STATE)
    return Decision(producer=present.producer)


def _decided(is_commit: bool) -> State:
    return State.PREPARE_COMMIT if is_commit else State.PREPARE_ABORT


def abort_unasked(present: Transaction, now_ms: int) -> Transaction:
    """Return an open transaction as aborted with the next epoch, which fences its producer: another
    session begins, or an operator ends it."""
    return present.moved(
        State.PREPARE_ABORT,
        now_ms,
        producer_epoch=present.producer_epoch + 1,
        last_producer_epoch=NO_PRODUCER_EPOCH,
    )


def abort_to_go_on(present: Transaction, now_ms: int) -> Transaction:
    """Return an open transaction as aborted because its own producer begins a session, or its time
    is over. Its producer may go on with the next epoch, once it asks for it: by beginning a
    session or, in the second protocol, by an abort. The marker has that epoch, too, as in the
    second protocol."""
    return present.moved(
        State.PREPARE_ABORT,
        now_ms,
        producer_epoch=present.producer_epoch + 1,
        last_producer_epoch=present.producer_epoch,
        version=SECOND_PROTOCOL,
    )


def complete(present: Transaction, now_ms: int) -> Transaction:
    """Return a decided transaction once every partition has its marker."""
    is_commit = present.state is State.PREPARE_COMMIT
    producer_id, epoch = present.producer
    is_rotated = producer_id != present.producer_id
    return present.moved(
        State.COMPLETE_COMMIT if is_commit else State.COMPLETE_ABORT,
        now_ms,
        producer_id=producer_id,
        producer_epoch=epoch,
        previous_producer_id=present.producer_id if is_rotated else present.previous_producer_id,
        next_producer_id=NO_PRODUCER_ID,
        partitions=frozenset(),
    )
