"""Producer ids that no producer had before, claimed in blocks of 1000 (PID-17).

A broker claims a block in the store by compare-and-set before it gives away any of its ids. So ids
are unique across brokers and restarts, and a restart wastes the unused rest of a block. The broker
claims the next block when 90 % of the current one are used. If the block arrives too late, the
broker has no id to give, and the client asks again.
"""

from typing import Final

from minibroker.broker.controller import entries
from minibroker.broker.metadata.store import Compare, MetadataStore, StoreError

BLOCK_SIZE: Final = 1_000
PREFETCH_POINT: Final = 100  # ids left when the next block is asked for: 90 % are used
ID_MAX: Final = 2**63 - 1


class ProducerIdsExhausted(StoreError):
    """All producer ids are used up, or the counter in the store is wrong."""


class ProducerIds:
    """The current block of ids, and the next one once it is claimed."""

    def __init__(self) -> None:
        self._ids = range(0)
        self._next_block: range | None = None
        self._is_asked = False

    def next_id(self) -> int | None:
        """Return the next id; None while no block is there."""
        if not self._ids and self._next_block is not None:
            self._ids, self._next_block = self._next_block, None
        if not self._ids:
            return None
        producer_id, self._ids = self._ids[0], self._ids[1:]
        return producer_id

    def ask(self) -> bool:
        """Return whether to claim a block now; true once, then false until that block is added."""
        is_due = len(self._ids) <= PREFETCH_POINT and self._next_block is None
        if not is_due or self._is_asked:
            return False
        self._is_asked = True
        return True

    def add(self, block: range) -> None:
        """Add a block that was claimed in the store."""
        assert self._next_block is None
        assert not self._ids or block.start >= self._ids.stop, "blocks only grow"
        self._next_block = block
        self._is_asked = False


def next_block(first: int) -> range:
    """Return the block from the store's counter on. Raises `ProducerIdsExhausted` near 2^63."""
    if not 0 <= first <= ID_MAX - BLOCK_SIZE:
        raise ProducerIdsExhausted(f"no block of producer ids is left at {first}")
    return range(first, first + BLOCK_SIZE)


async def claim_block(store: MetadataStore) -> range:
    """Claim the next block of producer ids by compare-and-set, and return it (PID-17)."""
    key = entries.PRODUCER_IDS
    while True:
        found = (await store.get(key)).entries
        block = next_block(entries.read_producer_ids(found))
        compare = [Compare(key, entries.revision_of(found, key))]
        outcome = await store.transact(compare, [entries.producer_ids_put(block.stop)])
        if outcome.succeeded:
            return block
