"""A client's loop for tasks of asyncio: the portal of the blocking clients, with another way of
waiting.

A task waits for an asyncio future, which the client's loop sets by `call_soon_threadsafe`. The
portal does not belong to an event loop: each call waits in the one that it is called from, so a
client may be used by several, one after the other. If an event loop was closed, no task waits there
any more, and results for it are dropped.

If a task is cancelled, its call is cancelled in the client's loop, and may still take effect. The
task does not wait for that, as an interrupted call of a blocking client does not. The client's loop
keeps results that must not be lost meanwhile (client/blocking/reader.py).
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, TypeVar

import trio

from minibroker.client.blocking.portal import ABORT_S, Answer, Portal, State, is_interrupt
from minibroker.client.errors import ClientClosed

T = TypeVar("T")


class AwaitedAnswer(Answer[T]):
    """An answer that one task of asyncio waits for."""

    def __init__(self) -> None:
        super().__init__()
        self._loop = asyncio.get_running_loop()
        self._future: asyncio.Future[None] = self._loop.create_future()

    async def wait(self) -> T:
        """Wait for it, and return or raise it."""
        await self._future
        return self.get()

    async def wait_until_set(self, timeout_s: float | None = None) -> None:
        """Wait for it, up to a time."""
        await asyncio.wait([self._future], timeout=timeout_s)

    def _wake(self) -> None:
        with suppress(RuntimeError):  # the event loop was closed
            self._loop.call_soon_threadsafe(self._arrive)

    def _arrive(self) -> None:
        if not self._future.done():  # cancelled
            self._future.set_result(None)


class AsyncioPortal:
    """As `Portal`, whose methods of these names block a thread. `portal` has the methods that do
    not wait."""

    def __init__(self, portal: Portal) -> None:
        self.portal = portal

    async def open(self, owner: object) -> None:
        """Start the loop and enter the manager. Raises what entering raises."""
        self.portal.check_new()
        entered: AwaitedAnswer[None] = AwaitedAnswer()
        try:
            self.portal.start_open(owner, entered)
            await entered.wait()
        except BaseException:
            self.portal.abort()
            raise

    async def call(self, function: Callable[..., Awaitable[T]], *arguments: Any) -> T:
        """Run an async function in the client's loop and wait for what it returns or raises."""
        answer: AwaitedAnswer[T] = AwaitedAnswer()
        scope = trio.CancelScope()
        try:
            self.portal.start_call(answer, scope, function, arguments)
            return await answer.wait()
        except BaseException:
            self.portal.cancel_call(answer, scope)
            raise

    async def close(self, error: BaseException | None) -> None:
        """Leave the manager as a block that ended with `error` does, and end the loop.

        A cancellation is an interrupt: it waits for nothing, and so it does if it comes meanwhile.
        """
        portal = self.portal
        if portal.state is State.FORKED:
            return
        try:
            if is_interrupt(error):
                portal.abort()
                await self._join(ABORT_S)
                return
            portal.start_close(error)
            await self._join()
        except BaseException:  # cancelled
            portal.abort()
            await self._join(ABORT_S)
            raise
        portal.raise_failure(error)

    async def finish(self, close: Callable[..., Awaitable[object]], *arguments: Any) -> None:
        """Call the client's own `close` in its loop, then leave the manager and end the loop."""
        try:
            try:
                await self.call(close, *arguments)
            except ClientClosed:
                if not self.portal.is_ending:
                    raise
        except BaseException as error:
            await self.close(error)
            raise
        await self.close(None)

    async def _join(self, timeout_s: float | None = None) -> None:
        end: AwaitedAnswer[None] = AwaitedAnswer()
        if self.portal.start_join(end):
            await end.wait_until_set(timeout_s)
