"""Reassignments in a cluster: what brokers are told and delete; what a next controller finds."""

from contextlib import suppress

import pytest
import trio

from minibroker.protocol.constants import ApiKey, ErrorCode
from minibroker.protocol.messages.leaders import HandOverRequest
from minibroker.protocol.messages.reassignments import (
    AlterPartitionReassignmentsRequest,
    ListPartitionReassignmentsRequest,
    PartitionReassignment,
)
from tests.unit.controller.fleet import T0, Fleet, open_fleet

NEVER = {"auto_leader_rebalance_enable": "false"}
STORY_S = 30.0  # of virtual time
STRIDE = 17  # of the steps that `make test` takes


async def reassign(fleet: Fleet, *replicas: int) -> int:
    """Ask until there is an answer, for t-0; its error. Without replicas: cancel."""
    wanted = PartitionReassignment(*T0, replicas or None)
    request = AlterPartitionReassignmentsRequest((wanted,), 5_000)
    while True:
        key = ApiKey.ALTER_PARTITION_REASSIGNMENTS
        try:
            answer = await fleet.running[-1].node.call(key, request)
        except OSError:
            await trio.sleep(0.05)
            continue
        if not answer.error:
            return answer.partitions[0].error
        await trio.sleep(0.05)


async def join(fleet: Fleet, *wanted: int) -> None:
    """Have each of these replicas in sync, as the leader asks for it once they have copied."""
    while True:
        record = await fleet.record()
        assigned = [node for node in record.replicas if node in wanted]
        missing = [node for node in assigned if node not in record.isr and fleet[node].is_running]
        if not missing:
            return
        if record.leader >= 0 and fleet[record.leader].is_running:
            with suppress(OSError), trio.move_on_after(0.5):
                await fleet.alter_isr(record.leader, *record.isr, missing[0])
        await trio.sleep(0.05)


async def ended(fleet: Fleet) -> None:
    """Until no reassignment is under way and every former replica is deleted."""

    async def is_ended() -> bool:
        record = await fleet.record()
        return record.reassignment is None and not record.former

    await fleet.until(is_ended, "no reassignment")


def holders(fleet: Fleet) -> list[int]:
    """The brokers that have a log of t-0."""
    return [node for node, broker in fleet.brokers.items() if T0 in broker.directory]


async def test_a_partition_moves_to_other_brokers(autojump_clock):
    """All of its replicas: the leader hands over, each old broker deletes its own."""
    async with open_fleet(4, **NEVER) as fleet:
        await fleet.create(replicas=2)
        old = await fleet.record()
        target = tuple(node for node in (1, 2, 3, 4) if node not in old.replicas)
        assert await reassign(fleet, *target) == 0
        assert (await fleet.record()).replicas == (*target, *old.replicas)
        await fleet.settled()
        assert sorted(holders(fleet)) == [1, 2, 3, 4]
        await join(fleet, *target)
        await ended(fleet)
        await fleet.settled()
        record = await fleet.record()
        assert (record.leader, record.replicas) == (target[0], target)
        assert (record.leader_epoch, record.isr) == (old.leader_epoch + 1, target)
        assert sorted(holders(fleet)) == sorted(target)
        orders = fleet[old.leader].replicas.requests
        handed = [one for one in orders if isinstance(one, HandOverRequest)]
        assert [each.target for one in handed for each in one.partitions] == [target[0]]


async def test_a_broker_that_was_away_deletes_what_left_it(autojump_clock):
    """When it returns, though another broker is the controller by then."""
    async with open_fleet(4, **NEVER) as fleet:
        await fleet.create(replicas=3)
        old = await fleet.record()
        lost = next(node for node in old.replicas[1:] if not fleet[node].node.is_controller)
        kept = tuple(node for node in old.replicas if node != lost)
        target = (*kept, *(node for node in (1, 2, 3, 4) if node not in old.replicas))
        await fleet[lost].kill()
        await fleet.settled()
        assert await reassign(fleet, *target) == 0
        await join(fleet, *target)

        async def is_waiting() -> bool:
            record = await fleet.record()
            return (record.replicas, record.former) == (target, (lost,))

        await fleet.until(is_waiting, "its replica has left")
        await fleet.controller.kill()
        await fleet[lost].start()
        for broker in fleet.brokers.values():
            if not broker.is_running:
                await broker.start()
        await ended(fleet)
        await fleet.settled()
        assert sorted(holders(fleet)) == sorted(target)


