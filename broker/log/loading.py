"""Opening a log: from the files in its directory to segments, epochs and producer states.

After a clean stop no segment is read: file names give the base offsets, the index files the ends of
the segments, and a short scan from the last index entry the end of the log. After an unclean stop
everything from the recovery point on is checked (`recovery.py`). Either way the epochs and the
producer states are then compared with the batches, and built again where they cannot be trusted.
Opening twice gives the same log.
"""

import logging
from collections.abc import Sequence
from pathlib import PurePath
from typing import NamedTuple

from minibroker.broker.log.epochs import EpochFile
from minibroker.broker.log.files import Files
from minibroker.broker.log.index import OFFSET_MAX
from minibroker.broker.log.log_segments import CLEANED_SUFFIX, SWAP_SUFFIX, LogSegments
from minibroker.broker.log.outcomes import Damage, LastKnownState, LogLimits, LogLocation
from minibroker.broker.log.producers import ProducerStates, SnapshotError, Snapshots
from minibroker.broker.log.recovery import Recovery, check_front, check_segment, read_damage
from minibroker.broker.log.scan import batch_headers
from minibroker.broker.log.segment import DELETED_SUFFIX, Segment, file_name, offsets_in
from minibroker.protocol.constants import NO_EPOCH
from minibroker.protocol.epoch_history import EpochHistory, EpochStart
from minibroker.protocol.records.batch import BatchHeader

LOGGER = logging.getLogger(__name__)
LEFTOVER_SUFFIXES = (DELETED_SUFFIX, ".tmp", CLEANED_SUFFIX)


class Loaded(NamedTuple):
    """A log's parts, ready for use."""

    segments: LogSegments
    epochs: EpochHistory
    producers: ProducerStates
    snapshots: Snapshots
    epoch_file: EpochFile
    log_start: int
    log_end: int
    recovery_point: int
    is_clean: bool
    high_watermark: int
    damage: Damage | None


def load(
    location: LogLocation, limits: LogLimits, last_known: LastKnownState, now_ms: int
) -> Loaded:
    """Open the log in a directory; makes the directory and a first segment where needed."""
    loader = _Loader(location, limits, last_known, now_ms)
    try:
        return loader.run()
    except BaseException:
        loader.close()
        raise


def rebuild_producers(
    producers: ProducerStates,
    segments: LogSegments,
    snapshots: Snapshots,
    end_offset: int,
    now_ms: int,
) -> None:
    """Rebuild producer states up to an offset: from the newest valid snapshot, then the batches.

    If the newest snapshot is beyond the offset, it is used as it is; `map_end_offset` shows it.
    """
    producers.clear(segments.first.base_offset)
    for offset in reversed(snapshots.offsets()):
        try:
            producers.load(snapshots.read(offset))
            break
        except SnapshotError as error:
            LOGGER.warning("%s is deleted: %s", snapshots.path(offset), error)
            snapshots.drop(offset)
    for segment, position, header in segments.batches(producers.map_end_offset, end_offset):
        producers.update_from_replica(header, now_ms, segment.read_marker(position, header))
    producers.map_end_offset = max(producers.map_end_offset, end_offset)


def rebuild_aborted(
    segments: LogSegments, snapshots: Snapshots, rebuilt: Sequence[Segment], expiration_ms: int
) -> None:
    """Rebuild the lists of aborted transactions of some segments, in order, and make their files
    durable. Other segments are read only where no snapshot says which transactions are open."""
    states = ProducerStates(expiration_ms)
    base_offset = rebuilt[0].base_offset
    states.clear(segments.first.base_offset)
    for offset in reversed(snapshots.offsets()):
        if offset > base_offset:
            continue
        try:
            states.load(snapshots.read(offset))
            break
        except SnapshotError:
            continue
    lists = {segment.base_offset: segment.aborted for segment in rebuilt}
    for some in lists.values():
        some.clear()
    for segment, position, header in segments.batches(states.map_end_offset, OFFSET_MAX):
        aborted = states.update(header, 0, segment.read_marker(position, header))
        if aborted is not None and segment.base_offset in lists:
            segment.aborted.append(aborted)
        if segment.base_offset > rebuilt[-1].base_offset:
            break
    for some in lists.values():
        some.write_durably()


