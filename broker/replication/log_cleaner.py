"""The task that compacts logs, one at a time, the dirtiest first.

It reads and writes in small steps (`broker/log/cleaning.py`), and rests between them: at least as
long as the step took, so that requests wait little for it, and so long that no more bytes are read
and written in a second than `log.cleaner.io.max.bytes.per.second`.

A log that cannot be read, or not copied, is left as it is, reported, and not tried again before the
broker starts again or the log is truncated. A full disk, or a process without a free file
descriptor, ends a compaction, too; it is tried again later. Nothing of that stops the broker; only
a swap that can neither be done nor undone does (`broker/log/compaction.py`).
"""

import logging
from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import trio

from minibroker.broker.log.cleaning import (
    CannotCompact,
    Cleanable,
    Cleaned,
    Interrupted,
)
from minibroker.broker.log.compaction import LastRun
from minibroker.broker.log.log import Log
from minibroker.broker.log.outcomes import SHORTAGES, shortage_text
from minibroker.broker.replication.partition import Partition
from minibroker.broker.turns import Turn, Turns, do_step, take_turns
from minibroker.protocol.records.batch import InvalidBatch
from minibroker.protocol.types import StaleSlice, TopicPartition

logger = logging.getLogger(__name__)


class CleanerLimits(NamedTuple):
    """How often logs are searched, how fast they are compacted, and how much memory that takes."""

    backoff_s: float
    bytes_per_s: float
    map_bytes_max: int


class CleanerStatistics(NamedTuple):
    """Counts since the start, and the logs that cannot be compacted, with the reasons."""

    runs: int = 0
    bytes_read: int = 0
    bytes_freed: int = 0
    failed: Mapping[TopicPartition, str] = MappingProxyType({})


class _Failure(NamedTuple):
    log: Log
    generation: int
    reason: str

    def holds(self) -> bool:
        """Whether the log is still the one that failed, with the same bytes."""
        return self.log.generation == self.generation


class LogCleaner:
    """See the head of this file. `partitions` are all replicas; `now_ms` is the wall clock by which
    things expire."""

    def __init__(
        self,
        limits: CleanerLimits,
        partitions: Mapping[TopicPartition, Partition],
        now_ms: Callable[[], int],
        in_worker: Callable[[Callable[[], Any]], Awaitable[Any]],
        checkpoint: Callable[[], Any],
    ) -> None:
        self._limits = limits
        self._partitions = partitions
        self._now_ms = now_ms
        self._in_worker = in_worker
        self._checkpoint = checkpoint
        self._failed: dict[TopicPartition, _Failure] = {}
        self._runs = 0
        self._bytes_read = 0
        self._bytes_freed = 0

    def statistics(self) -> CleanerStatistics:
        """Return the statistics now."""
        failed = {
            name: failure.reason for name, failure in self._failed.items() if self._has_failed(name)
        }
        return CleanerStatistics(self._runs, self._bytes_read, self._bytes_freed, failed)

    async def run(self) -> None:
        """Compact logs until cancelled."""
        while True:
            found = await take_turns(self._find_dirtiest())
            if found is None or not await self._clean(*found):
                await trio.sleep(self._limits.backoff_s)

    def _has_failed(self, name: TopicPartition) -> bool:
        failure = self._failed.get(name)
        partition = self._partitions.get(name)
        return (
            failure is not None
            and partition is not None
            and partition.log is failure.log
            and failure.holds()
        )

    def _find_dirtiest(self) -> Turns[tuple[Partition, Cleanable] | None]:
        now_ms = self._now_ms()
        best: tuple[Partition, Cleanable] | None = None
        turn = Turn()
        for partition in list(self._partitions.values()):
            log, work = partition.log, 1
            is_ours = log.limits.is_compacted and log.damage is None
            if is_ours and not self._has_failed(partition.topic_partition):
                found = log.compaction.find_cleanable(partition.last_stable_offset, now_ms)
                is_better = best is None or found.dirty_share > best[1].dirty_share
                if found.is_due(log.limits) and is_better:
                    best = partition, found
                work = log.compaction.segment_count
            if turn.is_over(work):
                yield
        return best

    async def _clean(self, partition: Partition, found: Cleanable) -> bool:
        """Compact a log; return whether that was done."""
        log, name = partition.log, partition.topic_partition
        try:
            cleaned = await self._take_steps(log, found)
        except Interrupted:
            return True  # it has changed, and may be found again
        except (InvalidBatch, StaleSlice, CannotCompact) as error:
            logger.error("%s is not compacted: %s", name, error)
            self._failed[name] = _Failure(log, log.generation, str(error))
            log.compaction.last_run = LastRun(trio.current_time(), stopped=str(error))
            return True
        except OSError as error:
            if error.errno not in SHORTAGES:
                raise
            shortage = shortage_text(error)
            logger.warning("%s is compacted later: %s", name, shortage)
            log.compaction.last_run = LastRun(trio.current_time(), stopped=shortage)
            return False
        freed = found.clean_size + found.dirty_size - cleaned.bytes_left
        log.compaction.last_run = LastRun(trio.current_time(), cleaned.bytes_read, freed)
        self._runs += 1
        self._bytes_read += cleaned.bytes_read
        self._bytes_freed += freed
        logger.info(
            "%s is compacted up to offset %d: %d bytes are %d now",
            name,
            cleaned.end,
            found.clean_size + found.dirty_size,
            cleaned.bytes_left,
        )
        await self._in_worker(self._checkpoint)
        return True

    async def _take_steps(self, log: Log, found: Cleanable) -> Cleaned:
        steps = log.compaction.clean(found, self._limits.map_bytes_max, self._now_ms())
        sent, raised = None, None
        traffic, took_s = log.compaction.traffic, 0.0

        async def rest(since: int) -> None:
            moved_s = (traffic.bytes - since) / self._limits.bytes_per_s
            await trio.sleep(max(took_s, moved_s - took_s))

        try:
            while True:
                before = traffic.bytes
                try:
                    step = steps.send(sent) if raised is None else steps.throw(raised)
                except StopIteration as end:
                    cleaned: Cleaned = end.value
                    await rest(before)
                    return cleaned
                sent = raised = None
                await rest(before)
                began_at = trio.current_time()
                try:
                    sent = await do_step(step, self._in_worker)
                except Exception as error:
                    raised = error
                took_s = trio.current_time() - began_at
        finally:
            steps.close()
