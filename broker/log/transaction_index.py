"""The aborted transactions of a segment: those whose ABORT markers are in it, in order.

A reader of committed records gets with its records the aborted transactions that overlap them, and
passes over their records. An entry has the producer, the first and the last offset of the
transaction (the last one is its marker's), and the last stable offset right after the marker: no
transaction behind an entry begins below that, so a look-up for records below it ends there.

File form (`.txnindex`, Kafka's, big-endian): 2 bytes version, then 8 bytes each for producer id,
first offset, last offset, last stable offset. A segment without aborted transactions has no file.
The files are written with the other indexes (`index.py`). Unlike them this one is not only an
optimisation, so the flush that moves the recovery point over a segment syncs its file, too.
"""

import struct
from bisect import bisect_left
from collections.abc import Iterator
from pathlib import PurePath
from typing import Final, NamedTuple

from minibroker.broker.log.files import Files
from minibroker.broker.log.index import IndexFile

_VERSION: Final = 0
ABORTED_ENTRY: Final = struct.Struct(">hqqqq")


class AbortedEntry(NamedTuple):
    """An aborted transaction; see the head of this file."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable: int


class TransactionIndex(IndexFile):
    """The list of a segment. An entry's last offset is above those of all before it. In memory it
    is as in the file."""

    entry_bytes = ABORTED_ENTRY.size

    def __init__(self, files: Files, path: PurePath, base_offset: int) -> None:
        super().__init__(files, path, base_offset)
        self._entries: bytearray | None = None

    @property
    def is_in_memory(self) -> bool:
        """Whether the next use reads no file."""
        return self._entries is not None

    def _loaded(self) -> bytearray:
        if self._entries is None:
            self._entries = bytearray(self._read_file())
        return self._entries

    def __len__(self) -> int:
        return len(self._loaded()) // ABORTED_ENTRY.size

    @property
    def size(self) -> int:
        """The size in bytes."""
        return len(self._loaded())

    def append(self, entry: AbortedEntry) -> None:
        """Add a transaction that was aborted."""
        self._entries = self._loaded()
        self._entries += ABORTED_ENTRY.pack(_VERSION, *entry)

    def ending_from(self, offset: int) -> Iterator[AbortedEntry]:
        """Yield the transactions with markers at an offset or behind it."""
        entries = self._loaded()
        for at in range(self._first_from(offset), len(entries), ABORTED_ENTRY.size):
            yield AbortedEntry(*ABORTED_ENTRY.unpack_from(entries, at)[1:])

    def _first_from(self, offset: int) -> int:
        """Return where the first entry is whose marker is at an offset or behind it."""
        entries = self._loaded()
        if not entries:
            return 0
        return ABORTED_ENTRY.size * bisect_left(
            range(len(self)),
            offset,
            key=lambda at: int(ABORTED_ENTRY.unpack_from(entries, at * ABORTED_ENTRY.size)[3]),
        )

    def is_sound(self) -> bool:
        """Whether the file does not exist, or its last entry is possible."""
        last = self._read_last()
        if last is None:
            return not self._files.exists(self.path)
        if not last:
            return True
        version, _, first, end, _ = ABORTED_ENTRY.unpack(last)
        return bool(version == _VERSION and 0 <= first <= end and self._base_offset <= end)

    def truncate(self, offset: int) -> None:
        """Remove the entries whose markers are at an offset or behind it."""
        entries = self._loaded()
        del entries[self._first_from(offset) :]
        self._written = min(self._written, len(entries))

    def clear(self) -> None:
        """Remove all entries, those in the file too, to build them again."""
        self._entries = bytearray()
        self._written = 0

    def write(self) -> None:
        """Write to the file what it lacks; remove the file if it has nothing."""
        entries = self._loaded()
        if not entries:
            self._files.remove(self.path)
        else:
            self._write_rest(bytes(entries[self._written :]))

    def write_durably(self) -> None:
        """Write as `write` does, and make it durable. Blocks; for the opening of a log."""
        if not self._loaded() and not self._files.exists(self.path):
            return
        self.write()
        if self._files.exists(self.path):
            file = self._files.open(self.path)
            try:
                file.sync_now()
            finally:
                file.close()
        self._files.sync_dir(self.path.parent)

    def release(self) -> None:
        """Free the memory, unless the file lacks entries. An empty list takes none."""
        if self._entries and self._written == len(self._entries):
            self._entries = None
