"""The three files of offsets in a data directory, each replaced as a whole.

They lag behind the logs and only ever to the safe side; a missing or unreadable one means to read
more at the next start, never a failure. A full disk leaves the old file in place.

A worker writes them now and then, the loop writes them before a log is cut. So they take turns, and
whoever writes collects the offsets when it is its turn: what is on the disk is never older than
what was there before. A turn takes one fsync.

What the file of log starts says is true before segments go (`settle`), and a log that it does not
name starts at 0: so a first segment above that is one that lost those before it, not one that
retention left. It is there from the first start on; where it is not, no log start is known.

What a file says of a deleted log must not be believed of a new one of its name: `lower` takes it
out before that is made.
"""

import logging
from collections.abc import Callable, Mapping
from pathlib import PurePath

from minibroker.broker.log.checkpoint import CheckpointError, read_offsets, write_offsets
from minibroker.broker.log.files import Files
from minibroker.broker.log.outcomes import DISK_IS_FULL
from minibroker.protocol.constants import NO_OFFSET
from minibroker.protocol.types import TopicPartition

LOGGER = logging.getLogger(__name__)
HIGH_WATERMARKS = "replication-offset-checkpoint"
RECOVERY_POINTS = "recovery-point-offset-checkpoint"
LOG_STARTS = "log-start-offset-checkpoint"


class Checkpoint:
    """One of the files. `collect` gives the offsets of now.

    `is_known`: what the file says can be read, and says all that it was to say.
    """

    def __init__(
        self, files: Files, path: PurePath, collect: Callable[[], Mapping[TopicPartition, int]]
    ) -> None:
        self._files = files
        self._path = path
        self._collect = collect
        # What the file says.
        self._offsets: Mapping[TopicPartition, int] = {}
        self.is_known = False

    def read(self) -> Mapping[TopicPartition, int]:
        """What the last run wrote; nothing if that cannot be told."""
        try:
            self._offsets = read_offsets(self._files, self._path)
            self.is_known = self._files.exists(self._path)
        except CheckpointError as error:
            LOGGER.warning("%s is not used: %s", self._path, error)
        return self._offsets

    def write(self) -> bool:
        """Replace the file; False if the disk is full, and then it stays as it was."""
        with self._files.one_writer():
            return self._replace()

    def lower(self, topic_partition: TopicPartition, offset: int) -> bool:
        """Replace the file if it says more of a partition than `offset` (-1: anything at all).

        What is collected must be as low already. False as for `write`.
        """
        with self._files.one_writer():
            return self._offsets.get(topic_partition, NO_OFFSET) <= offset or self._replace()

    def settle(self, topic_partition: TopicPartition, offset: int) -> None:
        """See to it that the file says no other offset of a partition: on a full disk, nothing."""
        with self._files.one_writer():
            is_other = self._offsets.get(topic_partition, 0) != offset
            if is_other and self.is_known and not self._replace():
                self._files.remove(self._path)
                self._files.sync_dir(self._path.parent)
                self._offsets = {}
                self.is_known = False

    def _replace(self) -> bool:
        offsets = self._collect()
        try:
            write_offsets(self._files, self._path, offsets)
        except OSError as error:
            if error.errno not in DISK_IS_FULL:
                raise
            LOGGER.warning("%s stays as it was: the disk is full", self._path)
            return False
        self._offsets = offsets
        self.is_known = True
        return True
