"""A thread that runs a trio loop, behind a context manager, and calls into it.

The blocking clients are the trio ones behind such a portal, so there is one implementation of
everything. A call is a task in the loop and a future in the caller's thread; an interrupt of the
caller (Ctrl-C) cancels the task. A client's own scope is held open by a task too (`hold`), because
a nursery must be left by the task that entered it.

`run_soon` is the way in that costs least and waits for nothing. Handing over every record by it
would still cost more than sending the record: see client/blocking/producer.py.
"""

from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager
from threading import Thread
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

import trio

from minibroker.client.errors import ClientClosed

T = TypeVar("T")


class Portal:
    """Used with `with`; leaving it ends the loop and the thread."""

    def __init__(self, name: str) -> None:
        self._thread = Thread(target=self._run, name=name, daemon=True)
        self._started: Future[None] = Future()
        self._token: trio.lowlevel.TrioToken | None = None
        self._nursery: trio.Nursery
        self._is_open = False

    def __enter__(self) -> Self:
        self._thread.start()
        self._started.result()
        return self

    def __exit__(self, *_: object) -> None:
        self.run_soon(self._stop)
        self._thread.join()

    def run_soon(self, function: Callable[[], object]) -> None:
        """Have a function called in the loop, soon; it must not raise."""
        if self._token is None:
            raise ClientClosed("this client was not entered with a `with` statement")
        try:
            self._token.run_sync_soon(function)
        except trio.RunFinishedError:
            raise ClientClosed("the client's loop has ended") from None

    def call(self, function: Callable[..., Awaitable[T]], *arguments: Any) -> T:
        """Run an async function in the loop and wait for what it returns or raises."""
        future: Future[T] = Future()
        scope = trio.CancelScope()

        async def run() -> None:
            try:
                with scope:
                    future.set_result(await function(*arguments))
            except Exception as error:
                future.set_exception(error)
            finally:
                if not future.done():
                    future.set_exception(ClientClosed("the client was closed during the call"))

        self._start(run, future)
        try:
            return future.result()
        except BaseException:
            if not future.done():  # the wait was interrupted, not the call
                self.run_soon(scope.cancel)
            raise

    def start(self, run: Callable[[], Awaitable[object]]) -> None:
        """Run a task in the loop until the portal closes."""
        self._start(run, Future())

    def hold(self, manager: AbstractAsyncContextManager[T]) -> "Held[T]":
        """Enter a context manager in the loop and keep it entered."""
        held = Held(self, manager)
        self._start(held.own, held.entered)
        held.entered.result()
        return held

    def _start(self, run: Callable[[], Awaitable[object]], future: "Future[Any]") -> None:
        def start() -> None:
            if self._is_open:
                self._nursery.start_soon(run)
            else:
                future.set_exception(ClientClosed("the client is closed"))

        self.run_soon(start)

    def _stop(self) -> None:
        self._is_open = False
        self._nursery.cancel_scope.cancel()

    def _run(self) -> None:
        trio.run(self._main)

    async def _main(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        async with trio.open_nursery() as self._nursery:
            self._is_open = True
            self._started.set_result(None)
            await trio.sleep_forever()


class Held(Generic[T]):
    """A context manager that a task in the loop has entered."""

    def __init__(self, portal: Portal, manager: AbstractAsyncContextManager[T]) -> None:
        self._portal = portal
        self._manager = manager
        self._released = trio.Event()
        self._scope = trio.CancelScope()
        self._body_error: BaseException | None = None
        self.entered: Future[T] = Future()
        self._left: Future[None] = Future()

    async def own(self) -> None:
        """The task."""
        try:
            with self._scope:
                async with self._manager as value:
                    self.entered.set_result(value)
                    await self._released.wait()
                    if self._body_error is not None:
                        raise self._body_error
        except Exception as error:
            if not self.entered.done():
                self.entered.set_exception(error)
            elif error is not self._body_error:
                self._left.set_exception(error)
        finally:
            for future in (self.entered, self._left):
                if not future.done():
                    future.set_result(None)  # type: ignore[arg-type]

    def release(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Leave it, as `__exit__` with these arguments would; raises what leaving raises."""
        if error is None or isinstance(error, Exception):
            self._body_error = error
            self._portal.run_soon(self._released.set)
        else:  # interrupted: at once
            self._portal.run_soon(self._scope.cancel)
        try:
            self._left.result()
        except BaseException:
            if not self._left.done():
                self._portal.run_soon(self._scope.cancel)
            raise
