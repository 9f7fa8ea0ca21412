"""What the broker needs of a metadata store: a small map of keys that changes by transaction.

Keys are text with `/` between their parts, values are bytes that the store does not look into.
Every transaction that writes gets the next revision, and the entries it wrote carry it. A
transaction names the revisions that it was planned upon; if one of them has moved, nothing at all
is written. This is the only means by which two brokers, or an old and a new controller, exclude
each other, so it is never weakened to a check before the write.

The stores under this interface (memory, SQLite) share one contract suite. Semantics of topics and
brokers live above, once, in `broker.controller`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

ABSENT: Final = 0  # the revision that an absent key is compared with


class StoreError(Exception):
    """The store cannot be used: damaged, foreign, not writable. The broker stops."""


class StoreUnavailable(StoreError):
    """The store did not answer or had no room; nothing was written, and a retry may help."""


class Entry(NamedTuple):
    """A value, and the revision of the transaction that wrote it."""

    value: bytes
    revision: int


class Compare(NamedTuple):
    """Demands that `key` is still at `revision`; `ABSENT`: that there is no such key."""

    key: str
    revision: int


class Put(NamedTuple):
    """Writes a key, whether it is there or not."""

    key: str
    value: bytes


class Delete(NamedTuple):
    """Removes a key; no error if it is not there."""

    key: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All entries under a prefix at one moment, by key in ascending order."""

    revision: int
    entries: Mapping[str, Entry]


@dataclass(frozen=True, slots=True)
class Outcome:
    """Whether the transaction was made; `revision` is the store's after it."""

    succeeded: bool
    revision: int


class MetadataStore(Protocol):
    """Durable unless it says otherwise: what succeeded is there after a crash of the machine."""

    async def get(self, prefix: str) -> Snapshot:
        """The entries whose keys begin with `prefix`. Raises `StoreError`."""

    async def transact(self, compare: Sequence[Compare], writes: Sequence[Put | Delete]) -> Outcome:
        """Make all `writes` if every comparison holds, else none. Raises `StoreError`.

        No key may be written twice in one transaction.
        """

    async def close(self) -> None:
        """Give up the store; may be called twice."""
