"""What is left of a log after an unclean stop: the check of its segments, and what a loss means.

Every segment from the one with the recovery point on is read once and checked batch by batch; its
indexes are made anew on the way. The log ends where the first bad byte is. What that means depends
on what lies there:

* a torn tail, which nobody was promised: cut;
* after a power cut, segments behind a hole: the disk wrote a newer file before an older one. Not
  synced, so not promised either: removed;
* damage: a valid batch behind a bad one, an end below the recovery point, or, as long as the
  machine did not stop, an end below the high watermark or segments behind a hole. The bytes are
  kept in `*.damaged` files, named by the first offset they may hold, and as long as such a file
  lies there the log says that it is damaged, at every start.
"""

import logging
from pathlib import PurePath
from typing import NamedTuple

from minibroker.broker.log.files import Files
from minibroker.broker.log.outcomes import Damage, Opening, Place
from minibroker.broker.log.scan import CHECK_WINDOW_BYTES, checked_batches, find_batch
from minibroker.broker.log.segment import Segment, file_name
from minibroker.broker.log.segments import Segments

LOGGER = logging.getLogger(__name__)
DAMAGED_SUFFIX = ".damaged"
ACCEPTED_SUFFIX = ".damaged-accepted"


class _Checked(NamedTuple):
    """How far a segment is sound: its bytes, and the offset that comes next."""

    end: int
    next_offset: int


def check_segment(segment: Segment, next_offset: int) -> _Checked:
    """Read a segment once, checking every batch and indexing it."""
    segment.forget_indexes()
    end = 0
    for position, header in checked_batches(segment.file, 0, next_offset):
        segment.note(header, position)
        end = position + header.size
        next_offset = header.next_offset
    return _Checked(end, next_offset)


def known_damage(place: Place) -> Damage | None:
    """What an earlier start found and nobody has accepted yet."""
    names = [name for name in place.files.list(place.directory) if name.endswith(DAMAGED_SUFFIX)]
    if not names:
        return None
    offset = min(int(name.removesuffix(DAMAGED_SUFFIX)) for name in names)
    return Damage(offset, f"records from offset {offset} on were lost and not given up yet")


def accept_damage(files: Files, directory: PurePath) -> None:
    """Give the lost records up: the kept bytes stay, but are no sign of damage any more."""
    for name in files.list(directory):
        if name.endswith(DAMAGED_SUFFIX):
            accepted = name.removesuffix(DAMAGED_SUFFIX) + ACCEPTED_SUFFIX
            files.rename(directory / name, directory / accepted)
    files.sync_dir(directory)


class Recovery:
    """Checks the segments of one log. `recovered_from` is the offset of the first checked one."""

    def __init__(self, place: Place, opening: Opening, segments: Segments) -> None:
        self._place = place
        self._opening = opening
        self._segments = segments
        self.damage: Damage | None = None

    def run(self, first: int) -> int:
        """Check the segments from index `first` on, cut what is no log, and return its end."""
        opening = self._opening
        segments = list(self._segments)
        next_offset = segments[first].base_offset
        for index in range(first, len(segments)):
            segment = segments[index]
            checked = check_segment(segment, max(next_offset, segment.base_offset))
            next_offset = checked.next_offset
            later = segments[index + 1 :]
            # A process that died leaves no hole, so while the machine runs it is a follower's gap.
            is_hole = later and next_offset < later[0].base_offset and not opening.same_boot
            if checked.end < segment.size or (is_hole and not opening.is_clean):
                self._cut(index, checked)
                break
            if later:
                segment.write_indexes()
        self._compare(next_offset)
        return next_offset

    def _cut(self, index: int, checked: _Checked) -> None:
        segment = list(self._segments)[index]
        later = self._segments.take_from(index + 1)
        reason = self._damage_at(segment, checked, later)
        if reason is not None:
            self._report(checked.next_offset, reason)
            self._keep_aside(segment, checked)
        for lost in later:
            lost.close()
            for path in lost.paths:
                if reason is not None and path == lost.path:
                    kept = path.with_name(file_name(lost.base_offset, DAMAGED_SUFFIX))
                    self._place.files.rename(path, kept)
                else:
                    self._place.files.remove(path)
        if reason is not None:
            self._place.files.sync_dir(self._place.directory)
        LOGGER.warning(
            "%s is cut at offset %d: %d bytes and %d segments behind it are %s",
            *(self._place.topic_partition, checked.next_offset, segment.size - checked.end),
            *(len(later), "kept aside" if reason is not None else "no log"),
        )
        segment.file.truncate(checked.end)

    def _damage_at(self, segment: Segment, checked: _Checked, later: list[Segment]) -> str | None:
        if self._opening.is_clean:
            return "the log was closed whole and is not whole any more"
        found = find_batch(segment.file, checked.end + 1, checked.next_offset)
        if found is not None:
            return f"bad bytes at {checked.end}, and a valid batch behind them at {found}"
        if later and self._opening.same_boot:
            return f"bad bytes at {checked.end}, and whole segments behind them"
        return self._missing(checked.next_offset)

    def _missing(self, log_end: int) -> str | None:
        opening = self._opening
        if log_end < opening.recovery_point:
            return f"it ends at {log_end}, and was synced up to {opening.recovery_point}"
        if opening.same_boot and log_end < opening.high_watermark:
            return f"it ends at {log_end}, and was committed up to {opening.high_watermark}"
        return None

    def _compare(self, log_end: int) -> None:
        reason = self._missing(log_end)
        if reason is not None and self.damage is None:
            self._report(log_end, reason)
            self._place.files.open(self._kept_path(log_end), create=True).close()
            self._place.files.sync_dir(self._place.directory)

    def _report(self, offset: int, reason: str) -> None:
        self.damage = Damage(offset, reason)
        LOGGER.error("%s is damaged: %s", self._place.topic_partition, reason)

    def _kept_path(self, offset: int) -> PurePath:
        return self._place.directory / file_name(offset, DAMAGED_SUFFIX)

    def _keep_aside(self, segment: Segment, checked: _Checked) -> None:
        path = self._kept_path(checked.next_offset)
        self._place.files.remove(path)
        kept = self._place.files.open(path, create=True)
        try:
            for position in range(checked.end, segment.size, CHECK_WINDOW_BYTES):
                kept.append([segment.file.read(position, CHECK_WINDOW_BYTES)])
            kept.sync_now()
        finally:
            kept.close()
