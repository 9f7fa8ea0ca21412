"""The part of `send` that does not wait: it passes records to a producer's loop, from any thread.

It runs hundreds of thousands of times a second, so its common case, small bytes and a free slot, is
one append to the queue (client/blocking/send_queue.py). Without a free slot the two kinds of
producers differ: a thread waits in `_send_in_loop`, which raises for an asyncio task.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, Generic

from minibroker.client.blocking.delivery_future import OnRecordDelivery
from minibroker.client.blocking.portal import REFUSALS, Portal, State
from minibroker.client.blocking.send_queue import SLOT_BYTES, SMALL_BYTES, F, SendQueue
from minibroker.client.errors import ClientClosed
from minibroker.client.net.cluster import in_background
from minibroker.client.producer.producer import Producer
from minibroker.client.producer.raw_record import check_record
from minibroker.client.producer.serializers import Serializers
from minibroker.client.serialization import K, V
from minibroker.protocol.records.columns import Headers

_len: Callable[[Any], int] = len  # mypy does not see that a key is bytes, whatever its type


class RecordSender(Generic[F, K, V]):
    """`send` for one producer, with futures of one kind."""

    def __init__(self, producer: Producer, serializers: Serializers[K, V], kind: type[F]) -> None:
        self._producer = producer
        self._serializers = serializers
        # Key and value of at most this size together need no further check.
        self._small_bytes = -1 if serializers else SMALL_BYTES
        self.queue = SendQueue(producer, kind)
        self._records = self.queue.records
        self._unheld = self.queue.unheld

    def make_portal(self) -> Portal:
        """Return the portal of the loop that sends the records."""
        manager = _opened(self._producer, self.queue)
        portal = Portal("minibroker-producer", manager, self.queue.close_to_senders)
        self.queue.portal = portal
        return portal

    def send(
        self,
        topic: str,
        value: V | None,
        key: K | None = None,
        headers: Headers = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
        *,
        on_delivery: OnRecordDelivery | None = None,
    ) -> F:
        """Take a record; wait for room, at most max.block.ms (then `ClientTimeout`).

        The future tells what becomes of the record, and may be dropped. `on_delivery` is called in
        the client's loop with (None, `RecordDelivered`) or (the error, None). Both cost more than
        sending. The producer's own `on_delivery` is called once a batch, which costs less.
        """
        queue = self.queue
        try:
            future = self._unheld.pop()
        except IndexError:
            future = queue.new_future()
        if (
            type(value) is bytes
            and not headers
            and on_delivery is None
            and (
                len(value) <= self._small_bytes
                if key is None
                else type(key) is bytes and len(value) + _len(key) <= self._small_bytes
            )
        ):
            future.topic = topic
            future.value = value
            future.key = key  # type: ignore[assignment]
            future.partition = partition
            future.timestamp_ms = timestamp_ms
            if len(self._records) >= queue.slots:
                self._send_in_loop(future, SMALL_BYTES)
                return future
            try:
                self._records.append(future)
                if queue.is_closed or not queue.is_awake:
                    self._wake(future)
            except BaseException:
                self._wake_later()
                raise
            return future
        raw = self._serializers.serialize(timestamp_ms, key, value, headers)
        record = check_record(topic, raw)
        size = self._producer.check_size(topic, record)
        future.topic, future.partition = topic, partition
        future.timestamp_ms, future.key, future.value, future.headers = record
        if on_delivery is None:
            self._send_any(future, size)
        else:
            self._send_with_callback(future, size, on_delivery)
        return future

    def _send_with_callback(self, future: F, size: int, on_delivery: OnRecordDelivery) -> None:
        """Send a record; its callback is called even if the future is dropped."""
        future.add_callback(partial(future.tell, on_delivery))
        try:
            self._send_any(future, size)
        except BaseException:
            self.queue.watched.discard(future)
            raise

    def _send_any(self, future: F, size: int) -> None:
        """Send a record that may need several slots."""
        queue = self.queue
        slots = -(-size // SLOT_BYTES)
        if len(self._records) + slots > queue.slots:
            self._send_in_loop(future, size)
            return
        try:
            self._records.extend((future, *([None] * (slots - 1))))
            if queue.is_closed or not queue.is_awake:
                self._wake(future)
        except BaseException:
            self._wake_later()
            raise

    def _send_in_loop(self, future: F, size: int) -> None:
        """Wait in the loop for memory, because no slot is free; or have the caller wait."""
        raise AssertionError("each kind of waiting has its own")

    def _wake(self, future: F) -> None:
        """Wake the loop. If it has ended, take the record back and raise `ClientClosed`."""
        queue = self.queue
        if queue.is_closed:
            with suppress(ValueError):  # the loop may have taken it before its end
                self._records.remove(future)
            raise ClientClosed(REFUSALS[State.ENDED])
        queue.is_awake = True
        self.queue.portal.run_soon(queue.wake)

    def _wake_later(self) -> None:
        """An interrupt came between a record and the waking: wake now, or with the next record."""
        self.queue.is_awake = False
        with suppress(ClientClosed):
            self.queue.portal.run_soon(self.queue.wake)

    def raise_rejected(self) -> None:
        """Raise the error of a record that could not be sent, once, unless its future was asked."""
        rejected = self.queue.pop_rejected()
        if rejected is not None:
            raise rejected


@asynccontextmanager
async def _opened(producer: Producer, queue: SendQueue[F]) -> AsyncIterator[None]:
    """The producer with its queue, which is emptied before the producer ends."""
    try:
        async with producer, in_background(queue.run):
            try:
                yield
            finally:
                queue.drain_and_close()
    finally:
        queue.fail_left()
