"""One outgoing RPC connection, for clients and for brokers that talk to each other.

    start() -> stream -> broker
              or, where it takes no more: [outgoing] -> writer task -> stream
    PendingReply <- [in flight, oldest first] <- reader task <-

`start` is a plain call: it encodes the request and sends at once what the socket accepts, which
usually is all. The rest waits in `outgoing` for the writer, and later requests wait behind it. So
the order of calls is the order on the wire, and no task has to wake up for a request. A broker
answers in the order of requests, so an answer belongs to the oldest request in flight; another
correlation id is a protocol error. The reader completes all replies that arrived together in one
wake-up, and then calls `on_answers`, for an owner to which one task for each answer would cost too
much.

A connection is either open or ended (NET-06). When it ends, for whatever reason, every request in
flight fails with the same error, and `start` raises: a lost or closed connection is
`ConnectionLost`, an answer that took longer than the time-out is `RequestTimedOut`. It is not known
then whether the broker executed these requests. connection_pool.py connects again.

The callers limit how much waits in `outgoing`: a producer by its requests in flight, a consumer by
one FETCH for each broker.
"""

import math
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import trio

from minibroker import __version__
from minibroker.client.net.blocking_channel import RECEIVE_BUFFER_BYTES, agreed_versions
from minibroker.client.net.network import Network, Stream
from minibroker.protocol.constants import ACKS_NONE, FRAME_BYTES_MAX, PREFACE, ApiKey, ErrorCode
from minibroker.protocol.errors import BrokerError, ProtocolError
from minibroker.protocol.messages import APIS, Request, RequestEnvelope
from minibroker.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from minibroker.protocol.messages.produce import ProduceRequest, ProduceResponse
from minibroker.protocol.rpc.codec import decode_response, encode_request
from minibroker.protocol.rpc.frame_reader import FrameReader
from minibroker.protocol.types import Endpoint, Part

_CORRELATION_ID_MAX = 2**31 - 1

Response = TypeVar("Response")


class ConnectionLost(OSError):
    """The connection ended; it is not known whether its unanswered requests had an effect."""


class RequestTimedOut(ConnectionLost):
    """The broker took too long over a request, so the connection was closed."""


@dataclass(frozen=True, slots=True)
class ChannelOptions:
    """Times are in seconds; `client_id` is what the broker writes into its log lines."""

    client_id: str = "minibroker"
    request_timeout_s: float = 30.0
    connect_timeout_s: float = 10.0
    frame_bytes_max: int = FRAME_BYTES_MAX


class ChannelStatistics(NamedTuple):
    """The number of requests since the connection was made, and of those in flight."""

    sent: int
    in_flight: int
    queued_buffers: int


class PendingReply(Generic[Response]):
    """The answer to one request, once it has arrived."""

    __slots__ = ("_arrived", "_failure", "_message", "api_key", "deadline", "is_completed")

    def __init__(self, api_key: ApiKey, deadline: float) -> None:
        self.api_key = api_key
        self.deadline = deadline
        self.is_completed = False
        self._message: Any = None  # of type `Response`, once it has arrived
        self._failure: tuple[type[ConnectionLost], str] | None = None
        self._arrived: trio.Event | None = None

    async def wait(self) -> Response:
        """Return the message, without a checkpoint if it has arrived. None for a request without
        answer.

        Raises `ConnectionLost` or `RequestTimedOut`.
        """
        if not self.is_completed:
            if self._arrived is None:
                self._arrived = trio.Event()
            await self._arrived.wait()
        return self.message()

    def message(self) -> Response:
        """What `wait` returns or raises, once it is completed."""
        assert self.is_completed
        if self._failure is not None:
            kind, reason = self._failure
            raise kind(reason)
        message: Response = self._message
        return message

    def complete(self, message: object, failure: tuple[type[ConnectionLost], str] | None) -> None:
        """Set the answer or the error. The channel calls this once."""
        assert not self.is_completed
        self.is_completed = True
        self._message = message
        self._failure = failure
        if self._arrived is not None:
            self._arrived.set()


