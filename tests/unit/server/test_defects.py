"""Unexpected exceptions: which end a connection, and which end the broker."""

import logging
from collections.abc import Callable
from typing import Any

import pytest
import trio
import trio.testing

from minibroker.broker.controller import topics
from minibroker.broker.defects import KINDS_MAX, DefectKind, Defects, Stage
from minibroker.broker.replication.purgatory import Parked
from minibroker.broker.server import wires
from minibroker.broker.server.dispatch import HANDLERS, Effect, effect_of
from minibroker.broker.server.dispatch import dispatch as serve
from minibroker.broker.server.request_times import RequestTimes
from minibroker.broker.server.services import Services
from minibroker.client.net.channel import ChannelOptions, open_channel
from minibroker.protocol.constants import ApiKey, ErrorCode
from minibroker.protocol.messages import RequestEnvelope
from minibroker.protocol.messages.api_versions import ApiVersionsRequest
from minibroker.protocol.messages.brokers import DescribeBrokerRequest
from minibroker.protocol.messages.fetch import FetchRequest
from minibroker.protocol.messages.metadata import MetadataRequest
from minibroker.protocol.messages.topics import CreateTopicsRequest, NewTopic
from minibroker.protocol.types import Endpoint
from minibroker.testing.cluster import SimulatedWorld, open_broker
from tests.unit.connections import VERSIONS, Server, fetch_of, produce_of, serving

METADATA = (ApiKey.METADATA, MetadataRequest(("t",)))


def raising(*_: Any) -> Any:
    raise KeyError("a defect")


async def slowly_raising(*_: Any) -> Any:
    raise KeyError("a defect")


def failing(api_key: ApiKey, outcome: Callable[..., Any]) -> Any:
    """Serve as usual, but for one api."""

    def dispatch(services: Services, envelope: RequestEnvelope, peer: str, now: float) -> Any:
        if envelope.api_key == api_key:
            return outcome()
        return serve(services, envelope, peer, now)

    return dispatch


def parked() -> Parked[Any]:
    return Parked((), lambda: 10.0, raising, raising)


def turns() -> Any:
    yield
    raising()


async def sends_it_and_is_cut_off(server: Server, request: tuple[ApiKey, object]) -> None:
    """Another connection is served before and after."""
    good, bad = await server.connect(), await server.connect()
    await bad.send(request)
    with pytest.raises(EOFError):
        await bad.receive(request[0])
    await good.send(VERSIONS)
    await good.receive(ApiKey.API_VERSIONS)


def kinds(server: Server) -> list[tuple[str, Stage, int]]:
    found = server.node.services.defects.statistics()
    return [(kind.request, kind.stage, count) for kind, count in found.items()]


