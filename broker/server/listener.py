"""The listeners: they accept connections and start a session for each.

A broker may listen at several addresses, each with a name. A session uses the services of its
listener, which name the listener that the client connected to; everything else is shared.

A connection above `max.connections` is closed as soon as it is accepted: its client sees that at
once and tries again later, and the open sessions are not affected. When the budget of descriptors
(`broker/descriptors.py`) has none for another connection, accepting pauses: connections wait in the
backlog until others have ended. It also pauses when the process has no descriptor left all the
same: then the system cannot even accept a connection to close it. Each condition is logged when it
begins, not for each connection.

A sweep, four times in `connections.max.idle.ms`, closes the sessions that have neither received nor
sent a byte for that time: a timer for each connection would cost more than the session.
"""

import errno
import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

import trio

from minibroker.broker.descriptors import ADVICE, DescriptorBudget
from minibroker.broker.server.dispatch import Dispatch, dispatch
from minibroker.broker.server.services import Services
from minibroker.broker.server.session import Session
from minibroker.client.net.network import Listener, Network, Stream
from minibroker.protocol.types import NamedEndpoint

logger = logging.getLogger(__name__)

RECEIVE_BYTES = 256 * 1024
ACCEPT_PAUSE_S = 0.1
# The system is short of a resource, which may soon be free again.
EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class CannotListen(OSError):
    """An address could not be bound; `listener` is its name and address."""

    def __init__(self, error: OSError, listener: NamedEndpoint) -> None:
        super().__init__(error.errno, f"listener {listener.name}: {error.strerror or error}")
        self.listener = listener


async def listen(network: Network, wanted: Iterable[NamedEndpoint]) -> dict[str, Listener]:
    """Bind all these addresses, by name. Raises `CannotListen`, and then none of them is bound."""
    listeners: dict[str, Listener] = {}
    try:
        for one in wanted:
            try:
                listeners[one.name] = await network.listen(one.endpoint)
            except OSError as error:
                raise CannotListen(error, one) from error
    except BaseException:
        for listener in listeners.values():
            listener.close()
        raise
    return listeners


class Connections(NamedTuple):
    """The counts of connections: open now, accepted and refused since the start."""

    open: int
    taken: int
    refused: int


class Acceptor:
    """The listening sockets, by name, and the sessions of their connections."""

    def __init__(
        self,
        services: Services,
        listeners: Mapping[str, Listener],
        dispatch: Dispatch = dispatch,
        descriptors: DescriptorBudget | None = None,
    ) -> None:
        self.descriptors = DescriptorBudget() if descriptors is None else descriptors
        self._services = services
        self._listeners = listeners
        self._dispatch = dispatch
        self._buffer = memoryview(bytearray(RECEIVE_BYTES))
        # A dict as an ordered set.
        self._sessions: dict[Session, None] = {}
        self._is_refusing = False
        self._is_paused = False
        self._taken = 0
        self._refused = 0

    async def run(self) -> None:
        """Serve until cancelled. Raises errors that neither a peer nor a shortage causes."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._close_idle)
            for name in self._listeners:
                nursery.start_soon(self._accept_connections, name, nursery)

    async def _accept_connections(self, name: str, nursery: trio.Nursery) -> None:
        services = replace(self._services, listener=name)
        while True:
            await self._wait_for_descriptor()
            stream = await self._accept(self._listeners[name])
            if len(self._sessions) < self._services.config.max_connections:
                self._is_refusing = False
                session = Session(services, stream, self._buffer, self._dispatch)
                self._sessions[session] = None
                self.descriptors.hold_connection()
                self._taken += 1
                nursery.start_soon(self._serve, session)
            else:
                self._refuse(stream)

    def statistics(self) -> Connections:
        """Return the counts of connections."""
        return Connections(len(self._sessions), self._taken, self._refused)

    async def _wait_for_descriptor(self) -> None:
        """Wait until the budget has a descriptor for a connection."""
        while not self.descriptors.has_room_for_connection():
            if not self._is_paused:
                logger.error(
                    "accepting connections pauses: %d connections and %d logs use the descriptors"
                    " that there are: %s",
                    self.descriptors.connections,
                    self.descriptors.logs,
                    ADVICE,
                )
                self._is_paused = True
            await trio.sleep(ACCEPT_PAUSE_S)
        self._is_paused = False

    async def _accept(self, listener: Listener) -> Stream:
        is_paused = False
        while True:
            try:
                return await listener.accept()
            except OSError as error:
                if error.errno not in EXHAUSTED:
                    raise
                if not is_paused:
                    logger.error("cannot accept connections at present: %s", error)
                    is_paused = True
                await trio.sleep(ACCEPT_PAUSE_S)

    def _refuse(self, stream: Stream) -> None:
        if not self._is_refusing:
            logger.warning(
                "refusing connections: all of max.connections=%d are open",
                self._services.config.max_connections,
            )
            self._is_refusing = True
        self._refused += 1
        stream.close()

    async def _serve(self, session: Session) -> None:
        try:
            await session.run()
        finally:
            del self._sessions[session]
            self.descriptors.connections -= 1

    async def _close_idle(self) -> None:
        idle_s = self._services.config.connections_max_idle_ms / 1000
        while True:
            await trio.sleep(idle_s / 4)
            oldest = trio.current_time() - idle_s
            for session in list(self._sessions):
                if session.last_active <= oldest:
                    session.hang_up(f"no bytes came or went for {idle_s:g} s", logging.INFO)
