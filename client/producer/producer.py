"""The producer accepts records, sends them in batches, and reports their delivery.

`send_nowait` runs a million times a second, so it handles the common case itself: bytes, a topic
and key that were used before, room in the open batch. That is one look-up, one comparison and one
append to a list; `_append` handles all other cases. `send_many` does once for a batch what the
others do for each record. The slow work is elsewhere: records become bytes when their batch is
sealed (accumulator.py); a partition is chosen once for a batch of records without keys, and
remembered for each key (routes.py). The sender (sender.py) sends batches to the brokers.

The producer reads the clock once for each batch, when it opens it: reading it for each record would
cost more than accepting the record. Records without a timestamp get that time, which is up to
linger.ms too early, and more only while the program itself keeps the loop from running.

`send` is `send_nowait` that waits for room. It lets the loop run (a checkpoint) whenever a batch
became ready, so that a tight loop of sends does not stop the sender.

No record is lost silently. An accepted record is delivered, or its failure is reported: to
`on_delivery`, to the task that waits for the record, or else by `flush`, `close` or the end of
`async with`, which raise `DeliveryFailed`. `close` returns within its timeout, and its report
counts the records that it gave up.

A producer with a `transactional.id` takes records in a transaction only (transactions.py). At other
times it takes none, as after `close`: so `send_nowait` does not look at transactions at all.
"""

import logging
from bisect import bisect_right
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
)
from functools import partial
from itertools import accumulate
from math import inf
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, NamedTuple, Self, TypeAlias, Unpack

import trio

from minibroker.client.committed_offsets import (
    ConsumerGroupMetadata,
    OffsetAndMetadata,
    OffsetsToCommit,
    read_offsets,
)
from minibroker.client.errors import (
    BufferFull,
    ClientClosed,
    ClientError,
    ClientTimeout,
    DeliveryFailed,
    TransactionError,
)
from minibroker.client.ledger import Ledger
from minibroker.client.net.cluster import (
    Cluster,
    check_trio,
    in_background,
    open_cluster,
    report_regularly,
)
from minibroker.client.option_types import ProducerConfig, ProducerKeywords
from minibroker.client.options import (
    ProducerOptions,
    Seams,
    Servers,
    default_seams,
    read_options,
)
from minibroker.client.producer.accumulator import Accumulator, AccumulatorOptions
from minibroker.client.producer.batches import CompletedBatch, OpenBatch, Watcher
from minibroker.client.producer.delivery import (
    CloseReport,
    Delivery,
    DeliveryReporter,
    PendingDelivery,
    RecordDelivered,
    say_dropped,
)
from minibroker.client.producer.raw_record import (
    BATCH_OVERHEAD_BYTES_MAX,
    RECORD_OVERHEAD_BYTES,
    RawRecord,
    RecordOptions,
    check_bytes,
    check_options,
    check_record,
    record_bytes,
)
from minibroker.client.producer.routes import Route, Routes
from minibroker.client.producer.sender import Sender, SenderOptions
from minibroker.client.producer.serializers import Serializers, check_no_tombstone
from minibroker.client.producer.transactions import Transactions
from minibroker.client.serialization import K, V
from minibroker.protocol.constants import BATCH_HEADER_BYTES
from minibroker.protocol.records.columns import Headers
from minibroker.protocol.records.compression import CODEC_NAMES
from minibroker.protocol.types import TopicPartition

log = logging.getLogger("minibroker.client")

OnDelivery: TypeAlias = Callable[[Delivery], None]


class ProducerStatistics(NamedTuple):
    """The numbers of delivered and failed records so far, and the bytes of buffer.memory in use."""

    delivered: int
    failed: int
    bytes_held: int


