"""The broker's pages over HTTP, in the broker's own loop (`http.listener`).

An orchestrator kills a broker whose `/live` does not answer, so no client may keep others out, and
the files of a process are limited, because logs need them. So at most `CONNECTIONS_MAX` connections
are open. For a new one beyond that the server closes one: the connection that has been idle, or has
left its request unfinished, the longest, or if none has for `GRACE_S`, the one that has been taking
its answer the longest. So a client that sends its request at once is answered. Answers that are
being sent hold at most `ANSWERS_BYTES_MAX`; above that the oldest of them ends.

`http_connection` bounds what one connection may do. A connection that fails is logged and closed.
If the listener fails, except for want of files or memory, the broker stops.

This module, and what it imports, is loaded only by a broker that has an `http.listener`.
"""

import logging
import math
from collections.abc import Iterable
from typing import Final

import trio

from minibroker.broker.observe.http_connection import HttpConnection, Phase
from minibroker.broker.observe.pages import Pages
from minibroker.broker.observe.sources import CannotServeHttp, Sources
from minibroker.broker.server.listener import ACCEPT_PAUSE_S, EXHAUSTED
from minibroker.protocol.types import Endpoint

CONNECTIONS_MAX: Final = 64
GRACE_S: Final = 0.5  # in which the request of a new connection should have come
ANSWERS_BYTES_MAX: Final = 32 << 20
STOP_S_MAX: Final = 1.0  # for answers that are under way when the broker stops
LOG_INTERVAL_S: Final = 60.0
EVERYWHERE: Final = "0.0.0.0"

logger = logging.getLogger(__name__)


async def open_http(endpoint: Endpoint) -> "HttpServer":
    """Bind the address. Raises `CannotServeHttp`."""
    try:
        listeners = await trio.open_tcp_listeners(endpoint.port, host=endpoint.host or EVERYWHERE)
    except OSError as error:
        raise CannotServeHttp(error, endpoint) from error
    except UnicodeError as error:  # the name has an empty label, or one that is too long
        raise CannotServeHttp(OSError(str(error)), endpoint) from error
    return HttpServer(listeners)


class HttpServer:
    """See the head of this module. `run` serves until `stop`, or until it is cancelled."""

    def __init__(self, listeners: list[trio.SocketListener]) -> None:
        self._listeners = listeners
        self._pages = Pages()
        self._app = self._pages.app()
        self._connections: set[HttpConnection] = set()
        self._change = trio.Event()  # one of them has ended
        self._scope = trio.CancelScope()
        self._logged_at = -math.inf

    @property
    def endpoint(self) -> Endpoint:
        """Where it listens."""
        host, port, *_ = self._listeners[0].socket.getsockname()
        return Endpoint(host, port)

    def show(self, sources: Sources) -> None:
        """Set the broker that the pages describe from now on."""
        self._pages.sources = sources

    def statistics(self) -> int:
        """Return how many connections are open."""
        return len(self._connections)

    async def run(self) -> None:
        """Serve until stopped. Nothing that a client does makes it fail."""
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._pages.loop_lag.run)
                    for listener in self._listeners:
                        nursery.start_soon(self._accept_connections, listener, nursery)
        finally:
            self._close()

    async def stop(self) -> None:
        """Accept no more connections, give answers under way a moment to be sent, and end `run`."""
        self._close()
        for connection in self._connections:
            connection.finish()
        with trio.move_on_after(STOP_S_MAX):
            while self._connections:
                self._change = trio.Event()
                await self._change.wait()
        self._scope.cancel()

    def _close(self) -> None:
        """Close the listeners."""
        for listener in self._listeners:
            listener.socket.close()

    async def _accept_connections(
        self, listener: trio.SocketListener, nursery: trio.Nursery
    ) -> None:
        while True:
            try:
                stream = await listener.accept()
            except trio.ClosedResourceError:
                return
            except OSError as error:
                if error.errno not in EXHAUSTED:
                    raise
                logger.warning("cannot accept HTTP connections at present: %s", error)
                await trio.sleep(ACCEPT_PAUSE_S)
                continue
            if len(self._connections) >= CONNECTIONS_MAX and not self._close_one():
                stream.socket.close()
                continue
            connection = HttpConnection(stream, self._app, self._limit_answers)
            self._connections.add(connection)
            nursery.start_soon(self._serve, connection)

    async def _serve(self, connection: HttpConnection) -> None:
        try:
            await connection.run()
        except (OSError, trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError):
            pass  # the client has gone, or is too slow
        except Exception:  # whatever it is, the broker goes on
            logger.warning("an HTTP connection ended", exc_info=True)
        finally:
            self._connections.discard(connection)
            self._change.set()

    def _close_one(self) -> bool:
        """Close the connection that has waited the longest for its client; False if none waits."""
        now = trio.current_time()
        reading = _oldest(self._connections, Phase.READING)
        waiting = reading
        if reading is None or now - reading.since < GRACE_S:
            waiting = _oldest(self._connections, Phase.SENDING) or reading
        if waiting is None:
            return False
        if now - self._logged_at >= LOG_INTERVAL_S:
            self._logged_at = now
            logger.warning(
                "all %d HTTP connections are open: closing those that have waited the longest",
                CONNECTIONS_MAX,
            )
        self._discard(waiting)
        return True

    def _limit_answers(self, connection: HttpConnection, size: int) -> None:
        """Close the oldest answers under way where another would take more memory than they
        may."""
        held = sum(each.answer_bytes for each in self._connections)
        while held + size > ANSWERS_BYTES_MAX:
            oldest = _oldest(self._connections, Phase.SENDING)
            if oldest is None:
                return
            held -= oldest.answer_bytes
            self._discard(oldest)

    def _discard(self, connection: HttpConnection) -> None:
        self._connections.discard(connection)
        connection.close()


def _oldest(connections: Iterable[HttpConnection], phase: Phase) -> HttpConnection | None:
    """Return the connection that has been in a phase for the longest."""
    return min(
        (each for each in connections if each.phase is phase),
        key=lambda each: each.since,
        default=None,
    )
