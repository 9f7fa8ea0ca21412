"""Rules meet the requests of one connection, over the simulated network and on virtual time."""

import pytest
import trio
import trio.testing

from minibroker.protocol.constants import ApiKey, ErrorCode
from minibroker.protocol.messages.fetch import (
    SESSION_EPOCH_OPEN,
    SESSION_NONE,
    FetchRequest,
    FetchResponse,
    PartitionFetch,
)
from minibroker.protocol.messages.produce import ProduceResponse
from minibroker.protocol.types import TopicPartition
from minibroker.testing.node.faults import RequestRule
from minibroker.testing.node.requests import FaultyDispatch
from tests.unit.connections import VERSIONS, Client, fetch_of, produce_of, serving


def faulty(*rules: RequestRule) -> FaultyDispatch:
    """With these rules; the listener of the tests is one for clients."""
    made = FaultyDispatch("BROKERS", lambda: 5_000)
    made.set(rules)
    return made


def session_fetch(
    epoch: int, session_id: int = 0, *partitions: PartitionFetch
) -> tuple[ApiKey, FetchRequest]:
    """A FETCH in a session, which does not wait."""
    return ApiKey.FETCH, FetchRequest(
        -1, 0, 1, partitions=partitions, session_id=session_id, session_epoch=epoch
    )


async def wait_until_closed(client: Client) -> None:
    """Wait until the connection ends. Fails if a response comes before."""
    with pytest.raises((EOFError, trio.BrokenResourceError)):
        await client.receive(ApiKey.API_VERSIONS)


async def test_responses_before_a_dropped_one_are_sent(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The request is served, its response is not sent, and the connection ends."""
    requests = faulty(RequestRule(1, "PRODUCE", "drop_response", times=1))
    async with serving(dispatch=requests) as server:
        client = await server.connect()
        await client.send(VERSIONS, produce_of(10), VERSIONS)
        assert (await client.receive(ApiKey.API_VERSIONS))[0] == 1
        await wait_until_closed(client)
        again = await server.connect()
        await again.send(produce_of(10))
        _, produced = await again.receive(ApiKey.PRODUCE)
        assert isinstance(produced, ProduceResponse)
        assert produced.partitions[0].base_offset == 1
    assert [each.rule for each in requests.received(None)] == [0, 1, 0, 0]


async def test_a_dropped_response_may_have_to_wait(autojump_clock: trio.testing.MockClock) -> None:
    """A parked request is dropped when its response is ready."""
    requests = faulty(RequestRule(1, "FETCH", "drop_response", times=1))
    async with serving(dispatch=requests) as server:
        client, other = await server.connect(), await server.connect()
        await client.send(VERSIONS, fetch_of(wait_ms=60_000))
        await client.receive(ApiKey.API_VERSIONS)
        await trio.sleep(10)
        assert [each.errors for each in requests.received(None)] == [(), None]
        await other.send(produce_of(10))
        await wait_until_closed(client)
        assert trio.current_time() < 12


async def test_a_held_request_holds_those_behind_it(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Until its rule is removed; then all are served in the order in which they came."""
    requests = faulty(RequestRule(1, "PRODUCE", "hold", times=1))
    async with serving(dispatch=requests) as server:
        client, other = await server.connect(), await server.connect()
        await client.send(VERSIONS, produce_of(10), produce_of(10))
        await client.receive(ApiKey.API_VERSIONS)
        await other.send(produce_of(10))
        await other.receive(ApiKey.PRODUCE)
        with trio.move_on_after(60):
            raise AssertionError(await client.receive(ApiKey.PRODUCE))
        requests.set(())
        for place in (1, 2):
            correlation_id, produced = await client.receive(ApiKey.PRODUCE)
            assert isinstance(produced, ProduceResponse)
            assert correlation_id == place + 1
            assert produced.partitions[0].base_offset == place


async def test_a_failed_fetch_ends_the_session_of_its_client(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """So that the client names all partitions again. An error of the session is in the head."""
    requests = faulty()
    async with serving(dispatch=requests) as server:
        client = await server.connect()
        await client.send(session_fetch(SESSION_EPOCH_OPEN, 0, PartitionFetch("t", 0, 0)))
        _, opened = await client.receive(ApiKey.FETCH)
        assert isinstance(opened, FetchResponse)
        assert opened.session_id != SESSION_NONE
        for number, error in enumerate(("NOT_LEADER_OR_FOLLOWER", "FETCH_SESSION_ID_NOT_FOUND")):
            requests.set([RequestRule(number, "FETCH", "fail", error=error, topic="t")])
            await client.send(session_fetch(1, opened.session_id))
            _, failed = await client.receive(ApiKey.FETCH)
            assert isinstance(failed, FetchResponse)
            assert failed.session_id == SESSION_NONE
            errors = [each.error for each in failed.partitions]
            is_in_head = error == "FETCH_SESSION_ID_NOT_FOUND"
            assert errors == ([] if is_in_head else [ErrorCode[error]])
            assert failed.error == (ErrorCode[error] if is_in_head else ErrorCode.NONE)
    assert [each.errors for each in requests.received(None)] == [
        (),
        ("NOT_LEADER_OR_FOLLOWER",),
        ("FETCH_SESSION_ID_NOT_FOUND",),
    ]
    assert {each.partitions for each in requests.received(None)} == {(TopicPartition("t", 0),)}


async def test_a_request_of_a_broker_is_not_among_those_of_clients(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A broker's request is recorded, but is not among those of clients."""
    of_brokers = FaultyDispatch("PLAINTEXT", lambda: 5_000)
    async with serving(dispatch=of_brokers) as server:
        client = await server.connect()
        await client.send(VERSIONS, client_id="fetcher")
        await client.receive(ApiKey.API_VERSIONS)
    assert list(of_brokers.received(None)) == []
    [received] = of_brokers.received("fetcher")
    assert not received.is_of_client
