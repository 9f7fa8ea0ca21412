"""Execution of a group's callbacks: beside the client's loop, one at a time.

A callback may call the consumer, except for the methods that call callbacks: `poll`, `unsubscribe`
and `close`.

A poll that is interrupted leaves its callback running. The next poll asks for the same callback
again, and gets the outcome of the running one; another callback waits for its end.
"""

from collections.abc import Callable
from contextlib import suppress
from threading import current_thread
from typing import Generic, TypeAlias, TypeVar

import trio
from outcome import Outcome

from minibroker.client.errors import ClientError
from minibroker.client.groups.consumer_group import INSIDE
from minibroker.client.groups.consumer_group import Callback as TrioCallback
from minibroker.protocol.types import TopicPartition

Callback: TypeAlias = Callable[[list[TopicPartition]], object]
C = TypeVar("C", bound=Callback)


class Callbacks(Generic[C]):
    """The callbacks of one consumer. All methods but `is_inside` are called in the loop."""

    def __init__(self, start: "Callable[[CallbackRun[C]], None]", caller: Callable[[], object]):
        self._start = start  # runs a callback, and has its `finish` called
        self._caller = caller  # returns the present thread or task
        self._run: CallbackRun[C] | None = None  # whose outcome no poll has got yet

    def wrap(self, callback: C | None) -> TrioCallback | None:
        """Return the callback as an async function for the loop, which other tasks use
        meanwhile."""
        if callback is None:
            return None

        async def call_beside(partitions: list[TopicPartition]) -> None:
            run = self._run
            if run is not None:
                await run.ended.wait()
            if run is None or (run.callback, run.partitions) != (callback, partitions):
                run = self._run = CallbackRun(callback, partitions)
                self._start(run)
            await run.ended.wait()  # a close waits no longer than for a callback of the loop
            self._run = None
            if run.error is not None:
                raise run.error

        return call_beside

    @property
    def is_inside(self) -> bool:
        """Whether the caller is a callback."""
        run = self._run
        return run is not None and run.caller is not None and run.caller is self._caller()

    def check_outside(self) -> None:
        """Raise `ClientError` in a callback that calls a method which waits for that callback."""
        if self.is_inside:
            raise ClientError(INSIDE)


class CallbackRun(Generic[C]):
    """One call of a callback. `caller` is the thread or task in which it runs."""

    def __init__(self, callback: C, partitions: list[TopicPartition]) -> None:
        self.callback = callback
        self.partitions = partitions
        self.caller: object = None
        self.error: BaseException | None = None
        self.ended = trio.Event()
        self._token = trio.lowlevel.current_trio_token()

    def finish(self, error: BaseException | None) -> None:
        """Record that the callback has ended. Called from any thread."""
        self.caller = None
        self.error = error
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(self.ended.set)


def start_in_thread(run: CallbackRun[Callback]) -> None:
    """Run it in a thread of trio's, even if nothing waits for it any more."""

    def call() -> None:
        run.caller = current_thread()
        run.callback(run.partitions)

    def deliver(outcome: Outcome[None]) -> None:
        run.finish(getattr(outcome, "error", None))

    trio.lowlevel.start_thread_soon(call, deliver)


def thread_callbacks() -> Callbacks[Callback]:
    """Return the executor of callbacks that are plain functions."""
    return Callbacks(start_in_thread, current_thread)
