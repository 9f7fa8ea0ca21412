"""The interface of the network, and its real implementation; channel.py uses it.

A simulation replaces `Network`, `Listener` and `Stream`. They are smaller than trio's own because
the hot path needs three things that trio's streams do not offer: receiving into a buffer that many
connections share, sending many buffers in one call, and sending file slices.
"""

import errno
import os
import socket
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import trio

from minibroker.protocol.types import BUFFERS, Buffer, Endpoint, Part, Slice, StaleSlice

BACKLOG = 1024
BUFFERS_MAX = 1024  # of one sendmsg: the smallest IOV_MAX among the supported systems
COPIED_BYTES_MAX = 64 * 1024  # slices up to this size in all are read and sent with their header
PIECE_BYTES_MAX = 1024 * 1024  # of one sendfile, which blocks the loop
SILENT_S_MAX = 6  # within which the peer's system must acknowledge
PROBE_EVERY_S = 2


class Stream(Protocol):
    """One TCP connection. One task may receive while another sends, but not two of either.

    A connection that was reset, or that the peer closed while we send, raises
    `trio.BrokenResourceError`; use after `close` raises `trio.ClosedResourceError`.
    """

    @property
    def peer(self) -> str:
        """The peer's address, for log lines."""

    async def receive_into(self, view: memoryview) -> int:
        """Wait for bytes, put them into `view`, return how many; 0 when the peer has closed.

        Always a checkpoint, before the bytes are received and never after: no other task runs
        between their arrival in `view` and the return, so connections may share one buffer.
        """

    def send_now(self, parts: Sequence[Part]) -> Sequence[Part]:
        """Send what can be sent without waiting; return the rest. Not while a `send` is under way.

        Never raises: `send`, given the rest, raises what is wrong with the connection or a slice.
        """

    async def send(self, parts: Sequence[Part]) -> None:
        """Send bytes, and those of slices, in order; a checkpoint. No part is kept once it returns.
        Raises `StaleSlice` if the file has changed under a slice."""

    def close(self) -> None:
        """Close at once, without waiting; may be called twice."""


class Listener(Protocol):
    """A listening socket."""

    @property
    def endpoint(self) -> Endpoint:
        """The bound address (port 0 asks the system for a free one)."""

    async def accept(self) -> Stream:
        """Wait for the next connection."""

    def close(self) -> None:
        """Stop listening; may be called twice."""


class Network(Protocol):
    """Makes connections. A failure to connect or listen is an `OSError` with a message."""

    async def connect(self, endpoint: Endpoint) -> Stream:
        """Open a connection."""

    async def listen(self, endpoint: Endpoint) -> Listener:
        """Listen on an address. An address in use is an `OSError`."""


class InWorker(Protocol):
    """Runs a blocking call in a worker and returns its result."""

    async def __call__(self, call: Callable[[], bytes], /) -> bytes: ...


class TcpNetwork:
    """The real network.

    `in_worker` reads a file slice that is not in the page cache; it is needed only to send slices.
    """

    def __init__(self, in_worker: InWorker | None = None) -> None:
        self._in_worker = in_worker

    async def connect(self, endpoint: Endpoint) -> Stream:
        """Open a connection to the first address of the host that answers."""
        return TcpStream(await connected_socket(endpoint), self._in_worker)

    async def listen(self, endpoint: Endpoint) -> Listener:
        """Listen on the first address of the host."""
        family, kind, protocol, _, address = (await _addresses(endpoint))[0]
        listening = socket.socket(family, kind, protocol)
        try:
            listening.setblocking(False)
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(address)
            listening.listen(BACKLOG)
        except OSError as error:
            listening.close()
            reason = f"cannot listen on {endpoint}: {error.strerror}"
            raise OSError(error.errno, reason) from error
        return TcpListener(listening, self._in_worker)


async def connected_socket(
    endpoint: Endpoint, make: Callable[[int, int, int], socket.socket] = socket.socket
) -> socket.socket:
    """Return a non-blocking socket, made by `make`, that is connected to the first address of the
    host that answers. It breaks when its network path does, see `_break_when_silent`.

    Raises `OSError` with a message.
    """
    failure = OSError(f"no address of {endpoint.host}")
    for family, kind, protocol, _, address in await _addresses(endpoint):
        connection = make(family, kind, protocol)
        try:
            await _connect(connection, address)
            _break_when_silent(connection)
        except OSError as error:
            connection.close()
            failure = error
        except BaseException:
            connection.close()
            raise
        else:
            return connection
    reason = failure.strerror or failure
    raise OSError(failure.errno, f"cannot connect to {endpoint}: {reason}") from failure


