"""How leaderships move between brokers that live: the leader is told first, then the target leads,
at once or not at all."""

import pytest
import trio

from minibroker.broker.controller.handovers import DECISION_S_MAX, HANDOVER_S_MAX, LEAVING_S_MAX
from minibroker.protocol.constants import ApiKey, ErrorCode
from minibroker.protocol.messages.control import (
    AlterPartitionRequest,
    IsrMember,
    LeaderAndIsrRequest,
    PartitionChange,
)
from minibroker.protocol.messages.leaders import ElectLeadersRequest, HandOverRequest
from minibroker.protocol.messages.topics import CreateTopicsRequest, NewTopic
from minibroker.protocol.types import TopicPartition
from tests.unit.controller.fleet import open_fleet

NEVER = {"auto_leader_rebalance_enable": "false"}
SOON = {"leader_imbalance_check_interval_seconds": "5"}


async def misplace(fleet, partitions=6):
    """Make a topic, and have one broker lead nothing; its node id."""
    await fleet.create(partitions=partitions, replicas=3)
    lost = next(one.node_id for one in fleet.running if not one.node.is_controller)
    await fleet[lost].kill()
    await fleet.settled()
    await fleet[lost].start()
    await fleet.settled()
    return lost


async def rejoin(fleet, lost):
    """Have the returned broker in every ISR, as leaders ask for it once it has copied."""
    state = await fleet.state()
    topic = state.topics["t"]
    for record in topic.partitions:
        if lost not in record.replicas:
            continue
        change = PartitionChange(
            "t",
            topic.id,
            record.number,
            record.leader_epoch,
            record.partition_epoch,
            tuple(IsrMember(node) for node in sorted({*record.isr, lost})),
        )
        node = fleet[record.leader].node
        request = AlterPartitionRequest(record.leader, node.broker_epoch, (change,))
        answer = await node.call(ApiKey.ALTER_PARTITION, request)
        assert not answer.partitions[0].error
    await fleet.settled()


def misplaced(state):
    return [name for name, record in state.partitions() if record.leader != record.replicas[0]]


async def test_the_leader_is_told_first(autojump_clock):
    """HAND_OVER reaches the leader before anybody is told of another one; then the preferred
    replicas lead, everybody knows, and the ISR is as before."""
    async with open_fleet(**NEVER) as fleet:
        lost = await misplace(fleet)
        await rejoin(fleet, lost)
        before = await fleet.state()
        wanted = misplaced(before)
        assert len(wanted) == 2
        for broker in fleet.running:
            broker.replicas.requests.clear()
        answer = await fleet.controller.node.submit(ElectLeadersRequest()).wait()
        assert sorted((one.topic, one.partition) for one in answer.partitions) == wanted
        assert not any(one.error for one in answer.partitions)
        state = await fleet.state()
        assert misplaced(state) == []
        assert all(broker.leaders() == fleet[1].leaders() for broker in fleet.running)
        for name in wanted:
            old = before.partition(name)
            assert state.partition(name).isr == old.isr
            told = [
                type(one)
                for one in fleet[old.leader].replicas.requests
                if isinstance(one, HandOverRequest | LeaderAndIsrRequest)
                and name in {(each.topic, each.partition) for each in one.partitions}
            ]
            assert told == [HandOverRequest, LeaderAndIsrRequest]
        again = await fleet.controller.node.submit(ElectLeadersRequest()).wait()
        assert again.partitions == ()


async def test_a_target_that_is_behind_does_not_lead(autojump_clock):
    """Then the leader is told to lead on, and the answer says why; others move all the same."""
    async with open_fleet(**NEVER) as fleet:
        lost = await misplace(fleet)
        await rejoin(fleet, lost)
        wanted = misplaced(await fleet.state())
        slow = (await fleet.state()).partition(wanted[0]).leader
        fleet[slow].replicas.behind.add(lost)
        began_at = trio.current_time()
        answer = await fleet.controller.node.submit(ElectLeadersRequest()).wait()
        assert HANDOVER_S_MAX <= trio.current_time() - began_at < HANDOVER_S_MAX + 0.5
        late = misplaced(await fleet.state())
        assert late == [(one.topic, one.partition) for one in answer.partitions if one.error]
        assert late
        code = ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
        assert {one.error for one in answer.partitions} <= {0, code}
        orders = [one for one in fleet[slow].replicas.requests if isinstance(one, HandOverRequest)]
        assert {each.target for each in orders[-1].partitions} == {-1}


async def test_what_a_leader_holds_outlasts_the_election(autojump_clock):
    """It holds until the election can be written no more: the wait, the decision, a session."""
    async with open_fleet(**NEVER) as fleet:
        await rejoin(fleet, await misplace(fleet))
        await fleet.controller.node.submit(ElectLeadersRequest()).wait()
        holds = [
            request.hold_ms
            for broker in fleet.running
            for request in broker.replicas.requests
            if isinstance(request, HandOverRequest)
        ]
        whole = 1000 * (HANDOVER_S_MAX + DECISION_S_MAX + 1.0)
        assert holds
        assert all(whole - 500 < hold <= whole for hold in holds)


