"""The consumer for programs without a trio loop.

`poll` and iteration take a poll's worth of records (`max.poll.records`) in the loop, which goes on
fetching while they are worked on. They come as an iterator that the loop's consumer watches
(client/blocking/reader.py): an interrupt of a poll loses nothing, neither while it waits nor when
its records are there already: the next poll returns them.

Callbacks of a group are called in a thread of their own, one at a time, while the caller waits in
its poll (client/blocking/callbacks.py).
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import chain
from operator import length_hint
from pathlib import Path
from threading import current_thread
from time import monotonic
from types import TracebackType
from typing import Generic, Self, Unpack

from minibroker.client.blocking.callbacks import Callback, thread_callbacks
from minibroker.client.blocking.methods import ask, asking, waiting
from minibroker.client.blocking.portal import Portal
from minibroker.client.blocking.reader import Reader
from minibroker.client.committed_offsets import OffsetsToCommit
from minibroker.client.consumer.completed_fetch import ConsumerRecord
from minibroker.client.consumer.consumer import CLOSE_S, ConsumerStatistics
from minibroker.client.consumer.consumer import Consumer as TrioConsumer
from minibroker.client.consumer.positions import OnPartitionEof
from minibroker.client.errors import ClientClosed
from minibroker.client.groups.queued_commits import OnCommit
from minibroker.client.option_types import ConsumerConfig, ConsumerKeywords
from minibroker.client.options import Seams, Servers
from minibroker.client.serialization import K, V
from minibroker.client.topic_selection import TopicsOrPattern
from minibroker.protocol.types import TopicPartition


class Consumer(Generic[K, V]):
    """As `minibroker.client.Consumer`, with plain methods.

        with Consumer("127.0.0.1:9092", group_id="billing") as consumer:
            consumer.subscribe("orders")
            for record in consumer:
                print(record.partition, record.offset, record.value)

    Used with `with`, or from `start()` to `close()`. One that is dropped without either leaves its
    group, and commits nothing.

    One thread polls or iterates. `close` may be called from any: it ends the wait of that one.

    `on_statistics`, `on_partition_eof` and deserializers are called in the thread of the loop, so
    they must not block.
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
        self._client: TrioConsumer[K, V] = TrioConsumer(
            bootstrap_servers,
            on_statistics=on_statistics,
            on_partition_eof=on_partition_eof,
            ledger=ledger,
            key_deserializer=key_deserializer,
            value_deserializer=value_deserializer,
            seams=seams,
            **options,
        )
        self._portal = Portal("minibroker-consumer", self._client)
        self._reader: Reader[K, V] = Reader(self._client)
        self._callbacks = thread_callbacks()

    def start(self) -> Self:
        """Begin, and return the consumer: what `with` does. `close` ends it."""
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
        """Commit what the block was done with and leave the group, as `close` does.

        After an exception or `sys.exit` the records of the last poll count as not done, and so they
        do if another thread polled them. After an interrupt (KeyboardInterrupt, GeneratorExit) it
        takes a second at most.
        """
        if error is None:
            with suppress(ClientClosed):  # it was forked
                self.close()
        else:
            self._portal.close(error)

    def close(self, timeout_s: float = CLOSE_S) -> None:
        """Commit what may be committed, leave the group, read no more: in this time, whoever
        answers. A thread that polls or iterates gets `ClientClosed` at once, one that waits in
        another call at the end. May be repeated.

        Called by another thread than that which polls, it does not commit what that one may still
        be working on.
        """
        self._callbacks.check_outside()
        is_reader = current_thread() is self._reader.caller
        self._portal.finish(partial(self._client.close_from, timeout_s, is_reader=is_reader))

    assign_topics = waiting(TrioConsumer.assign_topics)
    assign = asking(TrioConsumer.assign)
    pause = asking(TrioConsumer.pause)
    resume = asking(TrioConsumer.resume)
    position = asking(TrioConsumer.position)
    seek = asking(TrioConsumer.seek)
    seek_to_beginning = asking(TrioConsumer.seek_to_beginning)
    seek_to_end = asking(TrioConsumer.seek_to_end)
    seek_to_time = waiting(TrioConsumer.seek_to_time)
    beginning_offsets = waiting(TrioConsumer.beginning_offsets)
    end_offsets = waiting(TrioConsumer.end_offsets)
    offsets_for_times = waiting(TrioConsumer.offsets_for_times)
    partitions_for_topic = waiting(TrioConsumer.partitions_for_topic)
    lag = waiting(TrioConsumer.lag)
    committed = waiting(TrioConsumer.committed)
    committable_offsets = asking(TrioConsumer.committable_offsets)
    group_metadata = asking(TrioConsumer.group_metadata)
    health = asking(TrioConsumer.health)
    statistics = asking(TrioConsumer.statistics)

    @property
    def assignment(self) -> list[TopicPartition]:
        """The assigned partitions, by name."""
        return ask(self._portal, lambda: self._client.assignment)

    def subscribe(
        self,
        *topics: TopicsOrPattern,
        on_assigned: Callback | None = None,
        on_revoked: Callback | None = None,
        on_lost: Callback | None = None,
    ) -> None:
        """Share these topics with the group, from the next poll: names, one list of names, or a
        pattern, as a compiled regular expression or a text that begins with ^.

        The callbacks are plain functions of a list of partitions.
        """
        subscribe = partial(
            self._client.subscribe,
            *topics,
            on_assigned=self._callbacks.wrap(on_assigned),
            on_revoked=self._callbacks.wrap(on_revoked),
            on_lost=self._callbacks.wrap(on_lost),
        )
        self._portal.call(subscribe)

    def unsubscribe(self) -> None:
        """Let go of all partitions, and leave the group. Raises what `on_revoked` raises."""
        self._callbacks.check_outside()
        self._portal.call(self._client.unsubscribe)

    @property
    def subscription(self) -> list[str]:
        """The topics that are subscribed to, by name; those of a pattern as of the last look."""
        return ask(self._portal, lambda: self._client.subscription)

    def commit(self, offsets: OffsetsToCommit | None = None) -> None:
        """Commit a record, these offsets, or else all positions, which are behind all that was
        handed out."""
        is_callback = self._callbacks.is_inside
        self._portal.call(partial(self._client.commit_from, offsets, is_callback=is_callback))

    def commit_async(
        self, offsets: OffsetsToCommit | None = None, *, on_commit: OnCommit | None = None
    ) -> None:
        """The same without waiting. `on_commit` is called in the thread of the loop, with the
        offsets and with None or the error."""
        is_callback = self._callbacks.is_inside
        ask(
            self._portal,
            lambda: self._client.commit_async_from(offsets, on_commit, is_callback=is_callback),
        )

    def poll(self, timeout_s: float = float("inf")) -> list[ConsumerRecord[K, V]]:
        """Wait for records; none if none came in time. 0 takes what is there.

        After an interrupt (KeyboardInterrupt) the next poll returns what this one had taken. That
        holds for `consumer.poll(...)` in a statement of its own, and not where C code calls it, as
        `functools.partial` does.
        """
        self._callbacks.check_outside()
        deadline = monotonic() + timeout_s
        while True:
            left_s = max(0.0, deadline - monotonic())
            records = self._poll(left_s, as_one=True)
            if length_hint(records) or not left_s:  # a rebalance may have taken them back
                # One line, and no call between taking the records and returning them: nothing in
                # between can be interrupted.
                return [*records]

    def __iter__(self) -> Iterator[ConsumerRecord[K, V]]:
        # No generator: Python closes that of a loop which is left by `break`, and swallows an
        # interrupt there (seen in 3.13).
        return chain.from_iterable(iter(self._poll_to_iterate, None))

    def _poll_to_iterate(self) -> Iterator[ConsumerRecord[K, V]] | None:
        """Return the records of one poll to iterate over; never None, which would end it."""
        self._callbacks.check_outside()
        return self._poll(float("inf"), as_one=False)

    def _poll(self, timeout_s: float, *, as_one: bool) -> Iterator[ConsumerRecord[K, V]]:
        poll = self._reader.new_poll(current_thread(), timeout_s, as_one=as_one)
        return self._portal.call(self._reader.poll_iterator, poll)
