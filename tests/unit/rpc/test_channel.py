"""One outgoing connection: order, versions, and how all of it fails together (row NET-06)."""

import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from minibroker.client.net.channel import (
    ChannelOptions,
    ConnectionLost,
    RequestTimedOut,
    RpcChannel,
    connect_channel,
    open_channel,
)
from minibroker.client.net.network import Stream
from minibroker.protocol.constants import PREFACE, ApiKey
from minibroker.protocol.errors import BrokerError
from minibroker.protocol.messages import RequestEnvelope
from minibroker.protocol.messages.api_versions import ApiVersion, ApiVersionsResponse
from minibroker.protocol.messages.metadata import MetadataRequest, MetadataResponse
from minibroker.protocol.messages.produce import ProduceRequest, ProduceResponse
from minibroker.protocol.rpc.codec import decode_request, encode_response
from minibroker.protocol.rpc.frame_reader import FrameReader
from minibroker.protocol.types import Endpoint
from minibroker.testing.network import SimulatedNetwork

BROKER = Endpoint("broker", 9092)
SERVED = ApiVersionsResponse(0, (ApiVersion(0), ApiVersion(3), ApiVersion(18), ApiVersion(999)))
Answer = Callable[[RequestEnvelope], bytes]


def answer_metadata(envelope: RequestEnvelope) -> bytes:
    """The cluster's name is the topic that was asked for."""
    return encode_response(
        envelope.correlation_id, MetadataResponse((), envelope.message.topics[0])
    )[0]


def answer_nothing(_: RequestEnvelope) -> bytes:
    """Silence."""
    return b""


class Broker:
    """Serves API_VERSIONS, and else what its `answer` says."""

    def __init__(self, answer: Answer) -> None:
        self.network = SimulatedNetwork(random.Random(1))
        self.requests: list[Any] = []
        self._answer = answer

    async def serve(self, task_status: Any) -> None:
        """Connections one after the other."""
        listener = await self.network.host("broker").listen(BROKER)
        task_status.started()
        while True:
            with suppress(trio.BrokenResourceError):
                await self._serve(await listener.accept())

    async def _serve(self, stream: Stream) -> None:
        shared = memoryview(bytearray(4096))
        reader = FrameReader(100_000)
        preface = b""
        while len(preface) < len(PREFACE):
            count = await stream.receive_into(shared[: len(PREFACE) - len(preface)])
            preface += bytes(shared[:count])
        assert preface == PREFACE
        while count := await stream.receive_into(reader.space(shared)):
            for frame in reader.received(count, shared):
                envelope = decode_request(memoryview(bytes(frame)))
                if envelope.api_key == ApiKey.API_VERSIONS:
                    answer = encode_response(envelope.correlation_id, SERVED)[0]
                else:
                    self.requests.append(envelope.message)
                    answer = self._answer(envelope)
                if answer == b"hang up":
                    stream.close()
                    return
                reader.park()
                await stream.send([answer])
            reader.park()


@asynccontextmanager
async def channel_to(answer: Answer) -> AsyncIterator[tuple[Broker, RpcChannel]]:
    """A broker and a channel to it."""
    broker = Broker(answer)
    async with trio.open_nursery() as nursery:
        await nursery.start(broker.serve)
        options = ChannelOptions(request_timeout_s=5, connect_timeout_s=3)
        async with open_channel(broker.network.host("client"), BROKER, options) as channel:
            yield broker, channel
        nursery.cancel_scope.cancel()


async def test_answers_come_to_who_asked(autojump_clock):
    """Requests travel in the order of `start`, and each gets its own answer."""
    async with channel_to(answer_metadata) as (broker, channel):
        replies = [
            channel.start(ApiKey.METADATA, MetadataRequest((str(index),))) for index in range(500)
        ]
        for index, reply in enumerate(replies):
            assert (await reply.wait()).cluster_id == str(index)
        assert [message.topics[0] for message in broker.requests] == [str(i) for i in range(500)]
        assert channel.statistics() == (500, 0, 0)


async def test_an_api_that_is_not_served_is_refused_here(autojump_clock):
    """What the broker did not list is not sent; an api that only the broker knows is no harm."""
    async with channel_to(answer_metadata) as (broker, channel):
        with pytest.raises(BrokerError, match="UNSUPPORTED_VERSION"):
            channel.start(ApiKey.FETCH, MetadataRequest())
        assert broker.requests == []


