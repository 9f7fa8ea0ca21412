"""The answers of one connection, in the order of its requests.

The session's reader adds a reply for each request that it has handled, and calls `send_ready`. As
long as nothing has to wait, not for a replica, other tasks, or room in the connection, that encodes
and sends all there is. That saves two turns of the loop, about a sixth of what a small request
costs that comes alone. From the first answer that has to wait, the task `run` does the rest; while
it is at work the reader only adds to the queue.

The queue has few places, for two reasons. It bounds the memory that a client can make the broker
hold by not reading its answers: the reader stops reading, and the client's own sends wait. It is
also the time slice: after that many requests the reader lets other tasks run. The reader also stops
while what waits to be answered holds more than `WAITING_BYTES_MAX`.
"""

from collections import Counter, deque
from collections.abc import Awaitable, Callable
from types import GeneratorType
from typing import Any, Final, NamedTuple, TypeAlias

import trio

from minibroker.broker.defects import Stage
from minibroker.broker.replication.purgatory import Parked, Purgatory
from minibroker.broker.server.dispatch import HandlerResult
from minibroker.broker.server.request_memory import UNCOUNTED_BYTES
from minibroker.broker.server.request_times import RequestKind
from minibroker.broker.server.wires import ResponseEncoder
from minibroker.broker.turns import take_steps, take_turns
from minibroker.client.net.network import Stream
from minibroker.protocol.errors import TooManyElements
from minibroker.protocol.types import BUFFERS, Part

REPLIES_MAX: Final = 16  # handled, unanswered requests of one connection
WAITING_BYTES_MAX: Final = 8 * 1024 * 1024  # what they may hold before the reader waits

# What is being done with a request. A plain tuple: each request makes two or three.
Step: TypeAlias = tuple[RequestKind | None, Stage]
_SENDING: Final[Step] = (None, Stage.ENCODE)  # the answers of any requests


class Reply(NamedTuple):
    """One request's place in the order of responses, and when the request arrived.

    `size` is about how many bytes the request and its outcome take until the response is sent.
    """

    correlation_id: int
    outcome: HandlerResult
    encoder: ResponseEncoder
    kind: RequestKind
    received_at: float
    size: int


