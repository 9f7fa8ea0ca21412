"""Recovery of a log after an unclean stop: the check of its segments, and what a loss means.

Recovery reads every segment from the one with the recovery point on, checks it batch by batch, and
builds its indexes again. The log ends at the first bad byte. What that means depends on what is
there:

* a torn tail, which was never acknowledged as durable: it is truncated;
* after a power cut, segments that do not continue the log: the disk wrote a newer file before an
  older one, or undid a truncation. They were not synced either: they are removed;
* a batch of a newer format: the start is refused, and the file is left as it is;
* damage: a valid batch after a bad one, an end below the recovery point, or, if the machine did not
  stop, an end below the high watermark or segments after the end. The bytes are kept in
  `*.damaged` files, named by the first offset they may hold. While such a file exists, the log is
  damaged at every start. A log whose first segments are missing is damaged, too, from its
  checkpointed start on.

A log whose `partition.metadata` is missing or cannot be read is damaged as a whole: its records may
be another topic's of the same name. What was found in the place of that file is kept as
`partition.metadata.damaged`, which marks the log at later starts.
"""

import logging
from collections.abc import Callable
from pathlib import PurePath
from typing import NamedTuple, TypeAlias

from minibroker.broker.log.checkpoints import PARTITION_METADATA, read_topic_id
from minibroker.broker.log.directory import DataDirectoryError
from minibroker.broker.log.files import Files
from minibroker.broker.log.log_segments import LogSegments
from minibroker.broker.log.outcomes import Damage, LastKnownState, LogLocation
from minibroker.broker.log.scan import (
    CHECK_WINDOW_BYTES,
    checked_batches,
    find_batch,
    is_intact,
    is_sound,
    last_offset,
)
from minibroker.broker.log.segment import Segment, file_name, offsets_in
from minibroker.protocol.constants import BATCH_HEADER_BYTES, MAGIC, NO_EPOCH
from minibroker.protocol.epoch_history import EpochHistory
from minibroker.protocol.records.batch import BatchHeader, read_header

LOGGER = logging.getLogger(__name__)
MAGIC_TO_COME_MAX = 9  # a higher one is taken for damage
DAMAGED_SUFFIX = ".damaged"
ACCEPTED_SUFFIX = ".damaged-accepted"
# Called with a valid batch: its segment, position and header.
Observe: TypeAlias = Callable[[Segment, int, BatchHeader], None]
UNKNOWN_TOPIC = PARTITION_METADATA + DAMAGED_SUFFIX
UNKNOWN_TOPIC_ACCEPTED = PARTITION_METADATA + ACCEPTED_SUFFIX


class _Checked(NamedTuple):
    """How far a segment is sound: the size of that part, the next offset, the newest epoch."""

    end: int
    next_offset: int
    leader_epoch: int


def check_segment(
    segment: Segment,
    observe: Observe,
    following_epoch: int | None = None,
    epochs: EpochHistory | None = None,
) -> _Checked:
    """Read a segment once: check every batch, index it, and pass it to `observe`.

    If an older leader epoch follows, in the segment or as that of the next one, the epoch of either
    the last batch or what follows is corrupt. Then `epochs` decide, if they can be trusted.
    """
    segment.forget_indexes()
    checked = _Checked(0, segment.base_offset, NO_EPOCH)
    last: tuple[int, BatchHeader] | None = None

    def accept(position: int, header: BatchHeader) -> _Checked:
        segment.index_batch(header, position)
        observe(segment, position, header)
        return _Checked(position + header.size, header.next_offset, header.leader_epoch)

    for batch in checked_batches(segment.file, segment.base_offset):
        checked = checked if last is None else accept(*last)
        last = batch
    if last is None:
        return checked
    position, header = last
    is_end = position + header.size == segment.size
    if is_end and (following_epoch is None or following_epoch >= header.leader_epoch):
        return accept(position, header)
    written_in = header.leader_epoch
    if epochs is not None:
        written_in = epochs.epoch_at(header.base_offset, written_in)
    return accept(position, header) if header.leader_epoch == written_in else checked


def refuse_newer_format(segment: Segment, checked: _Checked) -> None:
    """Raise `DataDirectoryError` if a batch of a newer format follows what was checked.

    In all formats of Kafka the base offset, the length and the format are in the same place. A
    batch of format 2 of which only this byte is wrong has a valid checksum: that is damage.
    """
    data = segment.file.read(checked.end, BATCH_HEADER_BYTES)
    if len(data) < BATCH_HEADER_BYTES:
        return
    header = read_header(data)
    is_next = header.base_offset == checked.next_offset
    is_whole = BATCH_HEADER_BYTES <= header.size <= segment.size - checked.end
    if not (is_next and is_whole and MAGIC < header.magic <= MAGIC_TO_COME_MAX):
        return
    if not is_intact(segment.file, checked.end, header):
        raise DataDirectoryError(
            f"{segment.path} has a batch of format {header.magic} at offset"
            f" {header.base_offset}, and this minibroker reads only {MAGIC}: start the version of"
            " minibroker that wrote it; if the file is damaged, move its directory away"
        )


