"""One connection: a task that reads requests and answers them, in order, and a task for the answers
that have to wait.

    reader:  receive -> frame -> decode -> handler -> encode -> send   (what is ready, in one call)
               |  a bounded queue of replies, from the first that is not ready (`answers.py`)
    writer:  wait for it -> encode -> send

The reader receives into a buffer that all connections share, and passes frames to the handlers
without copying them. That is sound because no other task runs between the arrival of bytes and the
last handler's return: before any wait the reader moves the rest of the buffer into its own memory
(`FrameReader.park`). So an idle connection holds no buffer, and a parked request must not hold a
view of a frame.

A request or a response with many elements is decoded, handled and encoded in turns: these are
generators, and the session lets other tasks run where they pause. The frame of such a request is
first copied out of the shared buffer. A request is handled to its end before the next one is.

A session ends when the peer ends its stream, bytes are no request, a handler raises `HangUp`, a log
was truncated under an answer's slice, the connection breaks, the peer is silent for too long, or an
unexpected exception cannot have left state half changed (`defects.py`). None of these affects other
connections. Answers that are ready at the end are still sent, within `DRAIN_S`. Requests that are
still parked then are dropped; the client sees a closed connection, never a false answer. Any other
exception leaves through the nursery and stops the broker.
"""

import logging
from types import GeneratorType
from typing import Any, Final

import trio

from minibroker.broker.defects import Stage
from minibroker.broker.replication.purgatory import Parked
from minibroker.broker.server.answers import Answers, Reply, Step
from minibroker.broker.server.connected_clients import KindOfClient
from minibroker.broker.server.dispatch import Dispatch, Effect, effect_of
from minibroker.broker.server.request_memory import (
    DECODED_SIZE_FACTOR,
    UNCOUNTED_BYTES,
    size_of_response,
)
from minibroker.broker.server.services import HangUp, Services
from minibroker.broker.server.wires import (
    START_BYTES,
    Decoded,
    Wire,
    wire_of,
)
from minibroker.broker.turns import take_steps, take_turns
from minibroker.client.net.network import Stream
from minibroker.protocol.constants import ApiKey
from minibroker.protocol.errors import ProtocolError, TooManyElements
from minibroker.protocol.messages.api_versions import ApiVersionsRequest
from minibroker.protocol.rpc.frame_reader import FrameReader
from minibroker.protocol.types import StaleSlice

logger = logging.getLogger(__name__)

