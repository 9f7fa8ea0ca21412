"""Replicas that follow, and damaged ones that may not lead (A18; rows RM, N3)."""

import pytest

from minibroker.broker.errors import Refused
from minibroker.broker.replication.follower import Follower
from minibroker.broker.turns import without_pause
from minibroker.protocol.constants import ErrorCode
from minibroker.protocol.messages.control import LeaderAndIsrRequest, LiveBroker
from minibroker.protocol.types import Endpoint, TopicPartition
from tests.unit.node import ROOT, T0, Node, batch_of, state_of


def test_a_follower_copies_from_the_leader() -> None:
    """A18: a follower is handed to its fetcher; where the leader is comes with the order, and an
    endpoint of an image counts as well (RM-09)."""
    node = Node()
    broker = LiveBroker(2, "h", 9, 1)
    state = state_of(leader=2, isr=(2,), replicas=(1, 2))
    node.replicas.obey_roles(LeaderAndIsrRequest(1, 0, 1, (state,), (broker,)), 0.0)
    role = node.partition().role
    assert isinstance(role, Follower)
    assert (role.leader, role.leader_epoch) == (2, 0)
    assert node.fetchers.assigned == {T0: node.partition()}
    assert node.fetchers.endpoints[2] == Endpoint("h", 9)
    node.live(1, 3)
    assert node.fetchers.endpoints[3] == Endpoint("broker-3", 9092)


def test_a_fetcher_lets_go_before_a_term_begins() -> None:
    """RM-05: who becomes leader is taken from its fetcher first, so that no copied record lands
    behind the start of the term."""
    node = Node()
    node.apply(state_of(leader=2, isr=(1, 2), replicas=(1, 2)))
    ends: list[str] = []
    let_go = node.fetchers.unassign

    def unassign(name: TopicPartition) -> None:
        assert not node.partition().is_leader
        ends.append("let go")
        let_go(name)

    node.fetchers.unassign = unassign  # type: ignore[method-assign]
    node.apply(state_of(epochs=(1, 1), isr=(1, 2), replicas=(1, 2)))
    assert ends == ["let go"]
    assert node.partition().is_leader
    assert node.fetchers.assigned == {}


def test_a_follower_goes_on_undisturbed_in_its_term() -> None:
    """RM-03: a higher partition epoch in the same term keeps the fetcher and the role; a failed
    follower gets a new one."""
    node = Node()
    replicas = (1, 2, 3)
    node.apply(state_of(leader=2, isr=(2,), replicas=replicas))
    role, calls = node.partition().role, len(node.fetchers.calls)
    node.apply(state_of(epochs=(0, 1), leader=2, isr=(1, 2), replicas=replicas))
    assert node.partition().role is role
    assert node.partition().version == (0, 1)
    assert len(node.fetchers.calls) == calls
    assert isinstance(role, Follower)
    role.failure = "it cannot go on"
    node.apply(state_of(epochs=(0, 2), leader=2, isr=(2,), replicas=replicas))
    assert node.partition().role is not role
    assert node.fetchers.calls[-1] == ("assign", T0)


def test_a_follower_knows_nothing_of_other_followers() -> None:
    """PAR-18: it keeps no progress and asks for no change of the ISR."""
    node = Node()
    node.live(1, 2)
    node.lead(state_of(isr=(1,), replicas=(1, 2)))
    node.apply(state_of(epochs=(1, 1), leader=2, isr=(1, 2), replicas=(1, 2)))
    with pytest.raises(Refused):
        node.followed(2, 0)
    without_pause(node.replicas.review_isrs(1e9))
    assert node.isr_proposals.statistics() == 0


def test_nobody_leads() -> None:
    """A partition without a leader is copied from nobody, and keeps its high watermark."""
    node = Node()
    node.apply(state_of())
    node.append(3)
    node.apply(state_of(epochs=(1, 1), leader=-1))
    assert not node.partition().is_leader
    assert node.fetchers.assigned == {}
    assert node.replicas.high_watermarks() == {T0: 3}
    with pytest.raises(Refused, match="nobody leads"):
        node.append()


def test_the_high_watermark_goes_through_all_roles() -> None:
    """A11, BRK-05: what was known to be committed is known in the next role too."""
    node = Node()
    node.apply(state_of(isr=(1,), replicas=(1, 2)))
    node.append(3)
    for term, leader in enumerate((2, -1, 2, 1), 1):
        node.apply(
            state_of(epochs=(term, term), leader=leader, isr=(1, 2), replicas=(1, 2)), now=99.0
        )
        assert node.partition().high_watermark == 3


def test_a_stopped_follower_is_copied_no_more() -> None:
    """RM-13: a stop takes the partition from its fetcher."""
    node = Node()
    state = state_of(leader=2, isr=(2,), replicas=(1, 2))
    node.apply(state)
    node.stop(state, delete=False, leader_epoch=0)
    assert node.fetchers.assigned == {}


# -- damage


def damaged_node() -> Node:
    """A node whose log lost its records from offset 2 on: a bit of the second batch has rotted."""
    node = Node()
    node.apply(state_of())
    for _ in range(3):
        node.append(2)
    node.files.kill()
    node.files.flip(ROOT / "t-0" / f"{0:020}.log", len(batch_of(2)) + 30, 0)
    again = Node(node.files)
    assert again.manager.statistics().damaged == (T0,)
    return again


def test_a_damaged_log_never_leads() -> None:
    """N3: whatever the controller says, lost records are not passed over in silence."""
    node = damaged_node()
    node.apply(state_of(epochs=(1, 1)))
    with pytest.raises(Refused, match="partition recover t 0") as refused:
        node.append()
    assert refused.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    assert node.partition().log.damage is not None


def test_a_damaged_log_in_the_isr_does_not_copy_over_its_loss() -> None:
    """N3: as long as the controller counts on it, it may be the one that has the records."""
    node = damaged_node()
    node.apply(state_of(epochs=(1, 1), leader=2, isr=(1, 2), replicas=(1, 2)))
    assert node.fetchers.assigned == {}
    assert node.partition().log.damage is not None


def test_a_damaged_log_is_copied_anew_from_a_safe_one() -> None:
    """N3: out of the ISR and led by another, it is cut where the loss begins and follows."""
    node = damaged_node()
    node.apply(state_of(epochs=(1, 1), leader=2, isr=(2,), replicas=(1, 2)))
    partition = node.partition()
    assert node.fetchers.assigned == {T0: partition}
    assert partition.log.damage is None
    assert partition.log.log_end == 2
    node.files.kill()
    assert Node(node.files).manager.statistics().damaged == ()
