"""A client in a thread of its own: its trio loop, and the way for other threads to call into it.

The blocking clients and those for asyncio are the trio ones behind such a portal, so there is one
implementation of everything. The thread enters the client's context manager, stays in it until
`close` or `abort`, and leaves it: a nursery must be left by the task that entered it. A call is a
task in the loop; the caller waits for its `Answer`. There are two kinds of waiting: a thread waits
at a `BlockingAnswer` (`open`, `call`, `close`, `finish` and `join` here), a task of asyncio at an
`AwaitedAnswer` (the same methods in client/asyncio/portal.py). Both share the `start_` methods and
all that runs in the loop.

    NEW --open--> OPENING --> OPEN --close--> LEAVING --> ENDED
                     |         |                 |          ^
                     `---------`-----abort-------`----------'
    any --fork--> FORKED, in the child: every call raises, and the end does nothing

`close` leaves the manager in order and waits for that; `abort` cancels it and waits for nothing.
A client that is dropped while it is open is aborted, and a ResourceWarning says so, as Python does
for files; the log says how many records were dropped. Calls are taken in OPEN and LEAVING, for
callbacks may call while the manager is left. Each state is one assignment, by the thread named in
`State`, so an interrupt comes before it or after it.

Python can interrupt a thread (KeyboardInterrupt, any signal handler) between any two lines, so
cleanup never relies on a particular line having run:

* A call that is interrupted is cancelled; it may still take effect. Where a result must not get
  lost, the loop keeps it until the caller has it (client/blocking/consumer.py).
* An interrupted `open` or `close` aborts. If the interrupt comes before their first line, the
  portal stays open; it is aborted when its owner is collected, or when the process ends.
* `Thread.start` and `Thread.join` are not safe against an interrupt inside of them: the new thread
  may hang, or count as ended while it runs. So a helper thread, which Python never interrupts,
  starts the loop's thread, and `join` waits for an `Answer`.
* The caller's thread and the loop's share no lock that either could keep: an interrupted thread
  does not release it, and a signal handler that calls the client again waits for it for ever.
  `concurrent.futures.Future` has one, so calls have a `BlockingAnswer` instead.

anyio's BlockingPortal is not used: it makes two round trips for a call, abandons an interrupted
call without cancelling it, and knows nothing of forks (docs/decisions/design.md has the figures).
"""

import atexit
import os
import warnings
import weakref
from _thread import allocate_lock, start_new_thread
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, suppress
from enum import Enum
from threading import Thread, current_thread
from typing import Any, Final, Generic, TypeVar

import trio

from minibroker.client.errors import ClientClosed, ClientError

T = TypeVar("T")

# How long the end of an interrupted client may take. It waits for no broker, but a consumer gets a
# second to leave its group, and a callback may block the loop.
ABORT_S: Final = 2.0

# The portals whose loops run in this process.
_open_portals: "set[Portal]" = set()


class State(Enum):
    """Of a portal, and who enters it: the thread that opens it, the loop's, or a fork's child."""

    NEW = "new"
    OPENING = "opening"  # the opener
    OPEN = "open"  # the loop
    LEAVING = "leaving"  # the loop
    ENDED = "ended"  # the loop
    FORKED = "forked"  # the child


TRANSITIONS: Final = {
    State.NEW: {State.OPENING},
    State.OPENING: {State.OPEN, State.ENDED, State.FORKED},
    State.OPEN: {State.LEAVING, State.FORKED},
    State.LEAVING: {State.ENDED, State.FORKED},
    State.ENDED: {State.FORKED},
    State.FORKED: set(),
}
REFUSALS: Final = {
    State.NEW: "this client was not started: use `with`, or call start()",
    State.OPENING: "this client is not started yet",
    State.ENDED: "this client is closed",
    State.FORKED: "this client belongs to the process that forked this one: make another one here",
}


