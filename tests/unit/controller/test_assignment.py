"""Topics and partitions whose brokers the request names."""

import pytest

from minibroker.broker.config import Config
from minibroker.protocol.constants import ErrorCode
from minibroker.protocol.messages.topics import ConfigEntry, NewTopic, ReplicaAssignment
from tests.unit.controller.test_topics import create, state_with


def assigned(*partitions, name="t", first=0, configs=(), counts=(-1, -1)):
    """A topic with these brokers for each partition."""
    assignments = tuple(ReplicaAssignment(*one) for one in enumerate(partitions, first))
    return NewTopic(name, *counts, configs, assignments)


def test_a_topic_gets_the_brokers_that_are_assigned():
    """Replicas in the order given; the first active one leads, the active ones are in sync."""
    state = state_with(1, 2, 3, down=(4,))
    plan = create(state, assigned((3, 1), (4, 2)))
    (result,) = plan.answer.topics
    assert (result.error, result.partition_count, result.replication_factor) == (0, 2, 2)
    partitions = plan.state.topics["t"].partitions
    assert [record.replicas for record in partitions] == [(3, 1), (4, 2)]
    assert [record.isr for record in partitions] == [(3, 1), (2,)]
    assert [record.leader for record in partitions] == [3, 2]


def test_partitions_may_be_assigned_in_any_order():
    """The number of a partition counts, not its place in the request."""
    assignments = (ReplicaAssignment(1, (2,)), ReplicaAssignment(0, (1,)))
    plan = create(state_with(1, 2), NewTopic("t", assignments=assignments))
    assert [record.replicas for record in plan.state.topics["t"].partitions] == [(1,), (2,)]


@pytest.mark.parametrize(
    ("wanted", "error", "says"),
    [
        (assigned((1,), counts=(1, -1)), ErrorCode.INVALID_REQUEST, "are -1"),
        (assigned((1,), counts=(-1, 1)), ErrorCode.INVALID_REQUEST, "are -1"),
        (assigned((1,), first=1), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "from 0 on"),
        (assigned((1,), ()), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "partition 1 has no broker"),
        (assigned((1,), (1, 2)), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "2 brokers, the others"),
        (assigned((1, 1)), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "a broker twice"),
        (assigned((1, 9)), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "no broker 9"),
        (assigned((1, -1)), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "no broker -1"),
        (assigned((3,)), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "0 of 1 live"),
        (
            assigned((1, 3), configs=(ConfigEntry("min.insync.replicas", "2"),)),
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "1 of 2 live",
        ),
        (
            NewTopic("t", assignments=(ReplicaAssignment(0, (1,)), ReplicaAssignment(0, (2,)))),
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "assigned twice",
        ),
        (assigned(*[(1,)] * 10_001), ErrorCode.INVALID_PARTITIONS, "would pass 10000"),
    ],
)
def test_a_wrong_assignment_is_refused(wanted, error, says):
    """Nothing of the topic is made, and the message names what is wrong."""
    plan = create(state_with(1, 2, down=(3,)), wanted, config=Config())
    (refused,) = plan.answer.topics
    assert refused.error == error
    assert says in refused.error_message
    assert plan.writes == ()
