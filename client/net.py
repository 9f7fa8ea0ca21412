"""The network as this project sees it, and one outgoing RPC channel for everybody.

`Network`, `Listener` and `Stream` are what a simulation replaces. They are smaller than trio's own
because the hot path needs three things that trio's streams do not offer: receiving into a buffer
that many connections share, sending many buffers in one call, and sending file slices.
"""

from collections.abc import Sequence
from typing import Protocol

from minibroker.protocol.types import Buffer, Endpoint, Slice


class Stream(Protocol):
    """One TCP connection. One task may receive while another sends; not two of either.

    A connection that was reset, or that the peer closed while we send, raises
    `trio.BrokenResourceError`; use after `close` raises `trio.ClosedResourceError`.
    """

    @property
    def peer(self) -> str:
        """The other side, for log lines."""

    async def receive_into(self, view: memoryview) -> int:
        """Wait for bytes, put them into `view`, return how many; 0 when the peer has ended.

        Always a checkpoint, but before the bytes are taken and never after: between their
        arrival in `view` and the return nothing else runs, so connections may share one buffer.
        """

    async def send(self, buffers: Sequence[Buffer]) -> None:
        """Send all of them in order; a checkpoint. Nothing is kept once it returns."""

    async def send_slices(self, header: Buffer, slices: Sequence[Slice]) -> None:
        """Send `header`, then the slices' bytes. Raises `StaleSlice` when one is no longer true."""

    def close(self) -> None:
        """Close at once, without waiting; may be called twice."""


class Listener(Protocol):
    """A listening socket."""

    @property
    def endpoint(self) -> Endpoint:
        """Where it really listens (port 0 asks the system for a free one)."""

    async def accept(self) -> Stream:
        """Wait for the next connection."""

    def close(self) -> None:
        """Stop listening; may be called twice."""


class Network(Protocol):
    """Makes connections. Failure to connect or listen is an `OSError` with a message."""

    async def connect(self, endpoint: Endpoint) -> Stream:
        """Open a connection."""

    async def listen(self, endpoint: Endpoint) -> Listener:
        """Listen; the address being taken is an `OSError`."""
