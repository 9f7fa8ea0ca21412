"""One connection: a task that reads requests and a task that answers them, in order.

    reader:  receive -> frame -> decode -> handler          (in arrival order)
               |  a bounded channel of replies, one place for each request
    writer:  wait for parked ones -> encode -> send         (all ready answers in one call)

The reader receives into a buffer that all connections share, and passes frames to the handlers
without copying them. That is sound because no other task runs between the arrival of bytes and the
last handler's return: before any wait the reader moves the rest of the buffer into its own memory
(`FrameReader.park`). So an idle connection holds no buffer, and a parked request must not hold a
view of a frame.

A request or a response with many elements is decoded, handled and encoded in turns: these are
generators, and the session lets other tasks run where they pause. The frame of such a request is
first copied out of the shared buffer. A request is handled to its end before the next one is.

The channel has few places, for two reasons. It bounds the memory that a client can make the broker
hold by not reading its answers: the reader stops reading, and the client's own sends wait. It is
also the time slice: after that many requests the reader lets other tasks run. The reader also stops
while what waits to be answered holds more than `WAITING_BYTES_MAX`.

A session ends when the peer ends its stream, bytes are no request, a handler raises `HangUp`, a log
was truncated under an answer's slice, the connection breaks, the peer is silent for too long, or an
unexpected exception cannot have left state half changed (`defects.py`). None of these affects other
connections. Answers that are ready at the end are still sent, within `DRAIN_S`. Requests that are
still parked then are dropped; the client sees a closed connection, never a false answer. Any other
exception leaves through the nursery and stops the broker.
"""

import logging
from collections import Counter
from types import GeneratorType
from typing import Any, Final, NamedTuple, TypeAlias

import trio

from minibroker.broker.defects import Stage
from minibroker.broker.replication.purgatory import Parked
from minibroker.broker.server.connected_clients import KindOfClient
from minibroker.broker.server.dispatch import Dispatch, Effect, HandlerResult, effect_of
from minibroker.broker.server.request_memory import (
    DECODED_SIZE_FACTOR,
    UNCOUNTED_BYTES,
    size_of_response,
)
from minibroker.broker.server.request_times import RequestKind
from minibroker.broker.server.services import HangUp, Services
from minibroker.broker.server.wires import (
    START_BYTES,
    Decoded,
    ResponseEncoder,
    Wire,
    wire_of,
)
from minibroker.broker.turns import take_steps, take_turns
from minibroker.client.net.network import Stream
from minibroker.protocol.constants import ApiKey
from minibroker.protocol.errors import ProtocolError, TooManyElements
from minibroker.protocol.messages import RequestEnvelope
from minibroker.protocol.messages.api_versions import ApiVersionsRequest
from minibroker.protocol.rpc.frame_reader import FrameReader
from minibroker.protocol.types import Part, StaleSlice

logger = logging.getLogger(__name__)

REPLIES_MAX = 16  # handled, unanswered requests of one connection
WAITING_BYTES_MAX = 8 * 1024 * 1024  # what they may hold before the reader waits for the writer
DRAIN_S = 1.0
REASON_CHARS_MAX = 300
BUFFERS = frozenset((bytes, bytearray, memoryview))  # the parts that are in memory


# What the reader or the writer is doing with a request, by its kind's name. A plain tuple: each
# request makes two or three.
_Step: TypeAlias = tuple[str, Stage, Effect]
_DECODING: Final[_Step] = ("", Stage.DECODE, Effect.READS)


class _Reply(NamedTuple):
    """One request's place in the order of responses, and when the request arrived.

    `size` is about how many bytes the request and its outcome take until the response is sent.
    """

    correlation_id: int
    outcome: HandlerResult
    encoder: ResponseEncoder
    kind: RequestKind
    effect: Effect
    received_at: float
    size: int