def _break_when_silent(connection: socket.socket) -> None:
    """Have the system break the connection when the peer's system has acknowledged nothing for some
    seconds.

    Without this a network that loses packets, both ways or one, breaks no connection. A lost answer
    would be waited for until the request's time-out, or until the peer sends it again: after a
    pause that grows as long as the network was broken. A new connection takes only a second or two.

    A busy or stopped peer is not silent, because its system acknowledges; only if its buffers stay
    full for that time does it count as such. Only the connecting side sets this: the other side is
    told of the end, or waits for nothing.
    """
    options = (
        (socket.SOL_SOCKET, "SO_KEEPALIVE", 1),
        (socket.IPPROTO_TCP, "TCP_KEEPIDLE", PROBE_EVERY_S),  # while nothing is under way,
        (socket.IPPROTO_TCP, "TCP_KEEPINTVL", PROBE_EVERY_S),
        (socket.IPPROTO_TCP, "TCP_KEEPCNT", SILENT_S_MAX // PROBE_EVERY_S),
        (socket.IPPROTO_TCP, "TCP_USER_TIMEOUT", SILENT_S_MAX * 1000),  # and while something is
    )
    for level, name, value in options:
        if hasattr(socket, name):  # not every system has all of them
            connection.setsockopt(level, getattr(socket, name), value)


async def _addresses(endpoint: Endpoint) -> "list[Any]":
    try:
        return await trio.socket.getaddrinfo(*endpoint, type=socket.SOCK_STREAM)
    except OSError as error:
        raise OSError(error.errno, f"{endpoint.host} has no address: {error.strerror}") from error
    except UnicodeError as error:  # the name has an empty label, or one that is too long
        raise OSError(errno.EINVAL, f"{endpoint.host!r} is no host name") from error


async def _connect(connection: socket.socket, address: Any) -> None:
    connection.setblocking(False)
    code = connection.connect_ex(address)
    if code == errno.EINPROGRESS:
        await trio.lowlevel.wait_writable(connection)
        code = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if code:
        raise OSError(code, os.strerror(code))


class TcpListener:
    """A listening socket; see `Listener`."""

    def __init__(self, listening: socket.socket, in_worker: InWorker | None) -> None:
        self._socket = listening
        self._in_worker = in_worker
        self._endpoint = Endpoint(*listening.getsockname()[:2])

    @property
    def endpoint(self) -> Endpoint:
        """The bound address."""
        return self._endpoint

    async def accept(self) -> Stream:
        """Wait for the next connection. Raises `OSError` if the system has no descriptors or
        memory."""
        await trio.lowlevel.checkpoint()
        while True:
            if self._socket.fileno() < 0:
                raise trio.ClosedResourceError("this listener was closed")
            try:
                connection, _ = self._socket.accept()
            except BlockingIOError:
                await trio.lowlevel.wait_readable(self._socket)
            except ConnectionError:
                continue  # the peer reset it before it was accepted
            else:
                return TcpStream(connection, self._in_worker)

    def close(self) -> None:
        """Stop listening."""
        _close(self._socket)


class TcpStream:
    """A connected socket; see `Stream`."""

    def __init__(self, connection: socket.socket, in_worker: InWorker | None) -> None:
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = connection
        self._in_worker = in_worker
        # The last receive took all there was, so the next one waits at once: that saves one
        # system call and one turn of the loop for each request and answer.
        self._is_drained = True
        try:
            self._peer = str(Endpoint(*connection.getpeername()[:2]))
        except OSError:
            self._peer = "a peer that has gone"

    @property
    def peer(self) -> str:
        """The peer's address, for log lines."""
        return self._peer

    async def receive_into(self, view: memoryview) -> int:
        """Wait for bytes, then receive them."""
        if self._is_drained:
            await trio.lowlevel.wait_readable(self._open_socket())
        else:
            await trio.lowlevel.checkpoint()
        while True:
            try:
                count = self._open_socket().recv_into(view)
            except BlockingIOError:
                await trio.lowlevel.wait_readable(self._socket)
            except OSError as error:
                raise trio.BrokenResourceError(f"{self._peer}: {error.strerror}") from error
            else:
                self._is_drained = count < len(view)
                return count

    def send_now(self, parts: Sequence[Part]) -> Sequence[Part]:
        """Send in one system call. Small slices are read before, if they are in the page cache."""
        try:
            buffers: Any = parts
            if not BUFFERS.issuperset(map(type, parts)):
                buffers = self._read_now(parts)
            return _unsent(buffers, self._socket.sendmsg(buffers[:BUFFERS_MAX]))
        except (OSError, StaleSlice):  # a BlockingIOError, too
            return parts

    async def send(self, parts: Sequence[Part]) -> None:
        """In as few calls as the system allows. Small slices are read before; large ones go from
        file to socket.

        The socket is not corked while it waits: the kernel would hold back a partial packet for 200
        ms.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        if sum(map(len, parts)) <= COPIED_BYTES_MAX:
            await self._send_all(
                [part if isinstance(part, Buffer) else await self._read(part) for part in parts]
            )
        else:
            buffers: list[Buffer] = []  # between two slices: one call sends them
            for part in parts:
                if isinstance(part, Buffer):
                    buffers.append(part)
                    continue
                await self._send_all(buffers)
                buffers = []
                for piece in part.pieces(PIECE_BYTES_MAX):
                    await self._send_piece(piece)
            await self._send_all(buffers)
        await trio.lowlevel.cancel_shielded_checkpoint()

    def close(self) -> None:
        """Close at once; tasks that wait for this stream get `ClosedResourceError`."""
        _close(self._socket)

    def _open_socket(self) -> socket.socket:
        if self._socket.fileno() < 0:
            raise trio.ClosedResourceError("this stream was closed")
        return self._socket

    async def _send_all(self, buffers: Sequence[Buffer]) -> None:
        unsent = buffers
        while unsent:
            try:
                count = self._open_socket().sendmsg(unsent[:BUFFERS_MAX])
            except BlockingIOError:
                await trio.lowlevel.wait_writable(self._socket)
            except OSError as error:
                raise trio.BrokenResourceError(f"{self._peer}: {error.strerror}") from error
            else:
                unsent = _unsent(unsent, count)

    async def _send_piece(self, piece: Slice) -> None:
        """Send a piece of a slice. Each piece is checked, because behind a slow peer the page cache
        may change meanwhile.

        What is not cached is read into the cache and dropped: no memory is held while waiting for
        the peer.
        """
        if self._in_worker is not None and piece.is_valid() and not piece.is_cached():
            await self._in_worker(piece.read)
        if piece.fileno() < 0:
            await self._send_all([piece.read()])
            return
        position, end = piece.position, piece.position + len(piece)
        while position < end:
            if not piece.is_valid():
                raise StaleSlice("the log was cut while it was sent")
            try:
                count = os.sendfile(
                    self._open_socket().fileno(), piece.fileno(), position, end - position
                )
            except BlockingIOError:
                await trio.lowlevel.wait_writable(self._socket)
            except OSError as error:
                if error.errno == errno.EIO:
                    raise  # an error of the disk, not of the peer
                raise trio.BrokenResourceError(f"{self._peer}: {error.strerror}") from error
            else:
                if count == 0:
                    raise StaleSlice("the file ended before its slice")
                position += count
                await trio.lowlevel.checkpoint()

    def _read_now(self, parts: Sequence[Part]) -> Sequence[Buffer]:
        """Raises `BlockingIOError` for what takes long."""
        if sum(map(len, parts)) > COPIED_BYTES_MAX:
            raise BlockingIOError
        buffers: list[Buffer] = []
        for part in parts:
            if isinstance(part, Buffer):
                buffers.append(part)
                continue
            data = part.read() if self._in_worker is None else part.read_cached()
            if data is None:
                raise BlockingIOError
            buffers.append(data)
        return buffers

    async def _read(self, part: Slice) -> Buffer:
        if self._in_worker is None:
            return part.read()
        data = part.read_cached()
        return await self._in_worker(part.read) if data is None else data


def _unsent(buffers: Sequence[Buffer], count: int) -> Sequence[Buffer]:
    """Return what remains of the buffers after their first `count` bytes."""
    for index, buffer in enumerate(buffers):
        if count < len(buffer):
            return [memoryview(buffer)[count:], *buffers[index + 1 :]]
        count -= len(buffer)
    return ()


def _close(connection: socket.socket) -> None:
    if connection.fileno() >= 0:
        trio.lowlevel.notify_closing(connection)
        connection.close()
