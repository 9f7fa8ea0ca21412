"""The small text files of a data directory, in Kafka's form: checkpoints and `partition.metadata`.

A checkpoint has a version line, a count line, then the rows. There are two kinds of rows: `topic
partition offset` (recovery points, high watermarks, log starts) and `epoch start` (one log's leader
epochs). The count line tells a cut file from a whole one. Reading trusts nothing: whatever is not
exactly this form is a `CheckpointError`, and the caller decides what a lost checkpoint means (a
lost recovery point means to scan everything, never to fail). A newer version is not lost, and the
start is refused instead (`NewerFile`), as Kafka refuses it; only epochs are read from the batches
then. Rows are sorted, so equal contents are equal bytes.

A data directory has four checkpoints of offsets, each replaced as a whole (`Checkpoint`): recovery
points, high watermarks, log starts, and how far logs are compacted. They lag behind the logs, and
only to the safe side: a missing or unreadable one makes the next start read more. A full disk
leaves the old file in place, and so does a process without a free file descriptor. A worker writes
them now and then, the loop writes them before a log is cut. So writers take turns, and each
collects the offsets when its turn comes: the file never goes back to older offsets. A turn takes
one fsync.

The checkpoint of log starts is made true before segments go (`ensure`), and a log that it does not
name starts at 0. So a first segment above that start means lost segments, not retention. The file
exists from the first start on; where it is missing, no log start is known. What a checkpoint says
of a deleted log must not be believed of a new log of the same name: `lower` removes the row before
the new log is made.

`partition.metadata` lies in a log's directory: a version line, then the topic id in URL-safe base64
without padding. A topic that was deleted and created again has another id, so its old logs are
never taken for those of the new topic.
"""

import base64
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import PurePath

from minibroker.broker.log.directory import DataDirectoryError
from minibroker.broker.log.files import Files
from minibroker.broker.log.index import OFFSET_MAX
from minibroker.broker.log.outcomes import DISK_FULL_TEXT, SHORTAGES, shortage_text
from minibroker.protocol.constants import NO_OFFSET
from minibroker.protocol.types import TopicPartition

LOGGER = logging.getLogger(__name__)
HIGH_WATERMARKS = "replication-offset-checkpoint"
RECOVERY_POINTS = "recovery-point-offset-checkpoint"
LOG_STARTS = "log-start-offset-checkpoint"
FIRST_DIRTY = "cleaner-offset-checkpoint"
PARTITION_METADATA = "partition.metadata"
TOPIC_ID_SIZE = 16
TOPIC_ID_FILE_BYTES_MAX = 1024
VERSION_DIGITS_MAX = 4
_VERSION = "0"


class CheckpointError(Exception):
    """A checkpoint file that is cut, damaged or of another version."""


class NewerVersion(CheckpointError):
    """A checkpoint file of a version that a newer minibroker writes."""

    def __init__(self, version: str) -> None:
        super().__init__(f"version {version}, known is {_VERSION!r}")
        self.version = version


def newer_file(path: PurePath, version: str) -> DataDirectoryError:
    """Return the error for a file of a version that a newer minibroker writes."""
    return DataDirectoryError(
        f"{path} has version {version}, and this minibroker reads only {_VERSION}: start the"
        " version of minibroker that wrote it; if the file is damaged, move it away"
    )


def dump_offsets(offsets: Mapping[TopicPartition, int]) -> bytes:
    """Return the file's text, of one offset per partition."""
    return _dump(f"{name.topic} {name.partition} {offsets[name]}" for name in sorted(offsets))


def load_offsets(data: bytes) -> dict[TopicPartition, int]:
    """Return what `dump_offsets` wrote. Raises CheckpointError."""
    offsets: dict[TopicPartition, int] = {}
    for topic, partition, offset in _load(data, fields=3):
        name = TopicPartition(topic, _number(partition))
        if name in offsets:
            raise CheckpointError(f"{name} is there twice")
        offsets[name] = _number(offset)
    return offsets


def dump_epochs(starts: Sequence[tuple[int, int]]) -> bytes:
    """Return the file's text, of (epoch, start offset) pairs."""
    return _dump(f"{epoch} {start}" for epoch, start in starts)


def load_epochs(data: bytes) -> list[tuple[int, int]]:
    """Return what `dump_epochs` wrote; both columns ascend strictly. Raises CheckpointError."""
    starts = [(_number(epoch), _number(start)) for epoch, start in _load(data, fields=2)]
    for (epoch, start), (next_epoch, next_start) in pairwise(starts):
        if epoch >= next_epoch or start >= next_start:
            raise CheckpointError(f"epoch {next_epoch} at {next_start} after {epoch} at {start}")
    return starts


def read_offsets(files: Files, path: PurePath) -> dict[TopicPartition, int]:
    """Return the offsets in a file; none if it does not exist. Raises CheckpointError, OSError."""
    return load_offsets(files.read_bytes(path)) if files.exists(path) else {}


def write_offsets(files: Files, path: PurePath, offsets: Mapping[TopicPartition, int]) -> None:
    """Replace the file atomically: a reader finds the old offsets or the new ones."""
    files.write_atomic(path, dump_offsets(offsets))


