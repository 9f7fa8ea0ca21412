"""The states of a log's producers, by which it stores no batch twice, and knows transactions.

Per producer id: the epoch, the last five batches (sequences, offsets, time), when it last appended,
the first offset of its open transaction, and the epoch of the coordinator that ended the one
before. From them the log decides whether a batch is the next one, a duplicate (answered with the
offsets of the original), or leaves a gap. A producer that this log does not know may begin at any
sequence, as in Kafka since 2.5: it may have sent to a topic of this name that was deleted, or have
expired. Kafka's clients treat a refusal as the end of the producer.

* `check` only decides; `update` only records what was appended, without a check. So leader,
  follower and recovery reach the same state from the same log.
* An entry expires by the wall time of its last append, never by a record's timestamp: a producer
  of old records is alive. Retention does not remove entries. Only `expire` removes them, which a
  timer calls: the wall clock may jump, and an append must not forget a producer for it. A producer
  with an open transaction does not expire.
* A transaction begins with a producer's first transactional batch after a marker, and ends with its
  next marker, COMMIT or ABORT. A marker may raise the producer's epoch: batches of the epochs
  before are then refused.
* `map_end_offset` is the offset up to which the state follows the log.

A snapshot keeps all five batches, so a restart forgets none, and the transactions whose markers may
not be committed; its CRC covers all of it, and equal
states give equal bytes. The `.snapshot` files of a log only save time: the batches below a
snapshot's offset hold the same facts. So they are written without fsync, and one that is empty, cut
or damaged is deleted and the next older one used.
"""

import logging
import struct
from pathlib import PurePath
from typing import ClassVar, Final, NamedTuple

from crc32c import crc32c

from minibroker.broker.errors import Refused
from minibroker.broker.log.files import Files
from minibroker.broker.log.outcomes import SHORTAGES, shortage_text
from minibroker.broker.log.segment import file_name, offsets_in
from minibroker.broker.log.transaction_index import AbortedEntry
from minibroker.broker.log.unstable import EndedTransaction, UnstableTransactions
from minibroker.protocol.constants import (
    CACHED_BATCHES,
    NO_EPOCH,
    NO_OFFSET,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    ErrorCode,
)
from minibroker.protocol.records.batch import BatchHeader, increment_sequence
from minibroker.protocol.records.control import EndMarker

logger = logging.getLogger(__name__)

