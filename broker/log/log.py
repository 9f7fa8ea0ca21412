"""One partition's log: the only writer of its bytes, indexes, producer states and epoch starts.

Everything here runs in the loop and without suspension: a batch is validated, compared with its
producer's state, given its offset, written and indexed in one call, so there is nothing to lock.
What a log refuses is a `Refused` with the code for the client; a full disk is one of these, and
what had been written of the batch is cut, so the log works again when there is space. Any other
OSError leaves the broker (docs/architecture.md, "What stops what").

What must be true on the disk, in this order:

* an epoch's start is written before its first batch, without fsync: headers can tell it again;
* the recovery point rises only after fsync has returned (`start_flush`, `finish_flush`), and is
  lowered and persisted (`before_cut`) before a cut, so that no shorter log looks damaged;
* the log start is persisted (`before_cut`) before segments at the front go, so that a missing
  first segment can be told from one that retention took.

`generation` grows with every cut: a flush that began before one proves nothing, and slices of
bytes that were cut are stale.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import PurePath
from typing import Self

from minibroker.broker.errors import Refused
from minibroker.broker.log.admission import (
    CheckedBatches,
    DiskFullLatch,
    begins_within,
    check_append,
    check_continuation,
)
from minibroker.broker.log.durability import Durability
from minibroker.broker.log.files import Files
from minibroker.broker.log.loading import Loaded, load, rebuild_producers
from minibroker.broker.log.outcomes import (
    NEW_LOG,
    Appended,
    Damage,
    Flush,
    LastKnownState,
    LogLimits,
    LogLocation,
    LogStatistics,
    OffsetAtTime,
)
from minibroker.broker.log.producers import ProducerStates
from minibroker.broker.log.recovery import accept_damage, mark_damage
from minibroker.broker.log.segment import Segment
from minibroker.broker.log.segments import DeletedSegments, Extent, expired_count, must_roll
from minibroker.protocol.constants import NO_TIMESTAMP, ErrorCode
from minibroker.protocol.epoch_history import EpochHistory
from minibroker.protocol.records.batch import BatchHeader, read_header, stamp, stamp_append_time
from minibroker.protocol.types import Slice, TopicPartition


class Log:
    """See the head of this file. Made by `Log.open`.

    `log_start` is the first readable offset, `log_end` the next one to be written.
    `checkpointed_high_watermark` is the one from the disk, fitted to the log. `limits` may be
    replaced at any time.
    """

    def __init__(self, location: LogLocation, limits: LogLimits, loaded: Loaded) -> None:
        self._limits = limits
        self.epochs: EpochHistory = loaded.epochs
        self.producers: ProducerStates = loaded.producers
        self.log_start = loaded.log_start
        self.log_end = loaded.log_end
        self.checkpointed_high_watermark = loaded.high_watermark
        self.damage: Damage | None = loaded.damage
        # Called before segments go: what is checkpointed must be true of the log up to an offset.
        self.before_cut: Callable[[TopicPartition, int], None] = lambda *_: None
        self._location = location
        self._segments = loaded.segments
        self._snapshots = loaded.snapshots
        self._epoch_file = loaded.epoch_file
        self._deleted = DeletedSegments(location.files)
        self._durability = Durability(
            location.files, loaded.recovery_point, is_clean=loaded.is_clean
        )
        self._disk_full_latch = DiskFullLatch(location.topic_partition)
        self._is_closed = False

    @classmethod
    def open(
        cls,
        location: LogLocation,
        limits: LogLimits,
        last_known: LastKnownState = NEW_LOG,
        *,
        now_ms: int,
    ) -> Self:
        """Open or create the log in `location`. Reads segments only after an unclean stop."""
        return cls(location, limits, load(location, limits, last_known, now_ms))

    @property
    def topic_partition(self) -> TopicPartition:
        """Whose log it is."""
        return self._location.topic_partition

    @property
    def topic_id(self) -> bytes:
        """Which topic of that name; b"" if the directory does not say."""
        return self._location.topic_id

    @topic_id.setter
    def topic_id(self, topic_id: bytes) -> None:
        self._location = replace(self._location, topic_id=topic_id)

    @property
    def limits(self) -> LogLimits:
        """The settings it obeys."""
        return self._limits

    @limits.setter
    def limits(self, limits: LogLimits) -> None:
        self._limits = limits
        self.producers.expiration_ms = limits.producer_expiration_ms
        self._segments.active.index_interval_bytes = limits.index_interval_bytes

    @property
    def directory(self) -> PurePath:
        """Where it lies."""
        return self._location.directory

    @property
    def recovery_point(self) -> int:
        """All below it was synced."""
        return self._durability.recovery_point

    @property
    def durable_end(self) -> int:
        """The same, as it counts for the high watermark."""
        return self._durability.recovery_point

    @property
    def generation(self) -> int:
        """How often it was cut since it was opened."""
        return self._durability.generation

    @property
    def size(self) -> int:
        """Bytes of batches."""
        return self._segments.size

    @property
    def _files(self) -> Files:
        return self._location.files

    # -- appending

    def append_as_leader(self, batch: memoryview, leader_epoch: int, now_ms: int) -> Appended:
        """Validate one producer's batch, give it its offset and epoch in place, and write it.

        Raises Refused. A repetition of a batch is not written; its first location is returned.
        """
        header = check_append(batch, self._limits, now_ms)
        uses_append_time = self._limits.timestamp_type == "LogAppendTime"
        if header.producer_id >= 0:
            duplicate = self.producers.check(header, now_ms)
            if duplicate is not None:
                time_ms = duplicate.timestamp if uses_append_time else NO_TIMESTAMP
                return Appended(duplicate.first_offset, duplicate.last_offset, time_ms, True)
        if uses_append_time:
            stamp_append_time(batch, now_ms)
        stamp(batch, self.log_end, leader_epoch)
        header = read_header(batch)
        self._write(batch, header, now_ms)
        self.producers.update(header, now_ms)
        append_time_ms = now_ms if uses_append_time else NO_TIMESTAMP
        return Appended(header.base_offset, header.last_offset, append_time_ms, False)

    def append_as_follower(self, batches: CheckedBatches, now_ms: int) -> None:
        """Write batches as the leader stored them. Raises UnexpectedOffset or InvalidBatch if they
        do not continue this log, and Refused (part may be written) when the disk is full."""
        if self.log_start == self.log_end and begins_within(batches, self.log_start):
            self._begin_with(batches, now_ms)
            return
        check_continuation(batches, self.log_end, self.epochs.newest_epoch)
        self._append_copied(batches, now_ms)

    def _append_copied(self, batches: CheckedBatches, now_ms: int) -> None:
        for position, header in batches.headers:
            self._write(batches.records[position : position + header.size], header, now_ms)
            self.producers.update_from_replica(header, now_ms)

    def _begin_with(self, batches: CheckedBatches, now_ms: int) -> None:
        """Begin below the log start, at the first of these batches. The log start stays."""
        log_start = self.log_start
        self._restart(batches.headers[0][1].base_offset, log_start, now_ms)
        try:
            self._append_copied(batches, now_ms)
        finally:
            if self.log_end < log_start:  # not even the first batch was written
                self.restart_at(log_start, now_ms)
        self._epoch_file.update(self.epochs, self.epochs.truncate_from_start(log_start))

    def _write(self, batch: memoryview, header: BatchHeader, now_ms: int) -> None:
        """Write and index one batch; a disk without room is a Refused."""
        if header.leader_epoch != self.epochs.newest_epoch:
            self.assign_epoch(header.leader_epoch, header.base_offset)
        try:
            segment = self._segment_for(header, now_ms)
            position = segment.write(batch)
        except OSError as error:
            raise self._disk_full_latch.on_error(error) from None
        self._disk_full_latch.on_success()
        segment.index_batch(header, position)
        self.log_end = header.next_offset

    def raise_start(self, offset: int) -> None:
        """Records below `offset` are not to be read any more; their segments go in time."""
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
            segment = self._roll(now_ms)
        return segment

    def _roll(self, now_ms: int) -> Segment:
        """Seal the active segment and begin a new one; may be tried again if the disk is full."""
        base_offset = self.log_end
        sealed = self._segments.active
        self._durability.sync_cut(sealed.file, self.directory)
        sealed.write_indexes()
        self._snapshots.write(base_offset, self.producers.dump())
        segment = self._new_segment(base_offset, now_ms)
        self._segments.add(segment)
        return segment

    def _new_segment(self, base_offset: int, now_ms: int) -> Segment:
        self._durability.record_name_change()
        interval = self._limits.index_interval_bytes
        return Segment(self._files, self.directory, base_offset, now_ms, interval)

    # -- reading

    def read(
        self, offset: int, bytes_max: int, end_offset: int, *, at_least_one: bool = True
    ) -> list[Slice]:
        """Whole batches from the one that holds `offset` on, below `end_offset`.

        At most `bytes_max` bytes; with `at_least_one` the first batch comes whatever its size.
        Raises Refused (OFFSET_OUT_OF_RANGE), and BadBytes if that batch is damaged.
        """
        if not self.log_start <= offset <= self.log_end:
            raise Refused(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {offset}, the log has {self.log_start} to {self.log_end}",
            )
        end_offset = min(end_offset, self.log_end)
        if offset >= end_offset:
            return []
        args = (offset, bytes_max, end_offset, at_least_one)
        return [*self._segments.read(*args, self.epochs)]

    def readable_bytes(self, offset: int, end_offset: int) -> int:
        """How many bytes a read would find, without a disk read; rather too many than too few."""
        return self._segments.readable_bytes(
            max(offset, self.log_start), min(end_offset, self.log_end)
        )

    def offset_for_timestamp(self, timestamp_ms: int, end_offset: int) -> OffsetAtTime | None:
        """The first record of that time or later below `end_offset`. Decodes batches.

        Raises BadBytes where it may be among what is lost.
        """
        found = self._segments.first_since(timestamp_ms, self.log_start)
        return found if found is not None and found.offset < end_offset else None

    # -- making durable

    def start_flush(self) -> Flush:
        """What to sync so that all that is in the log now becomes durable; see `Flush`."""
        return self._durability.start(self._segments, self.log_end, self.directory)

    def finish_flush(self, flush: Flush) -> None:
        """All of `flush` was synced. Proves nothing if the log was cut meanwhile."""
        self._durability.finish(flush)

    # -- cutting

    def truncate_to(self, offset: int, now_ms: int) -> None:
        """Take back all batches that hold `offset` or a later one.

        A batch goes whole, so the log may end below `offset`, as it would after a restart. Raises
        BadBytes if what is to stay is damaged near there, and nothing is cut.
        """
        assert offset >= 0
        if offset >= self.log_end:
            self._epoch_file.update(self.epochs, self.epochs.truncate_from_end(self.log_end))
            return
        if offset < self._segments.first.base_offset:
            self.restart_at(offset, now_ms)
            return
        index = self._segments.index_of(offset)
        position, end_offset = self._segments[index].cut_at(offset)
        self._before_cut(end_offset, min(self.log_start, end_offset))
        self._segments.remove_from(index + 1, self._files)
        self._after_cut(self._segments.active.cut(position, end_offset), now_ms)

    def restart_at(self, offset: int, now_ms: int) -> None:
        """Drop everything, and go on empty at `offset`."""
        assert offset >= 0
        self._restart(offset, offset, now_ms)

    def _restart(self, offset: int, log_start: int, now_ms: int) -> None:
        """Drop everything, and go on at `offset` with what is to be read from `log_start` on."""
        self._before_cut(min(offset, self._segments.first.base_offset), log_start)
        self._segments.remove_from(0, self._files)
        self._snapshots.drop_outside(offset + 1, offset)
        self._segments.add(self._new_segment(offset, now_ms))
        # Without records and epochs it has parted from nobody's log.
        self._epoch_file.update(self.epochs, self.epochs.truncate_from_end(0))
        self._after_cut(offset, now_ms)

    def _before_cut(self, offset: int, log_start: int) -> None:
        index = self._segments.index_of(offset)
        self._durability.cut(offset, self._segments[index].base_offset)
        self._move_start(log_start, offset)

    def _move_start(self, log_start: int, end_offset: int) -> None:
        before, self.log_start = self.log_start, log_start
        try:
            self.before_cut(self.topic_partition, end_offset)
        except Refused:
            self.log_start = before
            raise

    def _after_cut(self, offset: int, now_ms: int) -> None:
        self._durability.record_name_change()
        self.log_end = offset
        self._epoch_file.update(self.epochs, self.epochs.truncate_from_end(offset))
        self._snapshots.drop_outside(self._segments.first.base_offset, offset)
        rebuild_producers(self.producers, self._segments, self._snapshots, self.log_end, now_ms)

    # -- keeping house

    def apply_retention(self, high_watermark: int, now_ms: int) -> int:
        """Delete the segments that are too old or too many; how many. Raises OSError."""
        extent = Extent(self.log_start, high_watermark, self.log_end)
        count = expired_count(self._segments, self._limits, extent, now_ms)
        if count == len(self._segments):
            self._roll(now_ms)
        deleted = self._segments.pop_first(count)
        if deleted:
            log_start = max(self.log_start, self._segments.first.base_offset)
            self._move_start(log_start, self.log_end)
            self._epoch_file.update(self.epochs, self.epochs.truncate_from_start(self.log_start))
            self._durability.record_name_change()
            # Retention forgets no producer: those whose batches go are in a snapshot.
            self._snapshots.write(self.log_end, self.producers.dump())
            self._snapshots.drop_outside(self._segments.first.base_offset, self.log_end)
        for segment in deleted:
            self._deleted.add(segment, now_ms, self._limits.file_delete_delay_ms)
        for segment in self._segments:
            if segment is not self._segments.active:
                segment.release_indexes()
        return count

    def remove_deleted_files(self, now_ms: int) -> int | None:
        """Remove files whose time has come; when (ms) the next is due, None if nothing is."""
        return self._deleted.remove_due(now_ms)

    def expire_producers(self, now_ms: int) -> None:
        """Forget producers that sent nothing for `producer_expiration_ms`."""
        self.producers.expire(now_ms)

    # -- ending

    def close(self) -> None:
        """Make all durable and close the files; blocks. May be called twice."""
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
        """Close the files and do no more. May be called twice."""
        self._is_closed = True
        for segment in self._segments:
            segment.close()
        self._deleted.close()

    def move_to(self, directory: PurePath) -> None:
        """Rename the directory, on its way out; open slices stay readable until `abandon`."""
        self._files.rename(self.directory, directory)
        self._location = replace(self._location, directory=directory)

    def record_damage(self, damage: Damage) -> None:
        """Record that bytes are not what was written; the mark survives restarts."""
        mark_damage(self._location, damage.offset)
        self.damage = damage

    def accept_damage(self) -> None:
        """Give up the records whose loss `damage` reports; the bytes kept aside stay."""
        accept_damage(self._files, self.directory)
        self.damage = None

    def statistics(self) -> LogStatistics:
        """The log at this moment."""
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
