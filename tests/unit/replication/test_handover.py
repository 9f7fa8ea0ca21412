"""A leader that hands over: what it refuses, when its target has all, and how that ends."""

from contextlib import suppress

import pytest

from minibroker.broker.errors import Refused
from minibroker.protocol.constants import ACKS_ALL, ACKS_LEADER, ACKS_NONE, ErrorCode
from minibroker.protocol.messages.leaders import (
    HandOverRequest,
    PartitionHandedOver,
    PartitionToHandOver,
)
from tests.unit.node import T0, Node, state_of

HOLD_MS = 3_000
TAKEN = {ACKS_NONE, ACKS_LEADER, ACKS_ALL}


def leading() -> Node:
    node = Node(min_insync_replicas="2")
    node.live(1, 2, 3)
    node.lead(state_of(epochs=(4, 7), isr=(1, 2, 3), replicas=(2, 1, 3)))
    return node


def order(
    node: Node, target: int = 2, *, epoch: int = 4, now: float = 0.0, topic_id: bytes = b"i" * 16
) -> PartitionHandedOver:
    """The answer to a HAND_OVER."""
    wanted = PartitionToHandOver(T0.topic, topic_id, T0.partition, epoch, target)
    request = HandOverRequest(1, 0, node.broker_epoch, (wanted,), HOLD_MS)
    (answer,) = node.replicas.hand_over(request, now).partitions
    return answer


def taken(node: Node, now: float = 0.0) -> set[int]:
    """With which acks it takes a record now."""
    found = set()
    for acks in TAKEN:
        with suppress(Refused):
            node.append(acks=acks, now=now)
            found.add(acks)
    return found


def test_it_takes_nothing_that_it_would_acknowledge_alone() -> None:
    """acks 0 and 1 are refused as by a broker that does not lead; acks=all goes on, since no ISR
    without the target acknowledges it."""
    node = leading()
    assert taken(node) == TAKEN
    assert order(node) == PartitionHandedOver(*T0)
    assert taken(node) == {ACKS_ALL}
    with pytest.raises(Refused) as refused:
        node.append(acks=ACKS_LEADER)
    assert refused.value.code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_the_target_needs_what_was_taken_before() -> None:
    """It is ready from the log end on that the leader had at the first order, however often the
    order is repeated and whatever comes with acks=all."""
    node = leading()
    node.append(5)
    node.followed(2, 4)
    assert not order(node).is_ready
    node.append(3, acks=ACKS_ALL)
    node.followed(3, 8)
    assert not order(node).is_ready
    node.followed(2, 5)
    assert order(node).is_ready
    node.append(acks=ACKS_ALL)
    assert order(node).is_ready


def test_a_follower_that_never_fetched_is_not_ready() -> None:
    """An empty log, too: nobody knows what the target has."""
    assert not order(leading()).is_ready


def test_a_fetch_of_another_registration_does_not_count() -> None:
    """The target that fetched is the one that is registered now."""
    node = leading()
    node.followed(2, 0)
    assert order(node).is_ready
    node.live(1, 2, 3, epoch=2)
    assert not order(node).is_ready
    node.live(1, 2, 3, leaving=(2,))
    assert not order(node).is_ready


def test_it_leads_on_when_the_time_is_over() -> None:
    """Each order holds for its time; then everything is taken again, and a later order asks for
    all that was taken since."""
    node = leading()
    node.followed(2, 0)
    assert order(node).is_ready
    assert order(node, now=2.0).is_ready
    assert taken(node, now=4.9) == {ACKS_ALL}
    assert taken(node, now=5.0) == TAKEN
    assert not order(node, now=6.0).is_ready


def test_it_leads_on_when_it_is_told_to() -> None:
    """A target of -1 ends the handover at once."""
    node = leading()
    order(node)
    assert not order(node, target=-1).error
    assert taken(node) == TAKEN


def test_another_target_needs_all_of_now() -> None:
    """A handover to another broker begins anew."""
    node = leading()
    node.followed(2, 0)
    node.followed(3, 0)
    assert order(node).is_ready
    node.append(acks=ACKS_ALL)
    assert not order(node, target=3).is_ready


def test_a_new_term_ends_it() -> None:
    """The next leader takes everything, also if it is the same broker."""
    node = leading()
    order(node)
    node.apply(state_of(epochs=(5, 8), isr=(1, 2, 3), replicas=(2, 1, 3)))
    assert taken(node) == TAKEN


def test_another_in_sync_set_does_not_end_it() -> None:
    """The term is the same."""
    node = leading()
    order(node)
    node.apply(state_of(epochs=(4, 8), isr=(1, 2), replicas=(2, 1, 3)))
    assert taken(node) == {ACKS_ALL}


@pytest.mark.parametrize(
    ("epoch", "topic_id", "error"),
    [
        (3, b"i" * 16, ErrorCode.FENCED_LEADER_EPOCH),
        (5, b"i" * 16, ErrorCode.UNKNOWN_LEADER_EPOCH),
        (4, b"j" * 16, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
def test_an_order_for_another_time_changes_nothing(
    epoch: int, topic_id: bytes, error: ErrorCode
) -> None:
    """Another leader epoch, or another topic of that name."""
    node = leading()
    assert order(node, epoch=epoch, topic_id=topic_id).error == error
    assert taken(node) == TAKEN


def test_an_order_of_nobody_changes_nothing() -> None:
    """RM-01, RM-02: of an old controller, or for a former registration."""
    node = leading()
    node.update(controller_epoch=1)
    wanted = PartitionToHandOver(T0.topic, b"i" * 16, T0.partition, 4, 2)
    for sender, error in (
        ((1, 0, 1), ErrorCode.STALE_CONTROLLER_EPOCH),
        ((1, 1, 0), ErrorCode.STALE_BROKER_EPOCH),
    ):
        answer = node.replicas.hand_over(HandOverRequest(*sender, (wanted,), HOLD_MS), 0.0)
        assert (answer.error, answer.partitions) == (error, ())
    assert taken(node) == TAKEN


def test_a_follower_cannot_hand_over() -> None:
    """Who does not lead says so."""
    node = leading()
    node.apply(state_of(epochs=(5, 8), leader=2, isr=(1, 2, 3), replicas=(2, 1, 3)))
    assert order(node, epoch=5).error == ErrorCode.NOT_LEADER_OR_FOLLOWER
