"""FETCH of followers whose replicas are throttled (KIP-73): in-sync ones never wait."""

import math

import pytest

from minibroker.protocol.messages.control import LiveBroker
from minibroker.protocol.messages.fetch import FetchResponse
from minibroker.protocol.messages.topics import ConfigEntry
from minibroker.protocol.types import TopicPartition
from tests.unit.node import Node, batch_of, records_of, state_of
from tests.unit.server.fetching import SMALL, answer, answers, append, ask, waits, want

T1 = TopicPartition("t", 1)


def throttled(*, rate: str = "100", replicas: str = "*") -> Node:
    """Broker 1 leads two partitions; 2 is in sync, and 3 is added."""
    node = Node()
    limit = ConfigEntry("leader.replication.throttled.rate", rate)
    brokers = [LiveBroker(node_id, f"broker-{node_id}", 9092, 1) for node_id in (2, 3)]
    node.update(brokers=(LiveBroker(1, "broker-1", 9092, 1, configs=(limit,)), *brokers))
    members = {"isr": (1, 2), "replicas": (1, 2, 3)}
    node.lead(
        state_of(**members),
        state_of(T1, **members),
        overrides={"leader.replication.throttled.replicas": replicas},
    )
    append(node, batch_of(), batch_of())
    append(node, batch_of(), name=T1)
    answers(node, want(2), want(1, name=T1), replica_id=2, wait_ms_max=0)
    assert node.partition().high_watermark == 2  # so 3 has to copy before it can join
    return node


def spend(node: Node, size: int = 10_000, now: float = 0.0) -> None:
    """Use the leader's quota up."""
    node.replicas.quotas.leader.record(size, now)


def test_a_replica_that_is_not_in_sync_gets_nothing_meanwhile() -> None:
    """It waits until the quota is expected to have room, and gets records then."""
    node = throttled()
    assert node.replicas.quotas.leader.limit == 100
    spend(node, 300)
    waiting = waits(node, want(), replica_id=3, wait_ms_max=5_000)
    assert waiting.attempt(0.5) is None
    assert 0.5 < waiting.deadline() <= 1.5
    done = waiting.attempt(3.0)
    assert done is not None
    assert records_of(done.partitions[0])


def test_an_in_sync_replica_is_never_throttled() -> None:
    """Nor does it matter how far it is behind; its bytes count."""
    node = throttled()
    append(node, batch_of(), batch_of())
    spend(node)
    before = node.replicas.quotas.leader.statistics(0.0).bytes
    size = len(records_of(answer(node, want(2), replica_id=2)))
    assert size == 2 * SMALL
    assert node.replicas.quotas.leader.statistics(0.0).bytes == before + size


def test_a_replica_that_is_about_to_join_is_not_throttled() -> None:
    """It counts for acks=all from the proposal on."""
    node = throttled()
    answer(node, want(2), replica_id=3, wait_ms_max=0)  # at the end: the leader proposes it
    assert 3 in node.leader().maximal_isr
    assert 3 not in node.leader().isr
    append(node, batch_of())
    spend(node)
    assert records_of(answer(node, want(2), replica_id=3))


def test_a_consumer_is_not_throttled() -> None:
    """Quotas are for replication."""
    node = throttled()
    spend(node)
    assert records_of(answer(node, want()))


@pytest.mark.parametrize(("replicas", "is_throttled"), [("0:1", True), ("0:2,1:1", False)])
def test_only_listed_replicas_are_throttled(replicas: str, *, is_throttled: bool) -> None:
    """The list names the broker that sends."""
    node = throttled(replicas=replicas)
    spend(node)
    outcome = ask(node, want(), replica_id=3)
    assert isinstance(outcome, FetchResponse) != is_throttled


def test_other_partitions_are_sent_meanwhile() -> None:
    """A throttled partition holds no other one up, and does not make the answer due."""
    node = throttled(replicas="0:1")
    spend(node)
    outcome = ask(node, want(), want(name=T1), replica_id=3)
    assert isinstance(outcome, FetchResponse)
    sizes = [len(records_of(each)) for each in outcome.partitions]
    assert sizes == [0, SMALL]


def test_one_answer_stops_once_the_quota_is_exceeded() -> None:
    """The partitions behind get nothing."""
    node = throttled(rate="1")
    outcome = ask(node, want(), want(name=T1), replica_id=3)
    assert isinstance(outcome, FetchResponse)
    sizes = [len(records_of(each)) for each in outcome.partitions]
    assert sizes == [2 * SMALL, 0]


def test_a_throttled_partition_does_not_rest() -> None:
    """It has records to send, though nothing notifies it: the next request looks at it."""
    node = throttled()
    spend(node, 150)
    session = ask(node, want(), replica_id=3, session_epoch=0, wait_ms_max=0)
    assert isinstance(session, FetchResponse)
    assert not records_of(session.partitions[0])
    more = {"replica_id": 3, "session_id": session.session_id, "session_epoch": 1}
    later = ask(node, now=2.0, wait_ms_max=0, **more)
    assert isinstance(later, FetchResponse)
    assert len(records_of(later.partitions[0])) == 2 * SMALL


def test_without_a_limit_nothing_is_throttled() -> None:
    """As when the rate was deleted."""
    node = throttled()
    spend(node)
    node.live(1, 2, 3)
    assert records_of(answer(node, want(), replica_id=3))
    assert node.replicas.quotas.leader.limit == math.inf