async def test_a_slow_answer_fails_all_in_flight(autojump_clock):
    """After request.timeout.ms the connection ends, for the younger requests too (NET-06)."""
    async with channel_to(answer_nothing) as (_, channel):
        start = trio.current_time()
        older = channel.start(ApiKey.METADATA, MetadataRequest(("a",)))
        await trio.sleep(4)
        younger = channel.start(ApiKey.METADATA, MetadataRequest(("b",)))
        for reply in (older, younger):
            with pytest.raises(RequestTimedOut, match="broker:9092"):
                await reply.wait()
        assert 5 <= trio.current_time() - start < 5.1
        with pytest.raises(ConnectionLost):
            channel.start(ApiKey.METADATA, MetadataRequest(("c",)))
        assert not channel.is_open


async def test_patience_is_with_each_request(autojump_clock):
    """A connection that is idle for longer than the time-out does not end."""
    async with channel_to(answer_metadata) as (_, channel):
        for _ in range(20):
            await channel.call(ApiKey.METADATA, MetadataRequest(("a",)))
            await trio.sleep(6)


@pytest.mark.parametrize("harm", ["hang up", "reset", "close", "garbage", "other id", "unasked"])
async def test_a_lost_connection_fails_all_in_flight(harm, autojump_clock):
    """However it is lost, each request in flight learns it at once (NET-06)."""
    answers = {
        "hang up": b"hang up",
        "garbage": b"\0\0\0\4abcd",
        "other id": encode_response(77, MetadataResponse())[0],
        "unasked": encode_response(1, MetadataResponse())[0] * 3,
    }
    async with channel_to(lambda _: answers.get(harm, b"")) as (broker, channel):
        start = trio.current_time()
        replies = [channel.start(ApiKey.METADATA, MetadataRequest(("a",))) for _ in range(2)]
        await trio.sleep(1)
        if harm == "reset":
            broker.network.reset("client", "broker")
        if harm == "close":
            channel.close()
        failures = 0
        for reply in replies:
            try:
                await reply.wait()
            except RequestTimedOut:
                raise
            except ConnectionLost:
                failures += 1
        assert failures >= (1 if harm == "unasked" else 2)
        assert trio.current_time() - start < 2
        assert not channel.is_open


async def test_a_produce_without_acks_is_settled_when_sent(autojump_clock):
    """With acks 0 nobody answers: `wait` returns None and the next answer is not taken for it."""

    def answer(envelope: RequestEnvelope) -> bytes:
        if isinstance(envelope.message, ProduceRequest) and envelope.message.acks == 0:
            return b""
        return encode_response(envelope.correlation_id, ProduceResponse())[0]

    async with channel_to(answer) as (broker, channel):
        assert await channel.call(ApiKey.PRODUCE, ProduceRequest(0)) is None
        assert await channel.call(ApiKey.PRODUCE, ProduceRequest(1)) == ProduceResponse()
        assert len(broker.requests) == 2


async def test_an_abandoned_request_harms_nobody(autojump_clock):
    """Who stops waiting leaves the answer to be dropped; the next answers still fit."""
    async with channel_to(answer_metadata) as (_, channel):
        with trio.move_on_after(0.00001):
            await channel.call(ApiKey.METADATA, MetadataRequest(("a",)))
        answer = await channel.call(ApiKey.METADATA, MetadataRequest(("b",)))
        assert answer.cluster_id == "b"


async def test_connecting_fails_in_time(autojump_clock):
    """Nobody there is an OSError at once, somebody silent one after the time-out."""
    network = SimulatedNetwork(random.Random(1))
    options = ChannelOptions(connect_timeout_s=3)
    with pytest.raises(OSError, match="broker:9092"):
        await connect_channel(network.host("client"), BROKER, options)
    listener = await network.host("broker").listen(BROKER)
    start = trio.current_time()
    with pytest.raises(RequestTimedOut, match="within 3 s"):
        await connect_channel(network.host("client"), BROKER, options)
    assert trio.current_time() - start == pytest.approx(3)
    listener.close()


async def test_an_exception_of_the_block_comes_out_as_it_is(autojump_clock):
    """Who opens a channel for a block sees its own exceptions, not a group of them."""
    broker = Broker(answer_metadata)

    async def fail() -> None:
        async with open_channel(broker.network.host("client"), BROKER, ChannelOptions()):
            await wait_all_tasks_blocked()
            raise KeyError

    async with trio.open_nursery() as nursery:
        await nursery.start(broker.serve)
        with pytest.raises(KeyError):
            await fail()
        nursery.cancel_scope.cancel()
