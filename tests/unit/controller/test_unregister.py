"""UNREGISTER_BROKER: which brokers are forgotten, and which are not."""

from dataclasses import replace

import pytest

from minibroker.broker.controller import entries
from minibroker.broker.controller.brokers import plan_unregister
from minibroker.broker.controller.state import Admission, Reassignment, Tombstone
from minibroker.broker.metadata.store import Delete
from minibroker.broker.turns import without_pause
from minibroker.protocol.constants import ErrorCode
from minibroker.protocol.messages.brokers import UnregisterBrokerRequest
from minibroker.protocol.messages.topics import DeleteTopicsRequest
from tests.unit.controller.electing import partition, state_of
from tests.unit.controller.fleet import open_fleet

ID = b"t" * 16


def known(state, *nodes):
    """The state, in which these brokers were admitted once."""
    more = {node: Admission(node, 3, "d", 1, "p") for node in nodes}
    return replace(state, admissions={**state.admissions, **more})


def unregister(state, node):
    return plan_unregister(state, UnregisterBrokerRequest(node))


def test_a_broker_that_is_down_and_holds_nothing_is_forgotten():
    """Only its admission goes, and brokers need not be told more than that."""
    state = known(state_of(partition()), 4)
    plan = unregister(state, 4)
    assert plan.answer.error == 0
    assert plan.state == state_of(partition())
    assert plan.writes == (Delete("admissions/4"),)
    assert unregister(plan.state, 4).answer.error == ErrorCode.BROKER_ID_NOT_REGISTERED


@pytest.mark.parametrize(
    ("node", "error", "says"),
    [
        (1, ErrorCode.INVALID_REQUEST, "broker 1 is alive; stop it first"),
        (
            3,
            ErrorCode.INVALID_REQUEST,
            "broker 3 holds 1 replica, of the topics t (1); start it again, reassign its"
            " partitions, or delete these topics",
        ),
        (
            5,
            ErrorCode.BROKER_ID_NOT_REGISTERED,
            "there is no broker 5; known are 1, 2, 3, 4",
        ),
    ],
)
def test_others_are_not_forgotten(node, error, says):
    """A live one, one that holds a replica, and one that nobody knows; each hears why."""
    state = known(state_of(partition(), live=(1, 2)), 4)
    plan = unregister(state, node)
    assert (plan.answer.error, plan.answer.error_message) == (error, says)
    assert (plan.state, plan.writes) == (state, ())


def test_a_broker_that_a_reassignment_needs_is_not_forgotten():
    """Also where the reassignment still waits for its turn. A replica that was removed from it is
    forgotten with it."""
    waiting = replace(partition(), reassignment=Reassignment((1, 2, 3), (1, 2, 4)))
    plan = unregister(known(state_of(waiting), 4), 4)
    assert plan.answer.error == ErrorCode.INVALID_REQUEST
    plan = unregister(known(state_of(replace(partition(), former=(4, 5))), 4), 4)
    assert plan.answer.error == 0
    assert plan.state.topics["t"].partitions[0].former == (5,)
    partition_key = entries.partition_put(b"i" * 16, partition()).key
    assert [write.key for write in plan.writes] == ["admissions/4", partition_key]


def test_deleted_topics_wait_for_it_no_more():
    """A tombstone that waits for it alone goes, another one waits for the others (CTL-15)."""
    stones = {
        ID: Tombstone(ID, "a", 1, (4,)),
        b"u" * 16: Tombstone(b"u" * 16, "b", 1, (1, 4)),
        b"v" * 16: Tombstone(b"v" * 16, "c", 1, (1, 2)),
    }
    state = replace(known(state_of(partition()), 4), tombstones=stones)
    plan = unregister(state, 4)
    assert {key: one.holders for key, one in plan.state.tombstones.items()} == {
        b"u" * 16: (1,),
        b"v" * 16: (1, 2),
    }
    assert plan.writes == (
        Delete("admissions/4"),
        Delete(f"tombstones/{ID.hex()}"),
        entries.tombstone_put(Tombstone(b"u" * 16, "b", 1, (1,))),
    )


async def test_a_forgotten_broker_may_come_back(autojump_clock):
    """The tombstone that all others have obeyed goes with it; it is admitted as a new broker."""
    async with open_fleet(4) as fleet:
        await fleet.create(replicas=4)
        await fleet[4].kill()
        await fleet.settled()
        controller = fleet.controller.node
        refused = await controller.submit(UnregisterBrokerRequest(4)).wait()
        assert refused.error == ErrorCode.INVALID_REQUEST
        await controller.submit(DeleteTopicsRequest(("t",))).wait()
        await fleet.settled()
        assert len((await fleet.state()).tombstones) == 1
        assert (await controller.submit(UnregisterBrokerRequest(4)).wait()).error == 0

        async def is_forgotten():
            state = await fleet.state()
            return not state.tombstones and 4 not in state.admissions

        await fleet.until(is_forgotten, "forgotten")
        await fleet[4].start()
        await fleet.settled()
        assert (
            4 in without_pause(entries.read_state((await fleet.store.get("")).entries)).admissions
        )
