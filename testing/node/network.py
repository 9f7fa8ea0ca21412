"""A network with faults: a `client.net.network.Network` around the real one.

A broker knows the peer of a connection that it has opened, by the address. It does not know which
broker has opened a connection to it. So both brokers take part in a cut between them: each cuts
the connections that it has opened, in both directions. All connections that other brokers have
opened are one link, `BROKERS`. Clients have a listener of their own, whose connections are the link
`CLIENTS`.

A cut acts like a network that loses all packets. No connection is closed. Sent bytes wait, and
arrive when the cut ends, unless the operating system of the side that connected has given up first.
"""

import errno
import math
import os
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from random import Random
from typing import Final, TypeAlias

import trio

from minibroker.client.net.network import SILENT_S_MAX, Listener, Network, Stream
from minibroker.protocol.types import Buffer, Endpoint, Part, Slice
from minibroker.testing.node.faults import BROKERS, CLIENTS, LinkFaults

CONNECT_S_MAX: Final = 60.0
PIECE_BYTES: Final = 1024  # that a throttled connection sends at a time
FORWARD_BYTES: Final = 64 * 1024
NO_FAULTS: Final = LinkFaults()
IsLost: TypeAlias = Callable[[LinkFaults], bool]


def _are_sends_lost(faults: LinkFaults) -> bool:
    return faults.are_sends_lost


def _are_receives_lost(faults: LinkFaults) -> bool:
    return faults.are_receives_lost


def _is_any_lost(faults: LinkFaults) -> bool:
    return faults.are_sends_lost or faults.are_receives_lost


class Link:
    """The connections between this broker and one peer, and their faults."""

    def __init__(self, rng: Random) -> None:
        self.faults = NO_FAULTS
        self.streams: dict[FaultyStream, None] = {}
        self._rng = rng
        self._cut_at: float | None = None
        self._changed = trio.Event()

    def set(self, faults: LinkFaults) -> None:
        """Replace the faults."""
        if faults == self.faults:
            return
        self.faults = faults
        if not _is_any_lost(faults):
            self._cut_at = None
        elif self._cut_at is None:
            self._cut_at = trio.current_time()
        self._wake()
        for stream in self.streams:
            stream.stop_receiving()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    def breaks_at(self) -> float:
        """Return when the operating system of the side that connected gives up, in seconds."""
        return math.inf if self._cut_at is None else self._cut_at + SILENT_S_MAX

    async def until(
        self,
        is_lost: IsLost,
        deadline: Callable[[], float],
        is_broken: Callable[[], bool] = lambda: False,
    ) -> bool:
        """Wait until `is_lost` is false. Return False if the deadline or a reset comes first."""
        while is_lost(self.faults) and not is_broken():
            if trio.current_time() >= deadline():
                return False
            with trio.move_on_at(deadline()):
                await self._changed.wait()
        return True

    async def pause(self, seconds: float) -> None:
        """Wait for this time, or until the faults change."""
        with trio.move_on_after(seconds):
            await self._changed.wait()

    def draw_delay(self) -> float:
        """Return a random delay for the next bytes, in seconds."""
        faults = self.faults
        drawn = faults.delay_ms + self._rng.uniform(-faults.jitter_ms, faults.jitter_ms)
        return max(0.0, drawn / 1000)

    def reset(self) -> None:
        """Reset all connections."""
        for stream in list(self.streams):
            stream.reset()
        self._wake()


class FaultyStream:
    """A connection on a link; see `Stream`. `is_outgoing`: this broker has opened it."""

    def __init__(self, stream: Stream, link: Link, *, is_outgoing: bool) -> None:
        self._stream = stream
        self._link = link
        self._is_outgoing = is_outgoing
        self._is_broken = False
        self._receiving: trio.CancelScope | None = None
        link.streams[self] = None

    @property
    def peer(self) -> str:
        """The other side, for log lines."""
        return self._stream.peer

    def stop_receiving(self) -> None:
        """Make a waiting receive check the faults of the link again."""
        if self._receiving is not None:
            self._receiving.cancel()

    def reset(self) -> None:
        """Close the connection; the next use here raises `trio.BrokenResourceError`."""
        self._is_broken = True
        self.stop_receiving()
        self.close()

    async def receive_into(self, view: memoryview) -> int:
        """Wait for bytes. No other task runs between their arrival and the return."""
        while True:
            await self._until(_are_receives_lost)
            scope = trio.CancelScope(deadline=self._breaks_at())
            self._receiving = scope
            try:
                with scope:
                    return await self._stream.receive_into(view)
            except trio.ClosedResourceError:
                self._check()
                raise
            finally:
                self._receiving = None
            self._check()

    def send_now(self, parts: Sequence[Part]) -> Sequence[Part]:
        """Send what can go without waiting, and return the rest. With faults nothing can."""
        if self._is_broken or self._link.faults != NO_FAULTS:
            return parts
        return self._stream.send_now(parts)

    async def send(self, parts: Sequence[Part]) -> None:
        """Send bytes and slices in order, with the delay and the rate of the link."""
        if self._link.faults.delay_ms or self._link.faults.jitter_ms:
            await self._link.pause(self._link.draw_delay())
        try:
            if self._link.faults.bytes_per_s:
                for part in parts:
                    await self._send_slowly(part)
            else:
                await self._until(_are_sends_lost)
                await self._stream.send(parts)
        except trio.ClosedResourceError:
            self._check()
            raise

    def close(self) -> None:
        """Close at once."""
        self._link.streams.pop(self, None)
        self._stream.close()

    async def _send_slowly(self, part: Part) -> None:
        """Send in pieces at the rate of the link, which may change between two pieces."""
        view = memoryview(part) if isinstance(part, Buffer) else part
        for piece in _pieces(view, PIECE_BYTES):
            await self._until(_are_sends_lost)
            rate = self._link.faults.bytes_per_s or math.inf
            await self._link.pause(len(piece) / rate)
            await self._stream.send([piece])

    async def _until(self, is_lost: IsLost) -> None:
        if not await self._link.until(is_lost, self._breaks_at, lambda: self._is_broken):
            self._is_broken = True
        self._check()

    def _breaks_at(self) -> float:
        return self._link.breaks_at() if self._is_outgoing else math.inf

    def _check(self) -> None:
        if self._is_broken or trio.current_time() >= self._breaks_at():
            self._is_broken = True
            raise trio.BrokenResourceError(f"{self.peer}: {os.strerror(errno.ETIMEDOUT)}")


