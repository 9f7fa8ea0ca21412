"""The consumer for programs without a trio loop.

Iterating takes a poll's worth of records (`max.poll.records`) for each visit to the loop, which
goes on fetching while they are worked on. What was taken and not reached is not lost: the loop's
consumer counts what the iterator has handed out, and takes the rest back.

Callbacks of a group are called in a thread of their own while the caller waits in its poll, so they
may call the consumer, except for what they are called by: `poll`, `unsubscribe` and `close`, which
raise `ClientError` there.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from threading import get_ident
from types import TracebackType
from typing import Self, TypeAlias, TypeVar

import trio

from minibroker.client.blocking.portal import Held, Portal
from minibroker.client.chunks import ConsumerRecord
from minibroker.client.consumer import CLOSE_S, ConsumerStatistics
from minibroker.client.consumer import Consumer as TrioConsumer
from minibroker.client.errors import ClientError
from minibroker.client.groups.group import INSIDE, Wanted
from minibroker.client.groups.group import Callback as TrioCallback
from minibroker.client.health import ConsumerHealth
from minibroker.client.options import Seams, Servers
from minibroker.client.position import OffsetAndMetadata
from minibroker.protocol.types import TopicPartition

T = TypeVar("T")
Callback: TypeAlias = Callable[[list[TopicPartition]], object]


class Consumer:
    """As `minibroker.client.Consumer`, with plain methods; used with `with`.

    One thread polls or iterates. `close` may be called from any: it ends the wait of that one.
    """

    def __init__(
        self,
        bootstrap_servers: Servers = None,
        *,
        ledger: Path | str | None = None,
        seams: Seams | None = None,
        **options: object,
    ) -> None:
        self._consumer = TrioConsumer(bootstrap_servers, ledger=ledger, seams=seams, **options)
        self._portal = Portal("minibroker-consumer")
        self._held: Held[TrioConsumer]
        self._reader: int | None = None  # the thread that polls
        self._called: int | None = None  # the thread of the callback that runs

    def __enter__(self) -> Self:
        self._portal.__enter__()
        try:
            self._held = self._portal.hold(self._consumer)
        except BaseException:
            self._portal.__exit__()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self._held.release(kind, error, traceback)
        finally:
            self._portal.__exit__()

    def close(self, timeout_s: float = CLOSE_S) -> None:
        """Commit what may be committed, leave the group, read no more: in this time, whoever
        answers. Whoever waits in `poll` or iterates gets `ClientClosed` at once.

        Called by another thread than that which polls, it does not commit what that one may still
        be working on.
        """

        async def close() -> None:
            await self._consumer.close_from(timeout_s, is_reader=is_reader)

        self._check_outside()
        is_reader = get_ident() == self._reader
        self._portal.call(close)

    @property
    def assignment(self) -> list[TopicPartition]:
        """The assigned partitions, by name."""
        return self._ask(lambda: self._consumer.assignment)

    def assign_topics(self, *topics: str) -> list[TopicPartition]:
        """Read all partitions of these topics, and only them. Returns the partitions."""
        return self._portal.call(self._consumer.assign_topics, *topics)

    def assign(self, partitions: Iterable[tuple[str, int]]) -> None:
        """Read these partitions, and only them. One that was assigned before goes on."""
        self._ask(lambda: self._consumer.assign(partitions))

    def subscribe(
        self,
        *topics: str,
        pattern: re.Pattern[str] | None = None,
        on_assigned: Callback | None = None,
        on_revoked: Callback | None = None,
        on_lost: Callback | None = None,
    ) -> None:
        """Share these topics, or those whose whole names match, with the group: from the next poll.

        The callbacks are plain functions of a list of partitions.
        """
        subscribe = partial(
            self._consumer.subscribe,
            *topics,
            pattern=pattern,
            on_assigned=self._in_thread(on_assigned),
            on_revoked=self._in_thread(on_revoked),
            on_lost=self._in_thread(on_lost),
        )
        self._portal.call(subscribe)

    def unsubscribe(self) -> None:
        """Let go of all partitions, and leave the group. Raises what `on_revoked` raises."""
        self._check_outside()
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

    def lag(self, *partitions: TopicPartition) -> dict[TopicPartition, int | None]:
        """How far each is behind its end; None while it has no position."""
        return self._portal.call(self._consumer.lag, *partitions)

    def commit(self, offsets: Wanted | None = None) -> None:
        """Commit these offsets, or else all positions, which are behind all that was handed out."""
        self._portal.call(self._consumer.commit, offsets)

    def committed(
        self, *partitions: TopicPartition
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """What the group has committed of each; None where nothing was."""
        return self._portal.call(self._consumer.committed, *partitions)

    def health(self) -> ConsumerHealth:
        """Whether it is a member, and when each partition moved last."""
        return self._ask(self._consumer.health)

    def poll(self, timeout_s: float = float("inf")) -> list[ConsumerRecord]:
        """Wait for records; none if none came in time. 0 takes what is there."""
        self._reader = get_ident()
        return self._portal.call(self._consumer.poll, timeout_s)

    def __iter__(self) -> Iterator[ConsumerRecord]:
        while True:
            self._reader = get_ident()
            yield from self._portal.call(self._consumer.draw)

    def statistics(self) -> ConsumerStatistics:
        """What it holds now."""
        return self._ask(self._consumer.statistics)

    def _ask(self, function: Callable[[], T]) -> T:
        """Call a plain function in the loop."""

        async def call() -> T:
            return function()

        return self._portal.call(call)

    def _in_thread(self, callback: Callback | None) -> TrioCallback | None:
        """The same for the loop, which goes on meanwhile."""
        if callback is None:
            return None

        def call(partitions: list[TopicPartition]) -> None:
            self._called = get_ident()
            try:
                callback(partitions)
            finally:
                self._called = None

        async def call_in_thread(partitions: list[TopicPartition]) -> None:
            # A close does not wait longer for it than for a callback of the loop.
            await trio.to_thread.run_sync(call, partitions, abandon_on_cancel=True)

        return call_in_thread

    def _check_outside(self) -> None:
        """In a callback it would wait for what waits for it."""
        if self._called == get_ident():
            raise ClientError(INSIDE)
