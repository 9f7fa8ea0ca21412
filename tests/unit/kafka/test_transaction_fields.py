"""Every field of the transaction apis on Kafka's wire: each value is different, so that no two
fields can change places, and none can be left out."""

from typing import Any, Final

import pytest

from minibroker.protocol.constants import ErrorCode
from minibroker.protocol.kafka import apis as plain_apis
from minibroker.protocol.kafka import transaction_apis as apis
from minibroker.protocol.kafka.api import KafkaApi
from minibroker.protocol.kafka.wire import decode_request
from minibroker.protocol.messages.group_offsets import PartitionCommit, PartitionCommitted
from minibroker.protocol.messages.producer_id import InitProducerIdRequest, InitProducerIdResponse
from minibroker.protocol.messages.transactions import (
    ActiveProducer,
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
    ListedTransaction,
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
from minibroker.protocol.types import TopicPartition
from tests.unit.kafka.frames import answer_to, request

FENCED, OLD_FENCED = ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH
PRODUCER: Final = {"transactional_id": "x", "producer_id": 7, "producer_epoch": 2}
T0, T1, U5 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 5)
ADDED: Final = apis.ADD_PARTITIONS_TO_TXN.request.of("topics").make
OF_TRANSACTION: Final = apis.ADD_PARTITIONS_TO_TXN.request.of("transactions")
MARKER: Final = apis.WRITE_TXN_MARKERS.request.of("markers")
MARKED: Final = [MARKER.of("topics").make("t", [0, 1]), MARKER.of("topics").make("u", [5])]
COMMITS: Final = apis.TXN_OFFSET_COMMIT.request.of("topics")
TOPICS: Final = [ADDED("t", [0, 1]), ADDED("u", [5])]
FIRST, SECOND = 1, 2

REQUESTS: Final[dict[str, tuple[KafkaApi, int, dict[str, Any], object]]] = {
    "add": (
        apis.ADD_PARTITIONS_TO_TXN,
        3,
        PRODUCER | {"topics": TOPICS},
        AddPartitionsToTxnRequest((TransactionPartitions("x", 7, 2, (T0, T1, U5)),), FIRST),
    ),
    "add-several": (
        apis.ADD_PARTITIONS_TO_TXN,
        5,
        {
            "transactions": [
                OF_TRANSACTION.make("x", 7, 2, False, [OF_TRANSACTION.of("topics").make("t", [0])]),
                OF_TRANSACTION.make("y", 8, 3, True, [OF_TRANSACTION.of("topics").make("u", [5])]),
            ]
        },
        AddPartitionsToTxnRequest(
            (
                TransactionPartitions("x", 7, 2, (T0,)),
                TransactionPartitions("y", 8, 3, (U5,), True),
            ),
            SECOND,
        ),
    ),
    "offsets": (
        apis.ADD_OFFSETS_TO_TXN,
        4,
        PRODUCER | {"group_id": "g"},
        AddOffsetsToTxnRequest("x", 7, 2, "g"),
    ),
    "commit": (
        apis.END_TXN,
        4,
        PRODUCER | {"committed": True},
        EndTxnRequest("x", 7, 2, True, FIRST),
    ),
    "abort": (
        apis.END_TXN,
        5,
        PRODUCER | {"committed": False},
        EndTxnRequest("x", 7, 2, False, SECOND),
    ),
    "describe": (
        apis.DESCRIBE_TRANSACTIONS,
        0,
        {"transactional_ids": ["x", "y"]},
        DescribeTransactionsRequest(("x", "y")),
    ),
    "list": (
        apis.LIST_TRANSACTIONS,
        2,
        {
            "state_filters": ["Ongoing"],
            "producer_id_filters": [7],
            "duration_filter": 60,
            "transactional_id_pattern": "x.*",
        },
        ListTransactionsRequest(("Ongoing",), (7,), 60, "x.*"),
    ),
    "list-old": (
        apis.LIST_TRANSACTIONS,
        0,
        {"state_filters": [], "producer_id_filters": []},
        ListTransactionsRequest(),
    ),
    "offset-commit": (
        apis.TXN_OFFSET_COMMIT,
        4,
        PRODUCER
        | {
            "group_id": "g",
            "generation_id": 4,
            "member_id": "m",
            "group_instance_id": "i",
            "topics": [COMMITS.make("t", [COMMITS.of("partitions").make(1, 20, 3, "note")])],
        },
        TxnOffsetCommitRequest(
            "x", "g", 7, 2, 4, "m", "i", (PartitionCommit("t", 1, 20, 3, "note"),), FIRST
        ),
    ),
    "offset-commit-by-write": (
        apis.TXN_OFFSET_COMMIT,
        5,
        PRODUCER | {"group_id": "g", "topics": []},
        TxnOffsetCommitRequest("x", "g", 7, 2, transaction_version=SECOND),
    ),
    "producers": (
        apis.DESCRIBE_PRODUCERS,
        0,
        {"topics": [apis.DESCRIBE_PRODUCERS.request.of("topics").make("t", [0, 1])]},
        DescribeProducersRequest((T0, T1)),
    ),
    "markers": (
        apis.WRITE_TXN_MARKERS,
        1,
        {"markers": [MARKER.make(7, 2, True, MARKED, 9), MARKER.make(8, 3, False, [], 10)]},
        WriteTxnMarkersRequest(
            (
                TransactionMarker(7, 2, True, 9, (T0, T1, U5), FIRST),
                TransactionMarker(8, 3, False, 10, (), FIRST),
            )
        ),
    ),
    "init": (
        plain_apis.INIT_PRODUCER_ID,
        5,
        PRODUCER | {"transaction_timeout_ms": 9},
        InitProducerIdRequest("x", 7, 2, 9),
    ),
}


