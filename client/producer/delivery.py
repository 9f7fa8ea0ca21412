"""The outcomes of records, reported per batch: a future for each record would cost more than
sending.

A `Delivery` is one batch's outcome. An `on_delivery` callback of the producer gets every one. A
call about a single record (`send_and_wait`, `send_for_delivery`) has a `PendingDelivery`.
`Failures` keeps a failure that neither of them saw, until `flush` or the producer's end raises it:
no record is lost silently. It keeps the first hundred such deliveries, and the count of all their
records.
"""

import logging
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import trio

from minibroker.client.producer.batches import Batch, CompletedBatch
from minibroker.protocol.constants import NO_OFFSET, NO_TIMESTAMP
from minibroker.protocol.records.batch import read_header
from minibroker.protocol.records.record import Record, decode_records

DELIVERIES_KEPT_MAX: Final = 100

log = logging.getLogger("minibroker.client")


@dataclass(frozen=True, slots=True, eq=False)
class Delivery:
    """One batch that was delivered (`error` is None) or given up.

    `partition` is negative if none was chosen yet. `base_offset` is -1 if it is not known: after a
    failure, with acks=0, and after a retry whose first try the broker no longer remembers.
    `topic_id` tells the topic from earlier or later ones of its name; empty if it is not known.
    """

    topic: str
    partition: int
    base_offset: int
    record_count: int
    error: Exception | None
    data: bytearray = field(repr=False)
    topic_id: bytes = b""

    def records(self) -> Iterator[Record]:
        """The batch's records, with their offsets if these are known, else -1."""
        for index, record in enumerate(decode_records(self.data, read_header(self.data))):
            yield record._replace(offset=self.offset_of(index))

    def offset_of(self, index: int) -> int:
        """Return the offset of a record of the batch."""
        return NO_OFFSET if self.base_offset == NO_OFFSET else self.base_offset + index


class RecordDelivered(NamedTuple):
    """Where one record is stored; `offset` is -1 if the broker did not say it.

    `timestamp` is the record's time as it was sent, in ms since 1970.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int = NO_TIMESTAMP


class CloseReport(NamedTuple):
    """The counts of a closed producer, in records.

    `failed` were given up before the end. `undelivered` were neither acknowledged nor given up when
    the producer closed: a broker may still have got them.
    """

    delivered: int
    failed: int
    undelivered: int

    @property
    def is_complete(self) -> bool:
        """Whether every accepted record was delivered."""
        return not self.failed and not self.undelivered


class Failures:
    """Failed deliveries, with the count of their records that no caller has asked about."""

    def __init__(self) -> None:
        self._unseen: dict[Delivery, int] = {}
        self._more = 0  # the records of failures beyond those kept

    def add(self, delivery: Delivery) -> None:
        """Add a failure that no callback saw."""
        if len(self._unseen) < DELIVERIES_KEPT_MAX:
            self._unseen[delivery] = delivery.record_count
        else:
            self._more += delivery.record_count

    def mark_seen(self, delivery: Delivery) -> None:
        """Record that a caller knows the outcome of one of its records."""
        unseen = self._unseen.get(delivery)
        if unseen == 1:
            del self._unseen[delivery]
        elif unseen is not None:
            self._unseen[delivery] = unseen - 1

    def pop_unseen(self) -> tuple[list[Delivery], int]:
        """Return the unseen failures, which count as seen now: the kept deliveries, and the count
        of records."""
        deliveries, records = list(self._unseen), sum(self._unseen.values()) + self._more
        self._unseen.clear()
        self._more = 0
        return deliveries, records


class PendingDelivery:
    """One record's outcome, for a caller. The wait for it may be cancelled and begun again."""

    __slots__ = ("_arrived", "_failures", "_index", "delivery", "timestamp")

    def __init__(self, failures: Failures) -> None:
        self._failures = failures
        self._arrived: trio.Event | None = None  # made by a caller that has to wait
        self._index = 0
        self.timestamp = NO_TIMESTAMP
        self.delivery: Delivery | None = None  # the batch's, once it is completed

    def complete(self, delivery: Delivery, index: int) -> None:
        """Set the outcome: the record is number `index` in the delivery's batch. The producer calls
        it."""
        self.delivery = delivery
        self._index = index
        if self._arrived is not None:
            self._arrived.set()

    async def wait(self) -> RecordDelivered:
        """Wait until the record is delivered; raises its error."""
        while self.delivery is None:
            if self._arrived is None:
                self._arrived = trio.Event()
            await self._arrived.wait()
        delivery = self.delivery
        if delivery.error is not None:
            self._failures.mark_seen(delivery)
            raise delivery.error
        offset = delivery.offset_of(self._index)
        return RecordDelivered(delivery.topic, delivery.partition, offset, self.timestamp)


class DeliveryReporter:
    """Counts the outcomes of a producer's records, and reports them.

    Tasks that wait for completed batches wait in `progress`.
    """

    def __init__(self, on_delivery: Callable[[Delivery], None] | None) -> None:
        self._on_delivery = on_delivery
        self.record: Callable[[Delivery], None] | None = None  # the ledger's, if there is one
        self.failures = Failures()
        self.progress = trio.lowlevel.ParkingLot()
        self.delivered = 0  # records
        self.failed = 0

    def report(self, completed: list[CompletedBatch]) -> None:
        """Count completed batches, and report them."""
        is_listening = self._on_delivery is not None or self.record is not None
        try:
            for batch, base_offset, error in completed:
                if error is None:
                    self.delivered += batch.record_count
                else:
                    self.failed += batch.record_count
                if is_listening or error is not None or batch.watchers:
                    self._report(batch, base_offset, error)
        finally:  # also if a callback raises, because a caller must not wait for ever
            self.progress.unpark_all()

    def _report(self, batch: Batch, base_offset: int, error: Exception | None) -> None:
        topic, partition = batch.queue.topic_partition
        count = batch.record_count
        delivery = Delivery(topic, partition, base_offset, count, error, batch.data, batch.topic_id)
        if self.record is not None:
            self.record(delivery)
        if self._on_delivery is not None:
            self._on_delivery(delivery)
        elif error is not None:
            self.failures.add(delivery)
        for index, watcher in batch.watchers or ():
            watcher.complete(delivery, index)


def say_dropped(record_count: int) -> None:
    """Say how many records were dropped: in the log, and on stderr if the log goes elsewhere,
    because the program may be ending."""
    records = "1 record was" if record_count == 1 else f"{record_count} records were"
    text = f"{records} dropped: the producer ended before they were acknowledged"
    text += " (a broker may have got some)"
    log.error("%s", text)
    if not _logs_to_stderr():
        print(f"minibroker: {text}", file=sys.stderr)


def _logs_to_stderr() -> bool:
    logger: logging.Logger | None = log
    while logger is not None:
        if any(getattr(each, "stream", None) is sys.stderr for each in logger.handlers):
            return True
        logger = logger.parent if logger.propagate else None
    return not log.hasHandlers()  # then logging's last resort writes there
