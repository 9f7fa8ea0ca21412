"""The newest offset of each key in the dirty part of a log: what compaction decides by.

The map has a limit in bytes, by an estimate of what an entry takes. Where a log has more keys than
that, compaction stops at the batch whose keys do not fit, and goes on from there the next time. A
long key is replaced by a digest that nobody can forge: a map of keys of a megabyte is small, too.

Once all keys are there, the offsets are sorted: those that lie between the first and the last
offset of a batch that was read are the records of it that stay, and mostly there are none. They
are sorted and merged some at a time, because a worker thread that sorts holds the interpreter.
"""

from bisect import bisect_left
from collections.abc import Sequence
from hashlib import blake2b
from heapq import merge
from itertools import islice
from typing import Final, cast

from minibroker.broker.turns import Steps

_KEY_BYTES_MAX: Final = 32  # of a key that is kept as it is
_DIGEST_BYTES: Final = 33  # more than that, so that no short key is a digest
# A bytes object (33 and its content), an int, a place in a dict that is half full; and three places
# in lists while the offsets are sorted.
ENTRY_BYTES: Final = 234
SORTED_AT_ONCE: Final = 10_000  # offsets, in one step: some milliseconds


class NewestOffsets:
    """See the head of this file. `start` is the offset from which on keys were added, `end` the one
    behind the last batch that was added."""

    def __init__(self, bytes_max: int, start: int) -> None:
        self.start = start
        self.end = start
        self._entries_max = max(1, bytes_max // ENTRY_BYTES)
        self._offsets: dict[bytes, int] = {}
        self._sorted: list[int] = []

    def __len__(self) -> int:
        return len(self._offsets)

    @property
    def size(self) -> int:
        """About how many bytes the map takes."""
        return len(self._offsets) * ENTRY_BYTES

    def add(self, keys: Sequence[bytes | None], offsets: Sequence[int], end: int) -> bool:
        """Add the records of a batch that ends before the offset `end`; return False, and add
        nothing, if they do not fit. The first batch fits always."""
        if None in keys:
            offsets = [at for key, at in zip(keys, offsets, strict=True) if key is not None]
            names = _names([key for key in keys if key is not None])
        else:
            names = _names(cast(Sequence[bytes], keys))
        known = self._offsets
        if known and len(known) + len(names) > self._entries_max:
            new = sum([name not in known for name in {*names}])
            if len(known) + new > self._entries_max:
                return False
        known.update(zip(names, offsets, strict=True))
        self.end = end
        return True

    def sort(self) -> Steps[None]:
        """Sort the offsets, once all keys were added."""
        offsets = iter(self._offsets.values())
        runs: list[list[int]] = []
        while run := (yield lambda: sorted(islice(offsets, SORTED_AT_ONCE))):
            runs.append(run)
        self._sorted = runs.pop() if len(runs) == 1 else []
        merged = merge(*runs)
        while some := (yield lambda: [*islice(merged, SORTED_AT_ONCE)]):
            self._sorted += some

    def kept_in(self, base_offset: int, next_offset: int) -> Sequence[int] | None:
        """Return the offsets of a batch that are the newest of their keys, after `sort`; None if
        not all of the batch was added."""
        if not self.start <= base_offset < next_offset <= self.end:
            return None
        offsets = self._sorted
        first = bisect_left(offsets, base_offset)
        if first == len(offsets) or offsets[first] >= next_offset:
            return ()
        return offsets[first : bisect_left(offsets, next_offset, first)]

    def are_newest(self, keys: Sequence[bytes], offsets: Sequence[int]) -> list[bool]:
        """Return for each record whether no later one below `end` has its key."""
        newest = map(self._offsets.get, _names(keys))
        return [
            known is None or known <= offset for known, offset in zip(newest, offsets, strict=True)
        ]


def _names(keys: Sequence[bytes]) -> Sequence[bytes]:
    """Return the keys, with the digests of long ones; no key that is short is a digest."""
    if max(map(len, keys), default=0) <= _KEY_BYTES_MAX:
        return keys
    return [
        key if len(key) <= _KEY_BYTES_MAX else blake2b(key, digest_size=_DIGEST_BYTES).digest()
        for key in keys
    ]
