"""One connection after another, over the simulated network and on virtual time (rows NET)."""

import logging
from functools import partial

import pytest
import trio
import trio.testing

from minibroker.broker.server.answers import REPLIES_MAX
from minibroker.broker.server.listener import RECEIVE_BYTES
from minibroker.protocol.constants import ACKS_NONE, PREFACE, ApiKey, ErrorCode
from minibroker.protocol.messages import RequestEnvelope
from minibroker.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from minibroker.protocol.messages.fetch import FetchRequest, FetchResponse, PartitionFetch
from minibroker.protocol.messages.metadata import MetadataRequest
from minibroker.protocol.messages.produce import (
    PartitionProduce,
    ProduceRequest,
    ProduceResponse,
)
from minibroker.protocol.rpc.codec import encode_request
from tests.unit.connections import VERSIONS, fetch_of, produce_of, serving
from tests.unit.node import batch_of


async def test_requests_are_answered_in_order(autojump_clock: trio.testing.MockClock) -> None:
    """Many requests in one piece get their answers in the order in which they came."""
    async with serving() as server:
        client = await server.connect()
        count = 5 * REPLIES_MAX
        await client.send(*[produce_of(100)] * count)
        for place in range(count):
            correlation_id, produced = await client.receive(ApiKey.PRODUCE)
            assert correlation_id == 1 + place
            assert isinstance(produced, ProduceResponse)
            assert produced.partitions[0].base_offset == place


