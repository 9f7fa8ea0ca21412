"""A leader that exists for its followers only: it answers what a test tells it to answer.

`Leader` speaks the wire over any network and leaves the answers to a function. `LogLeader` has logs
to answer from, by the rules of A10, so that a follower can copy them.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import TypeAlias

import trio

from minibroker.client.net.network import Network, Stream
from minibroker.protocol.constants import (
    EARLIEST_TIMESTAMP,
    FRAME_BYTES_MAX,
    PREFACE,
    ApiKey,
    ErrorCode,
)
from minibroker.protocol.messages import APIS, RequestEnvelope
from minibroker.protocol.messages.api_versions import ApiVersion, ApiVersionsResponse
from minibroker.protocol.messages.fetch import (
    SESSION_EPOCH_NONE,
    SESSION_EPOCH_OPEN,
    FetchRequest,
    FetchResponse,
    PartitionFetch,
    PartitionFetched,
)
from minibroker.protocol.messages.offsets import ListOffsetsResponse, PartitionOffset
from minibroker.protocol.rpc.codec import decode_request, encode_response
from minibroker.protocol.rpc.frame_reader import FrameReader
from minibroker.protocol.types import Endpoint, TopicPartition
from tests.unit.log.workbench import Bench

AnswerTo: TypeAlias = Callable[[RequestEnvelope], Awaitable[list[bytes]]]

VERSIONS = ApiVersionsResponse(
    0, tuple(ApiVersion(int(key), api.version_min, api.version_max) for key, api in APIS.items())
)


def frame(request: RequestEnvelope, message: object) -> list[bytes]:
    """A whole answer."""
    head, blobs = encode_response(request.correlation_id, message)
    return [head, *blobs]


class Leader:
    """Answers API_VERSIONS by itself, the rest as `answer` says; an EOFError of it closes."""

    def __init__(self, network: Network, endpoint: Endpoint, answer: AnswerTo) -> None:
        self.requests: list[RequestEnvelope] = []
        self.connection_count = 0
        self.asked = trio.Event()
        self.left = trio.Event()  # a connection has ended
        self.endpoint = endpoint
        self._network = network
        self._answer = answer

    async def run(self, task_status: trio.TaskStatus[None]) -> None:
        """Listen and serve."""
        listener = await self._network.listen(self.endpoint)
        self.endpoint = Endpoint(self.endpoint.host, listener.endpoint.port)
        task_status.started()
        try:
            async with trio.open_nursery() as nursery:
                while True:
                    nursery.start_soon(self._serve, await listener.accept())
        finally:
            listener.close()

    async def _serve(self, stream: Stream) -> None:
        self.connection_count += 1
        try:
            with suppress(EOFError, trio.BrokenResourceError):
                await self._answer_all(stream)
        finally:
            stream.close()
            self.left.set()

    async def _answer_all(self, stream: Stream) -> None:
        frames, memory = FrameReader(FRAME_BYTES_MAX), memoryview(bytearray(1 << 20))
        unread = len(PREFACE)
        while unread:
            unread -= await stream.receive_into(memory[:unread])
        while count := await stream.receive_into(frames.space(memory)):
            for each in list(frames.received(count, memory)):
                request = decode_request(each)
                if request.api_key == ApiKey.API_VERSIONS:
                    await stream.send(frame(request, VERSIONS))
                    continue
                self.requests.append(request)
                self.asked.set()
                await stream.send(await self._answer(request))
            frames.park()


@asynccontextmanager
async def leading(leader: Leader) -> AsyncIterator[Leader]:
    """It listens during the block."""
    async with trio.open_nursery() as nursery:
        await nursery.start(leader.run)
        with trio.fail_after(60):
            yield leader
        nursery.cancel_scope.cancel()


class LogLeader(Leader):
    """Leads the partitions in `logs` in epoch `leader_epoch`."""

    def __init__(self, network: Network, endpoint: Endpoint, leader_epoch: int) -> None:
        super().__init__(network, endpoint, self._answer_one)
        self.logs: dict[TopicPartition, Bench] = {}
        self.high_watermarks: dict[TopicPartition, int] = {}
        self.leader_epoch = leader_epoch
        self.errors: dict[TopicPartition, ErrorCode] = {}
        self.positions: dict[TopicPartition, int] = {}  # the last offset that was asked for
        self.keepalives: list[float] = []  # when nothing was asked for
        self.has_sessions = True
        self.before_offsets: Callable[[], None] = lambda: None  # called at a LIST_OFFSETS
        self._sessions: dict[int, dict[TopicPartition, PartitionFetch]] = {}
        self._epochs: dict[int, int] = {}
        self._told: dict[tuple[int, TopicPartition], tuple[int, int]] = {}

    async def _answer_one(self, request: RequestEnvelope) -> list[bytes]:
        message = request.message
        if request.api_key == ApiKey.LIST_OFFSETS:
            self.before_offsets()
            return frame(request, ListOffsetsResponse(tuple(map(self._offset, message.partitions))))
        if message.session_epoch == SESSION_EPOCH_NONE:
            assert not message.partitions, "a follower asks in a session, or for nothing"
            self.keepalives.append(trio.current_time())
            return frame(request, FetchResponse(0))
        session_id = self._session_of(message)
        if message.session_epoch != self._epochs[session_id]:
            return frame(request, FetchResponse(ErrorCode.INVALID_FETCH_SESSION_EPOCH))
        self._epochs[session_id] += 1
        wanted = [*self._sessions[session_id].values()]
        for asked in wanted:
            self.positions[TopicPartition(asked.topic, asked.partition)] = asked.fetch_offset
        deadline = trio.current_time() + message.wait_ms_max / 1000
        while True:
            room = message.bytes_max
            fetched = []
            for asked in wanted:
                fetched.append(self._fetch(asked, room, is_first=room == message.bytes_max))
                room = max(0, room - len(fetched[-1].records))
            if any(each.records or each.error or each.diverging_end >= 0 for each in fetched):
                break
            if trio.current_time() >= deadline:
                break
            await trio.sleep(0.005)
        news = tuple(each for each in fetched if self._is_news(session_id, each))
        return frame(request, FetchResponse(0, session_id if self.has_sessions else 0, news))

    def _session_of(self, message: FetchRequest) -> int:
        session_id = message.session_id
        if message.session_epoch == SESSION_EPOCH_OPEN:
            session_id = len(self._sessions) + 1
            self._sessions[session_id], self._epochs[session_id] = {}, 0
        session = self._sessions[session_id]
        for name in message.forgotten:
            session.pop(TopicPartition(*name), None)
            self._told.pop((session_id, TopicPartition(*name)), None)
        for asked in message.partitions:
            name = TopicPartition(asked.topic, asked.partition)
            session.pop(name, None)
            session[name] = asked
        return session_id

    def _is_news(self, session_id: int, fetched: PartitionFetched) -> bool:
        key = (session_id, TopicPartition(fetched.topic, fetched.partition))
        known = (fetched.high_watermark, fetched.log_start)
        before, self._told[key] = self._told.get(key), known
        has_more = fetched.records or fetched.error or fetched.diverging_end >= 0
        return bool(has_more) or before != known

    def _fetch(self, asked: PartitionFetch, room: int, *, is_first: bool) -> PartitionFetched:
        name = TopicPartition(asked.topic, asked.partition)
        error = self.errors.get(name, ErrorCode.NONE)
        if asked.leader_epoch > self.leader_epoch:
            error = ErrorCode.UNKNOWN_LEADER_EPOCH
        elif asked.leader_epoch < self.leader_epoch:
            error = ErrorCode.FENCED_LEADER_EPOCH
        log = self.logs[name].log
        ours = log.epochs.end_offset_for(asked.last_fetched_epoch, log.log_end)
        is_compared = asked.last_fetched_epoch >= 0
        parted = (-1, -1)
        if asked.fetch_offset < log.log_start:
            error = error or ErrorCode.OFFSET_OUT_OF_RANGE
        elif is_compared and ours.offset < 0:
            error = error or ErrorCode.UNKNOWN_LEADER_EPOCH
        elif is_compared and (
            ours.leader_epoch < asked.last_fetched_epoch or ours.offset < asked.fetch_offset
        ):
            parted = (ours.leader_epoch, ours.offset)
        elif asked.fetch_offset > log.log_end:
            error = error or ErrorCode.OFFSET_OUT_OF_RANGE
        if error:
            return PartitionFetched(*name, error)
        known = (self.high_watermarks.get(name, log.log_end), log.log_start)
        if parted != (-1, -1):
            return PartitionFetched(*name, 0, *known, b"", *parted)
        bytes_max = min(asked.bytes_max, room)
        slices = log.read(asked.fetch_offset, bytes_max, log.log_end, at_least_one=is_first)
        return PartitionFetched(*name, 0, *known, b"".join(part.read() for part in slices))

    def _offset(self, asked: object) -> PartitionOffset:
        name = TopicPartition(asked.topic, asked.partition)
        log = self.logs[name].log
        is_start = asked.timestamp == EARLIEST_TIMESTAMP
        offset = log.log_start if is_start else log.log_end
        return PartitionOffset(*name, 0, -1, offset, self.leader_epoch)
