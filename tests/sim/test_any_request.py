"""Whatever a well-formed request asks for, it is answered or its connection ends; nothing else.

A handler that raises what nobody expected stops the broker, on purpose: a defect shall not wedge a
partition in silence. So no peer may be able to reach one. These requests are of the right types
and of the wrong values.
"""

import random
import typing
from collections import Counter
from collections.abc import Iterator
from functools import partial

import msgpack
import pytest
import trio

from minibroker.protocol.constants import PREFACE, ApiKey, ErrorCode
from minibroker.protocol.messages import APIS, RequestEnvelope
from minibroker.protocol.messages.api_versions import ApiVersionsRequest
from minibroker.protocol.messages.metadata import MetadataRequest, MetadataResponse
from minibroker.protocol.records.batch import ProducerStamp
from minibroker.protocol.records.record import encode_batch
from minibroker.protocol.rpc.codec import (
    decode_response,
    element_of,
    encode_request,
    fields_of,
    has_default,
    without_none,
)
from minibroker.protocol.rpc.frame_reader import FrameReader
from minibroker.protocol.types import Endpoint, Records
from minibroker.testing.cluster import SimulatedWorld, open_broker, simulate

BUFFER = memoryview(bytearray(64 * 1024))
ADDRESS = Endpoint("broker-1", 9092)
REQUESTS = 300
WAIT_S_MAX = 60
MARKED = 2**31 - 1  # the correlation id of the request that says: this far it was served
MARK = RequestEnvelope(ApiKey.API_VERSIONS, 0, MARKED, None, ApiVersionsRequest())
TOPICS = ("t", "u", "v")
NAMES = (
    "",
    ".",
    "..",
    "../x",
    "a/b",
    "a b",
    "t\n",
    "\0",
    "ä" * 40,
    "x" * 249,
    "x" * 250,
    "t_",
    "t.",
    "retention.ms",
    "segment.bytes",
    "flush",
    "min.insync.replicas",
    "cleanup.policy",
    "always",
    "0",
    "1",
    "-1",
    "100",
    "compact",
    "9" * 40,
    "__consumer_offsets",
)
NUMBERS = (
    -(2**63),
    -(2**31),
    -1000,
    -3,
    -2,
    -1,
    0,
    1,
    2,
    3,
    100,
    30_000,
    2**15 - 1,
    2**31 - 1,
    2**31,
    2**62,
    2**63 - 1,
)


USUAL = {
    "partition": (0,),
    "acks": (-1, 0, 1),
    "replica_id": (-1, 1, 2),
    "leader_epoch": (-1, 0),
    "last_fetched_epoch": (-1, 0),
    "fetch_offset": (0, 1, 2, 5),
    "bytes_max": (0, 1, 100, 2**20),
    "timeout_ms": (0, 1000),
    "wait_ms_max": (0, 100),
    "session_epoch": (-1, 0, 1),
    "partition_count": (-1, 1, 2),
    "replication_factor": (-1, 1),
    "session_timeout_ms": (1_000, 30_000),
    "rebalance_timeout_ms": (0, 1_000),
    "generation": (-1, 0, 1, 2),
}
OFTEN = (
    ApiKey.PRODUCE,
    ApiKey.PRODUCE,
    ApiKey.FETCH,
    ApiKey.FETCH,
    ApiKey.METADATA,
    ApiKey.LIST_OFFSETS,
    ApiKey.OFFSETS_FOR_LEADER_EPOCH,
)


