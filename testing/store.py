"""One broker's way to a shared metadata store, which a simulation can cut or hold.

Several simulated brokers share one `MemoryStore`; each sees it through a `StoreLink` of its own.
Two faults, and what they may do (nothing else was promised to survive):

* `cut`: a request does not arrive. Nothing of it is done, and the caller learns that after
  `TIMEOUT_S` (`StoreUnavailable`), as one of SQLite does whose write lock is taken.
* `hold`: requests and answers wait for `heal`. A renewal that was sent in good time may so be done
  too late, and a write that was done may be known late: the caller sees neither. `hold_requests`
  and `hold_answers` do the same to one direction.

An answer that was on its way when the link was cut waits for `heal` too, so that
`StoreUnavailable` keeps saying that nothing was written.
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
    Outcome,
    Put,
    Snapshot,
    StoreError,
    StoreUnavailable,
)

T = TypeVar("T")

TIMEOUT_S: Final = 1.0


class StoreLink:
    """A `MetadataStore` that is another one, some time away.

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
        """Lose all requests from now on."""
        self.hold()
        self._is_cut = True

    def hold(self) -> None:
        """Let all requests and answers wait from now on."""
        self._is_cut = False
        self.hold_requests()
        self.hold_answers()

    def hold_requests(self) -> None:
        """Let all requests wait from now on; answers that are under way arrive."""
        if self._sendable.is_set():
            self._sendable = trio.Event()

    def hold_answers(self) -> None:
        """Let all answers wait from now on; what is asked is done."""
        if self._answerable.is_set():
            self._answerable = trio.Event()

    def heal(self) -> None:
        """Let everything through, also what waits."""
        self._is_cut = False
        self._sendable.set()
        self._answerable.set()

    async def get(self, prefix: str) -> Snapshot:
        return await self._call(lambda: self._store.get(prefix))

    async def transact(self, compare: Sequence[Compare], writes: Sequence[Put | Delete]) -> Outcome:
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
