"""A client's connections: at most one for each broker and lane, made when somebody wants it.

A lane is a purpose. A broker answers the requests of one connection in order, so a consumer's
long poll has a lane of its own: a question asked meanwhile does not wait behind it. So have three
kinds of a group member's requests, which can all take long. Nobody wonders at a silent JOIN, for it
waits for the other members; the heartbeats tell meanwhile if the broker is there.

Each connection is one task: wait out the back-off, connect, serve until it ends. Who wants it
waits for that attempt's outcome, and for no other connection (NET-07). After a failure the back-off
grows from `reconnect.backoff.ms` to `reconnect.backoff.max.ms`, with jitter so that the clients of
a broker that comes back do not all knock at once. A connection that ended is made again no sooner
than one back-off after it was opened: at once, if it lived for a while.

A broker whose process was stopped, or whose machine is gone, ends no connection; its requests would
wait for request.timeout.ms. So a request that waits unusually long is told, again and again, to
whoever can find out if that broker is still alive (`on_silence`), who then says so
(`close_silent`). Silence alone closes nothing: with acks=all a broker may rightly wait for others.
"""

import logging
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from typing import Final

import trio

from minibroker.client.errors import ClientClosed
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
WORTH_A_WARNING: Final = 6  # tries in a row; what goes on for less than a second is a failover
# Beyond the time for which the client asks a broker to wait; and how often it is said.
SILENT_AFTER_S: Final = 1.0
SILENT_AGAIN_S: Final = 0.1

log = logging.getLogger("minibroker.client")


class _Attempt:
    """One try to connect, for all who wait for it."""

    def __init__(self) -> None:
        self._outcome: RpcChannel | OSError | ClientClosed | None = None
        self._is_over = trio.Event()

    def settle(self, outcome: RpcChannel | OSError | ClientClosed) -> None:
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


class Link:
    """One connection, open or not. `error` is why the last try failed."""

    def __init__(self, endpoint: Endpoint, lane: str) -> None:
        self.endpoint = endpoint
        self.lane = lane
        self.channel: RpcChannel | None = None
        self.attempt: _Attempt | None = None
        self.error: OSError | None = None
        self.failures = 0  # in a row
        self.retry_at = float("-inf")

    @property
    def is_open(self) -> bool:
        return self.channel is not None and self.channel.is_open


