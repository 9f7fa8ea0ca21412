"""The limit on the memory that clients make a broker hold, all of them together.

It counts:

* requests that have not come whole: a frame larger than the receive buffer is collected in memory
  of its own as its bytes arrive. `socket.request.max.bytes` bounds one frame; a hundred frames,
  half sent and left so, would take gigabytes;
* requests that wait for their turn or in the purgatory, and their responses until they are sent;
* fetch sessions, which stay when their connection has ended.

While the sum exceeds `queued.max.request.bytes`, the largest holder is closed: first among those
that belong to no connection any more, then among all. So a connection with small requests is never
closed while another holds larger ones. The client of a closed connection connects and sends again;
one that has lost its fetch session opens another.

Rejected: to stop reading until memory is free. Half-received frames would wait for each other, and
a silent peer would keep its memory until it is closed as idle. Only a connection whose own waiting
requests hold too much is read no further (`session.py`).
"""

from dataclasses import is_dataclass
from typing import Any, Final, Protocol

# A decoded request, and what waits for its response, by the size of its frame.
DECODED_SIZE_FACTOR: Final = 16
# One partition of a fetch session, and one element of a response that was made in turns.
ELEMENT_BYTES: Final = 500
# What a holder may hold uncounted: most requests are smaller, and counting each would cost time.
UNCOUNTED_BYTES: Final = 16 * 1024
_SAMPLE: Final = 100


class Holder(Protocol):
    """A connection or a fetch session."""

    @property
    def is_abandoned(self) -> bool:
        """Whether its connection has ended."""

    def hang_up(self, reason: str) -> None:
        """Close it soon, which frees its memory."""


class RequestMemory:
    """The bytes that each connection and each fetch session holds, about."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._held: dict[Holder, int] = {}
        self._total = 0  # the sum of `_held`, never above `_bytes_max` between two calls

    def set_held(self, holder: Holder, size: int) -> None:
        """Record that a holder now holds `size` bytes. Close the largest holders while all together
        hold too much."""
        self._total += size - self._held.pop(holder, 0)
        if size:
            self._held[holder] = size
        while self._total > self._bytes_max:
            largest = max(self._held, key=self._rank)
            largest_size = self._held.pop(largest)
            self._total -= largest_size
            largest.hang_up(
                f"requests take more than queued.max.request.bytes={self._bytes_max},"
                f" and its own take the most, {largest_size}"
            )

    def _rank(self, holder: Holder) -> tuple[bool, int]:
        return holder.is_abandoned, self._held[holder]

    def statistics(self) -> int:
        """Return the bytes held now."""
        return self._total


def size_of_response(response: object) -> int:
    """Return about how many bytes a response takes: by the elements of its arrays, and of arrays in
    these, which are estimated from the first ones."""
    count = 0
    for array in _arrays(response):
        count += len(array)
        first = [len(nested) for each in array[:_SAMPLE] for nested in _arrays(each)]
        count += sum(first) * len(array) // min(len(array), _SAMPLE)
    return count * ELEMENT_BYTES


def _arrays(message: Any) -> list[tuple[Any, ...]]:
    """Return the arrays that are not empty of a message; none of a plain value."""
    names = (
        message.__dataclass_fields__ if is_dataclass(message) else getattr(message, "_fields", ())
    )
    values = [getattr(message, name) for name in names]
    return [value for value in values if type(value) is tuple and value]