DRAIN_S = 1.0
REASON_CHARS_MAX = 300
_DECODING: Final[Step] = (None, Stage.DECODE)


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
        self._peer = stream.peer
        self._buffer = buffer
        self._frames = FrameReader(services.config.socket_request_max_bytes)
        self._memory = services.memory
        self._dispatch = dispatch
        self._answers = Answers(
            stream,
            services.purgatory,
            self._on_answers,
            self._give_up,
            services.step_in_worker,
        )
        self._held = 0  # the size that `_memory` knows
        self._step: Step | None = None  # of the reader
        self.is_abandoned = False
        self._client: KindOfClient | None = None  # once its wire is known
        self._scope = trio.CancelScope()
        self.last_active = trio.current_time()

    async def run(self) -> None:
        """Serve the connection until it ends, then close it."""
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._answers.run)
                    await self._read_requests()
                    self._scope.deadline = trio.current_time() + DRAIN_S
        finally:
            self._stream.close()
            self._memory.set_held(self, 0)
            self._services.fetch_sessions.abandon(self._peer)
            self._services.member_connections.forget(self._peer)
            if self._client is not None:
                self._services.clients.disconnect(self._client)
            self._answers.abandon()

    def hang_up(self, reason: str, level: int = logging.WARNING) -> None:
        """End the session now."""
        self._log_end(reason, level)
        self._scope.cancel()

    def _log_end(self, reason: str, level: int = logging.WARNING) -> None:
        text = reason[:REASON_CHARS_MAX]  # it may quote bytes of the peer
        logger.log(level, "closing the connection from %s: %s", self._peer, text)

    def _log_refusal(self, reason: str) -> None:
        """The peer sent what is no request."""
        text = reason[:REASON_CHARS_MAX]
        line = self._services.refusals.record(self._peer, text, trio.current_time())
        if line is not None:
            logger.warning("%s", line)

    def _record_defect(self, step: Step | None, error: Exception) -> str:
        """Return why the session ends after an unexpected exception in this step. Raises the
        exception if it may have left state half changed, or comes from the disk."""
        if step is None or isinstance(error, OSError):
            raise error
        kind, stage = step
        name = ""
        if kind is not None:
            name = kind.name
            # When a response is encoded, whatever its handler has changed is whole.
            if stage is Stage.HANDLE and effect_of(kind) is Effect.CHANGES:
                raise error
        return self._services.defects.record(name, stage, error)

    # -- the reader

    async def _read_requests(self) -> None:
        try:
            wire = await self._find_wire()
            while wire is not None and await self._read_some(wire):
                pass
        except ProtocolError as error:
            self._log_refusal(str(error))
        except HangUp as error:
            self._log_end(str(error), error.level)
        except trio.BrokenResourceError:
            logger.info("the connection from %s broke", self._peer)
        except Exception as error:
            if error is self._answers.failure:
                raise
            self._log_end(self._record_defect(self._step, error))
        finally:
            self._frames.park()  # the writer goes on for a moment
            self._answers.end()

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

    async def _read_some(self, wire: Wire) -> bool:
        """Receive once, handle the complete requests, and answer what is ready. Return False at the
        end of the stream."""
        space = self._frames.space(self._buffer)
        self._update_memory()
        count = await self._stream.receive_into(space)
        if count == 0:
            return False
        self.last_active = now = trio.current_time()
        for frame in self._frames.received(count, self._buffer):
            size = len(frame)
            self._step = _DECODING
            try:
                decoded = wire.decode_request(frame)
            except TooManyElements:
                frame = memoryview(bytearray(frame))  # writable: offsets are set in batches
                self._release_buffer()
                decoded = await take_turns(wire.decode_request_in_turns(frame))
            del frame
            reply = self._handle(decoded, size, now)
            if type(reply.outcome) is GeneratorType:
                self._answers.waiting_size += size  # it may wait for a worker, and hold its request
                self._release_buffer()
                reply = await self._complete(reply)
                self._answers.waiting_size -= size
            self._step = None
            if self._answers.add(reply):
                self._release_buffer()
                await self._answers.wait_for_room()
            now = trio.current_time()
        self._frames.park()
        self._answers.send_ready()
        return True

    def _release_buffer(self) -> None:
        """Release the shared buffer, and answer what is ready: the reader is about to wait."""
        self._frames.park()
        self._answers.send_ready()
        self._update_memory()

    def _update_memory(self) -> None:
        answers = self._answers
        held = self._frames.held_size + answers.waiting_size + answers.encoded_size
        if held <= UNCOUNTED_BYTES:
            held = 0
        if held != self._held:
            self._held = held
            self._memory.set_held(self, held)

    def _handle(self, decoded: Decoded, size: int, now: float) -> Reply:
        """Handle a request of `size` bytes."""
        envelope, encoder = decoded
        assert self._client is not None, "it has said what it speaks"
        kind = self._services.times.kind_of(envelope)
        if kind.api_key is ApiKey.API_VERSIONS:
            self._client = self._identify(self._client, envelope.message)
        self._client.requests += 1
        self._step = (kind, Stage.HANDLE)
        outcome = self._dispatch(self._services, envelope, self._peer, now)
        # Of a PRODUCE the records are appended, or copied, and else nothing but offsets waits.
        size = 0 if kind.api_key is ApiKey.PRODUCE else DECODED_SIZE_FACTOR * size
        size += outcome.held_size if isinstance(outcome, Parked) else 0
        # Not by its own `__new__`, a call more.
        return tuple.__new__(Reply, (envelope.correlation_id, outcome, encoder, kind, now, size))

    async def _complete(self, reply: Reply) -> Reply:
        """Run the generator that a handler returned to its result, a response or a `Parked`."""
        steps: Any = reply.outcome
        outcome = await take_steps(steps, self._services.step_in_worker)
        if isinstance(outcome, Parked):
            return reply._replace(outcome=outcome, size=reply.size + outcome.held_size)
        size = reply.size + size_of_response(outcome)
        return reply._replace(outcome=outcome, size=size)

    def _identify(self, client: KindOfClient, who: ApiVersionsRequest) -> KindOfClient:
        if not who.client_software_name:
            return client
        return self._services.clients.identify(
            client, who.client_software_name, who.client_software_version
        )

    # -- answers

    def _on_answers(self, now: float) -> None:
        """Some are sent, or much is encoded."""
        self.last_active = now
        if self._held or self._answers.encoded_size:
            self._update_memory()

    def _give_up(self, error: Exception, step: Step) -> None:
        """End the session, since an answer could not be made or sent. Raises what ends the
        broker."""
        match error:
            case StaleSlice():
                self.hang_up(f"the log was cut under an answer: {error}")
            case ProtocolError():
                self.hang_up(f"an answer cannot be said on this wire: {error}")
            case trio.BrokenResourceError():
                self._scope.cancel()
            case _:
                self.hang_up(self._record_defect(step, error))
