"""A simulated network with the faults of TCP: `client.net.Network` in memory, on trio's (virtual)
time.

It models TCP, not packets: bytes arrive in order and once, or the connection breaks. They take a
random time, may arrive in other pieces than they were sent in, and only a limited number can be
under way, so that a peer that does not read blocks its sender. A link, from one named host to
another, can be

* held: what is sent stays under way, connecting takes until `release`; neither side sees an error;
* throttled: so many bytes per second;
* cut: its connections are reset and new ones fail until `mend`. Cut and reset concern both
  directions, hold and throttle one, because a one-way partition is a fault of its own.

A host that is stopped loses its connections and listeners, as a killed process does.

    network = SimulatedNetwork(random.Random(seed))
    await network.host("broker-1").listen(Endpoint("broker-1", 9092))
    network.hold("client", "broker-1")

Chance comes from the given generator, and nothing here iterates over a set, so a seed repeats.
"""

import errno
import math
import os
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import trio

from minibroker.client.net.network import COPIED_BYTES_MAX, Listener, Stream
from minibroker.protocol.types import BUFFERS, Buffer, Endpoint, Part, StaleSlice

OWN_ADDRESSES = ("", "0.0.0.0", "127.0.0.1", "localhost")
FIRST_FREE_PORT = 30_000


@dataclass(frozen=True, slots=True)
class NetworkOptions:
    """The network without faults. Delays are seconds, of one way."""

    delay_s_min: float = 0.0001
    delay_s_max: float = 0.001
    underway_bytes_max: int = 256 * 1024
    backlog: int = 1024


DEFAULT_OPTIONS = NetworkOptions()


class _Link:
    """One direction between two hosts: the faults of all connections on it."""

    def __init__(self) -> None:
        self.is_held = False
        self.is_cut = False
        self.bytes_per_s = math.inf
        self.changed = trio.lowlevel.ParkingLot()
        self.pipes: list[_Pipe] = []


class SimulatedNetwork:
    """The links between named hosts. `host(name)` is the network as that host uses it."""

    def __init__(self, rng: random.Random, options: NetworkOptions = DEFAULT_OPTIONS) -> None:
        self.rng = rng
        self.options = options
        self._hosts: dict[str, SimulatedHost] = {}
        self._links: dict[tuple[str, str], _Link] = {}

    def host(self, name: str) -> "SimulatedHost":
        """Return the network as one host uses it; add the host if it is new."""
        return self._hosts.setdefault(name, SimulatedHost(self, name))

    def find(self, name: str) -> "SimulatedHost | None":
        """Return a known host."""
        return self._hosts.get(name)

    def names(self) -> list[str]:
        """The names of the known hosts, in the order in which they were added."""
        return list(self._hosts)

    def link(self, source: str, target: str) -> _Link:
        """Return one direction between two hosts."""
        return self._links.setdefault((source, target), _Link())

    def draw_delay(self) -> float:
        """Return how long the next bytes take."""
        return self.rng.uniform(self.options.delay_s_min, self.options.delay_s_max)

    def hold(self, source: str, target: str) -> None:
        """Hold a direction: nothing arrives, not even what is under way."""
        self.link(source, target).is_held = True

    def release(self, source: str, target: str) -> None:
        """Let what was held arrive, in order, after a delay."""
        link = self.link(source, target)
        link.is_held = False
        for pipe in link.pipes:
            pipe.resume()
        link.changed.unpark_all()

    def throttle(self, source: str, target: str, bytes_per_s: float) -> None:
        """Slow one direction down, for what is sent from now on; `math.inf` ends it."""
        self.link(source, target).bytes_per_s = bytes_per_s

    def reset(self, one: str, other: str) -> None:
        """Reset all connections between two hosts; new ones are possible at once."""
        for pair in ((one, other), (other, one)):
            for pipe in list(self.link(*pair).pipes):
                pipe.reset()

    def cut(self, one: str, other: str) -> None:
        """Reset all connections between two hosts and refuse new ones until `mend`."""
        for pair in ((one, other), (other, one)):
            self.link(*pair).is_cut = True
            self.link(*pair).changed.unpark_all()
        self.reset(one, other)

    def mend(self, one: str, other: str) -> None:
        """Allow new connections again."""
        for pair in ((one, other), (other, one)):
            self.link(*pair).is_cut = False

    def heal(self) -> None:
        """End the faults of all links."""
        for (source, target), link in list(self._links.items()):
            link.is_cut = False
            link.bytes_per_s = math.inf
            if link.is_held:
                self.release(source, target)

    def stop_host(self, name: str) -> None:
        """The host's process died: reset its connections, close its listeners."""
        host = self.host(name)
        for listener in list(host.listeners.values()):
            listener.close()
        for source, target in list(self._links):
            if name in (source, target):
                self.reset(source, target)


