"""Records on their way from the threads that send to the loop; buffer.memory is enforced here.

A sender puts its record on a deque; a task in the loop takes what is there, hundreds at a time.
Waking that task costs a few microseconds and is done once for all that gathers until it runs, so
the threads take turns with the interpreter, each for many records, instead of fighting over it.

A record gets its memory when it enters the queue. The loop takes over what is in the queue without
waiting, so a record's delivery.timeout.ms begins at once, `flush` needs to wait for no queue, and
what is queued and what the accumulator holds are within buffer.memory together. `slots` is how long
the queue may be; a slot stands for a small record. A large record takes several: the first holds
it, the others None. The deque's length is the only count, so no lock is needed and an interrupt
cannot corrupt it.

An entry is a record's future, which carries the record. The loop looks at how many refer to it: if
only the loop does, nobody can ask what becomes of the record. Then it is sent without a watcher,
which costs much less, and the future serves another record.

A sender that finds no slot calls `send` in the loop and waits in a FIFO queue. While any sender
waits, `slots` is 0, so no other sender overtakes it. `slots` is also 0 while the producer is
closed, and while a rejected record has not been reported.
"""

from collections import deque
from sys import getrefcount
from typing import Any, Final, Generic, TypeVar

import trio

from minibroker.client.blocking.delivery_future import RecordFuture
from minibroker.client.blocking.portal import REFUSALS, Portal, State
from minibroker.client.errors import ClientClosed, ClientError
from minibroker.client.producer.delivery import CloseReport, Delivery
from minibroker.client.producer.producer import Producer
from minibroker.protocol.constants import NO_OFFSET

# The most records between the threads; about 10 ms of sending.
SLOTS_MAX: Final = 8192
# What a slot stands for: a record of this size with its overhead.
SLOT_BYTES: Final = 1024
# Key and value of at most this size together, and no headers, are surely one slot.
SMALL_BYTES: Final = 960
# Records that are taken over before the loop's other tasks run.
TURN_RECORDS: Final = 512

F = TypeVar("F", bound=RecordFuture)

# Of a record for which no partition was chosen.
NO_PARTITION: Final = -1


def _count_as_unheld() -> int:
    """The references that are counted where nothing but one variable refers to an entry."""
    records = deque([object()])
    record = records.popleft()
    return getrefcount(record)


UNHELD: Final = _count_as_unheld()


class SendQueue(Generic[F]):
    """Of one producer. `records`, `slots` and `is_awake` are for the threads that send."""

    def __init__(self, producer: Producer, kind: type[F]) -> None:
        self._producer = producer
        self._kind = kind
        producer.enforces_buffer_memory = False
        self.records: deque[F | None] = deque()
        self.unheld: deque[F] = deque()  # futures to be used again
        self.slots = 0
        self.is_awake = False  # the loop will look at the queue without being woken
        self.is_closed = True
        self.rejected: Exception | None = None  # not told yet
        self.portal: Portal  # the loop
        self.watched: set[Any] = set()  # that have callbacks, and are not done
        self._report: CloseReport | None = None
        self._woken = trio.Event()
        self._senders = trio.StrictFIFOLock()  # that wait for memory, in their order
        self._waiting = 0

    # -- the threads that send

    def close_to_senders(self) -> None:
        """Nothing is taken any more; from any thread."""
        self.is_closed = True
        self.slots = 0
        self.is_awake = False

    def new_future(self) -> F:
        """A future for a record, where none is left to be used again."""
        return self._kind(self)

    def pop_rejected(self) -> Exception | None:
        """The first error of a record that was rejected since this was called last."""
        rejected, self.rejected = self.rejected, None
        return rejected

    # -- the loop

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Take over what is sent, until cancelled."""
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
        """There is something in the queue."""
        self._woken.set()

    async def send(self, future: F, size: int) -> None:
        """Take its record behind all that were sent before, once there is memory.

        Raises `ClientTimeout` after max.block.ms, `ClientClosed`, and what `send_nowait` raises.
        """
        await self._admit(future, size)

    def mark_seen(self, delivery: Delivery) -> None:
        """Somebody was told why one record of a failed delivery was not stored."""
        if self.rejected is not None and self.rejected is delivery.error:
            self.rejected = None
            self._update_slots()
        self._producer.mark_seen(delivery)

    def fail_left(self) -> None:
        """The producer has ended: what came into the queue since is not sent."""
        while self.records:
            future = self.records.popleft()
            if future is not None:
                self._reject(future, ClientClosed(REFUSALS[State.ENDED]))

    async def flush(self) -> None:
        """As the producer's, of all that was sent before."""
        await self._drain()
        await self._producer.flush()

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
        """What `close` found. If something else ended the producer: what became of the records."""
        if self._report is not None:
            return self._report
        counts = self._producer.statistics()
        return CloseReport(counts.delivered, counts.failed, 0)

    def drain_and_close(self) -> None:
        """Take nothing more, and take over what was sent, without waiting."""
        self.close_to_senders()
        while self.records:
            self._drain_some(SLOTS_MAX)

    # -- inside

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
        """Take over all that is in the queue now."""
        left = len(self.records)
        while left > 0 and self.records:
            left -= self._drain_some(min(left, TURN_RECORDS))
            await trio.lowlevel.checkpoint()

    def _drain_some(self, count: int) -> int:
        """Take over up to so many entries; returns how many."""
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
        """A record cannot be sent: tell its future. The next call raises the first such error."""
        if not isinstance(error, ClientClosed):  # else its batch could only be given up
            if self.rejected is None:
                self.rejected = error
            self.slots = 0
        future.take_record()
        future.complete(Delivery(future.topic, NO_PARTITION, NO_OFFSET, 1, error, bytearray()), 0)

    def _update_slots(self) -> None:
        is_shut = self.is_closed or self._waiting or self.rejected is not None
        free = 0 if is_shut else self._producer.free_bytes
        self.slots = max(0, min(SLOTS_MAX, -(-free // SLOT_BYTES)))
