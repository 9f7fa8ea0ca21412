"""The fields of the records that coordinators store, one after the other.

`Cursor` reads them from bytes that may be anything, and raises `Garbage` where they do not have the
format of their version. Compact forms are those of Kafka's flexible versions: a length plus one as
an unsigned varint, so that 0 is null, and tagged fields behind each struct.
"""

from struct import Struct, unpack
from typing import Final, NamedTuple

STRING_BYTES_MAX: Final = 2**15 - 1  # the largest size of a string that is not compact
UVARINT_BYTES_MAX: Final = 5
UUID_BYTES: Final = 16

INT8: Final = Struct(">b")
INT16: Final = Struct(">h")
INT32: Final = Struct(">i")
INT64: Final = Struct(">q")
NO_TAGS: Final = b"\0"


class Garbage(Exception):
    """The bytes do not have the format of their version."""


class NewerVersion(Garbage):
    """A value of a version that this broker does not know: a newer broker wrote it."""

    def __init__(self, version: int, newest: int) -> None:
        super().__init__(
            f"a value of version {version}, and this broker reads 0 to {newest}: start it with the"
            " version of minibroker that wrote the record"
        )


class Unreadable(NamedTuple):
    """A record that this version of the broker cannot read, and why. `is_newer`: without it what
    the broker knows of the key is out of date (`NewerVersion`)."""

    reason: str
    is_newer: bool = False


class Cursor:
    """Reads fields one after the other. Raises `Garbage` where the bytes end too early."""

    __slots__ = ("_at", "_data")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def _integer(self, layout: Struct) -> int:
        if self._at + layout.size > len(self._data):
            raise Garbage(f"the bytes end at {len(self._data)}, inside a field")
        number: int = layout.unpack_from(self._data, self._at)[0]
        self._at += layout.size
        return number

    def int16(self) -> int:
        return self._integer(INT16)

    def int32(self) -> int:
        return self._integer(INT32)

    def int32s(self, count: int) -> tuple[int, ...]:
        return unpack(f">{count}i", self._read_bytes(INT32.size * count))

    def int64(self) -> int:
        return self._integer(INT64)

    def _read_bytes(self, size: int) -> bytes:
        end = self._at + size
        if size < 0 or end > len(self._data):
            raise Garbage(f"a field of {size} bytes at {self._at} of {len(self._data)}")
        taken = self._data[self._at : end]
        self._at = end
        return taken

    def string(self) -> str:
        return self._read_bytes(self.int16()).decode()

    def nullable_string(self) -> str | None:
        size = self.int16()
        return None if size == -1 else self._read_bytes(size).decode()

    def bytes_(self) -> bytes:
        return self._read_bytes(self.int32())

    def count(self) -> int:
        count = self.int32()
        if count < 0:
            raise Garbage(f"a list of {count}")
        return count

    def int8(self) -> int:
        return self._integer(INT8)

    def uuid(self) -> bytes:
        return self._read_bytes(UUID_BYTES)

    def uvarint(self) -> int:
        number = 0
        for shift in range(0, 7 * UVARINT_BYTES_MAX, 7):
            byte = self._read_bytes(1)[0]
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return number
        raise Garbage(f"a varint of more than {UVARINT_BYTES_MAX} bytes")

    def compact_string(self) -> str:
        return self._read_bytes(self.uvarint() - 1).decode()

    def nullable_compact_string(self) -> str | None:
        size = self.uvarint()
        return None if size == 0 else self._read_bytes(size - 1).decode()

    def compact_bytes(self) -> bytes:
        return self._read_bytes(self.uvarint() - 1)

    def compact_count(self) -> int:
        count = self.uvarint() - 1
        if not 0 <= count <= len(self._data):
            raise Garbage(f"a list of {count}")
        return count

    def tags(self) -> dict[int, bytes]:
        """Return the tagged fields by their number."""
        return {self.uvarint(): self._read_bytes(self.uvarint()) for _ in range(self.uvarint())}

    def end(self) -> None:
        if self._at != len(self._data):
            raise Garbage(f"{len(self._data) - self._at} bytes after the last field")


def string(text: str | None) -> bytes:
    """Return the bytes of a string, which may be null. Raises `ValueError` if it is too long."""
    if text is None:
        return INT16.pack(-1)
    data = text.encode()
    if len(data) > STRING_BYTES_MAX:
        raise ValueError(f"a string of {len(data)} bytes; a record holds {STRING_BYTES_MAX}")
    return INT16.pack(len(data)) + data


def uvarint(number: int) -> bytes:
    """Return the bytes of a number that is not negative."""
    encoded = bytearray()
    while number >= 0x80:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def compact_string(text: str | None) -> bytes:
    """Return the bytes of a string, which may be null."""
    if text is None:
        return uvarint(0)
    data = text.encode()
    return uvarint(len(data) + 1) + data


def compact_bytes(data: bytes) -> bytes:
    """Return the bytes of a field of bytes."""
    return uvarint(len(data) + 1) + data


def compact_array(items: list[bytes]) -> bytes:
    """Return the bytes of an array of encoded items."""
    return uvarint(len(items) + 1) + b"".join(items)
