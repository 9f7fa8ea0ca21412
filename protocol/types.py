"""Small values that every part uses: names of partitions, endpoints, record bytes."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol, TypeAlias

# Anything with the buffer protocol that this project passes around.
Buffer: TypeAlias = bytes | bytearray | memoryview


class TopicPartition(NamedTuple):
    """A partition's name. A tuple, because it is the key of nearly every table."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class OffsetAndEpoch(NamedTuple):
    """An offset, and the leader epoch it belongs to (-1: not known)."""

    offset: int
    leader_epoch: int


class Endpoint(NamedTuple):
    """Where a broker listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class NamedEndpoint(NamedTuple):
    """One of a broker's listeners: its name, and where it is."""

    name: str
    host: str
    port: int

    @property
    def endpoint(self) -> Endpoint:
        """Where it is, without its name."""
        return Endpoint(self.host, self.port)

    def __str__(self) -> str:
        return f"{self.name}://{self.endpoint}"


class Slice(Protocol):
    """A run of bytes in an open file, sent without being read into Python.

    Declared here because the wires put slices into answers and streams send them; the broker's
    log makes them. `len()` is its size in bytes.
    """

    @property
    def position(self) -> int:
        """First byte, counted from the start of the file."""

    def __len__(self) -> int: ...

    def fileno(self) -> int:
        """The file for `sendfile`, or -1 where the disk is simulated."""

    def pieces(self, bytes_max: int) -> "Iterator[Slice]":
        """The same bytes, in slices of at most so many."""

    def read(self) -> bytes:
        """The bytes. Raises `StaleSlice` if the log was cut since the slice was made."""

    def is_valid(self) -> bool:
        """False once the log was truncated: the bytes may now be of another epoch."""

    def is_cached(self) -> bool:
        """Whether a read would not wait for the disk."""


class StaleSlice(Exception):
    """A slice whose log was truncated, or whose file ended early; its connection is closed."""


# Whole record batches, end to end: bytes at a client, a slice of a log in a broker's answer,
# a view of the receive buffer in a request (it dies with the handler's call).
Records: TypeAlias = Buffer | Slice | Sequence[Slice]
EMPTY_RECORDS: Records = b""

# What a frame is sent as: bytes, and slices of files between them.
Part: TypeAlias = Buffer | Slice


def records_size(records: Records) -> int:
    """Bytes of records in any of their forms."""
    if isinstance(records, list | tuple):
        return sum(map(len, records))
    return len(records)
