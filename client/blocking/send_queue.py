"""The queue of records from the sending threads to the loop; it enforces buffer.memory.

A sender puts its record on a deque; a task in the loop takes what is there, hundreds at a time.
Waking that task costs a few microseconds, and happens once for all records that arrive before it
runs. So each thread handles many records in its turn, instead of competing for the interpreter.

A record gets its memory when it enters the queue. The loop takes records from the queue without
waiting, so a record's delivery.timeout.ms begins at once, `flush` does not wait for the queue, and
the queue and the accumulator together stay within buffer.memory. `slots` is how long the queue may
be; a slot stands for a small record. A large record takes several: the first holds it, the others
None. The deque's length is the only count, so no lock is needed and an interrupt cannot corrupt it.

An entry is a record's future, which carries the record. The loop checks the future's reference
count: if only the loop refers to it, no caller can ask for the delivery. Then the record is sent
without a watcher, which costs much less, and the future serves another record.

A sender that finds no slot calls `send` in the loop and waits in a FIFO queue. While any sender
waits, `slots` is 0, so no other sender overtakes it. `slots` is also 0 while the producer is
closed, or takes no records because no transaction is open, and while a rejected record has not been
reported.
"""

from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from sys import getrefcount
from typing import Any, Final, Generic, TypeVar

import trio

from minibroker.client.blocking.delivery_future import RecordFuture
from minibroker.client.blocking.portal import REFUSALS, Portal, State
from minibroker.client.errors import ClientClosed, ClientError
from minibroker.client.producer.delivery import CloseReport, Delivery
from minibroker.client.producer.producer import Producer
from minibroker.protocol.constants import NO_OFFSET

# The most records in the queue; about 10 ms of sending.
SLOTS_MAX: Final = 8192
# The memory of one slot: that of a record of this size with its overhead.
SLOT_BYTES: Final = 1024
# A record with key and value of at most this size together, and no headers, needs one slot.
SMALL_BYTES: Final = 960
# How many records are taken before the loop's other tasks run.
TURN_RECORDS: Final = 512

F = TypeVar("F", bound=RecordFuture)

# For a record without a partition.
NO_PARTITION: Final = -1


def _count_as_unheld() -> int:
    """Return the reference count of an entry to which only one variable refers."""
    records = deque([object()])
    record = records.popleft()
    return getrefcount(record)


UNHELD: Final = _count_as_unheld()


