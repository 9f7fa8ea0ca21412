"""A partition: how its leader changes the in-sync set, and what a new term begins with."""

import pytest

from minibroker.broker.errors import Refused
from minibroker.broker.replication.partition import NO_EFFECTS
from minibroker.broker.replication.roles import Committed, IsrProposal
from minibroker.broker.turns import without_pause
from minibroker.protocol.constants import ErrorCode
from minibroker.protocol.messages.control import PartitionAltered
from tests.unit.node import T0, Node, state_of


def leading(isr: tuple[int, ...] = (1,), replicas: tuple[int, ...] = (1, 2)) -> Node:
    node = Node()
    node.live(1, 2, 3)
    node.lead(state_of(epochs=(4, 7), isr=isr, replicas=replicas))
    return node


def growing(node: Node) -> IsrProposal:
    """The proposal that a fetch of broker 2 leads to."""
    node.followed(2, node.partition().log.log_end)
    return proposal_of(node)


def shrinking(node: Node) -> IsrProposal:
    """The proposal that silence leads to."""
    without_pause(node.replicas.review_isrs(1e9))
    return proposal_of(node)


def proposal_of(node: Node) -> IsrProposal:
    (proposal,) = node.isr_proposals.next_batch_nowait()
    return proposal


def altered(
    error: int = 0,
    *,
    isr: tuple[int, ...] = (1, 2),
    epochs: tuple[int, int] = (4, 8),
) -> PartitionAltered:
    return PartitionAltered(*T0, error, 1, *epochs, isr)


def resolve(node: Node, proposal: IsrProposal, answer: PartitionAltered) -> bool:
    return node.replicas.resolve(proposal, answer, 1e9)


def test_a_fetch_at_the_end_asks_for_growth() -> None:
    """A3: the proposal names the state it is about, and the registrations that were seen."""
    proposal = growing(leading())
    assert proposal[:5] == ("t", 0, b"i" * 16, 4, 7)
    assert proposal.pending.proposed == (1, 2)
    assert proposal.broker_epochs == (-1, 1)


def test_the_isr_is_taken_from_the_answer() -> None:
    """A5, PAR-08: on success what counts is the answer, not what was asked; its partition epoch
    too."""
    node = leading(isr=(1,), replicas=(1, 2, 3))
    proposal = growing(node)
    assert resolve(node, proposal, altered(isr=(2, 1, 3), epochs=(4, 9)))
    assert node.leader().isr_state == Committed((2, 1, 3))
    assert node.partition().version == (4, 9)


def test_a_confirmed_shrink_lets_the_high_watermark_rise() -> None:
    """A5, K1: only the answer frees the leader of a dead follower; who waits is woken then."""
    node = leading(isr=(1, 2))
    node.append(3)
    proposal = shrinking(node)
    assert node.partition().high_watermark == 0
    assert node.leader().isr == (1, 2)
    assert resolve(node, proposal, altered(isr=(1,)))
    assert node.partition().high_watermark == 3


@pytest.mark.parametrize("epochs", [(3, 9), (5, 9), (4, 6)])
def test_an_answer_of_another_time_is_dropped(epochs: tuple[int, int]) -> None:
    """PAR-14: another leader epoch or a lower partition epoch changes nothing, and leaves the
    change pending for news to decide."""
    node = leading()
    proposal = growing(node)
    assert resolve(node, proposal, altered(epochs=epochs))
    assert node.partition().version == (4, 7)
    assert node.leader().isr_state is proposal.pending


@pytest.mark.parametrize(
    "error",
    [
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.INVALID_UPDATE_VERSION,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.NEW_LEADER_ELECTED,
    ],
)
def test_who_is_out_of_date_waits_for_news(error: ErrorCode) -> None:
    """PAR-14, A5: the change stays pending, and nothing more is asked for until news come."""
    node = leading()
    proposal = growing(node)
    assert resolve(node, proposal, altered(error))
    assert node.leader().isr_state is proposal.pending
    node.followed(2, 0, now=1.0)
    assert node.isr_proposals.statistics() == 0
    node.apply(state_of(epochs=(4, 8), isr=(1,), replicas=(1, 2)))
    node.followed(2, 0, now=2.0)
    assert node.isr_proposals.statistics() == 1


@pytest.mark.parametrize("error", [ErrorCode.INELIGIBLE_REPLICA, ErrorCode.OPERATION_NOT_ATTEMPTED])
def test_what_was_not_applied_may_be_asked_again(error: ErrorCode) -> None:
    """PAR-15: the last committed state is back, and a later fetch proposes anew."""
    node = leading()
    assert resolve(node, growing(node), altered(error))
    assert node.leader().isr_state == Committed((1,))
    assert growing(node).pending.proposed == (1, 2)


