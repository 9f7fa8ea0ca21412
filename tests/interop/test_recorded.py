"""Conversations of clients that are not installed here, as recorded from the clients themselves.

`record.py` wrote the files in `recorded/`. Each client's requests are sent to a simulated broker,
byte for byte and in the recorded order; only the ids of members, which the broker makes, are those
of the replay. Each answer must say what the recorded one said, apart from what differs in each
run. `make soak` runs the clients themselves (`test_programs.py`).
"""

import base64
from collections import deque
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
import trio

from minibroker.client.net.network import Stream
from minibroker.protocol.kafka import apis
from minibroker.protocol.kafka.adapters.table import ADAPTERS
from minibroker.protocol.kafka.codec import decode
from minibroker.protocol.types import Endpoint
from minibroker.testing.cluster import SimulatedWorld, open_broker, simulate
from tests.interop.record import PREPARED_S, preparing

FOLDER: Final = Path(__file__).parent / "recorded"
ADDRESS: Final = Endpoint("broker-1", 9092)
ANSWER_S_MAX: Final = 60.0
# What differs in each run, or with what is served.
VARYING: Final = frozenset(
    {
        "host",
        "port",
        "cluster_id",
        "topic_id",
        "session_id",
        "member_id",
        "leader",
        "producer_id",
        "api_keys",
        "supported_features",
        "finalized_features",
        "finalized_features_epoch",
    }
)


class Line(NamedTuple):
    """A frame without its length, on one of the client's connections."""

    connection: int
    is_request: bool
    frame: bytes


def lines_of(name: str) -> list[Line]:
    """A recording."""
    found = []
    for text in (FOLDER / f"{name}.txt").read_text(encoding="ascii").splitlines():
        number, way, data = text.split()
        found.append(Line(int(number), way == ">", base64.b64decode(data)))
    return found


def answer_of(key: int, version: int, frame: bytes) -> Any:
    """What an answer says."""
    api = ADAPTERS[key].api
    start = 4 + api.has_header_tags(version)
    is_flexible = api.is_flexible(version)
    value, end = decode(api.response, version, memoryview(frame), start, is_flexible=is_flexible)
    assert end == len(frame)
    return value


def plain(value: Any) -> Any:
    """A value without what differs in each run."""
    if hasattr(value, "_asdict"):
        return {name: plain(one) for name, one in value._asdict().items() if name not in VARYING}
    if isinstance(value, list):
        return [plain(one) for one in value]
    return bytes(value) if isinstance(value, memoryview) else value


class Replay:
    """The client's connections to the simulated broker."""

    def __init__(self, world: SimulatedWorld) -> None:
        self._host = world.network.host("client")
        self._streams: dict[int, Stream] = {}
        self._asked: dict[int, deque[tuple[int, int]]] = {}  # key and version, not answered yet
        # Recorded ids of members, topics and fetch sessions, and those of the replay.
        self._ids: dict[bytes, bytes] = {}
        self.served: list[tuple[str, int]] = []

    async def send(self, connection: int, frame: bytes) -> None:
        """Send a request."""
        if connection not in self._streams:
            self._streams[connection] = await self._host.connect(ADDRESS)
            self._asked[connection] = deque()
        for recorded, now in self._ids.items():
            frame = frame.replace(recorded, now)
        key, version = (int.from_bytes(frame[at : at + 2], "big") for at in (0, 2))
        self._asked[connection].append((key, version))
        await self._streams[connection].send([len(frame).to_bytes(4, "big"), frame])

    async def receive(self, connection: int) -> bytes:
        """Return the next answer, without its length."""
        stream = self._streams[connection]
        size = int.from_bytes(await self._bytes(stream, 4), "big")
        return await self._bytes(stream, size)

    async def _bytes(self, stream: Stream, count: int) -> bytes:
        data = bytearray(count)
        left = memoryview(data)
        while left:
            with trio.fail_after(ANSWER_S_MAX):
                received = await stream.receive_into(left)
            assert received, "the broker has closed the connection"
            left = left[received:]
        return bytes(data)

    async def compare(self, connection: int, recorded: bytes) -> None:
        """Receive an answer, and compare it with the recorded one."""
        key, version = self._asked[connection].popleft()
        before = answer_of(key, version, recorded)
        now = answer_of(key, version, await self.receive(connection))
        self._learn(key, before, now)
        assert plain(now) == plain(before), f"{ADAPTERS[key].api.name} in version {version}"
        self.served.append((ADAPTERS[key].api.name, version))

    def _learn(self, key: int, before: Any, now: Any) -> None:
        """Remember the ids of an answer."""
        if key == apis.JOIN_GROUP.key and before.member_id:
            self._ids[before.member_id.encode()] = now.member_id.encode()
        if key == apis.METADATA.key:
            for one, other in zip(before.topics, now.topics, strict=True):
                if any(one.topic_id):
                    self._ids[one.topic_id] = other.topic_id
        if key == apis.FETCH.key and before.session_id:
            self._ids[before.session_id.to_bytes(4, "big")] = now.session_id.to_bytes(4, "big")

    def close(self) -> None:
        """Close all connections."""
        for stream in self._streams.values():
            stream.close()


async def play(name: str) -> list[tuple[str, int]]:
    """Replay a conversation; the apis and versions that were answered."""
    world = SimulatedWorld(1)
    settings = {
        "group.initial.rebalance.delay.ms": "0",
        # The clients stamped their records when they were recorded.
        "log.message.timestamp.after.max.ms": str(2**63 - 1),
    }
    async with open_broker(world, settings):
        replay = Replay(world)
        for frame in preparing(name):
            await replay.send(0, frame)
            await replay.receive(0)
        await trio.sleep(PREPARED_S)
        for line in lines_of(name):
            if line.is_request:
                await replay.send(line.connection, line.frame)
            else:
                await replay.compare(line.connection, line.frame)
        replay.close()
    return replay.served


# What the conversation is there for: a request of each in this version was answered.
SHOWN: Final = {
    "kafkajs": [("Produce", 7), ("JoinGroup", 5), ("Fetch", 11), ("OffsetCommit", 5)],
    "sarama-2.0": [("Metadata", 6), ("Produce", 6), ("JoinGroup", 3), ("OffsetFetch", 4)],
    "sarama-2.8": [("Metadata", 10), ("Produce", 7), ("OffsetFetch", 7), ("Fetch", 11)],
    "kafka-go": [("Produce", 7), ("JoinGroup", 2), ("OffsetCommit", 2)],
    "platformatic": [("Metadata", 12), ("Produce", 11), ("Fetch", 17), ("JoinGroup", 9)],
}


@pytest.mark.parametrize("name", SHOWN)
def test_a_recorded_client_is_answered_as_before(name: str) -> None:
    """From its first request to its last."""
    served = simulate(partial(play, name), 1)
    assert set(SHOWN[name]) <= set(served), sorted(set(served))