class RpcChannel:
    """See the head of this module. `connect_channel` makes it; its owner runs `run`."""

    def __init__(
        self, stream: Stream, endpoint: Endpoint, options: ChannelOptions, receiver: "_Receiver"
    ) -> None:
        self.endpoint = endpoint
        self.cluster_id = ""  # as the broker says it; "": it does not know it yet
        self.closed = trio.Event()
        self._stream = stream
        self._options = options
        self._receiver = receiver
        self._versions: dict[int, int] = {}
        self._correlation_id = 0
        self._sent = 0
        self._outgoing: list[Part] = []
        self._writer_idle = trio.lowlevel.ParkingLot()
        self._in_flight: deque[tuple[int, PendingReply[Any]]] = deque()
        self._unanswered: list[PendingReply[Any]] = []  # completed once they are sent
        self._on_answers: Callable[[], None] = _do_nothing
        self._timeout = trio.CancelScope()
        self._lost: tuple[type[ConnectionLost], str] | None = None

    @property
    def is_open(self) -> bool:
        """Whether `start` accepts a request."""
        return self._lost is None

    @property
    def waiting_since(self) -> float:
        """When the oldest unanswered request was started; infinity if there is none."""
        return self._oldest_deadline - self._options.request_timeout_s

    def statistics(self) -> ChannelStatistics:
        """Return the counts of this connection."""
        return ChannelStatistics(self._sent, len(self._in_flight), len(self._outgoing))

    def start(self, api_key: ApiKey, message: Request[Response]) -> PendingReply[Response]:
        """Send a request. Record bytes are not copied: do not change them before the answer.

        Raises `ConnectionLost`, or `BrokerError` if the broker does not serve this api.
        """
        return self._start(api_key, (message,))[0]

    def start_produce(
        self, requests: Iterable[ProduceRequest], on_answers: Callable[[], None]
    ) -> list[PendingReply[ProduceResponse | None]]:
        """Send several PRODUCE requests together, as `start` does. No answer with acks=0.

        From now on the connection calls `on_answers` when replies were completed.
        """
        self._on_answers = on_answers
        return self._start(ApiKey.PRODUCE, requests)

    def _start(self, api_key: ApiKey, messages: Iterable[object]) -> list[PendingReply[Any]]:
        if self._lost is not None:
            kind, reason = self._lost
            raise kind(reason)
        version = self._versions.get(api_key)
        if version is None:
            text = f"{self.endpoint} serves no version of {api_key.name} that is known here"
            raise BrokerError(ErrorCode.UNSUPPORTED_VERSION, text)
        was_idle = not self._in_flight and not self._unanswered
        deadline = trio.current_time() + self._options.request_timeout_s
        client_id = self._options.client_id
        replies: list[PendingReply[Any]] = []
        for message in messages:
            self._correlation_id = number = (self._correlation_id + 1) & _CORRELATION_ID_MAX
            envelope = RequestEnvelope(api_key, version, number, client_id, message)
            self._outgoing += encode_request(envelope)
            reply: PendingReply[Any] = PendingReply(api_key, deadline)
            if isinstance(message, ProduceRequest) and message.acks == ACKS_NONE:
                self._unanswered.append(reply)
            else:
                self._in_flight.append((number, reply))
            replies.append(reply)
        self._sent += len(replies)
        if was_idle:
            self._timeout.deadline = deadline
        self._send_now()
        return replies

    def _send_now(self) -> None:
        """Send, if the writer has nothing to do. The writer completes requests without an
        answer."""
        if self._writer_idle and not self._unanswered:
            self._outgoing = list(self._stream.send_now(self._outgoing))
        if self._outgoing:
            self._writer_idle.unpark()

    async def call(self, api_key: ApiKey, message: Request[Response]) -> Response:
        """Send a request and wait for the answer."""
        return await self.start(api_key, message).wait()

    def close(self) -> None:
        """Close the connection now; requests in flight fail."""
        self._fail(ConnectionLost, f"the connection to {self.endpoint} was closed here")

    async def run(self) -> None:
        """Send and receive until the connection ends, which is no exception; then close it."""
        try:
            with self._timeout:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._send_requests, nursery.cancel_scope)
                    await self._receive_answers()
                    nursery.cancel_scope.cancel()
            if self._timeout.cancelled_caught:
                seconds = self._options.request_timeout_s
                reason = f"{self.endpoint} did not answer within {seconds:g} s"
                self._fail(RequestTimedOut, reason)
        finally:
            self.close()

    async def negotiate(self) -> None:
        """Ask which apis and versions the broker serves; the first request on a connection."""
        versions = {api_key: api.version_max for api_key, api in APIS.items()}
        request = RequestEnvelope(
            ApiKey.API_VERSIONS,
            versions[ApiKey.API_VERSIONS],
            self._correlation_id,
            self._options.client_id,
            ApiVersionsRequest("minibroker", __version__),
        )
        await self._stream.send([PREFACE, *encode_request(request)])
        frames: list[memoryview] = []
        while not frames:
            frames += await self._receiver.receive()
        _, answer = decode_response(frames[0], request.api_key, request.version)
        assert isinstance(answer, ApiVersionsResponse)
        self._versions = agreed_versions(answer)
        self.cluster_id = answer.cluster_id

    async def _send_requests(self, scope: trio.CancelScope) -> None:
        try:
            while True:
                while not self._outgoing:
                    await self._writer_idle.park()
                buffers, self._outgoing = self._outgoing, []
                unanswered_count = len(self._unanswered)
                await self._stream.send(buffers)
                if unanswered_count and self._lost is None:  # else they have failed meanwhile
                    self._complete_unanswered(unanswered_count)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            self._fail(ConnectionLost, f"the connection to {self.endpoint} broke: {error}")
            scope.cancel()

    async def _receive_answers(self) -> None:
        try:
            while True:
                for frame in await self._receiver.receive():
                    self._complete_oldest(frame)
                self._set_deadline()
                self._on_answers()
        except (trio.BrokenResourceError, trio.ClosedResourceError, ConnectionLost) as error:
            self._fail(ConnectionLost, f"the connection to {self.endpoint} broke: {error}")
        except ProtocolError as error:
            self._fail(ConnectionLost, f"{self.endpoint} broke the protocol: {error}")

    def _complete_oldest(self, frame: memoryview) -> None:
        if not self._in_flight:
            raise ProtocolError("an answer that nobody asked for")
        expected, reply = self._in_flight[0]
        correlation_id, message = decode_response(
            frame, reply.api_key, self._versions[reply.api_key]
        )
        if correlation_id != expected:
            raise ProtocolError(f"an answer to request {correlation_id}, not to {expected}")
        self._in_flight.popleft()
        reply.complete(message, None)

    def _complete_unanswered(self, count: int) -> None:
        for reply in self._unanswered[:count]:
            reply.complete(None, None)
        del self._unanswered[:count]
        self._set_deadline()
        self._on_answers()

    @property
    def _oldest_deadline(self) -> float:
        deadline = self._in_flight[0][1].deadline if self._in_flight else math.inf
        return min(deadline, self._unanswered[0].deadline) if self._unanswered else deadline

    def _set_deadline(self) -> None:
        """Set the deadline to that of the oldest request."""
        self._timeout.deadline = self._oldest_deadline

    def _fail(self, kind: type[ConnectionLost], reason: str) -> None:
        """Fail everything in flight; only the first reason counts."""
        if self._lost is not None:
            return
        self._lost = failure = (kind, reason)
        self._stream.close()
        self._outgoing.clear()
        while self._in_flight:
            self._in_flight.popleft()[1].complete(None, failure)
        while self._unanswered:
            self._unanswered.pop().complete(None, failure)
        self.closed.set()


