"""Moves of logs between the log directories of one broker, as Apache Kafka has them.

`want` makes the directory of a future log (`future_logs.py`); the log mover copies it
(`broker/replication/log_mover.py`), one log at a time, in the order of the requests. Then:

1. A worker syncs the copy, its mark and its start.
2. In one turn of the loop the copy gets the rest, is renamed to `TOPIC-PARTITION`, and is the
   partition's log from then on (`take_in`). Until here a crash leaves the former log, whole.
3. A worker makes this name durable. A crash before the next step leaves two logs of that name, of
   which the one with the mark has all records (`LogManager.start`).
4. The former log is renamed for removal, and when that is durable, too, the mark goes (`clear_up`).

A log that is not here yet has no copy: its directory is remembered until it is created, or the
broker stops. While a directory is offline no move begins: the log may be there.
"""

from collections.abc import Iterator, Sequence
from pathlib import PurePath
from typing import Final, NamedTuple

from minibroker.broker.errors import Refused
from minibroker.broker.log.future_logs import FutureLog, may_have_future
from minibroker.broker.log.guarded_files import DirectoryOffline
from minibroker.broker.log.log import Log
from minibroker.broker.log.log_directory import LogDirectory
from minibroker.broker.log.outcomes import refusal_of
from minibroker.protocol.constants import ErrorCode
from minibroker.protocol.types import TopicPartition

PREFERRED_MAX: Final = 10_000  # directories that are remembered; the oldest is forgotten


class WantedMove(NamedTuple):
    """A move that is not done: the future log, and the directory that it is in."""

    future: FutureLog
    target: LogDirectory


class FutureState(NamedTuple):
    """A future log as it is now: the path of its log directory, and bytes and end of the copy."""

    path: str
    topic_partition: TopicPartition
    size: int
    log_end: int


class LogMoves:
    """See the head of this file. `directories` are all of the broker's."""

    def __init__(self, directories: Sequence[LogDirectory]) -> None:
        self._directories = directories
        self._preferred: dict[TopicPartition, LogDirectory] = {}

    def _healthy(self) -> Iterator[LogDirectory]:
        return (one for one in self._directories if not one.failure)

    def source_of(self, name: TopicPartition) -> LogDirectory | None:
        """Return the directory that has a log; None if none has."""
        return next((one for one in self._healthy() if one.get(name) is not None), None)

    def want(self, name: TopicPartition, path: str, now_ms: int) -> None:
        """Begin the move of a log to a log directory, or end one, if the log is there.

        Raises Refused: INVALID_TOPIC_EXCEPTION if the name is too long for a move,
        LOG_DIR_NOT_FOUND for a path that is no log directory, KAFKA_STORAGE_ERROR if a directory is
        offline or the disk is full, REPLICA_NOT_AVAILABLE if the log is not here yet: then it will
        be created there. Raises OSError.
        """
        if not may_have_future(name):
            what = f"{name} is too long a name for the directory of a future log"
            raise Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, what)
        target = next((one for one in self._directories if one.root == PurePath(path)), None)
        if target is None:
            what = f"{path} is no log directory of this broker: name one of its log.dirs"
            raise Refused(ErrorCode.LOG_DIR_NOT_FOUND, what)
        for directory in self._directories:
            if directory.failure:
                what = f"log directory {directory.root} is offline: {directory.failure}"
                raise Refused(ErrorCode.KAFKA_STORAGE_ERROR, what)
        self.cancel(name, now_ms, but=target)
        source = self.source_of(name)
        if source is None:
            while len(self._preferred) >= PREFERRED_MAX:
                del self._preferred[next(iter(self._preferred))]
            self._preferred[name] = target
            what = f"the log of {name} is not here yet: it will be made in {target.root}"
            raise Refused(ErrorCode.REPLICA_NOT_AVAILABLE, what)
        if source is target:
            self.cancel(name, now_ms)
            return
        log = source.get(name)
        assert log is not None
        try:
            target.futures.want(name, log.topic_id)
        except OSError as error:
            raise refusal_of(error) from None

    def cancel(self, name: TopicPartition, now_ms: int, *, but: LogDirectory | None = None) -> None:
        """End the moves of a log, but for one to a directory. The log stays where it is."""
        self._preferred.pop(name, None)
        for directory in self._healthy():
            if directory is not but:
                try:
                    directory.cancel_future(name, now_ms)
                except DirectoryOffline:
                    continue

    def take_preferred(self, name: TopicPartition, default: LogDirectory) -> LogDirectory:
        """Return the directory in which a new log was wanted, and forget it; else `default`."""
        directory = self._preferred.pop(name, default)
        return default if directory.failure else directory

    def wanted(self) -> list[WantedMove]:
        """Return the moves that are not done."""
        return [WantedMove(one, target) for target in self._healthy() for one in target.futures]

    def futures(self) -> list[FutureState]:
        """Return the future logs."""
        return [
            FutureState(
                str(target.root),
                one.topic_partition,
                0 if one.log is None else one.log.size,
                0 if one.log is None else one.log.log_end,
            )
            for one, target in self.wanted()
        ]

    def take_in(self, move: WantedMove, source: LogDirectory, high_watermark: int) -> Log:
        """Let the future log take the place of the present one, and return it. Raises OSError, and
        then nothing has changed."""
        log = move.target.take_in(move.future, high_watermark)
        source.let_go(move.future.topic_partition)
        return log
