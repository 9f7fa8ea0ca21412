"""The producer: takes records, and says what became of them.

Taking is client/intake.py, sending client/sender.py; here is what waits. `send` is `send_nowait`
that waits for room, and lets the loop run (a checkpoint) whenever a batch became ready, so that a
program in a tight loop of sends still sends.

Nothing is lost silently. A record that was taken is delivered, or its batch's failure is seen:
by `on_delivery`, by who waits for the record, or else by `flush`, `close` or the end of
`async with`, which raise `DeliveryFailed`. `close` always returns within its time, and its report
counts what was given up.
"""

import logging
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
)
from math import inf
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self, TypeAlias

import trio

from minibroker.client.accumulator import Accumulator, Limits
from minibroker.client.cluster import Cluster, in_background, open_cluster
from minibroker.client.delivery import (
    CloseReport,
    Delivery,
    Outcomes,
    RecordDelivered,
)
from minibroker.client.errors import BufferFull, ClientClosed, ClientTimeout, DeliveryFailed
from minibroker.client.intake import Intake
from minibroker.client.ledger import Ledger
from minibroker.client.options import (
    ProducerOptions,
    Seams,
    Servers,
    default_seams,
    read_options,
)
from minibroker.client.routes import Routes
from minibroker.client.sender import Sender, SenderOptions
from minibroker.protocol.records.columns import Headers
from minibroker.protocol.records.compression import CODEC_NAMES
from minibroker.protocol.types import TopicPartition

log = logging.getLogger("minibroker.client")

OnDelivery: TypeAlias = Callable[[Delivery], None]


class ProducerStatistics(NamedTuple):
    """Records delivered and failed so far, and the bytes of buffer.memory in use."""

    delivered: int
    failed: int
    bytes_held: int


