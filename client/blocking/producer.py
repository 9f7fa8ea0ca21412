"""The producer for programs without a trio loop.

`send` puts the record on a deque that a task in the loop empties, hundreds at a time: waking that
task costs a few microseconds and is done once for all that gathers until it runs. When the deque
is full, `send` waits until it is empty. So the two threads take turns with the interpreter, each
for thousands of records, instead of fighting over it for each.

What a record is refused for is raised where it is sent, as far as that can be known there (not
bytes, too large). What turns out later (a partition that does not exist) is raised by the next
`send`, `flush` or `close`.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from math import inf
from pathlib import Path
from types import TracebackType
from typing import Final, Self, TypeAlias

import trio

from minibroker.client.blocking.portal import Held, Portal
from minibroker.client.delivery import CloseReport, Delivery, RecordDelivered
from minibroker.client.errors import BufferFull, ClientClosed, ClientError, ClientTimeout
from minibroker.client.intake import check_record
from minibroker.client.options import Seams, Servers
from minibroker.client.producer import Producer as TrioProducer
from minibroker.client.producer import ProducerStatistics
from minibroker.protocol.records.columns import Headers

# Records between the threads; about 10 ms of sending.
QUEUE_RECORDS_MAX: Final = 8192
# A value of at most this size needs no look at max.request.size here.
SURELY_SMALL_BYTES: Final = 1024
# Records that are taken over before the loop's other tasks run.
TURN_RECORDS: Final = 512

# What `send_nowait` takes.
_Queued: TypeAlias = tuple[str, bytes | None, bytes | None, Headers, int | None, int | None]


class Producer:
    """As `minibroker.client.Producer`, with plain methods; used with `with`, from any thread.

    `on_delivery` is called in the thread of the loop.
    """

    def __init__(
        self,
        bootstrap_servers: Servers = None,
        *,
        on_delivery: Callable[[Delivery], None] | None = None,
        ledger: Path | str | None = None,
        seams: Seams | None = None,
        **options: object,
    ) -> None:
        self._producer = TrioProducer(
            bootstrap_servers, on_delivery=on_delivery, ledger=ledger, seams=seams, **options
        )
        self._portal = Portal("minibroker-producer")
        self._held: Held[TrioProducer]
        self._queue: deque[_Queued] = deque()
        self._is_feeding = True  # the feeder will look at the queue without being woken
        self._woken = trio.Event()
        self._fed = trio.lowlevel.ParkingLot()  # tasks that wait for the queue to be empty
        self._has_room = threading.Event()  # for threads that do
        self._refused: Exception | None = None
        self._is_open = False

    def send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        headers: Headers = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> None:
        """Take a record; wait for room, at most max.block.ms (then `ClientTimeout`)."""
        if (
            type(value) is not bytes
            or headers
            or (key is not None and type(key) is not bytes)
            or len(value) > SURELY_SMALL_BYTES
        ):
            record = check_record(topic, (timestamp_ms, key, value, headers))
            self._producer.check_size(topic, record)
            timestamp_ms, key, value, headers = record
        queue = self._queue
        if len(queue) >= QUEUE_RECORDS_MAX or self._refused is not None or not self._is_open:
            self._wait_for_room()
        queue.append((topic, value, key, headers, partition, timestamp_ms))
        if not self._is_feeding:
            self._is_feeding = True
            self._portal.run_soon(self._wake)

    def send_many(
        self,
        topic: str,
        values: Sequence[bytes],
        key: bytes | None = None,
        *,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> int:
        """Take all the values, waiting for room as `send` does; returns how many that were."""
        for value in values:
            self.send(topic, value, key, (), partition, timestamp_ms)
        return len(values)

    def send_and_wait(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        *,
        headers: Headers = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> RecordDelivered:
        """Take a record and wait until it is delivered; raises why it was not."""

        async def send() -> RecordDelivered:
            await self._wait_until_fed()
            return await self._producer.send_and_wait(
                topic, value, key, headers=headers, partition=partition, timestamp_ms=timestamp_ms
            )

        return self._portal.call(send)

    def flush(self) -> None:
        """Wait until all records taken before the call are delivered or given up.

        Raises `DeliveryFailed` for failures that nobody has seen, older ones too.
        """

        async def flush() -> None:
            await self._wait_until_fed()
            await self._producer.flush()

        self._portal.call(flush)
        self._raise_refused()

    def close(self, timeout_s: float | None = None) -> CloseReport:
        """As the trio producer's: always returns within its time, and says what was given up."""
        self._is_open = False

        async def close() -> CloseReport:
            until = trio.current_time() + (inf if timeout_s is None else timeout_s)
            with trio.move_on_at(until):
                await self._wait_until_fed()
            left = len(self._queue)
            self._queue.clear()
            report = await self._producer.close(max(0.0, until - trio.current_time()))
            return report._replace(undelivered=report.undelivered + left)

        report = self._portal.call(close)
        self._raise_refused()
        return report

    def statistics(self) -> ProducerStatistics:
        """Counts of this moment."""
        return self._producer.statistics()

    # The caller's thread

    def _wait_for_room(self) -> None:
        if not self._is_open:
            raise ClientClosed("the producer is closed, or was not entered with a `with` statement")
        self._raise_refused()
        self._has_room.clear()
        patience_s = self._producer.options.max_block_ms / 1000
        if len(self._queue) >= QUEUE_RECORDS_MAX and not self._has_room.wait(patience_s):
            raise ClientTimeout(f"no room in buffer.memory within max.block.ms ({patience_s:g} s)")

    def _raise_refused(self) -> None:
        refused, self._refused = self._refused, None
        if refused is not None:
            raise refused

    def __enter__(self) -> Self:
        self._portal.__enter__()
        try:
            self._held = self._portal.hold(self._producer)
        except BaseException:
            self._portal.__exit__()
            raise
        self._portal.start(self._feed)
        self._is_open = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        was_open, self._is_open = self._is_open, False
        try:
            if was_open and (error is None or isinstance(error, Exception)):
                self._portal.call(self._wait_until_fed)
            self._held.release(kind, error, traceback)
        finally:
            self._portal.__exit__()
        if error is None:
            self._raise_refused()

    # The loop's thread

    def _wake(self) -> None:
        self._woken.set()

    async def _wait_until_fed(self) -> None:
        while self._queue:
            await self._fed.park()

    async def _feed(self) -> None:
        queue = self._queue
        while True:
            await self._take_turn()
            if not queue:
                self._has_room.set()
                self._fed.unpark_all()
                self._is_feeding = False
                if not queue:  # nothing came before the flag was down
                    await self._woken.wait()
                self._woken = trio.Event()
                self._is_feeding = True
            await trio.lowlevel.checkpoint()

    async def _take_turn(self) -> None:
        queue = self._queue
        send = self._producer.send_nowait
        for _ in range(min(len(queue), TURN_RECORDS)):
            queued = queue.popleft()
            try:
                send(*queued)
            except BufferFull:
                queue.appendleft(queued)
                with suppress(ClientTimeout):  # `send` is who tells of it
                    await self._producer.room()
                return
            except (TypeError, ValueError, ClientError) as error:
                self._refused = self._refused or error