class Answers:
    """See the head of this module.

    `waiting_size` is the sum of the sizes of the replies that are not sent, `encoded_size` the
    bytes in memory of answers that are being sent. `on_change(now)` is called when much was encoded
    or some was sent. `give_up` ends the session for an exception in a step, or raises what ends the
    broker; no later answer is sent in the place of one that failed. `in_worker` runs a step of an
    answer in a worker thread.
    """

    def __init__(
        self,
        stream: Stream,
        purgatory: Purgatory,
        on_change: Callable[[float], None],
        give_up: Callable[[Exception, Step], None],
        in_worker: Callable[[Callable[[], Any]], Awaitable[Any]],
    ) -> None:
        self._stream = stream
        self._purgatory = purgatory
        self._on_change = on_change
        self._give_up = give_up
        self._in_worker = in_worker
        self.waiting_size = 0
        self.encoded_size = 0
        self.failure: Exception | None = None
        self._replies = deque[Reply]()  # whose answers are not encoded
        self._ready: list[Part] = []  # encoded answers that are not sent
        self._ready_size = 0  # their bytes, those in files too
        self._done: list[Reply] = []  # whose answers are in `_ready`, or that need no answer
        self._step = _SENDING
        self._parked = Counter[RequestKind]()  # of this connection's requests, as in `RequestKind`
        self._is_running = False  # whether `run` is at work, or about to be
        self._has_ended = False  # whether no more replies come
        self._to_run = trio.lowlevel.ParkingLot()  # holds `run` while it has nothing to do
        self._drained = trio.Event()  # replaced when the reader waits for it

    def add(self, reply: Reply) -> bool:
        """Add the reply to the next request. Return whether the queue is full now."""
        self.waiting_size += reply.size
        if isinstance(reply.outcome, Parked):
            self._count_parked(reply.kind, 1)
        self._replies.append(reply)
        return len(self._replies) >= REPLIES_MAX or self.waiting_size > WAITING_BYTES_MAX

    def send_ready(self) -> None:
        """Send what can be sent without waiting, and leave the rest to `run`."""
        if self._is_running:
            return
        self._encode_ready()
        if self._ready:
            self._step = _SENDING
            try:
                self._ready = [*self._stream.send_now(self._ready)]
            except Exception as error:
                self._fail(error)
        if self._done and not self._ready:
            self._on_sent()
        if self._ready or self._replies:
            self._is_running = True
            self._to_run.unpark()

    async def wait_for_room(self) -> None:
        """Let other tasks run, and wait until the queue is not full."""
        await trio.lowlevel.checkpoint()
        while len(self._replies) >= REPLIES_MAX or self.waiting_size > WAITING_BYTES_MAX:
            self._drained = trio.Event()
            await self._drained.wait()

    def end(self) -> None:
        """No more replies come; `run` ends when those before are sent."""
        self._has_ended = True
        self._to_run.unpark_all()

    def abandon(self) -> None:
        """Drop what waits: the session has ended."""
        for kind, count in self._parked.items():
            kind.parked -= count
        self._parked.clear()

    async def run(self) -> None:
        """Do what the reader would have to wait for."""
        try:
            while self.failure is None:
                if self._ready:
                    if self.encoded_size > UNCOUNTED_BYTES:
                        self._on_change(trio.current_time())
                    self._step = _SENDING
                    await self._stream.send(self._ready)
                if self._done:
                    self._on_sent()
                if self._is_head_parked:
                    await self._wait_for_head()  # it tries the request first
                self._encode_ready()
                if self._done or self._is_head_parked:
                    continue
                if self._replies:
                    await self._wait_for_head()
                elif self._has_ended:
                    return
                else:
                    self._is_running = False
                    await self._to_run.park()
        except Exception as error:
            self._fail(error)

    def _encode_ready(self) -> None:
        """Encode the answers at the head of the queue, until one has to be waited for or much is
        to be sent."""
        replies = self._replies
        try:
            while replies and self._ready_size <= UNCOUNTED_BYTES:
                reply = replies[0]
                answer = reply.outcome
                if isinstance(answer, Parked):
                    self._step = (reply.kind, Stage.HANDLE)
                    answer = answer.attempt(trio.current_time())
                    if answer is None:
                        break
                    reply = self._settle(answer)
                if type(answer) is GeneratorType:
                    break
                if answer is not None:
                    self._step = (reply.kind, Stage.ENCODE)
                    self._add_parts(reply.encoder.encode(reply.correlation_id, answer))
                self._done.append(replies.popleft())
        except TooManyElements:
            pass  # `run` does it in turns
        except Exception as error:
            self._fail(error)

    @property
    def _is_head_parked(self) -> bool:
        return bool(self._replies) and isinstance(self._replies[0].outcome, Parked)

    async def _wait_for_head(self) -> None:
        """Wait for the answer at the head of the queue."""
        reply = self._replies[0]
        answer: Any = reply.outcome
        self._step = (reply.kind, Stage.HANDLE)
        if isinstance(answer, Parked):
            self._settle(await self._purgatory.wait_for_answer(answer))
        elif type(answer) is GeneratorType:
            self._replies[0] = reply._replace(outcome=await take_steps(answer, self._in_worker))
        else:
            self._step = (reply.kind, Stage.ENCODE)
            await trio.lowlevel.checkpoint()  # the attempt was a turn
            self._add_parts(await take_turns(reply.encoder.in_turns(reply.correlation_id, answer)))
            self._done.append(self._replies.popleft())

    def _settle(self, answer: Any) -> Reply:
        """The reply at the head of the queue is parked no more."""
        reply = self._replies[0]
        self._count_parked(reply.kind, -1)
        self._replies[0] = reply = reply._replace(outcome=answer)
        return reply

    def _count_parked(self, kind: RequestKind, change: int) -> None:
        kind.parked += change
        self._parked[kind] += change

    def _add_parts(self, parts: list[Part]) -> None:
        size = sum(map(len, parts))
        self._ready_size += size
        if BUFFERS.issuperset(map(type, parts)):
            self.encoded_size += size
        self._ready += parts

    def _on_sent(self) -> None:
        """All ready answers are sent: record how long the requests took."""
        self._ready.clear()
        self._ready_size = self.encoded_size = 0
        now = trio.current_time()
        for reply in self._done:
            reply.kind.times.record(now - reply.received_at)
            self.waiting_size -= reply.size
        self._done.clear()
        self._on_change(now)
        self._drained.set()

    def _fail(self, error: Exception) -> None:
        """Raises what ends the broker."""
        if error is self.failure:
            raise error
        self.failure = error
        self._give_up(error, self._step)
