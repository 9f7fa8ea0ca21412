"""The clients that a program of the adversarial run goes through: blocking, or for asyncio.

The programs are written once, with async methods. A face runs them. `BlockingFace` calls the
blocking client where an async one would be awaited, so that a coroutine never waits and needs no
loop. `AsyncioFace` runs each life in an `asyncio.Runner`, as `asyncio.run` does.

SIGINT interrupts a call. In a blocking one it raises KeyboardInterrupt. With asyncio it cancels the
main task, as another task does that calls `task.cancel()`; where the interrupt is to end the life,
the handler of `asyncio.Runner` gets it: the first cancels the main task, a second raises
KeyboardInterrupt at once. Besides, some calls of asyncio clients run within `asyncio.timeout` or
`asyncio.wait_for`; a call that runs out of that time was interrupted, too.
"""

import asyncio
import inspect
import signal
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from types import FrameType, ModuleType
from typing import Any, Final, Self

import minibroker.client
from minibroker.client import asyncio as asyncio_clients
from minibroker.client import blocking as blocking_clients

CLIENT: Final = str(Path(minibroker.client.__file__).parent)
PROGRAM: Final = str(Path(__file__).parent)
INTERRUPTIONS: Final = (KeyboardInterrupt, asyncio.CancelledError)
# The part of the calls that get a time.
LIMITED: Final = 0.03
CLOSES_LIMITED: Final = 0.4
LIMIT_S: Final = (0.0005, 0.005, 0.05)  # on average


class OutOfTime(asyncio.CancelledError):
    """A call of an asyncio client had no more time, and was cancelled by `asyncio.timeout`."""


