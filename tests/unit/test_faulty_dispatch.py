"""Rules meet the requests of one connection, over the simulated network and on virtual time."""

from typing import Any

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
from minibroker.protocol.messages.group_offsets import (
    GroupPartition,
    GroupPartitions,
    OffsetFetchRequest,
    OffsetFetchResponse,
    PartitionCommit,
    PartitionCommitted,
)
from minibroker.protocol.messages.groups import FindCoordinatorRequest, FindCoordinatorResponse
from minibroker.protocol.messages.produce import PartitionProduce, ProduceRequest, ProduceResponse
from minibroker.protocol.messages.producer_id import InitProducerIdRequest, InitProducerIdResponse
from minibroker.protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    EndTxnRequest,
    EndTxnResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
    PartitionProducers,
    TransactionDescription,
    TransactionMarker,
    TransactionMarkerResult,
    TransactionPartitionResult,
    TransactionPartitions,
    TransactionPartitionsAdded,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from minibroker.protocol.types import TopicIdPartition, TopicPartition
from minibroker.testing.node.faults import NAME_TOPICS, RequestRule
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


async def test_requests_that_name_topics_by_ids_are_met(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A rule names the topic, and a recorded request, too. The failed answer has the id, a session
    knows what it forgets."""
    topic_id, name = b"i" * 16, TopicPartition("t", 0)
    fetch = PartitionFetch("", 0, 0, topic_id=topic_id)
    requests = faulty()
    async with serving(dispatch=requests) as server:
        client = await server.connect()

        async def fetched(epoch: int, *forgotten: TopicIdPartition) -> FetchResponse:
            partitions = () if epoch else (fetch,)
            request = FetchRequest(
                -1,
                0,
                partitions=partitions,
                session_id=session_id,
                session_epoch=epoch,
                is_by_id=True,
                forgotten_by_id=forgotten,
            )
            await client.send((ApiKey.FETCH, request))
            _, answer = await client.receive(ApiKey.FETCH)
            assert isinstance(answer, FetchResponse)
            return answer

        session_id = 0
        session_id = (await fetched(0)).session_id
        assert session_id
        assert not (await fetched(1, TopicIdPartition(topic_id, 0))).partitions
        rules = [
            RequestRule(number, api, "fail", error="NOT_LEADER_OR_FOLLOWER", topic="t")
            for number, api in enumerate(("FETCH", "PRODUCE"), 1)
        ]
        requests.set(rules)
        assert not (await fetched(2)).partitions
        session_id = 0
        [failed] = (await fetched(0)).partitions
        assert (failed.error, failed.topic_id) == (rules[0].code, topic_id)
        batch = PartitionProduce("", 0, b"", topic_id)
        await client.send((ApiKey.PRODUCE, ProduceRequest(1, 1_000, (batch,))))
        _, produced = await client.receive(ApiKey.PRODUCE)
        assert isinstance(produced, ProduceResponse)
        [refused] = produced.partitions
        assert (refused.error, refused.topic_id) == (rules[1].code, topic_id)
    met = [(each.rule, each.partitions) for each in requests.received(None)]
    assert met == [(0, (name,)), (0, ()), (0, ()), (1, (name,)), (2, (name,))]


async def test_requests_about_several_groups_fail_for_each(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """As Kafka's newer versions ask; the error stands beside each group."""
    error = "COORDINATOR_NOT_AVAILABLE"
    apis = (ApiKey.OFFSET_FETCH, ApiKey.FIND_COORDINATOR)
    rules = [RequestRule(number, api.name, "fail", error=error) for number, api in enumerate(apis)]
    requests = faulty(*rules)
    groups = (GroupPartitions("a", (GroupPartition("t", 0),)), GroupPartitions("b"))
    async with serving(dispatch=requests) as server:
        client = await server.connect()
        await client.send((apis[0], OffsetFetchRequest("", groups=groups)))
        _, offsets = await client.receive(apis[0])
        assert isinstance(offsets, OffsetFetchResponse)
        assert [(each.group_id, each.error) for each in offsets.groups] == [("a", 15), ("b", 15)]
        assert [each.error for each in offsets.groups[0].partitions] == [15]
        await client.send((apis[1], FindCoordinatorRequest("", group_ids=("a", "b"))))
        _, found = await client.receive(apis[1])
        assert isinstance(found, FindCoordinatorResponse)
        assert [(each.group_id, each.error) for each in found.coordinators] == [
            ("a", 15),
            ("b", 15),
        ]
    assert [each.errors for each in requests.received(None)] == [(error,), (error,)]
    assert [each.partitions for each in requests.received(None)] == [(TopicPartition("t", 0),), ()]


NAMES = (TopicPartition("t", 0), TopicPartition("t", 1))
RESULTS = tuple(TransactionPartitionResult(*name, 15) for name in NAMES)
OFFSETS = tuple(PartitionCommit(*name, 5) for name in NAMES)
COMMITTED = tuple(PartitionCommitted(*name, 15) for name in NAMES)
# Requests about transactions, and the answers with the error 15.
ABOUT_TRANSACTIONS: dict[ApiKey, tuple[object, object]] = {
    ApiKey.INIT_PRODUCER_ID: (InitProducerIdRequest("id"), InitProducerIdResponse(15)),
    ApiKey.ADD_PARTITIONS_TO_TXN: (
        AddPartitionsToTxnRequest((TransactionPartitions("id", 7, 0, NAMES),)),
        AddPartitionsToTxnResponse(0, (TransactionPartitionsAdded("id", RESULTS),)),
    ),
    ApiKey.ADD_OFFSETS_TO_TXN: (
        AddOffsetsToTxnRequest("id", 7, 0, "g"),
        AddOffsetsToTxnResponse(15),
    ),
    ApiKey.TXN_OFFSET_COMMIT: (
        TxnOffsetCommitRequest("id", "g", 7, 0, partitions=OFFSETS),
        TxnOffsetCommitResponse(COMMITTED),
    ),
    ApiKey.END_TXN: (EndTxnRequest("id", 7, 0, is_commit=True), EndTxnResponse(15)),
    ApiKey.WRITE_TXN_MARKERS: (
        WriteTxnMarkersRequest((TransactionMarker(7, 0, True, 0, NAMES),)),
        WriteTxnMarkersResponse((TransactionMarkerResult(7, RESULTS),)),
    ),
    ApiKey.DESCRIBE_TRANSACTIONS: (
        DescribeTransactionsRequest(("id",)),
        DescribeTransactionsResponse((TransactionDescription("id", 15),)),
    ),
    ApiKey.LIST_TRANSACTIONS: (ListTransactionsRequest(), ListTransactionsResponse(15)),
    ApiKey.DESCRIBE_PRODUCERS: (
        DescribeProducersRequest(NAMES),
        DescribeProducersResponse(tuple(PartitionProducers(*name, 15) for name in NAMES)),
    ),
}


@pytest.mark.parametrize("api", ABOUT_TRANSACTIONS, ids=lambda api: api.name)
async def test_requests_about_transactions_fail(
    autojump_clock: trio.testing.MockClock, api: ApiKey
) -> None:
    """The error is where clients look for it, and a rule meets the partitions that are named."""
    request, answer = ABOUT_TRANSACTIONS[api]
    names_topics = api.name in NAME_TOPICS
    only = {"topic": "t", "partition": 1} if names_topics else {}
    rule: dict[str, Any] = {"error": "COORDINATOR_NOT_AVAILABLE", **only}
    requests = faulty(RequestRule(1, api.name, "fail", **rule))
    async with serving(dispatch=requests) as server:
        client = await server.connect()
        await client.send((api, request))
        assert (await client.receive(api))[1] == answer
    [received] = requests.received(None)
    assert received.errors == ("COORDINATOR_NOT_AVAILABLE",)
    assert received.partitions == (NAMES if names_topics else ())


async def test_the_errors_of_an_answer_that_comes_in_turns_are_recorded(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """ADD_PARTITIONS_TO_TXN is served in turns, and then waits: its errors are known at the end."""
    requests = faulty()
    unknown = TransactionPartitions("id", 7, 0, (TopicPartition("unknown", 0),))
    async with serving(dispatch=requests) as server:
        client = await server.connect()
        await client.send((ApiKey.ADD_PARTITIONS_TO_TXN, AddPartitionsToTxnRequest((unknown,))))
        await client.receive(ApiKey.ADD_PARTITIONS_TO_TXN)
    [received] = requests.received(None)
    assert received.errors == ("UNKNOWN_TOPIC_OR_PARTITION",)


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
