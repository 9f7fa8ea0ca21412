"""A consumer: of partitions that the application names, or as a member of a group.

    async with Consumer("127.0.0.1:9092", auto_offset_reset="earliest") as consumer:
        await consumer.assign_topics("events")
        async for record in consumer:
            ...

    async with Consumer("127.0.0.1:9092", group_id="workers") as consumer:
        await consumer.subscribe("events")
        async for record in consumer:
            ...

`poll` returns what has come, up to `max.poll.records`; iterating polls and hands out one record
after the other. Both may be mixed: what iteration has taken and not handed out goes back first.
A position is always behind the last record handed out, never behind one that the application has
not seen. Records come in order within a partition, each once, and only what is committed.

`PositionError` (a gap that no policy covers, damaged data) concerns one partition, which stands
still until the application seeks; every poll raises it until then, so that it is not overlooked.

Members of a group share the partitions of what they subscribe to. Each partition begins behind what
the group has committed, else where `auto.offset.reset` says. With `enable.auto.commit` (the
default) that is what the application has come back from: the records of earlier polls, and those
that iteration has handed out before the current one; they are committed every
`auto.commit.interval.ms`, before a partition goes to another member, and at the end. What an
exception interrupted is not, and is read again. Whoever commits by itself, after its work, turns it
off. Either way a record is read again after a crash, rather than not at all (K6, CCO-06).
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Generic, NamedTuple, Self, Unpack

import trio

from minibroker.client.consumer.assigned_partition import OffsetAndMetadata, Offsets
from minibroker.client.consumer.completed_fetch import ConsumerRecord
from minibroker.client.consumer.delivered_positions import DeliveredPositions
from minibroker.client.consumer.deserializers import Deserializers
from minibroker.client.consumer.fetcher import Fetcher
from minibroker.client.consumer.health import ConsumerHealth, describe
from minibroker.client.consumer.positions import OnPartitionEof, Positions
from minibroker.client.errors import ClientClosed, ClientError
from minibroker.client.groups.consumer_group import (
    Callback,
    ConsumerGroup,
    RebalanceCallbacks,
)
from minibroker.client.groups.offset_commits import OffsetsToCommit
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
    """What a consumer holds: assigned partitions, and bytes fetched but not yet returned."""

    partition_count: int
    queued_bytes: int


class Consumer(Generic[K, V]):
    """Reads records, of partitions that the application names or as a member of a group.

        async with Consumer("127.0.0.1:9092", group_id="billing") as consumer:
            await consumer.subscribe("orders")
            async for record in consumer:
                print(record.partition, record.offset, record.value)

    Members of a group share the partitions. What the loop has come back from is committed now and
    then, and at the end. One task polls or iterates; any may call the rest. docs/consumer.md has
    every option and error.

    Options are Kafka's, as keywords or as a mapping of dotted names (`ConfigError`). Where
    `partitions` may be left out, all assigned ones are meant. `ledger` is a file for every record
    that a poll returns, as JSON lines (client/ledger.py); iteration polls, too, and a record that
    it gives back is told again. `on_statistics` is a plain function, called in the loop with
    `statistics()` every statistics.interval.ms; what it raises ends the consumer.
    `on_partition_eof` is one that a poll calls with a partition and its end, as last heard, once
    earlier polls have returned all before it. It is called again when more has come and was
    returned, and after a seek. What it raises, the poll raises.
    `key_deserializer` and `value_deserializer` are functions of bytes. A poll calls them, but not
    for None, and raises `DeserializationFailed` for a record once those before it were returned.
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
        self._reader: trio.lowlevel.Task | None = None  # who polls
        self._has_chosen = False  # something to read
        self._is_closing = False
        self._closed = trio.Event()

    async def run(self, *, task_status: trio.TaskStatus[Any] = trio.TASK_STATUS_IGNORED) -> None:
        """Be open until `close`, or until cancelled, which leaves the group without a commit."""
        async with self:
            task_status.started(self)
            await self._closed.wait()

    async def __aenter__(self) -> Self:
        check_trio()
        async with AsyncExitStack() as stack:
            if self._ledger_path is not None:
                ledger = ConsumerLedger(
                    self._ledger_path, self._seams.wall_ms, self._positions.topic_id
                )
                self._ledger = stack.enter_context(ledger)
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

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        return await self._stack.__aexit__(kind, error, traceback)

    async def close(self, timeout_s: float = CLOSE_S) -> None:
        """Commit what may be committed, leave the group, read no more: in this time, whoever
        answers. Whoever waits in `poll` gets `ClientClosed` at once.

        Called by another task than that which polls, it does not commit what that one may still be
        working on. `on_revoked` is told of all partitions; what it raises comes out.
        """
        await self.close_from(timeout_s, is_reader=trio.lowlevel.current_task() is self._reader)

    async def close_from(self, timeout_s: float, *, is_reader: bool, may_call: bool = True) -> None:
        """The same, for one who knows who calls: with `is_reader` all that was handed out is done.

        `may_call`: whether callbacks are called.
        """
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
                    await self._group.close(may_call=may_call)
            finally:
                self._cluster = None
                self._closed.set()
        if scope.cancelled_caught:
            log.warning("closed after %g s, before the group has answered", timeout_s)

    async def _end(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        """The block is left. Interrupted, by a cancellation too, it leaves the group at once.

        What another task polled may not be done, and is not committed: see `close`.
        After `sys.exit` it does so in order, but the records of the last poll are not committed:
        the program may have given up on it.
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
        """The assigned partitions, by name."""
        return self._positions.assignment

    async def assign_topics(self, *topics: Topics) -> list[TopicPartition]:
        """Read all partitions of these topics, and only them. Returns the partitions.

        Topics are names, or one list of names.

        Those that a topic is given later are not read until this is called again.
        Raises `BrokerError` for a topic that cannot be read, and `ClientTimeout`.
        """
        cluster = self._open_cluster()
        names = []
        for topic in name_topics(topics):
            metadata = await cluster.topic(topic)
            names += [TopicPartition(topic, each.partition) for each in metadata.partitions]
        self.assign(names)
        return names

    def assign(self, partitions: Iterable[tuple[str, int]]) -> None:
        """Read these partitions, and only them. One that was assigned before goes on.

        Raises `ClientError` for who is subscribed.
        """
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
        """Return nothing of these until `resume`; they keep their positions."""
        self._delivered.return_buffered()
        for name in partitions or self.assignment:
            self._positions.pause(name)
        self._open_fetcher().wake()

    def resume(self, *partitions: TopicPartition) -> None:
        """End a pause."""
        for name in partitions or self.assignment:
            self._positions.resume(name)
        self._open_fetcher().fetch_now()

    # -- where in them

    def position(self, partition: TopicPartition) -> int | None:
        """The offset of the next record; None while the broker was not asked where to begin."""
        return self._delivered.position(partition)

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Go on at this offset, or at the first record behind it."""
        self._delivered.return_buffered()
        self._positions.seek(partition, offset)
        self._open_fetcher().fetch_now()

    def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """Go on at the earliest record there is."""
        self._seek_to(partitions, EARLIEST_TIMESTAMP)

    def seek_to_end(self, *partitions: TopicPartition) -> None:
        """Go on with what comes after now."""
        self._seek_to(partitions, LATEST_TIMESTAMP)

    async def seek_to_time(self, timestamp_ms: int, *partitions: TopicPartition) -> None:
        """Go on at the first record of this time or later; at the end where none is as late."""
        if not 0 <= timestamp_ms <= INT64_MAX:
            raise ValueError(f"a time is 0 to {INT64_MAX} ms, not {timestamp_ms}")
        names = [TopicPartition(*name) for name in partitions or self.assignment]
        found = await find_time(self._open_cluster(), names, timestamp_ms)
        for name, offset in found.items():
            self.seek(name, offset)

    async def beginning_offsets(self, *partitions: TopicPartition) -> dict[TopicPartition, int]:
        """The earliest offset of each. Raises `BrokerError` and `ClientTimeout`."""
        return await self._offsets(partitions, EARLIEST_TIMESTAMP)

    async def end_offsets(self, *partitions: TopicPartition) -> dict[TopicPartition, int]:
        """The offset behind the last readable record of each, as of now. Raises the same.

        A record that was sent with acks=1 or 0 may become readable later.
        """
        return await self._offsets(partitions, LATEST_TIMESTAMP)

    async def offsets_for_times(
        self, times: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """For each partition the first record at or after a time (ms since 1970), None where none
        is as late. Raises the same.
        """
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
        """The numbers of a topic's partitions.

        Raises `BrokerError` for a topic that does not exist, and `ClientTimeout`.
        """
        [name] = name_topics((topic,))
        return {each.partition for each in (await self._open_cluster().topic(name)).partitions}

    async def lag(self, *partitions: TopicPartition) -> dict[TopicPartition, int | None]:
        """How far each is behind its end; None while it has no position. Raises the same."""
        ends = await self.end_offsets(*partitions)
        positions = {name: self.position(name) for name in ends}
        return {
            name: None if (offset := positions[name]) is None else max(0, ends[name] - offset)
            for name in ends
        }

    def health(self) -> ConsumerHealth:
        """Whether it is a member, and when each partition moved last."""
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
        """Share these topics with the group, from the next poll: names, one list of names, or a
        pattern, as a compiled regular expression or a text that begins with `^`.

        They take the place of what was subscribed to before. A topic that does not exist is logged
        once, and read when it is created. The callbacks are async functions of a list of
        partitions, and are called inside of polls, `unsubscribe` and `close`; they may call
        anything but these. `on_revoked` comes before partitions go to others, and may commit;
        `on_lost`, or `on_revoked` where there is none, when that is too late.
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
        """Let go of all partitions, and leave the group. Raises what `on_revoked` raises."""
        group = self._open_group()
        self._delivered.return_buffered()
        await group.unsubscribe()

    @property
    def subscription(self) -> list[str]:
        """The topics that are subscribed to, by name; those of a pattern as of the last look."""
        return self._open_group().subscription

    async def commit(self, offsets: OffsetsToCommit | None = None) -> None:
        """Commit how far the group has come, and wait until the coordinator has it.

            await consumer.commit()                               all that was handed out
            await consumer.commit(record)                         up to and with this record
            await consumer.commit({TopicPartition("t", 0): 7})    the next offset to read

        Without an argument that is all positions, which are behind all records that were handed
        out, so call it when they are done with. What `commit_async` has begun is done first.

        Raises `CommitFailed` for who is no member any more, `BrokerError` for a partition that is
        refused (the others are committed), and `ClientTimeout` when nobody knows. While another
        task closes the consumer, positions are no longer committed, but for callbacks:
        `ClientClosed`.
        """
        await self.commit_from(offsets, is_callback=False)

    def commit_async(
        self, offsets: OffsetsToCommit | None = None, *, on_commit: OnCommit | None = None
    ) -> None:
        """The same without waiting: the commit is sent in the background, after those before it.

        The name is that of Java's and kafka-python's clients. Commits that gather while one is
        under way are sent as one, the last offset of each partition. `on_commit` is a plain
        function, called in the loop with the offsets and with None or the error; what it raises
        ends the consumer. Without it an error is logged. `commit`, a rebalance and `close` wait
        for it. Raises `ClientClosed`, and `TypeError` and `ValueError` for what is no offset.
        """
        self.commit_async_from(offsets, on_commit, is_callback=False)

    def commit_async_from(
        self, offsets: OffsetsToCommit | None, on_commit: OnCommit | None, *, is_callback: bool
    ) -> None:
        """The same; `is_callback`: whether a rebalance callback is the caller."""
        self._open_group().commit_async(offsets, on_commit, is_callback=is_callback)

    async def commit_from(self, offsets: OffsetsToCommit | None, *, is_callback: bool) -> None:
        """The same; `is_callback`: whether a rebalance callback is the caller."""
        await self._open_group().commit(offsets, is_callback=is_callback)

    async def committed(
        self, *partitions: TopicPartition
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """What the group has committed of each; None where nothing was.

        Raises `BrokerError` and `ClientTimeout`.
        """
        group = self._open_group()
        return await group.committed(
            [TopicPartition(*n) for n in partitions or self._delivered.assignment]
        )

    # -- what is in them

    async def poll(self, timeout_s: float = float("inf")) -> list[ConsumerRecord[K, V]]:
        """Wait for records; none if none came in time. 0 takes what is there.

        In a group, rebalances happen in here, and are waited for whatever the time.
        Raises `PositionError`, `ClientClosed`, what a callback raises, and `BrokerError` where the
        group refuses this consumer.
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
                self._positions.tell_ends(self._on_partition_eof)
            if may_take and (records := self._take()):
                return records
            if trio.current_time() >= deadline:
                return []
            with trio.move_on_at(deadline):
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
        """As `poll`, but only what is taken from the iterator counts as returned.

        What is left in it at the next call of anything goes back, and the iterator is empty then.
        `as_one`: it is taken from all at once, or not at all, and counts as one poll's return.
        """
        return self._delivered.iterate(await self.poll(timeout_s), as_one=as_one)

    def statistics(self) -> ConsumerStatistics:
        """What it holds now."""
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

    def _take(self) -> list[ConsumerRecord[K, V]]:
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
        """What is not deserialized goes back: the next poll begins with it, and raises."""
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

    def _record_commit(self, group: str, offsets: Offsets) -> None:
        if self._ledger is not None:
            self._ledger.record_commit(group, offsets)

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
