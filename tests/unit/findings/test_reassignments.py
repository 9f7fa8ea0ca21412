"""What the doctor says of reassignments under way."""

from minibroker.broker.findings import Level
from minibroker.broker.findings.reassignments import of_reassignments
from minibroker.protocol.types import TopicPartition


def test_a_reassignment_to_a_dead_broker_is_named() -> None:
    """With the broker that it waits for, and what to do; others are under way."""
    adding = {
        TopicPartition("t", 0): (4,),
        TopicPartition("t", 1): (3, 4),
        TopicPartition("t", 2): (3,),
        TopicPartition("t", 3): (),
    }
    [finding] = of_reassignments(adding, {1, 2, 3})
    assert finding.level is Level.PROBLEM
    assert "2 reassignments cannot end while broker 4 is not alive or fenced: " in finding.what
    assert finding.what.endswith("t-0, t-1")
    assert "start broker 4" in finding.advice
    assert not [*of_reassignments(adding, {1, 2, 3, 4})]


def test_a_reassignment_without_a_leader_is_named() -> None:
    """There is nothing to copy from. Other partitions without a leader are another finding."""
    adding = {TopicPartition("t", 0): (3,), TopicPartition("t", 1): ()}
    leaderless = {TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)}
    [finding] = of_reassignments(adding, {1, 2, 3}, leaderless)
    assert finding.level is Level.PROBLEM
    assert finding.what == "2 reassignments cannot go on without a leader to copy from: t-0, t-1"
    assert "leader elect --unclean" in finding.advice