@pytest.mark.parametrize("outcome", [raising, parked, turns])
async def test_a_handler_that_reads_fails_alone(
    outcome: Callable[..., Any],
    autojump_clock: trio.testing.MockClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """At once, in a later attempt, or in turns: its connection ends; the first one is logged."""
    async with serving(dispatch=failing(ApiKey.METADATA, outcome)) as server:
        for _ in range(3):
            await sends_it_and_is_cut_off(server, METADATA)
        assert kinds(server) == [("Metadata", Stage.HANDLE, 3)]
    logged = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert len(logged) == 1
    assert logged[0].exc_info is not None
    assert "failed to handle a Metadata request, with KeyError at test_defects.py" in caplog.text


@pytest.mark.parametrize("outcome", [raising, parked, turns])
async def test_after_one_that_changes_the_broker_ends(
    outcome: Callable[..., Any], autojump_clock: trio.testing.MockClock
) -> None:
    """State may be half changed: what is in memory is not to be believed any more."""
    with pytest.RaisesGroup(KeyError, flatten_subgroups=True):
        async with serving(dispatch=failing(ApiKey.PRODUCE, outcome)) as server:
            client = await server.connect()
            await client.send(produce_of(1))
            await trio.sleep(1)


async def test_a_failed_disk_ends_the_broker(autojump_clock: trio.testing.MockClock) -> None:
    """Also where a request only reads: another replica is to lead."""

    def fails() -> None:
        raise OSError(5, "Input/output error")

    with pytest.RaisesGroup(OSError, flatten_subgroups=True):
        async with serving(dispatch=failing(ApiKey.FETCH, fails)) as server:
            client = await server.connect()
            await client.send(fetch_of(0))
            await trio.sleep(1)


async def test_what_cannot_be_decoded_or_encoded_fails_alone(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No state has changed before, and the state after a request is whole."""
    async with serving() as server:
        with monkeypatch.context() as patched:
            patched.setattr(wires.rpc, "decode_request", raising)
            bad = await server.connect()
            await bad.send(METADATA)
            with pytest.raises(EOFError):
                await bad.receive(ApiKey.METADATA)
        with monkeypatch.context() as patched:
            patched.setattr(wires.rpc, "encode_response", raising)
            bad = await server.connect()
            await bad.send(produce_of(1))
            with pytest.raises(EOFError):
                await bad.receive(ApiKey.PRODUCE)
        await sends_it_and_is_served(server)
        assert server.node.partition().log.log_end == 1
        assert kinds(server) == [("", Stage.DECODE, 1), ("Produce", Stage.ENCODE, 1)]


async def sends_it_and_is_served(server: Server) -> None:
    good = await server.connect()
    await good.send(METADATA)
    await good.receive(ApiKey.METADATA)


async def test_a_consumers_fetch_session_does_not_outlive_its_defect(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A FETCH may have half changed its own session, which is closed."""
    async with serving() as server:
        sessions = server.node.services.fetch_sessions
        opening = FetchRequest(session_epoch=0, partitions=fetch_of(0)[1].partitions)
        client = await server.connect()
        await client.send((ApiKey.FETCH, opening))
        _, opened = await client.receive(ApiKey.FETCH)
        assert sessions.statistics() == 1
        log = server.node.partition().log
        monkeypatch.setattr(type(log), "readable_bytes", raising)
        monkeypatch.setattr(type(log), "read", raising)
        await client.send(produce_of(1))
        await client.receive(ApiKey.PRODUCE)
        again = FetchRequest(session_id=opened.session_id, session_epoch=1)
        await client.send((ApiKey.FETCH, again))
        with pytest.raises(EOFError):
            await client.receive(ApiKey.FETCH)
        assert sessions.statistics() == 0


def test_kinds_are_bounded_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """A client cannot fill log or metrics with kinds."""
    defects = Defects()
    for number in range(2 * KINDS_MAX):
        for _ in range(2):
            defects.record(f"Kind{number}", Stage.HANDLE, KeyError())
    found = defects.statistics()
    assert len(found) == KINDS_MAX + 1 == len(caplog.records)
    assert found[DefectKind("others", Stage.HANDLE, "others")] == 2 * KINDS_MAX


def test_each_handler_says_on_which_side_it_is() -> None:
    """And those that are not in the table: a follower's FETCH moves the high watermark. A
    coordinator replays what is committed before it reads."""
    assert {key for key, one in HANDLERS.items() if one.effect is Effect.READS} == {
        ApiKey.LIST_OFFSETS,
        ApiKey.METADATA,
        ApiKey.FIND_COORDINATOR,
        ApiKey.API_VERSIONS,
        ApiKey.OFFSETS_FOR_LEADER_EPOCH,
        ApiKey.DESCRIBE_ACLS,
        ApiKey.DESCRIBE_CONFIGS,
        ApiKey.DESCRIBE_REPLICAS,
        ApiKey.DESCRIBE_BROKER,
        ApiKey.DESCRIBE_CLUSTER,
        ApiKey.DESCRIBE_LOG_DIRS,
        ApiKey.DESCRIBE_PRODUCERS,
        ApiKey.LIST_CONFIG_RESOURCES,
        ApiKey.DESCRIBE_TOPIC_PARTITIONS,
    }

    def effect(api_key: ApiKey, message: object) -> Effect:
        return effect_of(RequestTimes().kind_of(RequestEnvelope(api_key, 0, 1, None, message)))

    assert effect(ApiKey.FETCH, FetchRequest(-1)) is Effect.READS
    assert effect(ApiKey.FETCH, FetchRequest(1)) is Effect.CHANGES
    for api_key in (ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP, ApiKey.OFFSET_FETCH):
        assert effect(api_key, None) is Effect.CHANGES
    assert effect(ApiKey.API_VERSIONS, ApiVersionsRequest()) is Effect.READS


async def test_a_plan_that_fails_ends_no_controller(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan changes nothing before it is written: the request fails, and the next one is served.
    What the controller does of its own accord ends it, as before."""
    world = SimulatedWorld(1)
    async with open_broker(world, {}) as broker:
        options = ChannelOptions("client")
        network = world.network.host("client")
        async with open_channel(network, Endpoint("broker-1", 9092), options) as channel:
            create = CreateTopicsRequest((NewTopic("t"),))
            with monkeypatch.context() as patched:
                patched.setattr(topics, "plan_create", raising)
                answer = await channel.call(ApiKey.CREATE_TOPICS, create)
            assert answer.topics[0].error == ErrorCode.UNKNOWN_SERVER_ERROR
            assert "KeyError at test_defects.py" in answer.topics[0].error_message
            answer = await channel.call(ApiKey.CREATE_TOPICS, create)
            assert answer.topics[0].error == 0
            described = await channel.call(ApiKey.DESCRIBE_BROKER, DescribeBrokerRequest())
            [defect] = described.defects
            assert (defect.request, defect.stage, defect.count) == ("CreateTopics", "plan", 1)
        assert broker.is_running
