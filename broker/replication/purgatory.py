"""The purgatory: requests that cannot be answered yet wait here, each until a deadline.

A handler that must wait returns a `Parked`: what it waits on (keys), until when, how to try again,
and what to answer when time is up. The session's writer waits for the answers, in the order of the
connection's requests. Code that changes something calls `notify` with the key of what changed.

`notify` only marks the waiters; each of them tries again in its own task, at the next turn of the
loop. So an appender never runs a waiter's code, a hundred appends in one turn cost a waiter one
attempt, a failing attempt affects only its own session, and no lock is needed: nothing else can run
between an attempt that returned None and the wait for a mark. A waiter that stops waiting leaves
the tables at once, so there is nothing to purge later.

Rejected: attempts called by `notify` itself (an answer would be made before it can be sent, and an
exception would reach the appender), and a timer task that sweeps deadlines (trio has one).
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

import trio

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Parked(Generic[Answer]):
    """A request that waits. It must not hold a view of the receive buffer.

    `attempt(now)` returns the answer, or None to keep waiting; `expire()` returns the answer at
    `deadline()` (seconds on trio's clock), which an attempt may bring forward. Exactly one of
    `attempt` and `expire` returns the answer that is sent. An answer over many items may be a
    generator, which the session runs. `held_size` are the bytes of the request that it keeps.
    """

    keys: tuple[Hashable, ...]
    deadline: Callable[[], float]
    attempt: Callable[[float], Answer | None]
    expire: Callable[[], Answer]
    held_size: int = 0


class _Waiter:
    """One waiting task. Each failed attempt replaces its event."""

    __slots__ = ("event",)

    def __init__(self) -> None:
        self.event = trio.Event()


class Watch:
    """Keys that one owner watches, and itself a key that can be waited on.

    `notified` holds the keys notified since the owner last emptied it, in that order.
    """

    __slots__ = ("notified",)

    def __init__(self) -> None:
        self.notified: dict[Hashable, None] = {}


class Purgatory:
    """The tables of waiters and watches by key. A waiter is in them while it waits, a watch until
    `unwatch`."""

    def __init__(self) -> None:
        # A dict as an ordered set: waiters wake in the order in which they came.
        self._waiters: dict[Hashable, dict[_Waiter, None]] = {}
        self._watches: dict[Hashable, dict[Watch, None]] = {}

    def notify(self, key: Hashable) -> None:
        """Let every waiter on `key` try again."""
        waiters = self._waiters.get(key)
        if waiters is not None:
            for waiter in waiters:
                waiter.event.set()
        for watch in self._watches.get(key, ()):
            watch.notified[key] = None
            self.notify(watch)

    def watch(self, watch: Watch, key: Hashable) -> None:
        """Record each notification of `key` in a watch."""
        self._watches.setdefault(key, {})[watch] = None

    def unwatch(self, watch: Watch, key: Hashable) -> None:
        """Stop recording notifications of `key` in a watch."""
        watches = self._watches.get(key, {})
        watches.pop(watch, None)
        if not watches:
            self._watches.pop(key, None)

    async def wait_for_answer(self, parked: Parked[Answer]) -> Answer:
        """Wait until the request can be answered or its time is up; return the answer.

        A last attempt is made at the deadline, so that a request that becomes possible at that
        moment does not fail.
        """
        waiter = _Waiter()
        self._register(parked, waiter)
        try:
            while True:
                now = trio.current_time()
                answer = parked.attempt(now)
                if answer is not None:
                    return answer
                deadline = parked.deadline()
                if now >= deadline:
                    return parked.expire()
                waiter.event = trio.Event()
                with trio.move_on_at(deadline):
                    await waiter.event.wait()
        finally:
            self._forget(parked, waiter)

    def statistics(self) -> int:
        """Return the number of keys with waiters plus the number of watched keys."""
        return len(self._waiters) + len(self._watches)

    def _register(self, parked: Parked[Answer], waiter: _Waiter) -> None:
        for key in parked.keys:
            self._waiters.setdefault(key, {})[waiter] = None

    def _forget(self, parked: Parked[Answer], waiter: _Waiter) -> None:
        for key in parked.keys:
            waiters = self._waiters.get(key)
            if waiters is not None:  # None where a request named the key twice
                waiters.pop(waiter, None)
                if not waiters:
                    del self._waiters[key]