class SimulatedHost:
    """`Network` for the code that runs on one host."""

    def __init__(self, network: SimulatedNetwork, name: str) -> None:
        self.name = name
        self.listeners: dict[int, SimulatedListener] = {}
        self._network = network
        self._next_port = FIRST_FREE_PORT

    async def connect(self, endpoint: Endpoint) -> Stream:
        """Open a connection; it takes the time of one way there and one back."""
        target = self.name if endpoint.host in OWN_ADDRESSES else endpoint.host
        for source, destination in ((self.name, target), (target, self.name)):
            await self._pass(self._network.link(source, destination), endpoint)
        host = self._network.find(target)
        listener = host.listeners.get(endpoint.port) if host else None
        if listener is None or len(listener.waiting) >= self._network.options.backlog:
            raise _failure(errno.ECONNREFUSED, f"cannot connect to {endpoint}")
        there = _Pipe(self._network, self.name, target)
        back = _Pipe(self._network, target, self.name)
        listener.offer(SimulatedStream(self.name, incoming=there, outgoing=back))
        return SimulatedStream(str(endpoint), incoming=back, outgoing=there)

    async def listen(self, endpoint: Endpoint) -> Listener:
        """Listen on a port of this host."""
        await trio.lowlevel.checkpoint()
        if endpoint.host not in (*OWN_ADDRESSES, self.name):
            raise _failure(errno.EADDRNOTAVAIL, f"cannot listen on {endpoint}")
        port = endpoint.port
        while port == 0:
            self._next_port += 1
            port = 0 if self._next_port in self.listeners else self._next_port
        if port in self.listeners:
            raise _failure(errno.EADDRINUSE, f"cannot listen on {endpoint}")
        self.listeners[port] = listener = SimulatedListener(self, Endpoint(endpoint.host, port))
        return listener

    async def _pass(self, link: _Link, endpoint: Endpoint) -> None:
        await trio.sleep(self._network.draw_delay())
        while link.is_held and not link.is_cut:
            await link.changed.park()
        if link.is_cut:
            raise _failure(errno.EHOSTUNREACH, f"cannot connect to {endpoint}")


def _failure(code: int, text: str) -> OSError:
    return OSError(code, f"{text}: {os.strerror(code)}")


class SimulatedListener:
    """`Listener` on one port of a host."""

    def __init__(self, host: SimulatedHost, endpoint: Endpoint) -> None:
        self._host = host
        self._endpoint = endpoint
        self._is_closed = False
        self._acceptors = trio.lowlevel.ParkingLot()
        self.waiting: deque[SimulatedStream] = deque()

    @property
    def endpoint(self) -> Endpoint:
        """The address of the listener."""
        return self._endpoint

    def offer(self, stream: "SimulatedStream") -> None:
        """Add a connection for the next `accept`."""
        self.waiting.append(stream)
        self._acceptors.unpark()

    async def accept(self) -> Stream:
        """Wait for the next connection."""
        await trio.lowlevel.checkpoint()
        while not self._is_closed:
            if self.waiting:
                return self.waiting.popleft()
            await self._acceptors.park()
        raise trio.ClosedResourceError("this listener was closed")

    def close(self) -> None:
        """Stop listening; reset connections that were not accepted."""
        if not self._is_closed:
            self._is_closed = True
            del self._host.listeners[self._endpoint.port]
            while self.waiting:
                self.waiting.popleft().reset()
            self._acceptors.unpark_all()


class SimulatedStream:
    """`Stream`: a pipe to read from and a pipe to write to."""

    def __init__(self, peer: str, *, incoming: "_Pipe", outgoing: "_Pipe") -> None:
        self._peer = peer
        self._incoming = incoming
        self._outgoing = outgoing
        self._is_closed = False

    @property
    def peer(self) -> str:
        """The peer's address."""
        return self._peer

    async def receive_into(self, view: memoryview) -> int:
        """Wait for bytes, then receive them."""
        await trio.lowlevel.checkpoint()
        while not self._is_closed:
            count = self._incoming.receive_into(view)
            if count is not None:
                return count
            await self._incoming.wait_for_bytes()
        raise trio.ClosedResourceError("this stream was closed")

    def send_now(self, parts: Sequence[Part]) -> Sequence[Part]:
        """Send a copy of as much as there is room for, but large slices as a socket does."""
        is_large = sum(map(len, parts)) > COPIED_BYTES_MAX
        if self._is_closed or (is_large and not BUFFERS.issuperset(map(type, parts))):
            return parts
        try:
            data = memoryview(b"".join(map(_bytes_of, parts)))
            unsent = data[self._outgoing.put(data) :]
        except (trio.BrokenResourceError, OSError, StaleSlice):
            return parts
        return [unsent] if unsent else []

    async def send(self, parts: Sequence[Part]) -> None:
        """Send a copy of the bytes, and the content that slices have when their turn comes."""
        await trio.lowlevel.checkpoint()
        if BUFFERS.issuperset(map(type, parts)):
            await self._send(b"".join(map(_bytes_of, parts)), lambda: True)
            return
        for part in parts:
            is_valid = (lambda: True) if isinstance(part, Buffer) else part.is_valid
            await self._send(_bytes_of(part), is_valid)

    async def _send(self, data: Buffer, is_valid: Callable[[], bool]) -> None:
        unsent = memoryview(data)
        while not self._is_closed:
            if not is_valid():
                raise StaleSlice("the log was cut while it was sent")
            unsent = unsent[self._outgoing.put(unsent) :]
            if not unsent:
                return
            await self._outgoing.wait_for_room()
        raise trio.ClosedResourceError("this stream was closed")

    def close(self) -> None:
        """Close at once: the peer reads what was sent and then the end."""
        if not self._is_closed:
            self._is_closed = True
            self._outgoing.end()
            self._incoming.stop_reading()

    def reset(self) -> None:
        """Break both directions."""
        self._incoming.reset()
        self._outgoing.reset()


