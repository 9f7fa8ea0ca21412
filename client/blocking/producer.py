"""The producer for programs without a trio loop.

`send` puts the record on a queue that a task in the loop empties (client/blocking/send_queue.py),
and waits only where buffer.memory is used up, or the loop is behind by thousands of records. It
returns a future (client/blocking/delivery_future.py), which may be dropped.

`send` raises the errors that it can detect at once (wrong type, too large). The record's future
has what the loop detects (a partition that does not exist); if nobody asks it, the next `send`,
`flush` or `close` raises that.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Self, Unpack

from minibroker.client.blocking.delivery_future import DeliveryFuture
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


class Producer(RecordSender[DeliveryFuture, K, V]):
    """As `minibroker.client.Producer`, with plain methods, from any thread.

        with Producer("127.0.0.1:9092", linger_ms=20) as producer:
            producer.send("orders", b"value", key=b"customer 7")
        # Here all that was sent is stored, or DeliveryFailed was raised.

    Used with `with`, or from `start()` to `close()`. One that is dropped without either gives up
    what it has not delivered, and says so (ResourceWarning, and the log).

    `on_delivery` and `on_statistics` are called in the thread of the loop: there `send` raises
    `ClientError` if it would have to wait, and `send_and_wait`, `flush` and `close` always do.

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
        key_serializer: Callable[[K], bytes] | None = None,
        value_serializer: Callable[[V], bytes] | None = None,
        seams: Seams | None = None,
        **options: Unpack[ProducerKeywords],
    ) -> None:
        producer = TrioProducer(
            bootstrap_servers,
            on_delivery=on_delivery,
            on_statistics=on_statistics,
            ledger=ledger,
            seams=seams,
            **options,
        )
        super().__init__(producer, Serializers(key_serializer, value_serializer), DeliveryFuture)
        self._portal = self.make_portal()

    def send_many(
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
        for value in values:
            self.send(topic, value, key, (), partition, timestamp_ms)
        return len(values)

    def send_and_wait(
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
        self._portal.check_outside()
        return self.send(topic, value, key, **options).result()

    def flush(self) -> None:
        """Wait until all records taken before the call are delivered or given up.

        Raises `DeliveryFailed` for failures that nobody has seen, older ones too, and
        `ClientClosed` if the producer is closed meanwhile and gives records up.
        """
        self._portal.call(self.queue.flush)
        self.raise_rejected()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Send a transaction: commit it at the end of the block, or abort it after an exception.

            with producer.transaction():
                producer.send("payments", b"value")
                offsets = consumer.committable_offsets()
                producer.send_offsets_to_transaction(offsets, consumer.group_metadata())

        Raises as the trio producer's. All threads that send meanwhile send to the transaction.
        """
        self.begin_transaction()
        try:
            yield
            self.commit_transaction()
        except BaseException as error:
            with suppress(ClientClosed):
                self._portal.call(self.queue.abort_after, error)
            raise

    def begin_transaction(self) -> None:
        """Begin a transaction, to which all records belong that are sent from now on."""
        self._portal.call(self._producer.begin_transaction)

    def send_offsets_to_transaction(
        self, offsets: OffsetsToCommit, group: ConsumerGroupMetadata
    ) -> None:
        """Commit offsets of a consumer's group with the transaction, as the trio producer does."""
        self._portal.call(self._producer.send_offsets_to_transaction, offsets, group)

    def commit_transaction(self) -> None:
        """Wait until all records of the transaction are stored, and commit it.

        Raises as the trio producer's, and the error of a record that could not be sent (to a
        partition that does not exist), if nobody asked its future.
        """
        self._portal.call(self.queue.commit_transaction)

    def abort_transaction(self) -> None:
        """Give up the transaction and its records, without waiting for them."""
        self._portal.call(self.queue.abort_transaction)

    def close(self, timeout_s: float | None = None) -> CloseReport:
        """As the trio producer's: always returns within its time, and says what was given up.

        Threads that wait in `send` or `send_and_wait` get `ClientClosed`. May be repeated.
        """
        self._portal.finish(self.queue.close, timeout_s)
        self.raise_rejected()
        return self.queue.report

    def statistics(self) -> ProducerStatistics:
        """Counts of this moment."""
        return self._producer.statistics()

    def start(self) -> Self:
        """Begin, and return the producer: what `with` does. `close` ends it."""
        self._portal.open(self)
        return self

    def __enter__(self) -> Self:
        return self.start()

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
            self.raise_rejected()

    # -- inside

    def _send_in_loop(self, future: DeliveryFuture, size: int) -> None:
        self.raise_rejected()
        self._portal.call(self.queue.send, future, size)
