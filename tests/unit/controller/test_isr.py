"""ALTER_PARTITION: the checks in their order, one row for each (A6, CTL-08, CTL-09)."""

from dataclasses import replace

import pytest

from minibroker.broker.controller.isr import plan_alterations
from minibroker.broker.controller.state import (
    Admission,
    BrokerRegistration,
    PartitionRecord,
    State,
    TopicRecord,
)
from minibroker.broker.turns import without_pause
from minibroker.protocol.constants import ErrorCode
from minibroker.protocol.messages.control import (
    AlterPartitionRequest,
    IsrMember,
    PartitionChange,
)
from minibroker.protocol.types import Endpoint

TOPIC_ID = b"i" * 16
RECORD = PartitionRecord(0, 1, 5, 9, (1, 2), (1, 2, 3))
STATE = State(
    topics={"t": TopicRecord(TOPIC_ID, "t", {}, (RECORD, replace(RECORD, number=1)))},
    brokers={
        n: BrokerRegistration(n, 10 * n, Endpoint("h", n), f"d{n}", 1, "p") for n in (1, 2, 3, 4)
    },
    admissions={n: Admission(n, 10 * n, f"d{n}", 1, "p") for n in (1, 2, 3, 4)},
)


def members(*nodes):
    return tuple(IsrMember(node) for node in nodes)


ALL = members(1, 2, 3)


def change(isr=ALL, **fields):
    wanted = {
        "topic": "t",
        "topic_id": TOPIC_ID,
        "partition": 0,
        "leader_epoch": 5,
        "partition_epoch": 9,
    }
    return PartitionChange(**{**wanted, **fields}, isr=isr)


def alter(*changes, state=STATE, sender=1, epoch=10):
    plan = without_pause(plan_alterations(state, [AlterPartitionRequest(sender, epoch, changes)]))
    return plan, plan.answer[0]


def without(node):
    brokers = {one: broker for one, broker in STATE.brokers.items() if one != node}
    return replace(STATE, brokers=brokers)


def leaving(node):
    admission = replace(STATE.admissions[node], is_leaving=True)
    return replace(STATE, admissions={**STATE.admissions, node: admission})


def test_an_isr_grows_and_shrinks():
    """What may be is done: partition epoch + 1, the leader epoch stays (CTL-09)."""
    for isr in ((1, 2, 3), (1,), (3, 1)):
        plan, answer = alter(change(members(*isr)))
        (altered,) = answer.partitions
        assert (altered.error, altered.isr) == (0, tuple(sorted(isr)))
        assert (altered.leader, altered.leader_epoch, altered.partition_epoch) == (1, 5, 10)
        record = plan.state.topics["t"].partitions[0]
        assert (record.isr, record.leader_epoch, record.partition_epoch) == (altered.isr, 5, 10)
        assert [write.key for write in plan.writes] == [f"partitions/{TOPIC_ID.hex()}/0"]


@pytest.mark.parametrize(("sender", "epoch"), [(1, 9), (1, 11), (5, 10)])
def test_an_unknown_sender_is_refused_as_a_whole(sender, epoch):
    """STALE_BROKER_EPOCH comes before everything that concerns a partition."""
    plan, answer = alter(change(), sender=sender, epoch=epoch)
    assert (answer.error, answer.partitions) == (ErrorCode.STALE_BROKER_EPOCH, ())
    assert plan.writes == ()


IN_ORDER = [
    ({"topic": "u"}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ({"partition": 2}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ({"topic_id": b"j" * 16}, ErrorCode.UNKNOWN_TOPIC_ID),
    ({"leader_epoch": 6, "partition_epoch": 8}, ErrorCode.NOT_CONTROLLER),
    ({"partition_epoch": 10, "leader_epoch": 4}, ErrorCode.NOT_CONTROLLER),
    ({"leader_epoch": 4, "isr": members(1, 2)}, ErrorCode.FENCED_LEADER_EPOCH),
    ({"partition_epoch": 8, "isr": members(1, 4)}, ErrorCode.INVALID_UPDATE_VERSION),
    ({"isr": members(1, 4)}, ErrorCode.INVALID_REQUEST),
    ({"isr": members(1, 3, 3)}, ErrorCode.INVALID_REQUEST),
    ({"isr": members(2, 3)}, ErrorCode.INVALID_REQUEST),
    ({"isr": ()}, ErrorCode.INVALID_REQUEST),
    ({"isr": (IsrMember(1, 10), IsrMember(3, 29))}, ErrorCode.INELIGIBLE_REPLICA),
]


@pytest.mark.parametrize(("fields", "error"), IN_ORDER)
def test_a_bad_change_is_refused(fields, error):
    """Each check of A6, with what the later ones would say too: the first that fails answers."""
    plan, answer = alter(change(**fields))
    assert [one.error for one in answer.partitions] == [error]
    assert plan.writes == ()


def test_a_fenced_broker_joins_no_isr():
    """One that is in it may stay, for its leader judges it."""
    state = replace(STATE, fenced=frozenset({2, 3}))
    _, answer = alter(change(), state=state)
    assert answer.partitions[0].error == ErrorCode.INELIGIBLE_REPLICA
    state = replace(STATE, fenced=frozenset({2}))
    _, answer = alter(change(), state=state)
    assert (answer.partitions[0].error, answer.partitions[0].isr) == (0, (1, 2, 3))


def test_only_the_leader_may_ask():
    """CTL-08: INVALID_REQUEST from a broker that does not lead, even for the ISR that is."""
    _, answer = alter(change(members(1, 2)), sender=2, epoch=20)
    assert answer.partitions[0].error == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("state", [without(3), leaving(3)])
def test_a_member_that_cannot_join(state):
    """CTL-08: a dead or leaving broker cannot be added, and nothing else of it is applied."""
    plan, answer = alter(change(), state=state)
    assert answer.partitions[0].error == ErrorCode.INELIGIBLE_REPLICA
    assert plan.writes == ()


def test_a_member_that_leaves_may_stay_meanwhile():
    """A leaving leader without heirs must be able to take one into the ISR."""
    _, answer = alter(change(), state=leaving(1))
    assert (answer.partitions[0].error, answer.partitions[0].isr) == (0, (1, 2, 3))


def test_a_known_epoch_is_checked():
    """A member is named in the registration in which it was in sync; -1 is not compared."""
    isr = (IsrMember(1, 10), IsrMember(2), IsrMember(3, 30))
    _, answer = alter(change(isr))
    assert answer.partitions[0].error == 0


def test_a_repeated_request_succeeds():
    """The state asked for is there already: success, before the version is compared (A6)."""
    plan, first = alter(change())
    again, second = alter(change(), state=plan.state)
    assert second == first
    assert again.writes == ()


def test_requests_are_judged_one_after_another():
    """Requests in one transaction see what those before them left; others go on."""
    requests = [
        AlterPartitionRequest(1, 10, (change(), change(members(1), partition=1))),
        AlterPartitionRequest(2, 20, (change(members(2)),)),
        AlterPartitionRequest(1, 10, (change(members(1)),)),
    ]
    plan = without_pause(plan_alterations(STATE, requests))
    errors = [[one.error for one in answer.partitions] for answer in plan.answer]
    assert errors == [
        [0, 0],
        [ErrorCode.INVALID_REQUEST],
        [ErrorCode.INVALID_UPDATE_VERSION],
    ]
    assert [record.isr for record in plan.state.topics["t"].partitions] == [(1, 2, 3), (1,)]
    assert len(plan.writes) == 2
