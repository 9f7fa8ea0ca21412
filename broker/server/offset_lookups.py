"""LIST_OFFSETS requests that may take long, answered in one task, away from their sessions.

A look-up by time reads headers, unpacks a batch in a worker thread and walks its records. The task
does that for one partition at a time, for the waiting requests in turn: so one unpacked batch is
held at most, whatever the number of requests, and a request for one partition does not wait for
another one's thousand. The session waits for the answer as for any parked request. At a request's
deadline its unanswered partitions get REQUEST_TIMED_OUT, and the task forgets it.

An exception of a look-up is raised where its answer would be sent, so it concerns that request.
"""

from collections import deque
from collections.abc import Awaitable, Callable, Hashable
from typing import Any

import trio

from minibroker.broker.turns import Steps, do_step
from minibroker.protocol.messages.offsets import ListOffsetsResponse, PartitionOffset


class OffsetLookup:
    """One request. `steps` adds the answers to `answers`, and returns when all are there. It pauses
    before and after a look-up by time, so that nothing is in hand when another request is served.

    `unanswered` returns the answers for the partitions that have none yet at the deadline.
    """

    __slots__ = ("_is_done", "_unanswered", "answers", "deadline", "failure", "steps")

    def __init__(
        self,
        steps: Callable[[list[PartitionOffset]], Steps[None]],
        unanswered: Callable[[list[PartitionOffset]], list[PartitionOffset]],
        deadline: float,
    ) -> None:
        self.answers: list[PartitionOffset] = []
        self.deadline = deadline
        self.failure: Exception | None = None
        self.steps = steps(self.answers)
        self._unanswered = unanswered
        self._is_done = False

    def finish(self, failure: Exception | None = None) -> None:
        """Record that all answers are there, or what kept them from being found."""
        self._is_done = True
        self.failure = failure

    def attempt(self, now: float) -> ListOffsetsResponse | None:
        """Return the answer if it is complete. Raises what a look-up raised."""
        if self.failure is not None:
            raise self.failure
        return ListOffsetsResponse(tuple(self.answers)) if self._is_done else None

    def expire(self) -> ListOffsetsResponse:
        """Return the answer at the deadline."""
        return ListOffsetsResponse((*self.answers, *self._unanswered(self.answers)))


class OffsetLookups:
    """The waiting requests; see the head of this module."""

    def __init__(self) -> None:
        self._waiting: deque[OffsetLookup] = deque()
        self._submitted = trio.Event()

    def submit(self, lookup: OffsetLookup) -> None:
        """Have a request answered. It is itself the key that is notified when it is."""
        self._waiting.append(lookup)
        self._submitted.set()

    async def run(
        self,
        in_worker: Callable[[Callable[[], Any]], Awaitable[Any]],
        notify: Callable[[Hashable], None],
    ) -> None:
        """Answer requests until cancelled."""
        while True:
            while not self._waiting:
                self._submitted = trio.Event()
                await self._submitted.wait()
            lookup = self._waiting.popleft()
            if await _advance(lookup, in_worker):
                notify(lookup)
            elif trio.current_time() < lookup.deadline:
                self._waiting.append(lookup)


async def _advance(
    lookup: OffsetLookup, in_worker: Callable[[Callable[[], Any]], Awaitable[Any]]
) -> bool:
    """Take steps until another partition is answered, or the deadline. Return whether it is done.

    Every exception is kept for the session of the request.
    """
    count, sent = len(lookup.answers), None
    raised: Exception | None = None
    while len(lookup.answers) == count and trio.current_time() < lookup.deadline:
        try:
            step = lookup.steps.send(sent) if raised is None else lookup.steps.throw(raised)
        except StopIteration:
            lookup.finish()
            return True
        except Exception as error:
            lookup.finish(error)
            return True
        sent = raised = None
        assert step is None or len(lookup.answers) == count, "it pauses behind an answer"
        try:
            sent = await do_step(step, in_worker)
        except Exception as error:  # of the function in the worker; the steps may expect it
            raised = error
    return False
