"""Sends frames over several connections at once, and learns from the answers.

A connection that is closed is opened again; so is one whose oldest request waits for too long (a
parked FETCH or JOIN_GROUP, or a frame whose length lied). Nothing here judges: `tests/fuzz/run.py`
looks at the brokers.
"""

import contextlib
import random
import select
import socket
import struct
import time
from collections import Counter, deque
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from minibroker.protocol.constants import PREFACE, ApiKey
from minibroker.protocol.errors import ProtocolError
from minibroker.protocol.kafka.adapters.table import ADAPTERS
from minibroker.protocol.kafka.codec import decode
from minibroker.protocol.rpc.codec import decode_response
from tests.fuzz import good_client, kafka_frames, msgpack_frames
from tests.fuzz.frames import THOUSANDS, Frame, Twist
from tests.fuzz.kafka_frames import KafkaFrames
from tests.fuzz.known import Known
from tests.fuzz.msgpack_frames import MsgpackFrames

WIRES: Final = ("kafka", "msgpack")
CONNECTIONS: Final = 6  # of each wire
IN_FLIGHT_MAX: Final = 4  # of one connection
WAIT_S_MAX: Final = 1.0  # for the oldest answer of a connection
SEND_S_MAX: Final = 3.0
REMEMBERED: Final = 10_000  # frames
# Deleted topics keep their files open for a minute, and each new partition opens some. The others
# undo what other frames have done: there would be no members and no records.
RARE: Final = (
    ApiKey.CREATE_TOPICS,
    ApiKey.DELETE_TOPICS,
    ApiKey.CREATE_PARTITIONS,
    ApiKey.DELETE_RECORDS,
    ApiKey.DELETE_GROUPS,
    ApiKey.LEAVE_GROUP,
)
RARELY: Final = 0.1
OFTEN: Final = (
    ApiKey.PRODUCE,
    ApiKey.FETCH,
    ApiKey.LIST_OFFSETS,
    ApiKey.JOIN_GROUP,
    ApiKey.JOIN_GROUP,
    ApiKey.SYNC_GROUP,
    ApiKey.HEARTBEAT,
    ApiKey.OFFSET_COMMIT,
)
KEYS: Final = {
    "kafka": (*kafka_frames.KEYS, *OFTEN),
    "msgpack": (*msgpack_frames.KEYS, *OFTEN),
}
TWISTED: Final = 0.5  # of all frames
RECEIVED_BYTES: Final = 256 * 1024


class Sent(NamedTuple):
    """A frame that was sent, to which broker and on which wire."""

    address: str
    wire: str
    frame: Frame


class Target(NamedTuple):
    """What a frame is to be: a request of this api and version, perhaps with this twist."""

    api_key: int
    version: int
    twist: Twist | None = None


def targets(wire: str) -> list[Target]:
    """Every twist of every version of every api: each field with each boundary."""
    if wire == "msgpack":
        return [
            Target(key, 0, twist)
            for key in msgpack_frames.KEYS
            for twist in msgpack_frames.twists(key)
        ]
    return [
        Target(api.key, version, twist)
        for api in kafka_frames.APIS
        for version in range(api.first, api.last + 1)
        for twist in kafka_frames.twists(api, version)
    ]


def _random_version(rng: random.Random, wire: str, key: int) -> int:
    if wire == "msgpack":
        return 0
    return rng.randint(ADAPTERS[key].api.first, ADAPTERS[key].api.last)


