"""The memory that unfinished requests take, all connections together (rows NET-01, NET-08)."""

import logging
import random
import struct
from collections.abc import Callable
from contextlib import suppress

import pytest
import trio
import trio.testing

from minibroker.broker.server import answers
from minibroker.broker.server.request_memory import RequestMemory
from minibroker.protocol.constants import ApiKey
from minibroker.protocol.messages.fetch import FetchRequest, PartitionFetch
from minibroker.protocol.messages.produce import PartitionProduce, ProduceRequest
from minibroker.protocol.records.record import encode_batch
from minibroker.protocol.types import TopicPartition
from tests.unit.connections import VERSIONS, serving
from tests.unit.node import state_of

MIB = 1024 * 1024


class Connection:
    """Somebody who holds memory until told to hang up."""

    def __init__(self, *, is_abandoned: bool = False) -> None:
        self.is_abandoned = is_abandoned
        self.reasons: list[str] = []

    def hang_up(self, reason: str) -> None:
        self.reasons.append(reason)


def test_the_largest_is_closed_until_the_sum_fits() -> None:
    """Above the limit the largest go, each is told once, and what they held no longer counts."""
    memory = RequestMemory(100)
    small, large, larger = connections = [Connection() for _ in range(3)]
    for connection, size in zip(connections, (20, 30, 40), strict=True):
        memory.set_held(connection, size)
    memory.set_held(small, 30)
    assert memory.statistics() == 100
    memory.set_held(small, 69)
    assert [len(one.reasons) for one in connections] == [1, 0, 0]
    memory.set_held(small, 0)
    memory.set_held(large, 99)
    assert [len(one.reasons) for one in connections] == [1, 1, 0]
    assert memory.statistics() == 40
    memory.set_held(larger, 0)
    assert memory.statistics() == 0