def read_damage(location: LogLocation) -> Damage | None:
    """Return the damage that an earlier start found and nobody has accepted yet."""
    offsets = offsets_in(location.files.list(location.directory), DAMAGED_SUFFIX)
    if not offsets:
        return None
    offset = min(offsets)
    return Damage(offset, f"records from offset {offset} on were lost and not given up yet")


def check_front(
    location: LogLocation, last_known: LastKnownState, first_base: int
) -> Damage | None:
    """Return the damage if the first segments, from the checkpointed log start on, are missing.

    The log start is checkpointed before segments are deleted, and lowered before a truncation. An
    accepted loss has a file, which counts until the log start is checkpointed again.
    """
    start = last_known.log_start
    if not 0 <= start < min(first_base, last_known.promised_end):
        return None
    if location.files.exists(location.directory / file_name(start, ACCEPTED_SUFFIX)):
        return None
    damage = Damage(start, f"it begins at {first_base}, and what it had from {start} on is gone")
    LOGGER.error("%s is damaged: %s", location.topic_partition, damage.reason)
    mark_damage(location, start)
    return damage


def mark_damage(location: LogLocation, offset: int) -> None:
    """Record, for later starts, that records are lost of which no bytes are kept."""
    path = location.directory / file_name(offset, DAMAGED_SUFFIX)
    location.files.open(path, create=True).close()
    location.files.sync_dir(location.directory)


def check_owner(location: LogLocation, log_start: int, *, has_records: bool) -> Damage | None:
    """Return the damage if the log has, or had, records and its `partition.metadata` is lost.

    Keeps what was in the place of that file. Once an operator has accepted the loss, the records
    count as those of the topic that has the partition's name.
    """
    files, directory = location.files, location.directory
    if not files.exists(directory / UNKNOWN_TOPIC):
        is_accepted = files.exists(directory / UNKNOWN_TOPIC_ACCEPTED)
        if location.topic_id or not has_records or is_accepted:
            return None
        if files.exists(directory / PARTITION_METADATA):
            files.rename(directory / PARTITION_METADATA, directory / UNKNOWN_TOPIC)
        else:
            files.open(directory / UNKNOWN_TOPIC, create=True).close()
        files.sync_dir(directory)
    damage = Damage(log_start, "its partition.metadata was lost: its topic is unknown")
    LOGGER.error("%s is damaged: %s", location.topic_partition, damage.reason)
    return damage


class Kept(NamedTuple):
    """A file of bytes that were kept; `last_offset` is that of its last valid batch."""

    path: PurePath
    size: int
    last_offset: int | None


def kept_aside(files: Files, directory: PurePath) -> list[Kept]:
    """Return the kept files of a damaged log, in the order of offsets. Reads all of them."""
    kept = []
    for offset in offsets_in(files.list(directory), DAMAGED_SUFFIX):
        name = file_name(offset, DAMAGED_SUFFIX)
        file = files.open(directory / name)
        kept.append(Kept(directory / name, file.size, last_offset(file, offset)))
        file.close()
    return kept


def accept_damage(files: Files, directory: PurePath) -> None:
    """Accept the loss: the kept bytes stay, but the log no longer counts as damaged."""
    for name in files.list(directory):
        if name == UNKNOWN_TOPIC and read_topic_id(files, directory):
            files.remove(directory / name)  # a topic has claimed the log since
        elif name.endswith(DAMAGED_SUFFIX):
            accepted = name.removesuffix(DAMAGED_SUFFIX) + ACCEPTED_SUFFIX
            files.rename(directory / name, directory / accepted)
    files.sync_dir(directory)


