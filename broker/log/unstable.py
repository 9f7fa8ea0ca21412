"""The transactions of a log that hold its last stable offset back.

Below the last stable offset all transactions are decided, and no later leader can decide otherwise:
it is the first offset of the first transaction that is open, or whose marker is not committed yet,
and at most the high watermark. A transaction's marker counts as committed for good once a high
watermark above it was seen.

Transactions begin in the order of their first offsets, and end in any order.
"""

from collections import OrderedDict
from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from typing import NamedTuple


class EndedTransaction(NamedTuple):
    """A transaction whose marker, at the offset `marker`, may not be committed yet."""

    first_offset: int
    marker: int


class UnstableTransactions:
    """See the head of this file."""

    def __init__(self) -> None:
        self._open: OrderedDict[int, None] = OrderedDict()  # first offsets, ascending
        self._ended: list[EndedTransaction] = []  # a heap

    def __bool__(self) -> bool:
        return bool(self._open or self._ended)

    def restore(self, open_at: Iterable[int], ended: Iterable[EndedTransaction]) -> None:
        """Set the transactions: the first offsets of those that are open, and the ended ones."""
        self._open = OrderedDict.fromkeys(sorted(open_at))
        self._ended = [*ended]
        heapify(self._ended)

    def begin(self, first_offset: int) -> None:
        """Add a transaction that begins at an offset, which is above all others."""
        self._open[first_offset] = None

    def end(self, first_offset: int, marker: int) -> None:
        """Record that a transaction has a marker, at an offset."""
        del self._open[first_offset]
        heappush(self._ended, EndedTransaction(first_offset, marker))

    def first_open(self) -> int | None:
        """Return the first offset of the first open transaction; None without one."""
        return next(iter(self._open), None)

    def last_stable(self, high_watermark: int) -> int:
        """Return the last stable offset, for a log that is committed up to an offset."""
        stable = high_watermark
        ended = self._ended
        while ended and ended[0].marker < high_watermark:
            heappop(ended)
        if ended:
            stable = min(stable, ended[0].first_offset)
        if self._open:
            stable = min(stable, next(iter(self._open)))
        return stable

    def open_count(self) -> int:
        """Return how many transactions are open."""
        return len(self._open)

    def ended(self) -> list[EndedTransaction]:
        """Return the transactions whose markers may not be committed yet, by first offset."""
        return sorted(self._ended)
