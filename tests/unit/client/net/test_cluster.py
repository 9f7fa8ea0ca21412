"""The cluster as a client sees it: whom it asks, whom it believes, and when it gives up."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import trio

from minibroker.client.errors import ClientClosed, ClientTimeout
from minibroker.client.net.channel import ConnectionLost
from minibroker.client.net.cluster import Cluster, in_background, open_cluster
from minibroker.client.net.metadata import Leader, Metadata
from minibroker.client.options import AdminOptions, ClientOptions, ProducerOptions, read_options
from minibroker.protocol.constants import ApiKey, ErrorCode
from minibroker.protocol.errors import BrokerError
from minibroker.protocol.messages import APIS
from minibroker.protocol.messages.api_versions import ApiVersion, ApiVersionsResponse
from minibroker.protocol.messages.metadata import (
    BrokerMetadata,
    MetadataRequest,
    MetadataResponse,
    PartitionMetadata,
    TopicMetadata,
)
from minibroker.protocol.messages.offsets import ListOffsetsRequest
from minibroker.protocol.types import Endpoint, TopicPartition
from tests.support.census import census

T0 = TopicPartition("t", 0)
SERVED = tuple(ApiVersion(key) for key in sorted(APIS))


def metadata(
    *leaders: tuple[int, int], topic: str = "t", brokers: str = "ab", error: int = 0
) -> MetadataResponse:
    """Brokers 1 and 2 are hosts "a" and "b"; `leaders` are (node, epoch) of the partitions."""
    return MetadataResponse(
        brokers=tuple(BrokerMetadata(" abc".index(name), name, 9092) for name in brokers),
        topics=(
            TopicMetadata(
                topic,
                error=error,
                partitions=tuple(
                    PartitionMetadata(number, leader_id=node, leader_epoch=epoch)
                    for number, (node, epoch) in enumerate(leaders)
                ),
            ),
        ),
    )


def options(kind: type[ClientOptions] = ProducerOptions, **given: object) -> Any:
    """Options that name host "a" unless told otherwise."""
    return read_options(kind, None, {"bootstrap_servers": "a:9092", **given})


def script(*answers: MetadataResponse) -> Any:
    """Give these answers, the last one for ever."""
    left: Iterator[MetadataResponse] = iter(answers)
    return lambda _: next(left, answers[-1])


async def test_a_topic_is_asked_for_once(
    start_broker: Any, seams: Any, autojump_clock: Any
) -> None:
    """What is known is not asked again; leaders and partition counts are plain look-ups."""
    broker = await start_broker("a")
    broker.answers[ApiKey.METADATA] = script(metadata((1, 3), (2, 4)))
    async with open_cluster(options(), seams) as cluster:
        assert cluster.partition_count("t") is None
        for _ in range(2):
            topic = await cluster.topic("t")
        assert len(topic.partitions) == cluster.partition_count("t") == 2
        assert cluster.leader_of(T0) == Leader(1, 3)
        assert cluster.leader_of(TopicPartition("t", 1)) == (2, 4)
        assert cluster.leader_of(TopicPartition("t", 2)) is None
        assert [request.topics for request in broker.asked(MetadataRequest)] == [("t",)]


def test_a_broker_that_lags_takes_no_partitions_away() -> None:
    """A topic never has fewer partitions than before, unless it is another topic of that name."""
    known = Metadata()
    assert known.update(metadata((1, 3)))
    assert known.update(metadata((1, 3), (2, 0)))
    known.update(metadata((1, 4)))
    assert len(known.topics["t"].partitions) == 2
    assert known.leader_of(T0) == Leader(1, 4)
    another = metadata((1, 0))
    another = replace(another, topics=(replace(another.topics[0], topic_id=b"2" * 16),))
    known.update(another)
    assert len(known.topics["t"].partitions) == 1


async def test_another_cluster_at_the_address_gets_no_request(
    start_broker: Any, seams: Any, autojump_clock: Any
) -> None:
    """It took the port of one that has ended. The client would create its topics there; it fails
    instead, and says why. A broker that does not know its cluster yet is no other one."""
    broker = await start_broker("a")
    ids = iter(["", "one", "other"])
    cluster_id = "other"

    def versions(_: object) -> ApiVersionsResponse:
        nonlocal cluster_id
        cluster_id = next(ids, "other")
        return ApiVersionsResponse(0, SERVED, cluster_id)

    broker.answers[ApiKey.API_VERSIONS] = versions
    answer = replace(metadata((1, 0), brokers="a"), cluster_id="one")
    broker.answers[ApiKey.METADATA] = script(answer)
    async with open_cluster(options(AdminOptions, default_api_timeout_ms=2000), seams) as it:
        for _ in range(2):
            await it.refreshed()
            broker.connections[-1].close()
        asked = len(broker.asked(MetadataRequest))
        with pytest.raises(ClientTimeout, match="belongs to the cluster other, and this client"):
            await it.refreshed()
        assert cluster_id == "other"
        assert len(broker.asked(MetadataRequest)) == asked


async def test_a_topic_that_is_being_created_is_waited_for(
    start_broker: Any, seams: Any, autojump_clock: Any
) -> None:
    """Errors that pass are asked again until the topic is there."""
    broker = await start_broker("a")
    broker.answers[ApiKey.METADATA] = script(
        metadata(error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        metadata(error=ErrorCode.LEADER_NOT_AVAILABLE),
        metadata((1, 0)),
    )
    async with open_cluster(options(), seams) as cluster:
        await cluster.topic("t")
        assert cluster.leader_of(T0) == Leader(1, 0)
        assert all(request.allow_auto_topic_creation for request in broker.requests[1:])


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (ProducerOptions, ErrorCode.INVALID_TOPIC_EXCEPTION),
        (AdminOptions, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
async def test_a_topic_that_cannot_be_is_an_error_at_once(
    start_broker: Any, seams: Any, autojump_clock: Any, kind: Any, code: ErrorCode
) -> None:
    """An invalid name, or a missing topic that this client may not create, is not waited for."""
    broker = await start_broker("a")
    broker.answers[ApiKey.METADATA] = script(metadata(error=code))
    async with open_cluster(options(kind), seams) as cluster:
        with pytest.raises(BrokerError, match="'t'") as raised:
            await cluster.topic("t")
        assert raised.value.code == code
        assert trio.current_time() < 1
        await cluster.refreshed()
        assert broker.requests[-1].topics == ()


async def test_a_leader_is_never_replaced_by_one_of_an_older_epoch(
    start_broker: Any, seams: Any, autojump_clock: Any
) -> None:
    """Neither a late hint nor metadata of a broker that lags behind takes a leader back."""
    broker = await start_broker("a")
    broker.answers[ApiKey.METADATA] = script(metadata((1, 5)), metadata((1, 5)), metadata((2, 8)))
    async with open_cluster(options(), seams) as cluster:
        await cluster.topic("t")
        cluster.update_leader(T0, Leader(2, 4))
        assert cluster.leader_of(T0) == Leader(1, 5)
        cluster.update_leader(T0, Leader(2, 6))
        await cluster.refreshed()
        assert cluster.leader_of(T0) == Leader(2, 6)
        await cluster.refreshed()
        assert cluster.leader_of(T0) == Leader(2, 8)


async def test_a_topic_made_anew_starts_its_epochs_anew(
    start_broker: Any, seams: Any, autojump_clock: Any
) -> None:
    """Another topic id means another topic: the old epochs say nothing about it."""
    broker = await start_broker("a")
    second = metadata((2, 0))
    renewed = MetadataResponse(
        brokers=second.brokers,
        topics=(
            TopicMetadata("t", topic_id=bytes(15) + b"1", partitions=second.topics[0].partitions),
        ),
    )
    broker.answers[ApiKey.METADATA] = script(metadata((1, 5)), renewed)
    async with open_cluster(options(), seams) as cluster:
        await cluster.topic("t")
        await cluster.refreshed()
        assert cluster.leader_of(T0) == Leader(2, 0)


def test_a_broker_that_has_not_heard_of_the_new_topic_is_not_believed() -> None:
    """Its answer names the deleted topic, also after another one knew no topic of the name; without
    a creation number an answer is believed, as there is nothing to compare."""
    partitions = metadata((1, 0)).topics[0].partitions
    old, new, unnumbered = (
        MetadataResponse(topics=(TopicMetadata("t", 0, topic_id, False, partitions, creation),))
        for topic_id, creation in ((b"o" * 16, 4), (b"n" * 16, 7), (b"u" * 16, 0))
    )
    known = Metadata()
    assert known.update(old)
    assert known.update(new)
    assert not known.update(old)
    assert known.topics["t"].topic_id == b"n" * 16
    known.update(metadata(error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
    known.update(old)
    assert "t" not in known.topics
    known.update(unnumbered)
    assert known.topics["t"].topic_id == b"u" * 16


async def test_a_hint_about_a_deleted_topic_is_not_believed(
    start_broker: Any, seams: Any, autojump_clock: Any
) -> None:
    """RM-11: an answer that was under way while the topic was made anew may name a leader epoch of
    the old topic, above all of the new one's, which would never be replaced."""
    old, new = (
        replace(metadata((1, epoch)).topics[0], topic_id=bytes(15) + digit)
        for epoch, digit in ((7, b"1"), (0, b"2"))
    )
    broker = await start_broker("a")
    broker.answers[ApiKey.METADATA] = script(
        *(replace(metadata(), topics=(topic,)) for topic in (old, new))
    )
    async with open_cluster(options(), seams) as cluster:
        await cluster.topic("t")
        assert cluster.update_leader(T0, Leader(2, 8), old.topic_id)
        await cluster.refreshed()
        assert not cluster.update_leader(T0, Leader(2, 9), old.topic_id)
        assert cluster.leader_of(T0) == Leader(1, 0)
        assert cluster.update_leader(T0, Leader(2, 1), new.topic_id)


