"""When a broker is ready, and what it says when it is not."""

import pytest

from minibroker.broker.replication.follower import Follower
from minibroker.protocol.types import TopicPartition
from tests.unit.node import T0, Node, state_of

FOLLOWED = TopicPartition("t", 1)
BOTH = {"isr": (1, 2), "replicas": (1, 2)}


@pytest.fixture
def node() -> Node:
    """Broker 1, registered and told all; it leads t-0 and follows t-1, and all are in sync."""
    node = Node()
    node.live(1, 2)
    node.lead(state_of(**BOTH), state_of(FOLLOWED, leader=2, **BOTH))
    return node


def reasons(node: Node) -> list[str]:
    """Why it is not ready."""
    is_ready, found = node.services.readiness(0.0)
    assert is_ready == (not found)
    return list(found)


def test_a_broker_that_holds_all_that_it_shall_is_ready(node: Node) -> None:
    """Registered, told, and each replica leads or is in sync; who else lags is not its matter."""
    assert reasons(node) == []
    node.know(state_of(isr=(1,), replicas=(1, 2), epochs=(0, 1)), state_of(FOLLOWED, **BOTH))
    assert reasons(node) == []


def test_a_broker_without_replicas_is_ready() -> None:
    """The first one of a new cluster."""
    assert reasons(Node()) == []


def test_a_broker_that_leaves_is_not_ready(node: Node) -> None:
    """From the first moment on, though it still leads."""
    node.services.is_shutting_down = lambda: True
    assert reasons(node) == ["it is shutting down"]


def test_a_broker_counts_only_while_its_lease_does(node: Node) -> None:
    """Before the first registration, and once the others may hold it for dead."""
    node.controller.is_session_over = True
    lapsed = "its registration has lapsed: it has not reached the metadata store in time"
    assert reasons(node) == [lapsed]
    node.broker_epoch = -1
    assert reasons(node) == ["it is not registered yet"]


def test_what_it_holds_counts_once_it_was_told(node: Node) -> None:
    """Not before all roles and the cluster are known. While a new controller tells them anew the
    broker keeps what it knew, and stays ready."""
    untold = "no controller has told it yet what it leads and follows"
    assert reasons(Node(is_ready=False)) == [untold]
    node.update(topics=(), partitions=(), begins_image=True)
    assert reasons(node) == []
    node.lead(state_of(epochs=(1, 1), **BOTH))
    node.apply(completes_roles=True)
    assert reasons(node) == []


def test_a_registration_counts_once_the_controller_has_admitted_it(node: Node) -> None:
    """A broker that registered anew: others may have been elected in its place."""
    node.broker_epoch = 2
    strange = "the controller has not admitted its present registration yet"
    assert reasons(node) == [strange]
    node.live(1, 2, epoch=2)
    assert reasons(node) == []
    node.live(2, epoch=2)
    assert reasons(node) == [strange]


def test_a_follower_must_be_in_sync(node: Node) -> None:
    """As the controller has it; a replica of a topic that is being deleted is in nobody's way."""
    behind = state_of(FOLLOWED, leader=2, epochs=(1, 1), isr=(2,), replicas=(1, 2))
    node.lead(state_of(epochs=(1, 1), **BOTH), behind)
    assert reasons(node) == ["1 replica is not in sync: t-1"]
    node.forget(behind)
    assert reasons(node) == []


def test_a_replica_that_is_added_need_not_be_in_sync(node: Node) -> None:
    """Those that it joins stay until it is; one of theirs must be in sync."""
    members = {"isr": (2,), "replicas": (1, 2)}
    added = state_of(FOLLOWED, leader=2, epochs=(1, 1), original=(2,), **members)
    node.lead(state_of(epochs=(1, 1), **BOTH), added)
    assert reasons(node) == []
    leaves = state_of(FOLLOWED, leader=2, epochs=(1, 2), original=(1, 2), **members)
    node.lead(state_of(epochs=(1, 1), **BOTH), leaves)
    assert reasons(node) == ["1 replica is not in sync: t-1"]


def test_a_follower_must_hear_of_its_leader(node: Node) -> None:
    """Where its leader is silent it may have lost its place in sync, and nobody could tell it."""
    node.services.silent_leaders = lambda now: (2,)
    assert reasons(node) == ["broker 2, which it copies from, does not answer"]


def test_a_replica_that_neither_leads_nor_copies_is_named_with_its_reason(node: Node) -> None:
    """Offline, failed, or without room for its log."""
    node.apply(state_of(leader=-1, epochs=(1, 1), isr=(2,), replicas=(1, 2)))
    role = node.partition(FOLLOWED).role
    assert isinstance(role, Follower)
    role.failure = "would cut below 15"
    (found,) = reasons(node)
    assert found.startswith("2 replicas are offline: t-0 (")
    assert found.endswith("), t-1 (would cut below 15)")


def test_a_replica_without_room_is_named(node: Node) -> None:
    """The order stands, the log is not there."""
    third = TopicPartition("t", 2)
    node.files.space_bytes = 0
    node.apply(state_of(third, **BOTH))
    assert reasons(node) == [
        "1 replica is offline: t-2 (its log cannot be made yet: the disk is full)"
    ]


def test_few_replicas_are_named() -> None:
    """A thousand lagging replicas are one line."""
    node = Node()
    node.live(1, 2)
    behind = {"leader": 2, "isr": (2,), "replicas": (1, 2)}
    node.lead(*(state_of(TopicPartition("t", number), **behind) for number in range(7)))
    assert reasons(node) == ["7 replicas are not in sync: t-0, t-1, t-2, t-3, t-4, ..."]
    assert str(T0) in reasons(node)[0]
