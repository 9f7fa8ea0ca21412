"""Small value types that all parts use: names of partitions, endpoints, record bytes."""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, Protocol, TypeAlias, get_args

# The types with the buffer protocol that this project uses.
Buffer: TypeAlias = bytes | bytearray | memoryview
BUFFERS: Final = frozenset(get_args(Buffer))


class TopicPartition(NamedTuple):
    """A partition's name. A tuple, because it is the key of nearly every table."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class OffsetAndEpoch(NamedTuple):
    """An offset, and its leader epoch (-1: unknown)."""

    offset: int
    leader_epoch: int


class Endpoint(NamedTuple):
    """The host and port on which a broker listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class NodeEndpoint(NamedTuple):
    """A broker's address for the client that it is sent to."""

    node_id: int
    host: str
    port: int


class TopicIdPartition(NamedTuple):
    """A partition by the id of its topic."""

    topic_id: bytes
    partition: int


class NamedEndpoint(NamedTuple):
    """One of a broker's listeners: its name, host and port."""

    name: str
    host: str
    port: int

    @property
    def endpoint(self) -> Endpoint:
        """Host and port, without the name."""
        return Endpoint(self.host, self.port)

    def __str__(self) -> str:
        return f"{self.name}://{self.endpoint}"


class Slice(Protocol):
    """A range of bytes in an open file, sent without being read into Python.

    It is declared here because the wires put slices into answers and streams send them; the
    broker's log creates them. `len()` is the size in bytes.
    """

    @property
    def position(self) -> int:
        """The first byte, counted from the start of the file."""

    def __len__(self) -> int: ...

    def fileno(self) -> int:
        """Return the file descriptor for `sendfile`, or -1 if the disk is simulated."""

    def pieces(self, bytes_max: int) -> "Iterator[Slice]":
        """Yield the same bytes as slices of at most `bytes_max` bytes."""

    def read(self) -> bytes:
        """Return the bytes. Raises `StaleSlice` if the log was truncated since then."""

    def is_valid(self) -> bool:
        """Return False once the log was truncated: the bytes may now be of another epoch."""

    def read_cached(self) -> bytes | bytearray | None:
        """Do what `read` does if that does not wait for the disk; else return None."""

    def is_cached(self) -> bool:
        """Return whether a read would not wait for the disk."""


class StaleSlice(Exception):
    """A slice's log was truncated, or its file ended early; the connection is closed."""


# Whole record batches, one after another: bytes at a client, a slice of a log in a broker's answer,
# a view of the receive buffer in a request (valid only until the handler returns).
Records: TypeAlias = Buffer | Slice | Sequence[Slice]
EMPTY_RECORDS: Records = b""

# A part of a frame to send: bytes, or a slice of a file.
Part: TypeAlias = Buffer | Slice


def records_size(records: Records) -> int:
    """Return the size of records in bytes, in any of their forms."""
    if isinstance(records, list | tuple):
        return sum(map(len, records))
    return len(records)
