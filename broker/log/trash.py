"""Files of deleted segments: renamed at once, removed when nobody can still be reading them.

A slice of a deleted segment may be on its way to a slow client, so the descriptor stays open as
long as the file is there (`file.delete.delay.ms`).
"""

from pathlib import PurePath
from typing import NamedTuple

from minibroker.broker.log.files import Files
from minibroker.broker.log.segment import DELETED_SUFFIX, Segment


def is_over(due_ms: int, delay_ms: int, now_ms: int) -> bool:
    """Whether a delay has passed, by a wall clock that may jump: if it went back, at once."""
    return not 0 < due_ms - now_ms <= delay_ms


class _Deleted(NamedTuple):
    due_ms: int
    delay_ms: int
    segment: Segment
    paths: tuple[PurePath, ...]


class Trash:
    """Deleted segments of one log, in the order of their removal. Times are wall clock ms."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._deleted: list[_Deleted] = []

    def __len__(self) -> int:
        return len(self._deleted)

    def put(self, segment: Segment, now_ms: int, delay_ms: int) -> None:
        """Rename a segment's files; they go when `delay_ms` have passed."""
        renamed = []
        for path in segment.paths:
            if self._files.exists(path):
                target = path.with_name(path.name + DELETED_SUFFIX)
                self._files.rename(path, target)
                renamed.append(target)
        self._deleted.append(_Deleted(now_ms + delay_ms, delay_ms, segment, tuple(renamed)))

    def empty(self, now_ms: int) -> int | None:
        """Remove what is due; when the next is, None if nothing is left."""
        for deleted in [item for item in self._deleted if is_over(*item[:2], now_ms)]:
            deleted.segment.close()
            for path in deleted.paths:
                self._files.remove(path)
            self._deleted.remove(deleted)
        return min((item.due_ms for item in self._deleted), default=None)

    def close(self) -> None:
        """Close the files; they are removed when the log is opened again."""
        for deleted in self._deleted:
            deleted.segment.close()
