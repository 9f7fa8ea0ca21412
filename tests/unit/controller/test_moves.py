"""Preferred leader election: which leaderships move, and which do not (CTL-10, CTL-11)."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker.broker.controller.elections import plan_shutdown
from minibroker.broker.controller.moves import (
    Balance,
    Move,
    imbalanced,
    moves_from,
    plan_moves,
    preferred_moves,
)
from minibroker.broker.controller.state import PartitionRecord, State, TopicRecord
from minibroker.broker.turns import without_pause
from minibroker.protocol.constants import NO_NODE, ErrorCode
from minibroker.protocol.messages.control import ControlledShutdownRequest
from minibroker.protocol.types import TopicPartition
from minibroker.testing.kit.settings import TEST_PROPERTIES
from tests.unit.controller.electing import (
    CONFIG,
    NAME,
    broker,
    difference,
    partition,
    state_of,
)

ID = b"i" * 16
MOVE = Move(NAME, ID, 2, 5, 1)


def leaving(state, node):
    admission = replace(state.admissions[node], is_leaving=True)
    return replace(state, admissions={**state.admissions, node: admission})


def many(*leaders, live=(1, 2, 3)):
    """Partitions with the replicas (1, 2, 3), led by these brokers."""
    records = tuple(
        PartitionRecord(number, leader, 5, 9, (1, 2, 3), (1, 2, 3))
        for number, leader in enumerate(leaders)
    )
    state = state_of(records[0], live)
    return replace(state, topics={"t": TopicRecord(ID, "t", {}, records)})


def selected(state, names=None):
    return without_pause(preferred_moves(state, names))


def test_a_preferred_replica_that_is_in_sync_is_elected():
    """CTL-10: both epochs rise, the ISR stays, and brokers are told of the partition."""
    state = state_of(partition(leader=2))
    assert selected(state) == ((MOVE,), ())
    plan = without_pause(plan_moves(state, [MOVE]))
    assert plan.answer == (NAME,)
    (record,) = plan.state.topics["t"].partitions
    assert (record.leader, record.isr, record.leader_epoch, record.partition_epoch) == (
        1,
        (1, 2, 3),
        6,
        10,
    )
    assert plan.change == difference(state, plan.state)
    assert len(plan.writes) == 1


@pytest.mark.parametrize(
    ("state", "says"),
    [
        (state_of(partition(leader=2, isr=(2, 3))), "broker 1 is not in sync"),
        (state_of(partition(leader=2), live=(2, 3)), "broker 1 is not alive"),
        (leaving(state_of(partition(leader=2)), 1), "broker 1 is about to stop"),
        (
            replace(state_of(partition(leader=2)), fenced=frozenset({1})),
            "broker 1 is fenced: the controller does not hear it",
        ),
        (state_of(partition(leader=NO_NODE)), "the partition has no leader"),
    ],
)
def test_another_preferred_replica_is_not_elected(state, says):
    """CTL-10: it must be live, stay and be in sync, and there must be a leader that hands over."""
    (other,) = selected(state).others
    assert (other.error, other.error_message) == (
        ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
        says,
    )
    assert not selected(state).moves
    plan = without_pause(plan_moves(state, [MOVE]))
    assert (plan.answer, plan.writes, plan.state) == ((), (), state)


def test_a_fenced_member_leaves_the_isr_with_an_election():
    """As in any other election: the new leader would wait for it."""
    state = replace(state_of(partition(leader=2)), fenced=frozenset({3}))
    (record,) = without_pause(plan_moves(state, [MOVE])).state.topics["t"].partitions
    assert (record.leader, record.isr) == (1, (1, 2))


def test_where_the_preferred_replica_leads_nothing_is_done():
    """It is told only to who named the partition."""
    state = state_of(partition(leader=1))
    assert selected(state) == ((), ())
    (other,) = selected(state, [NAME]).others
    assert other.error == ErrorCode.ELECTION_NOT_NEEDED
    (other,) = selected(state, [TopicPartition("t", 7)]).others
    assert other.error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize(
    "move",
    [
        MOVE._replace(leader=3),
        MOVE._replace(leader_epoch=4),
        MOVE._replace(topic_id=b"j" * 16),
        MOVE._replace(name=TopicPartition("t", 1)),
        MOVE._replace(name=TopicPartition("u", 0)),
    ],
)
def test_a_move_of_another_time_is_not_made(move):
    """What was handed over by another leader, in another epoch or of another topic is nobody's."""
    plan = without_pause(plan_moves(state_of(partition(leader=2)), [move]))
    assert (plan.answer, plan.writes) == ((), ())


@pytest.mark.parametrize(
    ("leaders", "percentage", "count"),
    [
        ((1,) * 10, 0, 0),
        ((2, *(1,) * 9), 10, 0),
        ((2, *(1,) * 9), 9, 1),
        ((2, 3, *(1,) * 8), 10, 2),
    ],
)
def test_a_share_above_the_percentage_is_moved(leaders, percentage, count):
    """leader.imbalance.per.broker.percentage, of the partitions that prefer the broker."""
    moves = without_pause(imbalanced(many(*leaders), percentage))
    assert len(moves) == count
    assert {move.target for move in moves} <= {1}


def test_in_the_testing_kit_a_single_leadership_is_moved():
    """Where many other partitions are led as preferred, too: a test waits for it."""
    percentage = int(TEST_PROPERTIES["leader.imbalance.per.broker.percentage"])
    assert len(without_pause(imbalanced(many(2, *(1,) * 99), percentage))) == 1


def test_while_a_broker_stops_nothing_is_balanced():
    """Brokers that are restarted one by one are left alone."""
    state = many(2, 2, 2)
    assert len(without_pause(imbalanced(state, 10))) == 3
    assert without_pause(imbalanced(leaving(state, 3), 10)) == ()


def test_the_balance_waits_until_brokers_have_been_the_same():
    """A broker that has just been admitted gets a whole interval before it leads again."""
    balance = Balance(5.0, 100.0)
    assert balance.due_at == 105.0
    balance.restart(104.0)
    assert balance.due_at == 109.0


@given(st.data())
def test_a_broker_that_stops_hands_over_to_whom_its_request_elects(data):
    """CTL-11: who was prepared by the handover is who leads after the shutdown's review."""
    records = []
    for number in range(data.draw(st.integers(1, 8))):
        replicas = tuple(data.draw(st.permutations((1, 2, 3, 4)))[: data.draw(st.integers(1, 4))])
        isr = tuple(node for node in replicas if data.draw(st.booleans())) or replicas
        leader = data.draw(st.sampled_from(isr))
        records.append(PartitionRecord(number, leader, 5, 9, isr, replicas))
    live = (1, 2, 3, 4)
    state = state_of(partition(), live)
    state = replace(state, topics={"t": TopicRecord(ID, "t", {}, tuple(records))})
    if data.draw(st.booleans()):
        state = leaving(state, 4)
    state = without_pause(plan_shutdown(state, CONFIG, ControlledShutdownRequest(4, 10))).state
    moves = without_pause(moves_from(state, 1))
    request = ControlledShutdownRequest(1, broker(1).epoch)
    after = without_pause(plan_shutdown(state, CONFIG, request)).state
    moved = {
        name: record.leader
        for name, record in after.partitions()
        if (before := state.partition(name)) and before.leader == 1 and record.leader != 1
    }
    assert {move.name: move.target for move in moves} == moved


def test_moves_wait_for_turns():
    """Many partitions are looked at in turns of the loop."""
    state = many(*[2] * 1200)
    turns = preferred_moves(state)
    assert len([*turns]) > 2
    assert isinstance(state, State)
