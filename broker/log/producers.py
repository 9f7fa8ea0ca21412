"""The states of a log's idempotent producers, by which it stores no batch twice.

Per producer id: the epoch, the last five batches (sequences, offsets, time), and when it last
appended. From them the log decides whether a batch is the next one, a duplicate (answered with the
offsets of the original), or leaves a gap. A producer that this log does not know may begin at any
sequence, as in Kafka since 2.5: it may have sent to a topic of this name that was deleted, or have
expired. Kafka's clients treat a refusal as the end of the producer.

* `check` only decides; `update` only records what was appended, without a check. So leader,
  follower and recovery reach the same state from the same log.
* An entry expires by the wall time of its last append, never by a record's timestamp: a producer
  of old records is alive. Retention does not remove entries. Only `expire` removes them, which a
  timer calls: the wall clock may jump, and an append must not forget a producer for it.
* `map_end_offset` is the offset up to which the state follows the log.

A snapshot keeps all five batches, so a restart forgets none; its CRC covers all of it, and equal
states give equal bytes. The `.snapshot` files of a log only save time: the batches below a
snapshot's offset hold the same facts. So they are written without fsync, and one that is empty, cut
or damaged is deleted and the next older one used.
"""

import logging
import struct
from pathlib import PurePath
from typing import ClassVar, NamedTuple

from crc32c import crc32c

from minibroker.broker.errors import Refused
from minibroker.broker.log.files import Files
from minibroker.broker.log.outcomes import SHORTAGES, shortage_text
from minibroker.broker.log.segment import file_name, offsets_in
from minibroker.protocol.constants import CACHED_BATCHES, NO_SEQUENCE, ErrorCode
from minibroker.protocol.records.batch import BatchHeader, increment_sequence

logger = logging.getLogger(__name__)

SNAPSHOT_SUFFIX = ".snapshot"
_SNAPSHOT_VERSION = 1
_SNAPSHOT = struct.Struct(
    ">HIqI"
)  # version, CRC of what follows it, map end offset, number of entries
_CRC_END = 6
_ENTRY = struct.Struct(">qhqB")  # producer id, epoch, last append (ms), number of batches
_BATCH = struct.Struct(">iiqqq")


class SnapshotError(Exception):
    """Raised for a snapshot that is cut, damaged or of another version."""


class AppendedBatch(NamedTuple):
    """A batch in the log. `timestamp` is its largest, in ms."""

    first_sequence: int
    last_sequence: int
    first_offset: int
    last_offset: int
    timestamp: int


class ProducerEntry:
    """One producer. `batches` holds up to CACHED_BATCHES, of this epoch only, oldest first."""

    __slots__ = ("batches", "epoch", "last_append_ms")

    def __init__(self, epoch: int, last_append_ms: int) -> None:
        self.epoch = epoch
        self.last_append_ms = last_append_ms
        self.batches: list[AppendedBatch] = []

    @property
    def last_sequence(self) -> int:
        """-1 if no batch of this epoch is known, so that 0 comes next."""
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    def find(self, first_sequence: int, last_sequence: int) -> AppendedBatch | None:
        """Return the batch with exactly these sequences, if it is one of the last; else None."""
        for batch in self.batches:
            if batch.first_sequence == first_sequence and batch.last_sequence == last_sequence:
                return batch
        return None