async def test_a_leader_that_is_behind_with_its_target_is_asked_again(autojump_clock):
    """It leads on, accepts acks=1 in between, and nothing is removed before the target has all."""
    async with open_fleet(4, **NEVER) as fleet:
        await fleet.create(replicas=1)
        old = await fleet.record()
        target = next(node for node in (1, 2, 3, 4) if node != old.leader)
        fleet[old.leader].replicas.behind.add(target)
        assert await reassign(fleet, target) == 0
        await join(fleet, target)
        await trio.sleep(5.0)
        assert (await fleet.record()).leader == old.leader
        fleet[old.leader].replicas.behind.clear()
        await ended(fleet)
        assert (await fleet.record()).leader == target


async def test_other_brokers_are_told_what_is_under_way(autojump_clock):
    """The controller lists it; who asks another broker is sent to the controller."""
    async with open_fleet(4, **NEVER) as fleet:
        await fleet.create(replicas=1)
        old = await fleet.record()
        target = next(node for node in (1, 2, 3, 4) if node != old.leader)
        await reassign(fleet, target)
        key, request = ApiKey.LIST_PARTITION_REASSIGNMENTS, ListPartitionReassignmentsRequest()
        (one,) = (await fleet.running[0].node.call(key, request)).partitions
        assert (one.replicas, one.adding) == ((target, old.leader), (target,))
        assert one.removing == (old.leader,)
        other = next(broker for broker in fleet.running if not broker.node.is_controller)
        answer = await other.node.submit(request).wait()
        assert (answer.error, answer.partitions) == (ErrorCode.NOT_CONTROLLER, ())
        assert await reassign(fleet) == 0
        assert await reassign(fleet) == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
        assert (await fleet.record()).replicas == old.replicas


async def copy(fleet: Fleet) -> None:
    """Have every replica in sync, for ever."""
    while True:
        await join(fleet, 1, 2, 3, 4)
        await trio.sleep(0.05)


async def scenario(fleet: Fleet) -> tuple[int, ...]:
    """A move, another one that is replaced, and one that is cancelled; where it is to end."""
    record = await fleet.record()
    first = tuple(node for node in (1, 2, 3, 4) if node not in record.replicas)
    second = (record.replicas[0], first[1])
    await reassign(fleet, *first)
    await ended(fleet)
    await reassign(fleet, *record.replicas)
    await reassign(fleet, *second)
    await ended(fleet)
    await reassign(fleet, first[0], second[1])
    await reassign(fleet)
    await ended(fleet)
    return (await fleet.record()).replicas


async def run_scenario(dies_at: int) -> int:
    """How many steps it took; checked at the end."""
    async with open_fleet(4, **NEVER) as fleet:
        await fleet.create(replicas=2)
        began_at = fleet.steps
        fleet.dies_at = began_at + dies_at
        target: tuple[int, ...] = ()
        with trio.fail_after(STORY_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(restart, fleet)
                nursery.start_soon(copy, fleet)
                target = await scenario(fleet)
                nursery.cancel_scope.cancel()
        count = fleet.steps - began_at
        fleet.dies_at = -1
        for broker in fleet.brokers.values():
            if not broker.is_running:
                await broker.start()
        await ended(fleet)
        await join(fleet, *target)
        await fleet.settled()
        record = await fleet.record()
        assert record.replicas == target
        assert len(target) == 2
        assert record.leader in target
        assert sorted(holders(fleet)) == sorted(target)
        return count


async def restart(fleet: Fleet) -> None:
    """Start what has died again, after a while: a move needs all of its brokers."""
    while True:
        await trio.sleep(3.0)
        for broker in fleet.brokers.values():
            if not broker.is_running:
                await broker.start()


@pytest.mark.parametrize("stride", [STRIDE, pytest.param(1, marks=pytest.mark.soak)])
async def test_the_controller_dies_at_every_step_of_reassignments(autojump_clock, stride):
    """Q2: the next one continues from the store alone, wherever the old one stopped."""
    step = 1
    while await run_scenario(step) >= step:
        step += stride
    assert step > 20
