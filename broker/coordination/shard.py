"""One partition of a coordinator's topic on this broker: its contents, how far it was replayed, and
what is live of them while this broker serves it.

`catch_up` may be called at any time: it stops serving when the leader's epoch is over, replays what
became committed, and tells the registry. Records that are not in the page cache are replayed once a
worker thread has read them (`read_ahead`); the coordinator's task sees to that. Followers replay,
too, so that a failover has little left to do.

A leader serves only once its high watermark has reached the start of its leader epoch, and all
records below are replayed. A new leader's high watermark may at first be lower than the one up to
which its predecessor answered clients; once it reaches the start of the epoch, it is not.

A log that was truncated below what was replayed of it (by an unclean election, or by a restart of
the log) is replayed from its start. The leader epoch of the last replayed record shows it: logs
that agree in an offset's epoch agree in everything before it.

A record of a key that is not known, or that is no record of this format, is skipped. A value of a
newer version is not: replay stops before it, and this broker does not serve the partition.

The partition of an id is Kafka's (GRP-01), so that Kafka's tools look for it in the right place:
Java's hash of the id, made positive, modulo the number of partitions. Java hashes the text in
UTF-16.
"""

import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import mul
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar

from minibroker.broker.coordination.record_fields import Unreadable
from minibroker.broker.coordination.replay import Chunk, read_chunks
from minibroker.broker.errors import Refused
from minibroker.broker.log.cached_reads import READS_AHEAD_MAX, NotCached, ReadAhead
from minibroker.broker.log.log import Log
from minibroker.broker.log.outcomes import Appended
from minibroker.broker.replication.partition import Partition
from minibroker.broker.replication.roles import Leader, Offline
from minibroker.broker.turns import Turns, at_once, without_pause
from minibroker.protocol.constants import ACKS_ALL, BATCH_HEADER_BYTES, NO_EPOCH, ErrorCode
from minibroker.protocol.records.batch import RECORD_BYTES_MIN, InvalidBatch
from minibroker.protocol.records.record import RecordToSend, encode_batch_in_turns
from minibroker.protocol.types import StaleSlice

logger = logging.getLogger(__name__)

AHEAD_BYTES: Final = 1024 * 1024  # a worker reads beyond what is replayed next
UNREADABLE_CHARS_MAX: Final = 200  # of the reason, in a log line about a record
_INT_MIN: Final = -(2**31)
_NATIVE_UTF_16: Final = f"utf-16-{sys.byteorder[0]}e"
# Of the longest id it takes 2 ms to compute, and each request needs it several times.
PARTITIONS_KEPT: Final = 64
# 31 to the power of 255 and down to 0: the factors of the characters of a Java hash.
_POWERS: Final = [31**exponent % 2**32 for exponent in reversed(range(256))]

Append: TypeAlias = Callable[[Partition, memoryview, int, float, int], Appended]


Key = TypeVar("Key")
Value = TypeVar("Value")
TableKey = TypeVar("TableKey", contravariant=True)
TableValue = TypeVar("TableValue", contravariant=True)
ShardTable = TypeVar("ShardTable", bound="Table[Any, Any]")
ShardRegistry = TypeVar("ShardRegistry", bound="Registry")

# What a coordinator answers for a failed append (GRP-04); other codes stay as they are.
APPEND_ERRORS: Final = {
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
}


class Table(Protocol[TableKey, TableValue]):
    """What replay makes of a partition's records."""

    def replay(self, offset: int, key: TableKey, value: TableValue | None) -> None:
        """Apply the record at an offset; without a value it is a tombstone."""

    def add_pending(self, key: TableKey, offset: int) -> None:
        """Add a key whose record was appended at an offset, and is not known to be committed."""

    def forget_pending(self) -> None:
        """Forget all pending keys: the leader's epoch is over."""

    @property
    def held_bytes(self) -> int:
        """The memory that all of it takes, about."""
        ...


