"""The queue of markers that are to be written."""

from collections.abc import Mapping

from minibroker.broker.metadata.model import (
    BrokerImage,
    ClusterImage,
    PartitionImage,
    TopicImage,
)
from minibroker.broker.transactions import markers
from minibroker.broker.transactions.markers import PAUSE_S, MarkerKey, MarkerQueue
from minibroker.broker.transactions.states import State
from minibroker.broker.transactions.transaction import Transaction
from minibroker.protocol.constants import ErrorCode
from minibroker.protocol.messages.transactions import (
    TransactionMarker,
    TransactionMarkerResult,
    TransactionPartitionResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from minibroker.protocol.types import Endpoint, TopicPartition

HOME = TopicPartition("__transaction_state", 0)
KEY = MarkerKey(HOME, "x")
T = [TopicPartition("t", number) for number in range(4)]


def image(leaders: Mapping[int, int]) -> ClusterImage:
    """The cluster with the leaders of the partitions of `t`, as many as there are."""
    partitions = tuple(
        PartitionImage(number, leader, 0, (1, 2), (1, 2), 0) for number, leader in leaders.items()
    )
    brokers = {node: BrokerImage(node, Endpoint("h", 9092), 1) for node in (1, 2)}
    topic = TopicImage(b"i" * 16, "t", {}, partitions)
    return ClusterImage("c", 1, 0, brokers, {"t": topic})


def decided(*partitions: TopicPartition, producer_id: int = 7) -> Transaction:
    """A transaction that is to be committed."""
    return Transaction(producer_id, 2, 60_000, State.PREPARE_COMMIT, frozenset(partitions), 1, 1)


def answer(request: WriteTxnMarkersRequest, error: int = 0) -> WriteTxnMarkersResponse:
    """All partitions of a request have this result."""
    return WriteTxnMarkersResponse(
        tuple(
            TransactionMarkerResult(
                marker.producer_id,
                tuple(TransactionPartitionResult(*name, error) for name in marker.partitions),
            )
            for marker in request.markers
        )
    )


def test_each_leader_gets_its_partitions_once() -> None:
    """One request at a time, and the transaction is marked once all have answered."""
    queue = MarkerQueue()
    queue.add(KEY, decided(*T[:3]), 5, 0.0)
    assert not queue.route(image({0: 1, 1: 2, 2: 1}), 0.0)
    assert sorted(queue.leaders) == [1, 2]
    first, second = queue.take(1), queue.take(2)
    assert first == WriteTxnMarkersRequest((TransactionMarker(7, 2, True, 5, (T[0], T[2]), 1),))
    assert second is not None
    assert queue.leaders == []
    queue.on_answer(1, answer(first), 1.0)
    assert queue.pop_marked() == []
    queue.on_answer(2, answer(second), 1.0)
    assert queue.pop_marked() == [KEY]
    assert queue.pop_marked() == []


def test_a_failed_partition_is_sent_to_its_leader_of_then() -> None:
    """After a pause; the others are not sent again."""
    queue = MarkerQueue()
    queue.add(KEY, decided(*T[:2]), 5, 0.0)
    queue.route(image({0: 1, 1: 1}), 0.0)
    request = queue.take(1)
    assert request is not None
    results = (
        TransactionPartitionResult(*T[0]),
        TransactionPartitionResult(*T[1], ErrorCode.NOT_LEADER_OR_FOLLOWER),
    )
    queue.on_answer(1, WriteTxnMarkersResponse((TransactionMarkerResult(7, results),)), 1.0)
    moved = image({0: 1, 1: 2})
    assert not queue.route(moved, 1.0)
    assert queue.leaders == []
    assert queue.deadline == 1.0 + PAUSE_S
    [trouble] = queue.troubles(0.5)
    assert trouble == ("x", 0.0, T[1], ErrorCode.NOT_LEADER_OR_FOLLOWER)
    queue.route(moved, 1.0 + PAUSE_S)
    again = queue.take(2)
    assert again is not None
    assert again.markers[0].partitions == (T[1],)
    queue.on_answer(2, answer(again), 2.0)
    assert queue.pop_marked() == [KEY]


def test_a_lost_broker_and_an_empty_answer_are_failures() -> None:
    """It is not known whether the markers are written: they are sent again."""
    queue = MarkerQueue()
    queue.add(KEY, decided(T[0]), 5, 0.0)

    def answer_nothing(node_id: int, now: float) -> None:
        queue.on_answer(node_id, WriteTxnMarkersResponse(), now)

    for number, fail in enumerate((queue.on_lost, answer_nothing)):
        queue.route(image({0: 1}), number)
        assert queue.take(1) is not None
        fail(1, number)
    queue.route(image({0: -1}), 2.0)
    assert queue.leaders == []
    queue.route(image({0: 1}), 3.0)
    assert queue.leaders == [1]


def test_a_deleted_topic_needs_no_marker() -> None:
    """Nor does a transaction without partitions."""
    queue = MarkerQueue()
    queue.add(KEY, decided(T[0], TopicPartition("gone", 0)), 5, 0.0)
    queue.route(image({0: 1}), 0.0)
    request = queue.take(1)
    assert request is not None
    queue.on_answer(1, answer(request), 0.0)
    assert queue.pop_marked() == [KEY]
    queue.add(KEY, decided(), 5, 0.0)
    assert queue.pop_marked() == [KEY]


def test_a_partition_with_a_newer_epoch_needs_no_marker() -> None:
    """It takes no batch of this epoch any more, and has no open transaction of it. Without this, a
    stranger who sends a batch with the producer's id and the last epoch would stop its id."""
    queue = MarkerQueue()
    queue.add(KEY, decided(T[0]), 5, 0.0)
    queue.route(image({0: 1}), 0.0)
    request = queue.take(1)
    assert request is not None
    queue.on_answer(1, answer(request, ErrorCode.INVALID_PRODUCER_EPOCH), 0.0)
    assert queue.pop_marked() == [KEY]


def test_a_transaction_that_another_coordinator_finishes_is_forgotten() -> None:
    """What is in flight then changes nothing."""
    queue = MarkerQueue()
    other = MarkerKey(TopicPartition("__transaction_state", 1), "y")
    queue.add(KEY, decided(T[0], T[1]), 5, 0.0)
    queue.add(other, decided(T[0], producer_id=8), 5, 0.0)
    queue.route(image({0: 1, 1: 2}), 0.0)
    request = queue.take(1)
    assert request is not None
    queue.forget_home(HOME)
    queue.on_answer(1, answer(request), 0.0)
    assert queue.take(2) is None
    assert queue.pop_marked() == [other]
    assert queue.statistics() == 0


def test_a_request_is_bounded(monkeypatch) -> None:
    """The rest of a large transaction follows when the first part is answered."""
    monkeypatch.setattr(markers, "PARTITIONS_MAX", 3)
    queue = MarkerQueue()
    queue.add(KEY, decided(*T), 5, 0.0)
    queue.route(image(dict.fromkeys(range(4), 1)), 0.0)
    sizes = []
    while request := queue.take(1):
        sizes.append(len(request.markers[0].partitions))
        queue.on_answer(1, answer(request), 0.0)
    assert sizes == [3, 1]
    assert queue.pop_marked() == [KEY]
