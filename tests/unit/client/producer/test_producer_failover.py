"""A producer whose partitions change their leaders, on virtual time: soon, in order, once."""

from itertools import pairwise
from typing import Any

import pytest
import trio

from minibroker.client.errors import ClientTimeout
from minibroker.client.producer.delivery import Delivery
from minibroker.client.producer.producer import Producer
from minibroker.protocol.constants import ErrorCode
from minibroker.protocol.messages.metadata import MetadataRequest
from minibroker.protocol.messages.produce import ProduceRequest
from tests.unit.client.replicated import HOSTS, Replicated

ELECTED_AFTER_S = 1.1


@pytest.fixture
async def cluster(start_broker: Any, network: Any) -> Replicated:
    """Topic "t" with one partition, led by 1."""
    brokers = {node: await start_broker(host) for node, host in HOSTS.items()}
    return Replicated(network, brokers, [1])


@pytest.fixture
def deliveries() -> list[Delivery]:
    """What the producers were told."""
    return []


@pytest.fixture
def producer(seams: Any, deliveries: list[Delivery]) -> Any:
    """Makes producers of small batches that may ask any broker first."""

    def make(**options: object) -> Producer:
        return Producer(
            "a:9092,b:9092,c:9092",
            **{"seams": seams, "on_delivery": deliveries.append, "linger_ms": 0, "batch_size": 100}
            | options,
        )

    return make


def numbered(count: int) -> list[bytes]:
    """Values of which each fills a batch."""
    return [b"%040d" % number for number in range(count)]


async def send_steadily(producer: Producer, values: list[bytes]) -> None:
    """One record every 10 ms."""
    for value in values:
        producer.send_nowait("t", value, partition=0)
        await trio.sleep(0.01)


async def test_a_dead_leader_costs_its_election_and_little_more(
    cluster: Replicated, producer: Any, deliveries: list[Delivery], autojump_clock: Any
) -> None:
    """CPR-13: batches are at the new leader within some tens of ms after it is known, in order
    and once; until then the metadata are asked for at pauses that grow."""
    values = numbered(300)
    async with producer() as it, trio.open_nursery() as nursery:
        nursery.start_soon(send_steadily, it, values)
        await trio.sleep(0.5)
        asked_before = sum(len(each.asked(MetadataRequest)) for each in cluster.brokers.values())
        cluster.kill(1)
        await trio.sleep(ELECTED_AFTER_S)
        asked = sum(len(each.asked(MetadataRequest)) for each in cluster.brokers.values())
        assert asked - asked_before < 50
        elected_at = trio.current_time()
        cluster.fail_over(1, 2)
    first = next(each for each in cluster.partitions[0].logs[2] if each.header.leader_epoch == 1)
    assert 0 < first.at - elected_at < 0.1
    assert cluster.partitions[0].values() == values
    assert all(delivery.error is None for delivery in deliveries)


async def test_a_leader_that_stays_away_is_asked_about_five_times_a_second(
    cluster: Replicated, producer: Any, autojump_clock: Any
) -> None:
    """A client that waits long does not storm who is left."""
    async with producer(delivery_timeout_ms=60_000) as it:
        await it.send_and_wait("t", b"first")
        cluster.kill(1)
        it.send_nowait("t", b"second")
        await trio.sleep(10)
        before = sum(len(each.requests) for each in cluster.brokers.values())
        await trio.sleep(10)
        after = sum(len(each.requests) for each in cluster.brokers.values())
        assert 30 < after - before < 80
        cluster.fail_over(1, 3)
        began = trio.current_time()
        await it.flush()
        assert trio.current_time() - began < 0.4


async def test_a_stopped_leader_costs_little_more_than_a_dead_one(
    cluster: Replicated, producer: Any, deliveries: list[Delivery], autojump_clock: Any
) -> None:
    """NET-06, NET-07: no connection ends and nobody answers; once the metadata no longer name the
    broker as alive nobody waits for request.timeout.ms (30 s), and nothing comes twice."""
    values = numbered(200)
    async with producer() as it, trio.open_nursery() as nursery:
        nursery.start_soon(send_steadily, it, values)
        await trio.sleep(0.5)
        cluster.stop(1)
        await trio.sleep(ELECTED_AFTER_S)
        elected_at = trio.current_time()
        cluster.fail_over(1, 3)
        await trio.sleep(0.7)
        cluster.network.heal()
    first = next(each for each in cluster.partitions[0].logs[3] if each.header.leader_epoch == 1)
    assert 0 < first.at - elected_at < 0.6
    assert cluster.partitions[0].values() == values
    assert all(delivery.error is None for delivery in deliveries)


