"""What the broker needs of a metadata store: a small map of keys that changes by transaction.

Keys are text with `/` between their parts, values are bytes that the store does not look into.
Every transaction that writes gets the next revision, and the entries it wrote carry it. A
transaction names the revisions that it was planned upon; if one of them has moved, nothing at all
is written. This is the only means by which two brokers, or an old and a new controller, exclude
each other, so it is never weakened to a check before the write.

Liveness is a lease: it ends when it was not renewed for its time to live, and the entries that were
written with it vanish with it, in one transaction with a revision of its own. The store counts from
when it did the renewal; the holder must count from when it asked for it, which is never later. That
belief serves the holder to stop in good time. It permits no write: a holder that was stopped and
goes on is refused by the comparison, or by `LeaseLost`, whatever it believes.

The stores under this interface (memory, SQLite, etcd) share one contract suite. Semantics of topics
and brokers live above, once, in `broker.controller`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

ABSENT: Final = 0  # the revision that an absent key is compared with
NO_LEASE: Final = 0  # of an entry that stays until it is deleted


class StoreError(Exception):
    """The store cannot be used: damaged, foreign, not writable. The broker stops."""


class StoreUnavailable(StoreError):
    """The store did not answer or had no room; nothing was written, and a retry may help."""


class TransactionTooLarge(StoreError):
    """The store takes less at once; nothing was written. A part of it may well be taken."""


class LeaseLost(Exception):
    """The lease has ended, and all that was written with it is gone: get another one."""


class Entry(NamedTuple):
    """A value, and the revision of the transaction that wrote it."""

    value: bytes
    revision: int


class Compare(NamedTuple):
    """Demands that `key` is still at `revision`; `ABSENT`: that there is no such key."""

    key: str
    revision: int


class Put(NamedTuple):
    """Writes a key, whether it is there or not; from now on it lives as long as `lease` does."""

    key: str
    value: bytes
    lease: int = NO_LEASE


class Delete(NamedTuple):
    """Removes a key; no error if it is not there."""

    key: str


class Lease(NamedTuple):
    """A promise of `ttl_s` seconds from the last renewal. Ids are never used twice."""

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
    """Durable unless it says otherwise: what succeeded is there after a crash of the machine.

    Every call raises `StoreUnavailable` if the store did not answer for about a second, and may
    take longer than that: who needs an answer by some time cancels the call then. A cancelled
    call was made or not.
    """

    async def get(self, prefix: str) -> Snapshot:
        """The entries whose keys begin with `prefix`. Raises `StoreError`.

        An entry whose lease has just ended may still be among them; never one that a transaction
        or a watch has already seen gone.
        """

    async def transact(
        self, compare: Sequence[Compare], writes: Sequence[Put | Delete]
    ) -> TransactionOutcome:
        """Make all `writes` if every comparison holds, else none.

        Entries whose lease has ended are gone before anything is compared. Raises `StoreError`,
        `TransactionTooLarge`, and `LeaseLost` if a lease that it names has ended; then nothing is
        written. No key may be written twice in one transaction.
        """

    async def watch(self, prefix: str, after: int) -> Snapshot:
        """Wait until the store's revision is above `after`, then return what `get` would.

        It is the state that is told, not the changes: who comes late misses steps, never the
        result. What changed need not lie under `prefix`. Raises `StoreError`.
        """

    async def grant(self, ttl_s: float) -> Lease:
        """A new lease that ends `ttl_s` seconds from now unless it is renewed.

        Raises `StoreError`.
        """

    async def renew(self, lease_id: int) -> None:
        """Let a lease live for its full time again. Raises `LeaseLost`, `StoreError`."""

    async def revoke(self, lease_id: int) -> None:
        """End a lease now; no error if it has ended. Raises `StoreError`."""

    async def close(self) -> None:
        """Give up the store, but no lease; may be called twice."""