def _bytes_of(part: Part) -> Buffer:
    return part if isinstance(part, Buffer) else part.read()


class _Pipe:
    """One direction of one connection: pieces of bytes with the times at which they arrive.

    Invariant: the times never fall, so bytes arrive in the order in which they were sent.
    """

    def __init__(self, network: SimulatedNetwork, source: str, target: str) -> None:
        self._network = network
        self._link = network.link(source, target)
        self._link.pipes.append(self)
        self._pieces: deque[tuple[float, bytes]] = deque()  # an empty piece is the end
        self._underway = 0
        self._busy_until = 0.0
        self._last_arrival = 0.0
        self._is_ended = False
        self._is_broken = False
        self._is_unread = False  # the reader has closed
        self._changed = trio.lowlevel.ParkingLot()

    def put(self, data: Buffer) -> int:
        """Send as many bytes as there is room for; return how many."""
        if self._is_broken or self._is_unread:
            raise trio.BrokenResourceError("the connection was reset")
        room = self._network.options.underway_bytes_max - self._underway
        piece = bytes(data[:room])
        if piece:
            self._underway += len(piece)
            self._append(piece)
        return len(piece)

    def end(self) -> None:
        """Handle that the sender has closed."""
        if not self._is_ended and not self._is_broken:
            self._is_ended = True
            self._append(b"")

    def receive_into(self, view: memoryview) -> int | None:
        """Receive what has arrived; 0 at the end, None if nothing has arrived."""
        if self._is_broken:
            raise trio.BrokenResourceError("the connection was reset")
        if self._link.is_held or not self._pieces:
            return None
        arrival, piece = self._pieces[0]
        if arrival > trio.current_time():
            return None
        size = min(len(piece), len(view))
        if size > 1 and self._network.rng.random() < 0.2:
            size = self._network.rng.randint(1, size)
        if piece:
            view[:size] = piece[:size]
            self._pieces.popleft()
            if size < len(piece):
                self._pieces.appendleft((arrival, piece[size:]))
            self._underway -= size
            self._changed.unpark_all()
        return size

    async def wait_for_bytes(self) -> None:
        """Wait until `receive_into` may find more than before."""
        is_coming = self._pieces and not self._link.is_held
        deadline = self._pieces[0][0] if is_coming else math.inf
        with trio.move_on_at(deadline):
            await self._changed.park()

    async def wait_for_room(self) -> None:
        """Wait until `put` may find more room than before."""
        await self._changed.park()

    def resume(self) -> None:
        """Handle that the link was released: what is under way arrives from now on."""
        soonest = trio.current_time() + self._network.draw_delay()
        late = [(max(arrival, soonest), piece) for arrival, piece in self._pieces]
        self._pieces = deque(late)
        self._last_arrival = max(self._last_arrival, soonest)
        self._changed.unpark_all()

    def stop_reading(self) -> None:
        """Handle that the reader has closed: to send more raises an error of a broken
        connection."""
        self._is_unread = True
        self._forget()

    def reset(self) -> None:
        """Break this direction for both sides."""
        self._is_broken = True
        self._forget()

    def _forget(self) -> None:
        self._pieces.clear()
        if self in self._link.pipes:
            self._link.pipes.remove(self)
        self._changed.unpark_all()

    def _append(self, piece: bytes) -> None:
        self._busy_until = max(self._busy_until, trio.current_time())
        self._busy_until += len(piece) / self._link.bytes_per_s
        arrival = self._busy_until + self._network.draw_delay()
        self._last_arrival = max(self._last_arrival, arrival)
        self._pieces.append((self._last_arrival, piece))
        self._changed.unpark_all()
