"""The sender against brokers that answer what a test tells them to, on virtual time."""

from collections.abc import Awaitable, Callable
from itertools import pairwise
from typing import Any, NamedTuple

import pytest
import trio

from minibroker.client.errors import ClientTimeout
from minibroker.client.net.network import Stream
from minibroker.client.options import Seams
from minibroker.client.producer.delivery import Delivery
from minibroker.client.producer.producer import Producer
from minibroker.protocol.constants import ApiKey, ErrorCode
from minibroker.protocol.errors import BrokerError
from minibroker.protocol.messages import APIS
from minibroker.protocol.messages.api_versions import ApiVersion, ApiVersionsResponse
from minibroker.protocol.messages.metadata import (
    BrokerMetadata,
    MetadataResponse,
    PartitionMetadata,
    TopicMetadata,
)
from minibroker.protocol.messages.produce import PartitionProduced, ProduceRequest, ProduceResponse
from minibroker.protocol.messages.producer_id import InitProducerIdRequest, InitProducerIdResponse
from minibroker.protocol.records.batch import read_header
from minibroker.protocol.types import Endpoint

HOSTS = {1: "a", 2: "b"}


class Stored(NamedTuple):
    """A batch as a broker got it."""

    at: float
    partition: int
    producer_epoch: int
    sequence: int
    record_count: int


class Leaders:
    """Two scripted brokers, of which "a" tells who leads; both append whatever comes.

    `leaders` are the nodes that lead the partitions of topic "t". `before` is called first with
    each PRODUCE; what it returns is the answer, or nothing to go on as usual.
    """

    def __init__(self, brokers: dict[int, Any], leaders: list[int]) -> None:
        self.leaders = leaders
        self.stored: list[tuple[int, Stored]] = []
        self.ends: dict[int, int] = {}
        self.brokers = brokers
        self.before: Callable[[int, ProduceRequest], Awaitable[Any]] | None = None
        for node_id, broker in brokers.items():
            broker.answers[ApiKey.METADATA] = self.metadata
            broker.answers[ApiKey.INIT_PRODUCER_ID] = lambda _: InitProducerIdResponse(0, 7, 0)
            broker.answers[ApiKey.PRODUCE] = lambda request, node_id=node_id: self.produce(
                node_id, request
            )

    def metadata(self, _: object) -> MetadataResponse:
        partitions = tuple(
            PartitionMetadata(number, leader_id=leader, leader_epoch=0)
            for number, leader in enumerate(self.leaders)
        )
        return MetadataResponse(
            brokers=tuple(BrokerMetadata(node, name, 9092) for node, name in HOSTS.items()),
            topics=(TopicMetadata("t", partitions=partitions),),
        )

    async def produce(self, node_id: int, request: ProduceRequest) -> ProduceResponse | None:
        if self.before is not None and (answer := await self.before(node_id, request)) is not None:
            return answer
        answers = []
        for asked in request.partitions:
            header = read_header(asked.records)
            stored = Stored(
                trio.current_time(),
                asked.partition,
                header.producer_epoch,
                header.base_sequence,
                header.record_count,
            )
            self.stored.append((node_id, stored))
            offset = self.ends.get(asked.partition, 0)
            self.ends[asked.partition] = offset + header.record_count
            answers.append(PartitionProduced(asked.topic, asked.partition, base_offset=offset))
        return ProduceResponse(tuple(answers)) if request.acks else None


def refusal(request: ProduceRequest, code: ErrorCode, **hint: int) -> ProduceResponse:
    """The same error for every partition."""
    return ProduceResponse(
        tuple(
            PartitionProduced(each.topic, each.partition, error=code, **hint)
            for each in request.partitions
        )
    )


class CountingNetwork:
    """A host's network that writes down when it was asked to connect where."""

    def __init__(self, network: Any) -> None:
        self._network = network
        self.attempts: list[tuple[float, str]] = []

    async def connect(self, endpoint: Endpoint) -> Stream:
        self.attempts.append((trio.current_time(), endpoint.host))
        return await self._network.connect(endpoint)


@pytest.fixture
def deliveries() -> list[Delivery]:
    """What the producers were told."""
    return []