async def test_metadata_is_renewed_by_age(
    start_broker: Any, seams: Any, autojump_clock: Any
) -> None:
    """After metadata.max.age.ms the client asks again without being told to."""
    broker = await start_broker("a")
    broker.answers[ApiKey.METADATA] = script(metadata((1, 1)), metadata((2, 2)))
    async with open_cluster(options(metadata_max_age_ms=5000), seams) as cluster:
        await cluster.topic("t")
        await trio.sleep(4)
        assert cluster.leader_of(T0) == Leader(1, 1)
        await trio.sleep(2)
        assert cluster.leader_of(T0) == Leader(2, 2)


async def test_a_topic_that_nobody_uses_is_not_asked_for(
    start_broker: Any, seams: Any, autojump_clock: Any
) -> None:
    """After five minutes; one that is looked up now and then stays, and one that is looked up again
    is asked for again. Of one that was deleted, whoever keeps something is told."""
    broker = await start_broker("a")
    gone: list[str] = []

    def answer(request: MetadataRequest) -> MetadataResponse:
        told = [
            replace(metadata((1, 0)).topics[0], name=name, topic_id=bytes(16))
            if name != "deleted"
            else TopicMetadata(name, error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            for name in request.topics
        ]
        return replace(metadata(brokers="a"), topics=tuple(told))

    broker.answers[ApiKey.METADATA] = answer
    async with open_cluster(options(metadata_max_age_ms=60_000), seams, gone.append) as cluster:
        for name in ("idle", "used", "deleted"):
            cluster.request_topic(name)
        for _ in range(12):
            await trio.sleep(60)
            assert cluster.leader_of(TopicPartition("used", 0)) == Leader(1, 0)
        assert broker.requests[-1].topics == ("used",)
        assert gone == ["deleted"]
        assert cluster.statistics().topic_count == 1
        assert cluster.leader_of(TopicPartition("idle", 0)) is None
        await cluster.refreshed()
        assert cluster.leader_of(TopicPartition("idle", 0)) == Leader(1, 0)


async def test_brokers_that_moved_are_forgotten(
    start_broker: Any, seams: Any, autojump_clock: Any
) -> None:
    """A client of brokers that come back with other addresses keeps nothing of the old ones."""
    kind = "minibroker.client.net.connection_pool.Connection"
    broker = await start_broker("a")
    hosts = iter(range(100))
    broker.answers[ApiKey.METADATA] = lambda _: MetadataResponse(
        brokers=(BrokerMetadata(1, "a", 9092), BrokerMetadata(2, f"host-{next(hosts)}", 9092))
    )
    async with open_cluster(options(), seams) as cluster:
        before = census()[kind]
        for _ in range(20):
            await cluster.refreshed()
            with pytest.raises(ConnectionLost):
                await cluster.channel(2)
        assert census()[kind] < before + 5


@pytest.mark.parametrize(
    ("code", "why"),
    [
        (ErrorCode.INVALID_REPLICATION_FACTOR, "2 brokers that are alive"),
        (ErrorCode.INVALID_PARTITIONS, "more than it may have; delete topics"),
    ],
)
async def test_why_a_topic_is_not_created_by_itself(
    start_broker: Any, seams: Any, autojump_clock: Any, code: ErrorCode, why: str
) -> None:
    """A topic that asking for it could not create: the error says so, and how many brokers live
    where these are too few, or that the cluster has as many partitions as it takes."""
    broker = await start_broker("a")
    broker.answers[ApiKey.METADATA] = script(metadata(error=code))
    async with open_cluster(options(), seams) as cluster:
        with pytest.raises(BrokerError, match=f"did not create it: .*{why}") as refused:
            await cluster.topic("t")
    assert refused.value.code is code


async def test_when_nobody_answers_the_error_names_whom_and_why(
    seams: Any, autojump_clock: Any
) -> None:
    """The error of an unreachable cluster lists the endpoints tried and the last reason."""
    given = options(bootstrap_servers="a:1,b:2", max_block_ms=3000)
    async with open_cluster(given, seams) as cluster:
        with pytest.raises(ClientTimeout, match=r"a:1, b:2 within 3000 ms; last error: .*b:2"):
            await cluster.topic("t")
        assert trio.current_time() == pytest.approx(3, abs=0.1)


async def test_a_bootstrap_entry_that_is_silent_does_not_hold_up_the_others(
    start_broker: Any, network: Any, seams: Any, autojump_clock: Any
) -> None:
    """NET-07: with one dead and one silent entry in the list, the live one is found quickly."""
    broker = await start_broker("c")
    broker.answers[ApiKey.METADATA] = script(metadata((3, 0), brokers="c"))
    network.hold("client", "b")
    given = options(bootstrap_servers="a:9092,b:9092,c:9092")
    async with open_cluster(given, seams) as cluster:
        await cluster.topic("t")
        assert trio.current_time() < 0.8


async def test_a_broker_that_stops_answering_is_asked_once(
    start_broker: Any, seams: Any, autojump_clock: Any
) -> None:
    """A paused broker, still connected, delays metadata by seconds, not by request.timeout.ms."""
    paused, live = await start_broker("a"), await start_broker("b")
    live.answers[ApiKey.METADATA] = script(metadata((2, 1)))
    paused.answers[ApiKey.METADATA] = script(metadata((1, 0)))
    async with open_cluster(options(), seams) as cluster:
        await cluster.topic("t")
        paused.answers[ApiKey.METADATA] = lambda _: None
        await cluster.refreshed()
        assert cluster.leader_of(T0) == Leader(2, 1)
        assert trio.current_time() < 5


async def test_a_broker_that_answers_is_kept_whatever_the_metadata_say(
    start_broker: Any, seams: Any, autojump_clock: Any
) -> None:
    """A broker may be reached by another name than the one it is listed by; only one that is silent
    and not listed loses its connection."""
    broker = await start_broker("a")
    broker.answers[ApiKey.METADATA] = script(metadata((2, 1), brokers="b"))
    async with open_cluster(options(), seams) as cluster:
        await cluster.topic("t")
        channel = await cluster.any_channel()
        await cluster.refreshed()
        assert channel.is_open
        broker.answers[ApiKey.LIST_OFFSETS] = lambda _: None
        channel.start(ApiKey.LIST_OFFSETS, ListOffsetsRequest())
        with trio.fail_after(3):
            await channel.closed.wait()


async def test_metadata_that_help_nobody_are_asked_of_another_broker(
    start_broker: Any, seams: Any, autojump_clock: Any
) -> None:
    """The first may be cut off from the controller and tell of an old leader for ever."""
    stale, fresh = await start_broker("a"), await start_broker("b")
    stale.answers[ApiKey.METADATA] = script(metadata((1, 5)))
    fresh.answers[ApiKey.METADATA] = script(metadata((2, 6)))
    async with open_cluster(options(), seams) as cluster:
        await cluster.topic("t")
        assert cluster.leader_of(T0) == Leader(1, 5)
        for _ in range(2):
            await cluster.refreshed()
        assert cluster.leader_of(T0) == Leader(2, 6)
        assert trio.current_time() < 0.1


async def test_a_dead_broker_delays_only_who_wants_it(
    start_broker: Any, network: Any, seams: Any, autojump_clock: Any
) -> None:
    """NET-07: while one broker is silent a channel to another opens at once."""
    broker = await start_broker("a")
    broker.answers[ApiKey.METADATA] = script(metadata((1, 0)))
    network.hold("client", "b")
    async with open_cluster(options(), seams) as cluster, trio.open_nursery() as nursery:
        await cluster.topic("t")
        start = trio.current_time()
        nursery.start_soon(cluster.channel, 2)
        await trio.testing.wait_all_tasks_blocked()
        assert (await cluster.channel(1)).is_open
        assert trio.current_time() - start < 0.1
        nursery.cancel_scope.cancel()


async def test_back_off_between_tries_doubles_up_to_its_maximum(
    start_broker: Any, seams: Any, autojump_clock: Any
) -> None:
    """NET-07: tries to reach a dead broker are 50, 100, ... 1000 ms apart, give or take a fifth."""
    broker = await start_broker("a")
    broker.answers[ApiKey.METADATA] = script(metadata((2, 0)))

    async def try_once(cluster: Cluster) -> float:
        start = trio.current_time()
        with pytest.raises(ConnectionLost, match="b:9092"):
            await cluster.channel(2)
        return trio.current_time() - start

    async with open_cluster(options(), seams) as cluster:
        await cluster.topic("t")
        waits = [await try_once(cluster) for _ in range(8)]
    for wait, expected in zip(waits, [0, 0.05, 0.1, 0.2, 0.4, 0.8, 1, 1], strict=True):
        assert 0.8 * expected <= wait <= 1.2 * expected + 0.01


async def test_who_waits_for_one_broker_shares_the_try(
    start_broker: Any, seams: Any, autojump_clock: Any
) -> None:
    """Many who want a broker get one connection; another purpose has another one."""
    broker = await start_broker("a")
    broker.answers[ApiKey.METADATA] = script(metadata((1, 0), brokers="a"))
    async with open_cluster(options(), seams) as cluster:
        await cluster.topic("t")
        assert await cluster.channel(1) is await cluster.channel(1) is await cluster.any_channel()
        assert len(broker.connections) == 1
        assert await cluster.channel(1, "fetches") is not await cluster.channel(1)
        assert len(broker.connections) == 2


async def test_an_unknown_broker_is_an_error_that_has_metadata_renewed(
    start_broker: Any, seams: Any, autojump_clock: Any
) -> None:
    """A leader that metadata does not list is asked about, not waited for."""
    broker = await start_broker("a")
    broker.answers[ApiKey.METADATA] = script(metadata((3, 0)), metadata((3, 0), brokers="abc"))
    async with open_cluster(options(), seams) as cluster:
        await cluster.topic("t")
        with pytest.raises(ConnectionLost, match="broker 3"):
            await cluster.channel(3)
        with pytest.raises(ConnectionLost, match="c:9092"):
            await cluster.channel(3)


async def test_a_failure_inside_the_block_comes_out_as_it_is(
    seams: Any, autojump_clock: Any
) -> None:
    """An application's exception is not wrapped by the client's tasks."""
    with pytest.raises(KeyError):
        async with open_cluster(options(), seams):
            raise KeyError("mine")


async def test_a_task_whose_start_is_cancelled_ends(autojump_clock) -> None:
    """A block that is cancelled before its task in the background is ready does not wait for it."""

    async def run(*, task_status: trio.TaskStatus[None]) -> None:
        task_status.started()
        await trio.sleep_forever()

    with trio.fail_after(1), trio.CancelScope() as scope:
        scope.cancel()
        async with in_background(run):
            raise AssertionError("it was cancelled before")
    assert scope.cancelled_caught


async def test_closing_while_metadata_are_asked_for_starts_no_connection(
    seams: Any, autojump_clock: Any
) -> None:
    """The task that keeps the metadata may run on once after the connections have ended."""
    for _ in range(30):  # which of the two runs first is up to trio, each time
        async with open_cluster(options(), seams) as cluster:
            await trio.testing.wait_all_tasks_blocked()
            cluster.request_refresh()


class RefusingNetwork:
    """Refuses every connection, once the test lets it."""

    def __init__(self) -> None:
        self.answers = trio.Event()

    async def connect(self, endpoint: Endpoint) -> Any:
        """Never connect."""
        await self.answers.wait()
        raise ConnectionRefusedError(f"{endpoint} refuses")


async def test_closing_while_a_connection_fails_raises_nothing(
    seams: Any, autojump_clock: Any
) -> None:
    """The failure wakes the task that keeps the metadata at the moment at which it is cancelled."""
    for _ in range(60):  # which task runs first is up to trio, each time
        network = RefusingNetwork()
        async with open_cluster(options(), replace(seams, network=network)) as cluster:
            cluster.request_refresh()
            await trio.testing.wait_all_tasks_blocked()
            network.answers.set()
            await trio.lowlevel.checkpoint()


@pytest.mark.parametrize(
    "wait",
    [
        pytest.param(lambda cluster: cluster.channel(2), id="one broker"),
        pytest.param(
            lambda cluster: cluster.ask(ApiKey.LIST_OFFSETS, ListOffsetsRequest()), id="any broker"
        ),
        pytest.param(lambda cluster: cluster.refreshed(), id="metadata"),
    ],
)
async def test_closing_ends_the_waits_of_other_tasks(
    start_broker: Any, network: Any, seams: Any, autojump_clock: Any, wait: Any
) -> None:
    """A task that still waits for a connection, or for metadata, gets `ClientClosed` at once."""
    broker = await start_broker("a")
    broker.answers[ApiKey.METADATA] = script(metadata((2, 0)))
    raised: list[ClientClosed] = []

    async def wait_for_it(cluster: Cluster) -> None:
        with pytest.raises(ClientClosed) as caught:
            await wait(cluster)
        raised.append(caught.value)

    async with trio.open_nursery() as nursery:
        async with open_cluster(options(), seams) as cluster:
            await cluster.topic("t")
            network.hold("client", "a")
            network.hold("client", "b")
            nursery.start_soon(wait_for_it, cluster)
            await trio.testing.wait_all_tasks_blocked()
            start = trio.current_time()
        await trio.testing.wait_all_tasks_blocked()
        assert raised
        assert trio.current_time() - start < 0.1
        nursery.cancel_scope.cancel()


async def test_an_error_of_an_address_names_who_told_it(
    start_broker: Any, seams: Any, autojump_clock: Any
) -> None:
    """Nobody at this end typed the address that fails: the text says where it comes from."""
    broker = await start_broker("a")
    answer = metadata((2, 0))
    answer = replace(answer, brokers=(*answer.brokers[:1], BrokerMetadata(2, "nosuchhost", 9092)))
    broker.answers[ApiKey.METADATA] = script(answer)
    async with open_cluster(options(), seams) as cluster:
        await cluster.topic("t")
        text = "broker 2 is advertised as nosuchhost:9092 by a:9092; .*cannot connect"
        with pytest.raises(ConnectionLost, match=text):
            await cluster.channel(2)


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_an_interrupt_in_a_background_task_comes_out_alone(depth: int) -> None:
    """Ctrl-C strikes whatever task is running. The program sees a KeyboardInterrupt, and neither
    groups of it nor the tracebacks of the nurseries that it went through."""

    async def interrupted(left: int) -> None:
        if not left:
            raise KeyboardInterrupt
        async with trio.open_nursery() as nursery:
            nursery.start_soon(interrupted, left - 1)

    async def run(*, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        await trio.lowlevel.checkpoint()
        await interrupted(depth)

    async def program() -> None:
        async with in_background(run), in_background(run):
            await trio.sleep_forever()

    with pytest.raises(KeyboardInterrupt) as caught:
        trio.run(program)
    assert caught.value.__suppress_context__ or caught.value.__context__ is None
