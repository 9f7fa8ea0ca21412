"""A client in a thread of its own: its trio loop, and the way for other threads to call into it.

The blocking clients are the trio ones behind such a portal, so there is one implementation of
everything. The thread enters the client's context manager, stays in it until `close` or `abort`,
and leaves it: a nursery must be left by the task that entered it. A call is a task in the loop and
a future in the caller's thread.

    NEW --open--> OPEN --close--> LEAVING --> ENDED        close: leave in order, and wait for it
                   |                 |          ^
                   `--abort----------`----------'          abort: cancel, wait for nothing
    any --fork--> FOREIGN                                  in the child: every call raises, the end
                                                           does nothing

A thread can be interrupted (KeyboardInterrupt) between any two lines of this package, so nothing
depends on a line being reached:

* A call that is interrupted is cancelled; it may still take effect. Where a result must not get
  lost, the loop keeps it until the caller has it (client/blocking/consumer.py).
* An interrupted `open` or `close` aborts. What interrupts them before their first line leaves the
  portal open; it is aborted when its owner is collected, or when the process ends.
* No thread but the loop's holds a lock: an interrupted one would not release it.

anyio's BlockingPortal is not used: it makes two round trips for a call, abandons an interrupted
call without cancelling it, and knows nothing of forks (docs/decisions/design.md has the figures).
"""

import atexit
import os
import weakref
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, suppress
from threading import Thread, get_ident
from typing import Any, Final, TypeVar

import trio

from minibroker.client.errors import ClientClosed, ClientError

T = TypeVar("T")

# How long the end of an interrupted client may take. It waits for no broker, but a consumer gets a
# second to leave its group, and a callback may keep the loop.
ABORT_S: Final = 2.0

NOT_ENTERED: Final = "this client was not entered with a `with` statement"
CLOSED: Final = "this client is closed"

# The portals whose loops run in this process.
_open_portals: "set[Portal]" = set()


