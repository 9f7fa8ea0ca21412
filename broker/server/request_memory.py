"""How much memory requests may take that have not come whole yet, all connections together.

A frame larger than the receive buffer grows in memory of its own as its bytes arrive. One of them
is bounded by `socket.request.max.bytes`; a hundred of them, sent half and left so, would be
gigabytes. Above `queued.max.request.bytes` the connection with the most is closed, until the sum
fits. That is the one that costs the others most, and never one with small requests as long as
there are larger ones; its client connects again and tries anew.

Rejected: not to read on until there is room. Frames that are all half finished would wait for each
other, and a silent peer would keep the room for as long as it is not closed for its silence.
"""

from typing import Protocol


class Holder(Protocol):
    """A connection."""

    def hang_up(self, reason: str) -> None:
        """Close it soon; what it holds is free then."""


class RequestMemory:
    """Who holds how many bytes of an unfinished request."""

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
        """Bytes held now."""
        return self._total
