"""The task that moves logs between the log directories of this broker, one after another.

It drives `broker/log/log_move.py`: a worker copies, as fast as the disks and
`replica.alter.log.dirs.io.max.bytes.per.second` allow, and a turn of the loop lets the copy take
the place of the log. `broker/log/log_moves.py` has the order of the last steps.

A move that meets a shortage is tried again later, after the others. A copy that met records which
cannot be read is given up, and so is one whose target directory fails: the log stays where it is.
One whose source fails waits for a start that finds the source.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, Final

import trio

from minibroker.broker.errors import Refused
from minibroker.broker.log.admission import UnexpectedOffset
from minibroker.broker.log.future_logs import FutureLog
from minibroker.broker.log.guarded_files import DirectoryOffline
from minibroker.broker.log.log_directory import LogDirectory
from minibroker.broker.log.log_move import LogMove
from minibroker.broker.log.log_moves import LogMoves, WantedMove
from minibroker.broker.log.outcomes import SHORTAGES, shortage_text
from minibroker.broker.log.scan import BadBytes
from minibroker.broker.replication.flusher import Flusher
from minibroker.broker.replication.partition import Partition
from minibroker.broker.replication.quotas import ReplicationQuota
from minibroker.broker.turns import take_steps
from minibroker.protocol.records.batch import InvalidBatch
from minibroker.protocol.types import StaleSlice, TopicPartition

logger = logging.getLogger(__name__)

LOOK_S: Final = 0.5  # between two looks for moves that are wanted
RETRY_S: Final = 5.0  # after a shortage
LAST_STEPS: Final = 100  # of a copy while its partition is not flushed


class LogMover:
    """See the head of this file. `partitions` are all replicas, `quota` is the rate of all moves,
    and `notify` wakes those who wait for a partition; `wall_ms` is the wall clock."""

    def __init__(
        self,
        moves: LogMoves,
        partitions: Mapping[TopicPartition, Partition],
        flusher: Flusher,
        quota: ReplicationQuota,
        in_worker: Callable[..., Awaitable[Any]],
        wall_ms: Callable[[], int],
        notify: Callable[[TopicPartition], None],
    ) -> None:
        self._moves = moves
        self._partitions = partitions
        self._flusher = flusher
        self._quota = quota
        self._in_worker = in_worker
        self._wall_ms = wall_ms
        self._notify = notify
        self._retry_at: dict[TopicPartition, float] = {}

    async def run(self) -> None:
        """Move logs until cancelled."""
        while True:
            now = trio.current_time()
            self._retry_at = {name: at for name, at in self._retry_at.items() if at > now}
            for wanted in self._moves.wanted():
                name = wanted.future.topic_partition
                partition = self._partitions.get(name)
                is_sound = partition is not None and partition.log.damage is None
                if partition is not None and is_sound and name not in self._retry_at:
                    await self._move(partition, wanted)
            await trio.sleep(LOOK_S)

    async def _move(self, partition: Partition, wanted: WantedMove) -> None:
        """Move one log, or put the move off, or give it up."""
        future, target = wanted
        source = self._moves.source_of(partition.topic_partition)
        if future.is_cancelled or target.failure or source is None:
            return
        future.is_in_use = True
        try:
            await self._copy(partition, wanted, source)
        except (BadBytes, InvalidBatch, UnexpectedOffset) as error:
            self._give_up(wanted, f"its records cannot be copied: {error}")
        except StaleSlice as stale:
            self._put_off(wanted, str(stale))
        except Refused as refused:
            self._put_off(wanted, refused.message)
        except OSError as error:
            if error.errno not in SHORTAGES:
                raise
            self._put_off(wanted, shortage_text(error))
        finally:
            future.is_in_use = False
            if future.is_cancelled:
                with suppress(DirectoryOffline):
                    target.discard(future, self._wall_ms())

    def _put_off(self, wanted: WantedMove, reason: str) -> None:
        name = wanted.future.topic_partition
        self._retry_at[name] = trio.current_time() + RETRY_S
        logger.warning("%s is moved to %s later: %s", name, wanted.target.root, reason)

    def _give_up(self, wanted: WantedMove, reason: str) -> None:
        name = wanted.future.topic_partition
        logger.error("%s is not moved to %s: %s", name, wanted.target.root, reason)
        self._moves.cancel(name, self._wall_ms())

    async def _copy(self, partition: Partition, wanted: WantedMove, source: LogDirectory) -> None:
        """Copy a log until the copy has taken its place. Raises as `LogMove.catch_up`."""
        future, target = wanted
        present = partition.log
        if future.topic_id != present.topic_id:
            self._give_up(wanted, "it is another topic's now")
            return
        if future.log is None:
            logger.info("%s is copied to %s", partition.topic_partition, target.root)
            present.forget_truncations()
            start = future, present.limits, present.log_start, self._wall_ms()
            await self._in_worker(target.begin_future, *start)
        assert future.log is not None
        move = LogMove(present, future.log, target.files)
        while self._goes_on(partition, move, future):
            now = trio.current_time()
            if self._quota.is_exceeded(now):
                await trio.sleep_until(self._quota.retry_at(now))
                continue
            await self._catch_up(move)
            if move.is_near_end and self._goes_on(partition, move, future):
                await self._in_worker(target.prepare_future, future)
                await self._in_worker(move.sync)
                if await self._finish(partition, move, wanted, source):
                    await self._clear_up(partition.topic_partition, target, source)
                    return

    def _goes_on(self, partition: Partition, move: LogMove, future: FutureLog) -> bool:
        """Whether the move is still wanted, and the log still the partition's."""
        is_here = self._partitions.get(partition.topic_partition) is partition
        return is_here and partition.log is move.present and not future.is_cancelled

    async def _catch_up(self, move: LogMove) -> None:
        size = await take_steps(move.catch_up(self._wall_ms()), self._in_worker)
        self._quota.record(size, trio.current_time())

    async def _finish(
        self, partition: Partition, move: LogMove, wanted: WantedMove, source: LogDirectory
    ) -> bool:
        """Let the copy take the place of the log. Return False if it could not, for the load."""
        self._flusher.hold(partition)
        try:
            for _ in range(LAST_STEPS):
                if not self._goes_on(partition, move, wanted.future):
                    return False
                if move.finish(self._wall_ms()):
                    high_watermark = partition.high_watermark
                    partition.log = self._moves.take_in(wanted, source, high_watermark)
                    self._flusher.on_moved(partition)
                    self._notify(partition.topic_partition)
                    logger.info("%s is in %s now", partition.topic_partition, wanted.target.root)
                    return True
                await self._catch_up(move)
                if move.future.durable_end < move.present.durable_end:
                    await self._in_worker(move.sync)
            return False
        finally:
            self._flusher.release(partition, trio.current_time())

    async def _clear_up(
        self, name: TopicPartition, target: LogDirectory, source: LogDirectory
    ) -> None:
        """Remove the former log, once a power cut cannot take the name of the present one away."""
        await self._in_worker(target.files.sync_dir, target.root)
        source.remove_moved_away(name, self._wall_ms())
        await self._in_worker(source.files.sync_dir, source.root)
        await self._in_worker(target.forget_move, name)
        await self._in_worker(target.checkpoint_recovery_points)
        await self._in_worker(target.checkpoint_high_watermarks)
