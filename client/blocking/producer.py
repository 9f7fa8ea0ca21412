"""The producer for programs without a trio loop.

`send` puts the record on a queue that a task in the loop empties (client/blocking/send_queue.py),
and waits only where buffer.memory is used up, or the loop is behind by thousands of records.

`send` raises the errors that it can detect at once (wrong type, too large). The next `send`,
`flush` or `close` raises what the loop detects (a partition that does not exist).
"""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Self, Unpack

from minibroker.client.blocking.portal import REFUSALS, Portal, State
from minibroker.client.blocking.send_queue import SLOT_BYTES, SMALL_BYTES, Queued, SendQueue
from minibroker.client.errors import ClientClosed
from minibroker.client.net.cluster import in_background
from minibroker.client.option_types import ProducerConfig, ProducerKeywords
from minibroker.client.options import Seams, Servers
from minibroker.client.producer.delivery import CloseReport, Delivery, RecordDelivered
from minibroker.client.producer.producer import Producer as TrioProducer
from minibroker.client.producer.producer import ProducerStatistics
from minibroker.client.producer.raw_record import check_record
from minibroker.protocol.records.columns import Headers


class Producer:
    """As `minibroker.client.Producer`, with plain methods; used with `with`, from any thread.

    `on_delivery` is called in the thread of the loop: there `send` raises `ClientError` if it would
    have to wait, and `send_and_wait`, `flush` and `close` always do.

    In a child process after a fork its methods raise `ClientClosed`, and the end of the `with`
    block does nothing: records and connections stay with the parent.
    """

    def __init__(
        self,
        bootstrap_servers: Servers | ProducerConfig = None,
        *,
        on_delivery: Callable[[Delivery], None] | None = None,
        on_statistics: Callable[[ProducerStatistics], object] | None = None,
        ledger: Path | str | None = None,
        seams: Seams | None = None,
        **options: Unpack[ProducerKeywords],
    ) -> None:
        self._producer = TrioProducer(
            bootstrap_servers,
            on_delivery=on_delivery,
            on_statistics=on_statistics,
            ledger=ledger,
            seams=seams,
            **options,
        )
        self._queue = SendQueue(self._producer)
        self._records = self._queue.records
        manager = _opened(self._producer, self._queue)
        self._portal = Portal("minibroker-producer", manager, self._queue.close_to_senders)

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
        queue = self._queue
        if (
            type(value) is bytes
            and not headers
            and (
                len(value) <= SMALL_BYTES
                if key is None
                else type(key) is bytes and len(value) + len(key) <= SMALL_BYTES
            )
        ):
            queued = (topic, value, key, (), partition, timestamp_ms)
            if len(self._records) >= queue.slots:
                self._send_in_loop(queued, SMALL_BYTES)
                return
            try:
                self._records.append(queued)
                if queue.is_closed or not queue.is_awake:
                    self._wake(queued)
            except BaseException:
                self._wake_later()
                raise
        else:
            self._send_large(*self._check(topic, value, key, headers, partition, timestamp_ms))

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
        queued, size = self._check(topic, value, key, headers, partition, timestamp_ms)
        return self._portal.call(self._queue.send_and_wait, queued, size)

    def flush(self) -> None:
        """Wait until all records taken before the call are delivered or given up.

        Raises `DeliveryFailed` for failures that nobody has seen, older ones too, and
        `ClientClosed` if the producer is closed meanwhile and gives records up.
        """
        self._portal.call(self._queue.flush)
        self._raise_rejected()

    def close(self, timeout_s: float | None = None) -> CloseReport:
        """As the trio producer's: always returns within its time, and says what was given up.

        Threads that wait in `send` or `send_and_wait` get `ClientClosed`.
        """
        report = self._portal.call(self._queue.close, timeout_s)
        self._raise_rejected()
        return report

    def statistics(self) -> ProducerStatistics:
        """Counts of this moment."""
        return self._producer.statistics()

    def __enter__(self) -> Self:
        self._portal.open(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Deliver what was sent, however long that takes; `sys.exit` in the block does so, too.

        An interrupt (KeyboardInterrupt, GeneratorExit) waits for nothing: the log and stderr say
        how many records were dropped.
        """
        self._portal.close(error)
        if error is None:
            self._raise_rejected()

    # -- inside

    def _check(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        headers: Headers,
        partition: int | None,
        timestamp_ms: int | None,
    ) -> tuple[Queued, int]:
        """The record as it is queued, and its size. Raises `TypeError` and `ValueError`."""
        record = check_record(topic, (timestamp_ms, key, value, headers))
        size = self._producer.check_size(topic, record)
        timestamp_ms, key, value, headers = record
        return (topic, value, key, headers, partition, timestamp_ms), size

    def _send_large(self, queued: Queued, size: int) -> None:
        """Take a record that may need several slots."""
        queue = self._queue
        slots = -(-size // SLOT_BYTES)
        if len(self._records) + slots > queue.slots:
            self._send_in_loop(queued, size)
            return
        try:
            self._records.extend((queued, *([None] * (slots - 1))))
            if queue.is_closed or not queue.is_awake:
                self._wake(queued)
        except BaseException:
            self._wake_later()
            raise

    def _send_in_loop(self, queued: Queued, size: int) -> None:
        """No slot is free: wait in the loop for memory."""
        self._raise_rejected()
        self._portal.call(self._queue.send, queued, size)

    def _wake(self, queued: Queued) -> None:
        """The loop sleeps, or has ended: then nobody takes the record any more."""
        queue = self._queue
        if queue.is_closed:
            with suppress(ValueError):  # the loop may have taken it over all the same
                self._records.remove(queued)
            raise ClientClosed(REFUSALS[State.ENDED])
        queue.is_awake = True
        self._portal.run_soon(queue.wake)

    def _wake_later(self) -> None:
        """An interrupt came between a record and the waking: wake now, or by the next record."""
        self._queue.is_awake = False
        with suppress(ClientClosed):
            self._portal.run_soon(self._queue.wake)

    def _raise_rejected(self) -> None:
        rejected = self._queue.take_rejected()
        if rejected is not None:
            raise rejected


@asynccontextmanager
async def _opened(producer: TrioProducer, queue: SendQueue) -> AsyncIterator[None]:
    """The producer with its queue: what was sent is taken over before the producer ends."""
    async with producer, in_background(queue.run):
        try:
            yield
        finally:
            queue.drain_and_close()
