"""The polls of one consumer, by one thread (or asyncio task) at a time; runs in the client's loop.

If a caller is interrupted or cancelled, its poll goes on without it. The records are in an iterator
that the trio consumer watches: records that the caller did not take from it go back with the next
call. So the next poll waits until the abandoned one has ended, and returns them.

A thread that polls while an earlier poll of its own is under way was interrupted in that one. trio
may begin the later task first, so numbers tell which poll is earlier. An asyncio task reports that
it abandons a poll, because another task may poll next.
"""

from collections.abc import Iterator
from itertools import count
from typing import Final, Generic

import trio

from minibroker.client.consumer.completed_fetch import ConsumerRecord
from minibroker.client.consumer.consumer import Consumer
from minibroker.client.errors import ClientError
from minibroker.client.serialization import K, V

INTERRUPTED: Final = "this poll was interrupted"


class Poll:
    """One call of `poll`, or one round of iteration. `number` grows with each of a consumer."""

    def __init__(self, caller: object, number: int, timeout_s: float, *, as_one: bool) -> None:
        self.caller = caller  # a thread or a task; not its ident, which may be used again
        self.number = number
        self.timeout_s = timeout_s
        self.as_one = as_one
        self.is_abandoned = False  # the caller does not wait for it any more


class Reader(Generic[K, V]):
    """Polls for one caller at a time. All methods but `new_poll` and `caller` run in the loop."""

    def __init__(self, consumer: Consumer[K, V]) -> None:
        self._consumer = consumer
        self._numbers = count()
        self._last: Poll | None = None
        self._polling = trio.CancelScope()
        self._ended = trio.Event()  # of the last one
        self._ended.set()

    def new_poll(self, caller: object, timeout_s: float, *, as_one: bool) -> Poll:
        """Return a new poll of this caller; its records are taken all at once, or one by one."""
        return Poll(caller, next(self._numbers), timeout_s, as_one=as_one)

    @property
    def caller(self) -> object:
        """The caller of the last poll."""
        return None if self._last is None else self._last.caller

    async def poll_iterator(self, poll: Poll) -> Iterator[ConsumerRecord[K, V]]:
        """Poll, once an abandoned poll has ended."""
        if poll.is_abandoned:
            raise ClientError(INTERRUPTED)
        last = self._last
        if last is not None and (last.caller is poll.caller or last.is_abandoned):
            if last.number > poll.number:
                raise ClientError(INTERRUPTED)
            self._last = poll  # before it waits: then no third one passes
            self._polling.cancel()
            await self._ended.wait()
            if self._last is not poll:
                raise ClientError(INTERRUPTED)
        if not self._ended.is_set():
            raise ClientError("a consumer is polled by one thread or task at a time")
        self._last = poll
        self._ended = ended = trio.Event()
        try:
            with trio.CancelScope() as self._polling:
                return await self._consumer.poll_iterator(poll.timeout_s, as_one=poll.as_one)
        finally:
            ended.set()
        raise ClientError(INTERRUPTED)
