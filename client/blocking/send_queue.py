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

A sender that finds no slot calls `send` in the loop and waits in a FIFO queue. While any sender
waits, `slots` is 0, so no other sender overtakes it. `slots` is also 0 while the producer is
closed, and while a rejected record has not been reported.
"""

from collections import deque
from typing import Final, TypeAlias

import trio

from minibroker.client.blocking.portal import REFUSALS, State
from minibroker.client.errors import ClientClosed, ClientError
from minibroker.client.producer.delivery import CloseReport, PendingDelivery, RecordDelivered
from minibroker.client.producer.producer import Producer
from minibroker.protocol.records.columns import Headers

# The most records between the threads; about 10 ms of sending.
SLOTS_MAX: Final = 8192
# What a slot stands for: a record of this size with its overhead.
SLOT_BYTES: Final = 1024
# Key and value of at most this size together, and no headers, are surely one slot.
SMALL_BYTES: Final = 960
# Records that are taken over before the loop's other tasks run.
TURN_RECORDS: Final = 512

# What `send_nowait` takes.
Queued: TypeAlias = tuple[str, bytes | None, bytes | None, Headers, int | None, int | None]


class SendQueue:
    """Of one producer. `records`, `slots` and `is_awake` are for the threads that send."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        producer.enforces_buffer_memory = False
        self.records: deque[Queued | None] = deque()
        self.slots = 0
        self.is_awake = False  # the loop will look at the queue without being woken
        self.is_closed = True
        self.rejected: Exception | None = None  # not told yet
        self._woken = trio.Event()
        self._senders = trio.StrictFIFOLock()  # that wait for memory, in their order
        self._waiting = 0

    # -- the threads that send

    def close_to_senders(self) -> None:
        """Nothing is taken any more; from any thread."""
        self.is_closed = True
        self.slots = 0
        self.is_awake = False

    def take_rejected(self) -> Exception | None:
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

    async def send(self, queued: Queued, size: int) -> None:
        """Take this record behind all that were sent before, once there is memory.

        Raises `ClientTimeout` after max.block.ms, `ClientClosed`, and what `send_nowait` raises.
        """
        await self._admit(queued, size, is_watched=False)

    async def send_and_wait(self, queued: Queued, size: int) -> RecordDelivered:
        """The same, and wait until it is delivered; raises why it was not."""
        pending = await self._admit(queued, size, is_watched=True)
        assert pending is not None, "it is watched"
        return await pending.wait()

    async def flush(self) -> None:
        """As the producer's, of all that was sent before."""
        await self._drain()
        await self._producer.flush()

    async def close(self, timeout_s: float | None) -> CloseReport:
        """Close the producer, with all that was sent. See `Producer.close` there."""
        self.drain_and_close()
        report = await self._producer.close(timeout_s)
        left = sum(queued is not None for queued in self.records)  # sent while it closed
        self.records.clear()
        return report._replace(undelivered=report.undelivered + left)

    def drain_and_close(self) -> None:
        """Take nothing more, and take over what was sent, without waiting."""
        self.close_to_senders()
        while self.records:
            self._drain_some(SLOTS_MAX)

    # -- inside

    async def _admit(
        self, queued: Queued, size: int, *, is_watched: bool
    ) -> PendingDelivery | None:
        self._waiting += 1
        self.slots = 0
        try:
            with self._producer.within_max_block():
                async with self._senders:
                    await self._drain()
                    await self._producer.wait_for_memory(size)
                    return self._take(queued, is_watched=is_watched)
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
        count = min(count, len(records))
        for _ in range(count):
            queued = records.popleft()
            if queued is None:
                continue
            try:
                send(*queued)
            except (TypeError, ValueError, ClientError) as error:
                self._reject(error)
        self._update_slots()
        return count

    def _take(self, queued: Queued, *, is_watched: bool) -> PendingDelivery | None:
        if self.is_closed:
            raise ClientClosed(REFUSALS[State.ENDED])
        if not is_watched:
            self._producer.send_nowait(*queued)
            return None
        topic, value, key, headers, partition, timestamp_ms = queued
        return self._producer.send_for_delivery(
            topic, value, key, headers=headers, partition=partition, timestamp_ms=timestamp_ms
        )

    def _reject(self, error: Exception) -> None:
        """A record cannot be sent: remember the first error; the next call raises it."""
        if isinstance(error, ClientClosed):
            return  # its batch could only be given up
        if self.rejected is None:
            self.rejected = error
        self.slots = 0

    def _update_slots(self) -> None:
        is_shut = self.is_closed or self._waiting or self.rejected is not None
        free = 0 if is_shut else self._producer.free_bytes
        self.slots = max(0, min(SLOTS_MAX, -(-free // SLOT_BYTES)))