@pytest.mark.parametrize("case", REQUESTS)
def test_a_request_becomes_its_message(case: str) -> None:
    """Each field has its place."""
    api, version, fields, message = REQUESTS[case]
    assert decode_request(request(api, version, **fields))[0].message == message


def results(*errors: int) -> tuple[TransactionPartitionResult, ...]:
    """The results of the three partitions."""
    pairs = zip((T0, T1, U5), errors, strict=True)
    return tuple(TransactionPartitionResult(*name, error) for name, error in pairs)


@pytest.mark.parametrize(("version", "fenced"), [(0, OLD_FENCED), (1, OLD_FENCED), (3, FENCED)])
def test_partitions_are_answered_by_topic(version: int, fenced: ErrorCode) -> None:
    """Old clients know another error for a fenced producer."""
    message = AddPartitionsToTxnResponse(
        transactions=(TransactionPartitionsAdded("x", results(0, 3, FENCED)),)
    )
    frame = request(apis.ADD_PARTITIONS_TO_TXN, version, **PRODUCER, topics=TOPICS)
    told = answer_to(frame, apis.ADD_PARTITIONS_TO_TXN, message).results_by_topic
    assert [(one.name, [tuple(each) for each in one.results_by_partition]) for one in told] == [
        ("t", [(0, 0), (1, 3)]),
        ("u", [(5, fenced)]),
    ]


def test_several_transactions_are_answered() -> None:
    """Each by its id."""
    message = AddPartitionsToTxnResponse(
        transactions=(
            TransactionPartitionsAdded("x", results(0, 3, FENCED)),
            TransactionPartitionsAdded("y"),
        )
    )
    frame = request(apis.ADD_PARTITIONS_TO_TXN, 4, transactions=[])
    told = answer_to(frame, apis.ADD_PARTITIONS_TO_TXN, message)
    assert [one.transactional_id for one in told.results_by_transaction] == ["x", "y"]
    topics = told.results_by_transaction[0].topic_results
    assert [(one.name, len(one.results_by_partition)) for one in topics] == [("t", 2), ("u", 1)]
    assert tuple(topics[1].results_by_partition[0]) == (5, FENCED)


