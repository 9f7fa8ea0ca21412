"""One move of a log to another log directory: how the copy comes to be the partition's log.

The copy is a log of its own, in the other directory, and follows the present one as a follower does
its leader: it appends whole batches, is truncated where the present one was, and raises its start.
A worker reads and writes, one step at a time (`Steps`): the loop appends to the present log
meanwhile. What is compacted or deleted meanwhile was copied before, or need not be.

The end of a move is one turn of the loop (`finish`): what the copy lacks is appended, and it
becomes what the present log is. For this the copy must be as durable as the present log: what was
acknowledged because it is on the disk stays there. So no flush of the partition begins before
(`Flusher.hold`), while the copy is synced once more.
"""

from collections.abc import Sequence
from typing import Final

from minibroker.broker.log.admission import check_batches
from minibroker.broker.log.cached_reads import NotCached, read_slice, reading_ahead
from minibroker.broker.log.files import Files
from minibroker.broker.log.log import Log
from minibroker.broker.turns import Steps
from minibroker.protocol.types import Slice, StaleSlice

SLICE_BYTES: Final = 1 << 20  # copied in one step
SYNC_BYTES: Final = 32 << 20  # copied between two syncs
LAST_BYTES: Final = 1 << 20  # copied in the turn that ends the move


class LogMove:
    """See the head of this file. `future` is a log on the disk `files`, which began at the start of
    `present` when that had no truncation to remember."""

    def __init__(self, present: Log, future: Log, files: Files) -> None:
        self.present = present
        self.future = future
        self._files = files
        self._unsynced = 0

    @property
    def is_near_end(self) -> bool:
        """Whether so little is missing that the move may end."""
        return self.present.readable_bytes(self.future.log_end, self.present.log_end) <= LAST_BYTES

    def catch_up(self, now_ms: int) -> Steps[int]:
        """Copy the next slice; return its size in bytes, 0 if nothing is missing.

        Raises StaleSlice if the present log was truncated meanwhile; Refused or OSError for a
        shortage or a directory that is offline; BadBytes, InvalidBatch or UnexpectedOffset for
        records that cannot be copied.
        """
        future = self.future
        while not self._is_followed():
            yield from self._follow(now_ms)
        slices = yield from reading_ahead(self._next_slices, SLICE_BYTES)
        if not slices:
            return 0

        def copy() -> int:
            records = b"".join(part.read() for part in slices)
            future.append_as_follower(check_batches(memoryview(records)), now_ms)
            return len(records)

        size: int = yield copy
        self._unsynced += size
        if self._unsynced >= SYNC_BYTES:
            yield self.sync
        return size

    def _next_slices(self, may_block: bool) -> Sequence[Slice]:
        if not self._is_followed():
            raise StaleSlice("the log was cut")
        present, start = self.present, self.future.log_end
        return present.read(start, SLICE_BYTES, present.log_end, may_block=may_block)

    def _follow(self, now_ms: int) -> Steps[None]:
        """Do what was done to the present log, but for appends."""
        present, future, log_start = self.present, self.future, self.present.log_start
        lowest = present.lowest_truncation
        if lowest < future.log_end:
            yield lambda: future.truncate_to(lowest, now_ms)
        if present.lowest_truncation == lowest:  # not truncated again, lower
            present.forget_truncations()
        if log_start > future.log_end or log_start < future.log_start:
            yield lambda: future.restart_at(log_start, now_ms)
        elif log_start > future.log_start:
            yield lambda: future.raise_start(log_start)

    def sync(self) -> None:
        """Make the copy durable. Runs in a worker. Raises OSError."""
        flush = self.future.start_flush()
        for file in flush.files:
            file.sync_now()
        for directory in flush.directories:
            self._files.sync_dir(directory)
        self.future.finish_flush(flush)
        self._unsynced = 0

    def finish(self, now_ms: int) -> bool:
        """Copy the rest and take the place of the present log, in one turn of the loop. Return
        False, and nothing is decided, if more is to be done before. Raises as `catch_up`."""
        present, future = self.present, self.future
        is_same = (
            self._is_followed()
            and present.damage is None
            and future.durable_end >= present.durable_end
            and self.is_near_end
        )
        if not is_same:
            return False
        try:
            while future.log_end < present.log_end:
                slices = self._next_slices(False)
                records = b"".join(read_slice(part, may_block=False) for part in slices)
                future.append_as_follower(check_batches(memoryview(records)), now_ms)
        except NotCached:
            return False  # what was copied stays
        future.take_place_of(present)
        return True

    def _is_followed(self) -> bool:
        """Whether the copy lacks appends alone."""
        present, future = self.present, self.future
        is_cut = present.lowest_truncation < future.log_end
        return not is_cut and future.log_start <= present.log_start <= future.log_end
