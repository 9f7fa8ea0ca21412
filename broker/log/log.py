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
* the log start rises before files of deleted segments are renamed.

`generation` grows with every cut: a flush that began before one proves nothing, and slices of
bytes that were cut are stale.
"""

import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import PurePath
from typing import Self

from minibroker.broker.log.admission import check_append
from minibroker.broker.log.epoch_file import DISK_IS_FULL
from minibroker.broker.log.epochs import EpochCache
from minibroker.broker.log.files import File, Files
from minibroker.broker.log.limits import LogLimits
from minibroker.broker.log.loading import Loaded, load, rebuild_producers
from minibroker.broker.log.outcomes import (
    NEW_LOG,
    Appended,
    Damage,
    Flush,
    LogStatistics,
    OffsetAtTime,
    Opening,
    Place,
)
from minibroker.broker.log.producers import ProducerStates
from minibroker.broker.log.recovery import accept_damage
from minibroker.broker.log.retention import expired_count
from minibroker.broker.log.segment import Segment
from minibroker.broker.log.trash import Trash
from minibroker.broker.log.validate import Refused
from minibroker.protocol.constants import NO_TIMESTAMP, ErrorCode
from minibroker.protocol.records.batch import (
    BatchHeader,
    iterate_headers,
    read_header,
    stamp,
    stamp_append_time,
)
from minibroker.protocol.records.record import decode_records
from minibroker.protocol.types import Slice, TopicPartition


class UnexpectedOffset(Exception):
    """A follower was given batches that do not continue its log; nothing was written."""


def _refusal(error: OSError) -> Exception:
    """A full disk is what its client is told; any other error stays what it is."""
    if error.errno in DISK_IS_FULL:
        return Refused(ErrorCode.KAFKA_STORAGE_ERROR, "the disk is full")
    return error


class Log:
    """See the head of this file. Made by `Log.open`.

    `log_start` is the first readable offset, `log_end` the next one to be written. Below
    `recovery_point` everything was synced (so it is the durable end, too). `limits` may be
    replaced at any time.
    """

    def __init__(self, place: Place, limits: LogLimits, loaded: Loaded) -> None:
        self.limits = limits
        self.epochs: EpochCache = loaded.epochs
        self.producers: ProducerStates = loaded.producers
        self.log_start = loaded.log_start
        self.log_end = loaded.log_end
        self.recovery_point = loaded.recovery_point
        self.damage: Damage | None = loaded.damage
        self.generation = 0
        # Called with an offset before the log is cut there, to lower what is checkpointed.
        self.before_cut: Callable[[TopicPartition, int], None] = lambda *_: None
        self._place = place
        self._segments = loaded.segments
        self._snapshots = loaded.snapshots
        self._epoch_file = loaded.epoch_file
        self._trash = Trash(place.files)
        # Files created, renamed or removed so far, and how many of these are durable.
        self._name_changes = 1
        self._durable_name_changes = 0
        self._is_closed = False

    @classmethod
    def open(
        cls,
        place: Place,
        limits: LogLimits,
        opening: Opening = NEW_LOG,
        *,
        now_ms: int,
    ) -> Self:
        """Open the log in `place`, or make it. Reads whole segments only after an unclean stop."""
        return cls(place, limits, load(place, limits, opening, now_ms))

    @property
    def topic_partition(self) -> TopicPartition:
        """Whose log it is."""
        return self._place.topic_partition

    @property
    def directory(self) -> PurePath:
        """Where it lies."""
        return self._place.directory

    @property
    def durable_end(self) -> int:
        """All below it was synced."""
        return self.recovery_point

    @property
    def size(self) -> int:
        """Bytes of batches."""
        return self._segments.size

    @property
    def last_epoch(self) -> int:
        """The newest leader epoch it knows; -1 if none."""
        return self.epochs.newest_epoch

    @property
    def _files(self) -> Files:
        return self._place.files

    # -- appending

    def append_as_leader(self, batch: memoryview, leader_epoch: int, now_ms: int) -> Appended:
        """Validate one producer's batch, give it its offset and epoch in place, and write it.

        Raises Refused. A repetition of a batch is not written; its first place is returned.
        """
        header = check_append(batch, self.limits, now_ms)
        uses_append_time = self.limits.timestamp_type == "LogAppendTime"
        if header.producer_id >= 0:
            duplicate = self.producers.check(header, now_ms)
            if duplicate is not None:
                time_ms = duplicate.timestamp if uses_append_time else NO_TIMESTAMP
                return Appended(duplicate.first_offset, duplicate.last_offset, time_ms, True)
        if uses_append_time:
            stamp_append_time(batch, now_ms)
        base_offset = self.log_end
        stamp(batch, base_offset, leader_epoch)
        header = read_header(batch)
        if leader_epoch != self.epochs.newest_epoch:
            self.assign_epoch(leader_epoch, base_offset)
        try:
            segment = self._segment_for(header, now_ms)
            position = segment.write(batch)
        except OSError as error:
            raise _refusal(error) from error
        segment.note(header, position)
        self.producers.update(header, now_ms)
        self.log_end = header.next_offset
        append_time_ms = now_ms if uses_append_time else NO_TIMESTAMP
        return Appended(base_offset, header.last_offset, append_time_ms, False)

    def append_as_follower(self, records: memoryview, now_ms: int) -> None:
        """Write whole batches as the leader stored them; their CRCs were checked on arrival.

        Raises UnexpectedOffset if they do not continue this log, then nothing was written, and
        Refused when the disk is full, then batches from the front may have been written.
        """
        batches = list(iterate_headers(records))
        next_offset = self.log_end
        for _, header in batches:
            if header.base_offset < next_offset:
                raise UnexpectedOffset(
                    f"{self.topic_partition}: a batch of offset {header.base_offset}"
                    f" where {next_offset} or later must follow"
                )
            next_offset = header.next_offset
        for position, header in batches:
            if header.leader_epoch != self.epochs.newest_epoch:
                self.assign_epoch(header.leader_epoch, header.base_offset)
            try:
                segment = self._segment_for(header, now_ms)
                at = segment.write(records[position : position + header.size])
            except OSError as error:
                raise _refusal(error) from error
            segment.note(header, at)
            self.producers.update_from_replica(header, now_ms)
            self.log_end = header.next_offset

    def assign_epoch(self, leader_epoch: int, offset: int) -> None:
        """Record that a leader epoch begins at an offset."""
        self._epoch_file.is_stale |= self.epochs.assign(leader_epoch, offset)
        self._epoch_file.save(self.epochs)

    def _segment_for(self, header: BatchHeader, now_ms: int) -> Segment:
        segment, limits = self._segments.active, self.limits
        size = segment.size
        if size == 0:
            if segment.has_room_for(header.last_offset, limits.index_bytes_max):
                return segment
            # A follower's log may have a gap that is too wide for 32 bits.
            return self._roll(header.base_offset, now_ms)
        if header.max_timestamp >= 0 and segment.first_timestamp >= 0:
            age = header.max_timestamp - segment.first_timestamp
        else:
            age = now_ms - segment.created_ms
        if (
            size > limits.segment_bytes - header.size
            or age > limits.segment_ms - self._jitter_ms(segment)
            or not segment.has_room_for(header.last_offset, limits.index_bytes_max)
        ):
            self._roll(self.log_end, now_ms)
            return self._segment_for(header, now_ms)
        return segment

    def _jitter_ms(self, segment: Segment) -> int:
        """By how much earlier a segment rolls, so that not all logs of a broker do at once."""
        jitter_ms = self.limits.segment_jitter_ms
        if jitter_ms == 0:
            return 0
        return zlib.crc32(f"{self.topic_partition}:{segment.base_offset}".encode()) % jitter_ms

    def _roll(self, base_offset: int, now_ms: int) -> Segment:
        """Seal the active segment and begin a new one; may be tried again if the disk is full."""
        sealed = self._segments.active
        sealed.write_indexes()
        self._snapshots.take(base_offset, self.producers.dump())
        segment = self._new_segment(base_offset, now_ms)
        if sealed.size == 0:
            self._trash.put(self._segments.take_from(len(self._segments) - 1)[0], now_ms)
        self._segments.add(segment)
        return segment

    def _new_segment(self, base_offset: int, now_ms: int) -> Segment:
        self._name_changes += 1
        interval = self.limits.index_interval_bytes
        return Segment(self._files, self.directory, base_offset, now_ms, interval)

    # -- reading

    def read(
        self, offset: int, bytes_max: int, end_offset: int, *, at_least_one: bool = True
    ) -> list[Slice]:
        """Whole batches from the one that holds `offset` on, below `end_offset`.

        At most `bytes_max` bytes; with `at_least_one` the first batch comes whatever its size.
        Raises Refused (OFFSET_OUT_OF_RANGE).
        """
        if not self.log_start <= offset <= self.log_end:
            raise Refused(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {offset}, the log has {self.log_start} to {self.log_end}",
            )
        end_offset = min(end_offset, self.log_end)
        if offset >= end_offset:
            return []
        return [*self._segments.read(offset, bytes_max, end_offset, at_least_one)]

    def readable_bytes(self, offset: int, end_offset: int) -> int:
        """How many bytes a read would find, without a disk read; rather too many than too few."""
        return self._segments.readable_bytes(
            max(offset, self.log_start), min(end_offset, self.log_end)
        )

    def offset_for_timestamp(self, timestamp_ms: int, end_offset: int) -> OffsetAtTime | None:
        """The first record of that time or later below `end_offset`. Decodes batches."""
        for segment in self._segments:
            if segment.max_timestamp < timestamp_ms:
                continue
            for position, header in segment.batches_since(timestamp_ms):
                batch = segment.file.read(position, header.size)
                for record in decode_records(batch, header):
                    if record.timestamp >= timestamp_ms and record.offset >= self.log_start:
                        if record.offset >= end_offset:
                            return None
                        return OffsetAtTime(record.timestamp, record.offset, header.leader_epoch)
        return None

    # -- making durable

    def start_flush(self) -> Flush:
        """What to sync so that all that is in the log now becomes durable; see `Flush`."""
        files: list[File] = []
        opened: list[File] = []
        if self.recovery_point < self.log_end:
            for segment in self._segments.from_offset(self.recovery_point):
                files.append(segment.file)
                if segment is not self._segments.active:
                    opened += [self._files.open(path) for path in segment.index_paths]
        directories: tuple[PurePath, ...] = ()
        if self._durable_name_changes < self._name_changes:
            directories = (self.directory, self.directory.parent)
        return Flush(
            (*files, *opened),
            directories,
            self.log_end,
            self.generation,
            tuple(opened),
            self._name_changes,
        )

    def finish_flush(self, flush: Flush) -> None:
        """All of `flush` was synced. Proves nothing if the log was cut meanwhile."""
        for file in flush.opened:
            file.close()
        self._durable_name_changes = max(self._durable_name_changes, flush.name_changes)
        if flush.generation == self.generation:
            self.recovery_point = max(self.recovery_point, flush.end_offset)

    # -- cutting

    def truncate_to(self, offset: int, now_ms: int) -> None:
        """Take back all batches that hold `offset` or a later one (a batch goes whole)."""
        assert offset >= 0
        if offset >= self.log_end:
            self._cut_epochs(self.log_end)
            return
        if offset < self._segments.first.base_offset:
            self.restart_at(offset, now_ms)
            return
        self._before_cut(offset)
        index = self._segments.index_of(offset)
        for segment in self._segments.take_from(index + 1):
            self._remove(segment)
        active = self._segments.active
        active.cut(active.position_of(offset))
        self._after_cut(offset, now_ms)

    def restart_at(self, offset: int, now_ms: int) -> None:
        """Drop everything, and go on empty at `offset`."""
        assert offset >= 0
        self._before_cut(offset)
        for segment in self._segments.take_from(0):
            self._remove(segment)
        self._snapshots.drop_outside(offset + 1, offset)
        self._segments.add(self._new_segment(offset, now_ms))
        self.log_start = offset
        self._after_cut(offset, now_ms)

    def _remove(self, segment: Segment) -> None:
        """What was cut is of no use to anybody: closed and removed at once."""
        segment.close()
        for path in segment.paths:
            self._files.remove(path)

    def _before_cut(self, offset: int) -> None:
        self.generation += 1
        self.recovery_point = min(self.recovery_point, offset)
        self.before_cut(self.topic_partition, offset)

    def _after_cut(self, offset: int, now_ms: int) -> None:
        self._name_changes += 1
        self.log_end = offset
        self.log_start = min(self.log_start, offset)
        self._cut_epochs(offset)
        self._snapshots.drop_outside(self._segments.first.base_offset, offset)
        rebuild_producers(self.producers, self._segments, self._snapshots, now_ms)

    def _cut_epochs(self, offset: int) -> None:
        self._epoch_file.is_stale |= self.epochs.truncate_from_end(offset)
        self._epoch_file.save(self.epochs)

    # -- keeping house

    def apply_retention(self, high_watermark: int, now_ms: int) -> int:
        """Delete the segments that are too old or too many; how many. Raises OSError."""
        end_offset = min(high_watermark, self.log_end)
        count = expired_count(self._segments, self.limits, self.log_start, end_offset, now_ms)
        if count == len(self._segments):
            self._roll(self.log_end, now_ms)
        deleted = self._segments.take_first(count)
        if deleted:
            self.log_start = max(self.log_start, self._segments.first.base_offset)
            self._epoch_file.is_stale |= self.epochs.truncate_from_start(self.log_start)
            self._epoch_file.save(self.epochs)
        for segment in deleted:
            self._trash.put(segment, now_ms + self.limits.file_delete_delay_ms)
        for segment in self._segments:
            if segment is not self._segments.active:
                segment.release_indexes()
        return count

    def remove_deleted_files(self, now_ms: int) -> int | None:
        """Remove files whose time has come; when (ms) the next is due, None if nothing is."""
        return self._trash.empty(now_ms)

    def expire_producers(self, now_ms: int) -> None:
        """Forget producers that sent nothing for `producer_expiration_ms`."""
        self.producers.expire(now_ms)

    # -- ending

    def close(self) -> None:
        """Make all durable and close the files; blocks. May be called twice."""
        if self._is_closed:
            return
        self._segments.active.write_indexes()
        self._snapshots.take(self.log_end, self.producers.dump())
        self._epoch_file.save(self.epochs)
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
        self._trash.close()

    def move_to(self, directory: PurePath) -> None:
        """Rename the directory, on its way out; open slices stay readable until `abandon`."""
        self._files.rename(self.directory, directory)
        self._place = replace(self._place, directory=directory)

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
