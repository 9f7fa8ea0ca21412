"""Reassignments of one partition, step by step: what is added, who leads, what leaves and when."""

from dataclasses import replace

import pytest

from minibroker.broker.config import load
from minibroker.broker.controller.elections import review
from minibroker.broker.controller.reassignments import (
    FormerReplica,
    list_ongoing,
    moves_to_targets,
    plan_alter,
    plan_forgetting,
    plan_progress,
    reassigned,
)
from minibroker.broker.controller.state import PartitionRecord, Reassignment, TopicRecord
from minibroker.broker.turns import without_pause
from minibroker.protocol.constants import ErrorCode
from minibroker.protocol.messages.reassignments import (
    AlterPartitionReassignmentsRequest,
    ListPartitionReassignmentsRequest,
    OngoingReassignment,
    PartitionReassignment,
)
from minibroker.protocol.types import TopicPartition
from tests.unit.controller.electing import NAME, UNCLEAN, broker, difference, partition, state_of

ALL = (1, 2, 3, 4, 5)
CONFIG = load(flags={"min.insync.replicas": "2", "num.concurrent.partition.movements": "2"}).config


def cluster(record=None, live=ALL, configs=None):
    return state_of(record or partition(), live, configs)


def altered(state, *replicas, **options):
    """The state after a request for t-0; without replicas it cancels."""
    wanted = PartitionReassignment("t", 0, replicas or None)
    request = AlterPartitionReassignmentsRequest((wanted,), **options)
    plan = without_pause(plan_alter(state, CONFIG, request, ongoing(state)))
    [result] = plan.answer.partitions
    assert not result.error, result
    assert plan.change == difference(state, plan.state)
    return plan.state


def refusal(state, *replicas, topic="t", number=0, **options):
    """The error of a request, which changes nothing."""
    wanted = PartitionReassignment(topic, number, options.pop("wanted", replicas))
    request = AlterPartitionReassignmentsRequest((wanted,), **options)
    plan = without_pause(plan_alter(state, CONFIG, request, ongoing(state)))
    assert plan.writes == ()
    assert plan.state.topics == state.topics
    [result] = plan.answer.partitions
    assert (result.topic, result.partition) == (topic, number)
    return result.error


def ongoing(state):
    return reassigned(state, (name for name, _ in state.partitions()))


def progressed(state):
    plan = without_pause(plan_progress(state, CONFIG, ongoing(state)))
    assert plan.change == difference(state, plan.state)
    return plan.state


def record_of(state):
    return state.topics["t"].partitions[0]


def changed(state, **fields):
    """The state in which t-0 has changed otherwise: its ISR, its leader."""
    topic = state.topics["t"]
    record = replace(topic.partitions[0], **fields)
    topic = replace(topic, partitions=(record, *topic.partitions[1:]))
    return replace(state, topics={"t": topic})


def outcome(state):
    """Where t-0 is, who is in sync, and what it still has of a reassignment."""
    record = record_of(state)
    return record.replicas, record.isr, record.reassignment, tuple(sorted(record.former))


def moves(state):
    found = without_pause(moves_to_targets(state, CONFIG, ongoing(state)))
    return [(move.leader, move.target) for move in found]


def test_a_request_adds_the_target_before_what_leaves():
    """Replicas are target + old, in a new partition epoch; nobody is in sync before its time, and
    nobody leads otherwise."""
    state = altered(cluster(), 4, 5, 1)
    moving = Reassignment((1, 2, 3), (4, 5, 1))
    assert outcome(state) == ((4, 5, 1, 2, 3), (1, 2, 3), moving, ())
    record = record_of(state)
    assert (record.leader, record.leader_epoch, record.partition_epoch) == (1, 5, 10)
    assert (moving.adding, record.removing) == ((4, 5), (2, 3))
    assert progressed(state) is not state
    assert record_of(progressed(state)) is record


@pytest.mark.parametrize("isr", [(1, 2, 3), (1, 2, 3, 4), (4, 1), (1, 2, 3, 5)])
def test_nothing_leaves_before_all_successors_are_in_sync(isr):
    """However many others are."""
    state = changed(altered(cluster(), 4, 5, 1), isr=isr, leader=1)
    assert progressed(state).topics == state.topics
    assert moves(state) == []


def test_what_leaves_leaves_in_one_write():
    """Out of the ISR and the assignment, once the target is in sync and leads; its brokers are
    remembered until they have deleted their files."""
    state = changed(altered(cluster(), 4, 5, 1), isr=(4, 5, 1, 2, 3))
    plan = without_pause(plan_progress(state, CONFIG, ongoing(state)))
    assert len(plan.writes) == 1
    assert outcome(plan.state) == ((4, 5, 1), (4, 5, 1), None, (2, 3))
    record = record_of(plan.state)
    assert (record.leader, record.leader_epoch, record.partition_epoch) == (1, 5, 11)
    assert ongoing(plan.state) == set()


