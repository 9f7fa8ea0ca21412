"""A broker that answers what a test tells it to, on a simulated network; a real one on loopback."""

import gc
import random
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from minibroker.broker.app import System, serve
from minibroker.broker.config import load
from minibroker.broker.metadata.memory_store import MemoryStore
from minibroker.client.blocking.portal import Portal
from minibroker.client.net.network import Stream, TcpNetwork
from minibroker.client.options import Seams
from minibroker.protocol.constants import PREFACE, ApiKey
from minibroker.protocol.messages import APIS
from minibroker.protocol.messages.api_versions import ApiVersion, ApiVersionsResponse
from minibroker.protocol.rpc.codec import decode_request, encode_response
from minibroker.protocol.types import Endpoint
from minibroker.testing.cluster import DATA_DIRECTORY, in_worker
from minibroker.testing.disk import SimulatedFiles
from minibroker.testing.network import SimulatedNetwork

PORT = 9092
Answer = Callable[[Any], Any]


class ScriptedBroker:
    """Answers each request with what `answers[api_key]` makes of it; may be awaitable.

    `requests` holds what was asked, in order.
    """

    def __init__(self, network: SimulatedNetwork, name: str) -> None:
        self.host = network.host(name)
        self.endpoint = Endpoint(name, PORT)
        self.answers: dict[ApiKey, Answer] = {ApiKey.API_VERSIONS: self._versions}
        self.requests: list[Any] = []
        self.connections: list[Stream] = []

    def asked(self, kind: type) -> list[Any]:
        """The requests of one type."""
        return [request for request in self.requests if isinstance(request, kind)]

    def _versions(self, _: object) -> ApiVersionsResponse:
        return ApiVersionsResponse(apis=tuple(ApiVersion(key) for key in sorted(APIS)))

    async def run(self, *, task_status: Any = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled."""
        listener = await self.host.listen(self.endpoint)
        async with trio.open_nursery() as nursery:
            task_status.started()
            while True:
                stream = await listener.accept()
                self.connections.append(stream)
                nursery.start_soon(self._serve, stream)

    async def _serve(self, stream: Stream) -> None:
        try:
            assert await self._read(stream, 4) == PREFACE
            while True:
                size = int.from_bytes(await self._read(stream, 4), "big")
                envelope = decode_request(memoryview(await self._read(stream, size)))
                self.requests.append(envelope.message)
                answer = self.answers[ApiKey(envelope.api_key)](envelope.message)
                if hasattr(answer, "__await__"):
                    answer = await answer
                if answer is not None:
                    header, blobs = encode_response(envelope.correlation_id, answer)
                    await stream.send([header, *blobs])
        except (trio.BrokenResourceError, trio.ClosedResourceError, EOFError):
            stream.close()

    async def _read(self, stream: Stream, size: int) -> bytes:
        data = bytearray(size)
        view = memoryview(data)
        while view:
            count = await stream.receive_into(view)
            if not count:
                raise EOFError
            view = view[count:]
        return bytes(data)


@pytest.fixture
def network() -> SimulatedNetwork:
    """A network without faults, the same one in every run."""
    return SimulatedNetwork(random.Random(1))


@pytest.fixture
def seams(network: SimulatedNetwork) -> Seams:
    """A client's seams on that network; its host is called "client"."""
    return Seams(network.host("client"), random.Random(2), lambda: 1_700_000_000_000)


@pytest.fixture
async def start_broker(nursery: trio.Nursery, network: SimulatedNetwork) -> Any:
    """Start a scripted broker of a name."""

    async def start(name: str) -> ScriptedBroker:
        broker = ScriptedBroker(network, name)
        await nursery.start(broker.run)
        return broker

    return start


@pytest.fixture
def collects_its_own() -> Iterator[None]:
    """Collections of cycles look only at what the test has made: of all that a long run of tests
    holds each would take a second. What is older is neither garbage nor kept for good."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A broker in a thread of this process, with its data in memory."""
    settings = {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(DATA_DIRECTORY)}
    system = System(
        network=TcpNetwork(),
        files=SimulatedFiles(random.Random(1)),
        store=MemoryStore(),
        wall_ms=lambda: int(time.time() * 1000),
        boot_id="boot",
        rng=random.Random(2),
        in_worker=in_worker,
    )
    told: list[str] = []

    @asynccontextmanager
    async def broker() -> AsyncIterator[None]:
        async with trio.open_nursery() as nursery:
            config = load(flags=settings).config
            started = await nursery.start(serve, config, system, trio.Event())
            told.append(str(started.listening[0].endpoint))
            yield
            nursery.cancel_scope.cancel()

    portal = Portal("broker", broker())
    owner = threading.Event()
    portal.open(owner)
    yield told[0]
    portal.close(None)
