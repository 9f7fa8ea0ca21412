"""Record batches on their way to a broker, and the queue of each partition.

A record is first in an `OpenBatch`: a list, because appending to a list is the fastest operation in
Python, and it happens a million times a second. A plain record, which has nothing but a value, is
stored as its value: a tuple would take as much time again, and make work for the garbage collector.
Its time is the batch's. Sealing turns the list into the bytes of a record batch: a `Batch`, which
is sent, sent again, split and completed.

A `PartitionQueue` is one partition's queue. Three numbers keep its order:

* `position`: how many records the queue accepted before this batch. It never changes and never
  wraps; the parts of a split batch have it too. The queue and the batches in flight are sorted by
  it.
* `sequence`: the producer sequence on the wire, given when a batch is first drained. It changes
  only when the queue is renumbered (sequence_numbers.py), which happens with nothing in flight.
* `acked_position`: the end of the last acknowledged batch in the order of positions.

`root` ties the parts of a split batch together: a caller that waits for the batch waits for all
parts.
"""

import logging
from collections import deque
from typing import Any, Final, NamedTuple, Protocol, cast

from minibroker.client.producer.raw_record import RawRecord
from minibroker.protocol.constants import NO_EPOCH, NO_NODE, NO_SEQUENCE, NO_TIMESTAMP
from minibroker.protocol.records.batch import read_header
from minibroker.protocol.records.record import (
    RecordToSend,
    decode_records,
    encode_batch,
    encode_values,
)
from minibroker.protocol.types import TopicPartition

log = logging.getLogger("minibroker.client")


class ProducerIdAndEpoch(NamedTuple):
    """The producer id and epoch with which a producer numbers its batches."""

    producer_id: int
    epoch: int


class Watcher(Protocol):
    """An object that gets the outcome of one record; the producer calls it, not this module.

    `timestamp` is set to the record's time (ms since 1970) when the producer accepts it.
    """

    timestamp: int

    def complete(self, delivery: Any, index: int, /) -> None:
        """Set the outcome. `delivery` is the batch's, `index` the record's number in it."""


class OpenBatch:
    """An unsealed batch of one partition. `room` may only be used up to 0."""

    __slots__ = (
        "explicit_partitions",
        "is_plain",
        "opened_at",
        "records",
        "reserved",
        "room",
        "timestamp_ms",
        "watchers",
    )

    def __init__(self, reserved: int, room: int, now: float, now_ms: int) -> None:
        self.records: list[bytes | RecordToSend] = []
        self.is_plain = True  # no record is a tuple
        self.room = room  # bytes that may still be added
        self.reserved = reserved  # bytes of buffer.memory held
        self.opened_at = now
        self.timestamp_ms = now_ms  # of the records without one
        self.watchers: list[tuple[int, Watcher]] | None = None  # (index, watcher)
        # By index, the partition of a record that named one before the topic's were known.
        self.explicit_partitions: dict[int, int] | None = None

    def append(self, record: RawRecord) -> None:
        """Append any record; the caller reduces `room`."""
        timestamp_ms, key, value, headers = record
        if timestamp_ms is None:
            timestamp_ms = self.timestamp_ms
            if key is None and value is not None and not headers:
                self.records.append(value)
                return
        self.is_plain = False
        self.records.append((timestamp_ms, key, value, headers))

    def set_partition_of_last(self, partition: int) -> None:
        """Set the partition of the last record, before the topic's partitions are known."""
        if self.explicit_partitions is None:
            self.explicit_partitions = {}
        self.explicit_partitions[len(self.records) - 1] = partition

    def encode(self, compression: int, *, with_crc: bool = True) -> bytearray:
        """Return the record batch of all records.

        Without `with_crc` it may not be sent before `SequenceNumbers.assign` has stamped it: the
        CRC covers the producer id and the sequence, so it is computed once, after them.
        """
        if self.is_plain:
            values = cast("list[bytes]", self.records)
            return encode_values(
                values, self.timestamp_ms, compression=compression, with_crc=with_crc
            )
        time = self.timestamp_ms
        records = [
            (time, None, record, ()) if isinstance(record, bytes) else record
            for record in self.records
        ]
        return encode_batch(records, compression=compression, with_crc=with_crc)


# The value if no batch is open: no record fits, so one comparison covers both cases.
NO_BATCH: Final = OpenBatch(0, -1, 0.0, NO_TIMESTAMP)


