"""A broker's link to a shared metadata store, which a simulation can cut or hold.

Several simulated brokers share one `MemoryStore`; each sees it through its own `StoreLink`. There
are two faults, with these effects (the store promises to survive no others):

* `cut`: a request does not arrive. Nothing of it is done, and the caller gets `StoreUnavailable`
  after `TIMEOUT_S`, as with SQLite when another process holds the write lock.
* `hold`: requests and answers wait for `heal`. A renewal that was sent in time may thus be done too
  late, and the caller may learn late that a write was done: the caller can see neither.
  `hold_requests` and `hold_answers` do the same to one direction.

An answer that was in flight when the link was cut waits for `heal` too, so `StoreUnavailable` still
means that nothing was written.
"""

import math
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

import trio

from minibroker.broker.metadata.store import (
    Compare,
    Delete,
    Lease,
    LeaseLost,
    MetadataStore,
    Put,
    Snapshot,
    StoreError,
    StoreUnavailable,
    TransactionOutcome,
)

T = TypeVar("T")

TIMEOUT_S: Final = 1.0


class StoreLink:
    """A `MetadataStore` that forwards to another one, with a delay.

    Each direction of a call takes up to `delay_s_max` seconds, drawn from `rng`.
    """

    def __init__(
        self, store: MetadataStore, rng: random.Random, delay_s_max: float = 0.001
    ) -> None:
        self._store = store
        self._rng = rng
        self.delay_s_max = delay_s_max
        self._is_cut = False
        self._sendable = trio.Event()
        self._answerable = trio.Event()
        self.heal()

    def cut(self) -> None:
        """Drop all requests from now on."""
        self.hold()
        self._is_cut = True

    def hold(self) -> None:
        """Delay all requests and answers from now on."""
        self._is_cut = False
        self.hold_requests()
        self.hold_answers()

    def hold_requests(self) -> None:
        """Delay all requests from now on; answers in flight arrive."""
        if self._sendable.is_set():
            self._sendable = trio.Event()

    def hold_answers(self) -> None:
        """Delay all answers from now on; requests are executed."""
        if self._answerable.is_set():
            self._answerable = trio.Event()

    def heal(self) -> None:
        """Deliver everything, also what waits."""
        self._is_cut = False
        self._sendable.set()
        self._answerable.set()

    async def get(self, prefix: str) -> Snapshot:
        return await self._call(lambda: self._store.get(prefix))

    async def transact(
        self, compare: Sequence[Compare], writes: Sequence[Put | Delete]
    ) -> TransactionOutcome:
        return await self._call(lambda: self._store.transact(compare, writes))

    async def watch(self, prefix: str, after: int) -> Snapshot:
        return await self._call(lambda: self._store.watch(prefix, after))

    async def grant(self, ttl_s: float) -> Lease:
        return await self._call(lambda: self._store.grant(ttl_s))

    async def renew(self, lease_id: int) -> None:
        await self._call(lambda: self._store.renew(lease_id))

    async def revoke(self, lease_id: int) -> None:
        await self._call(lambda: self._store.revoke(lease_id))

    async def close(self) -> None:
        await trio.lowlevel.checkpoint()

    async def _call(self, call: Callable[[], Awaitable[T]]) -> T:
        await self._send()
        try:
            result = await call()
        except (StoreError, LeaseLost):
            await self._answer()
            raise
        await self._answer()
        return result

    async def _send(self) -> None:
        await trio.sleep(self._delay())
        while not self._sendable.is_set():
            with trio.move_on_after(TIMEOUT_S if self._is_cut else math.inf):
                await self._sendable.wait()
            if self._is_cut:
                raise StoreUnavailable("the metadata store does not answer")

    async def _answer(self) -> None:
        await trio.sleep(self._delay())
        await self._answerable.wait()

    def _delay(self) -> float:
        return self._rng.uniform(0, self.delay_s_max)
