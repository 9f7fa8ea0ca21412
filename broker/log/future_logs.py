"""The future logs in one log directory: copies of logs that are to move there (`log_moves.py`).

A future log has a directory `TOPIC-PARTITION.ID-future`, as in Apache Kafka, from the request for
the move on. It is the durable form of the request: a start finds it, empties it, and the copy
begins anew. The file `moved` in it stays until the former log is out of the way. So where a crash
leaves two logs of a partition, the one with the file has taken the place of the other.

A worker writes to a future log, a step at a time, and nobody else uses it meanwhile. A move that is
cancelled meanwhile ends after that step (`FutureLog.is_cancelled`).
"""

import re
from collections.abc import Callable, Iterator
from pathlib import PurePath
from typing import Final

from minibroker.broker.log.checkpoints import read_topic_id, write_topic_id
from minibroker.broker.log.directory import NAME_BYTES_MAX, name_aside, parse_log_name
from minibroker.broker.log.files import Files
from minibroker.broker.log.log import Log
from minibroker.broker.log.outcomes import NEW_LOG, LogLimits, LogLocation
from minibroker.protocol.types import TopicPartition

FUTURE_SUFFIX: Final = "-future"
MOVED: Final = "moved"
_FUTURE: Final = re.compile(r"(.+)\.[0-9a-f]{32}[0-9]*-future")


class FutureLog:
    """A log that is to come. `log` is None before the copy begins."""

    __slots__ = ("directory", "is_cancelled", "is_in_use", "log", "topic_id", "topic_partition")

    def __init__(
        self, topic_partition: TopicPartition, topic_id: bytes, directory: PurePath
    ) -> None:
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.directory = directory
        self.log: Log | None = None
        self.is_cancelled = False
        self.is_in_use = False


def may_have_future(topic_partition: TopicPartition) -> bool:
    """Whether the name of its future log's directory is short enough for a file system."""
    return len(f"{topic_partition}.{bytes(16).hex()}{FUTURE_SUFFIX}") <= NAME_BYTES_MAX


class FutureLogs:
    """See the head of this file. `locate` returns where a log of this directory is, and
    `before_truncation` is what a log calls before it is truncated."""

    def __init__(
        self,
        files: Files,
        root: PurePath,
        locate: Callable[[TopicPartition, bytes, PurePath], LogLocation],
        before_truncation: Callable[[TopicPartition, int], None],
    ) -> None:
        self._files = files
        self._root = root
        self._locate = locate
        self._before_truncation = before_truncation
        self._futures: dict[TopicPartition, FutureLog] = {}

    def __iter__(self) -> Iterator[FutureLog]:
        return iter([*self._futures.values()])

    def get(self, topic_partition: TopicPartition) -> FutureLog | None:
        """Return the future log of a partition, if there is one."""
        return self._futures.get(topic_partition)

    def log_starts(self) -> dict[TopicPartition, int]:
        """Return the starts of the future logs that have begun."""
        return {one.topic_partition: one.log.log_start for one in self if one.log is not None}

    def find(self, names: list[str]) -> None:
        """Empty the directories of future logs among these names, at a start. Raises OSError."""
        for name in names:
            found = _FUTURE.fullmatch(name)
            topic_partition = None if found is None else parse_log_name(found[1])
            path = self._root / name
            if topic_partition is None or not self._files.is_dir(path):
                continue
            future = FutureLog(topic_partition, read_topic_id(self._files, path), path)
            if topic_partition in self._futures:
                self._files.remove_tree(path)
                continue
            self._empty(path)
            self._futures[topic_partition] = future

    def want(self, topic_partition: TopicPartition, topic_id: bytes) -> FutureLog:
        """Return the future log of a partition; its directory is made where it is missing. Raises
        OSError."""
        future = self._futures.get(topic_partition)
        if future is None:
            args = self._files, self._root, topic_partition, topic_id, FUTURE_SUFFIX
            future = FutureLog(topic_partition, topic_id, name_aside(*args))
            self._files.make_dir(future.directory)
            write_topic_id(self._files, future.directory, topic_id)
            self._files.write_atomic(future.directory / MOVED, b"", sync=False)
            self._futures[topic_partition] = future
        return future

    def take_out(self, topic_partition: TopicPartition) -> FutureLog | None:
        """Take a future log out of the table, and return it."""
        return self._futures.pop(topic_partition, None)

    def begin(self, future: FutureLog, limits: LogLimits, log_start: int, now_ms: int) -> None:
        """Make an empty log that begins at `log_start`. May run in a worker. Raises OSError."""
        self._empty(future.directory)
        location = self._locate(future.topic_partition, future.topic_id, future.directory)
        before = self._before_truncation
        log = Log.open(location, limits, NEW_LOG, before, now_ms=now_ms)
        try:
            if log_start:
                log.restart_at(log_start, now_ms)
        except BaseException:
            log.abandon()
            raise
        future.log = log

    def _empty(self, path: PurePath) -> None:
        """Leave only what says whose future log this is."""
        for name in self._files.list(path):
            if name not in (MOVED, "partition.metadata"):
                self._files.remove(path / name)

    def abandon(self) -> None:
        """Close the files."""
        for future in self._futures.values():
            if future.log is not None:
                future.log.abandon()
