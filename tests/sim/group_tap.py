"""Listens on a member's wires: a `Network` that tells a `History` what goes over it.

Only what concerns commits and assignments is decoded, from the bytes themselves. So a request that
a client sends a second time is seen as two, and one that was never answered as that.

`die` makes it the network of a dead process: nothing that its tasks may still do, until they are
cancelled, reaches anybody.
"""

import errno
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from struct import Struct
from typing import Any

import trio

from minibroker.broker.groups.consumer_heartbeats import partitions_of
from minibroker.client.net.network import Listener, Network, Stream
from minibroker.protocol.constants import PREFACE, ApiKey, ErrorCode
from minibroker.protocol.messages import APIS
from minibroker.protocol.messages.consumer_groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from minibroker.protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from minibroker.protocol.messages.groups import (
    HeartbeatRequest,
    HeartbeatResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from minibroker.protocol.rpc.codec import decode_request, decode_response
from minibroker.protocol.subscription import decode_assignment
from minibroker.protocol.types import Buffer, Endpoint, Part, TopicPartition
from tests.sim.group_events import (
    BeatAnswered,
    BeatSent,
    CommitAnswered,
    CommitSent,
    Event,
    FetchAnswered,
    FetchSent,
    PutOut,
    Synced,
)

LENGTH = Struct(">I")
# frame length, header length, one byte that begins the header's array: then the api's number.
API_KEY_AT = 9
HEARD = {
    ApiKey.OFFSET_COMMIT,
    ApiKey.OFFSET_FETCH,
    ApiKey.SYNC_GROUP,
    ApiKey.HEARTBEAT,
    ApiKey.CONSUMER_GROUP_HEARTBEAT,
}
# Its sender is no member any more. One of an old generation may still be one, and just about to
# hear of the new one.
NOT_A_MEMBER = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID})


class Tap:
    """The network of one process, `who`. `note` is called with the group that an event is about;
    `numbers` are for requests, each once whoever sends it."""

    def __init__(
        self,
        who: str,
        network: Network,
        note: Callable[[str, Event], None],
        numbers: Iterator[int],
    ) -> None:
        self.who = who
        self.is_dead = False
        self.numbers = numbers
        self._network = network
        self._note = note

    async def connect(self, endpoint: Endpoint) -> Stream:
        """Open a connection that is listened to."""
        stream = await self._network.connect(endpoint)
        if self.is_dead:
            stream.close()
            raise OSError(errno.ENETDOWN, "the process is dead")
        return TappedStream(stream, self)

    async def listen(self, endpoint: Endpoint) -> Listener:
        """As the network does."""
        return await self._network.listen(endpoint)

    def die(self) -> None:
        """From now on nothing goes through."""
        self.is_dead = True

    def note(self, group: str, event: Event) -> None:
        """It went over the wire."""
        if not self.is_dead:
            self._note(group, event)