@pytest.mark.parametrize("error", [ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.NOT_CONTROLLER])
def test_any_other_error_is_asked_again_unchanged(error: ErrorCode) -> None:
    """PAR-14: nobody knows whether it was applied, so the same proposal goes out again."""
    node = leading()
    proposal = growing(node)
    assert not resolve(node, proposal, altered(error))
    assert node.leader().isr_state is proposal.pending


def test_a_late_answer_finds_its_question_decided() -> None:
    """A5: an answer to what is not pending any more is ignored, success or not."""
    node = leading()
    proposal = growing(node)
    node.apply(state_of(epochs=(4, 8), isr=(1,), replicas=(1, 2)))
    assert resolve(node, proposal, altered(ErrorCode.UNKNOWN_SERVER_ERROR))
    assert resolve(node, proposal, altered(isr=(1, 2), epochs=(4, 9)))
    assert node.leader().isr == (1,)
    node.stop(state_of(), delete=True, leader_epoch=-2)
    assert resolve(node, proposal, altered())


def test_a_push_clears_what_is_pending() -> None:
    """RM-03, A18: the same term with a higher partition epoch takes over the ISR it names, and the
    high watermark is looked at again."""
    node = leading(isr=(1, 2))
    node.append(3)
    shrinking(node)
    node.apply(state_of(epochs=(4, 8), isr=(1,), replicas=(1, 2)), now=1e9)
    assert node.leader().isr_state == Committed((1,))
    assert node.partition().high_watermark == 3


def test_the_own_next_term_keeps_ends_a_later_one_does_not() -> None:
    """A1, PAR-17: right after its own term a leader goes on with what it knows; after a term that
    it has not seen it knows nothing."""
    node = leading(isr=(1, 2))
    node.append(3)
    node.followed(2, 2)
    node.apply(state_of(epochs=(5, 8), isr=(1, 2), replicas=(1, 2)))
    known = node.leader().progress_of(2)
    assert known is not None
    assert known.log_end == 2
    node.apply(state_of(epochs=(7, 9), isr=(1, 2), replicas=(1, 2)))
    known = node.leader().progress_of(2)
    assert known is not None
    assert known.log_end == -1


def test_time_alone_frees_the_high_watermark() -> None:
    """A2: a follower that is not in the ISR and does not fetch this partition any more holds the
    high watermark no longer than the lag time, though it fetches others."""
    node = leading(isr=(1,), replicas=(1, 2))
    node.append(1)
    node.live(1)
    node.live(1, 2)
    node.followed(2, 1, now=0.0)
    resolve(node, proposal_of(node), altered(ErrorCode.INELIGIBLE_REPLICA))
    node.append(2, now=1.0)
    assert node.partition().high_watermark == 1
    node.replicas.record_arrival(2, 31.0)
    without_pause(node.replicas.review_isrs(29.0))
    assert node.partition().high_watermark == 1
    without_pause(node.replicas.review_isrs(31.0))
    assert node.partition().high_watermark == 3


def test_nothing_changes_for_who_is_no_leader() -> None:
    """PAR-18: a review of a follower is nothing, and a follower's fetch of it is refused."""
    node = leading()
    node.apply(state_of(epochs=(5, 8), leader=2, isr=(2,), replicas=(1, 2)))
    assert node.partition().review(1e9) is NO_EFFECTS
    with pytest.raises(Refused):
        node.followed(2, 0)


def test_every_change_is_logged_with_its_grounds(caplog: pytest.LogCaptureFixture) -> None:
    """Shrinking and growth say ends, high watermark and caught-up time, and the outcome says the
    version; in Kafka's words."""
    caplog.set_level("INFO")
    node = leading(isr=(1, 2))
    node.append(3)
    node.wall_time_ms = 100_000
    node.followed(2, 2, now=5.0)
    node.followed(2, 2, now=6.0)
    without_pause(node.replicas.review_isrs(90.0))
    resolve(node, proposal_of(node), altered(isr=(1,)))
    growing(node)
    lines = [record.getMessage() for record in caplog.records]
    assert (
        "[Partition t-0 broker=1] Shrinking ISR from 1,2 to 1. Leader: (highWatermark: 2,"
        " endOffset: 3). Out of sync replicas: (brokerId: 2, endOffset: 2,"
        " lastCaughtUpTimeMs: 10000)."
    ) in lines
    assert "[Partition t-0 broker=1] ISR updated to 1 and version updated to 8" in lines
    assert any("Expanding ISR from 1 to 1,2. Leader: (highWatermark: 3," in line for line in lines)
