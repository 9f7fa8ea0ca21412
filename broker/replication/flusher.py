"""The flusher: forces appended records to the disk, with one task for each mode that does so.

* `flush=always`: before records are acknowledged. An append schedules its partition, which joins
  the group that gathers while the previous group is being synced: one fsync then serves every
  request that arrived in the meantime (group commit). The files of a group are synced one after
  another: in parallel they were slower.
* `flush=interval`: at most `flush.ms` after the first append that is not durable.
* `flush=never`: the operating system writes back when it decides to.

In every mode the directory and the topic id of a new log are synced right after its creation. After
a power cut a log without a topic id would be of no use (`recovery.check_owner`).

Each mode has its own task, so that no request of an `always` topic waits behind the large files of
an `interval` topic. If a partition changes its mode during a flush, both tasks may flush it at
once, which is harmless.

A failed fsync is never retried. The kernel may have dropped the dirty pages and report success the
next time, so the error ends this task and the process; recovery then reads what is on the disk.
Where it takes a log directory offline instead, what waits for the flush waits until its replica is
taken off.

A flush that finds no free file descriptor has not come to the fsync. It is tried again, and what
waits for it waits longer.
"""

import logging
import math
from collections.abc import Awaitable, Callable
from pathlib import PurePath
from typing import NamedTuple, TypeAlias

import trio

from minibroker.broker.descriptors import NO_DESCRIPTOR, NO_DESCRIPTORS
from minibroker.broker.histogram import FLUSH_BOUNDS_S, Distribution, Histogram
from minibroker.broker.log.files import OFFLINE
from minibroker.broker.log.outcomes import Flush
from minibroker.broker.replication.partition import Partition

logger = logging.getLogger(__name__)
RETRY_S = 0.5  # after a flush that found no descriptor
OnFlushed: TypeAlias = Callable[[Partition, float], None]


class FlushStatistics(NamedTuple):
    """One mode: how many partitions wait for their flush, and how long each flush took."""

    dirty: int
    times: Distribution


class Flusher:
    """Knows which partitions are dirty, and when to flush each.

    `sync_dir` makes the names in a directory durable, which is needed after a roll.
    """

    def __init__(self, sync_dir: Callable[[PurePath], Awaitable[None]]) -> None:
        self._queues: dict[str, _FlushQueue] = {
            mode: _FlushQueue(sync_dir) for mode in ("always", "interval")
        }
        self._created = _NameQueue(sync_dir)
        self._held: set[Partition] = set()

    def schedule(self, partition: Partition, now: float) -> None:
        """Schedule the flush of a partition that has records which are not durable."""
        queue = self._queues.get(partition.settings.flush)
        if queue is not None and partition not in self._held:
            settings = partition.settings
            is_at_once = settings.flush == "always"
            queue.add(partition, now if is_at_once else now + settings.flush_ms / 1000)

    def schedule_created(self, partition: Partition, now: float) -> None:
        """Schedule the flush of a new log's names and topic id."""
        self._created.add(partition, now)

    def reschedule(self, partition: Partition, now: float) -> None:
        """Schedule a partition again after a change of its settings or role, which may change when
        it is due."""
        for queue in self._queues.values():
            queue.discard(partition)
        if partition.log.durable_end < partition.log.log_end:
            self.schedule(partition, now)

    def hold(self, partition: Partition) -> None:
        """Begin no flush of a partition before `release`: more of its log does not become durable,
        but for a flush that has begun."""
        self._held.add(partition)
        for queue in self._queues.values():
            queue.discard(partition)

    def release(self, partition: Partition, now: float) -> None:
        """Flush a partition again, with what was put off."""
        if partition in self._held:
            self._held.discard(partition)
            self.reschedule(partition, now)

    def on_moved(self, partition: Partition) -> None:
        """Ignore what becomes of the former log of a partition."""
        for queue in (*self._queues.values(), self._created):
            queue.forgive(partition)

    def forget(self, partition: Partition) -> None:
        """Drop a partition whose log is about to be deleted."""
        self._held.discard(partition)
        for queue in (*self._queues.values(), self._created):
            queue.discard(partition)
            queue.forgive(partition)

    def statistics(self) -> dict[str, FlushStatistics]:
        """Return the statistics of each mode."""
        return {mode: queue.statistics() for mode, queue in self._queues.items()}

    async def run(self, on_flushed: OnFlushed) -> None:
        """Flush partitions when they are due, until cancelled. Raises the `OSError` of a failed
        fsync, in an exception group.

        `on_flushed` is called with each partition that was flushed, and the time (seconds).
        """
        async with trio.open_nursery() as nursery:
            for queue in (*self._queues.values(), self._created):
                nursery.start_soon(queue.run, on_flushed)


