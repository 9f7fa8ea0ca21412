"""A log's `leader-epoch-checkpoint`: written on every change, at once but without fsync.

Without fsync, because the batch headers carry the epochs too: whoever opens the log compares the
file with them, and makes it anew where they differ. For the same reason a full disk does not stop
an append here; the file is written again at the next chance.
"""

import errno
import logging
from pathlib import PurePath

from minibroker.broker.log.checkpoint import CheckpointError
from minibroker.broker.log.epochs import EpochCache
from minibroker.broker.log.files import Files

LOGGER = logging.getLogger(__name__)
NAME = "leader-epoch-checkpoint"
DISK_IS_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


class EpochFile:
    """`is_stale` until the file says what the cache does."""

    def __init__(self, files: Files, directory: PurePath) -> None:
        self.is_stale = True
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

    def save(self, epochs: EpochCache) -> None:
        """Write the file if it is stale; a full disk leaves it so."""
        if not self.is_stale:
            return
        try:
            self._files.write_atomic(self._path, epochs.dump(), sync=False)
        except OSError as error:
            if error.errno not in DISK_IS_FULL:
                raise
            LOGGER.warning("%s could not be written: %s", self._path, error)
            return
        self.is_stale = False