async def test_a_silent_broker_that_lives_keeps_its_requests(
    cluster: Replicated, producer: Any, autojump_clock: Any
) -> None:
    """acks=all may take long: silence alone closes no connection, and asks seldom."""
    async with producer() as it:
        await it.send_and_wait("t", b"first")
        cluster.silent = {1}
        it.send_nowait("t", b"second")
        await trio.sleep(20)
        assert len(cluster.brokers[1].asked(ProduceRequest)) == 2
        assert sum(len(each.asked(MetadataRequest)) for each in cluster.brokers.values()) < 120
        cluster.silent.clear()
        cluster.network.reset("client", "a")
        await it.flush()
    assert cluster.partitions[0].values() == [b"first", b"second"]


@pytest.mark.parametrize("copied", range(6))
async def test_of_five_in_flight_some_had_been_copied(
    cluster: Replicated,
    producer: Any,
    deliveries: list[Delivery],
    autojump_clock: Any,
    copied: int,
) -> None:
    """R1, R2, CPR-03: whatever part of them the new leader has, all are sent again with their
    numbers and in order, and each is in the log once, at the offset that was told."""
    values = numbered(9)
    async with producer() as it:
        await it.send_and_wait("t", values[0])
        cluster.silent = {1}
        for value in values[1 : 1 + copied]:
            it.send_nowait("t", value)
        await trio.sleep(0.1)
        cluster.lagging = {2, 3}
        for value in values[1 + copied :]:
            it.send_nowait("t", value)
        await trio.sleep(0.1)
        assert len(cluster.partitions[0].logs[1]) == 6  # five in flight, three held back
        assert len(cluster.partitions[0].logs[2]) == 1 + copied
        cluster.lagging.clear()
        cluster.kill(1)
        cluster.fail_over(1, 2)
        await it.flush()
    partition = cluster.partitions[0]
    assert partition.values() == values
    assert {each.header.producer_epoch for each in partition.logs[2]} == {0}
    assert [delivery.base_offset for delivery in deliveries] == list(range(9))


async def test_a_hinted_broker_that_is_not_known_is_asked_for(
    cluster: Replicated, producer: Any, autojump_clock: Any
) -> None:
    """A hint to a broker without an endpoint has the metadata renewed, and is followed then."""
    cluster.alive = [1, 2]
    async with producer() as it:
        await it.send_and_wait("t", b"one")
        cluster.alive = [1, 2, 3]
        cluster.partitions[0].elect(3)  # and only the hints tell
        began = trio.current_time()
        await it.send_and_wait("t", b"two")
        assert trio.current_time() - began < 0.05
    assert cluster.partitions[0].values() == [b"one", b"two"]


async def test_a_hint_that_says_nothing_new_does_not_stop_the_asking(
    cluster: Replicated, producer: Any, autojump_clock: Any
) -> None:
    """A leader that names itself or an older one, and refuses, has the metadata asked for."""
    async with producer() as it:
        await it.send_and_wait("t", b"one")
        partition = cluster.partitions[0]
        partition.elect(2)
        partition.tell()
        partition.epoch = 0  # the hints are of the last epoch
        began = trio.current_time()
        await it.send_and_wait("t", b"two")
        assert trio.current_time() - began < 0.1


async def test_back_off_doubles_and_ends_with_a_new_leader(
    cluster: Replicated, producer: Any, autojump_clock: Any
) -> None:
    """CPR-13: tries at the same leader are 20 ms to 200 ms apart; a new one is tried at once."""
    cluster.has_hints = False
    async with producer() as it:
        await it.send_and_wait("t", b"one")
        cluster.partitions[0].elect(2)
        tries: list[float] = []
        answer = cluster.brokers[1].answers

        def note(request: Any, produce: Any = answer[0]) -> Any:
            tries.append(trio.current_time())
            return produce(request)

        answer[0] = note
        it.send_nowait("t", b"two")
        await trio.sleep(2)
        pauses = [after - before for before, after in pairwise(tries)]
        assert pauses[:4] == pytest.approx([0.02, 0.04, 0.08, 0.16], abs=0.005)
        assert pauses[4:] == pytest.approx([0.2] * len(pauses[4:]), abs=0.005)
        cluster.partitions[0].tell()
        told_at = trio.current_time()
        await it.flush()
    assert cluster.partitions[0].logs[2][-1].at - told_at < 0.2
    assert cluster.partitions[0].values() == [b"one", b"two"]


