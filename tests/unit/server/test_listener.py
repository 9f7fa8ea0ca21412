"""Taking connections, and ending the silent ones (row NET-08)."""

import errno
import logging
import os
import random

import pytest
import trio
import trio.testing

from minibroker.broker.descriptors import DescriptorBudget
from minibroker.broker.server.listener import Acceptor
from minibroker.client.net.network import Listener, Stream
from minibroker.protocol.constants import PREFACE, ApiKey
from minibroker.protocol.types import Endpoint
from minibroker.testing.network import SimulatedNetwork
from tests.unit.connections import BROKER, VERSIONS, Server, fetch_of, produce_of, serving
from tests.unit.node import Node


async def test_silence_ends_a_connection(autojump_clock: trio.testing.MockClock) -> None:
    """NET-08: a connection that is silent for connections.max.idle.ms is closed, others are not."""
    async with serving(connections_max_idle_ms="10000") as server:
        silent, half = await server.connect(), await server.connect(PREFACE[:2])
        busy = await server.connect()
        for _ in range(12):
            await trio.sleep(1)
            await busy.send(VERSIONS)
            await busy.receive(ApiKey.API_VERSIONS)
        await trio.sleep(1)
        for closed in (silent, half):
            with pytest.raises(EOFError):
                await closed.receive(ApiKey.API_VERSIONS)
        await busy.send(VERSIONS)
        await busy.receive(ApiKey.API_VERSIONS)
        assert server.acceptor.statistics().open == 1
        await busy.send(fetch_of(wait_ms=8_000))
        await busy.receive(ApiKey.FETCH)
        await trio.sleep(6)
        await busy.send(VERSIONS)
        await busy.receive(ApiKey.API_VERSIONS)


async def test_too_many_connections_are_closed(autojump_clock: trio.testing.MockClock) -> None:
    """Above max.connections one more is closed at once; when one ends, there is room again."""
    async with serving(max_connections="2") as server:
        first, second = await server.connect(), await server.connect()
        with pytest.raises((EOFError, trio.BrokenResourceError)):
            await (await server.connect()).receive(ApiKey.API_VERSIONS)
        first.stream.close()
        await trio.sleep(1)
        third = await server.connect()
        for client in (second, third):
            await client.send(VERSIONS)
            await client.receive(ApiKey.API_VERSIONS)
        assert server.acceptor.statistics() == (2, 3, 1)


class ExhaustedListener:
    """A listening socket of a process that has no file descriptor left for a while."""

    def __init__(self, listener: Listener, until: float) -> None:
        self._listener = listener
        self._until = until

    @property
    def endpoint(self) -> Endpoint:
        return self._listener.endpoint

    async def accept(self) -> Stream:
        await trio.lowlevel.checkpoint()
        if trio.current_time() < self._until:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return await self._listener.accept()

    def close(self) -> None:
        self._listener.close()


async def test_no_file_descriptor_left(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """When the system has no room, connections wait in the backlog; the log says so once."""
    node = Node()
    network = SimulatedNetwork(random.Random(4))
    listener = await network.host("broker").listen(BROKER)
    acceptor = Acceptor(node.services, {"PLAINTEXT": ExhaustedListener(listener, until=5.0)})
    async with trio.open_nursery() as nursery:
        nursery.start_soon(acceptor.run)
        server = Server(node, network, acceptor)
        client = await server.connect()
        await client.send(VERSIONS)
        await client.receive(ApiKey.API_VERSIONS)
        assert 5 <= trio.current_time() < 6
        nursery.cancel_scope.cancel()
    assert len([record for record in caplog.records if record.levelno >= logging.ERROR]) == 1


async def test_connections_beyond_the_budget_wait(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Where the limit of open files permits no more connections, they wait in the backlog."""
    node = Node()
    network = SimulatedNetwork(random.Random(4))
    listener = await network.host("broker").listen(BROKER)
    descriptors = DescriptorBudget(64)
    descriptors.logs = 30
    acceptor = Acceptor(node.services, {"PLAINTEXT": listener}, descriptors=descriptors)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(acceptor.run)
        server = Server(node, network, acceptor)
        clients = [await server.connect() for _ in range(12)]
        for client in clients:
            await client.send(VERSIONS)
        await trio.sleep(5)
        assert acceptor.statistics() == (10, 10, 0)
        for client in clients[:10]:
            await client.receive(ApiKey.API_VERSIONS)
            client.stream.close()
        for client in clients[10:]:
            await client.receive(ApiKey.API_VERSIONS)
        await trio.sleep(1)
        assert (acceptor.statistics().open, descriptors.connections) == (2, 2)
        nursery.cancel_scope.cancel()
    (line,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert line.startswith("accepting connections pauses: 10 connections and 30 logs use")
    assert line.endswith("(ulimit -n)")


async def test_a_defect_stops_the_broker(autojump_clock: trio.testing.MockClock) -> None:
    """R10: an exception that nobody expected leaves the acceptor, it does not wedge a session."""

    async def serve_until_it_breaks() -> None:
        async with serving() as server:
            server.node.files.fail("append")
            client = await server.connect()
            await client.send(produce_of(1))
            await trio.sleep(60)

    with pytest.raises(ExceptionGroup) as raised:
        await serve_until_it_breaks()
    assert raised.group_contains(OSError, match="Input/output error")
