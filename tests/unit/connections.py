"""Connections to a node over the simulated network, and the requests that tests send on them."""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio
import trio.testing

from minibroker.broker.server.dispatch import Dispatch, dispatch
from minibroker.broker.server.listener import Acceptor
from minibroker.client.net.network import Stream
from minibroker.protocol.constants import PREFACE, ApiKey
from minibroker.protocol.messages import RequestEnvelope
from minibroker.protocol.messages.api_versions import ApiVersionsRequest
from minibroker.protocol.messages.fetch import FetchRequest, PartitionFetch
from minibroker.protocol.messages.produce import (
    PartitionProduce,
    ProduceRequest,
)
from minibroker.protocol.rpc.codec import decode_response, encode_request
from minibroker.protocol.rpc.frame_reader import FrameReader
from minibroker.protocol.types import Endpoint
from minibroker.testing.network import SimulatedNetwork
from tests.unit.node import Node, batch_of

VERSIONS = (ApiKey.API_VERSIONS, ApiVersionsRequest())
BROKER = Endpoint("broker", 9092)


class Client:
    """The other side, byte by byte."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self._frames = FrameReader(2**30)
        self._buffer = memoryview(bytearray(256 * 1024))
        self._ready: list[bytes] = []

    async def send(
        self,
        *requests: tuple[ApiKey, object],
        first_id: int = 1,
        client_id: str | None = None,
    ) -> None:
        data = b"".join(
            b"".join(
                encode_request(RequestEnvelope(api_key, 0, first_id + place, client_id, message))
            )
            for place, (api_key, message) in enumerate(requests)
        )
        await self.stream.send([data])

    async def receive(self, api_key: ApiKey) -> tuple[int, object]:
        """The next answer; `EOFError` at the end of the connection."""
        while not self._ready:
            count = await self.stream.receive_into(self._frames.space(self._buffer))
            if count == 0:
                raise EOFError
            self._ready += map(bytes, self._frames.received(count, self._buffer))
            self._frames.park()
        return decode_response(memoryview(self._ready.pop(0)), api_key, 0)


class Server:
    """A listening node, and connections to it."""

    def __init__(self, node: Node, network: SimulatedNetwork, acceptor: Acceptor) -> None:
        self.node = node
        self.network = network
        self.acceptor = acceptor

    async def connect(self, preface: bytes = PREFACE) -> Client:
        client = Client(await self.network.host("client").connect(BROKER))
        await client.stream.send([preface])
        return client


@asynccontextmanager
async def serving(*, dispatch: Dispatch = dispatch, **settings: str) -> AsyncIterator[Server]:
    node = Node(**settings)
    node.lead()
    network = SimulatedNetwork(random.Random(4))
    listener = await network.host("broker").listen(BROKER)
    acceptor = Acceptor(node.services, {"PLAINTEXT": listener}, dispatch)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(acceptor.run)
        yield Server(node, network, acceptor)
        nursery.cancel_scope.cancel()


def produce_of(*sizes: int, acks: int = 1) -> tuple[ApiKey, ProduceRequest]:
    batches = tuple(PartitionProduce("t", 0, batch_of(size=size)) for size in sizes)
    return ApiKey.PRODUCE, ProduceRequest(acks, 1_000, batches)


def fetch_of(offset: int = 0, wait_ms: int = 0, bytes_min: int = 1) -> tuple[ApiKey, FetchRequest]:
    partitions = (PartitionFetch("t", 0, offset),)
    return ApiKey.FETCH, FetchRequest(-1, wait_ms, bytes_min, partitions=partitions)
