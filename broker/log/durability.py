"""How much of a log is durable, and what to sync so that all of it is.

A flush has two halves, because fsync runs elsewhere: `start` returns what to sync, with the log end
of the moment; `finish` records that it was synced. After a truncation in between, a flush proves
nothing about offsets: other records may have been written in the place of the synced ones. So every
truncation starts a new generation. A truncation, too, is durable only when its file was synced.

Names are made durable separately: a synced file is lost if its name is. After a creation, a rename
or a removal the next flush syncs the directories, too. The first flush also syncs
`partition.metadata`: without it the log would belong to no topic. `start_names` is a flush of these
only, right after a creation.
"""

from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import PurePath

from minibroker.broker.log.checkpoints import PARTITION_METADATA
from minibroker.broker.log.files import File, Files
from minibroker.broker.log.index import OFFSET_MAX
from minibroker.broker.log.log_segments import LogSegments
from minibroker.broker.log.outcomes import Flush
from minibroker.broker.log.segment import Segment


class Durability:
    """The durable part of a log.

    All below `recovery_point` is synced; `generation` counts the truncations. `lowest_truncation`
    is the lowest offset of one since a move of the log has read it; `OFFSET_MAX` without one.
    """

    def __init__(self, files: Files, recovery_point: int, *, is_clean: bool) -> None:
        self.recovery_point = recovery_point
        self.generation = 0
        self.lowest_truncation = OFFSET_MAX
        self._files = files
        # An offset in the segment (the active one) that was truncated since the last flush. The run
        # before may have died after a truncation: not below its recovery point, maybe right there.
        self._truncated_from = OFFSET_MAX if is_clean else recovery_point - 1
        self._name_changes = 1
        self._durable_name_changes = 0

    def record_name_change(self) -> None:
        """Record that a file was created, renamed or removed."""
        self._name_changes += 1

    def record_truncation(self, offset: int, base_offset: int) -> None:
        """Record that the log will be truncated at an offset, in the segment of that base."""
        self.generation += 1
        self.lowest_truncation = min(self.lowest_truncation, offset)
        self.recovery_point = min(self.recovery_point, offset)
        self._truncated_from = min(self._truncated_from, base_offset)

    def sync_truncation(self, active: File, directory: PurePath) -> None:
        """Make a truncation durable before the log continues in another file. Blocks; is rare.

        Otherwise a power cut might undo the truncation and keep the new file: old batches before
        new ones.
        """
        if self._truncated_from < OFFSET_MAX:
            active.sync_now()
            self._files.sync_dir(directory)
            self._truncated_from = OFFSET_MAX

    def start(self, segments: LogSegments, log_end: int, directory: PurePath) -> Flush:
        """Return what to sync so that everything now in the log becomes durable; see `Flush`."""
        dirty: list[Segment] = []
        if self.recovery_point < log_end or self._truncated_from < OFFSET_MAX:
            # The segment before, too: if the log rolled right there its indexes are not synced.
            dirty = segments.from_offset(min(self.recovery_point, self._truncated_from) - 1)
        return self._flush(dirty, log_end, directory)

    def start_names(self, directory: PurePath) -> Flush:
        """Return what to sync so that the log's names and its topic id become durable."""
        return self._flush([], self.recovery_point, directory)

    def _flush(self, dirty: list[Segment], end_offset: int, directory: PurePath) -> Flush:
        paths = [path for segment in dirty[:-1] for path in segment.index_paths]
        if self._durable_name_changes == 0:
            paths.append(directory / PARTITION_METADATA)
        has_new_names = self._durable_name_changes < self._name_changes
        return Flush(
            files=chain([segment.file for segment in dirty], self._opened(paths)),
            directories=(directory, directory.parent) if has_new_names else (),
            end_offset=end_offset,
            generation=self.generation,
            name_changes=self._name_changes,
        )

    def _opened(self, paths: Iterable[PurePath]) -> Iterator[File]:
        """Open each file only for its turn: a flush may have thousands of indexes.

        A file that was truncated or deleted by then need not be durable.
        """
        for path in paths:
            if self._files.exists(path):
                file = self._files.open(path)
                try:
                    yield file
                finally:
                    file.close()

    def finish(self, flush: Flush) -> None:
        """Record that all of `flush` was synced."""
        self.finish_names(flush)
        if flush.generation == self.generation:
            self.recovery_point = max(self.recovery_point, flush.end_offset)
            self._truncated_from = OFFSET_MAX

    def finish_names(self, flush: Flush) -> None:
        """Record that the names and the topic id were synced."""
        self._durable_name_changes = max(self._durable_name_changes, flush.name_changes)