class Face(ABC):
    """How a life's program runs and calls its client. `clients` has the classes of the clients."""

    name: str
    clients: ModuleType
    may_wait_for: bool  # whether a call may run in a task of its own

    @abstractmethod
    def run(self, life: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run one life. Raises what it raises, but no interruption."""

    @abstractmethod
    def wrap(self, client: Any) -> Any:
        """A client that is used by `async with`, and whose methods are all async."""

    @abstractmethod
    async def pause(self, seconds: float) -> None:
        """Sleep."""

    @abstractmethod
    def start(self, function: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run a function beside the life."""

    @abstractmethod
    def interrupt(self, frame: FrameType, *, is_last: bool) -> None:
        """Interrupt the call that the life is in; from the handler of SIGINT."""

    def may_interrupt(self, frame: FrameType, work: object, *, is_last: bool) -> bool:
        """Whether an interruption would hit the client or `work`, and not the test's bookkeeping.

        Between the return of `poll` and the assignment of its result no client can help.
        """
        at: FrameType | None = frame
        while at is not None:
            if is_of_client(at) or at.f_code is work:
                return True
            at = at.f_back
        return False

    @abstractmethod
    def go_on(self) -> None:
        """An interruption was caught."""

    @abstractmethod
    async def uninterrupted(self, function: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Call a function to its end, though an interruption may still be on its way."""

    def left(self) -> list[str]:
        """What runs beside the life and should have ended with its client."""
        return []


def drive(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine that never waits."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("it waits for a loop")


class BlockingFace(Face):
    """The blocking clients, with threads."""

    name = "blocking"
    clients = blocking_clients

    def run(self, life: Callable[[], Coroutine[Any, Any, None]]) -> None:
        with suppress(KeyboardInterrupt):
            drive(life())

    def wrap(self, client: Any) -> Any:
        return BlockingCalls(client)

    async def pause(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 (there is no loop)

    def start(self, function: Callable[[], Coroutine[Any, Any, None]]) -> None:
        threading.Thread(target=lambda: drive(function()), name="beside", daemon=True).start()

    def interrupt(self, frame: FrameType, *, is_last: bool) -> None:
        raise KeyboardInterrupt

    def go_on(self) -> None:
        pass  # what was caught is over

    async def uninterrupted(self, function: Callable[[], Coroutine[Any, Any, None]]) -> None:
        await function()


class BlockingCalls:
    """A blocking client with async methods that block."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        method = getattr(self._client, name)

        async def call(*arguments: Any, **options: Any) -> Any:
            return method(*arguments, **{key: plain(each) for key, each in options.items()})

        return call

    async def __aenter__(self) -> Self:
        self._client.__enter__()
        return self

    async def __aexit__(self, *raised: Any) -> None:
        self._client.__exit__(*raised)

    def __aiter__(self) -> "BlockingRecords":
        return BlockingRecords(iter(self._client))


class BlockingRecords:
    """Iteration over a blocking consumer."""

    def __init__(self, records: Iterator[Any]) -> None:
        self._records = records

    async def __anext__(self) -> Any:
        return next(self._records)


def plain(function: Any) -> Any:
    """An async callback as a plain one; anything else as it is."""
    if not inspect.iscoroutinefunction(function):
        return function
    return lambda *arguments: drive(function(*arguments))


class AsyncioFace(Face):
    """The clients for asyncio, with tasks."""

    name = "asyncio"
    clients = asyncio_clients

    def __init__(self, rng: Random, may_interrupt: Callable[[], bool]) -> None:
        self.rng = rng
        self.is_on = may_interrupt
        self.may_wait_for = True
        self._loop: asyncio.AbstractEventLoop
        self._task: asyncio.Task[None]  # the life's
        self._on_sigint: Any  # asyncio's handler
        self._sigint_count = 0
        self._beside: set[asyncio.Task[None]] = set()

    def run(self, life: Callable[[], Coroutine[Any, Any, None]]) -> None:
        # `Runner` takes SIGINT over only from Python's own handler. No signal comes meanwhile.
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        handler = signal.signal(signal.SIGINT, signal.default_int_handler)
        self._sigint_count = 0

        async def live() -> None:
            self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
            self._on_sigint = signal.signal(signal.SIGINT, handler)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
            await life()

        try:
            with suppress(*INTERRUPTIONS), asyncio.Runner() as runner:
                runner.run(live())
        finally:
            signal.signal(signal.SIGINT, handler)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])

    def wrap(self, client: Any) -> Any:
        return AsyncioCalls(client, self)

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def start(self, function: Callable[[], Coroutine[Any, Any, None]]) -> None:
        task = self._loop.create_task(function())
        self._beside.add(task)
        task.add_done_callback(self._beside.discard)

    def may_interrupt(self, frame: FrameType, work: object, *, is_last: bool) -> bool:
        if not is_last or not self._sigint_count:
            return True  # a cancellation comes where the task waits
        if self._sigint_count > 1:
            return False
        at: FrameType | None = frame
        while at is not None and not at.f_code.co_filename.startswith((CLIENT, PROGRAM)):
            at = at.f_back
        return at is None or at.f_code is AsyncioFace.run.__code__ or is_of_client(at)

    def interrupt(self, frame: FrameType, *, is_last: bool) -> None:
        if is_last:
            self._sigint_count += 1
            self._on_sigint(signal.SIGINT, frame)
        else:
            self._task.cancel()
            self._loop.call_soon_threadsafe(lambda: None)  # it may wait in its selector

    def go_on(self) -> None:
        task = asyncio.current_task()
        while task is not None and task.uncancel():
            pass

    async def uninterrupted(self, function: Callable[[], Coroutine[Any, Any, None]]) -> None:
        while True:
            try:
                return await function()
            except asyncio.CancelledError:
                self.go_on()

    def left(self) -> list[str]:
        return [each.get_name() for each in asyncio.all_tasks() - {self._task}]

    async def call(self, call: Coroutine[Any, Any, Any], limited: float = LIMITED) -> Any:
        """Await a call of a client, some only for a while."""
        rng = self.rng
        if not self.is_on() or rng.random() > limited:
            return await call
        limit_s = rng.expovariate(1 / rng.choice(LIMIT_S))
        is_wait_for = self.may_wait_for and rng.random() < 0.5
        try:
            if is_wait_for:
                return await asyncio.wait_for(call, limit_s)
            async with asyncio.timeout(limit_s):
                return await call
        except TimeoutError as error:
            raise OutOfTime from error


def is_of_client(frame: FrameType) -> bool:
    """Whether the client's code runs in this frame."""
    return frame.f_code.co_filename.startswith(CLIENT)


class AsyncioCalls:
    """A client for asyncio, some of whose calls have a time."""

    def __init__(self, client: Any, face: AsyncioFace) -> None:
        self._client = client
        self._face = face

    def __getattr__(self, name: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        method = getattr(self._client, name)

        async def call(*arguments: Any, **options: Any) -> Any:
            limited = CLOSES_LIMITED if name == "close" else LIMITED
            return await self._face.call(method(*arguments, **options), limited)

        return call

    async def __aenter__(self) -> Self:
        await self._client.__aenter__()
        return self

    async def __aexit__(self, *raised: Any) -> None:
        await self._client.__aexit__(*raised)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        return await self._face.call(anext(self._client))
