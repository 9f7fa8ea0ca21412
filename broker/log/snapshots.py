"""The `.snapshot` files of a log: producer states as they were at an offset.

They save time, nothing else: what a snapshot says can always be learnt again from the batches
before it. So they are written without fsync, and one that is empty, cut or damaged is deleted and
the next older one used.
"""

import logging
from pathlib import PurePath

from minibroker.broker.log.files import Files
from minibroker.broker.log.outcomes import DISK_IS_FULL
from minibroker.broker.log.segment import file_name, offsets_in

LOGGER = logging.getLogger(__name__)
SUFFIX = ".snapshot"


class Snapshots:
    """The snapshot files in one log's directory, by offset."""

    def __init__(self, files: Files, directory: PurePath) -> None:
        self._files = files
        self._directory = directory

    def path(self, offset: int) -> PurePath:
        """Where the snapshot of an offset lies."""
        return self._directory / file_name(offset, SUFFIX)

    def offsets(self) -> list[int]:
        """Of which offsets there are snapshots, ascending."""
        return offsets_in(self._files.list(self._directory), SUFFIX)

    def take(self, offset: int, data: bytes) -> None:
        """Keep the states at `offset`; a full disk is no reason to stop for it."""
        try:
            self._files.write_atomic(self.path(offset), data, sync=False)
        except OSError as error:
            if error.errno not in DISK_IS_FULL:
                raise
            LOGGER.warning("%s is not written: the disk is full", self.path(offset))

    def read(self, offset: int) -> bytes:
        """The bytes of one snapshot."""
        return self._files.read_bytes(self.path(offset))

    def drop(self, offset: int) -> None:
        """Remove the snapshot of an offset, if there is one."""
        self._files.remove(self.path(offset))

    def drop_outside(self, first: int, last: int) -> None:
        """Remove those below `first` and above `last`."""
        for offset in self.offsets():
            if not first <= offset <= last:
                self.drop(offset)
