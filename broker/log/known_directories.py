"""What a broker remembers of its log directories in the first of them: which there are, and which
logs they have.

A directory that is missing at a start must not look like one that was never there: its partitions
would be made anew in another directory, and an empty log could lead. So the first directory has,
once there are others:

* `log-directories`: a row for each other directory: its `directory.id`, its last run, `safe` or
  `failed`, and its path. It is written before a new directory gets its first log. A directory that
  comes back in an earlier run is an old copy; one that failed may have lost what was not synced.
* `logs-of-ID` for each row: the partitions in that directory, in the form of a checkpoint. It lags
  behind by a second or two, so a broker that starts without the directory tells the controller at
  once which replicas are offline, and of the newest ones after it was given their roles.

An operator removes `logs-of-ID` to say that a directory is lost for good.
"""

from collections.abc import Iterable, Sequence
from pathlib import PurePath
from typing import Final, NamedTuple

from minibroker.broker.log.checkpoints import CheckpointError, read_offsets, write_offsets
from minibroker.broker.log.directory import DataDirectoryError
from minibroker.broker.log.files import Files
from minibroker.protocol.types import TopicPartition

NAME: Final = "log-directories"
LOGS_OF: Final = "logs-of-"
SAFE: Final = "safe"
FAILED: Final = "failed"


class KnownDirectory(NamedTuple):
    """A row: `run` is the number of the directory's own last run. `has_failed`: an I/O error took
    it offline in that run."""

    directory_id: str
    run: int
    has_failed: bool
    path: str


class KnownDirectories:
    """The files in the first directory, `root`. All calls raise OSError."""

    def __init__(self, files: Files, root: PurePath) -> None:
        self._files = files
        self._root = root
        self._written_rows: list[KnownDirectory] | None = None
        self._written: dict[str, frozenset[TopicPartition]] = {}

    @property
    def path(self) -> PurePath:
        """The path of the rows."""
        return self._root / NAME

    def logs_path(self, directory_id: str) -> PurePath:
        """Return the path of the logs of a directory."""
        return self._root / f"{LOGS_OF}{directory_id}"

    def read(self) -> list[KnownDirectory]:
        """Return the rows; none if the broker never had another directory. Raises
        DataDirectoryError for a file that is no such list."""
        if not self._files.exists(self.path):
            return []
        try:
            lines = self._files.read_bytes(self.path).decode().splitlines()
            return [_row(line) for line in lines]
        except ValueError:
            raise DataDirectoryError(
                f"{self.path} is damaged: put it back, or the broker cannot tell which of its log"
                " directories are missing"
            ) from None

    def write(self, rows: Sequence[KnownDirectory]) -> None:
        """Replace the rows, durably, if they have changed."""
        if [*rows] == self._written_rows:
            return
        lines = [
            f"{row.directory_id} {row.run} {FAILED if row.has_failed else SAFE} {row.path}\n"
            for row in rows
        ]
        self._files.write_atomic(self.path, "".join(lines).encode())
        self._written_rows = [*rows]

    def read_logs(self, directory_id: str) -> list[TopicPartition] | None:
        """Return the logs that a directory had; None if an operator said that it is lost."""
        path = self.logs_path(directory_id)
        if not self._files.exists(path):
            return None
        try:
            return [*read_offsets(self._files, path)]
        except CheckpointError:
            return []  # the broker learns them from its roles

    def write_logs(self, directory_id: str, names: Iterable[TopicPartition]) -> None:
        """Write the logs of a directory, if they have changed."""
        found = frozenset(names)
        if self._written.get(directory_id) != found:
            write_offsets(self._files, self.logs_path(directory_id), dict.fromkeys(found, 0))
            self._written[directory_id] = found

    def forget(self, directory_id: str) -> None:
        """Remove what is known of the logs of a directory."""
        self._files.remove(self.logs_path(directory_id))


def _row(line: str) -> KnownDirectory:
    directory_id, run, state, path = line.split(" ", 3)
    if state not in (SAFE, FAILED) or not directory_id.isalnum():
        raise ValueError(line)
    return KnownDirectory(directory_id, int(run), state == FAILED, path)