@pytest.mark.parametrize("loses_state", [False, True])
async def test_one_partition_that_lost_its_tail_renumbers_alone(
    start_broker: Any,
    network: Any,
    producer: Any,
    deliveries: list[Delivery],
    autojump_clock: Any,
    loses_state: bool,
) -> None:
    """L1: of twelve partitions one comes back without acknowledged batches (or with none at all)
    and refuses what follows; it alone gets new numbers at once, and nothing is doubled anywhere."""
    brokers = {node: await start_broker(host) for node, host in HOSTS.items()}
    cluster = Replicated(network, brokers, [1 + number % 3 for number in range(12)])
    values = numbered(40)
    async with producer() as it:
        for value in values[:20]:
            for number in range(12):
                it.send_nowait("t", value, partition=number)
        await it.flush()
        cluster.silent = {1, 2, 3}  # what comes now is stored, and its answers are lost
        for value in values[20:23]:
            for number in range(12):
                it.send_nowait("t", value, partition=number)
        await trio.sleep(0.1)
        hurt = cluster.partitions[5]
        for log in hurt.logs.values():
            del log[0 if loses_state else 18 :]
        for number, partition in enumerate(cluster.partitions):
            partition.elect(1 + (number + 1) % 3)
            partition.tell()
        cluster.silent.clear()
        for host in HOSTS.values():
            network.reset("client", host)
        for value in values[23:]:
            for number in range(12):
                it.send_nowait("t", value, partition=number)
        await it.flush()
    assert all(delivery.error is None for delivery in deliveries)
    for number, partition in enumerate(cluster.partitions):
        kept = values[20:] if loses_state else values[:18] + values[20:]
        assert partition.values() == (kept if number == 5 else values)
        if number != 5:  # what was in flight kept its numbers
            assert {each.header.producer_epoch for each in partition.logs[1][:23]} == {0}
    assert {each.header.producer_epoch for each in hurt.logs[1]} >= {1}


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.KAFKA_STORAGE_ERROR,
    ],
)
async def test_what_may_pass_is_tried_again_until_the_delivery_times_out(
    cluster: Replicated,
    producer: Any,
    deliveries: list[Delivery],
    autojump_clock: Any,
    code: ErrorCode,
) -> None:
    """A20: too few replicas, a time-out, a full disk: each record is stored once when it passes,
    and fails with the reason after delivery.timeout.ms when it does not."""
    values = numbered(20)
    async with producer(request_timeout_ms=1000, delivery_timeout_ms=5000) as it:
        cluster.refusals = [code] * 7
        for value in values:
            it.send_nowait("t", value)
        await it.flush()
        assert cluster.partitions[0].values() == values
        assert all(delivery.error is None for delivery in deliveries)
        cluster.refusals = [code] * 1000
        began = trio.current_time()
        with pytest.raises(ClientTimeout, match=code.name):
            await it.send_and_wait("t", b"never")
        assert trio.current_time() - began == pytest.approx(5, abs=0.1)


@pytest.mark.parametrize("fault", ["kill", "stop"])
async def test_another_broker_gives_the_producer_id(
    cluster: Replicated, producer: Any, autojump_clock: Any, fault: str
) -> None:
    """A20: the broker that was asked is lost before it answers, or hangs: another is asked."""
    asked: list[int] = []

    def hang(node_id: int, _request: object) -> Any:
        asked.append(node_id)
        if len(asked) > 1:
            return cluster.init_producer_id(node_id, _request)
        getattr(cluster, fault)(node_id)
        cluster.fail_over(node_id, 1 + node_id % 3)
        return None

    for node_id, broker in cluster.brokers.items():
        broker.answers[22] = lambda request, node=node_id: hang(node, request)
    async with producer() as it:
        began = trio.current_time()
        await it.send_and_wait("t", b"one")
        assert trio.current_time() - began < {"kill": 0.1, "stop": 2.5}[fault]
    assert len(asked) == 2


async def test_a_topic_made_anew_is_gone_on_with(
    cluster: Replicated, producer: Any, deliveries: list[Delivery], autojump_clock: Any
) -> None:
    """A topic that was deleted and created again gets what is sent from then on, at once, in a new
    producer epoch."""
    async with producer() as it:
        for _ in range(3):
            cluster.partitions[0].elect(1)
            cluster.partitions[0].tell()
            await it.send_and_wait("t", b"old")
        cluster.topic_id = bytes(15) + b"1"
        cluster.partitions = [type(cluster.partitions[0])(2)]
        began = trio.current_time()
        await it.send_and_wait("t", b"new")
        assert trio.current_time() - began < 0.3
    assert cluster.partitions[0].values() == [b"new"]
    assert all(delivery.error is None for delivery in deliveries)
    sent = [each.partitions[0] for each in cluster.brokers[2].asked(ProduceRequest)]
    assert sent[-1].topic_id == cluster.topic_id
