"""A log's `leader-epoch-checkpoint`: written on every change, at once but without fsync.

Without fsync, because the batch headers carry the epochs too: whoever opens the log compares the
file with them, and makes it anew where they differ. For the same reason a full disk does not stop
an append here; the file is written again at the next chance.
"""

import logging
from pathlib import PurePath

from minibroker.broker.log.checkpoint import CheckpointError
from minibroker.broker.log.epochs import EpochCache
from minibroker.broker.log.files import Files
from minibroker.broker.log.outcomes import DISK_IS_FULL

LOGGER = logging.getLogger(__name__)
NAME = "leader-epoch-checkpoint"


class EpochFile:
    """The file, and whether it lags behind the epochs."""

    def __init__(self, files: Files, directory: PurePath) -> None:
        self._is_stale = False
        self._files = files
        self._path = directory / NAME

    def load(self) -> EpochCache | None:
        """What the file says; None if it is missing or cannot be read."""
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
