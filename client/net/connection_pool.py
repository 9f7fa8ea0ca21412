"""A client's connections: at most one for each broker and purpose, opened when it is first needed.

A broker answers the requests of one connection in order, so a consumer's long poll has a connection
of its own: other requests do not wait behind it. Three kinds of a group member's requests have
their own connections, too, because each can take long. A JOIN without an answer is no sign of a
dead broker, because it waits for the other members; meanwhile the heartbeats show whether the
broker is alive.

Each connection is one task: wait for the back-off, connect, serve until it ends. A caller waits for
the outcome of this connection's attempt, and for no other (NET-07). After a failure the back-off
grows from `reconnect.backoff.ms` to `reconnect.backoff.max.ms`, with jitter, so that the clients of
a broker that comes back do not all connect at once. A connection that ended is opened again no
sooner than one back-off after it was opened: at once, if it was open for longer.

A broker whose process was stopped, or whose machine is gone, ends no connection; its requests would
wait for request.timeout.ms. So while a request waits unusually long, the pool calls `on_silence`
again and again. The owner finds out which brokers are live, and calls `close_silent` with them.
Silence alone closes nothing: with acks=all a broker may rightly wait for others.
"""

import logging
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from typing import Final

import trio

from minibroker.client.errors import ClientClosed, reason_of
from minibroker.client.net.channel import (
    ChannelOptions,
    ConnectionLost,
    RpcChannel,
    connect_channel,
)
from minibroker.client.options import ClientOptions, Seams
from minibroker.protocol.types import Endpoint

REQUESTS: Final = "requests"
FETCHES: Final = "fetches"
JOINS: Final = "joins"
HEARTBEATS: Final = "heartbeats"
COMMITS: Final = "commits"
JITTER: Final = 0.2
WORTH_A_WARNING: Final = 6  # tries in a row; what lasts less than a second is a failover
# Beyond the time that the client asks a broker to wait; and the interval of calls.
SILENT_AFTER_S: Final = 1.0
SILENT_AGAIN_S: Final = 0.1

log = logging.getLogger("minibroker.client")


class _Attempt:
    """One try to connect, for all callers that wait for it."""

    def __init__(self) -> None:
        self._outcome: RpcChannel | OSError | ClientClosed | None = None
        self._is_over = trio.Event()

    def complete(self, outcome: RpcChannel | OSError | ClientClosed) -> None:
        self._outcome = outcome
        self._is_over.set()

    async def wait(self) -> RpcChannel:
        await self._is_over.wait()
        if isinstance(self._outcome, ClientClosed):
            raise ClientClosed(str(self._outcome))  # each waiter raises an exception of its own
        if isinstance(self._outcome, OSError):
            raise ConnectionLost(str(self._outcome)) from self._outcome
        assert self._outcome is not None
        return self._outcome


class Connection:
    """One connection, open or not. `error` is why the last try failed."""

    def __init__(self, endpoint: Endpoint, purpose: str) -> None:
        self.endpoint = endpoint
        self.purpose = purpose
        self.channel: RpcChannel | None = None
        self.attempt: _Attempt | None = None
        self.error: OSError | None = None
        self.failures = 0  # in a row
        self.retry_at = float("-inf")

    @property
    def is_open(self) -> bool:
        return self.channel is not None and self.channel.is_open