class Registry(Protocol):
    """What is live of a partition, in one leader epoch."""

    @property
    def leader_epoch(self) -> int: ...

    @property
    def deadline(self) -> float:
        """When `tick` has something to do."""
        ...

    @property
    def is_writing(self) -> bool:
        """Whether something waits for a record of its own."""
        ...

    @property
    def held_bytes(self) -> int:
        """The memory that it takes beside the table, about."""
        ...

    def on_replayed(self, end: int, now: float) -> None:
        """Handle that all records below `end` are committed and in the table."""

    def tick(self, now: float) -> None:
        """Do what is due."""

    def close(self, now: float) -> None:
        """End it: waiting requests are answered NOT_COORDINATOR."""


@dataclass(frozen=True, slots=True)
class RecordFormat(Generic[Key, Value]):
    """The format of a topic's records. `decode` never raises. `what` names what they are about."""

    what: str
    decode: Callable[[bytes | None, bytes | None], tuple[Key, Value | None] | Unreadable]
    encode_key: Callable[[Key], bytes]
    encode_value: Callable[[Value], bytes]


@lru_cache(PARTITIONS_KEPT)
def partition_of(name: str, partition_count: int) -> int:
    """Return the number of the partition of a group or a transactional id."""
    number = 0
    units = memoryview(name.encode(_NATIVE_UTF_16, "surrogatepass")).cast("H")
    for first in range(0, len(units), len(_POWERS)):
        some = units[first : first + len(_POWERS)]
        powers = _POWERS[len(_POWERS) - len(some) :]
        number = (number * pow(31, len(some), 2**32) + sum(map(mul, some, powers))) % 2**32
    if number >= 2**31:
        number -= 2**32
    return 0 if number == _INT_MIN else abs(number) % partition_count


