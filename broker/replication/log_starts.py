"""Making raised log starts durable: one task writes the checkpoint, for all that ask at once.

A DELETE_RECORDS is answered, and a follower reports its log start, only after the checkpoint has
the new log start. The fsync of the checkpoint runs in a worker thread: on a busy disk it takes
hundreds of milliseconds. Whoever asks while one is running waits for the next, which begins later
than the log start was raised, and which serves all that asked meanwhile.
"""

from collections.abc import Awaitable, Callable, Hashable
from typing import Final, NamedTuple

import trio

LOG_STARTS: Final = "log starts"  # the purgatory's key for requests that wait for a checkpoint


class CheckpointTicket(NamedTuple):
    """What a caller waits for: the write with this number, or the raises up to this count."""

    write: int
    raises: int


class LogStartCheckpoint:
    """See the head of this file. `notify` wakes those that wait for a key."""

    def __init__(self, notify: Callable[[Hashable], None]) -> None:
        self._notify = notify
        self._raises = 0
        self._durable_raises = 0
        self._writes_begun = 0
        self._writes_ended = 0
        self._asked = trio.Event()

    def record_raise(self) -> None:
        """Record that a log start was raised."""
        self._raises += 1

    def ask(self) -> CheckpointTicket:
        """Ask for a write, unless all raises are durable."""
        if self._durable_raises < self._raises:
            self._asked.set()
        return CheckpointTicket(self._writes_begun + 1, self._raises)

    def outcome(self, ticket: CheckpointTicket) -> bool | None:
        """Return whether the log starts of a ticket are durable; None if it is not known yet. False
        means that the disk is full, or that no file descriptor was free."""
        if self._durable_raises >= ticket.raises:
            return True
        return None if self._writes_ended < ticket.write else False

    async def run(self, write: Callable[[], Awaitable[bool]]) -> None:
        """Write the checkpoint whenever one is asked for, until cancelled. `write` returns False in
        a shortage."""
        while True:
            await self._asked.wait()
            self._asked = trio.Event()
            raises = self.begin()
            self.end(raises, is_written=await write())

    def begin(self) -> int:
        """Begin a write; return the count of raises that it makes durable."""
        self._writes_begun += 1
        return self._raises

    def end(self, raises: int, *, is_written: bool) -> None:
        """End the write that `begin` began, and wake those that wait."""
        if is_written:
            self._durable_raises = raises
        self._writes_ended = self._writes_begun
        self._notify(LOG_STARTS)