@pytest.fixture
def producer(seams: Seams, deliveries: list[Delivery]) -> Any:
    """Makes producers of small batches that ask broker "a" first."""

    def make(**options: object) -> Producer:
        return Producer(
            "a:9092",
            **{"seams": seams, "on_delivery": deliveries.append, "linger_ms": 0, "batch_size": 100}
            | options,
        )

    return make


def check_order(leaders: Leaders, partition: int, count: int) -> None:
    """What a broker kept of a partition is every record once, in the order of sequences."""
    stored = [batch for _, batch in leaders.stored if batch.partition == partition]
    expected = 0
    for batch in stored:
        assert batch.sequence == expected
        expected += batch.record_count
    assert expected == count


async def test_a_late_answer_costs_the_connection_and_all_in_flight_is_sent_again(
    start_broker: Any, producer: Any, deliveries: list[Delivery], autojump_clock: Any
) -> None:
    """NET-06, CPR-03: all fail together, go out again on a new connection, and keep their order."""
    broker = await start_broker("a")
    leaders = Leaders({1: broker}, [1])
    asked = []

    async def be_silent_once(_: int, request: ProduceRequest) -> None:
        asked.append(request)
        if len(asked) == 1:
            await trio.sleep_forever()

    async with producer(request_timeout_ms=1000, delivery_timeout_ms=20_000) as it:
        await it.send_and_wait("t", b"first")
        leaders.before = be_silent_once
        began = trio.current_time()
        for number in range(30):
            it.send_nowait("t", b"%060d" % number)
        await it.flush()
    check_order(leaders, 0, 31)
    assert 1.0 < min(batch.at for _, batch in leaders.stored[1:]) - began < 1.2
    assert len(broker.connections) == 2
    assert all(delivery.error is None for delivery in deliveries)
    values = [record.value for delivery in deliveries[1:] for record in delivery.records()]
    assert values == [b"%060d" % number for number in range(30)]


async def test_batches_that_wait_longer_than_the_one_before_are_sent_again(
    start_broker: Any, producer: Any, deliveries: list[Delivery], autojump_clock: Any
) -> None:
    """CPR-13: a full disk refuses the first of five in flight, so the others have no place in the
    order. It may go again before them, and is answered before their time: nothing else happens
    then that would wake the sender (compaction seed 8400017)."""
    leaders = Leaders({1: await start_broker("a")}, [1])
    refused: list[int] = []

    async def refuse_once(_: int, request: ProduceRequest) -> ProduceResponse | None:
        sequence = read_header(request.partitions[0].records).base_sequence
        if sequence in refused or not sequence or len(refused) == 5:
            return None
        refused.append(sequence)
        is_first = len(refused) == 1
        code = ErrorCode.KAFKA_STORAGE_ERROR if is_first else ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        return refusal(request, code)

    async with producer() as it:
        await it.send_and_wait("t", b"first")
        leaders.before = refuse_once
        began = trio.current_time()
        for number in range(5):
            it.send_nowait("t", b"%060d" % number)
        await it.flush()
    assert trio.current_time() - began < 1
    assert len(refused) == 5
    check_order(leaders, 0, 6)
    assert all(delivery.error is None for delivery in deliveries)


async def test_a_dead_node_holds_nobody_up(
    start_broker: Any,
    producer: Any,
    network: Any,
    seams: Seams,
    deliveries: list[Delivery],
    autojump_clock: Any,
) -> None:
    """NET-07: the other node is served at once; the dead one is tried with a back-off that grows
    from 50 to 1000 ms."""
    counting = CountingNetwork(network.host("client"))
    leaders = Leaders({1: await start_broker("a")}, [1, 2])
    async with producer(seams=Seams(counting, seams.rng, seams.wall_ms)) as it:
        await it.send_and_wait("t", b"known", partition=0)
        it.send_nowait("t", b"to the dead", partition=1)
        for _ in range(20):
            began = trio.current_time()
            await it.send_and_wait("t", b"to the living", partition=0)
            assert trio.current_time() - began < 0.05
            await trio.sleep(0.5)
        assert [delivery.partition for delivery in deliveries] == [0] * 21
        tries = [at for at, host in counting.attempts if host == "b"]
        pauses = [after - before for before, after in pairwise(tries)]
        assert len(pauses) >= 8
        assert 0.04 <= pauses[0] < 0.2
        assert all(0.8 <= pause < 1.5 for pause in pauses[-4:])
        second = await start_broker("b")
        Leaders({2: second}, leaders.leaders)
        await it.flush()
        assert deliveries[-1].partition == 1
        assert deliveries[-1].error is None


