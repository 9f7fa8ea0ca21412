"""Splits received bytes into frames: `length (u32) | length bytes`, one after another.

The reader owns no socket. Its driver asks it for `space`, receives into that, reports with
`received` how many bytes arrived, and handles the frames; before any wait it calls `park`.

The design saves memory. Bytes arrive in a buffer that all connections share; a frame is a view of
it, valid until the next wait. `park` copies the bytes of an unfinished frame out of the buffer, and
the next `received` copies them back, so an idle connection holds no memory and an unfinished frame
only the bytes that arrived. A frame that the shared buffer cannot hold gets its own memory, which
doubles as bytes arrive: a length is only a claim, and nothing is allocated because of it. That
memory is written once, so a frame in it stays valid as long as it is referenced.

Rejected: receiving exactly one frame at a time, or into a fresh buffer for each; both halve the
throughput at 16 KB a request.
"""

from collections.abc import Iterator
from struct import Struct

from minibroker.protocol.errors import ProtocolError

_LENGTH = Struct(">I")
_LENGTH_BYTES = _LENGTH.size
_NOTHING = memoryview(b"")


class FrameReader:
    """The unread bytes of one connection: `_memory[_start:_end]`.

    `_is_borrowed`: this is the shared buffer (from `received` to `park`). `_fills_shared`: the last
    `space` was in the shared buffer.
    """

    __slots__ = ("_end", "_fills_shared", "_frame_bytes_max", "_is_borrowed", "_memory", "_start")

    def __init__(self, frame_bytes_max: int) -> None:
        self._frame_bytes_max = frame_bytes_max
        self._memory = _NOTHING
        self._start = 0
        self._end = 0
        self._is_borrowed = False
        self._fills_shared = False

    @property
    def unfinished_size(self) -> int:
        """The bytes that arrived of an unfinished frame; 0 between frames."""
        return self._end - self._start

    @property
    def held_size(self) -> int:
        """The bytes of this reader's own memory, between `park` and the next `received`."""
        assert not self._is_borrowed, "it holds the shared buffer"
        return len(self._memory)

    def space(self, shared: memoryview) -> memoryview:
        """Return the memory to receive the next bytes into; never empty."""
        assert not self._is_borrowed, "park before waiting"
        unfinished = self._end - self._start
        self._fills_shared = unfinished < len(shared) // 2 or self._size_of_next() <= len(shared)
        if self._fills_shared:
            return shared[unfinished:]
        if self._end == len(self._memory):
            grown = memoryview(bytearray(min(self._size_of_next(), 2 * unfinished)))
            grown[:unfinished] = self._memory[self._start : self._end]
            self._memory, self._start, self._end = grown, 0, unfinished
        return self._memory[self._end :]

    def received(self, count: int, shared: memoryview) -> Iterator[memoryview]:
        """Yield the complete frames, now that `count` more bytes are in the last `space`.

        Frames come without their length. Each is valid until the next wait; iterate to the end.
        Raises `ProtocolError` at a length that no frame may have, after the frames before it.
        """
        if self._fills_shared:
            unfinished = self._end - self._start
            shared[:unfinished] = self._memory[self._start : self._end]
            self._memory, self._start, self._end = shared, 0, unfinished
            self._is_borrowed = True
        self._end += count
        while self._start < self._end:
            size = self._size_of_next()
            if size > self._end - self._start:
                return
            start, self._start = self._start, self._start + size
            yield self._memory[start + _LENGTH_BYTES : start + size]

    def park(self) -> None:
        """Release the shared buffer; allowed also while iterating over `received`."""
        if self._start == self._end:
            self._memory = _NOTHING
            self._start = self._end = 0
        elif self._is_borrowed:
            self._memory = memoryview(bytearray(self._memory[self._start : self._end]))
            self._start, self._end = 0, len(self._memory)
        self._is_borrowed = False

    def _size_of_next(self) -> int:
        """Return the size of the next frame with its length; of its length only while unknown."""
        if self._end - self._start < _LENGTH_BYTES:
            return _LENGTH_BYTES
        length: int = _LENGTH.unpack_from(self._memory, self._start)[0]
        if not 0 < length <= self._frame_bytes_max:
            raise ProtocolError(f"a frame of {length} bytes; 1 to {self._frame_bytes_max} may be")
        return _LENGTH_BYTES + length