def _dump(rows: Iterable[str]) -> bytes:
    lines = list(rows)
    return "".join(f"{line}\n" for line in (_VERSION, len(lines), *lines)).encode()


def _load(data: bytes, fields: int) -> list[list[str]]:
    """Return the rows, split into fields."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise CheckpointError("not text") from None
    version, *lines = text.split("\n")
    if _is_newer(version):
        raise NewerVersion(version)
    if version != _VERSION or len(lines) < 2:
        raise CheckpointError(f"version {version[:20]!r}, known is {_VERSION!r}")
    count, *rows, rest = lines
    if rest or _number(count) != len(rows):
        raise CheckpointError(f"{len(rows)} rows where {count[:20]!r} were written")
    split = [row.split(" ") for row in rows]
    if any(len(row) != fields for row in split):
        raise CheckpointError(f"a row without {fields} fields")
    return split


def _is_newer(version: str) -> bool:
    """Whether a version line, without its name, is one that may come."""
    is_number = version.isascii() and version.isdigit() and not version.startswith("0")
    return is_number and len(version) <= VERSION_DIGITS_MAX


def _number(text: str) -> int:
    """Return a decimal number that is not negative and fits 64 bits."""
    if not (text.isascii() and text.isdigit() and len(text) <= 19 and int(text) <= OFFSET_MAX):
        raise CheckpointError(f"{text[:20]!r} is no offset")
    return int(text)


class Checkpoint:
    """One checkpoint of offsets. `collect` returns the present offsets.

    `is_known`: the file can be read, and is complete.
    """

    def __init__(
        self, files: Files, path: PurePath, collect: Callable[[], Mapping[TopicPartition, int]]
    ) -> None:
        self._files = files
        self._path = path
        self._collect = collect
        # The contents of the file.
        self._offsets: Mapping[TopicPartition, int] = {}
        self.is_known = False
        self.shortage = ""  # why the file could not be written at the last attempt

    def read(self) -> Mapping[TopicPartition, int]:
        """Return what the last run wrote; nothing if the file cannot be read. Raises
        `DataDirectoryError` for a newer version."""
        try:
            self._offsets = read_offsets(self._files, self._path)
            self.is_known = self._files.exists(self._path)
        except NewerVersion as error:
            raise newer_file(self._path, error.version) from error
        except CheckpointError as error:
            LOGGER.warning("%s is not used: %s", self._path, error)
        return self._offsets

    def write(self) -> bool:
        """Replace the file. In a shortage return False, and leave the file as it was."""
        with self._files.one_writer():
            return self._replace()

    def lower(self, topic_partition: TopicPartition, offset: int) -> bool:
        """Replace the file if its offset of a partition is above `offset` (-1: if it has any).

        The offset that is collected must be as low already. Returns False as `write` does.
        """
        with self._files.one_writer():
            return self._offsets.get(topic_partition, NO_OFFSET) <= offset or self._replace()

    def ensure(self, topic_partition: TopicPartition, offset: int) -> bool:
        """Make the file name this offset of a partition; remove the file if the disk is full.
        Return False, and leave the file as it was, in any other shortage."""
        with self._files.one_writer():
            is_other = self._offsets.get(topic_partition, 0) != offset
            if is_other and self.is_known and not self._replace():
                if self.shortage != DISK_FULL_TEXT:
                    return False
                self._files.remove(self._path)
                self._files.sync_dir(self._path.parent)
                self._offsets = {}
                self.is_known = False
            return True

    def _replace(self) -> bool:
        offsets = self._collect()
        try:
            write_offsets(self._files, self._path, offsets)
        except OSError as error:
            if error.errno not in SHORTAGES:
                raise
            self.shortage = shortage_text(error)
            LOGGER.warning("%s stays as it was: %s", self._path, self.shortage)
            return False
        self._offsets = offsets
        self.is_known = True
        return True


def read_topic_id(files: Files, directory: PurePath) -> bytes:
    """Return the topic id of the log in a directory, b"" if it is unknown: the file is missing, or
    a power cut has left a part of it. Raises `DataDirectoryError` for a newer version."""
    path = directory / PARTITION_METADATA
    data = b""
    if files.exists(path):
        file = files.open(path)
        data = file.read(0, TOPIC_ID_FILE_BYTES_MAX)
        file.close()
    for line in data.splitlines():
        name, _, value = line.partition(b": ")
        if name == b"version" and _is_newer(version := value.decode(errors="replace")):
            raise newer_file(path, version)
        if name == b"topic_id":
            with suppress(ValueError):
                topic_id = base64.urlsafe_b64decode(value + b"==")
                if len(topic_id) == TOPIC_ID_SIZE:
                    return topic_id
    LOGGER.warning("%s names no topic id", path)
    return b""


def write_topic_id(
    files: Files, directory: PurePath, topic_id: bytes, *, sync: bool = False
) -> None:
    """Write which topic a log belongs to. Without `sync` a flush right after it makes it durable:
    an fsync for each new log would hold the loop up when a topic has many partitions."""
    text = b"version: 0\ntopic_id: " + base64.urlsafe_b64encode(topic_id).rstrip(b"=") + b"\n"
    files.write_atomic(directory / PARTITION_METADATA, text, sync=sync)