async def test_a_hint_in_the_answer_is_followed(
    start_broker: Any, producer: Any, deliveries: list[Delivery], autojump_clock: Any
) -> None:
    """CPR-13: NOT_LEADER with the new leader in it needs no metadata and no back-off."""
    leaders = Leaders({1: await start_broker("a"), 2: await start_broker("b")}, [1])

    async def hint(node_id: int, request: ProduceRequest) -> ProduceResponse | None:
        if node_id == 2:
            return None
        return refusal(request, ErrorCode.NOT_LEADER_OR_FOLLOWER, leader_id=2, leader_epoch=1)

    async with producer() as it:
        await it.send_and_wait("t", b"before")
        leaders.before = hint
        began = trio.current_time()
        for number in range(20):
            it.send_nowait("t", b"%060d" % number)
        await it.flush()
        assert trio.current_time() - began < 0.05
    assert [node for node, _ in leaders.stored] == [1] + [2] * (len(leaders.stored) - 1)
    check_order(leaders, 0, 21)
    assert sum(delivery.record_count for delivery in deliveries) == 21


async def test_leadership_without_a_hint_is_asked_for(
    start_broker: Any, producer: Any, autojump_clock: Any
) -> None:
    """CPR-13: else the metadata say who leads now, and everything arrives there in order."""
    leaders = Leaders({1: await start_broker("a"), 2: await start_broker("b")}, [1])

    async def refuse(node_id: int, request: ProduceRequest) -> ProduceResponse | None:
        if node_id == 2:
            return None
        leaders.leaders[0] = 2
        return refusal(request, ErrorCode.NOT_LEADER_OR_FOLLOWER)

    async with producer() as it:
        await it.send_and_wait("t", b"before")
        leaders.before = refuse
        for number in range(20):
            it.send_nowait("t", b"%060d" % number)
        await it.flush()
    check_order(leaders, 0, 21)


async def test_a_producer_id_that_comes_late_is_waited_for(
    start_broker: Any, producer: Any, deliveries: list[Delivery], autojump_clock: Any
) -> None:
    """While the broker has none to give nothing is sent; then everything is, numbered from 0."""
    broker = await start_broker("a")
    leaders = Leaders({1: broker}, [1])
    codes = iter([ErrorCode.COORDINATOR_LOAD_IN_PROGRESS] * 3)
    broker.answers[ApiKey.INIT_PRODUCER_ID] = lambda _: InitProducerIdResponse(
        next(codes, ErrorCode.NONE), 7, 0
    )
    async with producer() as it:
        for number in range(10):
            it.send_nowait("t", b"%060d" % number)
        await it.flush()
    check_order(leaders, 0, 10)
    assert len(broker.asked(InitProducerIdRequest)) == 4
    assert all(delivery.error is None for delivery in deliveries)


@pytest.mark.parametrize(
    ("code", "name"),
    [(ErrorCode.INVALID_REQUEST, "INVALID_REQUEST"), (9999, "UNKNOWN_SERVER_ERROR")],
)
async def test_a_producer_id_that_is_refused_fails_what_waits_and_is_asked_for_again(
    start_broker: Any,
    producer: Any,
    deliveries: list[Delivery],
    autojump_clock: Any,
    code: int,
    name: str,
) -> None:
    """Records that cannot be numbered are given up with that reason, never sent without; a code
    that is younger than this client is a reason like any other."""
    broker = await start_broker("a")
    leaders = Leaders({1: broker}, [1])
    codes = iter([code])
    broker.answers[ApiKey.INIT_PRODUCER_ID] = lambda _: InitProducerIdResponse(
        next(codes, ErrorCode.NONE), 7, 0
    )
    async with producer() as it:
        with pytest.raises(BrokerError, match=f"{name}: no broker gives a producer id"):
            await it.send_and_wait("t", b"lost")
        assert leaders.stored == []
        assert (await it.send_and_wait("t", b"kept")).offset == 0
    assert [delivery.error is None for delivery in deliveries] == [False, True]
    check_order(leaders, 0, 1)