def finish_swaps(files: Files, directory: PurePath) -> None:
    """Put each whole copy of a compaction in the place of the segments that it replaces, as the
    broker had begun to do."""
    names = files.list(directory)
    bases = offsets_in(names, ".log")
    for base_offset in offsets_in(names, ".log" + SWAP_SUFFIX):
        path = directory / file_name(base_offset, ".log")
        swap = path.with_name(path.name + SWAP_SUFFIX)
        file = files.open(swap)
        try:
            end, next_offset = 0, base_offset
            for position, header in batch_headers(file, 0, file.size):
                end, next_offset = position + header.size, header.next_offset
            is_whole = 0 < end == file.size
        finally:
            file.close()
        if not is_whole and base_offset in bases:
            LOGGER.error("%s is damaged: the segments that it was to replace stay", swap)
            files.remove(swap)
            continue
        for base in {base_offset, *(base for base in bases if base_offset <= base < next_offset)}:
            for suffix in (".log", ".index", ".timeindex", ".txnindex"):
                files.remove(directory / file_name(base, suffix))
        files.rename(swap, path)


class _Loader:
    """One opening of a log; its methods are the steps, in order."""

    def __init__(
        self, location: LogLocation, limits: LogLimits, last_known: LastKnownState, now_ms: int
    ) -> None:
        self._location = location
        self._limits = limits
        self._last_known = last_known
        self._now_ms = now_ms
        self._segments = LogSegments()
        self._epoch_file = EpochFile(location.files, location.directory)
        self._snapshots = Snapshots(location.files, location.directory)
        self._epochs = EpochHistory()
        self._epochs_in_file: tuple[EpochStart, ...] | None = None
        self._producers = ProducerStates(limits.producer_expiration_ms)
        self._unlisted: list[Segment] = []  # whose lists of aborted transactions are not known
        self._has_markers = False

    def run(self) -> Loaded:
        last_known, segments = self._last_known, self._segments
        self._open_segments()
        first_base = segments.first.base_offset
        damage = check_front(self._location, last_known, first_base) or read_damage(self._location)
        first_checked = self._first_to_check()
        is_checked = first_checked < len(segments)
        known_end = self._known_end(first_checked)
        self._load_epochs(known_end)
        self._load_producers(known_end)
        log_end = known_end
        if is_checked:
            epochs = self._epoch_file.load()
            recovery = Recovery(self._location, last_known, segments, self._observe, epochs)
            log_end = recovery.run(first_checked)
            damage = recovery.damage or damage
        if log_end < last_known.log_start:
            log_end = last_known.log_start
            self._restart_at(log_end)
        self._load_aborted(first_checked)
        log_start = max(last_known.log_start, segments.first.base_offset)
        self._fit(log_start, log_end)
        segments.active.activate()
        return Loaded(
            segments,
            self._epochs,
            self._producers,
            self._snapshots,
            self._epoch_file,
            log_start,
            log_end,
            log_end if last_known.is_clean else min(last_known.recovery_point, log_end),
            last_known.is_clean,
            min(max(last_known.believable_high_watermark, log_start), log_end),
            damage,
        )

    def close(self) -> None:
        """Close the files that were opened."""
        for segment in self._segments:
            segment.close()

    def _segment(self, base_offset: int, *, synced: bool | None = None) -> Segment:
        location, interval = self._location, self._limits.index_interval_bytes
        return Segment(
            location.files,
            location.directory,
            base_offset,
            self._now_ms,
            interval,
            location.sealed_files,
            synced=synced,
        )

    def _open_segments(self) -> None:
        files, directory = self._location.files, self._location.directory
        files.make_dir(directory)
        finish_swaps(files, directory)
        names = files.list(directory)
        bases = offsets_in(names, ".log")
        logs = {file_name(base_offset, "") for base_offset in bases}
        for name in names:
            stem, _, suffix = name.partition(".")
            is_orphan = suffix in ("index", "timeindex", "txnindex") and stem not in logs
            if is_orphan or name.endswith(LEFTOVER_SUFFIXES):
                files.remove(directory / name)
        synced_end = OFFSET_MAX if self._last_known.is_clean else self._last_known.recovery_point
        for base_offset, next_base in zip(bases, [*bases[1:], OFFSET_MAX], strict=False):
            self._segments.add(self._segment(base_offset, synced=next_base <= synced_end))
        if not len(self._segments):
            # Never at an offset that a record has had.
            base_offset = max(self._last_known.log_start, self._last_known.promised_end)
            self._segments.add(self._segment(base_offset))

    def _first_to_check(self) -> int:
        """Return the index of the first segment to check; the number of segments if none is."""
        segments, last_known = self._segments, self._last_known
        first = len(segments)
        if not last_known.is_clean:
            # One that ends there is checked, too: a power cut may have undone a truncation there.
            first = segments.index_of(last_known.recovery_point - 1)
        for index, segment in enumerate(segments):
            if index >= first:
                break
            if not segment.size and segment is not segments.active:
                return index
            if segment.has_sound_indexes():
                segment.load()
                continue
            if check_segment(segment, self._observe_marker).end < segment.size:
                return index
            if segment is not segments.active:
                segment.write_indexes()
            self._unlisted.append(segment)
        if first == len(segments):
            end, _ = segments.active.load_tail()
            known_end = self._known_end(first)
            # A clean stop left the recovery point at the end of the log.
            is_whole = known_end == last_known.recovery_point >= last_known.promised_end
            if end != segments.active.size or not is_whole:
                return first - 1
        return first

    def _known_end(self, first_checked: int) -> int:
        """The end of the part that is not checked: the log's end, or the first checked segment."""
        if first_checked < len(self._segments):
            return self._segments[first_checked].base_offset
        active = self._segments.active
        _, last = active.load_tail()
        return active.base_offset if last is None else last.next_offset

    def _observe_marker(self, segment: Segment, position: int, header: BatchHeader) -> None:
        self._has_markers |= header.is_control

    def _observe(self, segment: Segment, position: int, header: BatchHeader) -> None:
        """Apply a batch that recovery found valid."""
        self._observe_marker(segment, position, header)
        if header.leader_epoch > self._epochs.newest_epoch:
            self._epochs.assign(header.leader_epoch, header.base_offset)
        if header.producer_id >= 0 and header.base_offset >= self._producers.map_end_offset:
            marker = segment.read_marker(position, header)
            self._producers.update_from_replica(header, self._now_ms, marker)

    def _load_aborted(self, first_checked: int) -> None:
        """Rebuild the lists of aborted transactions of the segments that were checked."""
        unlisted = [*self._unlisted, *list(self._segments)[first_checked:]]
        unlisted = [segment for segment in unlisted if segment in [*self._segments]]
        if self._has_markers:
            expiration_ms = self._limits.producer_expiration_ms
            rebuild_aborted(self._segments, self._snapshots, unlisted, expiration_ms)
        else:
            for segment in unlisted:
                segment.aborted.clear()
                segment.aborted.write_durably()

    def _fit(self, log_start: int, log_end: int) -> None:
        """Truncate epochs and producer states to the log's end."""
        self._epochs.truncate_from_end(log_end)
        self._epochs.truncate_from_start(log_start)
        self._epoch_file.update(self._epochs, self._epochs.entries != self._epochs_in_file)
        first_offset = self._segments.first.base_offset
        self._snapshots.drop_outside(first_offset, log_end)
        if not first_offset <= self._producers.map_end_offset <= log_end:
            rebuild_producers(
                self._producers, self._segments, self._snapshots, log_end, self._now_ms
            )
        self._producers.map_end_offset = log_end

    def _restart_at(self, offset: int) -> None:
        """Begin an empty log: nothing that is here may be read any more (REC-08)."""
        self._segments.remove_from(0, self._location.files)
        self._segments.add(self._segment(offset))

    def _load_epochs(self, known_end: int) -> None:
        """Return the epochs of the file if they agree with the batches, else those of the
        batches."""
        epochs = self._epoch_file.load()
        self._epochs_in_file = epochs.entries if epochs is not None else None
        if epochs is None or not self._agrees(epochs, known_end):
            epochs = EpochHistory()
            for _, _, header in self._segments.batches(0, known_end):
                if header.leader_epoch > epochs.newest_epoch:
                    epochs.assign(header.leader_epoch, header.base_offset)
        epochs.truncate_from_end(known_end)
        self._epochs = epochs

    def _load_producers(self, known_end: int) -> None:
        last_known = self._last_known
        if not (last_known.is_clean or last_known.same_boot):
            # Later ones may be from before a truncation that a power cut undid.
            self._snapshots.drop_outside(0, last_known.recovery_point)
        args = (self._segments, self._snapshots, known_end, self._now_ms)
        rebuild_producers(self._producers, *args)

    def _agrees(self, epochs: EpochHistory, end_offset: int) -> bool:
        """Whether the file covers the first batch, and gives the last before `end_offset` its
        epoch.

        It may cover too little: retention shortens it before segments are deleted, and the broker
        may have stopped in between.
        """
        if end_offset <= self._segments.first.base_offset:
            return True
        first = self._segments.first.batch_at(0)
        start = 0 if first is None else max(first.base_offset, self._last_known.log_start)
        if not epochs.entries or epochs.entries[0].offset > start:
            return False
        segment = self._segments[self._segments.index_of(end_offset - 1)]
        end, last = segment.load_tail()
        if last is None:
            return end == 0
        known = [entry.epoch for entry in epochs.entries if entry.offset <= last.base_offset]
        return (known[-1] if known else NO_EPOCH) == last.leader_epoch
