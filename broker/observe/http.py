"""The broker's pages over HTTP, in the broker's own loop (`http.listener`).

The protocol is hypercorn's, one of its `TCPServer` for each connection; that is the part of its
trio worker below `hypercorn.trio.serve`. What `serve` does around it is done here, because it has
no bounds there:

* hypercorn shields its sends from cancellation, so one client that reads nothing could delay the
  broker's stop without end. This module knows every socket, and closing it ends a send.
* It accepts any number of connections, but the files of a process are limited, and logs need them.

A connection that fails is logged and closed. If the listener fails, except for want of files or
memory, the broker stops. Hypercorn writes no log of its own; its messages go to this
module's logger.

This module, and what it imports, is loaded only by a broker that has an `http.listener`.
"""

import logging
from typing import Any, Final, cast

import trio
from hypercorn.config import Config as HypercornConfig
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState, Framework
from hypercorn.utils import wrap_app

from minibroker.broker.observe.pages import Pages
from minibroker.broker.observe.sources import CannotServeHttp, Sources
from minibroker.broker.server.listener import ACCEPT_PAUSE_S, EXHAUSTED
from minibroker.protocol.types import Endpoint

CONNECTIONS_MAX: Final = 64
READ_S_MAX: Final = 10  # for the next bytes of a request
IDLE_S_MAX: Final = 5.0  # between two requests
CONNECTION_S_MAX: Final = 600.0  # in all, whatever it does
SWEEP_S: Final = 10.0
STOP_S_MAX: Final = 1.0  # for answers that are under way when the broker stops
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
        self._config = _config()
        # Starlette and hypercorn spell the types of ASGI's messages differently.
        app = cast(Framework, self._pages.app())
        self._app = wrap_app(app, self._config.wsgi_max_body_size, "asgi")
        self._context = WorkerContext(None)
        self._streams: dict[trio.SocketStream, float] = {}  # and when each began
        self._change = trio.Event()  # one of them has ended
        self._scope = trio.CancelScope()

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
        return len(self._streams)

    async def run(self) -> None:
        """Serve until stopped. Nothing that a client does makes it fail."""
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._pages.loop_lag.run)
                    nursery.start_soon(self._close_old)
                    for listener in self._listeners:
                        nursery.start_soon(self._accept_connections, listener, nursery)
        finally:
            self._close()

    async def stop(self) -> None:
        """Accept no more connections, give answers under way a moment to be sent, and end `run`."""
        self._close()
        await self._context.terminated.set()
        with trio.move_on_after(STOP_S_MAX):
            while self._streams:
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
            if len(self._streams) < CONNECTIONS_MAX:
                self._streams[stream] = trio.current_time()
                nursery.start_soon(self._serve, stream)
            else:
                stream.socket.close()

    async def _serve(self, stream: trio.SocketStream) -> None:
        # Its type asks for a stream with TLS, but it checks at run time and accepts this one.
        plain = cast(Any, stream)
        server = TCPServer(self._app, self._config, self._context, ConnectionState({}), plain)
        try:
            await server.run()
        except Exception:  # whatever it is, the broker goes on
            logger.warning("an HTTP connection ended", exc_info=True)
        finally:
            stream.socket.close()
            del self._streams[stream]
            self._change.set()

    async def _close_old(self) -> None:
        """Close connections that have been open for too long; at the end, all of them."""
        try:
            while True:
                await trio.sleep(SWEEP_S)
                oldest = trio.current_time() - CONNECTION_S_MAX
                for stream, began_at in self._streams.items():
                    if began_at < oldest:
                        stream.socket.close()
        finally:
            for stream in self._streams:
                stream.socket.close()


def _config() -> HypercornConfig:
    config = HypercornConfig()
    config.errorlog = logger
    config.include_server_header = False
    config.read_timeout = READ_S_MAX
    config.keep_alive_timeout = IDLE_S_MAX
    return config