async def test_a_broker_without_producer_ids_is_a_clear_error(
    start_broker: Any, producer: Any, autojump_clock: Any
) -> None:
    """Idempotence that a broker does not serve fails what waits, not the producer."""
    broker = await start_broker("a")
    leaders = Leaders({1: broker}, [1])
    served = tuple(ApiVersion(key) for key in sorted(APIS) if key != ApiKey.INIT_PRODUCER_ID)
    broker.answers[ApiKey.API_VERSIONS] = lambda _: ApiVersionsResponse(apis=served)
    async with producer() as it:
        with pytest.raises(BrokerError, match="UNSUPPORTED_VERSION: no broker gives"):
            await it.send_and_wait("t", b"lost")
    async with producer(enable_idempotence=False) as it:
        assert (await it.send_and_wait("t", b"kept")).offset == 0
    assert len(leaders.stored) == 1


async def test_without_acks_a_broken_connection_is_made_again(
    start_broker: Any, producer: Any, deliveries: list[Delivery], autojump_clock: Any
) -> None:
    """acks=0: what is on its way counts as delivered, and what comes later finds a new way."""
    broker = await start_broker("a")
    leaders = Leaders({1: broker}, [1])

    async def hang_up(_: int, __: ProduceRequest) -> None:
        leaders.before = None
        broker.connections[-1].close()

    async with producer(acks=0) as it:
        assert (await it.send_and_wait("t", b"one")).offset == -1
        leaders.before = hang_up
        assert (await it.send_and_wait("t", b"two")).offset == -1
        await trio.sleep(1)
        assert (await it.send_and_wait("t", b"three")).offset == -1
        await trio.sleep(1)
    assert len(broker.connections) == 2
    assert len(leaders.stored) >= 2
    assert all(delivery.error is None for delivery in deliveries)
    assert len(broker.asked(InitProducerIdRequest)) == 0


async def test_without_acks_records_wait_for_a_node_that_is_away(
    start_broker: Any, producer: Any, network: Any, deliveries: list[Delivery], autojump_clock: Any
) -> None:
    """acks=0: a record that was never sent is no delivered one; it goes out when the node is back,
    or fails after delivery.timeout.ms."""
    leaders = Leaders({1: await start_broker("a")}, [1])
    options = {"acks": 0, "request_timeout_ms": 1000, "delivery_timeout_ms": 5000}
    async with producer(**options) as it:
        await it.send_and_wait("t", b"one")
        await trio.sleep(0.1)
        network.cut("client", "a")
        it.send_nowait("t", b"two")
        await trio.sleep(2)
        assert len(deliveries) == 1
        network.mend("client", "a")
        await it.flush()
        await trio.sleep(0.1)
        assert len(leaders.stored) == 2
        network.cut("client", "a")
        await trio.sleep(0.1)
        with pytest.raises(ClientTimeout, match=r"delivery\.timeout\.ms"):
            await it.send_and_wait("t", b"three")


@pytest.mark.parametrize("acks", [0, 1])
async def test_a_connection_that_ended_idle_costs_no_try(
    start_broker: Any, producer: Any, deliveries: list[Delivery], autojump_clock: Any, acks: int
) -> None:
    """NET-06: what was never sent did not fail, so that retries=0 loses nothing by it."""
    broker = await start_broker("a")
    leaders = Leaders({1: broker}, [1])
    async with producer(acks=acks, retries=0) as it:
        await it.send_and_wait("t", b"one")
        await trio.sleep(1)
        broker.connections[-1].close()
        await trio.sleep(1)
        await it.send_and_wait("t", b"two")
        await trio.sleep(1)
    assert len(broker.connections) == 2
    assert len(leaders.stored) == 2
