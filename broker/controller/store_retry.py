"""Calls of the metadata store that are repeated until it answers.

Several tasks use the store, and all of them fail repeatedly while it is unavailable. They share one
`StoreRetry`, so that the log has one line when that begins and one when it ends. The store counts
as unavailable from the first failure until every caller that failed has had an answer, or has given
up: a store that accepts no writes may still answer reads.
"""

import logging
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar, TypeVarTuple

import trio

from minibroker.broker.metadata.store import (
    LeaseLost,
    MetadataStore,
    Snapshot,
    StoreError,
    StoreFull,
    StoreUnavailable,
)

BACKOFF_S: Final = 0.05
BACKOFF_S_MAX: Final = 1.0
LINE_EVERY_S: Final = 30.0

log = logging.getLogger(__name__)
Result = TypeVar("Result")
Arguments = TypeVarTuple("Arguments")


class StoreRetry:
    """See the head of this module. One for each broker."""

    def __init__(self, node_id: int) -> None:
        self.name = f"[Broker id={node_id}]"
        self.retries = 0
        self._waiting: dict[object, None] = {}  # callers that failed and had no answer since
        self._away_since: float | None = None
        self._why = ""

    async def ask(
        self, call: Callable[[*Arguments], Awaitable[Result]], *arguments: *Arguments
    ) -> Result:
        """Repeat the call until the store answers, and return the answer. Raises what `call` raises
        except `StoreUnavailable`."""

        async def attempt(_: object) -> Result:
            return await call(*arguments)

        return await self._repeat(attempt)

    async def ask_at_start(
        self, call: Callable[[*Arguments], Awaitable[Result]], *arguments: *Arguments
    ) -> Result:
        """Do what `ask` does for a broker that starts: it serves nothing yet.

        Raises `StoreError` if the store's disk is full, which says what an operator must do. While
        the start waits, a line says so every half minute.
        """
        next_line_at = trio.current_time() + LINE_EVERY_S

        async def attempt(_: object) -> Result:
            nonlocal next_line_at
            try:
                return await call(*arguments)
            except StoreFull as error:
                raise StoreError(str(error)) from None
            except StoreUnavailable as error:
                if trio.current_time() >= next_line_at:
                    next_line_at += LINE_EVERY_S
                    log.warning("%s The start still waits: %s", self.name, error)
                raise

        return await self._repeat(attempt)

    async def watch(self, store: MetadataStore, prefix: str, after: int) -> Snapshot:
        """Call `store.watch`. After a failure read first: a watch answers only when something
        changes, and a read shows at once that the store is back."""

        async def attempt(caller: object) -> Snapshot:
            if caller in self._waiting:
                snapshot = await store.get(prefix)
                self.on_answer(caller)
                if snapshot.revision > after:
                    return snapshot
            return await store.watch(prefix, after)

        return await self._repeat(attempt)

    def on_failure(self, caller: object, error: StoreUnavailable) -> None:
        """Record that the store did not answer a caller, which will try again."""
        self._waiting[caller] = None
        self._why = str(error)
        if self._away_since is None:
            self._away_since = trio.current_time()
            log.warning(
                "%s The metadata store cannot be used: %s. What is led and followed here goes on;"
                " until it is back nothing is elected, created or deleted, and no in-sync set"
                " changes",
                self.name,
                error,
            )

    def on_answer(self, caller: object) -> None:
        """Record that the store answered a caller."""
        self.forget(caller)
        if self._away_since is not None and not self._waiting:
            away_s = trio.current_time() - self._away_since
            log.info("%s The metadata store can be used again, after %.1f s", self.name, away_s)
            self._away_since = None

    def forget(self, caller: object) -> None:
        """Forget a caller that does not try again."""
        self._waiting.pop(caller, None)

    def trouble(self) -> str:
        """Return why the store is unavailable, for requests that wait for it; "" if it is not."""
        return "" if self._away_since is None else f"the metadata store cannot be used: {self._why}"

    async def _repeat(self, attempt: Callable[[object], Awaitable[Result]]) -> Result:
        caller, backoff_s = object(), BACKOFF_S
        try:
            while True:
                try:
                    answer = await attempt(caller)
                except StoreUnavailable as error:
                    self.retries += 1
                    self.on_failure(caller, error)
                except LeaseLost:
                    self.on_answer(caller)
                    raise
                else:
                    self.on_answer(caller)
                    return answer
                await trio.sleep(backoff_s)
                backoff_s = min(2 * backoff_s, BACKOFF_S_MAX)
        finally:
            self.forget(caller)