def _do_nothing() -> None:
    """The `on_answers` of a connection without PRODUCE requests."""


class _Receiver:
    """Receives frames from a stream. A frame owns its bytes, because records outlive the next
    receive."""

    def __init__(self, stream: Stream, frame_bytes_max: int) -> None:
        self._stream = stream
        self._frames = FrameReader(frame_bytes_max)
        self._memory = bytearray(RECEIVE_BUFFER_BYTES)

    async def receive(self) -> Iterator[memoryview]:
        """Wait for bytes; yield the frames that are then complete. Iterate to the end."""
        self._frames.park()
        shared = memoryview(self._memory)
        count = await self._stream.receive_into(self._frames.space(shared))
        if count == 0:
            raise ConnectionLost("the broker closed it")
        return map(self._own, self._frames.received(count, shared))

    def _own(self, frame: memoryview) -> memoryview:
        """Return a frame's own bytes; one too large for the buffer has them already."""
        return memoryview(bytes(frame)) if frame.obj is self._memory else frame


async def connect_channel(
    network: Network, endpoint: Endpoint, options: ChannelOptions
) -> RpcChannel:
    """Connect and agree on versions. The caller starts `channel.run`.

    Raises `OSError` if nothing listens there, or nothing that speaks this protocol answered in
    time.
    """
    with trio.move_on_after(options.connect_timeout_s):
        stream = await network.connect(endpoint)
        try:
            receiver = _Receiver(stream, options.frame_bytes_max)
            channel = RpcChannel(stream, endpoint, options, receiver)
            await channel.negotiate()
        except (ProtocolError, trio.BrokenResourceError, ConnectionLost) as error:
            stream.close()
            text = f"{endpoint} did not answer as a broker does: {error}"
            raise ConnectionLost(text) from error
        except BaseException:
            stream.close()
            raise
        return channel
    raise RequestTimedOut(f"{endpoint} did not answer within {options.connect_timeout_s:g} s")


@asynccontextmanager
async def open_channel(
    network: Network, endpoint: Endpoint, options: ChannelOptions
) -> AsyncIterator[RpcChannel]:
    """Open a channel for the length of a block, whose exception is raised as it is."""
    channel = await connect_channel(network, endpoint, options)
    failure: Exception | None = None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(channel.run)
        try:
            yield channel
        except Exception as error:
            failure = error
        finally:
            channel.close()
    if failure is not None:
        raise failure