class Whim:
    """Messages of right types and any values; half of the values are ones that mean something."""

    def __init__(self, rng: random.Random, *, may_command: bool) -> None:
        self._rng = rng
        self.may_command = may_command

    def apis(self, count: int) -> list[ApiKey]:
        """All of them, and more often those that move records."""
        chosen = [*ApiKey, *ApiKey]
        chosen += self._rng.choices((*OFTEN, *OFTEN, *ApiKey), k=count - len(chosen))
        self._rng.shuffle(chosen)
        return chosen

    def message(self, hint: typing.Any, name: str = "") -> typing.Any:
        """Some value of a field's type, or a whole message of a message's."""
        rng = self._rng
        if hint == Records:
            return self._records()
        if hint is bool:
            return rng.random() < 0.5
        if name == "controller_epoch" and not self.may_command:
            return -1
        if hint is int:
            usual = USUAL.get(name, (0, 0, 1))
            return rng.choice(usual) if rng.random() < 0.8 else rng.choice(NUMBERS)
        if hint is str:
            return rng.choice(TOPICS if rng.random() < 0.8 else NAMES)
        if hint is bytes:
            return rng.randbytes(rng.choice((0, 15, 16, 16, 16)))
        if inner := without_none(hint):
            return None if rng.random() < 0.3 else self.message(inner, name)
        if element := element_of(hint):
            return tuple(self.message(element) for _ in range(rng.choice((0, 1, 1, 2, 3))))
        return hint(
            **{
                field: self.message(each, field)
                for field, each in fields_of(hint)
                if not has_default(hint, field) or rng.random() < 0.7
            }
        )

    def _records(self) -> bytes:
        rng = self._rng
        if rng.random() < 0.1:
            return rng.randbytes(rng.randint(0, 200))
        stamp = ProducerStamp(*(rng.choice((0, 0, 1, -1)) for _ in range(3)))
        records = [(rng.choice(NUMBERS[6:]), None, b"v" * rng.randint(0, 9), ())]
        batch = encode_batch(records * rng.randint(1, 3), producer=stamp)
        if rng.random() < 0.2:
            batch[rng.randrange(len(batch))] = rng.randrange(256)
        return bytes(batch) * rng.choice((1, 1, 1, 2))


async def ask(world: SimulatedWorld, api_key: ApiKey, message: object) -> list[object]:
    """Send a request and a mark behind it; the answers before the mark, or before the end."""
    stream = await world.network.host("client").connect(ADDRESS)
    frames = FrameReader(2**30)
    asked = RequestEnvelope(api_key, 0, 1, "whim", message)
    answers: list[object] = []
    try:
        await stream.send([PREFACE, *encode_request(asked), *encode_request(MARK)])
        with trio.move_on_after(WAIT_S_MAX):
            while count := await stream.receive_into(frames.space(BUFFER)):
                for frame in list(map(bytes, frames.received(count, BUFFER))):
                    header_size = int.from_bytes(frame[:4], "big")
                    if msgpack.unpackb(frame[4 : 4 + header_size])[0] == MARKED:
                        return answers
                    answers.append(decode_response(memoryview(frame), api_key, 0)[1])
                frames.park()
    except trio.BrokenResourceError:
        pass  # it was closed before all of the request was sent
    finally:
        stream.close()
    return answers


def errors_of(answer: typing.Any) -> Iterator[int]:
    """Every error code in an answer."""
    for name, hint in fields_of(type(answer)):
        value = getattr(answer, name)
        if name == "error":
            yield value
        elif (element := element_of(hint)) and hasattr(element, "__annotations__"):
            for part in value:
                yield from errors_of(part)


async def live(seed: int, count: int) -> Counter[tuple[str, str]]:
    """Ask a broker for `count` things; what came of them, by api and outcome."""
    world = SimulatedWorld(seed)
    whim = Whim(world.rng("whim"), may_command=seed >= 2)
    seen = Counter[tuple[str, str]]()
    settings = {"flush": "always"} if seed % 2 else {}
    async with open_broker(world, settings) as broker:
        for api_key in whim.apis(count):
            answers = await ask(world, api_key, whim.message(APIS[api_key].request))
            assert broker.is_running
            assert len(answers) <= 1
            for answer in answers:
                for error in errors_of(answer):
                    assert error != ErrorCode.UNKNOWN_SERVER_ERROR, answer
                    seen[api_key.name, ErrorCode(error).name] += 1
            seen[api_key.name, "answered" if answers else "closed"] += 1
        [answer] = await ask(world, ApiKey.METADATA, MetadataRequest(()))
        assert isinstance(answer, MetadataResponse)
        assert answer.controller_id == 1 or whim.may_command
    return seen


@pytest.mark.parametrize("seed", range(4))
def test_no_request_stops_the_broker(seed: int) -> None:
    """R6: any well-formed request gets an answer with a known error, never UNKNOWN_SERVER_ERROR,
    or loses its connection; the broker goes on. One seed in two with flush=always; the last two
    pose as a controller, whose orders are obeyed however odd they are."""
    seen = simulate(partial(live, seed, REQUESTS), seed)
    for api_key in ApiKey:
        assert any(name == api_key.name and what != "closed" for name, what in seen), api_key