class TappedStream:
    """One connection; what is sent and received is cut into frames on the side."""

    def __init__(self, stream: Stream, tap: Tap) -> None:
        self._stream = stream
        self._tap = tap
        self._sent = bytearray()
        self._received = bytearray()
        self._is_begun = False
        # Oldest first; None for a request that nobody wants to hear.
        self._in_flight: deque[tuple[int, int, Any] | None] = deque()

    @property
    def peer(self) -> str:
        """The other side."""
        return self._stream.peer

    async def receive_into(self, view: memoryview) -> int:
        """Receive, and listen."""
        size = await self._stream.receive_into(view)
        self._check()
        self._received += view[:size]
        for frame in take_frames(self._received):
            self._hear_answer(frame)
        return size

    async def send(self, parts: Sequence[Part]) -> None:
        """Listen, and send: what is cut off on the way may have arrived as far as one knows."""
        self._check()
        self._hear_sent(_joined(parts))
        await self._stream.send(parts)

    def send_now(self, parts: Sequence[Part]) -> Sequence[Part]:
        """Send what can be sent, and listen to that."""
        if self._tap.is_dead:
            return parts
        rest = self._stream.send_now(parts)
        whole = _joined(parts)
        self._hear_sent(whole[: len(whole) - sum(map(len, rest))])
        return rest

    def close(self) -> None:
        """Close."""
        self._stream.close()

    def _check(self) -> None:
        if self._tap.is_dead:
            self._stream.close()
            raise trio.BrokenResourceError("the process is dead")

    def _hear_sent(self, data: bytes) -> None:
        self._sent += data
        if not self._is_begun and len(self._sent) >= len(PREFACE):
            del self._sent[: len(PREFACE)]
            self._is_begun = True
        for frame in take_frames(self._sent) if self._is_begun else []:
            self._hear_request(frame)

    def _hear_request(self, frame: bytes) -> None:
        if frame[API_KEY_AT - LENGTH.size] not in HEARD:
            self._in_flight.append(None)
            return
        envelope = decode_request(memoryview(frame))
        number = next(self._tap.numbers)
        self._in_flight.append((number, envelope.api_key, envelope.message))
        event = sent_event(self._tap.who, number, envelope.message)
        if event is not None:
            self._tap.note(envelope.message.group_id, event)

    def _hear_answer(self, frame: bytes) -> None:
        asked = self._in_flight.popleft()
        if asked is None:
            return
        number, api_key, request = asked
        version = APIS[ApiKey(api_key)].version_max
        _, answer = decode_response(memoryview(frame), api_key, version)
        event = answered_event(self._tap.who, number, request, answer)
        if event is not None:
            self._tap.note(request.group_id, event)


def _joined(parts: Sequence[Part]) -> bytes:
    """Members send no slices."""
    return b"".join([part for part in parts if isinstance(part, Buffer)])


def take_frames(received: bytearray) -> list[bytes]:
    """The whole frames at the beginning, which are removed; without their lengths."""
    frames = []
    while len(received) >= LENGTH.size:
        end = LENGTH.size + LENGTH.unpack_from(received)[0]
        if len(received) < end:
            break
        frames.append(bytes(received[LENGTH.size : end]))
        del received[:end]
    return frames


def sent_event(who: str, number: int, request: object) -> Event | None:
    """What a request means for the history."""
    match request:
        case OffsetCommitRequest():
            offsets = {
                TopicPartition(each.topic, each.partition): each.offset
                for each in request.partitions
            }
            return CommitSent(who, number, request.generation, offsets)
        case OffsetFetchRequest():
            return FetchSent(who, number)
        case ConsumerGroupHeartbeatRequest():
            owned = partitions_of(request.owned)
            return BeatSent(who, number, request.instance_id, request.member_epoch, owned)
    return None


def answered_event(who: str, number: int, request: object, answer: object) -> Event | None:
    """What an answer means for it."""
    match request, answer:
        case OffsetCommitRequest(), OffsetCommitResponse():
            return CommitAnswered(
                who,
                number,
                {
                    TopicPartition(each.topic, each.partition): each.error
                    for each in answer.partitions
                },
            )
        case OffsetFetchRequest(), OffsetFetchResponse():
            found = answer.partitions if not answer.error else ()
            offsets = {
                TopicPartition(each.topic, each.partition): each.offset
                for each in found
                if not each.error
            }
            return FetchAnswered(who, number, offsets)
        case SyncGroupRequest(), SyncGroupResponse() if not answer.error:
            places = tuple(sorted(decode_assignment(answer.assignment).partitions))
            member = request.instance_id or request.member_id
            return Synced(who, request.generation, member, places)
        case HeartbeatRequest(), HeartbeatResponse() if answer.error in NOT_A_MEMBER:
            return PutOut(who, request.generation)
        case ConsumerGroupHeartbeatRequest(), ConsumerGroupHeartbeatResponse():
            places = partitions_of(answer.assignment)
            return BeatAnswered(who, number, answer.error, answer.member_epoch, places)
    return None