class _Connection:
    """One connection to a broker; `waiting` are frames without an answer by correlation id."""

    def __init__(self, address: str, wire: str) -> None:
        self.address = address
        self.wire = wire
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), SEND_S_MAX)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if wire == "msgpack":
            self.socket.sendall(PREFACE)
        self.waiting: dict[int, Frame] = {}
        self.since = time.monotonic()
        self.received = bytearray()
        self.turn = -1

    def send(self, number: int, frame: Frame) -> None:
        """Send a frame; raises `OSError`."""
        if not self.waiting:
            self.since = time.monotonic()
        self.waiting[number] = frame
        self.socket.sendall(frame.data)

    def answers(self) -> list[bytes] | None:
        """The answers that have come, without their lengths; None at the end."""
        try:
            data = self.socket.recv(RECEIVED_BYTES, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return []
        except OSError:
            return None
        if not data:
            return None
        self.received += data
        found = []
        while len(self.received) >= 4:
            end = 4 + int.from_bytes(self.received[:4], "big")
            if len(self.received) < end:
                break
            found.append(bytes(self.received[4:end]))
            del self.received[:end]
        if found:
            self.since = time.monotonic()
        return found


class Sender:
    """Sends random frames of these wires to these brokers. `outcomes` counts what came of them."""

    def __init__(
        self,
        rng: random.Random,
        addresses: Sequence[str],
        wires: Sequence[str],
        elements_max: int = THOUSANDS,
    ) -> None:
        self.known = Known(rng, elements_max)
        self.outcomes = Counter[str]()
        self.last = deque[Sent](maxlen=REMEMBERED)
        self._rng = rng
        self._kafka = KafkaFrames(self.known)
        self._msgpack = MsgpackFrames(self.known)
        self._places = [(address, wire) for wire in wires for address in addresses]
        self._connections: dict[int, _Connection] = {}
        self._targets: dict[str, list[Target]] = {wire: [] for wire in wires}
        self._count = max(1, CONNECTIONS // len(addresses)) * len(self._places)
        self._poll = select.poll()
        self._turn = 0
        self._number = 0

    def send_one(self) -> None:
        """Send the next frame, once a connection may take one. Raises `OSError` if none opens."""
        while (connection := self._free()) is None:
            self._receive(50)
        self._number += 1
        frame = self._frame(connection.wire, self._number)
        self.last.append(Sent(connection.address, connection.wire, frame))
        try:
            connection.send(self._number, frame)
        except OSError:
            self._close(connection, "closed while sending")
        else:
            self._receive(0)
        self.outcomes["sent"] += 1
        if not frame.is_whole:
            connection.since -= WAIT_S_MAX / 2  # it will hardly be answered

    def drain(self, seconds: float) -> None:
        """Wait for answers, at most so long."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and any(one.waiting for one in self._connections.values()):
            self._receive(50)

    def close(self) -> None:
        """Close all connections."""
        for connection in list(self._connections.values()):
            self._close(connection, "")

    def _frame(self, wire: str, number: int) -> Frame:
        rng = self._rng
        if rng.random() < TWISTED:
            target = self._target(wire)
        else:
            key = rng.choice(KEYS[wire])
            while key in RARE and rng.random() > RARELY:
                key = rng.choice(KEYS[wire])
            target = Target(key, _random_version(rng, wire, key))
        twist = target.twist and self.known.limited(target.twist)
        if wire == "msgpack":
            return self._msgpack.frame(target.api_key, number, twist)
        return self._kafka.frame(ADAPTERS[target.api_key].api, target.version, number, twist)

    def _target(self, wire: str) -> Target:
        """The next of all twists, in an order of chance; after the last one they begin again."""
        if not self._targets[wire]:
            self._targets[wire] = targets(wire)
            self._rng.shuffle(self._targets[wire])
        return self._targets[wire].pop()

    def _free(self) -> _Connection | None:
        """A connection that may take a frame, in turn; opened if there are too few."""
        for _ in range(self._count):
            self._turn = (self._turn + 1) % self._count
            connection = self._at(self._turn)
            if len(connection.waiting) < IN_FLIGHT_MAX:
                return connection
        return None

    def _at(self, turn: int) -> _Connection:
        address, wire = self._places[turn % len(self._places)]
        for connection in self._connections.values():
            if connection.turn == turn:
                return connection
        connection = _Connection(address, wire)
        connection.turn = turn
        self._connections[connection.socket.fileno()] = connection
        self._poll.register(connection.socket, select.POLLIN)
        return connection

    def _receive(self, wait_ms: int) -> None:
        for descriptor, _ in self._poll.poll(wait_ms):
            connection = self._connections[descriptor]
            answers = connection.answers()
            if answers is None:
                self._close(connection, "closed")
                continue
            for answer in answers:
                self._on_answer(connection, answer)
        now = time.monotonic()
        for connection in list(self._connections.values()):
            if connection.waiting and now - connection.since > WAIT_S_MAX:
                self._close(connection, "unanswered")

    def _close(self, connection: _Connection, outcome: str) -> None:
        if outcome:
            self.outcomes[outcome] += 1
        self._poll.unregister(connection.socket)
        del self._connections[connection.socket.fileno()]
        connection.socket.close()

    # -- what answers say

    def _on_answer(self, connection: _Connection, answer: bytes) -> None:
        self.outcomes["answered"] += 1
        number = _correlation_id(connection.wire, answer)
        frame = connection.waiting.pop(number, None)
        if frame is None:  # its correlation id was changed
            connection.waiting.pop(next(iter(connection.waiting), 0), None)
            return
        with contextlib.suppress(ProtocolError, KeyError, AssertionError):
            if connection.wire == "kafka":
                self._learn(frame, _kafka_answer(frame, answer))
            else:
                self._learn(frame, decode_response(memoryview(answer), frame.api_key, 0)[1])

    def _learn(self, frame: Frame, answer: Any) -> None:
        known = self.known
        match frame.api_key:
            case ApiKey.JOIN_GROUP:
                generation = _first(answer, "generation", "generation_id")
                error = _first(answer, "error", "error_code")
                known.learn_member(frame.group, error, answer.member_id, generation)
            case ApiKey.INIT_PRODUCER_ID:
                if answer.producer_id >= 0:
                    known.learn_producer(answer.producer_id, answer.producer_epoch)
            case ApiKey.FETCH:
                if answer.session_id:
                    known.learn_session(answer.session_id)
            case ApiKey.PRODUCE:
                rows = _first(answer, "partitions", "responses")
                for row in rows:
                    for part in getattr(row, "partition_responses", (row,)):
                        if part.base_offset >= 0:
                            known.ends[_first(row, "topic", "name")] = part.base_offset
            case ApiKey.METADATA:
                for topic in answer.topics:
                    if getattr(topic, "topic_id", b"") and topic.name != good_client.TOPIC:
                        known.topic_ids[topic.name] = topic.topic_id


def _first(answer: Any, *names: str) -> Any:
    return next(getattr(answer, name) for name in names if hasattr(answer, name))


def _correlation_id(wire: str, answer: bytes) -> int:
    if wire == "kafka":
        return int(struct.unpack_from(">i", answer)[0]) if len(answer) >= 4 else -1
    size = int.from_bytes(answer[:4], "big")
    header = msgpack_frames.msgpack.unpackb(answer[4 : 4 + size])
    return int(header[0])


def _kafka_answer(frame: Frame, answer: bytes) -> Any:
    api = ADAPTERS[frame.api_key].api
    version, is_flexible = frame.version, api.is_flexible(frame.version)
    start = 4 + api.has_header_tags(version)
    return decode(api.response, version, memoryview(answer), start, is_flexible=is_flexible)[0]