async def test_an_election_that_comes_too_late_is_not_written(autojump_clock):
    """The leader leads as before once its order has ended, and acknowledges acks=1 again. So a
    controller whose store was slow for so long does not elect the target: not all of what the
    leader has acknowledged since is there."""
    async with open_fleet(**NEVER) as fleet:
        await rejoin(fleet, await misplace(fleet))
        before = await fleet.state()
        wanted = misplaced(before)
        controller = fleet.controller
        transact = controller.store.transact

        async def transact_slowly(compare, writes):
            controller.store.transact = transact
            await trio.sleep(HANDOVER_S_MAX + DECISION_S_MAX + 0.1)
            return await transact(compare, writes)

        controller.store.transact = transact_slowly
        slow = controller.node.submit(CreateTopicsRequest((NewTopic("slow"),)))
        answer = await controller.node.submit(ElectLeadersRequest()).wait()
        assert not (await slow.wait()).topics[0].error
        code = ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
        told = [((one.topic, one.partition), one.error) for one in answer.partitions]
        assert told == [(name, code) for name in wanted]
        state = await fleet.state()
        assert [state.partition(name) for name in wanted] == [
            before.partition(name) for name in wanted
        ]
        await controller.node.submit(ElectLeadersRequest()).wait()
        assert misplaced(await fleet.state()) == []


async def test_leaders_come_back_by_themselves(autojump_clock):
    """After the interval, in which brokers stayed the same; without the property never."""
    for settings, is_back in ((SOON, True), (NEVER, False)):
        async with open_fleet(**settings) as fleet:
            lost = await misplace(fleet)
            await trio.sleep(4.0)
            await rejoin(fleet, lost)
            assert misplaced(await fleet.state())
            await trio.sleep(6.0)
            assert (misplaced(await fleet.state()) == []) == is_back


async def test_a_broker_that_comes_and_goes_puts_it_off(autojump_clock):
    """Brokers that are restarted one after another are left alone until that is over."""
    async with open_fleet(**SOON) as fleet:
        await rejoin(fleet, await misplace(fleet))
        await fleet.add(4, **SOON)
        for _ in range(4):
            await trio.sleep(4.0)
            assert misplaced(await fleet.state())
            await fleet[4].kill()
            await fleet[4].start()
            await fleet.settled()
        await trio.sleep(6.0)
        assert misplaced(await fleet.state()) == []


async def test_a_broker_that_stops_hands_over_first(autojump_clock):
    """CTL-11: as in a preferred election; a target that stays behind leads after a while."""
    async with open_fleet(**NEVER) as fleet:
        await fleet.create(partitions=3, replicas=3)
        leaving = next(one for one in fleet.running if not one.node.is_controller)
        name = next(name for name, node in leaving.leaders().items() if node == leaving.node_id)
        leaving.replicas.requests.clear()
        await leaving.node.leave()
        told = [
            type(one)
            for one in leaving.replicas.requests
            if isinstance(one, HandOverRequest | LeaderAndIsrRequest)
            and name in {(each.topic, each.partition) for each in one.partitions}
        ]
        assert told[:2] == [HandOverRequest, LeaderAndIsrRequest]
        other = next(one for one in fleet.running if one is not leaving)
        other.replicas.behind |= {1, 2, 3}
        began_at = trio.current_time()
        await other.node.leave()
        assert LEAVING_S_MAX <= trio.current_time() - began_at < LEAVING_S_MAX + 1
        assert other.node_id not in [
            record.leader for _, record in (await fleet.state()).partitions()
        ]


async def test_a_leader_that_does_not_answer_leads_on(autojump_clock):
    """Its partitions are not moved, and the others are answered for in time."""
    async with open_fleet(**NEVER) as fleet:
        lost = await misplace(fleet)
        await rejoin(fleet, lost)
        controller = fleet.controller
        silent = next(
            one.node_id for one in fleet.running if one.node_id not in (lost, controller.node_id)
        )
        fleet.network.hold(controller.name, fleet[silent].name)
        began_at = trio.current_time()
        answer = await controller.node.submit(ElectLeadersRequest()).wait()
        assert trio.current_time() - began_at < 10
        state = await fleet.state()
        for one in answer.partitions:
            record = state.partition(TopicPartition(one.topic, one.partition))
            assert bool(one.error) == (record.leader == silent)
        fleet.network.heal()


@pytest.mark.parametrize("stride", [3, pytest.param(1, marks=pytest.mark.soak)])
async def test_the_controller_dies_at_every_step_of_an_election(autojump_clock, stride):
    """Each partition is led by the old leader or by the preferred one, all know, and whoever is
    controller next does the rest when it is asked."""
    dies_at, steps = 0, 1
    while dies_at < steps:
        async with open_fleet(4, **NEVER) as fleet:
            await rejoin(fleet, await misplace(fleet))
            before = await fleet.state()
            began_at = fleet.steps
            fleet.dies_at = began_at + dies_at
            fleet.controller.node.submit(ElectLeadersRequest())
            await trio.sleep(3)
            steps = max(steps, fleet.steps - began_at)
            fleet.dies_at = -1
            await fleet.settled()
            for broker in fleet.brokers.values():
                if not broker.is_running:
                    await broker.start()
            await fleet.settled()
            for name, record in (await fleet.state()).partitions():
                assert record.leader in before.partition(name).replicas
                assert record.leader_epoch - before.partition(name).leader_epoch <= 2
            dies_at += stride
    assert dies_at > 5
