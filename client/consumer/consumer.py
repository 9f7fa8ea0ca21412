"""A consumer reads partitions that the application names, or those that a group gives it.

`poll` returns the records that have arrived, up to `max.poll.records`. Iteration polls, and returns
one record at a time. An application may mix both: `poll` first takes back the records that
iteration has polled and not returned. A position is the offset after the last record that was
returned. Records come in order within a partition, each once, and only those that the replicas in
sync have. With `isolation.level` read_committed those of transactions come once these are
committed, and those of aborted ones never.

`PositionError` (a gap that no policy covers, corrupt data) concerns one partition. The consumer
reads no further in this partition until the application seeks; until then each poll raises the
error, so that the application cannot overlook it.

Members of a group share the partitions of the topics that they subscribe to. A partition begins at
the offset that the group has committed, or else as `auto.offset.reset` says. With
`enable.auto.commit` (the default) the consumer commits the records that the application has
processed: those of earlier polls, and those that iteration returned before the current one. It
commits every `auto.commit.interval.ms`, before a partition goes to another member, and at the end.
Records whose processing an exception interrupted are read again. An application that commits by
itself turns auto-commit off. After a crash the group rereads records; it skips none (K6, CCO-06).
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Generic, NamedTuple, Self, Unpack

import trio

from minibroker.client.committed_offsets import (
    ConsumerGroupMetadata,
    OffsetAndMetadata,
    OffsetsToCommit,
)
from minibroker.client.consumer.completed_fetch import ConsumerRecord
from minibroker.client.consumer.delivered_positions import DeliveredPositions
from minibroker.client.consumer.deserializers import Deserializers
from minibroker.client.consumer.failure_pace import FailurePace
from minibroker.client.consumer.fetcher import Fetcher
from minibroker.client.consumer.health import ConsumerHealth, describe
from minibroker.client.consumer.positions import OnPartitionEof, Positions
from minibroker.client.errors import ClientClosed, ClientError, PositionError
from minibroker.client.groups.consumer_group import (
    Callback,
    ConsumerGroup,
    RebalanceCallbacks,
)
from minibroker.client.groups.offset_commits import CommitAnswer
from minibroker.client.groups.queued_commits import OnCommit
from minibroker.client.ledger import ConsumerLedger
from minibroker.client.net.cluster import (
    Cluster,
    check_trio,
    in_background,
    open_cluster,
    report_regularly,
)
from minibroker.client.net.list_offsets import OffsetAndTimestamp, find_time, list_offsets
from minibroker.client.option_types import ConsumerConfig, ConsumerKeywords
from minibroker.client.options import (
    ConsumerOptions,
    Seams,
    Servers,
    default_seams,
    read_options,
)
from minibroker.client.serialization import K, V, check_function
from minibroker.client.topic_selection import Topics, TopicsOrPattern, name_topics, select_topics
from minibroker.protocol.constants import (
    EARLIEST_TIMESTAMP,
    INT64_MAX,
    LATEST_TIMESTAMP,
    NO_OFFSET,
)
from minibroker.protocol.types import TopicPartition

# How long leaving the block may take to commit and to leave the group; and if it is interrupted.
CLOSE_S: Final = 10.0
INTERRUPTED_CLOSE_S: Final = 1.0
NOTHING_CHOSEN: Final = (
    "there is nothing to read: await subscribe (with a group_id), assign_topics, or call assign"
)

log = logging.getLogger("minibroker.client")


class ConsumerStatistics(NamedTuple):
    """The number of assigned partitions, and the bytes fetched but not yet returned."""

    partition_count: int
    queued_bytes: int


class Consumer(Generic[K, V]):
    """Reads records: of partitions that the application names, or as a member of a group.

        async with Consumer("127.0.0.1:9092", group_id="billing") as consumer:
            await consumer.subscribe("orders")
            async for record in consumer:
                print(record.partition, record.offset, record.value)

    Without a group: `await consumer.assign_topics("orders")`. One task polls or iterates; any task
    may call the other methods. docs/consumer.md has every option and error.

    Options are Kafka's, as keywords or as a mapping of dotted names. A wrong one raises
    `ConfigError`. Methods with `*partitions` apply to all assigned partitions if none is named.

    `ledger` is a file to which every record that a poll returns is written, as JSON lines
    (client/ledger.py). Iteration polls, too; a record that it gives back is written again.
    `on_statistics` is a plain function, called in the loop with `statistics()` every
    statistics.interval.ms. If it raises, the consumer ends with that error.
    `on_partition_eof` is a plain function that a poll calls with a partition and its end as last
    known, once earlier polls have returned all records before that end. The poll calls it again
    after it has returned further records, and after a seek. The poll raises what it raises.
    `key_deserializer` and `value_deserializer` are functions of bytes. A poll calls them, but not
    for None. For a record that cannot be deserialized it raises `DeserializationFailed`, after the
    records before it were returned.
    """

    def __init__(
        self,
        bootstrap_servers: Servers | ConsumerConfig = None,
        *,
        on_statistics: Callable[[ConsumerStatistics], object] | None = None,
        on_partition_eof: OnPartitionEof | None = None,
        ledger: Path | str | None = None,
        key_deserializer: Callable[[bytes], K] | None = None,
        value_deserializer: Callable[[bytes], V] | None = None,
        seams: Seams | None = None,
        **options: Unpack[ConsumerKeywords],
    ) -> None:
        self._options = read_options(ConsumerOptions, bootstrap_servers, options)
        self._seams = seams or default_seams()
        self._ledger_path = ledger
        self._on_statistics = on_statistics
        self._on_partition_eof = check_function(on_partition_eof, "on_partition_eof")
        self._deserializers = Deserializers(key_deserializer, value_deserializer)
        self._ledger: ConsumerLedger | None = None
        self._positions = Positions(self._options)
        self._stack = AsyncExitStack()
        self._cluster: Cluster | None = None
        self._fetcher: Fetcher | None = None
        self._delivered: DeliveredPositions[K, V] = DeliveredPositions(self._positions)
        self._group: ConsumerGroup | None = None
        self._reader: trio.lowlevel.Task | None = None  # the one that polls
        self._has_chosen = False  # something to read
        self._is_closing = False
        self._failure_pace = FailurePace()
        self._closed = trio.Event()

    async def run(self, *, task_status: trio.TaskStatus[Any] = trio.TASK_STATUS_IGNORED) -> None:
        """Open the consumer, and wait until `close`. A cancellation closes it without a commit."""
        async with self:
            task_status.started(self)
            await self._closed.wait()

    @trio.lowlevel.enable_ki_protection
    async def __aenter__(self) -> Self:
        check_trio()
        async with AsyncExitStack() as stack:
            if self._ledger_path is not None:
                ledger = ConsumerLedger(
                    self._ledger_path,
                    self._seams.wall_ms,
                    self._positions.topic_id,
                    self._options.group_id,
                    self._options.isolation,
                )
                self._ledger = stack.enter_context(ledger)
                self._positions.on_jump = self._record_jump
            cluster = await stack.enter_async_context(open_cluster(self._options, self._seams))
            fetcher = Fetcher(cluster, self._positions, self._options)
            await stack.enter_async_context(in_background(fetcher.run))
            self._cluster, self._fetcher = cluster, fetcher
            if self._options.group_id:
                self._group = ConsumerGroup(
                    cluster, fetcher, self._positions, self._delivered, self._record_commit
                )
                await stack.enter_async_context(in_background(self._group.run))
            if (on_statistics := self._on_statistics) is not None:
                report = partial(
                    report_regularly,
                    lambda: on_statistics(self.statistics()),
                    self._options.statistics_interval_ms,
                )
                await stack.enter_async_context(in_background(report))
            stack.push_async_exit(self._end)
            self._stack = stack.pop_all()
        return self

    @trio.lowlevel.enable_ki_protection
    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        return await self._stack.__aexit__(kind, error, traceback)

    async def close(self, timeout_s: float = CLOSE_S) -> None:
        """Commit, leave the group, and end the consumer, in at most `timeout_s`, whether brokers
        answer or not. A task that waits in `poll` gets `ClientClosed` at once.

        If another task than the polling one closes the consumer, `close` does not commit the
        records that the polling task may still be processing. It calls `on_revoked` with all
        partitions, and raises what that raises.
        """
        await self.close_from(timeout_s, is_reader=trio.lowlevel.current_task() is self._reader)

    async def close_from(self, timeout_s: float, *, is_reader: bool, may_call: bool = True) -> None:
        """Close, for a caller that knows whether the polling task calls (`is_reader`). If so, all
        records that were returned count as processed. `may_call`: whether callbacks are called."""
        if self._group is not None:
            self._group.check_outside()
        with trio.move_on_after(timeout_s) as scope:
            if self._is_closing:
                await self._closed.wait()
                return
            self._is_closing = True
            try:
                if is_reader:
                    self._delivered.mark_done()
                else:
                    self._delivered.abandon()
                if self._fetcher is not None:
                    self._fetcher.arrived.unpark_all()
                if self._group is not None:
                    await self._group.close(timeout_s, may_call=may_call)
            finally:
                self._cluster = None
                self._closed.set()
        if scope.cancelled_caught:
            log.warning("closed after %g s, before the group has answered", timeout_s)

    async def _end(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        """End the block. After an interrupt or a cancellation leave the group at once.

        Do not commit what another task polled and may still process: see `close`. After an
        exception or `sys.exit` close in order, but do not commit the records of the last poll: the
        program may have given up on them.
        """
        if error is None:
            await self.close()
        elif isinstance(error, Exception | SystemExit):
            try:
                await self.close_from(CLOSE_S, is_reader=False)
            except Exception as other:
                log.warning("a callback failed while the consumer was closed: %s", other)
        else:
            with trio.CancelScope(shield=True):
                await self.close_from(INTERRUPTED_CLOSE_S, is_reader=False, may_call=False)

    # -- which partitions

    @property
    def assignment(self) -> list[TopicPartition]:
        """The assigned partitions, sorted by name."""
        return self._positions.assignment

    async def assign_topics(self, *topics: Topics) -> list[TopicPartition]:
        """Assign all partitions of these topics, instead of those before. Return the partitions.

        `topics` are names, or one list of names. Partitions that a topic gets later are not read
        until this is called again. Raises `BrokerError` for a topic that cannot be read, and
        `ClientTimeout`.
        """
        cluster = self._open_cluster()
        names = []
        for topic in name_topics(topics):
            metadata = await cluster.topic(topic)
            names += [TopicPartition(topic, each.partition) for each in metadata.partitions]
        self.assign(names)
        return names

    def assign(self, partitions: Iterable[tuple[str, int]]) -> None:
        """Assign these partitions, instead of those before. One that stays keeps its position.
        Raises `ClientError` while the consumer is subscribed to topics."""
        fetcher = self._open_fetcher()
        self._delivered.return_buffered()
        if self._group is not None:
            self._group.check_not_subscribed()
        self._positions.assign([TopicPartition(*name) for name in partitions])
        self._has_chosen = True
        fetcher.fetch_now()
        if self._group is not None:
            self._group.on_manual_assignment()

    def pause(self, *partitions: TopicPartition) -> None:
        """Return no records of these partitions until `resume`. They keep their positions."""
        self._delivered.return_buffered()
        for name in partitions or self.assignment:
            self._positions.pause(name)
        self._open_fetcher().wake()

    def resume(self, *partitions: TopicPartition) -> None:
        """Return records of these partitions again."""
        for name in partitions or self.assignment:
            self._positions.resume(name)
        self._open_fetcher().fetch_now()

    # -- positions

    def position(self, partition: TopicPartition) -> int | None:
        """Return the offset of the next record; None until the consumer knows where to begin."""
        return self._delivered.position(partition)

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Continue at this offset, or at the first record after it."""
        self._delivered.return_buffered()
        self._positions.seek(partition, offset)
        self._open_fetcher().fetch_now()

    def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """Continue at the earliest record of each partition."""
        self._seek_to(partitions, EARLIEST_TIMESTAMP)

    def seek_to_end(self, *partitions: TopicPartition) -> None:
        """Continue after the last record of each partition."""
        self._seek_to(partitions, LATEST_TIMESTAMP)

    async def seek_to_time(self, timestamp_ms: int, *partitions: TopicPartition) -> None:
        """Continue at the first record with this time (ms since 1970) or a later one; at the end of
        a partition that has none. Raises `ValueError`, `BrokerError` and `ClientTimeout`."""
        if not 0 <= timestamp_ms <= INT64_MAX:
            raise ValueError(f"a time is 0 to {INT64_MAX} ms, not {timestamp_ms}")
        names = [TopicPartition(*name) for name in partitions or self.assignment]
        found = await find_time(self._open_cluster(), names, timestamp_ms)
        for name, offset in found.items():
            self.seek(name, offset)

    async def beginning_offsets(self, *partitions: TopicPartition) -> dict[TopicPartition, int]:
        """Return each partition's earliest offset. Raises `BrokerError` and `ClientTimeout`."""
        return await self._offsets(partitions, EARLIEST_TIMESTAMP)

    async def end_offsets(self, *partitions: TopicPartition) -> dict[TopicPartition, int]:
        """Return the offset after the last readable record of each partition.

        A record sent with acks=1 or 0 may become readable later, and with read_committed one of an
        open transaction, or behind its first record. Raises `BrokerError` and
        `ClientTimeout`.
        """
        return await self._offsets(partitions, LATEST_TIMESTAMP)

    async def offsets_for_times(
        self, times: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Return for each partition the offset and time of the first record with the given time
        (ms since 1970) or a later one; None if it has none. Raises `ValueError` for what is no
        time, otherwise as `end_offsets`."""
        for name, time in times.items():
            if isinstance(time, bool) or not isinstance(time, int) or not 0 <= time <= INT64_MAX:
                raise ValueError(f"a time is 0 to {INT64_MAX} ms, not {time!r} ({name})")
        wanted = {TopicPartition(*name): time for name, time in times.items()}
        found = await list_offsets(self._open_cluster(), wanted)
        return {
            name: None
            if (answer := found[name]).offset == NO_OFFSET
            else OffsetAndTimestamp(answer.offset, answer.timestamp)
            for name in wanted
        }

    async def partitions_for_topic(self, topic: str) -> set[int]:
        """Return the numbers of a topic's partitions.

        Raises `BrokerError` for a topic that does not exist, and `ClientTimeout`.
        """
        [name] = name_topics((topic,))
        return {each.partition for each in (await self._open_cluster().topic(name)).partitions}

    async def lag(self, *partitions: TopicPartition) -> dict[TopicPartition, int | None]:
        """Return how many offsets each partition is behind its end; None while it has no position.
        Raises as `end_offsets`."""
        ends = await self.end_offsets(*partitions)
        positions = {name: self.position(name) for name in ends}
        return {
            name: None if (offset := positions[name]) is None else max(0, ends[name] - offset)
            for name in ends
        }

    def health(self) -> ConsumerHealth:
        """Return the membership, and for each partition its position and how long it was idle."""
        member = None if self._group is None else self._group.membership
        return describe(member, self._positions, self._delivered, trio.current_time())

    # -- its group; `ClientError` without group id

    async def subscribe(
        self,
        *topics: TopicsOrPattern,
        on_assigned: Callback | None = None,
        on_revoked: Callback | None = None,
        on_lost: Callback | None = None,
    ) -> None:
        """Subscribe to topics as a member of the group, from the next poll on.

        `topics` are names, one list of names, or a pattern: a compiled regular expression, or a
        text that begins with `^`. They replace the subscription before. A topic that does not exist
        is logged once, and read once it is created.

        The callbacks are async functions of a list of partitions. Polls, `unsubscribe` and `close`
        call them; a callback may call any method but these. `on_revoked` is called before
        partitions go to other members, and may commit. `on_lost` is called when they have gone to
        others already; without it, `on_revoked` is.

        Raises `ClientError` while partitions are assigned by hand, and `TypeError` and `ValueError`
        for what cannot be a topic.
        """
        group = self._open_group()
        selection = select_topics(topics)
        callbacks = RebalanceCallbacks(on_assigned, on_revoked, on_lost)
        for callback in callbacks:
            if callback is not None and not callable(callback):
                raise TypeError(f"a rebalance callback is an async function, not {callback!r}")
        self._has_chosen = True
        await trio.lowlevel.checkpoint()
        self._delivered.return_buffered()
        group.subscribe(selection, callbacks)

    async def unsubscribe(self) -> None:
        """Give up all partitions, and leave the group. Raises what `on_revoked` raises."""
        group = self._open_group()
        self._delivered.return_buffered()
        await group.unsubscribe()

    @property
    def subscription(self) -> list[str]:
        """The names of the subscribed topics; for a pattern those that matched last."""
        return self._open_group().subscription

    async def commit(self, offsets: OffsetsToCommit | None = None) -> None:
        """Commit offsets for the group, and wait until the coordinator has stored them.

            await consumer.commit()                               all records that were returned
            await consumer.commit(record)                         up to and with this record
            await consumer.commit({TopicPartition("t", 0): 7})    the next offset to read

        Without an argument it commits all positions. A position is after the last record that was
        returned, so call it once these records are processed. Commits of `commit_async` come first.

        Raises `CommitFailed` if the consumer is no longer a member, `BrokerError` for a partition
        that the coordinator refuses (the others are committed), and `ClientTimeout` if it is not
        known whether the offsets are committed. Raises `ClientClosed` while another task closes the
        consumer, unless a callback commits.
        """
        await self.commit_from(offsets, is_callback=False)

    def commit_async(
        self, offsets: OffsetsToCommit | None = None, *, on_commit: OnCommit | None = None
    ) -> None:
        """Commit offsets in the background, after the commits before. Arguments as for `commit`.

        The name is that of Java's and kafka-python's clients. Commits that gather while one is in
        flight are sent as one, with the last offset of each partition. `on_commit` is a plain
        function, called in the loop with the offsets and with None or the error. If it raises, the
        consumer ends with that error. Without it an error is logged. `commit`, a rebalance and
        `close` wait for these commits. Raises `ClientClosed`, and `TypeError` and `ValueError` for
        what is no offset.
        """
        self.commit_async_from(offsets, on_commit, is_callback=False)

    def commit_async_from(
        self, offsets: OffsetsToCommit | None, on_commit: OnCommit | None, *, is_callback: bool
    ) -> None:
        """As `commit_async`. `is_callback`: whether a rebalance callback is the caller."""
        self._open_group().commit_async(offsets, on_commit, is_callback=is_callback)

    async def commit_from(self, offsets: OffsetsToCommit | None, *, is_callback: bool) -> None:
        """As `commit`. `is_callback`: whether a rebalance callback is the caller."""
        await self._open_group().commit(offsets, is_callback=is_callback)

    def committable_offsets(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return what `commit` without an argument would commit now: the positions, each after the
        last record that was returned."""
        self._open_cluster()
        return self._delivered.committable_offsets()

    def group_metadata(self) -> ConsumerGroupMetadata:
        """Return the group, and this consumer's membership in it as of now, for
        `Producer.send_offsets_to_transaction`. Raises `CommitFailed` if it is not a member any
        more."""
        return self._open_group().metadata()

    async def committed(
        self, *partitions: TopicPartition
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Return the offset that the group has committed of each partition; None without one.

        Raises `BrokerError` and `ClientTimeout`.
        """
        group = self._open_group()
        return await group.committed(
            [TopicPartition(*n) for n in partitions or self._delivered.assignment]
        )

    # -- their records

    async def poll(self, timeout_s: float = float("inf")) -> list[ConsumerRecord[K, V]]:
        """Wait at most `timeout_s` for records and return them; an empty list if none came. With 0
        it returns what has arrived.

        In a group, `poll` takes part in rebalances, and waits for them beyond `timeout_s`.
        Raises `PositionError`, `DeserializationFailed`, `ClientClosed`, what a callback raises, and
        `BrokerError` if the group refuses this consumer.
        """
        fetcher = self._open_fetcher()
        if not self._has_chosen:
            raise ClientError(NOTHING_CHOSEN)
        fetcher.start()
        self._delivered.mark_done()
        self._reader = trio.lowlevel.current_task()
        deadline = trio.current_time() + timeout_s
        if self._group is None:
            return await self._wait_for_records(deadline)
        self._group.begin_poll()
        try:
            return await self._wait_for_records(deadline)
        finally:
            self._group.end_poll()

    async def _wait_for_records(self, deadline: float) -> list[ConsumerRecord[K, V]]:
        arrived = self._open_fetcher().arrived
        await trio.lowlevel.checkpoint()
        while True:
            if self._is_closing:
                raise ClientClosed("this consumer was closed")
            may_take = self._group is None or await self._group.advance()
            if may_take and self._on_partition_eof is not None:
                self._positions.report_ends(self._on_partition_eof)
            until = deadline
            try:
                if may_take and (records := self._poll_queued()):
                    return records
            except PositionError as failure:
                until = self._failure_pace.raise_at(failure, trio.current_time(), deadline)
                if trio.current_time() >= until:
                    raise
            if trio.current_time() >= deadline:
                return []
            with trio.move_on_at(until):
                await arrived.park()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ConsumerRecord[K, V]:
        for record in self._delivered.buffered:
            return record
        return next(await self.poll_iterator())

    async def poll_iterator(
        self, timeout_s: float = float("inf"), *, as_one: bool = False
    ) -> Iterator[ConsumerRecord[K, V]]:
        """Poll, and return an iterator. Only records taken from it count as returned.

        At the next call of any method the records left in it go back, and the iterator is empty.
        `as_one`: the caller takes all records at once or none, and they count as one poll's.
        """
        return self._delivered.iterate(await self.poll(timeout_s), as_one=as_one)

    def statistics(self) -> ConsumerStatistics:
        """Return the assigned partitions' number and the buffered bytes."""
        return ConsumerStatistics(len(self._positions.assignment), self._positions.queued_bytes)

    # -- inside

    def _open_fetcher(self) -> Fetcher:
        self._open_cluster()
        assert self._fetcher is not None
        return self._fetcher

    def _open_cluster(self) -> Cluster:
        if self._cluster is None:
            raise ClientClosed("this consumer is closed, or was not opened with `async with`")
        return self._cluster

    def _open_group(self) -> ConsumerGroup:
        self._open_cluster()
        if self._group is None:
            raise ClientError("this consumer is in no group: give it a group_id")
        return self._group

    def _poll_queued(self) -> list[ConsumerRecord[K, V]]:
        fetcher = self._open_fetcher()
        stored = self._positions.take_records(self._options.max_poll_records, trio.current_time())
        fetcher.wake()
        records = self._deserialize(stored)
        if self._ledger is not None and records:
            try:
                self._ledger.record(stored[: len(records)])
            except OSError:
                self._positions.give_back(stored[: len(records)])
                raise
        return records

    def _deserialize(self, records: list[Any]) -> list[ConsumerRecord[K, V]]:
        """Deserialize records. After a failure the rest goes back: the next poll begins with the
        bad record, and raises."""
        if not self._deserializers:
            return records
        try:
            done, failure = self._deserializers.deserialize(records)
        except BaseException:  # an interrupt
            self._positions.give_back(records)
            raise
        if failure is not None:
            self._positions.give_back(records[len(done) :])
            if not done:
                raise failure
        return done

    def _record_commit(self, answer: CommitAnswer) -> None:
        if self._ledger is not None:
            self._ledger.record_commit(answer)

    def _record_jump(self, name: TopicPartition, offset: int) -> None:
        assert self._ledger is not None
        with suppress(OSError):  # the ledger keeps the line, and the next poll raises
            self._ledger.record_jump(name, offset)

    def _seek_to(self, partitions: tuple[TopicPartition, ...], sentinel: int) -> None:
        self._delivered.return_buffered()
        for name in partitions or self.assignment:
            self._positions.seek_to(name, sentinel)
        self._open_fetcher().fetch_now()

    async def _offsets(
        self, partitions: tuple[TopicPartition, ...], sentinel: int
    ) -> dict[TopicPartition, int]:
        names = [TopicPartition(*name) for name in partitions or self.assignment]
        wanted = dict.fromkeys(names, sentinel)
        found = await list_offsets(self._open_cluster(), wanted)
        return {name: answer.offset for name, answer in found.items()}