class Links:
    """All of them. A closed one opens no connection: every wait for one raises `ClientClosed`."""

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
        patience_s = max(options.request_timeout_ms, options.longest_join_ms) / 1000
        self._join_options = replace(self._channel_options, request_timeout_s=patience_s)
        self._links: dict[tuple[Endpoint, str], Link] = {}
        self._nursery: trio.Nursery | None = None
        self._changed = trio.lowlevel.ParkingLot()
        self.is_closed = False

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep the connections, until cancelled: then all of them are closed."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            task_status.started()
            try:
                await trio.sleep_forever()
            finally:
                self._close()

    def _close(self) -> None:
        """Refuse new connections from here on. Tasks of other nurseries may still ask for one:
        tasks of the application, and the task that keeps the metadata, if it was woken before it
        was cancelled."""
        self.is_closed = True
        for link in self._links.values():
            if link.attempt is not None:
                link.attempt.settle(_closed())
        self._changed.unpark_all()

    async def wait_changed(self) -> None:
        """Wait until a connection was opened, or could not be. Raises `ClientClosed`."""
        if not self.is_closed:
            await self._changed.park()
        if self.is_closed:
            await trio.lowlevel.checkpoint()  # a task of this client is cancelled, and ends here
            raise _closed()

    def open_links(self, lane: str) -> Iterator[Link]:
        """Those that would take a request now."""
        return (link for link in self._links.values() if link.lane == lane and link.is_open)

    def link(self, endpoint: Endpoint, lane: str) -> Link:
        """The link to a broker; nothing is connected for it."""
        return self._links.setdefault((endpoint, lane), Link(endpoint, lane))

    async def connect(self, endpoint: Endpoint, lane: str) -> RpcChannel:
        """An open connection. Raises `ConnectionLost` if the next try to make it fails, and
        `ClientClosed`."""
        link = self.link(endpoint, lane)
        if link.channel is not None and link.channel.is_open:
            return link.channel
        return await self.want(link).wait()

    def silent(self) -> list[Endpoint]:
        """Brokers that have let a request, in any lane, wait for unusually long."""
        now = trio.current_time()
        return [
            link.endpoint
            for link in self._links.values()
            if link.lane != JOINS
            and link.channel is not None
            and self._is_silent(link.channel, now)
        ]

    def close_silent(self, alive: Collection[Endpoint]) -> None:
        """End the connections to silent brokers that are not among those alive."""
        for endpoint in dict.fromkeys(self.silent()):
            if endpoint not in alive:
                log.info("%s is silent, and not among the live brokers", endpoint)
                for link in self._links.values():
                    if link.endpoint == endpoint and link.channel is not None:
                        link.channel.close()

    def keep(self, endpoints: Collection[Endpoint]) -> None:
        """Forget the links to other brokers that are neither open nor being opened."""
        for key, link in list(self._links.items()):
            if link.endpoint not in endpoints and link.attempt is None and not link.is_open:
                del self._links[key]

    def _is_silent(self, channel: RpcChannel, now: float) -> bool:
        return now - channel.waiting_since >= self._silent_after_s

    def want(self, link: Link) -> _Attempt:
        """See that a try to connect is under way, unless it is open."""
        assert self._nursery is not None, "run() has not started"
        if link.attempt is None:
            link.attempt = _Attempt()
            if self.is_closed:
                link.attempt.settle(_closed())
            else:
                self._nursery.start_soon(self._serve, link, link.attempt)
        return link.attempt

    async def _serve(self, link: Link, attempt: _Attempt) -> None:
        await trio.sleep_until(link.retry_at)
        options = self._join_options if link.lane == JOINS else self._channel_options
        try:
            channel = await connect_channel(self._seams.network, link.endpoint, options)
        except OSError as error:
            self._note_failure(link, error)
            link.attempt = None
            attempt.settle(error)
            self._changed.unpark_all()
            return
        if link.failures:
            log.info("connected to %s after %d failures", link.endpoint, link.failures)
        link.failures = 0
        link.error = None
        link.channel = channel
        link.retry_at = trio.current_time() + self._backoff_s(1)
        link.attempt = None
        attempt.settle(channel)
        self._changed.unpark_all()
        async with trio.open_nursery() as nursery:
            if link.lane != JOINS:
                nursery.start_soon(self._watch, channel)
            await channel.run()
            nursery.cancel_scope.cancel()

    async def _watch(self, channel: RpcChannel) -> None:
        """Tell of a silent broker, as long as it is."""
        while True:
            now = trio.current_time()
            if self._is_silent(channel, now):
                self._on_silence()
                await trio.sleep(SILENT_AGAIN_S)
            else:
                await trio.sleep_until(min(now, channel.waiting_since) + self._silent_after_s)

    def _note_failure(self, link: Link, error: OSError) -> None:
        link.failures += 1
        if link.failures == WORTH_A_WARNING:
            log.warning("%s; trying again", error)
        link.error = error
        link.retry_at = trio.current_time() + self._backoff_s(link.failures)

    def _backoff_s(self, failures: int) -> float:
        longest = self._options.reconnect_backoff_max_ms
        backoff_ms = min(self._options.reconnect_backoff_ms * 2 ** min(failures - 1, 30), longest)
        return float(backoff_ms) / 1000 * self._seams.rng.uniform(1 - JITTER, 1 + JITTER)


def _closed() -> ClientClosed:
    return ClientClosed("this client was closed")