class ProducerStates:
    """The producers of one log. Times are wall clock, in ms.

    Tests and the lab put other rules in by subclassing: `check`, `check_unknown`, and how many
    batches of a producer are remembered.
    """

    batches_max: ClassVar[int] = CACHED_BATCHES

    def __init__(self, expiration_ms: int) -> None:
        self.expiration_ms = expiration_ms
        self.map_end_offset = 0
        self._entries: dict[int, ProducerEntry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, producer_id: int) -> ProducerEntry | None:
        """Return one producer's entry, for tools and tests."""
        return self._entries.get(producer_id)

    def entries(self) -> list[tuple[int, ProducerEntry]]:
        """All entries by producer id, for tools."""
        return sorted(self._entries.items())

    def last_offsets(self) -> frozenset[int]:
        """Return the last offset of each producer, of the batch that has its newest sequence."""
        return frozenset(
            [entry.batches[-1].last_offset for entry in self._entries.values() if entry.batches]
        )

    def check(self, header: BatchHeader) -> AppendedBatch | None:
        """Check a client's batch that has a producer. Returns None if it comes next, a duplicate as
        it is in the log.

        Raises Refused: INVALID_PRODUCER_EPOCH, OUT_OF_ORDER_SEQUENCE_NUMBER.
        """
        entry = self._entries.get(header.producer_id)
        if entry is None:
            self.check_unknown(header)
            return None
        if header.producer_epoch == entry.epoch:
            batch = entry.find(header.base_sequence, header.last_sequence)
            if batch is not None:
                return batch
            expected = increment_sequence(entry.last_sequence, 1)
        elif header.producer_epoch < entry.epoch:
            raise Refused(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"producer {header.producer_id} has epoch {entry.epoch} now, this is from "
                f"{header.producer_epoch}",
            )
        else:
            expected = 0
        if header.base_sequence != expected:
            raise Refused(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {header.producer_id} epoch {header.producer_epoch} sends sequence "
                f"{header.base_sequence}, {expected} comes next",
            )
        return None

    def check_unknown(self, header: BatchHeader) -> None:
        """Check the first batch of a producer that the log does not know, or not any more."""

    def update(self, header: BatchHeader, now_ms: int) -> None:
        """Record a batch that was appended; `header` has its final offsets."""
        self.map_end_offset = header.next_offset
        if not header.has_producer:
            return
        entry = self._entries.get(header.producer_id)
        if entry is None:
            entry = ProducerEntry(header.producer_epoch, now_ms)
            self._entries[header.producer_id] = entry
        if header.producer_epoch != entry.epoch:
            entry.epoch = header.producer_epoch
            entry.batches.clear()
        entry.last_append_ms = now_ms
        if header.is_control:  # a marker of a transaction has no sequence
            return
        if len(entry.batches) >= self.batches_max:
            del entry.batches[: len(entry.batches) - self.batches_max + 1]
        entry.batches.append(
            AppendedBatch(
                header.base_sequence,
                header.last_sequence,
                header.base_offset,
                header.last_offset,
                header.max_timestamp,
            )
        )

    def update_from_replica(self, header: BatchHeader, now_ms: int) -> None:
        """Record a batch that a leader has checked, or that is in the log already."""
        entry = self._entries.get(header.producer_id)
        if entry is not None and header.producer_epoch < entry.epoch:
            logger.warning(
                "Producer %d goes back from epoch %d to %d at offset %d, as in the leader's log",
                header.producer_id,
                entry.epoch,
                header.producer_epoch,
                header.base_offset,
            )
        self.update(header, now_ms)

    def expire(self, now_ms: int) -> int:
        """Remove expired entries, and return how many."""
        count = len(self._entries)
        self._entries = {
            producer_id: entry
            for producer_id, entry in self._entries.items()
            if now_ms - entry.last_append_ms < self.expiration_ms
        }
        return count - len(self._entries)

    def clear(self, map_end_offset: int) -> None:
        """Remove all entries, before a replay from `map_end_offset`."""
        self._entries.clear()
        self.map_end_offset = map_end_offset

    def dump(self) -> bytes:
        """Return a snapshot. The same state gives the same bytes."""
        parts = []
        for producer_id in sorted(self._entries):
            entry = self._entries[producer_id]
            parts.append(
                _ENTRY.pack(producer_id, entry.epoch, entry.last_append_ms, len(entry.batches))
            )
            parts += (_BATCH.pack(*batch) for batch in entry.batches)
        body = b"".join(parts)
        snapshot = bytearray(
            _SNAPSHOT.pack(_SNAPSHOT_VERSION, 0, self.map_end_offset, len(self._entries)) + body
        )
        crc = crc32c(memoryview(snapshot)[_CRC_END:])
        _SNAPSHOT.pack_into(
            snapshot, 0, _SNAPSHOT_VERSION, crc, self.map_end_offset, len(self._entries)
        )
        return bytes(snapshot)

    def load(self, data: bytes) -> None:
        """Load a snapshot. After SnapshotError nothing has changed."""
        try:
            version, crc, map_end_offset, entry_count = _SNAPSHOT.unpack_from(data)
            if version != _SNAPSHOT_VERSION:
                raise SnapshotError(f"version {version}, known is {_SNAPSHOT_VERSION}")
            if crc != crc32c(data[_CRC_END:]):
                raise SnapshotError("the checksum does not match")
            self._entries = _load_entries(data, entry_count)
        except struct.error:
            raise SnapshotError("cut short") from None
        self.map_end_offset = map_end_offset


def _load_entries(data: bytes, entry_count: int) -> dict[int, ProducerEntry]:
    entries = {}
    position = _SNAPSHOT.size
    for _ in range(entry_count):
        producer_id, epoch, last_append_ms, batch_count = _ENTRY.unpack_from(data, position)
        position += _ENTRY.size
        entry = ProducerEntry(epoch, last_append_ms)
        for _ in range(batch_count):
            entry.batches.append(AppendedBatch(*_BATCH.unpack_from(data, position)))
            position += _BATCH.size
        entries[producer_id] = entry
    if position != len(data):
        raise SnapshotError("bytes behind the last entry")
    return entries


class Snapshots:
    """The snapshot files in one log's directory, by offset."""

    def __init__(self, files: Files, directory: PurePath) -> None:
        self._files = files
        self._directory = directory

    def path(self, offset: int) -> PurePath:
        """Return the path of the snapshot at an offset."""
        return self._directory / file_name(offset, SNAPSHOT_SUFFIX)

    def offsets(self) -> list[int]:
        """Return the offsets of all snapshots, ascending."""
        return offsets_in(self._files.list(self._directory), SNAPSHOT_SUFFIX)

    def write(self, offset: int, data: bytes) -> None:
        """Write the snapshot at `offset`. In a shortage, log a warning and go on without it."""
        try:
            self._files.write_atomic(self.path(offset), data, sync=False)
        except OSError as error:
            if error.errno not in SHORTAGES:
                raise
            logger.warning("%s is not written: %s", self.path(offset), shortage_text(error))

    def read(self, offset: int) -> bytes:
        """Return the bytes of one snapshot."""
        return self._files.read_bytes(self.path(offset))

    def drop(self, offset: int) -> None:
        """Remove the snapshot at an offset, if there is one."""
        self._files.remove(self.path(offset))

    def drop_outside(self, first: int, last: int) -> None:
        """Remove the snapshots below `first` and above `last`."""
        for offset in self.offsets():
            if not first <= offset <= last:
                self.drop(offset)
