"""The coordinator of a scenario's transactional ids: the broker's state machine of an id, without
the log in which a broker stores it. So it never fails, and what it decides is stored at once.

Producers speak the first protocol of transactions to it: an end does not raise the epoch, so it is
a new session alone that fences an earlier producer.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from minibroker.broker.transactions import transaction
from minibroker.broker.transactions.states import DECIDED, State
from minibroker.broker.transactions.transaction import Decision, Producer, Transaction
from minibroker.protocol.constants import NO_PRODUCER_ID, ErrorCode
from minibroker.protocol.messages.transactions import FIRST_PROTOCOL, TransactionMarker
from minibroker.protocol.types import TopicPartition

TIMEOUT_MS: Final = 60_000
COORDINATOR_EPOCH: Final = 0


class LabCoordinator:
    """See the head of this module. `now_ms` is the wall clock."""

    def __init__(self) -> None:
        self._transactions: dict[str, Transaction] = {}
        self._next_id = 0

    def begin_session(self, transactional_id: str, now_ms: int) -> Decision:
        """Begin a producer's session; an open transaction is aborted first."""
        present = self._transactions.get(transactional_id)
        fresh_id = self._next_id
        decision = transaction.begin_session(present, None, TIMEOUT_MS, fresh_id, now_ms)
        self._next_id += present is None
        return self._stored(transactional_id, decision)

    def add(
        self, transactional_id: str, producer: Producer, name: TopicPartition, now_ms: int
    ) -> ErrorCode:
        """Add a partition to a transaction, before the producer writes to it."""
        present = self._transactions.get(transactional_id)
        decision = transaction.add_partitions(present, producer, [name], FIRST_PROTOCOL, now_ms)
        return self._stored(transactional_id, decision).error

    def verify(self, transactional_id: str, producer: Producer, name: TopicPartition) -> ErrorCode:
        """Tell a partition's leader whether the transaction has the partition."""
        present = self._transactions.get(transactional_id)
        error = transaction.verify_error(present, producer)
        if not error and present is not None and name not in present.partitions:
            return ErrorCode.TRANSACTION_ABORTABLE
        return error

    def end(
        self, transactional_id: str, producer: Producer, now_ms: int, *, is_commit: bool
    ) -> Decision:
        """Decide a transaction. Without a write the error is the answer: none if the producer asks
        again about what has ended so."""
        present = self._transactions.get(transactional_id)
        decision = transaction.end(
            present, producer, FIRST_PROTOCOL, NO_PRODUCER_ID, now_ms, is_commit=is_commit
        )
        return self._stored(transactional_id, decision)

    def markers(self) -> Iterator[tuple[str, TransactionMarker]]:
        """Yield the markers of the transactions that are decided, and not complete."""
        for transactional_id, decided in list(self._transactions.items()):
            if decided.state in DECIDED:
                yield (
                    transactional_id,
                    TransactionMarker(
                        decided.producer_id,
                        decided.producer_epoch,
                        decided.state is State.PREPARE_COMMIT,
                        COORDINATOR_EPOCH,
                        tuple(decided.partitions),
                    ),
                )

    def complete(self, transactional_id: str, now_ms: int) -> None:
        """Complete a transaction, unless it was done: its partition has the marker."""
        decided = self._transactions[transactional_id]
        if decided.state in DECIDED:
            self._transactions[transactional_id] = transaction.complete(decided, now_ms)

    def _stored(self, transactional_id: str, decision: Decision) -> Decision:
        if decision.write is not None:
            self._transactions[transactional_id] = decision.write
        return decision


class SameEpochCoordinator(LabCoordinator):
    """Does not raise the epoch when a session begins, so no earlier producer is fenced."""

    def _stored(self, transactional_id: str, decision: Decision) -> Decision:
        present, write = self._transactions.get(transactional_id), decision.write
        if present is not None and write is not None:
            write = replace(write, producer_epoch=present.producer_epoch)
            decision = Decision(decision.error, write, write.producer)
        return super()._stored(transactional_id, decision)