class Portal:
    """The loop of one client. `open` enters `manager`. `on_end` is called when the loop has ended,
    in its thread, and in the child of a fork: it must not block."""

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
        self._running: set[trio.lowlevel.Task] = set()  # the calls
        self._scope = trio.CancelScope()  # around the manager
        self._close_requested = trio.Event()
        self._block_error: BaseException | None = None  # what stands for it in the loop
        self._failure: BaseException | None = None  # of the manager
        self._entered: Answer[None]
        self._end_waiters: list[Answer[None]] = []
        self._is_aborted = False
        self.state = State.NEW

    # -- the caller's threads: what waits, by a gate

    def open(self, owner: object) -> None:
        """Start the loop and enter the manager. Raises what entering raises.

        The portal is aborted when `owner` is collected, which is never if the manager refers to it.
        """
        self.check_new()
        entered: BlockingAnswer[None] = BlockingAnswer()
        try:
            self.start_open(owner, entered)
            entered.wait()
        except BaseException:
            self.abort()
            raise

    def call(self, function: Callable[..., Awaitable[T]], *arguments: Any) -> T:
        """Run an async function in the loop and wait for what it returns or raises.

        Raises `ClientClosed` before `open`, after `close` or if it ends meanwhile, and
        `ClientError` in the loop's own thread, which would wait for itself.
        """
        self.check_outside()
        answer: BlockingAnswer[T] = BlockingAnswer()
        scope = trio.CancelScope()
        try:
            self.start_call(answer, scope, function, arguments)
            return answer.wait()
        except BaseException:
            self.cancel_call(answer, scope)
            raise

    def close(self, error: BaseException | None) -> None:
        """Leave the manager as a `with` block that ended with `error` does, and end the loop.

        Waits for what the manager does in its end, unless `error` is an interrupt, and raises what
        that raises; notes that it adds are added to `error`. An interrupt ends the waiting.
        """
        if self.state is State.FORKED:
            return
        self.check_outside()
        try:
            if is_interrupt(error):
                self.abort()
                self.join(ABORT_S)
                return
            self.start_close(error)
            self.join()
        except BaseException:  # an interrupt
            self.abort()
            self.join(ABORT_S)
            raise
        self.raise_failure(error)

    def finish(self, close: Callable[..., Awaitable[object]], *arguments: Any) -> None:
        """Call the client's own `close` in the loop, then leave the manager and end the loop.

        Does nothing more for a client that has ended. Raises what either raises, and `ClientClosed`
        for a client that was never opened, or belongs to the parent of a fork.
        """
        self.check_outside()
        try:
            try:
                self.call(close, *arguments)
            except ClientClosed:
                if not self.is_ending:
                    raise
        except BaseException as error:
            self.close(error)
            raise
        self.close(None)

    def join(self, timeout_s: float | None = None) -> None:
        """Wait for the end of the loop, if it runs."""
        end: BlockingAnswer[None] = BlockingAnswer()
        if self.start_join(end):
            end.wait_until_set(timeout_s)

    # -- the caller's threads: what waits for nothing

    def start_open(self, owner: object, entered: "Answer[None]") -> None:
        """Start the loop; `entered` is set once the manager is entered. See `open`."""
        self._become(State.OPENING)
        self._entered = entered
        weakref.finalize(owner, _drop, weakref.ref(self)).atexit = False
        start_new_thread(self._start, ())

    def start_call(
        self,
        answer: "Answer[T]",
        scope: trio.CancelScope,
        function: Callable[..., Awaitable[T]],
        arguments: tuple[Any, ...],
    ) -> None:
        """Run an async function in the loop, within the scope. Raises `ClientClosed`."""

        async def run() -> None:
            task = trio.lowlevel.current_task()
            self._running.add(task)
            try:
                with scope:
                    answer.set_result(await function(*arguments))
            except Exception as error:
                answer.set_error(error)
            finally:
                self._running.discard(task)
                if not answer.is_set:
                    answer.set_error(ClientClosed("the client was closed during the call"))

        def start() -> None:
            if self.state in (State.OPEN, State.LEAVING):
                self._calls.start_soon(run)
            else:
                answer.set_error(ClientClosed(REFUSALS[self.state]))

        self.run_soon(start)

    def cancel_call(self, answer: "Answer[Any]", scope: trio.CancelScope) -> None:
        """The caller was interrupted or cancelled, or the call could not start."""
        if not answer.is_set:
            with suppress(ClientClosed):
                self.run_soon(scope.cancel)

    def start_close(self, error: BaseException | None) -> None:
        """Have the loop leave the manager, with something that stands for `error`."""
        # A stand-in: raised in the loop, the error itself would get a longer traceback.
        if error is not None:
            self._block_error = SystemExit() if isinstance(error, SystemExit) else BlockFailed()
        with suppress(ClientClosed):  # it may have failed, and ended, before
            self.run_soon(self._close_requested.set)

    def start_join(self, end: "Answer[None]") -> bool:
        """Have `end` set when the loop ends; False if it does not run."""
        self._end_waiters.append(end)
        return self in _open_portals  # a loop that ends from here on sees the answer

    def raise_failure(self, error: BaseException | None) -> None:
        """After the end: what the manager raised. Adds its notes to the block's `error`."""
        for note in getattr(self._block_error, "__notes__", ()):
            if error is not None:
                error.add_note(note)
        if self._failure is not None:
            raise self._failure

    def abort(self) -> None:
        """End at once: cancel the manager and all calls. Waits for nothing; may be repeated."""
        self._is_aborted = True  # `_main` looks at it once there is a token
        with suppress(ClientClosed):
            self.run_soon(self._scope.cancel)

    def drop(self) -> None:
        """Nobody will close it any more: abort, and say so if it is open."""
        is_unclosed = self.state is State.OPEN and not self._is_aborted
        self.abort()
        if is_unclosed:
            text = f"unclosed {self._thread.name}: call close(), or use a `with` block"
            warnings.warn(text, ResourceWarning, stacklevel=2)

    def check_new(self) -> None:
        """Raise `ClientError` if it was opened before."""
        if self.state is not State.NEW:
            raise ClientError("a client is started once: make another one")

    def check_outside(self) -> None:
        """Raise `ClientError` in the loop's own thread, which would wait for itself."""
        if current_thread() is self._thread:
            raise ClientError("on_delivery runs in the client's loop: it cannot wait for that loop")

    @property
    def is_ending(self) -> bool:
        """Whether the manager is being left, or was."""
        return self.state in (State.LEAVING, State.ENDED)

    def run_soon(self, function: Callable[[], object]) -> None:
        """Have a function called in the loop, soon; it must not raise. The cheapest way in.

        Raises `ClientClosed`.
        """
        token = self._token
        if token is None or self.state is State.FORKED:
            raise ClientClosed(REFUSALS[self.state])
        try:
            token.run_sync_soon(function)
        except trio.RunFinishedError:
            raise ClientClosed(REFUSALS[State.ENDED]) from None

    def on_fork(self) -> None:
        """This is a child process after a fork: the loop stayed in the parent."""
        self._become(State.FORKED)
        self._on_end()

    def _become(self, state: State) -> None:
        assert state in TRANSITIONS[self.state], f"{self.state} -> {state}"
        self.state = state

    # -- the loop's thread

    def _start(self) -> None:
        """In the helper thread."""
        try:
            self._thread.start()
        except BaseException as error:  # the system gives no more threads, or the process ends
            self._failure = error
            self._end()

    def _run(self) -> None:
        _open_portals.add(self)
        try:
            trio.run(self._main)
        except BaseException as error:  # the caller's thread has to know, whatever it is
            self._failure = _unwrapped(error)
        self._end()

    def _end(self) -> None:
        _open_portals.discard(self)
        self._on_end()
        if not self._entered.is_set:
            self._entered.set_error(
                self._failure or ClientClosed("interrupted while it was opened")
            )
        for answer in self._end_waiters:
            answer.set_result(None)

    async def _main(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        failure: BaseException | None = None
        async with trio.open_nursery() as self._calls:
            if self._is_aborted:
                self._scope.cancel()
            try:
                with self._scope:
                    await self._run_manager()
            except trio.Cancelled:
                raise
            except BaseException as error:  # raised below, where no nursery wraps it
                failure = error
            finally:
                self._become(State.ENDED)
                self._calls.cancel_scope.cancel()
        if failure is not None and failure is not self._block_error:
            raise failure

    async def _run_manager(self) -> None:
        async with self._manager:
            self._become(State.OPEN)
            self._entered.set_result(None)
            try:
                await self._close_requested.wait()
            finally:
                self._become(State.LEAVING)
            if self._block_error is not None:
                raise self._block_error


class BlockFailed(Exception):
    """Stands in the loop for the exception that ended the `with` block."""


class Answer(Generic[T]):
    """What a call returned or raised: set once, by the loop. `_wake` ends the waiting for it."""

    def __init__(self) -> None:
        self._result: T
        self._error: BaseException | None = None
        self.is_set = False

    def set_result(self, result: T) -> None:
        """In the loop."""
        self._result = result
        self.is_set = True
        self._wake()

    def set_error(self, error: BaseException) -> None:
        """In the loop."""
        self._error = error
        self.is_set = True
        self._wake()

    def get(self) -> T:
        """Return or raise it, once it is set."""
        if self._error is not None:
            try:
                raise self._error
            finally:
                del self  # the traceback would refer to the error, and this to both
        return self._result

    def _wake(self) -> None:
        raise AssertionError("each kind of waiting has its own")


class BlockingAnswer(Answer[T]):
    """An answer that one thread waits for.

    The lock is a gate that the loop opens. Waiting is one call of C, which an interrupt ends.
    """

    def __init__(self) -> None:
        super().__init__()
        self._gate = allocate_lock()
        self._gate.acquire()

    def wait_until_set(self, timeout_s: float | None = None) -> None:
        """Wait for it, and not longer than that."""
        self._gate.acquire(timeout=-1 if timeout_s is None else timeout_s)

    def wait(self) -> T:
        """Wait for it, and return or raise it."""
        self.wait_until_set()
        return self.get()

    def _wake(self) -> None:
        self._gate.release()


def is_interrupt(error: BaseException | None) -> bool:
    """Whether the client must end without waiting (KeyboardInterrupt, GeneratorExit)."""
    return error is not None and not isinstance(error, Exception | SystemExit)


def _unwrapped(error: BaseException) -> BaseException:
    """`sys.exit` in a callback ends the program, not a group of groups; the rest as it is."""
    found = error
    while isinstance(found, BaseExceptionGroup) and len(found.exceptions) == 1:
        found = found.exceptions[0]
    return found if isinstance(found, SystemExit | KeyboardInterrupt) else error


def _drop(portal: "weakref.ref[Portal]") -> None:
    """The owner was collected."""
    if (found := portal()) is not None:
        found.drop()


def _drop_all() -> None:
    """The process ends: what was not closed ends now, and says what it drops."""
    portals = list(_open_portals)
    for portal in portals:
        portal.drop()
    for portal in portals:
        portal.join(ABORT_S)


def _after_fork_in_child() -> None:
    for portal in list(_open_portals):
        portal.on_fork()
    _open_portals.clear()


atexit.register(_drop_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