class Portal:
    """The loop of one client. `manager` is entered by `open`; `on_end` is called in the thread that
    notices first that no call can succeed any more: it must not block."""

    def __init__(
        self,
        name: str,
        manager: AbstractAsyncContextManager[object],
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        self._manager = manager
        self._on_end = on_end
        self._thread = Thread(target=self._run, name=name, daemon=True)
        self._token: trio.lowlevel.TrioToken | None = None
        self._calls: trio.Nursery
        self._running: dict[trio.lowlevel.Task, trio.CancelScope] = {}  # the calls
        self._released = trio.Event()
        self._scope = trio.CancelScope()  # around the manager
        self._is_aborted = False
        self._is_foreign = False
        self._takes_calls = False
        self._body_error: BaseException | None = None
        self._entered: Future[None] = Future()
        self._left: Future[None] = Future()

    # -- the caller's threads

    def open(self, owner: object) -> None:
        """Start the loop and enter the manager. Raises what entering raises.

        The portal is aborted when `owner` is collected; so nothing in the loop may refer to it.
        """
        try:
            weakref.finalize(owner, self.abort).atexit = False  # `_abort_all` does that
            _open_portals.add(self)
            self._thread.start()
            self._entered.result()
        except BaseException:
            self.abort()
            raise

    def close(self, error: BaseException | None) -> None:
        """Leave the manager as a `with` block that ended with `error` does, and end the loop.

        Waits for what the manager does in its end, unless `error` is an interrupt, and raises what
        that raises. An interrupt meanwhile ends the waiting.
        """
        if self._is_foreign:
            return
        try:
            if is_interrupt(error):
                self.abort()
                self.join(ABORT_S)
                return
            self._body_error = error
            with suppress(ClientClosed):  # it may have failed, and ended, before
                self._soon(self._released.set)
            self._thread.join()
        except BaseException:  # an interrupt
            self.abort()
            self.join(ABORT_S)
            raise
        self._left.result()

    def abort(self) -> None:
        """End at once: cancel the manager and all calls. Waits for nothing; may be repeated."""
        if not self._is_foreign:
            self._is_aborted = True  # `_main` looks at it once there is a token
            with suppress(ClientClosed):
                self._soon(self._scope.cancel)

    def call(self, function: Callable[..., Awaitable[T]], *arguments: Any) -> T:
        """Run an async function in the loop and wait for what it returns or raises.

        Raises `ClientClosed` before `open`, after `close` or if it ends meanwhile, and
        `ClientError` in the loop's own thread, which would wait for itself.
        """
        if get_ident() == self._thread.ident:
            raise ClientError(
                "on_delivery is called by the client's loop, and must not wait for it"
            )
        future: Future[T] = Future()
        scope = trio.CancelScope()

        async def run() -> None:
            task = trio.lowlevel.current_task()
            self._running[task] = scope
            try:
                with scope:
                    future.set_result(await function(*arguments))
            except Exception as error:
                future.set_exception(error)
            finally:
                del self._running[task]
                if not future.done():
                    future.set_exception(ClientClosed("the client was closed during the call"))

        def start() -> None:
            if self._takes_calls:
                self._calls.start_soon(run)
            else:
                future.set_exception(ClientClosed(CLOSED))

        self._soon(start)
        try:
            return future.result()
        except BaseException:
            if not future.done():  # the wait was interrupted, not the call
                with suppress(ClientClosed):
                    self._soon(scope.cancel)
            raise

    def run_soon(self, function: Callable[[], object]) -> None:
        """Have a function called in the loop, soon; it must not raise. The cheapest way in.

        Raises `ClientClosed`.
        """
        self._soon(function)

    def _soon(self, function: Callable[[], object]) -> None:
        if self._is_foreign:
            text = "this client belongs to the process that forked this one: make another one here"
            raise ClientClosed(text)
        if self._token is None:
            raise ClientClosed(NOT_ENTERED)
        try:
            self._token.run_sync_soon(function)
        except trio.RunFinishedError:
            raise ClientClosed(CLOSED) from None

    def become_foreign(self) -> None:
        """This is a child process after a fork: the loop stayed in the parent."""
        self._is_foreign = True
        self._on_end()

    def join(self, timeout_s: float) -> None:
        """Wait for the end of the thread, if it was started."""
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    # -- the loop's thread

    def end_other_calls(self) -> None:
        """Have all calls but the one that asks for it raise `ClientClosed`."""
        for task, scope in self._running.items():
            if task is not trio.lowlevel.current_task():
                scope.cancel()

    def _run(self) -> None:
        failure: BaseException | None = None
        try:
            trio.run(self._main)
        except BaseException as error:  # the caller's thread has to know, whatever it is
            failure = error
        _open_portals.discard(self)
        self._on_end()
        for future in (self._entered, self._left):
            if not future.done():
                if failure is None:
                    future.set_exception(ClientClosed("interrupted while it was opened"))
                else:
                    future.set_exception(failure)

    async def _main(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        failure: BaseException | None = None
        async with trio.open_nursery() as self._calls:
            if self._is_aborted:
                self._scope.cancel()
            try:
                with self._scope:
                    await self._stay()
            except (Exception, SystemExit, KeyboardInterrupt) as error:
                failure = error
            self._takes_calls = False
            self._calls.cancel_scope.cancel()
        if failure is not None and failure is not self._body_error:
            raise failure
        if self._entered.done():
            self._left.set_result(None)

    async def _stay(self) -> None:
        async with self._manager:
            self._takes_calls = True
            self._entered.set_result(None)
            await self._released.wait()
            if self._body_error is not None:
                raise self._body_error


def is_interrupt(error: BaseException | None) -> bool:
    """Whether it ends a program without waiting: `sys.exit` does not, Ctrl-C does."""
    return error is not None and not isinstance(error, Exception | SystemExit)


def _abort_all() -> None:
    """The process ends: what was not closed ends now, and says what it drops."""
    portals = list(_open_portals)
    for portal in portals:
        portal.abort()
    for portal in portals:
        portal.join(ABORT_S)


def _leave_all() -> None:
    """In the child of a fork."""
    for portal in list(_open_portals):
        portal.become_foreign()
    _open_portals.clear()


atexit.register(_abort_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_all)
