"""What a broker knows of the requests that it serves: how long they took, how many wait."""

import pytest
import trio
import trio.testing

from minibroker.broker.histogram import Histogram
from minibroker.broker.server.request_times import KindStatistics, RequestTimes, name_of
from minibroker.protocol.constants import ACKS_NONE, ApiKey
from minibroker.protocol.messages.fetch import FetchRequest, PartitionFetch
from tests.unit.connections import VERSIONS, Server, fetch_of, produce_of, serving
from tests.unit.node import T0, state_of


def seen(server: Server) -> dict[str, KindStatistics]:
    """The kinds of requests that came."""
    kinds = server.node.services.times.statistics()
    return {name: kind for name, kind in kinds.items() if kind.parked or sum(kind.times.counts)}


def test_a_duration_is_counted_in_its_range() -> None:
    """A bound belongs to the range below it; what is longer than all bounds is counted too."""
    histogram = Histogram((0.1, 1.0))
    for duration_s in (0.05, 0.1, 0.2, 1.0, 7.0):
        histogram.record(duration_s)
    bounds, counts, total_s = histogram.statistics()
    assert (bounds, counts) == ((0.1, 1.0), (2, 2, 1))
    assert total_s == pytest.approx(8.35)


@pytest.mark.parametrize(
    ("key", "name"),
    [
        (ApiKey.PRODUCE, "Produce"),
        (ApiKey.FETCH, "FetchConsumer"),
        (ApiKey.LEADER_AND_ISR, "LeaderAndIsr"),
        (ApiKey.INIT_PRODUCER_ID, "InitProducerId"),
    ],
)
def test_kinds_have_kafkas_names(key: ApiKey, name: str) -> None:
    """A board for Kafka finds its requests."""
    assert name_of(key) == name
    assert name in RequestTimes().statistics()


async def test_a_request_takes_until_it_is_answered(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """What is answered at once takes no time, a long poll as long as it waits; each counts as what
    it is, one without an answer too."""
    async with serving() as server:
        client = await server.connect()
        await client.send(produce_of(1, acks=ACKS_NONE), VERSIONS, fetch_of(1, wait_ms=700))
        await client.receive(ApiKey.API_VERSIONS)
        assert seen(server)["FetchConsumer"].parked == 1
        await client.receive(ApiKey.FETCH)
        await trio.sleep(1)
        kinds = seen(server)
        assert kinds.keys() == {"Produce", "ApiVersions", "FetchConsumer"}
        assert all(sum(kind.times.counts) == 1 for kind in kinds.values())
        assert kinds["Produce"].times.total_s < 0.1
        assert 0.7 <= kinds["FetchConsumer"].times.total_s < 0.8
        assert kinds["FetchConsumer"].parked == 0


async def test_a_followers_fetch_is_another_kind(autojump_clock: trio.testing.MockClock) -> None:
    """Who fetches with a broker's id is not counted among the consumers."""
    async with serving() as server:
        server.node.lead(state_of(epochs=(1, 1), replicas=(1, 2), isr=(1, 2)))
        client = await server.connect()
        fetch = FetchRequest(2, 0, 1, partitions=(PartitionFetch(*T0, 0),))
        await client.send((ApiKey.FETCH, fetch))
        await client.receive(ApiKey.FETCH)
        await trio.sleep(1)
        assert seen(server).keys() == {"FetchFollower"}


async def test_who_hangs_up_waits_no_more(autojump_clock: trio.testing.MockClock) -> None:
    """Requests that were parked when their connection ended are not counted any more, whether the
    writer had come to them or not."""
    async with serving() as server:
        client = await server.connect()
        await client.send(*[fetch_of(wait_ms=60_000)] * 3)
        await trio.sleep(1)
        assert seen(server)["FetchConsumer"].parked == 3
        await client.stream.send([b"\xff" * 8])
        await trio.sleep(5)
        assert server.acceptor.statistics().open == 0
        assert seen(server) == {}