class ConnectionPool:
    """All connections of a client. A closed pool opens none: each wait for one raises
    `ClientClosed`."""

    def __init__(
        self, options: ClientOptions, seams: Seams, on_silence: Callable[[], None]
    ) -> None:
        self._options = options
        self._seams = seams
        self._on_silence = on_silence
        self._silent_after_s = SILENT_AFTER_S + options.longest_poll_ms / 1000
        self._channel_options = ChannelOptions(
            client_id=options.client_id,
            request_timeout_s=options.request_timeout_ms / 1000,
            connect_timeout_s=options.socket_connection_setup_timeout_ms / 1000,
        )
        timeout_s = max(options.request_timeout_ms, options.longest_join_ms) / 1000
        self._join_options = replace(self._channel_options, request_timeout_s=timeout_s)
        self._connections: dict[tuple[Endpoint, str], Connection] = {}
        self._nursery: trio.Nursery | None = None
        self._changed = trio.lowlevel.ParkingLot()
        self.is_closed = False
        self.cluster_id = ""  # of the cluster whose brokers these are; "": not known yet
        # For addresses from metadata: their brokers, and the broker that told each.
        self.advertised: dict[Endpoint, str] = {}

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep the connections until cancelled; then close all."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            task_status.started()
            try:
                await trio.sleep_forever()
            finally:
                self._close()

    def _close(self) -> None:
        """Refuse new connections from here on. Tasks of other nurseries may still ask for one:
        tasks of the application, and the metadata task, if it was woken before it was cancelled."""
        self.is_closed = True
        for connection in self._connections.values():
            if connection.attempt is not None:
                connection.attempt.complete(_closed())
        self._changed.unpark_all()

    async def wait_changed(self) -> None:
        """Wait until a connection was opened, or could not be. Raises `ClientClosed`."""
        if not self.is_closed:
            await self._changed.park()
        if self.is_closed:
            await trio.lowlevel.checkpoint()  # a task of this client is cancelled, and ends here
            raise _closed()

    def open_connections(self, purpose: str) -> Iterator[Connection]:
        """The connections that accept a request now."""
        every = self._connections.values()
        return (each for each in every if each.purpose == purpose and each.is_open)

    def connection(self, endpoint: Endpoint, purpose: str) -> Connection:
        """Return the connection to a broker, open or not; this opens none."""
        return self._connections.setdefault((endpoint, purpose), Connection(endpoint, purpose))

    async def connect(self, endpoint: Endpoint, purpose: str) -> RpcChannel:
        """Return an open connection. Raises `ConnectionLost` if the next try to connect fails, and
        `ClientClosed`."""
        connection = self.connection(endpoint, purpose)
        if connection.channel is not None and connection.channel.is_open:
            return connection.channel
        return await self.ensure_attempt(connection).wait()

    def silent(self) -> list[Endpoint]:
        """The brokers that have let a request, on any connection, wait unusually long."""
        now = trio.current_time()
        return [
            connection.endpoint
            for connection in self._connections.values()
            if connection.purpose != JOINS
            and connection.channel is not None
            and self._is_silent(connection.channel, now)
        ]

    def close_silent(self, alive: Collection[Endpoint]) -> None:
        """Close the connections to silent brokers that are not among the live ones."""
        for endpoint in dict.fromkeys(self.silent()):
            if endpoint not in alive:
                log.info("%s is silent, and not among the live brokers", endpoint)
                for connection in self._connections.values():
                    if connection.endpoint == endpoint and connection.channel is not None:
                        connection.channel.close()

    def keep(self, endpoints: Collection[Endpoint]) -> None:
        """Drop the connections to other brokers, unless they are open or being opened."""
        for key, connection in list(self._connections.items()):
            if (
                connection.endpoint not in endpoints
                and connection.attempt is None
                and not connection.is_open
            ):
                del self._connections[key]

    def _is_silent(self, channel: RpcChannel, now: float) -> bool:
        return now - channel.waiting_since >= self._silent_after_s

    def ensure_attempt(self, connection: Connection) -> _Attempt:
        """Make sure that a try to connect is under way, unless the connection is open."""
        assert self._nursery is not None, "run() has not started"
        if connection.attempt is None:
            connection.attempt = _Attempt()
            if self.is_closed:
                connection.attempt.complete(_closed())
            else:
                self._nursery.start_soon(self._serve, connection, connection.attempt)
        return connection.attempt

    async def _serve(self, connection: Connection, attempt: _Attempt) -> None:
        await trio.sleep_until(connection.retry_at)
        options = self._join_options if connection.purpose == JOINS else self._channel_options
        try:
            channel = await connect_channel(self._seams.network, connection.endpoint, options)
            self._check_cluster(channel)
        except OSError as error:
            advertised = self.advertised.get(connection.endpoint)
            failure = OSError(f"{advertised}; {error}") if advertised else error
            self._record_failure(connection, failure)
            connection.attempt = None
            attempt.complete(failure)
            self._changed.unpark_all()
            return
        if connection.failures:
            log.info("connected to %s after %d failures", connection.endpoint, connection.failures)
        connection.failures = 0
        connection.error = None
        connection.channel = channel
        connection.retry_at = trio.current_time() + self._backoff_s(1)
        connection.attempt = None
        attempt.complete(channel)
        self._changed.unpark_all()
        async with trio.open_nursery() as nursery:
            if connection.purpose != JOINS:
                nursery.start_soon(self._watch, channel)
            await channel.run()
            nursery.cancel_scope.cancel()

    def _check_cluster(self, channel: RpcChannel) -> None:
        """Close a connection to a broker of another cluster, and raise `ConnectionLost`.

        A cluster that has ended leaves its ports to the next one. A client of the first would
        create its topics there, and go on as if nothing had happened.
        """
        if self.cluster_id and channel.cluster_id not in ("", self.cluster_id):
            channel.close()
            raise ConnectionLost(
                f"{channel.endpoint} belongs to the cluster {channel.cluster_id}, and this client"
                f" to {self.cluster_id}, which listened there before: make a new client"
            )

    async def _watch(self, channel: RpcChannel) -> None:
        """Report a silent broker, as long as it is silent."""
        while True:
            now = trio.current_time()
            if self._is_silent(channel, now):
                self._on_silence()
                await trio.sleep(SILENT_AGAIN_S)
            else:
                await trio.sleep_until(min(now, channel.waiting_since) + self._silent_after_s)

    def _record_failure(self, connection: Connection, error: OSError) -> None:
        connection.failures += 1
        if connection.failures == WORTH_A_WARNING:
            log.warning("%s; trying again", reason_of(error))
        connection.error = error
        connection.retry_at = trio.current_time() + self._backoff_s(connection.failures)

    def _backoff_s(self, failures: int) -> float:
        longest = self._options.reconnect_backoff_max_ms
        backoff_ms = min(self._options.reconnect_backoff_ms * 2 ** min(failures - 1, 30), longest)
        return float(backoff_ms) / 1000 * self._seams.rng.uniform(1 - JITTER, 1 + JITTER)


def _closed() -> ClientClosed:
    return ClientClosed("this client was closed")
