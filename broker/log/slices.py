"""A run of batches in a segment's file, sent to a client without being read into Python.

A slice outlives the call that made it: its answer may wait behind a slow connection while the log
is cut or the file removed, and then the same bytes of the same descriptor are others. So a slice
remembers its segment's generation, which every cut and the closing of the file raise; one that is
no longer true raises `StaleSlice`, and its connection is closed.
"""

from collections.abc import Iterator
from typing import Protocol

from minibroker.broker.log.files import File
from minibroker.protocol.types import StaleSlice


class Sliced(Protocol):
    """What a slice is of: a file, and how often what was written in it was taken back."""

    file: File
    generation: int


class FileSlice:
    """Bytes `position` to `position + len(slice)` of a segment; see `protocol.types.Slice`."""

    __slots__ = ("_generation", "_of", "_size", "position")

    def __init__(self, of: Sliced, position: int, size: int) -> None:
        assert position >= 0
        assert size > 0
        self._of = of
        self._generation = of.generation
        self._size = size
        self.position = position

    def __len__(self) -> int:
        return self._size

    def __repr__(self) -> str:
        return f"FileSlice({self.position}, {self._size})"

    def fileno(self) -> int:
        """The descriptor; only to be used while `is_valid`."""
        return self._of.file.fileno()

    def is_valid(self) -> bool:
        """False once the segment was cut or closed."""
        return self._of.generation == self._generation

    def pieces(self, bytes_max: int) -> Iterator["FileSlice"]:
        """The same bytes, in slices of at most so many."""
        for start in range(0, self._size, bytes_max):
            piece = FileSlice(self._of, self.position + start, min(bytes_max, self._size - start))
            piece._generation = self._generation
            yield piece

    def read(self) -> bytes:
        """The bytes. Checked after reading too, because a worker may read while the loop cuts."""
        if not self.is_valid():
            raise StaleSlice("the log was cut")
        try:
            data = self._of.file.read(self.position, self._size)
        except OSError:
            if self.is_valid():
                raise
            raise StaleSlice("the file was closed") from None
        if len(data) < self._size or not self.is_valid():
            raise StaleSlice("the log was cut while it was read")
        return data

    def is_cached(self) -> bool:
        """Whether a read would not wait for the disk."""
        return self._of.file.is_cached(self.position, self._size)