def _pieces(part: "memoryview | Slice", size: int) -> Iterator[Part]:
    if isinstance(part, memoryview):
        for at in range(0, len(part), size):
            yield part[at : at + size]
    else:
        yield from part.pieces(size)


class FaultyListener:
    """A listening socket, the connections of which are on one link; see `Listener`."""

    def __init__(self, listener: Listener, link: Link) -> None:
        self._listener = listener
        self._link = link

    @property
    def endpoint(self) -> Endpoint:
        """The address of the socket, with the real port."""
        return self._listener.endpoint

    async def accept(self) -> Stream:
        """Wait for the next connection and return it."""
        return FaultyStream(await self._listener.accept(), self._link, is_outgoing=False)

    def close(self) -> None:
        """Stop listening."""
        self._listener.close()


class FaultyNetwork:
    """The network of one broker. `for_brokers` is the listener for other brokers."""

    def __init__(
        self, network: Network, for_brokers: Endpoint, rng: Random, nursery: trio.Nursery
    ) -> None:
        self._network = network
        self._for_brokers = for_brokers
        self._rng = rng
        self._nursery = nursery
        self._links: dict[str, Link] = {}

    def link(self, peer: str) -> Link:
        """Return the link of a peer: `CLIENTS`, `BROKERS`, or a broker's HOST:PORT."""
        return self._links.setdefault(peer, Link(self._rng))

    def set(self, links: Mapping[str, LinkFaults]) -> None:
        """Replace the faults of all links. A link that is not named has none."""
        for peer in {**self._links, **links}:
            self.link(peer).set(links.get(peer, NO_FAULTS))

    def reset(self) -> None:
        """Reset all connections."""
        for link in self._links.values():
            link.reset()

    async def connect(self, endpoint: Endpoint) -> Stream:
        """Open a connection. Raises `OSError`, after a minute if the link is cut."""
        link = self.link(str(endpoint))
        deadline = trio.current_time() + CONNECT_S_MAX
        if not await link.until(_is_any_lost, lambda: deadline):
            raise OSError(errno.ETIMEDOUT, f"cannot connect to {endpoint}: no answer")
        return FaultyStream(await self._network.connect(endpoint), link, is_outgoing=True)

    async def listen(self, endpoint: Endpoint) -> Listener:
        """Open a listening socket. Raises `OSError`."""
        listener = await self._network.listen(endpoint)
        peers = BROKERS if endpoint == self._for_brokers else CLIENTS
        return FaultyListener(listener, self.link(peers))

    async def connect_socket(self, endpoint: Endpoint) -> socket.socket:
        """Open a connection for a thread. Raises `OSError`.

        The returned socket is one end of a socket pair. Tasks of the event loop forward the bytes
        between the other end and a connection with faults.
        """
        stream = await self.connect(endpoint)
        inner, outer = socket.socketpair()
        outer.setblocking(False)
        pair_end = trio.SocketStream(trio.socket.from_stdlib_socket(inner))
        self._nursery.start_soon(_forward, stream, pair_end)
        return outer


async def _forward(stream: Stream, inner: trio.SocketStream) -> None:
    """Forward bytes in both directions until one side ends or breaks."""

    async def send() -> None:
        async with _ending_together(nursery):
            while data := await inner.receive_some(FORWARD_BYTES):
                await stream.send([data])

    async def receive() -> None:
        view = memoryview(bytearray(FORWARD_BYTES))
        async with _ending_together(nursery):
            while count := await stream.receive_into(view):
                await inner.send_all(bytes(view[:count]))

    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            nursery.start_soon(receive)
    finally:
        stream.close()
        inner.socket.close()


@asynccontextmanager
async def _ending_together(nursery: trio.Nursery) -> AsyncIterator[None]:
    with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
        yield
    nursery.cancel_scope.cancel()
