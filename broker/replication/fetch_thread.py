"""A fetcher's connection that is an OS thread with a blocking socket.

The loop connects and then gives the socket to the thread. The thread sends a request, receives the
answer, decodes it, checks the batches and returns the result: everything that takes time and
touches no log. A task of the loop waits for the result, applies it and queues the next request. So
at any moment either the thread is working or the loop has its result.

The result comes by `run_sync_soon`, with a callback that cannot raise (an exception there would end
the loop). `trio.from_thread.run_sync` would starve: a busy loop releases the interpreter lock and
takes it back before a waiting thread wakes.

Leaving the block shuts the socket down, which ends any wait of the thread. The loop does not wait
for the thread, which may be processing an answer: the thread closes the socket as it ends.
"""

import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from queue import SimpleQueue
from typing import Any, NamedTuple, TypeAlias

import trio

from minibroker.broker.replication.fetch_connection import Connect, FetchConnection, Fetched, check
from minibroker.client.net.blocking_channel import BlockingChannel
from minibroker.client.net.channel import (
    ChannelOptions,
    ConnectionLost,
    RequestTimedOut,
)
from minibroker.client.net.network import connected_socket
from minibroker.protocol.constants import ApiKey
from minibroker.protocol.errors import ProtocolError
from minibroker.protocol.messages.fetch import FetchRequest
from minibroker.protocol.messages.offsets import ListOffsetsRequest, ListOffsetsResponse
from minibroker.protocol.types import Endpoint


class _Outcome(NamedTuple):
    """The result or the error of one call in the thread."""

    result: Any
    error: Exception | None


class ThreadConnection:
    """`FetchConnection` whose work is done in a thread; see the head of this module."""

    def __init__(
        self, connection: socket.socket, endpoint: Endpoint, options: ChannelOptions
    ) -> None:
        self._socket = connection
        self._endpoint = endpoint
        self._channel = BlockingChannel(connection, options.client_id, options.frame_bytes_max)
        self._token = trio.lowlevel.current_trio_token()
        self._calls: SimpleQueue[Callable[[], Any] | None] = SimpleQueue()
        self._outcome: _Outcome | None = None
        self._arrived = trio.Event()
        thread = threading.Thread(target=self._work, name=f"fetcher of {endpoint}", daemon=True)
        thread.start()

    async def negotiate(self) -> None:
        """Agree on API versions with the broker: the first call on a connection."""
        await self._run(self._channel.negotiate)

    async def fetch(self, request: FetchRequest) -> Fetched:
        """FETCH."""
        call = self._channel.call
        fetched: Fetched = await self._run(lambda: check(call(ApiKey.FETCH, request)))
        return fetched

    async def list_offsets(self, request: ListOffsetsRequest) -> ListOffsetsResponse:
        """LIST_OFFSETS."""
        response: ListOffsetsResponse = await self._run(
            lambda: self._channel.call(ApiKey.LIST_OFFSETS, request)
        )
        return response

    def close(self) -> None:
        """End any wait of the thread, and the thread."""
        with suppress(OSError):  # the peer closed it first
            self._socket.shutdown(socket.SHUT_RDWR)
        self._calls.put(None)

    async def _run(self, call: Callable[[], Any]) -> Any:
        """Run a call in the thread. Returns its result or raises its error."""
        self._arrived = trio.Event()
        self._calls.put(call)
        await self._arrived.wait()
        assert self._outcome is not None
        result, error = self._outcome
        self._outcome = None
        if isinstance(error, TimeoutError):
            raise RequestTimedOut(f"{self._endpoint} did not answer in time") from error
        if isinstance(error, OSError | ProtocolError):
            raise ConnectionLost(f"{self._endpoint}: {error}") from error
        if error is not None:
            raise error
        return result

    def _work(self) -> None:
        """Run the calls in order, in the thread, until `close`."""
        with self._socket:
            self._call_all()

    def _call_all(self) -> None:
        while (call := self._calls.get()) is not None:
            try:
                outcome = _Outcome(call(), None)
            except Exception as error:  # any error is raised in the waiting task
                outcome = _Outcome(None, error)
            with suppress(trio.RunFinishedError):  # then no task waits for it
                self._token.run_sync_soon(self._hand_over, outcome)

    def _hand_over(self, outcome: _Outcome) -> None:
        """Store the outcome and wake the waiting task. Runs in the loop; must not raise."""
        self._outcome = outcome
        self._arrived.set()


# Opens a connected, non-blocking socket. Raises `OSError` with a message.
ConnectSocket: TypeAlias = Callable[[Endpoint], Awaitable[socket.socket]]


def connect_by_thread(
    options: ChannelOptions, connect_socket: ConnectSocket = connected_socket
) -> Connect:
    """Return how fetchers connect that run as threads."""

    @asynccontextmanager
    async def connect(endpoint: Endpoint) -> AsyncIterator[FetchConnection]:
        try:
            connection = await _connected_socket(endpoint, options, connect_socket)
        except OSError as error:
            raise ConnectionLost(str(error)) from error
        thread = ThreadConnection(connection, endpoint, options)
        try:
            await thread.negotiate()
            yield thread
        finally:
            thread.close()

    return connect


async def _connected_socket(
    endpoint: Endpoint, options: ChannelOptions, connect_socket: ConnectSocket
) -> socket.socket:
    """Return a connected, blocking socket. The loop connects it, so that this can be cancelled."""
    with trio.move_on_after(options.connect_timeout_s):
        connection = await connect_socket(endpoint)
        connection.settimeout(options.request_timeout_s)
        return connection
    raise RequestTimedOut(f"{endpoint} gives no answer within {options.connect_timeout_s:g} s")