class Batch:
    """A sealed batch: the bytes of a record batch, and its progress."""

    __slots__ = (
        "_root",
        "attempts",
        "data",
        "deadline",
        "explicit_partitions",
        "identity",
        "incomplete_parts",
        "is_completed",
        "leader_epoch",
        "position",
        "queue",
        "record_count",
        "reserved",
        "retry_at",
        "sequence",
        "topic_id",
        "watchers",
    )

    def __init__(
        self, queue: "PartitionQueue", data: bytearray, count: int, deadline: float
    ) -> None:
        self.queue = queue
        self.data = data
        self.record_count = count
        self.deadline = deadline  # monotonic seconds: the end of delivery.timeout.ms
        self.position = 0
        self.identity: ProducerIdAndEpoch | None = None  # None: not numbered yet
        self.sequence = NO_SEQUENCE
        self.attempts = 0  # times sent
        self.retry_at = 0.0  # monotonic seconds: not sent before
        self.leader_epoch = NO_EPOCH  # of the leader it was last sent to
        self.topic_id = b""  # of the topic it was last sent for; empty: not known
        self.reserved = len(data)
        self.is_completed = False
        self.watchers: list[tuple[int, Watcher]] | None = None
        self.explicit_partitions: dict[int, int] | None = None
        self._root: Batch | None = None  # not itself: a cycle keeps `data` alive
        self.incomplete_parts = 1  # counts in a root only

    @property
    def root(self) -> "Batch":
        """The batch of which this one is a part, or itself."""
        return self._root or self

    def split(self, compression: int, *, with_crc: bool) -> list["Batch"]:
        """Split the batch in two halves. `with_crc` as in `encode`."""
        assert self.record_count > 1, "a single record cannot be split"
        header = read_header(self.data)
        records: list[RecordToSend] = [
            (record.timestamp, record.key, record.value, record.headers)
            for record in decode_records(self.data, header)
        ]
        middle = self.record_count // 2
        parts = []
        for start, end in ((0, middle), (middle, self.record_count)):
            data = encode_batch(records[start:end], compression=compression, with_crc=with_crc)
            part = Batch(self.queue, data, end - start, self.deadline)
            part.position = self.position + start
            part.attempts = self.attempts - 1  # the try that was too large does not count
            part._root = self.root
            part.watchers = [
                (index - start, watcher)
                for index, watcher in self.watchers or ()
                if start <= index < end
            ]
            parts.append(part)
        self.root.incomplete_parts += 1
        return parts


class PartitionQueue:
    """One partition's queue. Written only by the accumulator and its sequence numbers."""

    __slots__ = (
        "acked_position",
        "expected_sequence",
        "identity",
        "in_flight",
        "is_unresolved",
        "last_error",
        "must_renumber",
        "next_position",
        "next_sequence",
        "node_id",
        "open_batch",
        "sealed",
        "topic_partition",
    )

    def __init__(self, topic_partition: TopicPartition) -> None:
        self.topic_partition = topic_partition
        self.open_batch = NO_BATCH
        self.sealed: deque[Batch] = deque()  # sealed, not in flight; by position
        self.in_flight: list[Batch] = []  # by position, all on the connection to `node_id`
        self.node_id = NO_NODE
        self.next_position = 0
        self.acked_position = 0
        # Idempotence (sequence_numbers.py):
        self.identity: ProducerIdAndEpoch | None = None
        self.next_sequence = 0  # of the next batch that is drained for the first time
        self.expected_sequence = 0  # the one after the last acknowledged
        self.is_unresolved = False  # a batch that was sent has failed, and may have been written
        self.must_renumber = False  # as soon as nothing is in flight
        self.last_error = ""  # the last error of its batches; "" while they succeed

    def record_error(self, error: str, *, is_usual: bool = False) -> None:
        """Keep why a batch must be sent again; log it when it changes, unless it is usual."""
        if error != self.last_error:
            if not is_usual:
                log.warning("%s: %s; trying again", self.topic_partition, error)
            self.last_error = error

    def requeue(self, batch: Batch) -> None:
        """Insert a batch that must be sent (again) at its position."""
        queue = self.sealed
        index = 0
        while index < len(queue) and queue[index].position < batch.position:
            index += 1
        queue.insert(index, batch)


class CompletedBatch(NamedTuple):
    """A batch's outcome: with `error` None the broker has it, at `base_offset`.

    The offset is -1 if the broker did not say it (acks=0, or the answer to a duplicate).
    """

    batch: Batch
    base_offset: int
    error: Exception | None
