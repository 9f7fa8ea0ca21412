"""The interface of a metadata store: a small map of keys that changes by transaction.

Keys are text with `/` between their parts; values are bytes that the store does not interpret.
Every transaction that writes gets the next revision, and its entries carry it. A transaction names
the revisions that it was planned on; if one of them has changed, nothing is written. Only this
comparison excludes two brokers, or an old and a new controller, from each other; so it is part of
the write, never a check before it.

A broker's liveness is a lease. The lease ends if it is not renewed for its time to live. The
entries written with it are then removed, in one transaction with a revision of its own. The store
counts from the renewal; the holder must count from the moment it asked for it, which is never
later. So the holder knows in time when to stop. That knowledge permits no write: a holder that was
stopped and goes on is refused by the comparison, or by `LeaseLost`.

All stores (memory, SQLite, etcd) pass one contract suite. What the entries mean is known only to
`broker.controller`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

ABSENT: Final = 0  # in `Compare`: the key does not exist
NO_LEASE: Final = 0  # of an entry that stays until it is deleted


class StoreError(Exception):
    """The store cannot be used: damaged, foreign, not writable. The broker stops."""


class StoreUnavailable(StoreError):
    """The store did not answer or had no room; nothing was written, and a retry may help."""


class StoreFull(StoreUnavailable):
    """The store's disk is full. A running broker waits for room; one that starts ends."""


class TransactionTooLarge(StoreError):
    """The transaction is too large; nothing was written. A smaller one may succeed."""


class LeaseLost(Exception):
    """The lease has ended, and the entries written with it are gone: get another one."""


class Entry(NamedTuple):
    """A value, and the revision of the transaction that wrote it."""

    value: bytes
    revision: int


class Compare(NamedTuple):
    """Requires that `key` is still at `revision`; `ABSENT`: that it does not exist."""

    key: str
    revision: int


class Put(NamedTuple):
    """Writes a key, whether it exists or not. The entry is removed when `lease` ends."""

    key: str
    value: bytes
    lease: int = NO_LEASE


class Delete(NamedTuple):
    """Removes a key; no error if it does not exist."""

    key: str


class Lease(NamedTuple):
    """A lease of `ttl_s` seconds from the last renewal. Ids are never used twice."""

    id: int
    ttl_s: float


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All entries under a prefix at one moment, by key in ascending order."""

    revision: int
    entries: Mapping[str, Entry]


@dataclass(frozen=True, slots=True)
class TransactionOutcome:
    """Whether the transaction was made; `revision` is the store's after it."""

    succeeded: bool
    revision: int


class MetadataStore(Protocol):
    """The store. Unless an implementation says otherwise, a transaction that succeeded survives a
    crash of the machine.

    Every call raises `StoreUnavailable` if the store did not answer for about a second, but it may
    take longer than that: a caller that needs an answer by some time cancels the call then. After
    a cancellation it is open whether the call was executed.
    """

    async def get(self, prefix: str) -> Snapshot:
        """Return the entries whose keys begin with `prefix`. Raises `StoreError`.

        An entry whose lease has just ended may still be among them, but not after a transaction or
        a watch did not find it.
        """

    async def transact(
        self, compare: Sequence[Compare], writes: Sequence[Put | Delete]
    ) -> TransactionOutcome:
        """Make all `writes` if every comparison holds, else none.

        Entries whose lease has ended are removed before anything is compared. Raises `StoreError`,
        `TransactionTooLarge`, and `LeaseLost` if a lease of `writes` has ended; then nothing is
        written. No key may be written twice in one transaction.
        """

    async def watch(self, prefix: str, after: int) -> Snapshot:
        """Wait until the store's revision is above `after`, then return what `get` would.

        The result is the state, not the changes: a late caller misses intermediate states, never
        the last one. The change need not be under `prefix`. Raises `StoreError`.
        """

    async def grant(self, ttl_s: float) -> Lease:
        """Make a lease that ends `ttl_s` seconds from now unless it is renewed.

        Raises `StoreError`.
        """

    async def renew(self, lease_id: int) -> None:
        """Extend a lease to its full time from now. Raises `LeaseLost`, `StoreError`."""

    async def revoke(self, lease_id: int) -> None:
        """End a lease now; no error if it has ended. Raises `StoreError`."""

    async def close(self) -> None:
        """Close the store; its leases stay. May be called twice."""
