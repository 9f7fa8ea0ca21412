"""The consumer for asyncio programs.

`poll` and iteration take a poll's worth of records (`max.poll.records`) in the loop, which goes on
fetching while they are worked on. They come as an iterator that the loop's consumer watches
(client/blocking/reader.py): a poll that is cancelled loses nothing, neither while it waits nor when
its records are there already: the next poll returns them.

Callbacks of a group run as tasks of asyncio, one at a time, while the caller waits in its poll
(client/blocking/callbacks.py).

What is not `async` in the trio client is not here, either: it waits for a turn of the client's
loop, some ten microseconds, while asyncio's stands still.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from operator import length_hint
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import Generic, Self, Unpack

from minibroker.client.asyncio.callbacks import CallbackTasks, EventLoopCallback
from minibroker.client.asyncio.methods import asking, awaiting
from minibroker.client.asyncio.portal import AsyncioPortal
from minibroker.client.blocking.methods import ask
from minibroker.client.blocking.portal import Portal
from minibroker.client.blocking.reader import Reader
from minibroker.client.committed_offsets import OffsetsToCommit
from minibroker.client.consumer.completed_fetch import ConsumerRecord
from minibroker.client.consumer.consumer import CLOSE_S, ConsumerStatistics
from minibroker.client.consumer.consumer import Consumer as TrioConsumer
from minibroker.client.consumer.positions import OnPartitionEof
from minibroker.client.errors import ClientClosed
from minibroker.client.groups.consumer_group import Callback
from minibroker.client.groups.queued_commits import OnCommit
from minibroker.client.option_types import ConsumerConfig, ConsumerKeywords
from minibroker.client.options import Seams, Servers
from minibroker.client.serialization import K, V, check_function
from minibroker.client.topic_selection import TopicsOrPattern
from minibroker.protocol.types import TopicPartition


class Consumer(Generic[K, V]):
    """As `minibroker.client.Consumer`, from tasks of asyncio.

        async with Consumer("127.0.0.1:9092", group_id="billing") as consumer:
            await consumer.subscribe("orders")
            async for record in consumer:
                print(record.partition, record.offset, record.value)

    Used with `async with`, or from `start()` to `close()`. One that is dropped without either
    leaves its group, and commits nothing.

    One task polls or iterates. `close` may be called from any: it ends the wait of that one. A poll
    has a timeout of its own: `asyncio.wait_for` polls in another task where Python is older than
    3.12, and `close` then does not know that the task that calls it is done with the records.

    `on_statistics` and `on_partition_eof` are called in the event loop that started the consumer,
    as by `call_soon`; deserializers in the client's own thread, so they must not block.
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
        self._on_statistics = None if on_statistics is None else EventLoopCallback(on_statistics)
        check_function(on_partition_eof, "on_partition_eof")
        self._on_partition_eof = (
            None if on_partition_eof is None else EventLoopCallback(on_partition_eof)
        )
        self._client: TrioConsumer[K, V] = TrioConsumer(
            bootstrap_servers,
            on_statistics=self._on_statistics,
            on_partition_eof=self._on_partition_eof,
            ledger=ledger,
            key_deserializer=key_deserializer,
            value_deserializer=value_deserializer,
            seams=seams,
            **options,
        )
        self._portal = AsyncioPortal(Portal("minibroker-consumer", self._client))
        self._reader: Reader[K, V] = Reader(self._client)
        self._callbacks = CallbackTasks()
        self._records: Iterator[ConsumerRecord[K, V]] = iter(())  # of iteration

    async def start(self) -> Self:
        """Begin, and return the consumer: what `async with` does. `close` ends it."""
        for callback in (self._on_statistics, self._on_partition_eof):
            if callback is not None:
                callback.loop = asyncio.get_running_loop()
        await self._portal.open(self)
        return self

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Commit what the block was done with and leave the group, as `close` does.

        After an exception or `sys.exit` the records of the last poll count as not done, and so they
        do if another task polled them. Where the block was cancelled it takes a second at most.
        """
        if error is None:
            with suppress(ClientClosed):  # it was forked
                await self.close()
        else:
            await self._portal.close(error)

    async def close(self, timeout_s: float = CLOSE_S) -> None:
        """Commit what may be committed, leave the group, read no more: in this time, whoever
        answers. A task that polls or iterates gets `ClientClosed` at once, one that waits in
        another call at the end. May be repeated.

        Called by another task than that which polls, it does not commit what that one may still
        be working on.
        """
        self._callbacks.enter()
        is_reader = asyncio.current_task() is self._reader.caller
        await self._portal.finish(partial(self._client.close_from, timeout_s, is_reader=is_reader))

    assign_topics = awaiting(TrioConsumer.assign_topics)
    assign = asking(TrioConsumer.assign)
    pause = asking(TrioConsumer.pause)
    resume = asking(TrioConsumer.resume)
    position = asking(TrioConsumer.position)
    seek = asking(TrioConsumer.seek)
    seek_to_beginning = asking(TrioConsumer.seek_to_beginning)
    seek_to_end = asking(TrioConsumer.seek_to_end)
    seek_to_time = awaiting(TrioConsumer.seek_to_time)
    beginning_offsets = awaiting(TrioConsumer.beginning_offsets)
    end_offsets = awaiting(TrioConsumer.end_offsets)
    offsets_for_times = awaiting(TrioConsumer.offsets_for_times)
    partitions_for_topic = awaiting(TrioConsumer.partitions_for_topic)
    lag = awaiting(TrioConsumer.lag)
    committed = awaiting(TrioConsumer.committed)
    committable_offsets = asking(TrioConsumer.committable_offsets)
    group_metadata = asking(TrioConsumer.group_metadata)
    health = asking(TrioConsumer.health)
    statistics = asking(TrioConsumer.statistics)

    @property
    def assignment(self) -> list[TopicPartition]:
        """The assigned partitions, by name."""
        return ask(self._portal.portal, lambda: self._client.assignment)

    async def subscribe(
        self,
        *topics: TopicsOrPattern,
        on_assigned: Callback | None = None,
        on_revoked: Callback | None = None,
        on_lost: Callback | None = None,
    ) -> None:
        """Share these topics with the group, from the next poll: names, one list of names, or a
        pattern, as a compiled regular expression or a text that begins with ^.

        The callbacks are async functions of a list of partitions, and run as tasks of this event
        loop.
        """
        subscribe = partial(
            self._client.subscribe,
            *topics,
            on_assigned=self._callbacks.wrap(on_assigned),
            on_revoked=self._callbacks.wrap(on_revoked),
            on_lost=self._callbacks.wrap(on_lost),
        )
        await self._portal.call(subscribe)

    async def unsubscribe(self) -> None:
        """Let go of all partitions, and leave the group. Raises what `on_revoked` raises."""
        self._callbacks.enter()
        await self._portal.call(self._client.unsubscribe)

    @property
    def subscription(self) -> list[str]:
        """The topics that are subscribed to, by name; those of a pattern as of the last look."""
        return ask(self._portal.portal, lambda: self._client.subscription)

    async def commit(self, offsets: OffsetsToCommit | None = None) -> None:
        """Commit a record, these offsets, or else all positions, which are behind all that was
        handed out."""
        is_callback = self._callbacks.is_inside
        await self._portal.call(partial(self._client.commit_from, offsets, is_callback=is_callback))

    def commit_async(
        self, offsets: OffsetsToCommit | None = None, *, on_commit: OnCommit | None = None
    ) -> None:
        """The same without waiting. `on_commit` is called in this event loop, with the offsets and
        with None or the error."""
        is_callback = self._callbacks.is_inside
        callback = None if on_commit is None else EventLoopCallback(on_commit)
        if callback is not None:
            callback.loop = asyncio.get_running_loop()
        ask(
            self._portal.portal,
            lambda: self._client.commit_async_from(offsets, callback, is_callback=is_callback),
        )

    async def poll(self, timeout_s: float = float("inf")) -> list[ConsumerRecord[K, V]]:
        """Wait for records; none if none came in time. 0 takes what is there.

        After a cancellation the next poll returns what this one had taken.
        """
        deadline = monotonic() + timeout_s
        while True:
            left_s = max(0.0, deadline - monotonic())
            records = await self._poll(left_s, as_one=True)
            if length_hint(records) or not left_s:  # a rebalance may have taken them back
                return list(records)  # what is taken is returned: nothing waits in between

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ConsumerRecord[K, V]:
        while True:
            for record in self._records:
                return record
            self._records = await self._poll(float("inf"), as_one=False)

    async def _poll(self, timeout_s: float, *, as_one: bool) -> Iterator[ConsumerRecord[K, V]]:
        self._callbacks.enter()
        poll = self._reader.new_poll(asyncio.current_task(), timeout_s, as_one=as_one)
        try:
            return await self._portal.call(self._reader.poll_iterator, poll)
        except BaseException:
            poll.is_abandoned = True
            raise
