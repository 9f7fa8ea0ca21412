"""Reads in the event loop, which do not wait for the disk.

A look-up in a log reads headers of batches. In the loop it takes only what is in the page cache,
and raises `NotCached` where something is not. Its caller then has a worker thread read what is
missing into the cache (`ReadAhead`), with what the look-up will read next, and repeats the look-up
from its beginning.

So a worker only reads bytes, and drops them; it looks at no state of a log and changes none. While
it reads, the log may be appended to, truncated, compacted, rolled, deleted or closed: the loop
looks at the log as it is then. What the worker read of a truncated or closed file does not count.

After `READS_AHEAD_MAX` tries a look-up reads in the loop, as all do where the system cannot tell
what is cached. That many are needed only if the system drops pages as fast as they are read.

Rejected: to run the look-up itself in a worker. It uses the lists and indexes of the log, which the
loop changes, and each of its lines would be a race.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Final, Protocol, TypeVar

from minibroker.broker.log.files import File
from minibroker.broker.turns import Steps
from minibroker.protocol.types import Slice, StaleSlice

READS_AHEAD_MAX: Final = 8  # of one look-up: the index, its segment, transactions, and a few more
# Read in one step at least. An index entry is for a batch or two before the one that is looked for,
# which is why each read ahead goes so far beyond what is to be sent.
AHEAD_BYTES_MIN: Final = 128 * 1024
PIECE_BYTES: Final = 1024 * 1024  # held in memory by a read ahead

Result = TypeVar("Result")


class Readable(Protocol):
    """What a look-up needs of a file."""

    @property
    def size(self) -> int:
        """The size in bytes."""

    def read(self, position: int, size: int) -> bytes | bytearray:
        """Return up to `size` bytes; fewer at the end of the file."""


class ReadAhead:
    """A read for a worker thread: a function that fills the page cache."""

    __slots__ = ("_read",)

    def __init__(self, read: Callable[[], object]) -> None:
        self._read = read

    def __call__(self) -> bool:
        """Read. Return False if the disk refused: the look-up then meets that error itself. What
        became stale meanwhile needs not be read."""
        try:
            with suppress(StaleSlice):
                self._read()
        except OSError:
            return False
        return True


class NotCached(Exception):
    """A look-up in the loop would wait for the disk. `read_ahead` makes the read for a worker, of
    what is missing, and about so many bytes behind it."""

    def __init__(self, what: object, make_read: Callable[[int], Callable[[], object]]) -> None:
        super().__init__(f"{what} is not in the page cache")
        self._make_read = make_read

    def read_ahead(self, size: int = 0) -> ReadAhead:
        """Return the read for a worker. Called before other tasks run."""
        return ReadAhead(self._make_read(size))


class ReadFile(Protocol):
    """The file of a segment, and slices of it."""

    file: File

    @property
    def size(self) -> int:
        """The size in bytes."""

    def slice(self, position: int, end: int) -> Slice:
        """Return the bytes from `position` to `end`."""


class CachedReads:
    """Reads of a segment's file, for one turn of the loop. They raise `NotCached` instead of
    waiting for the disk."""

    __slots__ = ("_read", "_segment")

    def __init__(self, segment: ReadFile) -> None:
        self._segment = segment
        self._read = segment.file.read_cached

    @property
    def size(self) -> int:
        """The size of the file in bytes."""
        return self._segment.size

    def read(self, position: int, size: int) -> bytes | bytearray:
        """Return up to `size` bytes; fewer at the end of the file. Raises NotCached, OSError."""
        data = self._read(position, size)
        if data is None:
            raise self._not_cached(position, size)
        return data

    def require(self, position: int, size: int) -> None:
        """Raise NotCached if not all of these bytes are in the page cache."""
        if not self._segment.file.is_cached(position, size):
            raise self._not_cached(position, size)

    def _not_cached(self, position: int, size: int) -> NotCached:
        def make_read(size_more: int) -> Callable[[], object]:
            end = position + max(size, AHEAD_BYTES_MIN) + size_more
            part = self._segment.slice(position, min(end, self.size))
            return partial(_read_through, part)

        return NotCached(f"position {position} of {self._segment}", make_read)


def reading_ahead(look_up: Callable[[bool], Result], size: int = 0) -> Steps[Result]:
    """Return what `look_up(may_block)` returns. Where it raises NotCached, a worker reads that and
    about `size` bytes behind it, and it is repeated: the log may have changed meanwhile."""
    for _ in range(READS_AHEAD_MAX):
        try:
            return look_up(False)
        except NotCached as missing:
            read_ahead = missing.read_ahead(size)
        if not (yield read_ahead):
            break
    return look_up(True)


def read_slice(part: Slice, *, may_block: bool) -> bytes | bytearray:
    """Return the bytes of a slice. Raises NotCached unless it `may_block`."""
    data = part.read() if may_block else part.read_cached()
    if data is None:
        raise NotCached(part, lambda size: part.read)
    return data


def _read_through(part: Slice) -> None:
    pieces: Iterator[Slice] = part.pieces(PIECE_BYTES)
    for piece in pieces:
        piece.read()