class Producer(Intake):
    """Sends records to topics; used with `async with`.

    `bootstrap_servers` is "HOST:PORT", several with commas, a list of them, or a mapping of
    Kafka's option names; options may be keywords too (`linger_ms=5`). `on_delivery` is called
    with every `Delivery`, in the loop: it must not block, and what it raises ends the producer.
    `ledger` is a file for what became of each record, as JSON lines (client/ledger.py).
    """

    def __init__(
        self,
        bootstrap_servers: Servers = None,
        *,
        on_delivery: OnDelivery | None = None,
        ledger: Path | str | None = None,
        seams: Seams | None = None,
        **options: object,
    ) -> None:
        self.options = read_options(ProducerOptions, bootstrap_servers, options)
        self._seams = seams or default_seams()
        routes = Routes(Accumulator(_limits_of(self.options)), self._has_leader)
        outcomes = Outcomes(on_delivery)
        super().__init__(
            self.options, routes, outcomes, self._seams.wall_ms, lambda: self._sender.wake()
        )
        self._ledger = ledger
        self._report: CloseReport | None = None
        self._cluster: Cluster
        self._sender: Sender
        self._running: AbstractAsyncContextManager[None] = self._run()

    # Sending

    async def send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        headers: Headers = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> None:
        """Take a record; wait for room, at most max.block.ms (then `ClientTimeout`).

        A checkpoint only when it waits, or when a batch has become ready since the last one.
        """
        while True:
            try:
                self.send_nowait(topic, value, key, headers, partition, timestamp_ms)
            except BufferFull:
                await self.room()
            else:
                break
        if self._has_news:
            self._has_news = False
            await trio.lowlevel.checkpoint()

    async def send_and_wait(
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
        while True:
            try:
                pending = self.send_for_delivery(
                    topic,
                    value,
                    key,
                    headers=headers,
                    partition=partition,
                    timestamp_ms=timestamp_ms,
                )
            except BufferFull:
                await self.room()
            else:
                return await pending.wait()

    # Waiting

    async def room(self) -> None:
        """Wait until there is memory for another batch, at most max.block.ms (`ClientTimeout`)."""
        with self.within_max_block():
            await self.wait_for_memory(self._bytes_wanted)

    @property
    def free_bytes(self) -> int:
        """How much of buffer.memory is unused; may be below 0 if it is not enforced here."""
        return self._accumulator.free_bytes

    async def wait_for_memory(self, size: int) -> None:
        """Wait until so many bytes of buffer.memory are free. Raises `ClientClosed`."""
        await trio.lowlevel.checkpoint()
        while self._accumulator.free_bytes < size:
            self._check_open()
            self._accumulator.seal_all()  # they are the only memory that no answer gives back
            self._wake()
            if self._accumulator.free_bytes < size:
                await self._outcomes.progress.park()

    @contextmanager
    def within_max_block(self) -> Iterator[None]:
        """A block that waits for room; `ClientTimeout` after max.block.ms."""
        with trio.move_on_after(self._options.max_block_ms / 1000) as scope:
            yield
        if scope.cancelled_caught:
            raise ClientTimeout(
                f"no room in buffer.memory ({self._options.buffer_memory} bytes) "
                f"within max.block.ms ({self._options.max_block_ms})"
            )

    async def flush(self) -> None:
        """Wait until all records taken before the call are delivered or given up.

        Raises `DeliveryFailed` for failures that nobody has seen, older ones too, and
        `ClientClosed` if the producer was closed before all were delivered.
        """
        await self._wait_for_all()
        if self._report is not None and self._report.undelivered:
            raise ClientClosed(
                f"the producer was closed, and {self._report.undelivered} records given up"
            )
        deliveries, records = self._outcomes.failures.take()
        if records:
            raise _failed(deliveries, records)

    async def _wait_for_all(self) -> None:
        await trio.lowlevel.checkpoint()
        orphans = set(self._routes.orphans)
        while any(map(self._routes.holds_back, orphans)):
            await self._outcomes.progress.park()
        self._accumulator.seal_all()
        self._wake()
        for batch in self._accumulator.unsettled():
            while batch.unsettled_parts:
                await self._outcomes.progress.park()

    async def close(self, timeout_s: float | None = None) -> CloseReport:
        """Take no more records, wait for those taken, and say what became of all.

        After `timeout_s` (None: as long as delivery.timeout.ms lets it take) the rest is given
        up and counted as undelivered. Raises `DeliveryFailed` for failures that nobody has seen.
        """
        self._stop_taking()
        self._outcomes.progress.unpark_all()
        failures: tuple[list[Delivery], int] = ([], 0)
        if self._report is None:
            is_interrupted = True
            try:
                with trio.move_on_after(inf if timeout_s is None else timeout_s):
                    await self._wait_for_all()
                is_interrupted = False
            finally:
                failures = self._outcomes.failures.take()
                self._give_up(is_reported=not is_interrupted)
        assert self._report is not None, "_give_up makes it"
        if failures[1]:
            raise _failed(*failures)
        return self._report

    def _give_up(self, *, is_reported: bool) -> None:
        """What is not settled now never will be; with `is_reported` the caller gets the report."""
        if self._report is not None:
            return
        outcomes = self._outcomes
        failed = outcomes.failed
        self._accumulator.fail_all(
            lambda batch: ClientClosed(
                f"the producer was closed before {batch.record_count} records for "
                f"{batch.lane.topic_partition} were acknowledged"
            )
        )
        outcomes.note(self._accumulator.take_settled())
        outcomes.failures.take()  # the report tells of them
        self._report = CloseReport(outcomes.delivered, failed, outcomes.failed - failed)
        if self._report.undelivered and not is_reported:
            _say_dropped(self._report.undelivered)

    def statistics(self) -> ProducerStatistics:
        """Counts of this moment."""
        held = self.options.buffer_memory - self._accumulator.free_bytes
        return ProducerStatistics(self._outcomes.delivered, self._outcomes.failed, held)

    # Opening and closing

    @asynccontextmanager
    async def _run(self) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            if self._ledger is not None:
                ledger = Ledger(self._ledger, self.options, self._seams.wall_ms)
                self._outcomes.record = stack.enter_context(ledger).record
            cluster = await stack.enter_async_context(open_cluster(self.options, self._seams))
            self._cluster = cluster
            options = _sender_options_of(self.options)
            rng = self._seams.rng
            self._sender = Sender(options, self._routes, cluster, rng, self._outcomes.note)
            async with in_background(self._sender.run):
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

    async def __aenter__(self) -> Self:
        await self._running.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        """Close, however long delivery takes, after `sys.exit` too.

        Raises `DeliveryFailed`, but an exception of the body comes out as it is, with a note.
        Where the block was cancelled or interrupted (KeyboardInterrupt, GeneratorExit) nothing is
        waited for; the log and stderr say how many records were dropped.
        """
        return await self._running.__aexit__(kind, error, traceback)

    def _has_leader(self, topic_partition: TopicPartition) -> bool:
        return self._cluster.leader_of(topic_partition) is not None


def _say_dropped(record_count: int) -> None:
    """On the log, and on stderr if the log goes elsewhere: the program may be ending."""
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
    )


def _limits_of(options: ProducerOptions) -> Limits:
    return Limits(
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
    )
