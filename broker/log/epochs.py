"""The file `leader-epoch-checkpoint`: the epoch history of one log.

It is written on every change, at once but without fsync, because the batch headers carry the epochs
too: opening a log compares the file with them, and rebuilds it where they differ. For the same
reason a full disk, or a process without a free file descriptor, does not stop an append here; the
file is written again at the next chance.
"""

import logging
from pathlib import PurePath

from minibroker.broker.log.checkpoints import CheckpointError, dump_epochs, load_epochs
from minibroker.broker.log.files import Files
from minibroker.broker.log.outcomes import SHORTAGES
from minibroker.protocol.epoch_history import EpochHistory

LOGGER = logging.getLogger(__name__)
NAME = "leader-epoch-checkpoint"


class EpochFile:
    """The file `leader-epoch-checkpoint` of one log, and whether it lags behind the epochs."""

    def __init__(self, files: Files, directory: PurePath) -> None:
        self._is_stale = False
        self._files = files
        self._path = directory / NAME

    def move_to(self, directory: PurePath) -> None:
        """Record that the log's directory was renamed."""
        self._path = directory / NAME

    def load(self) -> EpochHistory | None:
        """Return the epochs in the file; None if it is missing or cannot be read."""
        try:
            return EpochHistory(load_epochs(self._files.read_bytes(self._path)))
        except FileNotFoundError:
            return None
        except CheckpointError as error:
            LOGGER.warning("%s is made anew: %s", self._path, error)
            return None

    def update(self, epochs: EpochHistory, has_changed: bool) -> None:
        """Write the file if the epochs changed; a shortage leaves that to the next time."""
        self._is_stale |= has_changed
        if not self._is_stale:
            return
        try:
            self._files.write_atomic(self._path, dump_epochs(epochs.entries), sync=False)
        except OSError as error:
            if error.errno not in SHORTAGES:
                raise
            LOGGER.warning("%s could not be written: %s", self._path, error)
            return
        self._is_stale = False