class Session:
    """See the head of this module. `last_active` is the time at which bytes last came or went."""

    def __init__(
        self,
        services: Services,
        stream: Stream,
        buffer: memoryview,
        dispatch: Dispatch,
    ) -> None:
        self._services = services
        self._stream = stream
        self._buffer = buffer
        self._frames = FrameReader(services.config.socket_request_max_bytes)
        self._memory = services.memory
        self._dispatch = dispatch
        self._waiting_size = 0  # the sum of the sizes of the replies that are not sent
        self._encoded_size = 0  # the bytes of responses that are being sent
        self._drained = trio.Event()  # replaced when the reader waits for the writer
        self._held = 0  # the size that `_memory` knows
        self._reader_step: _Step | None = None
        self._writer_step: _Step | None = None
        self.is_abandoned = False
        self._parked = Counter[RequestKind]()  # of this connection's requests, as in `RequestKind`
        self._client: KindOfClient | None = None  # once its wire is known
        self._scope = trio.CancelScope()
        self.last_active = trio.current_time()

    async def run(self) -> None:
        """Serve the connection until it ends, then close it."""
        sender, receiver = trio.open_memory_channel[_Reply](REPLIES_MAX)
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._answer_requests, receiver)
                    await self._read_requests(sender)
                    self._scope.deadline = trio.current_time() + DRAIN_S
        finally:
            self._stream.close()
            self._memory.set_held(self, 0)
            self._services.fetch_sessions.abandon(self._stream.peer)
            self._services.member_connections.forget(self._stream.peer)
            if self._client is not None:
                self._services.clients.disconnect(self._client)
            for kind, count in self._parked.items():
                kind.parked -= count

    def hang_up(self, reason: str, level: int = logging.WARNING) -> None:
        """End the session now."""
        self._log_end(reason, level)
        self._scope.cancel()

    def _log_end(self, reason: str, level: int = logging.WARNING) -> None:
        text = reason[:REASON_CHARS_MAX]  # it may quote bytes of the peer
        logger.log(level, "closing the connection from %s: %s", self._stream.peer, text)

    def _log_refusal(self, reason: str) -> None:
        """The peer sent what is no request."""
        text = reason[:REASON_CHARS_MAX]
        line = self._services.refusals.record(self._stream.peer, text, trio.current_time())
        if line is not None:
            logger.warning("%s", line)

    def _record_defect(self, step: _Step | None, error: Exception) -> str:
        """Return why the session ends after an unexpected exception in this step. Raises the
        exception if it may have left state half changed, or comes from the disk."""
        if step is None or isinstance(error, OSError):
            raise error
        request, stage, effect = step
        if effect is Effect.CHANGES:
            raise error
        return self._services.defects.record(request, stage, error)

    # -- the reader

    async def _read_requests(self, replies: trio.MemorySendChannel[_Reply]) -> None:
        with replies:
            try:
                wire = await self._find_wire()
                while wire is not None and await self._read_some(wire, replies):
                    pass
            except ProtocolError as error:
                self._log_refusal(str(error))
            except HangUp as error:
                self._log_end(str(error), error.level)
            except trio.BrokenResourceError:
                logger.info("the connection from %s broke", self._stream.peer)
            except Exception as error:
                self._log_end(self._record_defect(self._reader_step, error))
            finally:
                self._frames.park()  # the writer goes on for a moment

    async def _find_wire(self) -> Wire | None:
        """Return the wire that the peer uses; None if the stream ends before the peer shows it."""
        start = bytearray(START_BYTES)
        missing = memoryview(start)
        while missing:
            count = await self._stream.receive_into(missing)
            if count == 0:
                return None
            missing = missing[count:]
        wire, unread = wire_of(bytes(start))
        self._client = self._services.clients.connect(wire.name)
        if unread:
            self._frames.space(self._buffer)[: len(unread)] = unread
            for _ in self._frames.received(len(unread), self._buffer):
                raise AssertionError("a length alone is no frame")
            self._frames.park()
        return wire

    async def _read_some(self, wire: Wire, replies: trio.MemorySendChannel[_Reply]) -> bool:
        """Receive once, and handle the complete requests. Return False at the end of the stream."""
        space = self._frames.space(self._buffer)
        self._update_memory()
        count = await self._stream.receive_into(space)
        if count == 0:
            return False
        self.last_active = now = trio.current_time()
        for frame in self._frames.received(count, self._buffer):
            size = len(frame)
            self._reader_step = _DECODING
            try:
                decoded = wire.decode_request(frame)
            except TooManyElements:
                frame = memoryview(bytearray(frame))  # writable: offsets are set in batches
                self._release_buffer()
                decoded = await take_turns(wire.decode_request_in_turns(frame))
            del frame
            reply = self._handle(decoded, size, now)
            if type(reply.outcome) is GeneratorType:
                self._waiting_size += size  # it may wait for a worker, and hold its request
                self._release_buffer()
                reply = await self._complete(reply)
                self._waiting_size -= size
            self._reader_step = None
            self._waiting_size += reply.size
            try:
                replies.send_nowait(reply)
            except trio.WouldBlock:
                self._release_buffer()
                await replies.send(reply)
            if self._waiting_size > WAITING_BYTES_MAX:
                self._release_buffer()
                await self._wait_for_writer()
            now = trio.current_time()
        self._frames.park()
        return True

    def _release_buffer(self) -> None:
        """Release the shared buffer: the reader is about to wait."""
        self._frames.park()
        self._update_memory()

    def _update_memory(self) -> None:
        held = self._frames.held_size + self._waiting_size + self._encoded_size
        if held <= UNCOUNTED_BYTES:
            held = 0
        if held != self._held:
            self._held = held
            self._memory.set_held(self, held)

    async def _wait_for_writer(self) -> None:
        while self._waiting_size > WAITING_BYTES_MAX:
            self._drained = trio.Event()
            await self._drained.wait()

    def _handle(self, decoded: Decoded, size: int, now: float) -> _Reply:
        """Handle a request of `size` bytes."""
        envelope, encoder = decoded
        self._count(envelope)
        kind, effect = self._services.times.kind_of(envelope), effect_of(envelope)
        self._reader_step = (kind.name, Stage.HANDLE, effect)
        outcome = self._dispatch(self._services, envelope, self._stream.peer, now)
        if isinstance(outcome, Parked):
            self._count_parked(kind, 1)
        # Of a PRODUCE the records are appended, or copied, and else nothing but offsets waits.
        size = 0 if envelope.api_key == ApiKey.PRODUCE else DECODED_SIZE_FACTOR * size
        size += outcome.held_size if isinstance(outcome, Parked) else 0
        return _Reply(envelope.correlation_id, outcome, encoder, kind, effect, now, size)

    async def _complete(self, reply: _Reply) -> _Reply:
        """Run the generator that a handler returned to its result, a response or a `Parked`."""
        steps: Any = reply.outcome
        outcome = await take_steps(steps, self._services.unpack_in_worker)
        if isinstance(outcome, Parked):
            self._count_parked(reply.kind, 1)
            return reply._replace(outcome=outcome, size=reply.size + outcome.held_size)
        size = reply.size + size_of_response(outcome)
        return reply._replace(outcome=outcome, size=size)

    def _count(self, envelope: RequestEnvelope) -> None:
        assert self._client is not None, "it has said what it speaks"
        if envelope.api_key == ApiKey.API_VERSIONS:
            who: ApiVersionsRequest = envelope.message
            if who.client_software_name:
                self._client = self._services.clients.identify(
                    self._client, who.client_software_name, who.client_software_version
                )
        self._client.requests += 1

    def _count_parked(self, kind: RequestKind, change: int) -> None:
        kind.parked += change
        self._parked[kind] += change

    # -- the writer

    async def _answer_requests(self, replies: trio.MemoryReceiveChannel[_Reply]) -> None:
        try:
            while True:
                await self._send_ready(await replies.receive(), replies)
                self.last_active = trio.current_time()
        except trio.EndOfChannel:
            pass
        except StaleSlice as error:
            self.hang_up(f"the log was cut under an answer: {error}")
        except ProtocolError as error:
            self.hang_up(f"an answer cannot be said on this wire: {error}")
        except trio.BrokenResourceError:
            self._scope.cancel()
        except Exception as error:
            self.hang_up(self._record_defect(self._writer_step, error))

    async def _send_ready(self, reply: _Reply, replies: trio.MemoryReceiveChannel[_Reply]) -> None:
        """Send the answer of `reply`, together with all ready answers after it."""
        ready: list[Part] = []
        done: list[_Reply] = []  # whose answers are in `ready`, or that need no answer
        while True:
            answer = reply.outcome
            if isinstance(answer, Parked):
                self._writer_step = (reply.kind.name, Stage.HANDLE, reply.effect)
                parked = answer
                answer = parked.attempt(trio.current_time())
                if answer is None:
                    if done:
                        await self._send(ready, done)
                    answer = await self._services.purgatory.wait_for_answer(parked)
                self._count_parked(reply.kind, -1)
            if type(answer) is GeneratorType:
                self._writer_step = (reply.kind.name, Stage.HANDLE, reply.effect)
                answer = await take_turns(answer)
            done.append(reply)
            if answer is not None:
                # Whatever the handler has changed is whole by now.
                self._writer_step = (reply.kind.name, Stage.ENCODE, Effect.READS)
                try:
                    parts = reply.encoder.encode(reply.correlation_id, answer)
                except TooManyElements:
                    parts = await self._encode_in_turns(reply, answer)
                if BUFFERS.issuperset(map(type, parts)):
                    ready += parts
                    self._encoded_size += sum(map(len, parts))
                    if self._encoded_size > UNCOUNTED_BYTES:
                        self._update_memory()
                        await self._send(ready, done)
                else:
                    await self._stream.send_parts([*ready, *parts])
                    ready.clear()
            self._writer_step = None
            try:
                reply = replies.receive_nowait()
            except (trio.WouldBlock, trio.EndOfChannel):
                break
        await self._send(ready, done)

    async def _encode_in_turns(self, reply: _Reply, answer: object) -> list[Part]:
        await trio.lowlevel.checkpoint()  # the attempt was a turn
        return await take_turns(reply.encoder.in_turns(reply.correlation_id, answer))

    async def _send(self, ready: list[Part], done: list[_Reply]) -> None:
        """Send the ready answers, record how long the requests took, and clear both lists."""
        if ready:
            await self._stream.send_parts(ready)
            ready.clear()
            self._encoded_size = 0
        now = trio.current_time()
        for reply in done:
            reply.kind.times.record(now - reply.received_at)
            self._waiting_size -= reply.size
        done.clear()
        if self._held:
            self._update_memory()
        self._drained.set()
