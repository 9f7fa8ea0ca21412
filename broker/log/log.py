"""One partition's log: the only writer of its bytes, indexes, producer states and epoch starts.

Everything here runs in the event loop without suspension: one call validates a batch, compares it
with its producer's state, assigns its offset, writes and indexes it, so no lock is needed. The log
refuses a request by `Refused` with the error code for the client. This includes a full disk and a
process without a free file descriptor: the log removes the part of the batch that was written, so
it works again when there is space, or a descriptor. Any other OSError stops the broker
(docs/architecture.md, "What stops what").

The order of writes to the disk:

* an epoch's start is written before its first batch, without fsync: headers contain it, too;
* the recovery point rises only after fsync has returned (`start_flush`, `finish_flush`). Before a
  truncation it is lowered and persisted (`before_truncation`), so no shorter log looks damaged;
* the log start is persisted (`before_truncation`) before segments at the front are deleted, so that
  a missing first segment can be told from one that retention deleted.

`generation` grows with every truncation: a flush that began before it proves nothing, and slices of
the bytes that were removed are stale.
"""

import logging
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import PurePath
from typing import Final, Self, TypeAlias

from minibroker.broker.descriptors import NO_DESCRIPTORS
from minibroker.broker.errors import Refused
from minibroker.broker.log.admission import (
    CheckedBatches,
    ShortageLatch,
    begins_within,
    check_batch,
    check_continuation,
    check_timestamps,
    from_inside_filler,
)
from minibroker.broker.log.compaction import Compaction
from minibroker.broker.log.durability import Durability
from minibroker.broker.log.files import Files
from minibroker.broker.log.index import OFFSET_MAX
from minibroker.broker.log.loading import Loaded, load, rebuild_producers
from minibroker.broker.log.log_segments import (
    DeletedSegments,
    Extent,
    OldestSegment,
    expired_segments,
    must_roll,
    oldest_segment,
)
from minibroker.broker.log.outcomes import (
    DESCRIPTORS_AT_ONCE,
    DISK_IS_FULL,
    NEW_LOG,
    Appended,
    Damage,
    Flush,
    LastKnownState,
    LogLimits,
    LogLocation,
    LogStatistics,
    OffsetAtTime,
    refusal_of,
    require_descriptors,
)
from minibroker.broker.log.producers import ProducerStates
from minibroker.broker.log.recovery import accept_damage, mark_damage
from minibroker.broker.log.segment import Segment
from minibroker.broker.log.time_lookup import find_time
from minibroker.broker.log.transaction_index import AbortedEntry
from minibroker.broker.log.verifications import Verification, Verifications
from minibroker.broker.turns import Steps, Turns
from minibroker.protocol.constants import (
    INTERNAL_TOPICS,
    NO_TIMESTAMP,
    OFFSETS_TOPIC,
    ErrorCode,
)
from minibroker.protocol.epoch_history import EpochHistory
from minibroker.protocol.records.batch import BatchHeader, read_header, stamp, stamp_append_time
from minibroker.protocol.records.control import EndMarker, encode_end_marker, read_end_marker
from minibroker.protocol.types import Slice, TopicPartition

logger = logging.getLogger(__name__)

ABORTED_MAX: Final = 2_000  # transactions with markers among the batches of one read

BeforeTruncation: TypeAlias = Callable[[TopicPartition, int], None]