SNAPSHOT_SUFFIX = ".snapshot"
_SNAPSHOT_VERSION = 2
_WITHOUT_TRANSACTIONS: Final = 1  # the version of snapshots from before there were transactions
_SNAPSHOT = struct.Struct(
    ">HIqI"
)  # version, CRC of what follows it, map end offset, number of entries
_CRC_END = 6
_ENTRY = struct.Struct(">qhqB")  # producer id, epoch, last append (ms), number of batches
_BATCH = struct.Struct(">iiqqq")
# Behind an entry's batches: coordinator epoch, start of the transaction, offset of the last marker,
# time of the last batch or marker. Behind the last entry: the number of ended transactions, and for
# each its first offset and its marker's.
_TRANSACTION = struct.Struct(">iqqq")
_ENDED_COUNT = struct.Struct(">I")
_ENDED = struct.Struct(">qq")


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
    """One producer. `batches` holds up to CACHED_BATCHES, of this epoch only, oldest first.

    `transaction_start` is the first offset of its open transaction, -1 without one.
    `coordinator_epoch` is that of its last marker, which is at the offset `last_marker`.
    `last_timestamp` (ms) is the largest of its last batch or marker.
    """

    __slots__ = (
        "batches",
        "coordinator_epoch",
        "epoch",
        "last_append_ms",
        "last_marker",
        "last_timestamp",
        "transaction_start",
    )

    def __init__(self, epoch: int, last_append_ms: int) -> None:
        self.epoch = epoch
        self.last_append_ms = last_append_ms
        self.batches: list[AppendedBatch] = []
        self.coordinator_epoch = NO_EPOCH
        self.transaction_start = NO_OFFSET
        self.last_marker = NO_OFFSET
        self.last_timestamp = NO_TIMESTAMP

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
        self.unstable = UnstableTransactions()
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

    def last_markers(self) -> frozenset[int]:
        """Return the offset of the last marker of each producer without batches in its epoch."""
        return frozenset([one.last_marker for one in self._entries.values() if not one.batches])

    def has_open_transaction(self, producer_id: int, producer_epoch: int) -> bool:
        """Whether a producer has an open transaction in this epoch."""
        entry = self._entries.get(producer_id)
        return (
            entry is not None
            and entry.epoch == producer_epoch
            and entry.transaction_start != NO_OFFSET
        )

    def check(self, header: BatchHeader) -> AppendedBatch | None:
        """Check a client's batch that has a producer. Returns None if it comes next, a duplicate as
        it is in the log.

        Raises Refused: INVALID_PRODUCER_EPOCH, OUT_OF_ORDER_SEQUENCE_NUMBER, and INVALID_TXN_STATE
        for a plain batch in a transaction.
        """
        entry = self._entries.get(header.producer_id)
        if entry is None:
            self.check_unknown(header)
            return None
        if header.base_sequence == NO_SEQUENCE and header.producer_epoch >= entry.epoch:
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
        if entry.transaction_start != NO_OFFSET and not header.is_transactional:
            what = f"producer {header.producer_id} has a transaction open, this batch is not of one"
            raise Refused(ErrorCode.INVALID_TXN_STATE, what)
        return None

    def check_marker(
        self, producer_id: int, producer_epoch: int, coordinator_epoch: int, *, is_next_epoch: bool
    ) -> None:
        """Check a coordinator's marker. With `is_next_epoch` it has the epoch after the
        transaction's (KIP-890), so it does not end a transaction of its own epoch.

        Raises Refused: INVALID_PRODUCER_EPOCH, TRANSACTION_COORDINATOR_FENCED.
        """
        entry = self._entries.get(producer_id)
        if entry is None:
            return
        is_later_transaction = (
            is_next_epoch and producer_epoch == entry.epoch and entry.transaction_start != NO_OFFSET
        )
        if producer_epoch < entry.epoch or is_later_transaction:
            what = f"producer {producer_id} has epoch {entry.epoch}, the marker {producer_epoch}"
            raise Refused(ErrorCode.INVALID_PRODUCER_EPOCH, what)
        if coordinator_epoch < entry.coordinator_epoch:
            what = (
                f"the last marker of producer {producer_id} is from coordinator epoch"
                f" {entry.coordinator_epoch}, this one from {coordinator_epoch}"
            )
            raise Refused(ErrorCode.TRANSACTION_COORDINATOR_FENCED, what)

    def check_unknown(self, header: BatchHeader) -> None:
        """Check the first batch of a producer that the log does not know, or not any more."""

    def update(
        self, header: BatchHeader, now_ms: int, marker: EndMarker | None = None
    ) -> AbortedEntry | None:
        """Record a batch that was appended; `header` has its final offsets, `marker` is the content
        of a marker. Return the transaction that it aborts, if it does."""
        self.map_end_offset = header.next_offset
        if header.producer_id < 0:
            return None
        entry = self._entries.get(header.producer_id)
        if entry is None:
            entry = ProducerEntry(header.producer_epoch, now_ms)
            self._entries[header.producer_id] = entry
        if header.producer_epoch != entry.epoch:
            entry.epoch = header.producer_epoch
            entry.batches.clear()
        entry.last_append_ms = now_ms
        entry.last_timestamp = header.max_timestamp
        if header.is_control:  # it has no sequence
            return None if marker is None else self._end(entry, header, marker)
        if header.is_transactional and entry.transaction_start == NO_OFFSET:
            entry.transaction_start = header.base_offset
            self.unstable.begin(header.base_offset)
        if header.base_sequence == NO_SEQUENCE:  # a coordinator wrote it for the producer
            return None
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
        return None

    def _end(
        self, entry: ProducerEntry, header: BatchHeader, marker: EndMarker
    ) -> AbortedEntry | None:
        """End a producer's open transaction, if it has one."""
        entry.coordinator_epoch = marker.coordinator_epoch
        entry.last_marker = header.last_offset
        start, entry.transaction_start = entry.transaction_start, NO_OFFSET
        if start == NO_OFFSET:
            return None
        self.unstable.end(start, header.last_offset)
        if marker.is_commit:
            return None
        first_open = self.unstable.first_open()
        last_stable = header.next_offset if first_open is None else first_open
        return AbortedEntry(header.producer_id, start, header.last_offset, last_stable)

    def update_from_replica(
        self, header: BatchHeader, now_ms: int, marker: EndMarker | None = None
    ) -> AbortedEntry | None:
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
        return self.update(header, now_ms, marker)

    def expire(self, now_ms: int) -> int:
        """Remove expired entries, and return how many."""
        count = len(self._entries)
        self._entries = {
            producer_id: entry
            for producer_id, entry in self._entries.items()
            if now_ms - entry.last_append_ms < self.expiration_ms
            or entry.transaction_start != NO_OFFSET
        }
        return count - len(self._entries)

    def clear(self, map_end_offset: int) -> None:
        """Remove all entries, before a replay from `map_end_offset`."""
        self._entries.clear()
        self.unstable = UnstableTransactions()
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
            parts.append(
                _TRANSACTION.pack(
                    entry.coordinator_epoch,
                    entry.transaction_start,
                    entry.last_marker,
                    entry.last_timestamp,
                )
            )
        ended = self.unstable.ended()
        parts.append(_ENDED_COUNT.pack(len(ended)))
        parts += (_ENDED.pack(*one) for one in ended)
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
            if version not in (_WITHOUT_TRANSACTIONS, _SNAPSHOT_VERSION):
                raise SnapshotError(f"version {version}, known are 1 to {_SNAPSHOT_VERSION}")
            if crc != crc32c(data[_CRC_END:]):
                raise SnapshotError("the checksum does not match")
            entries, ended = _load_states(data, entry_count, version)
        except struct.error:
            raise SnapshotError("cut short") from None
        self._entries = entries
        starts = [one.transaction_start for one in entries.values()]
        self.unstable = UnstableTransactions()
        self.unstable.restore([start for start in starts if start != NO_OFFSET], ended)
        self.map_end_offset = map_end_offset


