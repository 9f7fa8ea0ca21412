"""One suite for a fetcher's connection, thread and task: what a fetcher relies on.

Both talk to a leader of the test over real sockets: it answers what it is told to.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

import pytest
import trio

from minibroker.broker.replication.fetch_connection import Connect
from minibroker.broker.replication.fetch_task import connect_by_task
from minibroker.broker.replication.fetch_thread import connect_by_thread
from minibroker.client.net.channel import ChannelOptions, ConnectionLost
from minibroker.client.net.network import TcpNetwork
from minibroker.protocol.constants import ErrorCode
from minibroker.protocol.messages import RequestEnvelope
from minibroker.protocol.messages.fetch import (
    FetchRequest,
    FetchResponse,
    PartitionFetch,
    PartitionFetched,
)
from minibroker.protocol.messages.offsets import (
    ListOffsetsRequest,
    ListOffsetsResponse,
    PartitionListOffsets,
    PartitionOffset,
)
from minibroker.protocol.records.batch import InvalidBatch
from minibroker.protocol.types import Endpoint
from tests.support.leaders import Leader, frame, leading
from tests.unit.log.workbench import stored
from tests.unit.replication.copying import fetcher_threads_left

PATIENCE = ChannelOptions(request_timeout_s=5.0, connect_timeout_s=5.0)
REQUEST = FetchRequest(2, 500, partitions=(PartitionFetch("t", 0),))
SILENCE: list[bytes] = []


@pytest.fixture(params=["thread", "task"])
def make(request) -> Callable[[ChannelOptions], Connect]:
    """Both forms."""
    if request.param == "thread":
        return connect_by_thread
    return lambda options: connect_by_task(TcpNetwork(), options)


@pytest.fixture(autouse=True)
def no_thread_is_left():
    """Every thread ends when its connection is closed."""
    yield
    assert not fetcher_threads_left()


@asynccontextmanager
async def asked(answer: Callable[[RequestEnvelope], list[bytes]]) -> AsyncIterator[Leader]:
    """A leader that answers so."""

    async def answer_to(request: RequestEnvelope) -> list[bytes]:
        return answer(request)

    async with leading(Leader(TcpNetwork(), Endpoint("127.0.0.1", 0), answer_to)) as leader:
        yield leader


def close(_: RequestEnvelope) -> list[bytes]:
    """An answer that is none: the connection ends."""
    raise EOFError


async def test_records_come_checked(make):
    """An answer comes with its batches' headers; one that is corrupt is told apart (FOL-14)."""
    good = stored(0, 2) + stored(2, 3)
    bad = stored(0)[:-1] + b"?"
    response = FetchResponse(
        0,
        7,
        (
            PartitionFetched("t", 0, records=good),
            PartitionFetched("t", 1, records=bad),
            PartitionFetched("t", 2, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        ),
    )
    answer = partial(frame, message=response)
    async with asked(answer) as leader, make(PATIENCE)(leader.endpoint) as connection:
        fetched = await connection.fetch(REQUEST)
        whole, corrupt, none = fetched.batches
        assert [header.base_offset for _, header in whole.headers] == [0, 2]
        assert (bytes(whole.records), whole.size) == (good, len(good))
        assert isinstance(corrupt, InvalidBatch)
        assert (none.headers, none.size) == ([], 0)
        assert fetched.response.session_id == 7
    assert leader.requests[0].message == REQUEST


@pytest.mark.parametrize("count", [1, 40])
async def test_answers_of_any_size_arrive_whole(make, count):
    """One after another, each larger than the one before, which is still held."""
    batches = [stored(0, value=bytes([step]) * 60_000) * (step * count) for step in range(6)]

    def answer(request: RequestEnvelope) -> list[bytes]:
        part = PartitionFetched("t", 0, records=batches[len(leader.requests)])
        return frame(request, FetchResponse(0, 0, (part,)))

    async with asked(answer) as leader, make(PATIENCE)(leader.endpoint) as connection:
        for step in range(1, 6):
            fetched = await connection.fetch(REQUEST)
            (part,) = fetched.response.partitions
            assert bytes(part.records) == batches[step]


async def test_offsets_are_listed(make):
    """LIST_OFFSETS goes over the same connection (A12)."""
    request = ListOffsetsRequest(2, (PartitionListOffsets("t", 0, -2, 5),))
    response = ListOffsetsResponse((PartitionOffset("t", 0, 0, -1, 17, 5),))
    answer = partial(frame, message=response)
    async with asked(answer) as leader, make(PATIENCE)(leader.endpoint) as connection:
        assert await connection.list_offsets(request) == response
    assert leader.requests[0].message == request


async def test_a_long_poll_ends_when_its_task_is_cancelled(make):
    """At once, and the leader sees the connection end (A18)."""
    async with asked(lambda _: SILENCE) as leader, trio.open_nursery() as nursery:

        async def wait() -> None:
            async with make(PATIENCE)(leader.endpoint) as connection:
                await connection.fetch(REQUEST)

        nursery.start_soon(wait)
        await leader.asked.wait()
        nursery.cancel_scope.cancel()
        with trio.CancelScope(shield=True), trio.fail_after(2):
            await leader.left.wait()


@pytest.mark.parametrize(
    "answer",
    [
        close,
        lambda _: [b"\0\0\0\5\0\0\0\1\xc1"],
        lambda _: [b"\xff\xff\xff\xff"],
        lambda request: frame(request._replace(correlation_id=77), FetchResponse()),
        lambda request: frame(request, ListOffsetsResponse((PartitionOffset("t", 0),))),
    ],
    ids=["closed", "no msgpack", "no length", "not asked for", "another answer"],
)
async def test_a_broken_answer_is_a_lost_connection(make, answer):
    """Whatever comes instead of an answer, the fetcher hears one thing."""
    async with asked(answer) as leader, make(PATIENCE)(leader.endpoint) as connection:
        with pytest.raises(ConnectionLost):
            await connection.fetch(REQUEST)


async def test_an_answer_that_does_not_come_is_a_lost_connection(make):
    """After the time-out the leader counts as gone."""
    options = ChannelOptions(request_timeout_s=0.05)
    async with asked(lambda _: SILENCE) as leader, make(options)(leader.endpoint) as connection:
        with pytest.raises(ConnectionLost):
            await connection.fetch(REQUEST)


async def test_nobody_listens(make):
    """That is a lost connection, too, whether the port is closed or the name unknown."""
    async with asked(close) as leader:
        pass
    for endpoint in (leader.endpoint, Endpoint("", 1), Endpoint("no.such.host.invalid", 1)):
        with pytest.raises(ConnectionLost):
            async with make(PATIENCE)(endpoint):
                pass


async def test_a_leader_that_is_no_broker(make):
    """It closes the connection before anything was agreed."""
    async with trio.open_nursery() as nursery:
        listener = await TcpNetwork().listen(Endpoint("127.0.0.1", 0))

        async def hang_up() -> None:
            (await listener.accept()).close()

        nursery.start_soon(hang_up)
        with pytest.raises(ConnectionLost):
            async with make(PATIENCE)(listener.endpoint):
                pass
        listener.close()


async def test_what_goes_wrong_inside_comes_out_as_it_is(make):
    """An error of the own disk is none of the connection."""
    async with asked(close) as leader:
        with pytest.raises(OSError, match="own disk") as caught:
            async with make(PATIENCE)(leader.endpoint):
                raise OSError("own disk")
        assert not isinstance(caught.value, ConnectionLost)