@pytest.mark.parametrize(
    ("api", "message", "old", "since", "fields"),
    [
        (
            apis.ADD_OFFSETS_TO_TXN,
            AddOffsetsToTxnResponse(FENCED),
            1,
            2,
            PRODUCER | {"group_id": "g"},
        ),
        (apis.END_TXN, EndTxnResponse(FENCED), 1, 2, PRODUCER | {"committed": True}),
        (
            plain_apis.INIT_PRODUCER_ID,
            InitProducerIdResponse(FENCED),
            3,
            4,
            PRODUCER | {"transaction_timeout_ms": 1},
        ),
    ],
)
def test_a_fenced_producer_of_an_old_version_hears_of_its_epoch(
    api: KafkaApi, message: object, old: int, since: int, fields: dict[str, Any]
) -> None:
    """PRODUCER_FENCED is newer than these versions."""
    for version, error in ((old, OLD_FENCED), (since, FENCED)):
        known = {name: value for name, value in fields.items() if api.request.has(name, version)}
        assert answer_to(request(api, version, **known), api, message).error_code == error


def test_an_end_has_the_next_producer_since_version_5() -> None:
    """KIP-890."""
    frame = request(apis.END_TXN, 5, **PRODUCER, committed=True)
    told = answer_to(frame, apis.END_TXN, EndTxnResponse(0, 8, 3))
    assert (told.error_code, told.producer_id, told.producer_epoch) == (0, 8, 3)


def test_a_description_has_all_fields() -> None:
    """Its partitions are grouped by topic."""
    one = TransactionDescription("x", 1, "Ongoing", 60, 5, 7, 2, (T0, T1, U5))
    frame = request(apis.DESCRIBE_TRANSACTIONS, 0, transactional_ids=["x"])
    message = DescribeTransactionsResponse((one,))
    (told,) = answer_to(frame, apis.DESCRIBE_TRANSACTIONS, message).transaction_states
    assert tuple(told)[:7] == (1, "x", "Ongoing", 60, 5, 7, 2)
    assert [tuple(each) for each in told.topics] == [("t", [0, 1]), ("u", [5])]


def test_a_list_has_all_fields() -> None:
    """And the states that are none."""
    message = ListTransactionsResponse(14, ("Opn",), (ListedTransaction("x", 7, "Ongoing"),))
    frame = request(apis.LIST_TRANSACTIONS, 1, state_filters=["Opn"], producer_id_filters=[])
    told = answer_to(frame, apis.LIST_TRANSACTIONS, message)
    assert (told.error_code, told.unknown_state_filters) == (14, ["Opn"])
    assert [tuple(one) for one in told.transaction_states] == [("x", 7, "Ongoing")]


def test_offsets_are_answered_by_topic() -> None:
    """Each partition with its error."""
    message = TxnOffsetCommitResponse(
        (PartitionCommitted("t", 1, 3), PartitionCommitted("u", 5, FENCED))
    )
    for version, error in ((1, OLD_FENCED), (3, FENCED)):
        frame = request(apis.TXN_OFFSET_COMMIT, version, **PRODUCER, group_id="g", topics=[])
        told = answer_to(frame, apis.TXN_OFFSET_COMMIT, message).topics
        assert [(one.name, tuple(one.partitions[0])) for one in told] == [
            ("t", (1, 3)),
            ("u", (5, error)),
        ]


def test_markers_are_answered_by_topic() -> None:
    """Each marker by its producer, in their order."""
    message = WriteTxnMarkersResponse(
        (TransactionMarkerResult(7, results(0, 3, FENCED)), TransactionMarkerResult(8))
    )
    frame = request(apis.WRITE_TXN_MARKERS, 1, markers=[])
    told = answer_to(frame, apis.WRITE_TXN_MARKERS, message).markers
    assert [one.producer_id for one in told] == [7, 8]
    assert [(one.name, [tuple(each) for each in one.partitions]) for one in told[0].topics] == [
        ("t", [(0, 0), (1, 3)]),
        ("u", [(5, FENCED)]),
    ]


def test_producers_have_all_fields() -> None:
    """By topic and partition."""
    one = ActiveProducer(7, 2, 3, 4, 5, 6)
    message = DescribeProducersResponse((PartitionProducers("t", 1, 8, "why", (one,)),))
    frame = request(apis.DESCRIBE_PRODUCERS, 0, topics=[])
    [topic] = answer_to(frame, apis.DESCRIBE_PRODUCERS, message).topics
    [partition] = topic.partitions
    assert (topic.name, *tuple(partition)[:3]) == ("t", 1, 8, "why")
    assert [tuple(each) for each in partition.active_producers] == [(7, 2, 3, 4, 5, 6)]