def test_a_leader_that_leaves_hands_over_first():
    """To the first target replica that is active and in sync; only then is anything removed."""
    state = changed(altered(cluster(), 4, 5), isr=(4, 5, 1, 2, 3))
    assert progressed(state).topics == state.topics
    assert moves(state) == [(1, 4)]
    assert moves(replace(state, fenced=frozenset({4}))) == [(1, 5)]
    assert moves(replace(state, fenced=frozenset({4, 5}))) == []
    state = changed(state, leader=4, leader_epoch=6, partition_epoch=11)
    assert moves(state) == []
    assert outcome(progressed(state)) == ((4, 5), (4, 5), None, (1, 2, 3))


def test_nothing_is_removed_while_nobody_leads():
    """Who leads next is for an election to say."""
    state = changed(altered(cluster(), 4, 5), isr=(4, 5, 1), leader=-1)
    assert progressed(state).topics == state.topics
    assert moves(state) == []


def test_a_cancelled_reassignment_goes_back():
    """What was added leaves at once, whether it is in sync or not, and needs no other broker."""
    for isr in ((1, 2, 3), (1, 2, 3, 4), (1, 2)):
        state = altered(changed(altered(cluster(), 4, 5), isr=isr))
        kept = tuple(node for node in isr if node < 4)
        assert outcome(state) == ((1, 2, 3), kept, None, (4, 5))
        assert record_of(state).partition_epoch == 11


def test_a_cancelled_reassignment_waits_for_the_old_replicas():
    """If acks=all was acknowledged by an added replica and too few old ones, it stays until enough
    of them are in sync: nothing else has what it has."""
    state = altered(changed(altered(cluster(), 4, 5), isr=(4, 1)))
    moving = Reassignment((1, 2, 3), (1, 2, 3))
    assert outcome(state) == ((1, 2, 3, 4), (4, 1), moving, (5,))
    state = changed(state, isr=(4, 1, 2))
    assert outcome(progressed(state)) == ((1, 2, 3), (1, 2), None, (4, 5))


def test_an_added_leader_hands_over_when_it_is_cancelled():
    """No stray leader stays behind."""
    state = changed(altered(cluster(), 4, 5), isr=(4, 1, 2), leader=4)
    state = altered(state)
    assert outcome(state)[0] == (1, 2, 3, 4)
    assert moves(state) == [(4, 1)]
    state = changed(state, leader=1, leader_epoch=6)
    assert outcome(progressed(state)) == ((1, 2, 3), (1, 2), None, (4, 5))


def test_a_reassignment_that_is_replaced_keeps_its_origin():
    """What only the first target had leaves at once if it is not in sync, else with the rest; to
    cancel leads back to where it began."""
    state = changed(altered(cluster(), 4, 5), isr=(1, 2, 3, 4))
    state = altered(state, 5, 1)
    moving = Reassignment((1, 2, 3), (5, 1))
    assert outcome(state) == ((5, 1, 2, 3, 4), (1, 2, 3, 4), moving, ())
    assert outcome(altered(state)) == ((1, 2, 3), (1, 2, 3), None, (4, 5))
    state = altered(altered(cluster(), 4, 5), 3, 2)
    assert outcome(state) == ((3, 2, 1), (1, 2, 3), Reassignment((1, 2, 3), (3, 2)), (4, 5))
    assert moves(state) == [(1, 3)]


@pytest.mark.parametrize(
    ("target", "isr", "after"),
    [
        ((1, 2), (1, 2, 3), ((1, 2), (1, 2), None, (3,))),
        ((1, 2), (1, 3), None),  # acks=all needs two
        ((1, 2), (1,), None),
        ((1,), (1, 2, 3), ((1,), (1,), None, (2, 3))),
        ((3, 2, 1), (1, 2), ((3, 2, 1), (2, 1), None, ())),  # only another order
    ],
)
def test_a_smaller_target_needs_nothing_copied(target, isr, after):
    """As many of it must be in sync as acks=all needs."""
    state = altered(cluster(partition(isr=isr)), *target)
    if after is None:
        assert outcome(state)[2] == Reassignment((1, 2, 3), target)
    else:
        assert outcome(state) == after


def test_more_replicas_are_added_one_write_each():
    """A partition of one replica: min.insync.replicas counts with one until the second is in
    sync."""
    state = altered(cluster(partition(isr=(1,), replicas=(1,))), 1, 2)
    assert outcome(state) == ((1, 2), (1,), Reassignment((1,), (1, 2)), ())
    assert record_of(state).original == (1,)
    assert outcome(progressed(changed(state, isr=(1, 2)))) == ((1, 2), (1, 2), None, ())


def test_what_is_asked_for_already_changes_nothing():
    """Nor does a request that is sent again."""
    state = cluster()
    assert altered(state, 1, 2, 3).topics == state.topics
    state = altered(state, 4, 5)
    assert altered(state, 4, 5).topics == state.topics
    assert outcome(altered(state, 1, 2, 3)) == ((1, 2, 3), (1, 2, 3), None, (4, 5))