class SendQueue(Generic[F]):
    """The queue of one producer. `records`, `slots` and `is_awake` are for the sending threads."""

    def __init__(self, producer: Producer, kind: type[F]) -> None:
        self._producer = producer
        self._kind = kind
        producer.enforces_buffer_memory = False
        producer.on_taking_changed = self._update_slots
        self.records: deque[F | None] = deque()
        self.unheld: deque[F] = deque()  # futures to be used again
        self.slots = 0
        self.is_awake = False  # the loop will look at the queue without being woken
        self.is_closed = True
        self.rejected: Exception | None = None  # not reported yet
        self.portal: Portal  # the loop
        self.watched: set[Any] = set()  # those with callbacks that are not done
        self._report: CloseReport | None = None
        self._woken = trio.Event()
        self._senders = trio.StrictFIFOLock()  # senders that wait for memory, in their order
        self._waiting = 0

    # -- the threads that send

    def close_to_senders(self) -> None:
        """Accept nothing any more; from any thread."""
        self.is_closed = True
        self.slots = 0
        self.is_awake = False

    def new_future(self) -> F:
        """Return a new future, if there is none to be used again."""
        return self._kind(self)

    def pop_rejected(self) -> Exception | None:
        """Return the first error of a record that was rejected since the last call."""
        rejected, self.rejected = self.rejected, None
        return rejected

    # -- the loop

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Take records from the queue, until cancelled."""
        self.is_closed = False
        self.is_awake = True
        self._update_slots()
        task_status.started()
        while not self.is_closed:
            self._drain_some(TURN_RECORDS)
            if not self.records:
                self.is_awake = False
                if not self.records:  # no record arrived before the flag was cleared
                    await self._woken.wait()
                self._woken = trio.Event()
                self.is_awake = not self.is_closed
            await trio.lowlevel.checkpoint()

    def wake(self) -> None:
        """Wake the loop, because there is something in the queue."""
        self._woken.set()

    async def send(self, future: F, size: int) -> None:
        """Send a record after all earlier ones, once there is memory.

        Raises `ClientTimeout` after max.block.ms, `ClientClosed`, and what `send_nowait` raises.
        """
        await self._admit(future, size)

    def mark_seen(self, delivery: Delivery) -> None:
        """Record that a caller knows why one record of a failed delivery was not stored."""
        if self.rejected is not None and self.rejected is delivery.error:
            self.rejected = None
            self._update_slots()
        self._producer.mark_seen(delivery)

    def fail_left(self) -> None:
        """Fail the records that came into the queue after the producer's end."""
        while self.records:
            future = self.records.popleft()
            if future is not None:
                self._reject(future, ClientClosed(REFUSALS[State.ENDED]))

    async def flush(self) -> None:
        """Flush as the producer does, with all records sent before."""
        await self._drain()
        await self._producer.flush()

    async def commit_transaction(self) -> None:
        """Commit as the producer does, with all records sent before. Raises the error of one that
        could not be sent, and that no caller has seen: then the transaction can only be aborted."""
        await self._drain()
        if (rejected := self.pop_rejected()) is not None:
            self._producer.fail_transaction(rejected)
            self._update_slots()
            raise rejected
        await self._producer.commit_transaction()

    async def abort_transaction(self) -> None:
        """Abort as the producer does, with all records sent before."""
        await self._abort(self._producer.abort_transaction)

    async def abort_after(self, error: BaseException) -> None:
        """Abort, unless it was done, because a block has ended with an exception."""
        await self._abort(partial(self._producer.abort_after, error))

    async def close(self, timeout_s: float | None) -> None:
        """Close the producer, with all that was sent. See `Producer.close` there."""
        self.drain_and_close()
        report = await self._producer.close(timeout_s)
        left = sum(future is not None for future in self.records)  # sent while it closed
        self.fail_left()
        if self._report is None:
            self._report = report._replace(undelivered=report.undelivered + left)

    @property
    def report(self) -> CloseReport:
        """Return what `close` returned or raised; if something else ended the producer, what became
        of the records."""
        if self._report is not None:
            return self._report
        counts = self._producer.statistics()
        return CloseReport(counts.delivered, counts.failed, 0)

    def drain_and_close(self) -> None:
        """Accept nothing any more, and take what is in the queue, without waiting."""
        self.close_to_senders()
        while self.records:
            self._drain_some(SLOTS_MAX)

    # -- inside

    async def _abort(self, abort: Callable[[], Awaitable[None]]) -> None:
        while self.records:
            self._drain_some(SLOTS_MAX)
        self.pop_rejected()  # they are given up on purpose, as all the others
        await abort()

    async def _admit(self, future: F, size: int) -> None:
        self._waiting += 1
        self.slots = 0
        try:
            with self._producer.within_max_block():
                async with self._senders:
                    await self._drain()
                    await self._producer.wait_for_memory(size)
                    if self.is_closed:
                        raise ClientClosed(REFUSALS[State.ENDED])
                    self._send_watched(future)
        finally:
            self._waiting -= 1
            self._update_slots()

    async def _drain(self) -> None:
        """Take all that is in the queue now."""
        left = len(self.records)
        while left > 0 and self.records:
            left -= self._drain_some(min(left, TURN_RECORDS))
            await trio.lowlevel.checkpoint()

    def _drain_some(self, count: int) -> int:
        """Take up to so many entries; return how many."""
        records = self.records
        send = self._producer.send_nowait
        reuse = self.unheld.append
        count = min(count, len(records))
        for _ in range(count):
            future = records.popleft()
            if future is None:
                continue
            try:
                if getrefcount(future) > UNHELD:
                    self._send_watched(future)
                else:
                    send(
                        future.topic,
                        future.value,
                        future.key,
                        future.headers,
                        future.partition,
                        future.timestamp_ms,
                    )
                    future.key = future.value = None  # as `take_record` does
                    future.headers = ()
                    reuse(future)
            except (TypeError, ValueError, ClientError) as error:
                self._reject(future, error)
        self._update_slots()
        return count

    def _send_watched(self, future: F) -> None:
        record = future.take_record()
        self._producer.send_watched(future, future.topic, future.partition, record)

    def _reject(self, future: F, error: Exception) -> None:
        """Handle a record that cannot be sent: tell its future. The next call raises the first such
        error."""
        if not isinstance(error, ClientClosed):  # else its batch could only be given up
            if self.rejected is None:
                self.rejected = error
            self.slots = 0
        future.take_record()
        future.complete(Delivery(future.topic, NO_PARTITION, NO_OFFSET, 1, error, bytearray()), 0)

    def _update_slots(self) -> None:
        is_shut = self.is_closed or self._waiting or self.rejected is not None
        is_shut = is_shut or not self._producer.takes_records
        free = 0 if is_shut else self._producer.free_bytes
        self.slots = max(0, min(SLOTS_MAX, -(-free // SLOT_BYTES)))
