"""The limit on the memory of incomplete requests, over all connections together.

A frame larger than the receive buffer is collected in memory of its own as its bytes arrive.
`socket.request.max.bytes` bounds one frame; a hundred frames, half sent and left so, would take
gigabytes. While the sum exceeds `queued.max.request.bytes`, the connection that holds the most is
closed. So a connection with small requests is never closed while another holds a larger one. The
client of the closed connection connects and sends again.

Rejected: to stop reading until memory is free. Half-received frames would wait for each other, and
a silent peer would keep its memory until it is closed as idle.
"""

from typing import Protocol


class Holder(Protocol):
    """A connection that may hold an incomplete request."""

    def hang_up(self, reason: str) -> None:
        """Close the connection soon, which frees its memory."""


class RequestMemory:
    """The bytes that each connection holds of an incomplete request."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._held: dict[Holder, int] = {}
        self._total = 0  # the sum of `_held`, never above `_bytes_max` between two calls

    def set_held(self, holder: Holder, size: int) -> None:
        """Record that a connection now holds `size` bytes. Hang up on the largest holders while all
        together hold too much."""
        self._total += size - self._held.pop(holder, 0)
        if size:
            self._held[holder] = size
        while self._total > self._bytes_max:
            largest = max(self._held, key=self._held.__getitem__)
            largest_size = self._held.pop(largest)
            self._total -= largest_size
            largest.hang_up(
                f"unfinished requests take more than queued.max.request.bytes={self._bytes_max},"
                f" and its own is the largest, with {largest_size}"
            )

    def statistics(self) -> int:
        """Return the bytes held now."""
        return self._total
