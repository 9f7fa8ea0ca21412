"""Callbacks in an event loop of asyncio.

Those of a group run as tasks (client/blocking/callbacks.py has the rules), the others are plain
functions.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Generic, ParamSpec

from minibroker.client.blocking.callbacks import CallbackRun, Callbacks
from minibroker.client.errors import ClientClosed, ClientError
from minibroker.client.groups.consumer_group import Callback

P = ParamSpec("P")


class EventLoopCallback(Generic[P]):
    """A plain function that an event loop calls soon, on request of the client's loop."""

    loop: asyncio.AbstractEventLoop

    def __init__(self, function: Callable[P, object]) -> None:
        self._function = function

    def __call__(self, *arguments: P.args, **keywords: P.kwargs) -> None:
        with suppress(RuntimeError):  # the event loop was closed: nothing waits there any more
            self.loop.call_soon_threadsafe(partial(self._function, *arguments, **keywords))


class CallbackTasks(Callbacks[Callback]):
    """The callbacks of one consumer. They run in the event loop that last called `enter`."""

    def __init__(self) -> None:
        super().__init__(self._start_task, asyncio.current_task)
        self._loop: asyncio.AbstractEventLoop
        self._task: asyncio.Task[None]  # an event loop keeps no reference to its tasks

    def enter(self) -> None:
        """Begin a call that may call callbacks. Raises `ClientError` inside of a callback."""
        self.check_outside()
        self._loop = asyncio.get_running_loop()

    def _start_task(self, run: CallbackRun[Callback]) -> None:
        """Start a task; called in the client's loop."""
        loop = self._loop

        def start() -> None:
            self._task = loop.create_task(_call(run))

        try:
            loop.call_soon_threadsafe(start)
        except RuntimeError:
            run.finish(ClientClosed("the event loop of a callback was closed"))


async def _call(run: CallbackRun[Any]) -> None:
    run.caller = asyncio.current_task()
    error: BaseException | None = None
    try:
        await run.callback(run.partitions)
    except asyncio.CancelledError:
        error = ClientError("a callback was cancelled")
        raise
    except Exception as failure:  # raised by the method that called the callback
        error = failure
    finally:
        run.finish(error)
