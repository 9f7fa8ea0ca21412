"""One record's delivery, as a light future.

`send` returns one for each record, hundreds of thousands of times a second, and nearly all are
dropped at once. So a future that was dropped before the loop took its record costs almost nothing:
the loop sees by the reference count that no caller can ask any more, sends the record without a
watcher, and uses the future for another record (client/blocking/send_queue.py). Only a future that
is kept, or has a callback, is completed: that costs several times more than sending.

The future carries its record to the loop, so that a `send` makes no new object: the garbage
collector runs after every 700 new ones, and visits all that wait in the queue. With a tuple for
each record it took 13 to 27 % of the throughput (`make bench`, rows "blocking").

Only the loop uses the attributes other than `queue`, so no lock is needed. A thread that has to
wait registers a callback in the loop. A failure that was asked for counts as seen: `flush` does not
raise it again.
"""

import logging
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

from minibroker.client.blocking.portal import BlockingAnswer, Portal
from minibroker.client.errors import ClientClosed
from minibroker.client.producer.delivery import Delivery, RecordDelivered
from minibroker.client.producer.raw_record import RawRecord
from minibroker.protocol.records.columns import Headers

log = logging.getLogger("minibroker.client")

# Called with (None, the record's location) or (the error, None).
OnRecordDelivery: TypeAlias = Callable[[Exception | None, RecordDelivered | None], object]


class Queue(Protocol):
    """What a future needs of the queue that its record went through (send_queue.py)."""

    portal: Portal
    watched: set[Any]  # futures that have callbacks, and are not done

    def mark_seen(self, delivery: Delivery) -> None:
        """Record that a caller knows why one record of the delivery failed."""


class RecordFuture:
    """The common part of both kinds of futures.

    The sender stores the record in `topic`, `partition`, `key`, `value`, `headers` and
    `timestamp_ms`. `timestamp` is set when the producer accepts it.
    """

    __slots__ = (
        "_callbacks",
        "_delivery",
        "_index",
        "_is_seen",
        "headers",
        "key",
        "partition",
        "queue",
        "timestamp",
        "timestamp_ms",
        "topic",
        "value",
    )

    topic: str
    partition: int | None
    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp_ms: int | None
    timestamp: int
    _delivery: Delivery
    _index: int
    _callbacks: list[Callable[[], object]]
    _is_seen: bool

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.key = self.value = None
        self.headers = ()

    def done(self) -> bool:
        """Whether the outcome of the record is known."""
        return hasattr(self, "_delivery")

    # -- in the loop

    def take_record(self) -> RawRecord:
        """Return the record and forget it."""
        record = (self.timestamp_ms, self.key, self.value, self.headers)
        self.key = self.value = None
        self.headers = ()
        return record

    def complete(self, delivery: Delivery, index: int) -> None:
        """Set the outcome; the record is number `index` in the delivery's batch."""
        self._index = index
        self._delivery = delivery
        self.queue.watched.discard(self)
        if hasattr(self, "_callbacks"):
            callbacks = self._callbacks
            del self._callbacks  # each record would make a cycle with this future
            for callback in callbacks:
                callback()

    def when_done(self, callback: Callable[[], object]) -> None:
        """Call a function once the future is done, or now. It must not raise."""
        if self.done():
            callback()
        else:
            self.add_callback(callback)

    def add_callback(self, callback: Callable[[], object]) -> None:
        """Do the same for a record that the loop has not taken yet; then from any thread."""
        if not hasattr(self, "_callbacks"):
            self._callbacks = []
        self._callbacks.append(callback)
        self.queue.watched.add(self)  # its outcome is set, even if the future is dropped

    def mark_seen(self) -> None:
        """Record that a caller knows why the record was not delivered."""
        if not hasattr(self, "_is_seen"):
            self._is_seen = True
            self.queue.mark_seen(self._delivery)

    def tell(self, on_delivery: OnRecordDelivery) -> None:
        """Call a callback with the outcome; log what it raises."""
        error = self._delivery.error
        try:
            if error is None:
                on_delivery(None, self._delivered())
            else:
                self.mark_seen()
                on_delivery(error, None)
        except Exception:
            log.exception("a callback of a record failed")

    # -- inside

    def _delivered(self) -> RecordDelivered:
        delivery = self._delivery
        offset = delivery.offset_of(self._index)
        return RecordDelivered(delivery.topic, delivery.partition, offset, self.timestamp)

    def _error_seen(self) -> Exception | None:
        """Return the error of a future that is done; it counts as seen."""
        error = self._delivery.error
        if error is not None:
            self._in_loop(self.mark_seen)
        return error

    def _in_loop(self, function: Callable[[], None]) -> bool:
        """Have a function called in the loop. Return False if the loop has ended; then the future
        is done."""
        try:
            self.queue.portal.run_soon(function)
        except ClientClosed:  # the outcomes of sent records are set before the loop ends
            if not self.done():
                raise
            return False
        return True


class DeliveryFuture(RecordFuture):
    """The outcome of one record, with the methods of `concurrent.futures.Future`."""

    __slots__ = ()

    def result(self, timeout_s: float | None = None) -> RecordDelivered:
        """Wait until the record is delivered; raises why it was not, and `TimeoutError`.

        Raises `ClientClosed` in the child of a fork, and `ClientError` in a callback that runs in
        the client's loop, if it would have to wait.
        """
        error = self.exception(timeout_s)
        if error is not None:
            try:
                raise error
            finally:
                del error, self  # the traceback would refer to both
        return self._delivered()

    def exception(self, timeout_s: float | None = None) -> Exception | None:
        """Wait in the same way, and return why the record was not delivered; None if it was."""
        if not self.done():
            self.queue.portal.check_outside()
            answer: BlockingAnswer[None] = BlockingAnswer()
            if self._in_loop(lambda: self.when_done(lambda: answer.set_result(None))):
                answer.wait_until_set(timeout_s)
            if not self.done():
                raise TimeoutError(f"not delivered within {timeout_s:g} s")
        return self._error_seen()

    def add_done_callback(self, callback: "Callable[[DeliveryFuture], object]") -> None:
        """Call it with this future once it is done: in the client's loop, so it must not block.

        What it raises is logged.
        """

        def call() -> None:
            try:
                callback(self)
            except Exception:
                log.exception("a callback of a record failed")

        if not self._in_loop(lambda: self.when_done(call)):
            call()
