"""How much of a log is durable, and what to sync so that all of it is.

A flush has two halves, because fsync happens elsewhere: `start` says what to sync and remembers how
far the log was, `finish` believes it. A cut in between makes a flush prove nothing about offsets:
what was synced may have been cut and written anew. So every cut starts a new generation. A cut,
too, is durable only when its file was synced.

Names are durable on their own: a file that was synced is lost if its name is. After a creation, a
rename or a removal the next flush syncs the directories, too. The first one also syncs whose log it
is: without that its records would be nobody's.
"""

from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import PurePath

from minibroker.broker.log.checkpoints import PARTITION_METADATA
from minibroker.broker.log.files import File, Files
from minibroker.broker.log.index import OFFSET_MAX
from minibroker.broker.log.outcomes import Flush
from minibroker.broker.log.segment import Segment
from minibroker.broker.log.segments import Segments


class Durability:
    """Below `recovery_point` all was synced; `generation` counts the cuts."""

    def __init__(self, files: Files, recovery_point: int, *, is_clean: bool) -> None:
        self.recovery_point = recovery_point
        self.generation = 0
        self._files = files
        # An offset in the segment (the active one) that was cut since the last flush. The run
        # before may have died after a cut: not below its recovery point, maybe right there.
        self._cut_from = OFFSET_MAX if is_clean else recovery_point - 1
        self._name_changes = 1
        self._durable_name_changes = 0

    def record_name_change(self) -> None:
        """Record that a file was created, renamed or removed."""
        self._name_changes += 1

    def cut(self, offset: int, base_offset: int) -> None:
        """Record that the log is about to be cut at an offset, in the segment of that base."""
        self.generation += 1
        self.recovery_point = min(self.recovery_point, offset)
        self._cut_from = min(self._cut_from, base_offset)

    def sync_cut(self, active: File, directory: PurePath) -> None:
        """Make a cut durable before the log goes on in another file. Blocks, rarely.

        A power cut might undo it and keep the new file, and old batches would run on into new ones.
        """
        if self._cut_from < OFFSET_MAX:
            active.sync_now()
            self._files.sync_dir(directory)
            self._cut_from = OFFSET_MAX

    def start(self, segments: Segments, log_end: int, directory: PurePath) -> Flush:
        """What to sync so that all that is in the log now becomes durable; see `Flush`."""
        dirty: list[Segment] = []
        if self.recovery_point < log_end or self._cut_from < OFFSET_MAX:
            # The one before, too: if the log rolled right there its indexes are not synced.
            dirty = segments.from_offset(min(self.recovery_point, self._cut_from) - 1)
        paths = [path for segment in dirty[:-1] for path in segment.index_paths]
        if self._durable_name_changes == 0:
            paths.append(directory / PARTITION_METADATA)
        has_new_names = self._durable_name_changes < self._name_changes
        return Flush(
            files=chain([segment.file for segment in dirty], self._opened(paths)),
            directories=(directory, directory.parent) if has_new_names else (),
            end_offset=log_end,
            generation=self.generation,
            name_changes=self._name_changes,
        )

    def _opened(self, paths: Iterable[PurePath]) -> Iterator[File]:
        """Open each file only for its turn: a flush may have thousands of indexes.

        Of one that is gone by then (cut, or deleted) nothing has to be durable.
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
        self._durable_name_changes = max(self._durable_name_changes, flush.name_changes)
        if flush.generation == self.generation:
            self.recovery_point = max(self.recovery_point, flush.end_offset)
            self._cut_from = OFFSET_MAX
