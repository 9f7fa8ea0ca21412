"""The consumer for programs without a trio loop.

`poll` and iteration take a poll's worth of records (`max.poll.records`) in the loop, which goes on
fetching while they are worked on. They come as an iterator that the loop's consumer watches: what
was not taken from it goes back with the next call. So an interrupt of a poll loses nothing, neither
while it waits nor when its records are there already: the next poll returns them. A poll that was
interrupted ends before the next one of the same thread begins.

Callbacks of a group are called in a thread of their own, one at a time, while the caller waits in
its poll, so they may call the consumer, except for what they are called by: `poll`, `unsubscribe`
and `close`, which raise `ClientError` there.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from itertools import chain, count
from operator import length_hint
from pathlib import Path
from threading import Thread, current_thread
from time import monotonic
from types import TracebackType
from typing import Final, NamedTuple, Self, TypeAlias, TypeVar, Unpack

import trio
from outcome import Outcome

from minibroker.client.blocking.portal import Portal
from minibroker.client.consumer.assigned_partition import OffsetAndMetadata
from minibroker.client.consumer.completed_fetch import ConsumerRecord
from minibroker.client.consumer.consumer import CLOSE_S, ConsumerStatistics, OffsetAndTimestamp
from minibroker.client.consumer.consumer import Consumer as TrioConsumer
from minibroker.client.consumer.health import ConsumerHealth
from minibroker.client.errors import ClientClosed, ClientError
from minibroker.client.groups.consumer_group import INSIDE
from minibroker.client.groups.consumer_group import Callback as TrioCallback
from minibroker.client.groups.offset_commits import OffsetsToCommit
from minibroker.client.groups.queued_commits import OnCommit
from minibroker.client.option_types import ConsumerConfig, ConsumerKeywords
from minibroker.client.options import Seams, Servers
from minibroker.client.topic_selection import Topics, TopicsOrPattern
from minibroker.protocol.types import TopicPartition

INTERRUPTED: Final = "this poll was interrupted"

T = TypeVar("T")
Callback: TypeAlias = Callable[[list[TopicPartition]], object]


class Consumer:
    """As `minibroker.client.Consumer`, with plain methods; used with `with`.

    One thread polls or iterates. `close` may be called from any: it ends the wait of that one.
    """

    def __init__(
        self,
        bootstrap_servers: Servers | ConsumerConfig = None,
        *,
        on_statistics: Callable[[ConsumerStatistics], object] | None = None,
        ledger: Path | str | None = None,
        seams: Seams | None = None,
        **options: Unpack[ConsumerKeywords],
    ) -> None:
        self._consumer = TrioConsumer(
            bootstrap_servers, on_statistics=on_statistics, ledger=ledger, seams=seams, **options
        )
        self._portal = Portal("minibroker-consumer", self._consumer)
        self._reader = _Reader(self._consumer)
        self._numbers = count()  # of polls
        self._callbacks = _CallbackThread()
        self._closing: set[trio.lowlevel.Task] = set()  # in the loop, the calls of `close`

    def __enter__(self) -> Self:
        self._portal.open(self)
        return self

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
        try:
            if error is None:
                with suppress(ClientClosed):  # it has failed, which is raised below, or was forked
                    self.close()
        except BaseException as failure:
            self._portal.close(failure)
            raise
        self._portal.close(error)

    def close(self, timeout_s: float = CLOSE_S) -> None:
        """Commit what may be committed, leave the group, read no more: in this time, whoever
        answers. A thread that polls or iterates gets `ClientClosed` at once, one that waits in
        another call at the end.

        Called by another thread than that which polls, it does not commit what that one may still
        be working on.
        """

        async def close() -> None:
            task = trio.lowlevel.current_task()
            self._closing.add(task)
            try:
                await self._consumer.close_from(timeout_s, is_reader=is_reader)
            finally:
                self._portal.end_calls(but=self._closing)
                self._closing.discard(task)

        self._callbacks.check_outside()
        is_reader = current_thread() is self._reader.thread
        self._portal.call(close)

    @property
    def assignment(self) -> list[TopicPartition]:
        """The assigned partitions, by name."""
        return self._ask(lambda: self._consumer.assignment)

    def assign_topics(self, *topics: Topics) -> list[TopicPartition]:
        """Read all partitions of these topics, and only them. Returns the partitions."""
        return self._portal.call(self._consumer.assign_topics, *topics)

    def assign(self, partitions: Iterable[tuple[str, int]]) -> None:
        """Read these partitions, and only them. One that was assigned before goes on."""
        self._ask(lambda: self._consumer.assign(partitions))

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
            self._consumer.subscribe,
            *topics,
            on_assigned=self._callbacks.wrap(on_assigned),
            on_revoked=self._callbacks.wrap(on_revoked),
            on_lost=self._callbacks.wrap(on_lost),
        )
        self._portal.call(subscribe)

    def unsubscribe(self) -> None:
        """Let go of all partitions, and leave the group. Raises what `on_revoked` raises."""
        self._callbacks.check_outside()
        self._portal.call(self._consumer.unsubscribe)

    @property
    def subscription(self) -> list[str]:
        """The topics that are subscribed to, by name; those of a pattern as of the last look."""
        return self._ask(lambda: self._consumer.subscription)

    def pause(self, *partitions: TopicPartition) -> None:
        """Return nothing of these until `resume`; they keep their positions."""
        self._ask(lambda: self._consumer.pause(*partitions))

    def resume(self, *partitions: TopicPartition) -> None:
        """End a pause."""
        self._ask(lambda: self._consumer.resume(*partitions))

    def position(self, partition: TopicPartition) -> int | None:
        """The offset of the next record; None while the broker was not asked where to begin."""
        return self._ask(lambda: self._consumer.position(partition))

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Go on at this offset, or at the first record behind it."""
        self._ask(lambda: self._consumer.seek(partition, offset))

    def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """Go on at the earliest record there is."""
        self._ask(lambda: self._consumer.seek_to_beginning(*partitions))

    def seek_to_end(self, *partitions: TopicPartition) -> None:
        """Go on with what comes after now."""
        self._ask(lambda: self._consumer.seek_to_end(*partitions))

    def seek_to_time(self, timestamp_ms: int, *partitions: TopicPartition) -> None:
        """Go on at the first record of this time or later; at the end where none is as late."""
        self._portal.call(self._consumer.seek_to_time, timestamp_ms, *partitions)

    def beginning_offsets(self, *partitions: TopicPartition) -> dict[TopicPartition, int]:
        """The earliest offset of each."""
        return self._portal.call(self._consumer.beginning_offsets, *partitions)

    def end_offsets(self, *partitions: TopicPartition) -> dict[TopicPartition, int]:
        """The offset behind the last readable record of each, as of now."""
        return self._portal.call(self._consumer.end_offsets, *partitions)

    def offsets_for_times(
        self, times: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """For each partition the first record at or after a time (ms since 1970)."""
        return self._portal.call(self._consumer.offsets_for_times, times)

    def partitions_for_topic(self, topic: str) -> set[int]:
        """The numbers of a topic's partitions."""
        return self._portal.call(self._consumer.partitions_for_topic, topic)

    def lag(self, *partitions: TopicPartition) -> dict[TopicPartition, int | None]:
        """How far each is behind its end; None while it has no position."""
        return self._portal.call(self._consumer.lag, *partitions)

    def commit(self, offsets: OffsetsToCommit | None = None) -> None:
        """Commit a record, these offsets, or else all positions, which are behind all that was
        handed out."""
        is_callback = self._callbacks.is_inside
        self._portal.call(partial(self._consumer.commit_from, offsets, is_callback=is_callback))

    def commit_async(
        self, offsets: OffsetsToCommit | None = None, *, on_commit: OnCommit | None = None
    ) -> None:
        """The same without waiting. `on_commit` is called in the thread of the loop, with the
        offsets and with None or the error."""
        is_callback = self._callbacks.is_inside
        self._ask(
            lambda: self._consumer.commit_async_from(offsets, on_commit, is_callback=is_callback)
        )

    def committed(
        self, *partitions: TopicPartition
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """What the group has committed of each; None where nothing was."""
        return self._portal.call(self._consumer.committed, *partitions)

    def health(self) -> ConsumerHealth:
        """Whether it is a member, and when each partition moved last."""
        return self._ask(self._consumer.health)

    def poll(self, timeout_s: float = float("inf")) -> list[ConsumerRecord]:
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

    def __iter__(self) -> Iterator[ConsumerRecord]:
        # No generator: Python closes that of a loop which is left by `break`, and swallows an
        # interrupt there (seen in 3.13).
        return chain.from_iterable(iter(self._poll_to_iterate, None))

    def statistics(self) -> ConsumerStatistics:
        """What it holds now."""
        return self._ask(self._consumer.statistics)

    def _poll_to_iterate(self) -> Iterator[ConsumerRecord] | None:
        """Return the records of one poll to iterate over; never None, which would end it."""
        self._callbacks.check_outside()
        return self._poll(float("inf"), as_one=False)

    def _poll(self, timeout_s: float, *, as_one: bool) -> Iterator[ConsumerRecord]:
        poll = _Poll(current_thread(), next(self._numbers), timeout_s, as_one)
        return self._portal.call(self._reader.poll_iterator, poll)

    def _ask(self, function: Callable[[], T]) -> T:
        """Call a plain function in the loop."""

        async def call() -> T:
            return function()

        return self._portal.call(call)


class _Poll(NamedTuple):
    """One call of `poll`, or one round of iteration. `number` grows in each thread."""

    thread: Thread  # its ident may be given to another one, once it has ended
    number: int
    timeout_s: float
    as_one: bool


class _Reader:
    """Polls for one thread at a time. In the loop.

    A thread that polls while an earlier poll of its own is under way was interrupted in that one.
    trio may begin the later task first, so the numbers tell which poll is the earlier.
    """

    def __init__(self, consumer: TrioConsumer) -> None:
        self._consumer = consumer
        self._last: _Poll | None = None
        self._polling = trio.CancelScope()
        self._ended = trio.Event()  # of the last one
        self._ended.set()

    @property
    def thread(self) -> Thread | None:
        """Which thread polled last."""
        return None if self._last is None else self._last.thread

    async def poll_iterator(self, poll: _Poll) -> Iterator[ConsumerRecord]:
        """Poll, once what this thread polled for and was interrupted in has ended."""
        last = self._last
        if last is not None and last.thread is poll.thread:
            if last.number > poll.number:
                raise ClientError(INTERRUPTED)
            self._last = poll  # before it waits: then no third one passes
            self._polling.cancel()
            await self._ended.wait()
            if self._last is not poll:
                raise ClientError(INTERRUPTED)
        if not self._ended.is_set():
            raise ClientError("a consumer is polled by one thread at a time")
        self._last = poll
        self._ended = ended = trio.Event()
        try:
            with trio.CancelScope() as self._polling:
                return await self._consumer.poll_iterator(poll.timeout_s, as_one=poll.as_one)
        finally:
            ended.set()
        raise ClientError(INTERRUPTED)


class _CallbackThread:
    """Where callbacks run: in one worker thread at a time. In the loop, but for `is_inside`.

    A poll that is interrupted leaves its callback running. The next poll asks for the same callback
    again, and gets the outcome of the one that runs; another callback waits for its end.
    """

    def __init__(self) -> None:
        self._run: _CallbackRun | None = None  # whose outcome nobody has got yet

    def wrap(self, callback: Callback | None) -> TrioCallback | None:
        """The callback for the loop, which goes on meanwhile."""
        if callback is None:
            return None

        async def call_in_thread(partitions: list[TopicPartition]) -> None:
            run = self._run
            if run is not None:
                await run.ended.wait()
            if run is None or (run.callback, run.partitions) != (callback, partitions):
                run = self._run = _CallbackRun(callback, partitions)
                run.start()
            await run.ended.wait()  # a close waits no longer than for a callback of the loop
            self._run = None
            if run.error is not None:
                raise run.error

        return call_in_thread

    @property
    def is_inside(self) -> bool:
        """Whether the caller is a callback."""
        run = self._run
        return run is not None and run.thread is current_thread()

    def check_outside(self) -> None:
        """Raise `ClientError` in a callback, where it would wait for what waits for it."""
        if self.is_inside:
            raise ClientError(INSIDE)


class _CallbackRun:
    """One call of a callback, in a thread of trio's."""

    def __init__(self, callback: Callback, partitions: list[TopicPartition]) -> None:
        self.callback = callback
        self.partitions = partitions
        self.thread: Thread | None = None
        self.error: BaseException | None = None
        self.ended = trio.Event()

    def start(self) -> None:
        """In the loop. From here on it runs, whoever waits for it."""
        token = trio.lowlevel.current_trio_token()

        def call() -> None:
            self.thread = current_thread()
            self.callback(self.partitions)

        def deliver(outcome: Outcome[None]) -> None:
            self.thread = None
            self.error = getattr(outcome, "error", None)
            with suppress(trio.RunFinishedError):
                token.run_sync_soon(self.ended.set)

        trio.lowlevel.start_thread_soon(call, deliver)
