"""Reads the fields of records that brokers store: Kafka's primitive types, big-endian."""

import struct


class Fields:
    """Reads fields one after the other. Raises ValueError where there is none."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def number(self, form: str) -> int:
        try:
            number: int = struct.unpack_from(form, self._data, self._at)[0]
        except struct.error:
            raise ValueError(f"it ends within a number at byte {self._at}") from None
        self._at += struct.calcsize(form)
        return number

    def text(self) -> str:
        return self._bytes(self.number(">h"), "text").decode()

    def nullable_text(self) -> str | None:
        size = self.number(">h")
        return None if size == -1 else self._bytes(size, "text").decode()

    def data(self) -> bytes:
        return self._bytes(self.number(">i"), "field")

    def count(self) -> int:
        """Return the length of a list. Each element takes bytes, so a wrong one ends early."""
        count = self.number(">i")
        if not 0 <= count <= len(self._data):
            raise ValueError(f"a list of {count} at byte {self._at - 4}")
        return count

    def numbers(self, form: str, count: int) -> tuple[int, ...]:
        """Return so many numbers of one form, such as "i"."""
        layout = struct.Struct(f">{count}{form}")
        return layout.unpack(self._bytes(layout.size, "list"))

    def uvarint(self) -> int:
        """Return an unsigned number of variable length, of at most 32 bits."""
        value = 0
        for shift in range(0, 35, 7):
            (byte,) = self._bytes(1, "number")
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise ValueError(f"a number that is too long at byte {self._at}")

    def compact_count(self) -> int:
        """Return the length of a compact list, 0 of one that is null."""
        count = max(0, self.uvarint() - 1)
        if count > len(self._data):
            raise ValueError(f"a list of {count} at byte {self._at}")
        return count

    def compact_text(self) -> str:
        return self._bytes(self.uvarint() - 1, "text").decode()

    def tags(self) -> dict[int, bytes]:
        """Return the tagged fields by number."""
        found = {}
        for _ in range(self._tag_count()):
            tag = self.uvarint()
            found[tag] = self._bytes(self.uvarint(), "tagged field")
        return found

    def _tag_count(self) -> int:
        count = self.uvarint()
        if count > len(self._data):
            raise ValueError(f"{count} tagged fields at byte {self._at}")
        return count

    def end(self, what: str) -> None:
        if self._at != len(self._data):
            raise ValueError(f"a {what} with bytes behind its end")

    def _bytes(self, size: int, what: str) -> bytes:
        begin, self._at = self._at, self._at + size
        if size < 0 or self._at > len(self._data):
            raise ValueError(f"a {what} of {size} bytes at byte {begin}")
        return self._data[begin : self._at]