class Recovery:
    """Checks the segments of one log, and passes every valid batch to `observe`."""

    def __init__(
        self,
        location: LogLocation,
        last_known: LastKnownState,
        segments: LogSegments,
        observe: Observe,
        epochs: EpochHistory | None,
    ) -> None:
        """`epochs` are those of the file. They may be older than the log, after a power cut, unless
        the machine ran on."""
        self._location = location
        self._last_known = last_known
        self._segments = segments
        self._epochs = epochs if last_known.same_boot or last_known.is_clean else None
        self._observe = observe
        self.damage: Damage | None = None

    def run(self, first: int) -> int:
        """Check the segments from index `first` on, remove what is no log, and return its end."""
        segments = list(self._segments)
        checked = _Checked(0, segments[first].base_offset, NO_EPOCH)
        for index in range(first, len(segments)):
            if index > first and not self._continues(segments[index], checked):
                self._truncate(index - 1, checked)
                break
            following = segments[index + 1].batch_at(0) if index + 1 < len(segments) else None
            epoch = None if following is None else following.leader_epoch
            checked = check_segment(segments[index], self._observe, epoch, self._epochs)
            if checked.end < segments[index].size:
                self._truncate(index, checked)
                break
            if segments[index] is not self._segments.active:
                segments[index].write_indexes()
        self._compare(checked.next_offset)
        return checked.next_offset

    def _continues(self, segment: Segment, before: _Checked) -> bool:
        """Whether a segment can follow what was checked before it.

        After a power cut it may not: an older file may have lost its end, or a truncation may have
        been undone, so that an offset exists twice, or an older epoch follows a newer one.
        """
        if segment.base_offset != before.next_offset:
            return False
        header = segment.batch_at(0)
        return header is None or header.leader_epoch >= before.leader_epoch

    def _truncate(self, index: int, checked: _Checked) -> None:
        segment = self._segments[index]
        refuse_newer_format(segment, checked)
        later = self._segments.pop_from(index + 1)
        reason = self._damage_at(segment, checked, later)
        if reason is not None:
            self._report(checked.next_offset, reason)
            self._keep_aside(segment, checked)
        for lost in later:
            lost.close()
            for path in lost.paths:
                if reason is not None and path == lost.path:
                    kept = path.with_name(file_name(lost.base_offset, DAMAGED_SUFFIX))
                    self._location.files.rename(path, kept)
                else:
                    self._location.files.remove(path)
        if reason is not None:
            self._location.files.sync_dir(self._location.directory)
        LOGGER.warning(
            "%s is cut at offset %d: %d bytes and %d segments behind it are %s",
            self._location.topic_partition,
            checked.next_offset,
            segment.size - checked.end,
            len(later),
            "kept aside" if reason is not None else "no log",
        )
        segment.file.truncate(checked.end)

    def _damage_at(self, segment: Segment, checked: _Checked, later: list[Segment]) -> str | None:
        if self._last_known.is_clean:
            return "the log was closed whole and is not whole any more"
        found = find_batch(segment.file, checked.end, self._lowest_behind(segment, checked))
        if found is not None:
            return f"bad bytes at {checked.end}, and a valid batch at {found}"
        if later and self._last_known.same_boot:
            return f"segments behind {checked.end} do not continue what is before it"
        return self._missing(checked.next_offset)

    def _lowest_behind(self, segment: Segment, checked: _Checked) -> int:
        """Return the lowest offset that a batch after the bad one can have.

        It can be any, since the bad batch's own offset may be corrupt. But if that offset is right
        and the file ends inside of the batch, a batch with a lower one is part of a value that a
        producer sent.
        """
        data = segment.file.read(checked.end, BATCH_HEADER_BYTES)
        if len(data) == BATCH_HEADER_BYTES:
            header = read_header(data)
            is_next = header.base_offset == checked.next_offset
            is_cut_off = checked.end + header.size > segment.size
            if (
                is_next
                and is_cut_off
                and is_sound(header, checked.next_offset, segment.base_offset)
            ):
                return header.next_offset
        return segment.base_offset

    def _missing(self, log_end: int) -> str | None:
        last_known = self._last_known
        if log_end < last_known.recovery_point:
            return f"it ends at {log_end}, and was synced up to {last_known.recovery_point}"
        if log_end < last_known.promised_end:
            return f"it ends at {log_end}, and was committed up to {last_known.promised_end}"
        return None

    def _compare(self, log_end: int) -> None:
        reason = self._missing(log_end)
        if reason is not None and self.damage is None:
            self._report(log_end, reason)
            mark_damage(self._location, log_end)

    def _report(self, offset: int, reason: str) -> None:
        self.damage = Damage(offset, reason)
        LOGGER.error("%s is damaged: %s", self._location.topic_partition, reason)

    def _kept_path(self, offset: int) -> PurePath:
        return self._location.directory / file_name(offset, DAMAGED_SUFFIX)

    def _keep_aside(self, segment: Segment, checked: _Checked) -> None:
        path = self._kept_path(checked.next_offset)
        self._location.files.remove(path)
        kept = self._location.files.open(path, create=True)
        try:
            for position in range(checked.end, segment.size, CHECK_WINDOW_BYTES):
                kept.append([segment.file.read(position, CHECK_WINDOW_BYTES)])
            kept.sync_now()
        finally:
            kept.close()