@pytest.mark.parametrize(
    ("wanted", "code"),
    [
        ({"wanted": None}, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS),
        ({"wanted": ()}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ({"wanted": (1, 1)}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ({"wanted": (1, 9)}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ({"wanted": (1, -1)}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ({"wanted": (1, 2), "number": 1}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ({"wanted": (1, 2), "number": -1}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ({"wanted": (1, 2), "topic": "u"}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (
            {"wanted": (1, 2), "allow_replication_factor_change": False},
            ErrorCode.INVALID_REPLICATION_FACTOR,
        ),
    ],
)
def test_what_makes_no_sense_is_refused(wanted, code):
    """With Kafka's errors, for that partition alone; nothing is written."""
    assert refusal(cluster(), **wanted) == code


def many(count, **fields):
    """A topic of so many partitions."""
    record = partition()
    records = tuple(replace(record, number=number, **fields) for number in range(count))
    state = cluster()
    return replace(state, topics={"t": TopicRecord(b"i" * 16, "t", {}, records)})


def test_few_partitions_move_at_a_time():
    """The others wait as they are, are listed, can be cancelled, and begin when one has ended."""
    wanted = tuple(PartitionReassignment("t", number, (4, 5)) for number in range(4))
    request = AlterPartitionReassignmentsRequest(wanted)
    state = without_pause(plan_alter(many(4), CONFIG, request, ())).state
    assigned = [record.replicas for record in state.topics["t"].partitions]
    assert assigned == [(4, 5, 1, 2, 3)] * 2 + [(1, 2, 3)] * 2
    assert progressed(state).topics == state.topics
    listing = list_ongoing(state, ListPartitionReassignmentsRequest(), ongoing(state))
    listed = without_pause(listing).answer.partitions
    assert listed[1:3] == (
        OngoingReassignment("t", 1, (4, 5, 1, 2, 3), (4, 5), (1, 2, 3)),
        OngoingReassignment("t", 2, (1, 2, 3), (4, 5), (1, 2, 3)),
    )
    cancel = AlterPartitionReassignmentsRequest((PartitionReassignment("t", 2),))
    state = without_pause(plan_alter(state, CONFIG, cancel, ongoing(state))).state
    waiting = state.topics["t"].partitions[2]
    assert (waiting.replicas, waiting.reassignment, waiting.former) == ((1, 2, 3), None, ())
    state = progressed(progressed(changed(state, isr=(4, 5), leader=4)))
    assigned = [record.replicas for record in state.topics["t"].partitions]
    assert assigned == [(4, 5), (4, 5, 1, 2, 3), (1, 2, 3), (4, 5, 1, 2, 3)]


def test_those_that_are_asked_for_are_listed():
    """Without an error for what does not exist."""
    state = altered(cluster(), 4, 5)
    names = tuple(TopicPartition(*one) for one in (("t", 0), ("t", 1), ("u", 0), ("t", 0)))
    request = ListPartitionReassignmentsRequest(names)
    listed = without_pause(list_ongoing(state, request, ongoing(state))).answer.partitions
    assert listed == (OngoingReassignment("t", 0, (4, 5, 1, 2, 3), (4, 5), (1, 2, 3)),)
    request = ListPartitionReassignmentsRequest(())
    assert without_pause(list_ongoing(state, request, ongoing(state))).answer.partitions == ()


def test_a_former_replica_is_forgotten_when_it_is_deleted():
    """Of this topic id only; and when it is assigned again."""
    state = changed(cluster(), former=(4, 5))
    for topic_id, left in ((b"j" * 16, (4, 5)), (b"i" * 16, (5,))):
        plan = plan_forgetting(state, [FormerReplica(NAME, topic_id, 4)])
        assert record_of(plan.state).former == left
    assert outcome(altered(state, 4, 1)) == (
        (4, 1, 2, 3),
        (1, 2, 3),
        Reassignment((1, 2, 3), (4, 1)),
        (5,),
    )


def test_a_review_prefers_the_target():
    """When the leader dies meanwhile, the first target replica in sync leads."""
    state = changed(altered(cluster(), 4, 5), isr=(1, 2, 5))
    nodes = {node: broker(node) for node in (2, 3, 4, 5)}
    after = record_of(without_pause(review(state, nodes, CONFIG)).state)
    assert (after.leader, after.isr, after.leader_epoch) == (5, (2, 5), 6)
    assert after.reassignment == Reassignment((1, 2, 3), (4, 5))


def test_an_added_replica_that_never_was_in_sync_is_not_elected():
    """An unclean election loses what the leader lacks; such a one may lack everything."""
    state = changed(altered(cluster(configs=UNCLEAN), 4, 5), isr=(1,))
    after = record_of(without_pause(review(state, {4: broker(4)}, CONFIG)).state)
    assert after.leader == -1
    nodes = {4: broker(4), 3: broker(3)}
    assert record_of(without_pause(review(state, nodes, CONFIG)).state).leader == 3


def test_a_record_is_what_its_invariants_say():
    """A replica of the original assignment is assigned until the end; a former one is not."""
    with pytest.raises(AssertionError):
        PartitionRecord(0, 1, 5, 9, (1,), (1, 2), reassignment=Reassignment((1, 3), (2,)))
    with pytest.raises(AssertionError):
        PartitionRecord(0, 1, 5, 9, (1,), (1, 2), former=(2,))