class Producer(Generic[K, V]):
    """Sends records to topics.

        async with Producer("127.0.0.1:9092", linger_ms=20) as producer:
            await producer.send("orders", b"value", key=b"customer 7")
        # Here all records are stored, or DeliveryFailed was raised.

    `send` returns as soon as the record has a place in memory; batches go out in the background,
    and the end of the block waits for them. docs/producer.md has every option and error.

    `bootstrap_servers` is "HOST:PORT", several with commas, a list of them, or a mapping of Kafka's
    option names. Options may be keywords, too (`linger_ms=5`). `on_delivery` is called in the loop
    with every `Delivery`: it must not block, and if it raises, the producer ends with that error.
    `on_statistics` is called in the same way with `statistics()` every statistics.interval.ms.
    `ledger` is a file to which the delivery of each record is written, as JSON lines
    (client/ledger.py). `key_serializer` and `value_serializer` make bytes of keys and values;
    `send` calls them, but not for None, and raises what they raise.

    With a `transactional_id` the producer sends transactions (`transaction`), and nothing else. Its
    start fences earlier producers of that id, and raises `ClientTimeout` if no coordinator answers
    within max.block.ms.
    """

    def __init__(
        self,
        bootstrap_servers: Servers | ProducerConfig = None,
        *,
        on_delivery: OnDelivery | None = None,
        on_statistics: Callable[[ProducerStatistics], object] | None = None,
        ledger: Path | str | None = None,
        key_serializer: Callable[[K], bytes] | None = None,
        value_serializer: Callable[[V], bytes] | None = None,
        seams: Seams | None = None,
        **options: Unpack[ProducerKeywords],
    ) -> None:
        self._serializers = Serializers(key_serializer, value_serializer)
        self._serializes = bool(self._serializers)
        self.options = read_options(ProducerOptions, bootstrap_servers, options)
        self._seams = seams or default_seams()
        self._accumulator = Accumulator(_accumulator_options_of(self.options))
        self._routes = Routes(self._accumulator, self._has_leader)
        self._reporter = DeliveryReporter(on_delivery)
        # What `send_nowait` looks at; empty while nothing may be taken, or is to be serialized.
        self._by_topic: dict[str, Route] = {}
        self._is_open = False
        self._transactions: Transactions | None = None  # with a transactional.id, once it is open
        # Called when it takes records from now on, or none; the blocking producer has a queue.
        self.on_taking_changed: Callable[[], None] = lambda: None
        # Whether buffer.memory is enforced here; the blocking producer does so in its own queue.
        self.enforces_buffer_memory = True
        # A batch was opened, and the last one sealed, since `send` looked.
        self._was_batch_sealed = False
        # By the last record that found no room; a record mostly opens a batch of full size.
        self._bytes_wanted = self._accumulator.options.batch_bytes
        largest = min(self.options.max_request_size, self.options.buffer_memory)
        self._record_bytes_max = largest - BATCH_OVERHEAD_BYTES_MAX
        self._ledger = ledger
        self._on_statistics = on_statistics
        self._report: CloseReport | None = None
        self._cluster: Cluster
        self._sender: Sender
        self._running: AbstractAsyncContextManager[None] = self._run()

    # Sending

    async def send(
        self,
        topic: str,
        value: V | None,
        key: K | None = None,
        headers: Headers = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> None:
        """Accept a record, and wait until there is room for it. A checkpoint only if it waits, or
        if a batch became ready since the last one. Raises `ClientTimeout` if there is no room for
        max.block.ms, and what `send_nowait` raises but `BufferFull`."""
        try:
            self.send_nowait(topic, value, key, headers, partition, timestamp_ms)
        except BufferFull as full:
            await self._append_with_room(topic, partition, full.record)
        if self._was_batch_sealed:
            self._was_batch_sealed = False
            await trio.lowlevel.checkpoint()

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
        pending = PendingDelivery(self._reporter.failures)
        record = self._make_record(topic, value, key, options)
        await self._append_with_room(topic, options.get("partition"), record, pending)
        return await pending.wait()

    def send_nowait(
        self,
        topic: str,
        value: V | None,
        key: K | None = None,
        headers: Headers = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> None:
        """Accept a record. Raises `BufferFull` if there is no room; then `await room()`.

        A record without a value is a tombstone. `timestamp_ms` counts from 1970; without it the
        record gets the time at which its batch was opened, less than linger.ms ago. Raises
        `TypeError` for what is not bytes, `ValueError` for what can never be sent, `ClientClosed`.
        """
        try:
            route = self._by_topic[topic]
            size = len(value) + RECORD_OVERHEAD_BYTES  # type: ignore[arg-type]
            if key is None:
                batch = route.sticky.open_batch
            else:
                batch = route.by_key[key].open_batch  # type: ignore[index]
                size += len(key)  # type: ignore[arg-type]
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
                    entry = (batch.timestamp_ms, key, value, ())
                    batch.records.append(entry)  # type: ignore[arg-type]
                return
        except (KeyError, TypeError):
            pass  # unusual, or wrong: both are told apart there
        self._append(topic, partition, self._check(topic, timestamp_ms, key, value, headers))

    def send_many(
        self,
        topic: str,
        values: Sequence[V],
        key: K | None = None,
        *,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> int:
        """Accept as many values as there is room for, from the first on; return how many."""
        raw_values = self._check_values(values)
        _, raw_key, _, _ = self._check(topic, timestamp_ms, key, None, ())
        overhead = RECORD_OVERHEAD_BYTES + len(raw_key or b"")
        ends = list(accumulate(map(overhead.__add__, map(len, raw_values))))
        taken = 0
        while taken < len(raw_values):
            # The first record of each batch goes the long way, which checks sizes and opens.
            record = (timestamp_ms, raw_key, raw_values[taken], ())
            try:
                batch = self._append(topic, partition, record)
            except BufferFull:
                break
            end = ends[taken]
            fit = taken + 1
            if batch.explicit_partitions is None:
                fit = bisect_right(ends, end + batch.room, fit)
            if raw_key is None and timestamp_ms is None:
                batch.records += raw_values[taken + 1 : fit]
            else:
                for value in raw_values[taken + 1 : fit]:
                    batch.append((timestamp_ms, raw_key, value, ()))
            batch.room -= ends[fit - 1] - end
            taken = fit
        return taken

    def send_for_delivery(
        self,
        topic: str,
        value: V | None,
        key: K | None = None,
        **options: Unpack[RecordOptions],
    ) -> PendingDelivery:
        """Accept a record like `send_nowait`, and return an object whose `wait` returns where the
        record is stored. Costs several times as much."""
        pending = PendingDelivery(self._reporter.failures)
        record = self._make_record(topic, value, key, options)
        self._append(topic, options.get("partition"), record, pending)
        return pending

    def send_watched(
        self, watcher: Watcher, topic: str, partition: int | None, record: RawRecord
    ) -> None:
        """Accept a record like `send_nowait`. The watcher learns its time, and where it is stored
        or why it is not."""
        self._append(topic, partition, check_record(topic, record), watcher)

    def mark_seen(self, delivery: Delivery) -> None:
        """Record that a watcher has raised a failed delivery's error, so that `flush` does not."""
        self._reporter.failures.mark_seen(delivery)

    # Waiting

    async def room(self) -> None:
        """Wait until there is memory for another batch. Raises `ClientTimeout` after max.block.ms,
        and `ClientClosed`."""
        with self.within_max_block():
            await self.wait_for_memory(self._bytes_wanted)

    @property
    def free_bytes(self) -> int:
        """The unused bytes of buffer.memory; may be negative if it is not enforced here."""
        return self._accumulator.free_bytes

    async def wait_for_memory(self, size: int) -> None:
        """Wait until `size` bytes of buffer.memory are free. Raises `ClientClosed`."""
        await trio.lowlevel.checkpoint()
        while self._accumulator.free_bytes < size:
            self._check_open()
            self._accumulator.seal_all()  # no answer frees the memory of open batches
            self._sender.wake()
            if self._accumulator.free_bytes < size:
                await self._reporter.progress.park()

    @contextmanager
    def within_max_block(self) -> Iterator[None]:
        """Limit a block that waits for room. Raises `ClientTimeout` after max.block.ms."""
        with trio.move_on_after(self.options.max_block_ms / 1000) as scope:
            yield
        if scope.cancelled_caught:
            raise ClientTimeout(
                f"no room in buffer.memory ({self.options.buffer_memory} bytes) "
                f"within max.block.ms ({self.options.max_block_ms})"
            )

    async def flush(self) -> None:
        """Wait until all records that were accepted before the call are delivered or have failed.

        Raises `DeliveryFailed` for failures that were not reported yet, older ones too, and
        `ClientClosed` if the producer was closed before all were delivered; in a transaction that
        has failed its `TransactionError`.
        """
        await self._wait_for_all()
        if self._transactions is not None:
            self._transactions.manager.raise_failure()
        if self._report is not None and self._report.undelivered:
            raise ClientClosed(
                f"the producer was closed, and {self._report.undelivered} records given up"
            )
        deliveries, records = self._reporter.failures.pop_unseen()
        if records:
            raise _failed(deliveries, records)

    async def _wait_for_all(self) -> None:
        await trio.lowlevel.checkpoint()
        unassigned = set(self._routes.unassigned)
        while any(map(self._routes.holds_records_of, unassigned)):
            await self._reporter.progress.park()
        self._accumulator.seal_all()
        self._sender.wake()
        for batch in self._accumulator.incomplete():
            while batch.incomplete_parts:
                await self._reporter.progress.park()

    @trio.lowlevel.enable_ki_protection
    async def close(self, timeout_s: float | None = None) -> CloseReport:
        """Accept no more records, wait for the accepted ones, and report the delivery of all.

        After `timeout_s` (None: each record's delivery.timeout.ms ends the wait) it gives up the
        rest and counts it as undelivered. An open transaction is aborted. Raises `DeliveryFailed`
        for failures that were not reported yet.
        """
        self._stop_taking()
        self._reporter.progress.unpark_all()
        failures: tuple[list[Delivery], int] = ([], 0)
        if self._report is None:
            is_interrupted = True
            try:
                with trio.move_on_after(inf if timeout_s is None else timeout_s):
                    if self._transactions is not None and await self._transactions.close():
                        self._reporter.failures.pop_unseen()  # they are given up on purpose
                    await self._wait_for_all()
                is_interrupted = False
            finally:
                failures = self._reporter.failures.pop_unseen()
                self._give_up(is_reported=not is_interrupted)
        assert self._report is not None, "_give_up makes it"
        if failures[1]:
            raise _failed(*failures)
        return self._report

    def _give_up(self, *, is_reported: bool) -> None:
        """Fail all incomplete batches. Log how many records unless the caller gets a report."""
        if self._report is not None:
            return
        reporter = self._reporter
        failed = reporter.failed
        self._accumulator.fail_all(
            lambda batch: ClientClosed(
                f"the producer was closed before {batch.record_count} records for "
                f"{batch.queue.topic_partition} were acknowledged"
            )
        )
        self._report_completed(self._accumulator.pop_completed())
        reporter.failures.pop_unseen()  # the report counts them
        self._report = CloseReport(reporter.delivered, failed, reporter.failed - failed)
        reporter.progress.unpark_all()
        if self._report.undelivered and not is_reported:
            say_dropped(self._report.undelivered)

    # Transactions

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        """Send a transaction: commit it at the end of the block, or abort it after an exception.

            async with producer.transaction():
                await producer.send("payments", b"value")
                offsets = consumer.committable_offsets()
                await producer.send_offsets_to_transaction(offsets, consumer.group_metadata())

        Raises what the block raises. The commit raises `TransactionAbortable` if records could not
        be stored; then it is aborted, too, and the block may be repeated. `TransactionInDoubt`:
        call `commit_transaction` again. `ProducerFenced`, `ProducerFailed`: close the producer. A
        cancelled or interrupted block is aborted within a second, or else by the coordinator.
        """
        await self.begin_transaction()
        try:
            yield
            await self.commit_transaction()
        except BaseException as error:
            await self.abort_after(error)
            raise

    async def begin_transaction(self) -> None:
        """Begin a transaction, to which all records belong that are sent from now on.

        Raises `ClientError` if one is open, or without `transactional.id`, and `TransactionError`.
        """
        await trio.lowlevel.checkpoint()
        self._open_transactions().begin()

    async def send_offsets_to_transaction(
        self, offsets: OffsetsToCommit, group: ConsumerGroupMetadata
    ) -> None:
        """Commit offsets of a consumer's group with the transaction: they count once it commits.

        `offsets` are as for `Consumer.commit`: a record, or for each partition the next offset to
        read, as `Consumer.committable_offsets` returns them. `group` is what
        `Consumer.group_metadata` returns: a consumer that has lost its partitions meanwhile commits
        nothing. Raises `TransactionError`: without the offsets the transaction cannot be committed.
        """
        if not isinstance(group, ConsumerGroupMetadata):
            raise TypeError(f"a group is what group_metadata() returns, not {type(group).__name__}")
        chosen = read_offsets(offsets, lambda _, offset: OffsetAndMetadata(offset))
        await self._open_transactions().send_offsets(chosen, group)

    async def commit_transaction(self) -> None:
        """Wait until all records of the transaction are stored, and commit it.

        Raises `TransactionAbortable`: nothing is committed, so abort. Raises `TransactionInDoubt`
        if the coordinator has not answered within max.block.ms: call it again. Raises
        `ProducerFenced`, `ProducerFailed`, and `ClientError` if there is no transaction.
        """
        transactions = self._open_transactions()
        try:
            await transactions.commit(self._wait_for_all)
        except TransactionError:
            self._reporter.failures.pop_unseen()  # this error tells of them
            raise

    def fail_transaction(self, cause: Exception) -> None:
        """Let the open transaction be one that can only be aborted: a record is not in it."""
        self._open_transactions().fail(cause)

    async def abort_transaction(self) -> None:
        """Give up the transaction and its records, without waiting for them.

        Raises `TransactionInDoubt` if the coordinator has not answered within max.block.ms: call it
        again. Raises `ProducerFenced`, `ProducerFailed`, and `ClientError` if there is no
        transaction, or its commit is in doubt.
        """
        transactions = self._open_transactions()
        try:
            await transactions.abort()
        finally:
            self._reporter.failures.pop_unseen()  # they are given up on purpose

    async def abort_after(self, error: BaseException) -> None:
        """Abort the transaction because a block has ended with an exception, if it is still open.

        What goes wrong becomes a note of the exception. After an interrupt or a cancellation it
        takes a second at most.
        """
        if self._transactions is not None and self._is_open:
            await self._transactions.abort_after(error, self.abort_transaction)

    @property
    def takes_records(self) -> bool:
        """Whether `send` may accept a record: between start and close, and with a
        `transactional.id` in a transaction."""
        return self._is_open and (
            self._transactions is None or self._transactions.manager.takes_records
        )

    def statistics(self) -> ProducerStatistics:
        """Return the current counts."""
        held = self.options.buffer_memory - self._accumulator.free_bytes
        return ProducerStatistics(self._reporter.delivered, self._reporter.failed, held)

    # Opening and closing

    @asynccontextmanager
    async def _run(self) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            if self._ledger is not None:
                ledger = Ledger(self._ledger, self.options, self._seams.wall_ms)
                self._reporter.record = stack.enter_context(ledger).record
            opening = open_cluster(self.options, self._seams, self._routes.forget)
            self._cluster = cluster = await stack.enter_async_context(opening)
            options, rng = _sender_options_of(self.options), self._seams.rng
            self._sender = Sender(options, self._routes, cluster, rng, self._report_completed)
            if (on_statistics := self._on_statistics) is not None:
                regularly = partial(report_regularly, every_ms=self.options.statistics_interval_ms)
                report = partial(regularly, lambda: on_statistics(self.statistics()))
                await stack.enter_async_context(in_background(report))
            async with in_background(self._sender.run):
                if self.options.transactional_id:
                    self._transactions = transactions = Transactions(
                        cluster, self._accumulator, self._reporter.report, self._update_taking
                    )
                    await transactions.begin_session()
                self._start_taking()
                try:
                    yield
                except Exception as error:
                    try:
                        await self.close()
                    except DeliveryFailed as failed:
                        error.add_note(f"and the producer: {failed}")
                    raise
                except SystemExit:  # a note would not be shown, and the exit code may say success
                    await self.close()
                    raise
                else:
                    await self.close()
                finally:  # also cancelled or interrupted: without waiting
                    self._stop_taking()
                    self._give_up(is_reported=False)

    async def run(self, *, task_status: trio.TaskStatus[Any] = trio.TASK_STATUS_IGNORED) -> None:
        """Open the producer, and wait until `close`. A cancellation drops undelivered records."""
        async with self:
            task_status.started(self)
            while self._report is None:
                await self._reporter.progress.park()

    @trio.lowlevel.enable_ki_protection
    async def __aenter__(self) -> Self:
        check_trio()
        await self._running.__aenter__()
        return self

    @trio.lowlevel.enable_ki_protection
    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        """Close, however long delivery takes, also after `sys.exit`.

        Raises `DeliveryFailed`. An exception of the block propagates unchanged, with a note about
        failed records. If the block was cancelled or interrupted (KeyboardInterrupt,
        GeneratorExit), wait for nothing; the log and stderr state how many records were dropped.
        """
        return await self._running.__aexit__(kind, error, traceback)

    # Taking records

    def _check(
        self, topic: str, timestamp_ms: int | None, key: K | None, value: V | None, headers: Headers
    ) -> RawRecord:
        record: Any = (timestamp_ms, key, value, headers)
        if self._serializes:
            record = self._serializers.serialize(*record)
        return check_record(topic, record)

    def _make_record(
        self, topic: str, value: V | None, key: K | None, options: RecordOptions
    ) -> RawRecord:
        check_options(options)
        timestamp_ms, headers = options.get("timestamp_ms"), options.get("headers", ())
        return self._check(topic, timestamp_ms, key, value, headers)

    def _check_values(self, values: Sequence[V]) -> Sequence[bytes]:
        """Values of `send_many` as bytes."""
        found: Sequence[Any] = values
        if self._serializes:
            found = list(map(self._serializers.serialize_value, values))
        if set(map(type, found)) - {bytes}:
            check_no_tombstone(found)
            found = [check_bytes(value, "a value") for value in found]
        return found

    def _append(
        self,
        topic: str,
        partition: int | None,
        record: RawRecord,
        watcher: Watcher | None = None,
    ) -> OpenBatch:
        """Append a record in the cases that `send_nowait` does not handle itself."""
        self._check_open()
        if partition is not None and type(partition) is not int:
            raise TypeError(f"a partition is an int, not {type(partition).__name__}")
        size = self.check_size(topic, record)
        queue = self._routes.queue_for(topic, partition, record[1], size)
        open_before = queue.open_batch
        try:
            self._routes.append(
                queue,
                record,
                size,
                trio.current_time(),
                now_ms=self._seams.wall_ms(),
                watcher=watcher,
                may_overdraw=not self.enforces_buffer_memory,
            )
        except BufferFull as full:
            full.record = record
            batch_bytes = self._accumulator.options.batch_bytes
            self._bytes_wanted = max(size + BATCH_HEADER_BYTES, batch_bytes)
            self._sender.wake()
            raise
        if partition is not None and queue.topic_partition.partition != partition:
            queue.open_batch.set_partition_of_last(partition)
        if queue.open_batch is not open_before:
            self._was_batch_sealed = True
            self._sender.wake()
        return queue.open_batch

    async def _append_with_room(
        self, topic: str, partition: int | None, record: RawRecord, watcher: Watcher | None = None
    ) -> OpenBatch:
        """The same, once there is room."""
        while True:
            try:
                return self._append(topic, partition, record, watcher)
            except BufferFull:
                await self.room()

    def check_size(self, topic: str, record: RawRecord) -> int:
        """What the record takes in a batch. Raises `ValueError` if that can never be sent."""
        size = record_bytes(record)
        if size > self._record_bytes_max:
            raise ValueError(
                f"a record of {size} bytes for topic {topic!r} is larger than max.request.size "
                f"({self.options.max_request_size}) or buffer.memory "
                f"({self.options.buffer_memory}) allows"
            )
        return size

    def _start_taking(self) -> None:
        self._is_open = True
        self._update_taking()

    def _stop_taking(self) -> None:
        self._is_open = False
        self._update_taking()

    def _update_taking(self) -> None:
        """Have `send_nowait` take records, or none."""
        may_look = self.takes_records and not self._serializes
        self._by_topic = self._routes.by_topic if may_look else {}
        self.on_taking_changed()

    def _check_open(self) -> None:
        if not self._is_open:
            raise ClientClosed("the producer is closed, or was not entered with a `with` statement")
        if self._transactions is not None:
            self._transactions.manager.check_taking()

    def _open_transactions(self) -> Transactions:
        if self._transactions is None:
            if self._is_open:
                raise ClientError("this producer has no transactions: give it a transactional_id")
            raise ClientClosed("the producer is closed, or was not entered with a `with` statement")
        if not self._is_open:
            raise ClientClosed("the producer is closed")
        return self._transactions

    def _report_completed(self, completed: list[CompletedBatch]) -> None:
        if self._transactions is not None:
            completed = self._transactions.on_completed(completed)
        self._reporter.report(completed)

    def _has_leader(self, topic_partition: TopicPartition) -> bool:
        return self._cluster.leader_of(topic_partition) is not None


def _failed(deliveries: list[Delivery], records: int) -> DeliveryFailed:
    first = deliveries[0].error
    assert first is not None, "only failures are kept"
    return DeliveryFailed(records, first)


def _sender_options_of(options: ProducerOptions) -> SenderOptions:
    return SenderOptions(
        acks=options.acks,
        in_flight_max=options.max_in_flight_requests_per_connection,
        request_timeout_ms=options.request_timeout_ms,
        retry_backoff_s=options.retry_backoff_ms / 1000,
        transactional_id=options.transactional_id or None,
    )


def _accumulator_options_of(options: ProducerOptions) -> AccumulatorOptions:
    return AccumulatorOptions(
        batch_bytes=min(options.batch_size, options.max_request_size, options.buffer_memory),
        linger_s=options.linger_ms / 1000,
        memory_bytes=options.buffer_memory,
        request_bytes_max=options.max_request_size,
        in_flight_max=options.max_in_flight_requests_per_connection,
        delivery_timeout_s=options.delivery_timeout_ms / 1000,
        retries=options.retries,
        retry_backoff_s=options.retry_backoff_ms / 1000,
        retry_backoff_max_s=options.retry_backoff_max_ms / 1000,
        compression=CODEC_NAMES.index(options.compression_type),
        is_idempotent=options.enable_idempotence,
        is_transactional=bool(options.transactional_id),
    )
