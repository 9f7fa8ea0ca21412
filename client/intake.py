"""Taking records: the part of a producer that runs a million times a second.

`send_nowait` does the common case itself: bytes, a topic and key that were seen before, room in
the open batch. That is one look-up, one comparison and one append to a list; everything else is
`_append`. `send_many` does per batch what the others do per record. What is slow on purpose stays
out of here: records become bytes when their batch is sealed (client/accumulator.py), partitions
are chosen per batch for records without keys and remembered for keys (client/routes.py).

The clock is read once for each batch, when it is opened, and that is the time of its records that
come without one: it is up to linger.ms too early, more only while the program itself keeps the
loop from running. Reading it for every record costs more than taking the record.

Nothing here waits; client/producer.py does.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Final

import trio

from minibroker.client.accumulator import Accumulator
from minibroker.client.batches import (
    RECORD_OVERHEAD_BYTES,
    OpenBatch,
    RawRecord,
    Watcher,
)
from minibroker.client.delivery import Outcomes, PendingDelivery
from minibroker.client.errors import BufferFull, ClientClosed
from minibroker.client.options import ProducerOptions
from minibroker.client.routes import Route, Routes, record_bytes
from minibroker.protocol.constants import BATCH_HEADER_BYTES, INT64_MAX
from minibroker.protocol.records.columns import Headers

# Beyond what `record_bytes` counts, for a record of any size in a batch of its own.
_OVERHEAD_BYTES_MAX: Final = BATCH_HEADER_BYTES + 32


class Intake:
    """Takes records into an accumulator. `wake` is called when a batch was opened or sealed."""

    def __init__(
        self,
        options: ProducerOptions,
        routes: Routes,
        outcomes: Outcomes,
        wall_ms: Callable[[], int],
        wake: Callable[[], None],
    ) -> None:
        self._options = options
        self._routes = routes
        self._accumulator: Accumulator = routes.accumulator
        self._outcomes = outcomes
        self._wall_ms = wall_ms
        self._wake = wake
        # What `send_nowait` looks at; empty while nothing may be taken.
        self._by_topic: dict[str, Route] = {}
        self._is_open = False
        # Whether buffer.memory is enforced here; the blocking producer does so in its own queue.
        self.enforces_buffer_memory = True
        self._has_news = False  # a batch was opened, and the last one sealed, since `send` looked
        # By the last record that found no room; a record mostly opens a batch of full size.
        self._bytes_wanted = self._accumulator.limits.batch_bytes
        self._record_bytes_max = (
            min(options.max_request_size, options.buffer_memory) - _OVERHEAD_BYTES_MAX
        )

    def send_nowait(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        headers: Headers = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> None:
        """Take a record, or raise `BufferFull`; then `await room()`.

        A record without a value is a tombstone. Without `timestamp_ms` (since 1970) its time is
        when its batch was begun, less than linger.ms ago.
        Raises `TypeError` for what is not bytes and `ValueError` for what can never be sent.
        """
        try:
            size = len(value) + RECORD_OVERHEAD_BYTES  # type: ignore[arg-type]
            if key is None:
                batch = self._by_topic[topic].sticky.open
            else:
                batch = self._by_topic[topic].by_key[key].open
                size += len(key)
            if (
                batch.room >= size
                and type(value) is bytes
                and partition is None
                and timestamp_ms is None
                and not headers
            ):
                batch.room -= size
                if key is None:
                    batch.records.append(value)
                else:
                    batch.is_plain = False
                    batch.records.append((batch.timestamp_ms, key, value, ()))
                return
        except (KeyError, TypeError):
            pass  # unusual, or wrong: both are told apart there
        self._append(topic, partition, check_record(topic, (timestamp_ms, key, value, headers)))

    def send_many(
        self,
        topic: str,
        values: Sequence[bytes],
        key: bytes | None = None,
        *,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> int:
        """Take as many of the values as there is room for, from the first on; returns how many."""
        if set(map(type, values)) - {bytes}:
            values = [check_bytes(value, "a value") or b"" for value in values]
        check_record(topic, (timestamp_ms, key, None, ()))
        overhead = RECORD_OVERHEAD_BYTES + len(key or b"")
        ends = list(accumulate(map(overhead.__add__, map(len, values))))
        taken = 0
        while taken < len(values):
            # The first record of each batch goes the long way, which checks sizes and opens.
            try:
                batch = self._append(topic, partition, (timestamp_ms, key, values[taken], ()))
            except BufferFull:
                break
            end = ends[taken]
            fit = taken + 1
            if batch.named is None:
                fit = bisect_right(ends, end + batch.room, fit)
            if key is None and timestamp_ms is None:
                batch.records += values[taken + 1 : fit]
            else:
                for value in values[taken + 1 : fit]:
                    batch.append((timestamp_ms, key, value, ()))
            batch.room -= ends[fit - 1] - end
            taken = fit
        return taken

    def send_for_delivery(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        *,
        headers: Headers = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> PendingDelivery:
        """As `send_nowait`, for who wants to know of this one record; costs several times more."""
        pending = PendingDelivery(self._outcomes.failures)
        record = check_record(topic, (timestamp_ms, key, value, headers))
        self._append(topic, partition, record, pending)
        return pending

    def _append(
        self,
        topic: str,
        partition: int | None,
        record: RawRecord,
        watcher: Watcher | None = None,
    ) -> OpenBatch:
        """The long way: whatever `send_nowait` does not do itself."""
        self._check_open()
        if partition is not None and type(partition) is not int:
            raise TypeError(f"a partition is an int, not {type(partition).__name__}")
        size = self.check_size(topic, record)
        lane = self._routes.lane_for(topic, partition, record)
        open_before = lane.open
        try:
            self._routes.append(
                lane,
                record,
                trio.current_time(),
                now_ms=self._wall_ms(),
                watcher=watcher,
                may_overdraw=not self.enforces_buffer_memory,
            )
        except BufferFull:
            limits = self._accumulator.limits
            self._bytes_wanted = max(size + BATCH_HEADER_BYTES, limits.batch_bytes)
            self._wake()
            raise
        if partition is not None and lane.topic_partition.partition != partition:
            lane.open.name_last(partition)
        if lane.open is not open_before:
            self._has_news = True
            self._wake()
        return lane.open

    def check_size(self, topic: str, record: RawRecord) -> int:
        """What the record takes in a batch. Raises `ValueError` if that can never be sent."""
        size = record_bytes(record)
        if size > self._record_bytes_max:
            raise ValueError(
                f"a record of {size} bytes for topic {topic!r} is larger than max.request.size "
                f"({self._options.max_request_size}) or buffer.memory "
                f"({self._options.buffer_memory}) allows"
            )
        return size

    def _start_taking(self) -> None:
        self._is_open = True
        self._by_topic = self._routes.by_topic

    def _stop_taking(self) -> None:
        self._is_open = False
        self._by_topic = {}

    def _check_open(self) -> None:
        if not self._is_open:
            raise ClientClosed("the producer is closed, or was not entered with a `with` statement")


def check_record(topic: str, record: RawRecord) -> RawRecord:
    """The record with bytes where something like bytes was given; `TypeError` for the rest.

    `ValueError` for what has no place in a batch: it must not get far enough to harm others.
    """
    timestamp_ms, key, value, headers = record
    if not isinstance(topic, str) or not topic:
        raise TypeError(f"a topic is a str that is not empty, not {topic!r}")
    topic.encode()  # a lone surrogate is a UnicodeEncodeError, which is a ValueError
    if timestamp_ms is not None:
        if type(timestamp_ms) is not int:
            raise TypeError(f"timestamp_ms is an int, not {type(timestamp_ms).__name__}")
        if not 0 <= timestamp_ms <= INT64_MAX:
            raise ValueError(f"timestamp_ms is 0 to {INT64_MAX}, not {timestamp_ms}")
    for header in headers:
        if not (isinstance(header, tuple) and len(header) == 2 and isinstance(header[0], str)):
            raise TypeError(f"a header is a tuple (str, bytes), not {header!r}")
        header[0].encode()
    checked = tuple([(name, check_bytes(content, "a header")) for name, content in headers])
    return timestamp_ms, check_bytes(key, "a key"), check_bytes(value, "a value"), checked


def check_bytes(content: object, what: str) -> bytes | None:
    """`content` as bytes, or None; `TypeError` for what is not like bytes."""
    if content is None or type(content) is bytes:
        return content
    if isinstance(content, bytes | bytearray | memoryview):
        return bytes(content)
    hint = "; encode it first, for instance with .encode()" if isinstance(content, str) else ""
    raise TypeError(f"{what} is bytes or None, not {type(content).__name__}{hint}")