class _FlushQueue:
    """The dirty partitions of one mode, and the task that flushes them."""

    def __init__(
        self,
        sync_dir: Callable[[PurePath], Awaitable[None]],
    ) -> None:
        self._sync_dir = sync_dir
        # In the order of their first append since the last flush.
        self._due: dict[Partition, float] = {}
        self._next_due = math.inf
        self._news = trio.Event()
        self._flushing: Partition | None = None
        self._times = Histogram(FLUSH_BOUNDS_S)
        self._is_short = False  # the last flush found no descriptor

    def add(self, partition: Partition, due: float) -> None:
        """Schedule a partition; it keeps an earlier due time."""
        if partition in self._due:
            return
        self._due[partition] = due
        if due < self._next_due:
            self._news.set()

    def discard(self, partition: Partition) -> None:
        """Unschedule a partition."""
        self._due.pop(partition, None)

    def forgive(self, partition: Partition) -> None:
        """Ignore a failure of a partition's flush in progress."""
        if self._flushing is partition:
            self._flushing = None

    def statistics(self) -> FlushStatistics:
        """Return this mode's statistics now."""
        return FlushStatistics(len(self._due), self._times.statistics())

    async def run(self, on_flushed: OnFlushed) -> None:
        """Flush partitions when they are due, until cancelled."""
        while True:
            now = trio.current_time()
            group = [partition for partition, due in self._due.items() if due <= now]
            for partition in group:
                # Remove it first: an append during the fsync schedules it again.
                if self._due.pop(partition, None) is not None:
                    await self._flush(partition, on_flushed)
            if not group:
                await self._wait()

    async def _flush(self, partition: Partition, on_flushed: OnFlushed) -> None:
        began_at = trio.current_time()
        log = partition.log  # which a move may replace meanwhile
        flush = log.start_flush()
        if not await self._sync(partition, flush):
            return
        self._times.record(trio.current_time() - began_at)
        log.finish_flush(flush)
        on_flushed(partition, trio.current_time())

    async def _sync(self, partition: Partition, flush: Flush) -> bool:
        """Make a flush durable. Without a descriptor for it, schedule it again and return False."""
        self._flushing = partition
        try:
            for file in flush.files:
                await file.sync()
            for directory in flush.directories:
                await self._sync_dir(directory)
        except OSError as error:
            # A log that was deleted in the meantime need not be durable.
            if error.errno == OFFLINE:
                return False
            if self._flushing is partition:
                if error.errno not in NO_DESCRIPTORS:
                    raise
                self._put_off(partition)
                return False
        self._is_short = False
        return True

    def _put_off(self, partition: Partition) -> None:
        if not self._is_short:
            logger.error("records are flushed later: %s", NO_DESCRIPTOR)
            self._is_short = True
        due = trio.current_time() + RETRY_S
        self._due[partition] = max(due, self._due.get(partition, 0))

    async def _wait(self) -> None:
        self._news = trio.Event()
        self._next_due = min(self._due.values(), default=math.inf)
        with trio.move_on_at(self._next_due):
            await self._news.wait()
        self._next_due = -math.inf  # awake: `add` need not wake this task


class _NameQueue(_FlushQueue):
    """The partitions whose logs were created, and the task that makes their names durable."""

    async def _flush(self, partition: Partition, on_flushed: OnFlushed) -> None:
        del on_flushed  # no record became durable
        log = partition.log
        flush = log.start_names_flush()
        if await self._sync(partition, flush):
            log.finish_names_flush(flush)