async def test_a_waiting_answer_holds_up_only_its_own_connection(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A parked request keeps its place: later answers of the connection wait, others do not."""
    async with serving() as server:
        slow, quick = await server.connect(), await server.connect()
        await slow.send(fetch_of(wait_ms=60_000), VERSIONS)
        await quick.send(VERSIONS)
        await quick.receive(ApiKey.API_VERSIONS)
        assert trio.current_time() < 1
        await quick.send(produce_of(1))
        assert (await slow.receive(ApiKey.FETCH))[0] == 1
        assert (await slow.receive(ApiKey.API_VERSIONS))[0] == 2
        assert trio.current_time() < 1


async def test_what_is_ready_does_not_wait_for_what_is_not(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """An answer that is ready goes out before the writer waits for the parked one behind it."""
    async with serving() as server:
        client = await server.connect()
        await client.send(VERSIONS, fetch_of(wait_ms=20_000))
        await client.receive(ApiKey.API_VERSIONS)
        assert trio.current_time() < 1
        await client.receive(ApiKey.FETCH)
        assert trio.current_time() >= 20


async def test_a_fetch_brings_the_bytes_of_the_log(autojump_clock: trio.testing.MockClock) -> None:
    """What was produced comes back, with its offsets, in small answers and in large ones."""
    async with serving() as server:
        client = await server.connect()
        for size in (10, 400_000):
            await client.send(produce_of(size))
            await client.receive(ApiKey.PRODUCE)
        await client.send(fetch_of(0), fetch_of(1))
        for offset, size in ((0, 10), (1, 400_000)):
            _, fetched = await client.receive(ApiKey.FETCH)
            assert isinstance(fetched, FetchResponse)
            records = bytes(fetched.partitions[0].records)
            assert int.from_bytes(records[:8], "big") == offset
            assert len(records) > size


async def test_frames_survive_a_full_channel(autojump_clock: trio.testing.MockClock) -> None:
    """What is left of the shared buffer is moved out before the reader waits for the writer."""
    async with serving() as server:
        one, other = await server.connect(), await server.connect()
        produces = [produce_of(700, acks=ACKS_NONE)] * 3 * REPLIES_MAX
        await one.send(fetch_of(wait_ms=500, bytes_min=10_000_000), *produces)
        await trio.sleep(0.1)
        await other.send(*[VERSIONS] * 1_000)
        for _ in range(1_000):
            await other.receive(ApiKey.API_VERSIONS)
        await one.receive(ApiKey.FETCH)
        await one.send(VERSIONS)
        await one.receive(ApiKey.API_VERSIONS)
        assert server.node.partition().log.log_end == 3 * REPLIES_MAX


async def test_who_does_not_read_does_not_grow_the_broker(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Unread answers stop the reading of that connection, and nobody else notices."""
    async with serving() as server:
        stuck, quick = await server.connect(), await server.connect()
        await quick.send(*[produce_of(100_000)] * 8)
        for _ in range(8):
            await quick.receive(ApiKey.PRODUCE)
        requests = [fetch_of(), *[produce_of(1_000)] * 100] * 40
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(stuck.send, *requests))
            await trio.sleep(60)
            handled = server.node.partition().log.log_end - 8
            await trio.sleep(60)
            assert server.node.partition().log.log_end - 8 == handled
            assert handled < RECEIVE_BYTES // 1_000 + REPLIES_MAX
            await quick.send(VERSIONS)
            await quick.receive(ApiKey.API_VERSIONS)
            nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"MBK2" + b"".join(encode_request(RequestEnvelope(18, 0, 1, None, ApiVersionsRequest()))),
        PREFACE + (2**31).to_bytes(4, "big"),
        PREFACE + (104_857_601).to_bytes(4, "big"),
        PREFACE + bytes(4),
        PREFACE + (5).to_bytes(4, "big") + b"\x00\x00\x00\x01\xc0",
        PREFACE + (8).to_bytes(4, "big") + b"\xff\xff\xff\xff\xff\xff\xff\xff",
    ],
)
async def test_garbage_ends_its_connection_alone(
    garbage: bytes, autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """NET-01, NET-02: bytes that are no request end that connection, with one line in the log."""
    async with serving() as server:
        good, bad = await server.connect(), await server.connect(garbage)
        with pytest.raises(EOFError):
            await bad.receive(ApiKey.API_VERSIONS)
        lines = [record for record in caplog.records if record.levelno >= logging.WARNING]
        assert len(lines) == 1
        await good.send(VERSIONS)
        await good.receive(ApiKey.API_VERSIONS)


async def test_garbage_behind_a_request_that_waits_ends_its_connection_alone(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """What waits is counted, and is counted no more when it is answered, after the reader's end."""
    async with serving() as server:
        good, bad = await server.connect(), await server.connect()
        wanted = tuple(PartitionFetch("t", 0, 0) for _ in range(400))
        await bad.send((ApiKey.FETCH, FetchRequest(-1, 500, 1, partitions=wanted)))
        await trio.sleep(0.1)
        await bad.stream.send([bytes(8)])
        await bad.receive(ApiKey.FETCH)
        with pytest.raises(EOFError):
            await bad.receive(ApiKey.FETCH)
        assert server.node.services.memory.statistics() == 0
        await good.send(VERSIONS)
        await good.receive(ApiKey.API_VERSIONS)


async def test_what_a_peer_names_does_not_fill_the_log(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """The reason why a connection is closed is one line of bounded length."""
    async with serving() as server:
        client = await server.connect()
        wanted = (PartitionProduce("t" * 100_000, 0, batch_of()),)
        await client.send((ApiKey.PRODUCE, ProduceRequest(ACKS_NONE, 1_000, wanted)))
        with pytest.raises(EOFError):
            await client.receive(ApiKey.PRODUCE)
    [line] = caplog.messages
    assert "refused: there is no ttt" in line
    assert len(line) < 400


async def test_what_came_before_the_garbage_is_answered(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Requests that were handled before the bad bytes still get their answers."""
    async with serving() as server:
        client = await server.connect()
        await client.send(produce_of(1), produce_of(1))
        await client.stream.send([b"\xff" * 8])
        assert (await client.receive(ApiKey.PRODUCE))[0] == 1
        assert (await client.receive(ApiKey.PRODUCE))[0] == 2
        with pytest.raises(EOFError):
            await client.receive(ApiKey.PRODUCE)


async def test_unknown_versions(autojump_clock: trio.testing.MockClock) -> None:
    """NET-02: API_VERSIONS in an unknown version is answered; anything else is closed."""
    async with serving() as server:
        client = await server.connect()
        request = RequestEnvelope(ApiKey.API_VERSIONS, 99, -1, "", ApiVersionsRequest())
        await client.stream.send(encode_request(request))
        correlation_id, answer = await client.receive(ApiKey.API_VERSIONS)
        assert correlation_id == -1
        assert isinstance(answer, ApiVersionsResponse)
        assert answer.error == ErrorCode.UNSUPPORTED_VERSION
        assert len(answer.apis) == len(ApiKey)
        await client.stream.send(
            encode_request(RequestEnvelope(ApiKey.METADATA, 99, 5, None, MetadataRequest()))
        )
        with pytest.raises(EOFError):
            await client.receive(ApiKey.METADATA)


async def test_acks_none_has_no_answer_and_errors_hang_up(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """PRO-03: nothing is sent for acks=0; if it fails, the connection ends."""
    async with serving() as server:
        client = await server.connect()
        await client.send(produce_of(1, acks=ACKS_NONE), VERSIONS)
        assert (await client.receive(ApiKey.API_VERSIONS))[0] == 2
        lost = ProduceRequest(ACKS_NONE, 0, (PartitionProduce("u", 0, batch_of()),))
        await client.send((ApiKey.PRODUCE, lost))
        with pytest.raises(EOFError):
            await client.receive(ApiKey.API_VERSIONS)


async def test_a_reset_connection_ends_its_session(autojump_clock: trio.testing.MockClock) -> None:
    """A connection that breaks under a waiting answer leaves nothing behind."""
    async with serving() as server:
        client = await server.connect()
        await client.send(fetch_of(wait_ms=3_600_000))
        await trio.sleep(1)
        assert server.node.purgatory.statistics() == 1
        server.network.reset("client", "broker")
        await trio.sleep(2)
        assert server.node.purgatory.statistics() == 0
        assert server.acceptor.statistics().open == 0


async def test_a_reset_frees_a_reader_that_waits_for_its_writer(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A session whose channel is full ends too when its connection breaks under the writer."""
    async with serving() as server:
        client = await server.connect()
        await client.send(produce_of(300_000))
        await client.receive(ApiKey.PRODUCE)
        await client.send(*[fetch_of()] * 3 * REPLIES_MAX)
        await trio.sleep(1)
        server.network.reset("client", "broker")
        await trio.sleep(2)
        assert server.acceptor.statistics().open == 0


async def test_a_log_that_is_cut_ends_the_answer(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Bytes of a new term never go out inside an old answer: the connection is closed."""
    async with serving() as server:
        client = await server.connect()
        for _ in range(2):
            await client.send(produce_of(600_000))
            await client.receive(ApiKey.PRODUCE)
        server.network.hold("broker", "client")
        await client.send(fetch_of(0))
        await trio.sleep(1)
        server.node.partition().log.truncate_to(1, 1_000)
        server.network.release("broker", "client")
        with pytest.raises((EOFError, trio.BrokenResourceError)):
            await client.receive(ApiKey.FETCH)