async def test_half_sent_requests_cannot_fill_the_memory(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Peers that send half of large frames lose their connections, one line each; who sends whole
    requests, large or small, is served, and when all have gone nothing is held."""
    async with serving(queued_max_request_bytes=str(4 * MIB)) as server:
        honest = await server.connect()
        hostile = [await server.connect() for _ in range(10)]
        with caplog.at_level(logging.WARNING):
            for client in hostile:
                await client.stream.send([struct.pack(">I", 50 * MIB), bytes(MIB)])
                await trio.sleep(1)
                await honest.send(VERSIONS)
                await honest.receive(ApiKey.API_VERSIONS)
        assert 5 <= 11 - server.acceptor.statistics().open == len(caplog.messages) <= 10
        assert all("queued.max.request.bytes=4194304" in line for line in caplog.messages)
        for client in hostile:
            client.stream.close()
        await trio.sleep(1)
        assert server.acceptor.statistics().open == 1
        assert server.node.services.memory.statistics() == 0


async def test_batches_that_wait_for_a_worker_cannot_fill_the_memory(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """One large batch at a time is looked into, and those that wait for it count."""
    value = random.Random(1).randbytes(900_000) + bytes(10 * MIB)
    batch = encode_batch([(1_000, None, value, ())], compression=4)
    wait = (ApiKey.PRODUCE, ProduceRequest(1, 5_000, (PartitionProduce("t", 0, batch),)))
    at_work = 0

    async def in_worker(function: Callable[[], object]) -> object:
        nonlocal at_work
        at_work += 1
        assert at_work == 1
        with trio.CancelScope(shield=True):  # as a thread is waited for
            await trio.sleep(30)
        at_work -= 1
        return function()

    async with serving(queued_max_request_bytes=str(4 * MIB)) as server:
        server.node.lead()
        server.node.services.in_worker = in_worker
        clients = [await server.connect() for _ in range(10)]
        for client in clients:
            with suppress(trio.BrokenResourceError):  # it may be the one that is closed
                await client.send(wait)
            await trio.sleep(0.1)
            assert server.node.services.memory.statistics() <= 4 * MIB
        assert 2 <= server.acceptor.statistics().open < 10
        good = await server.connect()
        await good.send(VERSIONS)
        await good.receive(ApiKey.API_VERSIONS)
        await trio.sleep(300)
        assert server.node.services.memory.statistics() == 0
        assert server.node.partition().log.log_end >= 2


async def test_waiting_requests_cannot_fill_the_memory(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Connections with many fetches that wait lose their places; a good one is served."""
    node_partitions = [state_of(TopicPartition("t", number)) for number in range(400)]
    async with serving(queued_max_request_bytes=str(MIB)) as server:
        server.node.lead(*node_partitions)
        good = await server.connect()
        wanted = tuple(PartitionFetch("t", number, 0) for number in range(400))
        waiting = (ApiKey.FETCH, FetchRequest(-1, 30_000, 1, partitions=wanted))
        hostile = [await server.connect() for _ in range(10)]
        for client in hostile:
            await client.send(*[waiting] * 10)
            await trio.sleep(0.1)
            assert server.node.services.memory.statistics() <= MIB
        assert server.acceptor.statistics().open < 11
        await good.send(VERSIONS)
        await good.receive(ApiKey.API_VERSIONS)


async def test_fetch_sessions_cannot_fill_the_memory(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Sessions of invented partitions go when they take too much, first those whose connection has
    ended; their readers open others."""
    async with serving(queued_max_request_bytes=str(MIB)) as server:
        sessions = server.node.services.fetch_sessions
        invented = tuple(PartitionFetch("none", number, 0) for number in range(450))
        opening = (ApiKey.FETCH, FetchRequest(session_epoch=0, partitions=invented))
        small = (ApiKey.FETCH, FetchRequest(session_epoch=0, partitions=invented[:40]))
        reader = await server.connect()
        await reader.send(small)
        _, kept = await reader.receive(ApiKey.FETCH)
        for _ in range(4):
            gone = await server.connect()
            await gone.send(opening)
            await gone.receive(ApiKey.FETCH)
            gone.stream.close()
            await trio.sleep(0.1)
        staying = await server.connect()
        for _ in range(3):
            await staying.send(opening)
            await staying.receive(ApiKey.FETCH)
        assert server.node.services.memory.statistics() <= MIB
        assert 1 < sessions.statistics() < 6
        assert "closing the fetch session of client" in caplog.text
        again = FetchRequest(session_id=kept.session_id, session_epoch=1)
        await reader.send((ApiKey.FETCH, again))
        _, answer = await reader.receive(ApiKey.FETCH)
        assert not answer.error, "a small session is not the first to go"


def test_who_has_gone_is_closed_first() -> None:
    """A large connection that is there stays as long as smaller things of none can go."""
    memory = RequestMemory(100)
    gone, there = Connection(is_abandoned=True), Connection()
    memory.set_held(gone, 20)
    memory.set_held(there, 90)
    assert (len(gone.reasons), len(there.reasons)) == (1, 0)
    memory.set_held(there, 101)
    assert len(there.reasons) == 1


async def test_a_connection_waits_for_its_own_responses(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is read no further while its waiting requests hold much, and goes on afterwards."""
    states = [state_of(TopicPartition("t", number)) for number in range(400)]
    monkeypatch.setattr(answers, "WAITING_BYTES_MAX", 3 * MIB // 10)
    async with serving() as server:
        server.node.lead(*states)
        client = await server.connect()
        wanted = tuple(PartitionFetch("t", number, 0) for number in range(400))
        waiting = (ApiKey.FETCH, FetchRequest(-1, 1_000, 1, partitions=wanted))
        await client.send(*[waiting] * 60)
        await trio.sleep(0.5)
        # Four of these requests and a receive buffer; all that have a place were 1.7 MB.
        assert 0 < server.node.services.memory.statistics() < MIB
        for _ in range(60):
            await client.receive(ApiKey.FETCH)
        await client.send(VERSIONS)
        await client.receive(ApiKey.API_VERSIONS)
        await trio.sleep(1)
        assert server.node.services.memory.statistics() == 0
