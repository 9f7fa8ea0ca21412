"""Slices of a segment's file, which are sent without being read into Python.

A slice outlives the call that made it: its answer may wait behind a slow connection while the log
is truncated or the file removed, and then the same position of the descriptor has other bytes. So a
slice remembers its segment's generation, which every truncation and the closing of the file raise.
A slice of an older generation raises `StaleSlice`, and its connection is closed.
"""

from collections.abc import Iterator
from typing import Protocol

from minibroker.broker.descriptors import NO_DESCRIPTOR, NO_DESCRIPTORS
from minibroker.broker.log.files import OFFLINE, File
from minibroker.protocol.types import StaleSlice


class SlicedFile(Protocol):
    """The file of slices; `generation` grows when bytes are truncated or the file is closed."""

    file: File
    generation: int


class FileSlice:
    """Bytes `position` to `position + len(slice)` of a segment; see `protocol.types.Slice`."""

    __slots__ = ("_generation", "_size", "_sliced", "position")

    def __init__(self, sliced: SlicedFile, position: int, size: int) -> None:
        assert position >= 0
        assert size > 0
        self._sliced = sliced
        self._generation = sliced.generation
        self._size = size
        self.position = position

    def __len__(self) -> int:
        return self._size

    def __repr__(self) -> str:
        return f"FileSlice({self.position}, {self._size})"

    def fileno(self) -> int:
        """The descriptor; only to be used while `is_valid`, and before the next wait."""
        try:
            return self._sliced.file.fileno()
        except OSError as error:
            raise _unreadable(error) from error

    def is_valid(self) -> bool:
        """False once the segment was truncated or closed."""
        return self._sliced.generation == self._generation

    def pieces(self, bytes_max: int) -> Iterator["FileSlice"]:
        """Return the same bytes as slices of at most the given size."""
        for start in range(0, self._size, bytes_max):
            size = min(bytes_max, self._size - start)
            piece = FileSlice(self._sliced, self.position + start, size)
            piece._generation = self._generation
            yield piece

    def read(self) -> bytes:
        """Return the bytes. Checks after reading too: a worker may read while the log is cut, or
        while the segment is sealed and its first file closed."""
        while True:
            if not self.is_valid():
                raise StaleSlice("the log was cut")
            file = self._sliced.file
            try:
                data = file.read(self.position, self._size)
            except OSError as error:
                if not self.is_valid():
                    raise StaleSlice("the file was closed") from None
                if self._sliced.file is file:
                    raise _unreadable(error) from error
                continue
            if not self.is_valid():
                raise StaleSlice("the log was cut while it was read")
            if self._sliced.file is not file:
                continue
            if len(data) < self._size:
                raise StaleSlice("the log was cut while it was read")
            return data

    def read_cached(self) -> bytes | bytearray | None:
        """Do what `read` does if that does not wait for the disk; else return None. For the loop,
        which alone cuts logs."""
        if not self.is_valid():
            raise StaleSlice("the log was cut")
        try:
            data = self._sliced.file.read_cached(self.position, self._size)
        except OSError as error:
            raise _unreadable(error) from error
        if data is not None and len(data) < self._size:
            raise StaleSlice("the log was cut")
        return data

    def is_cached(self) -> bool:
        """Whether a read would not wait for the disk."""
        try:
            return self._sliced.file.is_cached(self.position, self._size)
        except OSError as error:
            raise _unreadable(error) from error


def _unreadable(error: OSError) -> Exception:
    """Return what a slice raises: `StaleSlice` if its file cannot be opened for now, or its
    directory is offline."""
    if error.errno == OFFLINE:
        return StaleSlice(str(error.strerror))
    return StaleSlice(NO_DESCRIPTOR) if error.errno in NO_DESCRIPTORS else error
