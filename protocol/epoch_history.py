"""The leader epochs of one log, each with the offset at which it starts.

A broker keeps a history for each of its logs, a consumer for the records that it has fetched. A
follower and a consumer compare theirs with the leader's to find where the logs diverge (A9 to A11):
two logs that have the same epoch at an offset have the same records up to there. So a broker's
history must name every epoch that wrote, and a new leader records its epoch before it writes.

Invariant: epochs and start offsets both ascend strictly.
"""

from bisect import bisect_right
from collections.abc import Iterable
from operator import attrgetter
from typing import NamedTuple

from minibroker.protocol.constants import NO_EPOCH, NO_OFFSET
from minibroker.protocol.types import OffsetAndEpoch


class EpochStart(NamedTuple):
    """An epoch, and the first offset that its leader wrote or would have written."""

    epoch: int
    offset: int


class EpochHistory:
    """The epoch starts of one log. Methods that change it return whether anything changed.

    Only the newest `entries_max` entries are kept; None: all.
    """

    __slots__ = ("_entries", "_entries_max")

    def __init__(
        self, entries: Iterable[tuple[int, int]] = (), *, entries_max: int | None = None
    ) -> None:
        self._entries = [EpochStart(*entry) for entry in entries]
        self._entries_max = entries_max

    @property
    def entries(self) -> tuple[EpochStart, ...]:
        return tuple(self._entries)

    @property
    def newest_epoch(self) -> int:
        """The newest epoch, -1 if there is none."""
        return self._entries[-1].epoch if self._entries else NO_EPOCH

    def assign(self, epoch: int, offset: int) -> bool:
        """Record that `epoch` starts at `offset`; drop the entries that this contradicts."""
        assert epoch >= 0, f"epoch {epoch}"
        assert offset >= 0, f"offset {offset}"
        entries = self._entries
        if entries and entries[-1].epoch == epoch and entries[-1].offset <= offset:
            return False
        while entries and (entries[-1].epoch >= epoch or entries[-1].offset >= offset):
            entries.pop()
        entries.append(EpochStart(epoch, offset))
        if self._entries_max is not None:
            del entries[: -self._entries_max]
        return True

    def epoch_at(self, offset: int, unknown: int) -> int:
        """Return the epoch of an offset, or `unknown` below the first known start."""
        for entry in reversed(self._entries):
            if entry.offset <= offset:
                return entry.epoch
        return unknown

    def end_offset_for(self, epoch: int, log_end: int) -> OffsetAndEpoch:
        """Return the largest known epoch up to `epoch`, and the offset where it ends.

        Returns (-1, -1) if the log cannot know: `epoch` is undefined or newer than all entries. An
        `epoch` older than all entries ends where the oldest starts, and is itself returned.
        """
        if epoch == NO_EPOCH or epoch > self.newest_epoch:
            return OffsetAndEpoch(NO_OFFSET, NO_EPOCH)
        if epoch == self.newest_epoch:
            return OffsetAndEpoch(log_end, epoch)
        after = bisect_right(self._entries, epoch, key=attrgetter("epoch"))
        found = self._entries[after - 1].epoch if after else epoch
        return OffsetAndEpoch(self._entries[after].offset, found)

    def truncate_from_end(self, offset: int) -> bool:
        """Remove epochs that start at or after `offset`; -1 removes none."""
        count = len(self._entries)
        if offset >= 0:
            self._entries = [entry for entry in self._entries if entry.offset < offset]
        return len(self._entries) != count

    def truncate_from_start(self, offset: int) -> bool:
        """Remove epochs that end at or before `offset`; the one that covers it starts there."""
        older = [entry for entry in self._entries if entry.offset <= offset]
        if not older or (len(older) == 1 and older[0].offset == offset):
            return False
        self._entries[: len(older)] = [EpochStart(older[-1].epoch, offset)]
        return True
