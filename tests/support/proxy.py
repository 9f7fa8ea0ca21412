"""A TCP connection in the middle that can be made slow, held or broken, one direction alone too.

    async with open_proxy(port) as proxy:
        proxy.url               # http://127.0.0.1:PORT, and behind it the port given
        proxy.delay_s = 0.2     # each piece, in each direction
        proxy.hold(answers=True)

What is held arrives once `heal` is called, whatever has become of who sent it: that is what a
network does whose packets are sent again.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import trio

HOST = "127.0.0.1"
PIECE_BYTES = 65_536
LINGER_S = 0.3


class _Gate:
    """What one generation of connections waits for, by direction."""

    def __init__(self) -> None:
        self.requests = trio.Event()
        self.answers = trio.Event()
        self.requests.set()
        self.answers.set()


class Proxy:
    """See the head of this file; made by `open_proxy`."""

    def __init__(self, target_port: int, target_host: str) -> None:
        self.url = ""
        self.delay_s = 0.0
        self.requests = self.answers = 0  # pieces that have come, held ones too
        self._target = (target_host, target_port)
        self._gates = [_Gate()]
        self._connections: dict[trio.CancelScope, None] = {}

    def hold(self, *, requests: bool = False, answers: bool = False) -> None:
        """Let nothing through in these directions, on any connection."""
        for gate in self._gates:
            if requests:
                gate.requests = trio.Event()
            if answers:
                gate.answers = trio.Event()

    def let_new_through(self) -> None:
        """Connections that are made from now on work; those before stay as they are."""
        self._gates.append(_Gate())

    def heal(self) -> None:
        """Deliver what was held, and all that comes."""
        self.delay_s = 0.0
        for gate in self._gates:
            gate.requests.set()
            gate.answers.set()

    def break_all(self) -> None:
        """End all connections, in the middle of what they carry."""
        for scope in list(self._connections):
            scope.cancel()

    async def carry(self, client: trio.SocketStream) -> None:
        """One connection, until one side is done with it."""
        gate = self._gates[-1]
        scope = trio.CancelScope()
        self._connections[scope] = None
        try:
            with scope:
                async with (
                    client,
                    await trio.open_tcp_stream(*self._target) as server,
                    trio.open_nursery() as nursery,
                ):
                    nursery.start_soon(self._pass_answers, server, client, gate)
                    await self._pass_requests(client, server, gate)
                    nursery.cancel_scope.cancel()
        except* (OSError, trio.BrokenResourceError):
            pass  # one side is gone: the other hears so by the end of its connection
        finally:
            del self._connections[scope]

    async def _pass_requests(
        self, client: trio.SocketStream, server: trio.SocketStream, gate: _Gate
    ) -> None:
        while piece := await client.receive_some(PIECE_BYTES):
            self.requests += 1
            await trio.sleep(self.delay_s)
            await gate.requests.wait()
            await server.send_all(piece)
        # A server gives up a request whose client has gone, and what was held shall be done.
        await trio.sleep(LINGER_S)

    async def _pass_answers(
        self, server: trio.SocketStream, client: trio.SocketStream, gate: _Gate
    ) -> None:
        while piece := await server.receive_some(PIECE_BYTES):
            self.answers += 1
            await trio.sleep(self.delay_s)
            await gate.answers.wait()
            await client.send_all(piece)
        await gate.answers.wait()
        raise trio.BrokenResourceError("the server has ended the connection")


@asynccontextmanager
async def open_proxy(
    target_port: int, target_host: str = HOST, *, host: str = HOST, port: int = 0
) -> AsyncIterator[Proxy]:
    """A proxy to a port, of this machine unless another is named, until the block ends; it listens
    at `host`, and takes a free port unless one is named."""
    proxy = Proxy(target_port, target_host)
    async with trio.open_nursery() as nursery:
        [listener] = await nursery.start(partial(trio.serve_tcp, host=host), proxy.carry, port)
        proxy.url = f"http://{host}:{listener.socket.getsockname()[1]}"
        yield proxy
        nursery.cancel_scope.cancel()
