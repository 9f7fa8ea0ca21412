"""The producer for asyncio programs.

`send` puts the record on a queue that a task in the client's loop empties, as the blocking producer
does (client/blocking/record_sender.py), and waits only where buffer.memory is used up, or that loop
is behind by thousands of records. It returns a future of the record's delivery, as aiokafka's does,
and `send_and_wait` waits for it, so that programs written for aiokafka read the same.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Generic, Self, Unpack

from minibroker.client.asyncio.callbacks import EventLoopCallback
from minibroker.client.asyncio.delivery_future import DeliveryFuture
from minibroker.client.asyncio.portal import AsyncioPortal
from minibroker.client.blocking.record_sender import RecordSender
from minibroker.client.committed_offsets import ConsumerGroupMetadata, OffsetsToCommit
from minibroker.client.errors import ClientClosed
from minibroker.client.option_types import ProducerConfig, ProducerKeywords
from minibroker.client.options import Seams, Servers
from minibroker.client.producer.delivery import CloseReport, Delivery, RecordDelivered
from minibroker.client.producer.producer import Producer as TrioProducer
from minibroker.client.producer.producer import ProducerStatistics
from minibroker.client.producer.raw_record import RecordOptions
from minibroker.client.producer.serializers import Serializers, check_no_tombstone
from minibroker.client.serialization import K, V
from minibroker.protocol.records.columns import Headers

# Records that a task sends before the event loop's other tasks run.
TURN_RECORDS: Final = 512


class Producer(Generic[K, V]):
    """As `minibroker.client.Producer`, from tasks of asyncio.

        async with Producer("127.0.0.1:9092", linger_ms=20) as producer:
            await producer.send("orders", b"value", key=b"customer 7")
        # Here all that was sent is stored, or DeliveryFailed was raised.

    Used with `async with`, or from `start()` to `close()`. One that is dropped without either gives
    up what it has not delivered, and says so (ResourceWarning, and the log).

    `on_delivery` and `on_statistics` are called in the event loop that started the producer, as by
    `call_soon`.
    """

    def __init__(
        self,
        bootstrap_servers: Servers | ProducerConfig = None,
        *,
        on_delivery: Callable[[Delivery], None] | None = None,
        on_statistics: Callable[[ProducerStatistics], object] | None = None,
        ledger: Path | str | None = None,
        key_serializer: Callable[[K], bytes] | None = None,
        value_serializer: Callable[[V], bytes] | None = None,
        seams: Seams | None = None,
        **options: Unpack[ProducerKeywords],
    ) -> None:
        self._on_delivery = None if on_delivery is None else EventLoopCallback(on_delivery)
        self._on_statistics = None if on_statistics is None else EventLoopCallback(on_statistics)
        self._client = TrioProducer(
            bootstrap_servers,
            on_delivery=self._on_delivery,
            on_statistics=self._on_statistics,
            ledger=ledger,
            seams=seams,
            **options,
        )
        serializers = Serializers(key_serializer, value_serializer)
        self._sender = _Sender(self._client, serializers, DeliveryFuture)
        self._queue = self._sender.queue
        self._portal = AsyncioPortal(self._sender.make_portal())
        self._turn = TURN_RECORDS

    async def send(
        self,
        topic: str,
        value: V | None,
        key: K | None = None,
        headers: Headers = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> DeliveryFuture:
        """Accept a record, and return a future of its delivery, which may be awaited or dropped.

        Waits where buffer.memory is used up, at most max.block.ms (then `ClientTimeout`). The
        record is sent in the background. `timestamp_ms` counts from 1970.

        Raises `TypeError` for an argument of the wrong type, `ValueError` for a record that is too
        large, `ClientClosed` after `close`, and what a serializer raises; also the error of an
        earlier record that could not be sent (to a partition that does not exist), once, if nobody
        asked its future. In each case the record was not accepted.
        """
        self._turn -= 1
        if self._turn <= 0:
            await self._end_turn()
        try:
            return self._sender.send(topic, value, key, headers, partition, timestamp_ms)
        except _NoFreeSlot as full:
            future, size = full.future, full.size
        await self._send_with_room(future, size)
        return future

    async def send_many(
        self,
        topic: str,
        values: Sequence[V],
        key: K | None = None,
        *,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> int:
        """Take all the values, waiting for room as `send` does; returns how many that were."""
        check_no_tombstone(values)
        send = self._sender.send
        for first in range(0, len(values), TURN_RECORDS):
            some = values[first : first + TURN_RECORDS]
            self._turn -= len(some)
            if self._turn <= 0:
                await self._end_turn()
            for value in some:  # no coroutine for each: it costs half as much as the sending
                try:
                    send(topic, value, key, (), partition, timestamp_ms)
                except _NoFreeSlot as full:
                    future, size = full.future, full.size
                else:
                    continue
                await self._send_with_room(future, size)
        return len(values)

    async def send_and_wait(
        self,
        topic: str,
        value: V | None,
        key: K | None = None,
        **options: Unpack[RecordOptions],
    ) -> RecordDelivered:
        """Send a record, wait until it is delivered, and return where it is stored.

        The options are `headers`, `partition` and `timestamp_ms`, as for `send`. Raises the error
        for which the record was not delivered.
        """
        return await (await self.send(topic, value, key, **options))

    async def flush(self) -> None:
        """Wait until all records taken before the call are delivered or given up.

        Raises `DeliveryFailed` for failures that nobody has seen, older ones too, and
        `ClientClosed` if the producer is closed meanwhile and gives records up.
        """
        await self._portal.call(self._queue.flush)
        self._sender.raise_rejected()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        """Send a transaction: commit it at the end of the block, or abort it after an exception.

            async with producer.transaction():
                await producer.send("payments", b"value")
                offsets = consumer.committable_offsets()
                await producer.send_offsets_to_transaction(offsets, consumer.group_metadata())

        Raises as the trio producer's. All tasks that send meanwhile send to the transaction.
        """
        await self.begin_transaction()
        try:
            yield
            await self.commit_transaction()
        except BaseException as error:
            with suppress(ClientClosed):
                await self._portal.call(self._queue.abort_after, error)
            raise

    async def begin_transaction(self) -> None:
        """Begin a transaction, to which all records belong that are sent from now on."""
        await self._portal.call(self._client.begin_transaction)

    async def send_offsets_to_transaction(
        self, offsets: OffsetsToCommit, group: ConsumerGroupMetadata
    ) -> None:
        """Commit offsets of a consumer's group with the transaction, as the trio producer does."""
        await self._portal.call(self._client.send_offsets_to_transaction, offsets, group)

    async def commit_transaction(self) -> None:
        """Wait until all records of the transaction are stored, and commit it.

        Raises as the trio producer's, and the error of a record that could not be sent (to a
        partition that does not exist), if nobody asked its future.
        """
        await self._portal.call(self._queue.commit_transaction)

    async def abort_transaction(self) -> None:
        """Give up the transaction and its records, without waiting for them."""
        await self._portal.call(self._queue.abort_transaction)

    async def close(self, timeout_s: float | None = None) -> CloseReport:
        """As the trio producer's: always returns within its time, and says what was given up.

        Tasks that wait for room or for a record get `ClientClosed`. May be repeated. A close that
        is cancelled gives up what is not delivered; the log says how much that is.
        """
        await self._portal.finish(self._queue.close, timeout_s)
        self._sender.raise_rejected()
        return self._queue.report

    def statistics(self) -> ProducerStatistics:
        """Counts of this moment."""
        return self._client.statistics()

    async def start(self) -> Self:
        """Begin, and return the producer: what `async with` does. `close` ends it."""
        for callback in (self._on_delivery, self._on_statistics):
            if callback is not None:
                callback.loop = asyncio.get_running_loop()
        await self._portal.open(self)
        return self

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Deliver what was sent, however long that takes; `sys.exit` in the block does so, too.

        Where the block was cancelled nothing is waited for: the log and stderr say how many records
        were dropped.
        """
        await self._portal.close(error)
        if error is None:
            self._sender.raise_rejected()

    # -- inside

    async def _end_turn(self) -> None:
        """Let the event loop's other tasks run."""
        self._turn = TURN_RECORDS
        await asyncio.sleep(0)

    async def _send_with_room(self, future: DeliveryFuture, size: int) -> None:
        """Take a record that found no free slot, once there is memory."""
        self._sender.raise_rejected()
        await self._portal.call(self._queue.send, future, size)


class _NoFreeSlot(Exception):
    """There is no free slot for this record."""

    def __init__(self, future: DeliveryFuture, size: int) -> None:
        self.future = future
        self.size = size


class _Sender(RecordSender[DeliveryFuture, K, V]):
    """Raises `_NoFreeSlot` where a thread would wait."""

    def _send_in_loop(self, future: DeliveryFuture, size: int) -> None:
        raise _NoFreeSlot(future, size)