class CoordinatorShard(Generic[Key, Value, ShardTable, ShardRegistry]):
    """See the head of this module. `registry` is None while this broker does not serve it.

    All records below `replayed_end` are in `table`. `is_broken`: the next ones cannot be read.
    `read_ahead`: a worker has to read them first, and `end_read_ahead` is told of it.
    """

    def __init__(
        self,
        partition: Partition,
        append: Append,
        record_format: RecordFormat[Key, Value],
        make_table: Callable[[], ShardTable],
    ) -> None:
        """`append` is `Replicas.append`."""
        self.partition = partition
        self._append = append
        self._format = record_format
        self._make_table = make_table
        self.table = make_table()
        self.replayed_end = partition.log.log_start
        self._chunks: Iterator[Chunk] = iter(())  # of the last read, not replayed yet
        self._unfinished: Chunk | None = None  # its marker is applied in part
        self.registry: ShardRegistry | None = None
        self._replayed_epoch = NO_EPOCH  # of the last record below `replayed_end`
        self._looked_up_to = self.replayed_end  # replay was tried up to here, successfully or not
        self.is_broken = False
        self.read_ahead: ReadAhead | None = None
        self._reads_ahead = 0  # for the next chunk

    @property
    def leader(self) -> Leader | None:
        """The role of leader, if this broker has it."""
        role = self.partition.role
        return role if isinstance(role, Leader) else None

    @property
    def held_bytes(self) -> int:
        """The memory that its contents take, about."""
        live_bytes = 0 if self.registry is None else self.registry.held_bytes
        return self.table.held_bytes + live_bytes

    # -- reading

    def catch_up(self, now: float) -> bool:
        """Replay at most one chunk of committed records, none if a `read_ahead` is needed; return
        whether there may be more."""
        registry, leader = self.registry, self.leader
        if registry is not None and (
            leader is None or leader.leader_epoch != registry.leader_epoch
        ):
            self.stop_serving(now)
        is_behind = self._replay_chunk(now)
        if self.registry is not None:
            self.registry.on_replayed(self.replayed_end, now)
        return is_behind

    def end_read_ahead(self, *, was_read: bool) -> None:
        """Record that a worker has done `read_ahead`, or could not."""
        self.read_ahead = None
        self._reads_ahead = self._reads_ahead + 1 if was_read else READS_AHEAD_MAX

    def stop_serving(self, now: float) -> None:
        """Stop serving, and answer the waiting requests."""
        if self.registry is not None:
            self.registry.close(now)
            self.registry = None
            self.table.forget_pending()

    def is_due(self, now: float) -> bool:
        """Whether something here is due that a request may wait for."""
        registry, leader = self.registry, self.leader
        if registry is None or leader is None or registry.leader_epoch != leader.leader_epoch:
            return registry is not None or (
                leader is not None and (self.may_serve or self._is_behind)
            )
        return registry.deadline <= now or (registry.is_writing and self._is_behind)

    @property
    def _is_behind(self) -> bool:
        return self.partition.high_watermark > self._looked_up_to

    @property
    def may_serve(self) -> bool:
        """Whether `table` has all records that any client was answered from."""
        leader = self.leader
        return (
            leader is not None
            and leader.high_watermark >= leader.epoch_start
            and self.replayed_end >= leader.high_watermark
        )

    def _replay_chunk(self, now: float) -> bool:
        if isinstance(self.partition.role, Offline):  # its log may have been replaced
            return False
        log, end = self.partition.log, self.partition.high_watermark
        if not self._continues(log):
            logger.warning(
                "%s: its log is not the one that was replayed up to offset %d, starting again",
                self.partition.topic_partition,
                self.replayed_end,
            )
            self.stop_serving(now)
            self.table = self._make_table()
            self.replayed_end, self._replayed_epoch = log.log_start, NO_EPOCH
            self._chunks, self._unfinished = iter(()), None
            self._looked_up_to = self.replayed_end
        if self.replayed_end >= end:
            return False
        self._looked_up_to = end
        try:
            chunk, self._unfinished = self._unfinished or next(self._chunks, None), None
            if chunk is None or not _is_in(log, chunk):
                may_block = self._reads_ahead >= READS_AHEAD_MAX
                self._chunks = read_chunks(log, self.replayed_end, end, may_block=may_block)
                chunk = next(self._chunks, None)
        except NotCached as missing:
            self.read_ahead = missing.read_ahead(AHEAD_BYTES)
            self._looked_up_to = self.replayed_end
            return True
        except (InvalidBatch, Refused, StaleSlice) as error:  # no descriptor is free: tried again
            self._break(str(error))
            return False
        self._reads_ahead = 0
        if chunk is None:
            return False
        if not self.replay_marker(chunk):
            self._unfinished = chunk
            self._looked_up_to = self.replayed_end
            return True
        records = [
            (offset, self._format.decode(key, value)) for offset, _, key, value, _ in chunk.records
        ]
        for offset, decoded in records:
            if isinstance(decoded, Unreadable) and decoded.is_newer:
                self._unfinished = chunk
                self._break(f"the record at offset {offset} has {decoded.reason}")
                return False
        for offset, decoded in records:
            if isinstance(decoded, Unreadable):
                self._skip(offset, decoded)
            else:
                self.replay_record(chunk, offset, *decoded)
        self.replayed_end, self._replayed_epoch = chunk.next_offset, chunk.leader_epoch
        self._looked_up_to = self.replayed_end
        self.is_broken = False
        return self.replayed_end < end

    def replay_record(self, chunk: Chunk, offset: int, key: Key, value: Value | None) -> None:
        """Apply one record of a chunk."""
        self.table.replay(offset, key, value)

    def replay_marker(self, chunk: Chunk) -> bool:
        """Apply a part of the marker of a chunk, if it has one; return whether that was all."""
        return True

    def _continues(self, log: Log) -> bool:
        """Whether the replayed records are still the beginning of this log."""
        if self._replayed_epoch == NO_EPOCH:
            return self.replayed_end >= log.log_start
        return (
            self.replayed_end <= log.log_end
            and _epoch_of(log, self.replayed_end - 1) == self._replayed_epoch
        )

    def _break(self, reason: str) -> None:
        """Log once why this partition cannot be replayed for now."""
        if not self.is_broken:
            self.is_broken = True
            logger.error(
                "%s cannot be replayed from offset %d on, its %s have no coordinator: %s",
                self.partition.topic_partition,
                self.replayed_end,
                self._format.what,
                reason,
            )

    def _skip(self, offset: int, unreadable: Unreadable) -> None:
        logger.warning(
            "%s: the record at offset %d is skipped: %s",
            self.partition.topic_partition,
            offset,
            unreadable.reason[:UNREADABLE_CHARS_MAX],
        )

    # -- writing

    def append(self, records: Sequence[tuple[Key, Value | None]], now: float, now_ms: int) -> int:
        """Append records as one batch. Return the offset after them: they are committed once all
        below is replayed. Raises `Refused` as the partition does."""
        batch = without_pause(self.encode(records, now_ms))
        return self.append_encoded(batch, records, now, now_ms)

    def encode(self, records: Sequence[tuple[Key, Value | None]], now_ms: int) -> Turns[memoryview]:
        """Return the batch of these records, at least one.

        Raises `Refused` (MESSAGE_TOO_LARGE) for more than the partition takes, before the batch is
        made.
        """
        lists = self._encoded(records, now_ms)
        return memoryview((yield from encode_batch_in_turns(lists)))

    def _encoded(
        self, records: Sequence[tuple[Key, Value | None]], now_ms: int
    ) -> Iterator[list[RecordToSend]]:
        size, size_max = BATCH_HEADER_BYTES, self.partition.settings.max_message_bytes
        for some in at_once(records):
            encoded: list[RecordToSend] = []
            for key, value in some:
                name = self._format.encode_key(key)
                content = None if value is None else self._format.encode_value(value)
                size += RECORD_BYTES_MIN + len(name) + len(content or b"")
                if size > size_max:
                    what = f"a batch for {self._format.what} has at most {size_max} bytes"
                    what += " (max.message.bytes)"
                    raise Refused(ErrorCode.MESSAGE_TOO_LARGE, what)
                encoded.append((now_ms, name, content, ()))
            yield encoded

    def append_encoded(
        self,
        batch: memoryview,
        records: Sequence[tuple[Key, Value | None]],
        now: float,
        now_ms: int,
    ) -> int:
        """Append the batch of these records; see `append`."""
        appended = self._append(self.partition, batch, ACKS_ALL, now, now_ms)
        self.record_appended(records, appended)
        return appended.last_offset + 1

    def record_appended(
        self, records: Sequence[tuple[Key, Value | None]], appended: Appended
    ) -> None:
        """Record that these records were appended as one batch, and are not replayed yet."""
        for offset, (key, _) in enumerate(records, appended.base_offset):
            if offset >= self.replayed_end:
                self.table.add_pending(key, offset)

    def outcome(self, end: int, registry: ShardRegistry) -> ErrorCode | None:
        """Return the result of records that were appended below `end`; None: not known yet."""
        leader = self.leader
        if self.registry is not registry or leader is None:
            return ErrorCode.NOT_COORDINATOR
        if self.replayed_end < end:
            return None
        if not leader.is_acknowledgeable(self.partition.settings.min_insync_replicas):
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        return ErrorCode.NONE


def _is_in(log: Log, chunk: Chunk) -> bool:
    """Whether a chunk that was read a while ago is still in the log."""
    last = chunk.next_offset - 1
    return last < log.log_end and _epoch_of(log, last) == chunk.leader_epoch


def _epoch_of(log: Log, offset: int) -> int:
    """Return the leader epoch of the record at an offset; NO_EPOCH if it is not known."""
    for entry in reversed(log.epochs.entries):
        if entry.offset <= offset:
            return entry.epoch
    return NO_EPOCH