def _load_states(
    data: bytes, entry_count: int, version: int
) -> tuple[dict[int, ProducerEntry], list[EndedTransaction]]:
    entries = {}
    ended = []
    position = _SNAPSHOT.size
    for _ in range(entry_count):
        producer_id, epoch, last_append_ms, batch_count = _ENTRY.unpack_from(data, position)
        position += _ENTRY.size
        entry = ProducerEntry(epoch, last_append_ms)
        for _ in range(batch_count):
            entry.batches.append(AppendedBatch(*_BATCH.unpack_from(data, position)))
            position += _BATCH.size
        if version != _WITHOUT_TRANSACTIONS:
            (
                entry.coordinator_epoch,
                entry.transaction_start,
                entry.last_marker,
                entry.last_timestamp,
            ) = _TRANSACTION.unpack_from(data, position)
            position += _TRANSACTION.size
        elif entry.batches:
            entry.last_timestamp = entry.batches[-1].timestamp
        entries[producer_id] = entry
    if version != _WITHOUT_TRANSACTIONS:
        (ended_count,) = _ENDED_COUNT.unpack_from(data, position)
        position += _ENDED_COUNT.size
        for _ in range(ended_count):
            ended.append(EndedTransaction(*_ENDED.unpack_from(data, position)))
            position += _ENDED.size
    if position != len(data):
        raise SnapshotError("bytes behind the last entry")
    return entries, ended


class Snapshots:
    """The snapshot files in one log's directory, by offset."""

    def __init__(self, files: Files, directory: PurePath) -> None:
        self._files = files
        self._directory = directory

    def move_to(self, directory: PurePath) -> None:
        """Record that the log's directory was renamed."""
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
