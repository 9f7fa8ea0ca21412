"""The contents of one partition of `__transaction_state`: its transactional ids.

THE RULE of a coordinator: only the replay of committed records changes this table. That holds when
a new leader loads its partition, at run time, and on a follower. So every later coordinator knows
what producers were told, and finishes what was decided.

The table also keeps the keys of pending records, which are in the log but not known to be
committed, until they are replayed or the leader's epoch ends. An id with a pending record takes no
other change: one write at a time decides what comes after it.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from minibroker.broker.transactions.states import DECIDED, State
from minibroker.broker.transactions.transaction import Transaction

# What an id and a partition of it take in memory beside their texts, about.
TRANSACTION_BYTES: Final = 600
PARTITION_BYTES: Final = 200
PENDING_BYTES: Final = 300


class TransactionTable:
    """See the head of this module."""

    def __init__(self) -> None:
        self._transactions: dict[str, Transaction] = {}
        self._ongoing: dict[str, None] = {}
        self._decided: dict[str, None] = {}
        self._pending: dict[str, int] = {}  # the offset of the newest record of each id
        self._stored_bytes = self._pending_bytes = 0
        self._newly_decided: dict[str, None] | None = None  # while it is reported

    # -- changes

    def replay(self, offset: int, key: str, value: Transaction | None) -> None:
        """Apply the record at an offset of the partition; without a value the id has expired."""
        if self._pending.get(key) == offset:
            del self._pending[key]
            self._pending_bytes -= PENDING_BYTES + text_bytes(key)
        before = self._transactions.pop(key, None)
        if before is not None:
            self._stored_bytes -= _bytes_of(key, before)
            self._ongoing.pop(key, None)
            self._decided.pop(key, None)
        if value is None:
            return
        self._transactions[key] = value
        self._stored_bytes += _bytes_of(key, value)
        if value.state is State.ONGOING:
            self._ongoing[key] = None
        elif value.state in DECIDED:
            self._decided[key] = None
            if self._newly_decided is not None:
                self._newly_decided[key] = None

    def report_decided(self) -> None:
        """From now on, remember which transactions are decided, for `pop_decided`."""
        self._newly_decided = {}

    def pop_decided(self) -> list[str]:
        """Return the ids whose transaction was decided since the last call."""
        if not self._newly_decided:
            return []
        decided, self._newly_decided = list(self._newly_decided), {}
        return decided

    def ignore_decided(self) -> None:
        """Remember that no longer."""
        self._newly_decided = None

    def add_pending(self, key: str, offset: int) -> None:
        """Add an id whose record was appended at an offset, and is not known to be committed."""
        if key not in self._pending:
            self._pending_bytes += PENDING_BYTES + text_bytes(key)
        self._pending[key] = offset

    def forget_pending(self) -> None:
        """Forget all pending records: the leader's epoch is over, and the next leader decides about
        them."""
        self._pending.clear()
        self._pending_bytes = 0

    # -- queries

    def get(self, transactional_id: str) -> Transaction | None:
        """Return an id's state; None if it is not known."""
        return self._transactions.get(transactional_id)

    def is_pending(self, transactional_id: str) -> bool:
        """Whether a record of this id is pending."""
        return transactional_id in self._pending

    @property
    def has_pending(self) -> bool:
        """Whether a record of any id is pending."""
        return bool(self._pending)

    @property
    def transactions(self) -> Mapping[str, Transaction]:
        """All ids; valid until the next replay."""
        return self._transactions

    @property
    def decided(self) -> Iterable[str]:
        """The ids whose transaction is decided and not complete; valid until the next replay."""
        return self._decided.keys()

    @property
    def ongoing(self) -> Iterable[str]:
        """The ids with an undecided transaction; valid until the next replay."""
        return self._ongoing.keys()

    def late(self, now_ms: int, ids: Iterable[str]) -> Iterator[tuple[str, Transaction]]:
        """Yield those of these ids whose transaction is open for longer than its timeout."""
        for key in ids:
            present = self._transactions.get(key)
            if present is not None and present.is_late(now_ms) and key not in self._pending:
                yield key, present

    def expired(self, oldest_ms: int, ids: Iterable[str]) -> Iterator[str]:
        """Yield those of these ids that were last used before `oldest_ms`, and are idle."""
        for key in ids:
            present = self._transactions.get(key)
            if present is not None and present.is_expired(oldest_ms) and key not in self._pending:
                yield key

    @property
    def held_bytes(self) -> int:
        """The memory that all of it takes, about."""
        return self._stored_bytes + self._pending_bytes

    def statistics(self) -> tuple[int, int]:
        """Return how many ids there are, and how many of them have an open transaction."""
        return len(self._transactions), len(self._ongoing) + len(self._decided)


def _bytes_of(key: str, value: Transaction) -> int:
    return TRANSACTION_BYTES + text_bytes(key) + PARTITION_BYTES * len(value.partitions)


def text_bytes(text: str) -> int:
    """Return how many bytes a text takes in memory at most, beside what each text takes."""
    return len(text) if text.isascii() else 4 * len(text)
