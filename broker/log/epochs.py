"""Which leader wrote which records: the offset at which each leader epoch of one log starts.

Replicas compare epochs to find where their logs diverge (A9 to A11): two logs that have the same
epoch at an offset have the same records up to there. So the list must name every epoch that wrote,
and a new leader records its epoch even before it writes anything.

Invariant: epochs and start offsets both ascend strictly.

The file `leader-epoch-checkpoint` is written on every change, at once but without fsync, because
the batch headers carry the epochs too: opening a log compares the file with them, and rebuilds it
where they differ. For the same reason a full disk does not stop an append here; the file is written
again at the next chance.
"""

import logging
from pathlib import PurePath
from typing import NamedTuple

from minibroker.broker.log.checkpoints import CheckpointError, dump_epochs, load_epochs
from minibroker.broker.log.files import Files
from minibroker.broker.log.outcomes import DISK_IS_FULL
from minibroker.protocol.constants import NO_EPOCH, NO_OFFSET
from minibroker.protocol.types import OffsetAndEpoch

LOGGER = logging.getLogger(__name__)
NAME = "leader-epoch-checkpoint"


class EpochStart(NamedTuple):
    """The first offset that a leader of this epoch wrote, or would have written."""

    epoch: int
    offset: int


class EpochCache:
    """The epoch starts of one log. The methods that change it return whether they did."""

    def __init__(self) -> None:
        self._entries: list[EpochStart] = []

    @property
    def entries(self) -> tuple[EpochStart, ...]:
        return tuple(self._entries)

    @property
    def newest_epoch(self) -> int:
        """-1 if there is none."""
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
        return True

    def epoch_at(self, offset: int, unknown: int) -> int:
        """In which epoch an offset was written; `unknown` below the first that is known."""
        for entry in reversed(self._entries):
            if entry.offset <= offset:
                return entry.epoch
        return unknown

    def end_offset_for(self, epoch: int, log_end: int) -> OffsetAndEpoch:
        """Where the largest known epoch up to `epoch` ends, and that epoch.

        (-1, -1) if the log cannot know: the epoch is undefined or newer than all here. An epoch
        older than all here ends where the oldest starts, and is returned as asked.
        """
        if epoch == NO_EPOCH or epoch > self.newest_epoch:
            return OffsetAndEpoch(NO_OFFSET, NO_EPOCH)
        if epoch == self.newest_epoch:
            return OffsetAndEpoch(log_end, epoch)
        found = epoch
        for entry in self._entries:
            if entry.epoch > epoch:
                return OffsetAndEpoch(entry.offset, found)
            found = entry.epoch
        raise AssertionError("the newest epoch is larger, so the loop met a larger one")

    def truncate_from_end(self, offset: int) -> bool:
        """Forget epochs that start at or after `offset`; at -1, none."""
        count = len(self._entries)
        if offset >= 0:
            self._entries = [entry for entry in self._entries if entry.offset < offset]
        return len(self._entries) != count

    def truncate_from_start(self, offset: int) -> bool:
        """Forget epochs that ended before `offset`; the one that covers it starts there now."""
        older = [entry for entry in self._entries if entry.offset <= offset]
        if not older or (len(older) == 1 and older[0].offset == offset):
            return False
        self._entries[: len(older)] = [EpochStart(older[-1].epoch, offset)]
        return True

    def dump(self) -> bytes:
        """The contents of `leader-epoch-checkpoint`."""
        return dump_epochs(self._entries)

    def load(self, data: bytes) -> None:
        """Become what `dump` wrote; on CheckpointError nothing changes."""
        self._entries = [EpochStart(*entry) for entry in load_epochs(data)]


class EpochFile:
    """The file `leader-epoch-checkpoint` of one log, and whether it lags behind the epochs."""

    def __init__(self, files: Files, directory: PurePath) -> None:
        self._is_stale = False
        self._files = files
        self._path = directory / NAME

    def load(self) -> EpochCache | None:
        """Return the epochs in the file; None if it is missing or cannot be read."""
        epochs = EpochCache()
        try:
            epochs.load(self._files.read_bytes(self._path))
        except FileNotFoundError:
            return None
        except CheckpointError as error:
            LOGGER.warning("%s is made anew: %s", self._path, error)
            return None
        return epochs

    def update(self, epochs: EpochCache, has_changed: bool) -> None:
        """Write the file if the epochs changed; a full disk leaves that to the next time."""
        self._is_stale |= has_changed
        if not self._is_stale:
            return
        try:
            self._files.write_atomic(self._path, epochs.dump(), sync=False)
        except OSError as error:
            if error.errno not in DISK_IS_FULL:
                raise
            LOGGER.warning("%s could not be written: %s", self._path, error)
            return
        self._is_stale = False