class Log:
    """See the head of this file. Made by `Log.open`.

    `log_start` is the first readable offset, `log_end` the next one to be written.
    `checkpointed_high_watermark` comes from the disk, fitted to the log. `limits` may be replaced
    at any time. `before_truncation` is called with an offset before segments are removed: the
    checkpoints must then be true of the log up to that offset.
    """

    def __init__(
        self,
        location: LogLocation,
        limits: LogLimits,
        loaded: Loaded,
        before_truncation: BeforeTruncation,
    ) -> None:
        self._limits = limits
        self.epochs: EpochHistory = loaded.epochs
        self.producers: ProducerStates = loaded.producers
        self.verifications = Verifications()
        self.log_start = loaded.log_start
        self.log_end = loaded.log_end
        self.checkpointed_high_watermark = loaded.high_watermark
        self.damage: Damage | None = loaded.damage
        self._lower_checkpoints = before_truncation
        self._location = location
        self._segments = loaded.segments
        self._snapshots = loaded.snapshots
        self._epoch_file = loaded.epoch_file
        self._deleted = DeletedSegments(location.files)
        self._durability = Durability(
            location.files, loaded.recovery_point, is_clean=loaded.is_clean
        )
        self._shortage_latch = ShortageLatch(location.topic_partition)
        self._may_lack_sequence = location.topic_partition.topic == OFFSETS_TOPIC
        self._is_internal = location.topic_partition.topic in INTERNAL_TOPICS
        self._is_closed = False
        self.compaction = Compaction(
            self._segments,
            self._deleted,
            self._durability,
            self.producers,
            lambda: self._limits,
            lambda: self._location,
        )

    @classmethod
    def open(
        cls,
        location: LogLocation,
        limits: LogLimits,
        last_known: LastKnownState = NEW_LOG,
        before_truncation: BeforeTruncation = lambda *_: None,
        *,
        now_ms: int,
    ) -> Self:
        """Open or create the log in `location`. Reads segments only after an unclean stop."""
        loaded = load(location, limits, last_known, now_ms)
        return cls(location, limits, loaded, before_truncation)

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition of this log."""
        return self._location.topic_partition

    @property
    def topic_id(self) -> bytes:
        """The id of its topic; b"" if the directory does not contain it."""
        return self._location.topic_id

    @topic_id.setter
    def topic_id(self, topic_id: bytes) -> None:
        self._location = replace(self._location, topic_id=topic_id)

    @property
    def limits(self) -> LogLimits:
        """The settings of this log."""
        return self._limits

    @limits.setter
    def limits(self, limits: LogLimits) -> None:
        self._limits = limits
        self.producers.expiration_ms = limits.producer_expiration_ms
        self._segments.active.index_interval_bytes = limits.index_interval_bytes

    @property
    def directory(self) -> PurePath:
        """The directory of this log."""
        return self._location.directory

    @property
    def recovery_point(self) -> int:
        """The offset below which everything was synced."""
        return self._durability.recovery_point

    @property
    def durable_end(self) -> int:
        """The recovery point, for its use in the high watermark."""
        return self._durability.recovery_point

    @property
    def generation(self) -> int:
        """How often the log was truncated since it was opened."""
        return self._durability.generation

    @property
    def size(self) -> int:
        """The size of all batches in bytes."""
        return self._segments.size

    @property
    def _files(self) -> Files:
        return self._location.files

    # -- appending

    def append_as_leader(
        self,
        batch: memoryview,
        leader_epoch: int,
        now_ms: int,
        verification: Verification | None = None,
        header: BatchHeader | None = None,
    ) -> Appended:
        """Validate one producer's batch, give it its offset and epoch in place, and write it.
        `header` is what `check_batch` has returned for it.

        Raises Refused: INVALID_TXN_STATE for the first batch of a transaction without a valid
        `verification`, KAFKA_STORAGE_ERROR in a shortage. A duplicate is not written: the offsets
        of the original are returned.
        """
        if header is None:
            header = self.check_batch(batch)
        check_timestamps(header, self._limits, now_ms)
        uses_append_time = self._limits.timestamp_type == "LogAppendTime"
        if header.producer_id >= 0:
            duplicate = self.producers.check(header)
            if duplicate is not None:
                time_ms = duplicate.timestamp if uses_append_time else NO_TIMESTAMP
                return Appended(duplicate.first_offset, duplicate.last_offset, time_ms, True)
            if header.is_transactional:
                self._check_transaction(header, verification)
        if not self._is_internal:
            self._location.room.check_records()
        if uses_append_time:
            stamp_append_time(batch, now_ms)
        stamp(batch, self.log_end, leader_epoch)
        header = read_header(batch)
        self._write(batch, header, now_ms)
        self.producers.update(header, now_ms)
        append_time_ms = now_ms if uses_append_time else NO_TIMESTAMP
        # Not by its own `__new__`, a call more.
        fields = (header.base_offset, header.last_offset, append_time_ms, False)
        return tuple.__new__(Appended, fields)

    def check_batch(self, batch: memoryview) -> BatchHeader:
        """Return the header of a batch that may be appended, but for its timestamps and its
        producer's state. Raises Refused. In the offsets topic, which brokers alone write, the
        coordinator's batches of a transaction have the producer's id, and no sequence."""
        return check_batch(batch, self._limits, may_lack_sequence=self._may_lack_sequence)

    def _check_transaction(self, header: BatchHeader, verification: Verification | None) -> None:
        """Raise Refused for a batch of a transaction that is not known to be open."""
        epoch = header.producer_epoch
        if self.producers.has_open_transaction(header.producer_id, epoch):
            return
        if not self.verifications.is_valid(verification, epoch):
            what = (
                f"producer {header.producer_id} epoch {epoch} has no transaction here that its"
                " coordinator knows"
            )
            raise Refused(ErrorCode.INVALID_TXN_STATE, what)

    def append_marker(
        self,
        marker: EndMarker,
        producer: tuple[int, int],
        leader_epoch: int,
        now_ms: int,
        *,
        is_next_epoch: bool = False,
    ) -> Appended:
        """Append the marker of a transaction's coordinator for a producer (id and epoch), as the
        leader. `is_next_epoch` as in `ProducerStates.check_marker`.

        Raises Refused: INVALID_PRODUCER_EPOCH, TRANSACTION_COORDINATOR_FENCED, or in a shortage.
        """
        self.producers.check_marker(
            *producer, marker.coordinator_epoch, is_next_epoch=is_next_epoch
        )
        batch = encode_end_marker(marker, *producer, now_ms)
        if self._limits.timestamp_type == "LogAppendTime":
            stamp_append_time(batch, now_ms)
        stamp(batch, self.log_end, leader_epoch)
        header = read_header(batch)
        self._write(memoryview(batch), header, now_ms)
        self._record_marker(self.producers.update(header, now_ms, marker), header)
        return Appended(header.base_offset, header.last_offset, NO_TIMESTAMP, False)

    def _record_marker(self, aborted: AbortedEntry | None, header: BatchHeader) -> None:
        """Record what a marker that was written has ended."""
        self.verifications.on_marker(header.producer_id)
        if aborted is not None:
            self._segments.active.aborted.append(aborted)

    def append_as_follower(self, batches: CheckedBatches, now_ms: int) -> None:
        """Write batches as the leader stored them. Raises UnexpectedOffset or InvalidBatch if they
        do not continue this log, and Refused (part may be written) in a shortage."""
        if batches.headers and not self._is_internal:
            self._location.room.check_copies()
        if self.log_start == self.log_end and begins_within(batches, self.log_start):
            self._begin_with(batches, now_ms)
            return
        batches = from_inside_filler(batches, self.log_end)
        check_continuation(batches, self.log_end, self.epochs.newest_epoch)
        self._append_copied(batches, now_ms)

    def _append_copied(self, batches: CheckedBatches, now_ms: int) -> None:
        for position, header in batches.headers:
            batch = batches.records[position : position + header.size]
            self._write(batch, header, now_ms)
            if header.is_control:
                marker = read_end_marker(batch, header)
                aborted = self.producers.update_from_replica(header, now_ms, marker)
                self._record_marker(aborted, header)
            else:
                self.producers.update_from_replica(header, now_ms)

    def _begin_with(self, batches: CheckedBatches, now_ms: int) -> None:
        """Restart the log at the first of these batches, below the log start, which stays."""
        self._require_descriptors()
        log_start = self.log_start
        self._restart(batches.headers[0][1].base_offset, log_start, now_ms)
        try:
            self._append_copied(batches, now_ms)
        finally:
            if self.log_end < log_start:  # not even the first batch was written
                self._restart(log_start, log_start, now_ms)
        self._epoch_file.update(self.epochs, self.epochs.truncate_from_start(log_start))

    def _write(self, batch: memoryview, header: BatchHeader, now_ms: int) -> None:
        """Write and index one batch. Raises Refused in a shortage."""
        if header.leader_epoch != self.epochs.newest_epoch:
            self.assign_epoch(header.leader_epoch, header.base_offset)
        try:
            segment = self._segment_for(header, now_ms)
            position = segment.write(batch)
        except OSError as error:
            raise self._shortage_latch.on_error(error) from None
        self._shortage_latch.on_success()
        self._location.room.on_written(len(batch))
        segment.index_batch(header, position)
        self.log_end = header.next_offset

    def raise_start(self, offset: int) -> None:
        """Make records below `offset` unreadable; retention deletes their segments later."""
        assert offset <= self.log_end
        if offset > self.log_start:
            self.log_start = offset
            self._epoch_file.update(self.epochs, self.epochs.truncate_from_start(offset))

    def assign_epoch(self, leader_epoch: int, offset: int) -> None:
        """Record that a leader epoch begins at an offset."""
        self._epoch_file.update(self.epochs, self.epochs.assign(leader_epoch, offset))

    def _segment_for(self, header: BatchHeader, now_ms: int) -> Segment:
        segment = self._segments.active
        if must_roll(segment, header, self._limits, now_ms):
            try:
                segment = self._roll(now_ms)
            except OSError as error:
                is_short = error.errno in NO_DESCRIPTORS
                if not (is_short and self._location.sealed_files.give_back(DESCRIPTORS_AT_ONCE)):
                    raise
                segment = self._roll(now_ms)
        return segment

    def _roll(self, now_ms: int) -> Segment:
        """Seal the active segment and begin a new one. After a shortage it can be called again."""
        base_offset = self.log_end
        sealed = self._segments.active
        self._durability.sync_truncation(sealed.file, self.directory)
        sealed.write_indexes()
        self._snapshots.write(base_offset, self.producers.dump())
        segment = self._new_segment(base_offset, now_ms)
        self._segments.add(segment)
        sealed.seal()
        segment.rest()
        return segment

    def _new_segment(self, base_offset: int, now_ms: int) -> Segment:
        self._durability.record_name_change()
        interval, sealed_files = self._limits.index_interval_bytes, self._location.sealed_files
        return Segment(self._files, self.directory, base_offset, now_ms, interval, sealed_files)

    # -- reading

    def read(
        self,
        offset: int,
        bytes_max: int,
        end_offset: int,
        *,
        at_least_one: bool = True,
        may_block: bool = True,
    ) -> list[Slice]:
        """Return whole batches below `end_offset`, beginning with the one that holds `offset`.

        At most `bytes_max` bytes; with `at_least_one` the first batch is returned at any size.
        Raises Refused (OFFSET_OUT_OF_RANGE, or a segment cannot be opened for now), BadBytes if
        that batch is damaged, and NotCached unless it `may_block`.
        """
        return self._read(offset, bytes_max, end_offset, at_least_one, may_block)[0]

    def _read(
        self, offset: int, bytes_max: int, end_offset: int, at_least_one: bool, may_block: bool
    ) -> tuple[list[Slice], int]:
        """Return the batches as `read` does, and the offset that follows them."""
        if not self.log_start <= offset <= self.log_end:
            raise Refused(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {offset}, the log has {self.log_start} to {self.log_end}",
            )
        end_offset = min(end_offset, self.log_end)
        if offset >= end_offset:
            return [], offset
        args = (offset, bytes_max, end_offset, at_least_one)
        try:
            slices, next_offset = self._segments.read(*args, self.epochs, may_block=may_block)
        except OSError as error:
            raise refusal_of(error) from error
        return [*slices], next_offset

    def read_committed(
        self,
        offset: int,
        bytes_max: int,
        end_offset: int,
        *,
        at_least_one: bool = True,
        may_block: bool = True,
    ) -> tuple[list[Slice], list[AbortedEntry]]:
        """Read as `read` does, below a last stable offset, and return the aborted transactions that
        overlap the batches, too. If these are many, fewer batches are returned."""
        slices, end = self._read(offset, bytes_max, end_offset, at_least_one, may_block)
        if not slices:
            return [], []
        try:
            aborted = self._segments.aborted(offset, end, may_block=may_block)
            found = [*islice(aborted, ABORTED_MAX + 1)]
            if len(found) > ABORTED_MAX and found[-1].last_offset < end:
                # Its marker is within what was read: less is read, up to it.
                end = found[-1].last_offset + 1
                slices, end = self._read(offset, bytes_max, end, at_least_one, may_block)
            found = [*self._segments.aborted(offset, end, may_block=may_block)]
        except OSError as error:
            raise refusal_of(error) from error
        return slices, found

    def last_stable_offset(self, high_watermark: int) -> int:
        """Return the offset below which all transactions are decided, where the log is committed
        up to `high_watermark`."""
        unstable = self.producers.unstable
        if not unstable:
            return high_watermark
        return max(self.log_start, unstable.last_stable(high_watermark))

    def readable_bytes(self, offset: int, end_offset: int) -> int:
        """Estimate the bytes that a read would return, never too few, without a disk read. Raises
        Refused if a segment cannot be opened for now."""
        start, end = max(offset, self.log_start), min(end_offset, self.log_end)
        try:
            return self._segments.readable_bytes(start, end)
        except OSError as error:
            raise refusal_of(error) from error

    @property
    def newest_timestamp(self) -> int:
        """The largest timestamp of the log in milliseconds; -1 if it has no records."""
        return max(segment.max_timestamp for segment in self._segments)

    def find_max_timestamp(self, end_offset: int) -> Steps[OffsetAtTime | None]:
        """Return the first record with the largest timestamp of the log, if it is below
        `end_offset`; else as `find_time`."""
        newest = max(segment.max_timestamp for segment in self._segments)
        return (yield from self.find_time(newest, end_offset))

    def find_time(self, timestamp_ms: int, end_offset: int) -> Steps[OffsetAtTime | None]:
        """Return the first record of that time or later below `end_offset`; see `time_lookup`.
        Raises Refused as `read`, too."""
        segments = tuple(self._segments)
        try:
            found = yield from find_time(segments, timestamp_ms, end_offset, lambda: self.log_start)
        except OSError as error:
            raise refusal_of(error) from error
        return found

    # -- making durable

    def start_flush(self) -> Flush:
        """Return what to sync so that everything now in the log becomes durable; see `Flush`."""
        return self._durability.start(self._segments, self.log_end, self.directory)

    def finish_flush(self, flush: Flush) -> None:
        """Record that all of `flush` was synced.

        If the log was truncated meanwhile, no offset counts as durable by it.
        """
        self._durability.finish(flush)

    def start_names_flush(self) -> Flush:
        """Return what to sync so that a new log is found again, with its topic id."""
        return self._durability.start_names(self.directory)

    def finish_names_flush(self, flush: Flush) -> None:
        """Record that all of `flush` was synced."""
        self._durability.finish_names(flush)

    # -- truncating

    def truncate_to(self, offset: int, now_ms: int) -> None:
        """Truncate: remove all batches that hold `offset` or a later one.

        Whole batches are removed, so the log may end below `offset`, as it would after a restart.
        Raises BadBytes, and truncates nothing, if the part that is to stay is damaged near there;
        Refused in a shortage.
        """
        assert offset >= 0
        self._require_descriptors()
        if offset >= self.log_end:
            self._epoch_file.update(self.epochs, self.epochs.truncate_from_end(self.log_end))
            return
        if offset < self._segments.first.base_offset:
            self.restart_at(offset, now_ms)
            return
        index = self._segments.index_of(offset)
        segment = self._segments[index]
        position, end_offset = segment.truncation_point(offset)
        self._before_truncation(end_offset, min(self.log_start, end_offset))
        self._segments.remove_from(index + 1, self._files)
        segment.activate()
        self._after_truncation(segment.truncate(position, end_offset), now_ms)

    def restart_at(self, offset: int, now_ms: int) -> None:
        """Delete all records, and continue empty at `offset`."""
        assert offset >= 0
        self._require_descriptors()
        self._restart(offset, offset, now_ms)

    def _restart(self, offset: int, log_start: int, now_ms: int) -> None:
        """Delete all records, and continue at `offset`, readable from `log_start` on."""
        self._before_truncation(min(offset, self._segments.first.base_offset), log_start)
        self._segments.remove_from(0, self._files)
        self._snapshots.drop_outside(offset + 1, offset)
        self._segments.add(self._new_segment(offset, now_ms))
        # A log without records and epochs diverges from no other.
        self._epoch_file.update(self.epochs, self.epochs.truncate_from_end(0))
        self._after_truncation(offset, now_ms)

    def _require_descriptors(self) -> None:
        """Raise Refused if the files that a truncation opens could not be opened: it cannot be left
        half done. Only worker threads could use them up meanwhile."""
        try:
            require_descriptors(self._files, self._segments.active.path)
        except OSError as error:
            raise refusal_of(error) from error

    def _before_truncation(self, offset: int, log_start: int) -> None:
        index = self._segments.index_of(offset)
        self._durability.record_truncation(offset, self._segments[index].base_offset)
        self.compaction.truncate_to(offset)
        self._move_start(log_start, offset)

    def _move_start(self, log_start: int, end_offset: int) -> None:
        before, self.log_start = self.log_start, log_start
        try:
            self._lower_checkpoints(self.topic_partition, end_offset)
        except Refused:
            self.log_start = before
            raise

    def _after_truncation(self, offset: int, now_ms: int) -> None:
        self._durability.record_name_change()
        self.log_end = offset
        self._epoch_file.update(self.epochs, self.epochs.truncate_from_end(offset))
        self._snapshots.drop_outside(self._segments.first.base_offset, offset)
        rebuild_producers(self.producers, self._segments, self._snapshots, self.log_end, now_ms)

    # -- retention and expiry

    def apply_retention(self, high_watermark: int, now_ms: int) -> Turns[int]:
        """Delete expired segments, one in each turn, and return how many. Raises OSError, and
        Refused if no file descriptor is free. On a full disk the newest one stays, in whose place
        there is no room for another."""
        extent = Extent(self.log_start, high_watermark, self.log_end)
        expired = expired_segments(self._segments, self._limits, extent, now_ms)
        count = sum([some.segments for some in expired])
        if count:
            self._require_descriptors()
        if count == len(self._segments):
            try:
                self._roll(now_ms)
            except OSError as error:
                if error.errno not in DISK_IS_FULL or count == 1:
                    raise
                extent = extent._replace(high_watermark=self._segments.active.base_offset)
                expired = expired_segments(self._segments, self._limits, extent, now_ms)
                count = sum([some.segments for some in expired])
        if count:
            first_base = self._segments[count].base_offset
            for some in expired:  # records with a wrong time expire, too
                logger.info("%s: retention deletes %s", self.topic_partition, some)
            self._move_start(max(self.log_start, first_base), self.log_end)
            self._epoch_file.update(self.epochs, self.epochs.truncate_from_start(self.log_start))
            self._durability.record_name_change()
            # Retention removes no producer: a snapshot has those whose batches are deleted.
            self._snapshots.write(self.log_end, self.producers.dump())
            if not (yield from self._delete_below(first_base, now_ms)):
                return count
            self._snapshots.drop_outside(first_base, self.log_end)
        for segment in self._segments:
            if segment is not self._segments.active:
                segment.release_indexes()
        return count

    def _delete_below(self, offset: int, now_ms: int) -> Turns[bool]:
        """Delete the segments below an offset, which is not above the log start. Ends early, and
        returns False, if the log is truncated meanwhile, deleted or closed."""
        generation, directory = self.generation, self.directory
        while len(self._segments) > 1 and self._segments[1].base_offset <= offset:
            [segment] = self._segments.pop_first(1)
            self._deleted.add(segment, now_ms, self._limits.file_delete_delay_ms)
            yield
            is_same = (self.generation, self.directory) == (generation, directory)
            if not is_same or self._is_closed:
                return False
        return True

    def remove_deleted_files(self, now_ms: int) -> Steps[int | None]:
        """Remove files that are due, in workers. Returns when (ms) the next is due, None without
        one."""
        return self._deleted.remove_due(now_ms)

    def expire_producers(self, now_ms: int) -> None:
        """Remove the states of producers that appended nothing for `producer_expiration_ms`."""
        self.producers.expire(now_ms)

    # -- closing

    def close(self) -> None:
        """Make everything durable and close the files. Blocks. May be called twice."""
        if self._is_closed:
            return
        self._segments.active.write_indexes()
        self._snapshots.write(self.log_end, self.producers.dump())
        self._epoch_file.update(self.epochs, False)
        flush = self.start_flush()
        for file in flush.files:
            file.sync_now()
        for directory in flush.directories:
            self._files.sync_dir(directory)
        self.finish_flush(flush)
        self.abandon()

    def abandon(self) -> None:
        """Close the files without a flush. May be called twice."""
        self._is_closed = True
        for segment in self._segments:
            segment.close()
        self._deleted.close()

    def move_to(self, directory: PurePath) -> None:
        """Rename the directory before its removal, and close the files. Slices stay readable until
        `abandon`: they open them again."""
        self._files.rename(self.directory, directory)
        self._location = replace(self._location, directory=directory)
        self._segments.active.seal()
        for segment in self._segments:
            segment.move_file(directory)
        self._deleted.move_to(directory)

    def rename_to(self, directory: PurePath) -> None:
        """Rename the directory of a log that goes on there (`log_moves.py`)."""
        assert not len(self._deleted), "nothing was deleted of a log that is no partition's yet"
        self._files.rename(self.directory, directory)
        self._location = replace(self._location, directory=directory)
        self._epoch_file.move_to(directory)
        self._snapshots.move_to(directory)
        for segment in self._segments:
            segment.move_to(directory)
        self._durability.record_name_change()

    @property
    def lowest_truncation(self) -> int:
        """The lowest offset at which the log was truncated since `forget_truncations`; `OFFSET_MAX`
        if it was not."""
        return self._durability.lowest_truncation

    def forget_truncations(self) -> None:
        """Forget where the log was truncated."""
        self._durability.lowest_truncation = OFFSET_MAX

    def take_place_of(self, other: "Log") -> None:
        """Become what another log with the same records is: by the batches alone, what has no
        batch in it any more would be lost, as producers and the epochs without records."""
        assert (self.log_end, self.damage, other.damage) == (other.log_end, None, None)
        self.limits = other.limits
        self.verifications = other.verifications
        self.log_start = other.log_start
        self.epochs = EpochHistory(other.epochs.entries)
        self._epoch_file.update(self.epochs, True)
        states = other.producers.dump()
        self.producers.load(states)
        self._snapshots.write(self.log_end, states)

    def record_damage(self, damage: Damage) -> None:
        """Record that bytes of the log are damaged; the mark survives restarts."""
        mark_damage(self._location, damage.offset)
        self.damage = damage

    def accept_damage(self) -> None:
        """Accept the loss of records that `damage` reports; the bytes kept aside stay."""
        accept_damage(self._files, self.directory)
        self.damage = None

    def oldest_segment(self, now_ms: int) -> OldestSegment:
        """Return the segment that retention deletes next, and when."""
        extent = Extent(self.log_start, self.log_end, self.log_end)
        return oldest_segment(self._segments, self._limits, extent, now_ms)

    def statistics(self) -> LogStatistics:
        """Return the statistics of the log now."""
        return LogStatistics(
            log_start=self.log_start,
            log_end=self.log_end,
            recovery_point=self.recovery_point,
            size=self.size,
            segment_count=len(self._segments),
            generation=self.generation,
            producer_count=len(self.producers),
            is_damaged=self.damage is not None,
        )
