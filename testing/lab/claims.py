"""Blocks of producer ids, claimed step by step by several brokers.

A claim reads the counter in the metadata store and writes it if no other broker has written since
(PID-17). The lab runs the broker's own coroutine. The store here lets it continue by one call at
each step, so that a scenario can interleave the steps of two brokers.
"""

from collections.abc import Coroutine, Generator, Sequence
from types import coroutine
from typing import Any

from minibroker.broker.controller.entries import PRODUCER_IDS, read_producer_ids
from minibroker.broker.controller.producer_ids import ProducerIds, claim_block, next_block
from minibroker.broker.metadata.memory_store import MemoryStore
from minibroker.broker.metadata.store import Compare, Delete, Put, Snapshot, TransactionOutcome


@coroutine
def _next_step() -> Generator[None]:
    yield


class SteppedStore(MemoryStore):
    """A store whose calls each wait for a step. Some methods are not implemented.

    Without `compares` it writes whatever has changed since the reading.
    """

    def __init__(self, *, compares: bool) -> None:
        super().__init__()
        self._compares = compares

    async def get(self, prefix: str) -> Snapshot:
        """Return the entries at the next step."""
        await _next_step()
        return self._snapshot(prefix)

    async def transact(
        self, compare: Sequence[Compare], writes: Sequence[Put | Delete]
    ) -> TransactionOutcome:
        """Write at the next step, if every comparison holds then."""
        await _next_step()
        if self._compares and any(self._revision_of(key) != known for key, known in compare):
            return TransactionOutcome(False, self._revision)
        self._write(writes)
        return TransactionOutcome(True, self._revision)

    @property
    def first_free_id(self) -> int:
        """Return the counter: the first producer id that no broker has claimed."""
        return read_producer_ids(self._snapshot(PRODUCER_IDS).entries)


class BlockClaim:
    """One broker's claims, one after another. The ids of each block go to `ids`."""

    def __init__(self, store: SteppedStore, ids: ProducerIds) -> None:
        self._store = store
        self._ids = ids
        self._claim: Coroutine[Any, Any, range] | None = None
        self._block = range(0)  # the block that it is about to claim
        self._has_read = False

    def step(self) -> str:
        """Read the counter, or write it; return what happened."""
        if self._claim is None:
            if not self._ids.ask():
                return "needs no block of producer ids"
            self._claim = claim_block(self._store)
            self._claim.send(None)
        try:
            self._claim.send(None)
        except StopIteration as done:
            self._claim, self._has_read = None, False
            self._ids.add(done.value)
            return f"claims the producer ids {_text(done.value)}"
        self._has_read = not self._has_read
        if self._has_read:
            self._block = next_block(self._store.first_free_id)
            return f"reads that producer ids are free from {self._block.start}"
        return f"does not get {_text(self._block)}: another broker has written since"

    def end(self) -> None:
        """End the claims with the process."""
        if self._claim is not None:
            self._claim.close()


def _text(block: range) -> str:
    return f"{block.start} to {block.stop - 1}"
