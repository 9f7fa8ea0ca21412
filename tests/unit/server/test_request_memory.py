"""The memory that unfinished requests take, all connections together (rows NET-01, NET-08)."""

import logging
import struct

import pytest
import trio
import trio.testing

from minibroker.broker.server.request_memory import RequestMemory
from minibroker.protocol.constants import ApiKey
from tests.unit.connections import VERSIONS, serving

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
