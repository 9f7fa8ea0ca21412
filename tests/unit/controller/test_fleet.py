"""Several brokers on one store, on virtual time: elections, returns, pushes, deletions."""

import pytest
import trio

from minibroker.broker.controller import entries
from minibroker.broker.controller.controller_lease import ControllerLease
from minibroker.broker.controller.requests import is_refused
from minibroker.broker.metadata.store import NO_LEASE, Put
from minibroker.protocol.constants import NO_NODE, ErrorCode
from minibroker.protocol.messages.configs import (
    AlterConfigsRequest,
    ConfigChange,
    TopicConfigChanges,
)
from minibroker.protocol.messages.control import (
    AlterPartitionRequest,
    ControlledShutdownRequest,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    UpdateMetadataRequest,
)
from minibroker.protocol.messages.leaders import UNCLEAN, ElectLeadersRequest
from minibroker.protocol.messages.topics import (
    CreateTopicsRequest,
    DeleteTopicsRequest,
    NewTopic,
)
from minibroker.protocol.types import TopicPartition
from tests.unit.controller.fake_replicas import FakeReplicas
from tests.unit.controller.fleet import T0, open_fleet


async def test_one_is_elected_and_all_know(autojump_clock):
    """Of several brokers exactly one is controller; each knows all others, in one epoch."""
    async with open_fleet() as fleet:
        assert fleet.controller.node_id == 1
        assert fleet[2].node.statistics() is None
        assert fleet[1].node.statistics() == (0, 0, 0, (3, 0, 0, 0, 0, 0, 0))
        for broker in fleet.running:
            image = broker.replicas.image
            assert (image.controller_id, image.controller_epoch) == (1, 0)
            assert sorted(image.brokers) == [1, 2, 3]


async def test_a_topic_is_known_everywhere_when_it_is_answered_for(autojump_clock):
    """CTL-01: the first replica leads, all are in sync, epoch 0; every broker was told."""
    async with open_fleet() as fleet:
        await fleet.create(partitions=3, replicas=3)
        await fleet.settled()
        for number in range(3):
            record = await fleet.record(TopicPartition("t", number))
            assert record.leader == record.replicas[0]
            assert record.isr == record.replicas
            assert (record.leader_epoch, record.partition_epoch) == (0, 0)
        assert sorted(fleet[2].leaders().values()) == [1, 2, 3]


async def test_a_dead_leader_is_replaced(autojump_clock):
    """CTL-02: the next live in-sync replica in order leads, in the next epoch, without the dead."""
    async with open_fleet() as fleet:
        await fleet.create(partitions=3, replicas=3)
        before = await fleet.state()
        await fleet[2].kill()
        killed_at = trio.current_time()
        await fleet.settled()
        assert trio.current_time() - killed_at < 1.2
        for name, record in (await fleet.state()).partitions():
            old = before.partition(name)
            assert 2 not in record.isr
            assert record.partition_epoch == 1
            order = [node for node in old.replicas if node != 2]
            if old.leader == 2:
                assert (record.leader, record.leader_epoch) == (order[0], 1)
            else:
                assert (record.leader, record.leader_epoch) == (old.leader, 0)


async def test_a_dead_controller_is_replaced(autojump_clock):
    """When the controller dies with what it leads, the next one settles both, in a higher epoch."""
    async with open_fleet() as fleet:
        await fleet.create(partitions=3, replicas=3)
        await fleet[1].kill()
        await fleet.settled()
        image = fleet[2].replicas.image
        assert image.controller_id in (2, 3)
        assert image.controller_epoch == 1
        assert 1 not in fleet[3].leaders().values()


async def test_a_return_with_all_its_data(autojump_clock):
    """CTL-14: a leader that restarts before anybody saw it dead has a new epoch and stays."""
    async with open_fleet() as fleet:
        await fleet.create(partitions=3, replicas=3)
        await fleet[2].kill()
        await fleet[2].start()
        await fleet.settled()
        for _, record in (await fleet.state()).partitions():
            assert sorted(record.isr) == [1, 2, 3]
            assert record.leader == record.replicas[0]
            assert record.leader_epoch == (record.leader == 2)


async def test_an_unsafe_return_is_seen(autojump_clock):
    """K2: coming back before the lease ran out does not hide a lost tail."""
    async with open_fleet() as fleet:
        await fleet.create(partitions=3, replicas=3)
        await fleet[2].kill()
        await fleet[2].start(tail_safe=False)
        await fleet.settled()
        assert all(2 not in record.isr for _, record in (await fleet.state()).partitions())


async def test_a_broker_cut_off_from_the_store_is_replaced(autojump_clock):
    """It stops believing in its lease before the others do, and joins again when it can."""
    async with open_fleet() as fleet:
        await fleet.create(partitions=3, replicas=3)
        fleet[1].store.is_cut = True
        cut_at = trio.current_time()
        fleet[1].is_running = False

        async def is_doubtful():
            return not fleet[1].node.may_decide_alone(trio.current_time())

        await fleet.until(is_doubtful, "doubt")
        assert 1 in (await fleet.store.get("brokers/")).entries or trio.current_time() - cut_at < 1
        await fleet.settled()
        assert fleet.controller.node_id != 1
        fleet[1].store.is_cut = False
        fleet[1].is_running = True
        epoch = fleet[1].node.broker_epoch
        await fleet.settled()
        assert fleet[1].node.broker_epoch > epoch
        assert fleet[1].node.may_decide_alone(trio.current_time())
        for _, record in (await fleet.state()).partitions():
            assert 1 not in record.isr


async def test_a_topic_deleted_while_a_broker_is_away(autojump_clock):
    """CTL-15: the name is free at once, the tombstone waits, the returning broker deletes."""
    async with open_fleet() as fleet:
        old = await fleet.create(replicas=3)
        await fleet[3].kill()
        await fleet.settled()
        job = fleet.controller.node.submit(DeleteTopicsRequest(("t",)))
        assert (await job.wait()).topics[0].error == 0
        new = await fleet.create(replicas=2)
        assert new.topic_id != old.topic_id
        assert fleet[3].directory == {T0: old.topic_id}
        assert list((await fleet.state()).tombstones) == [old.topic_id]
        await fleet[3].start()

        async def is_forgotten():
            return not (await fleet.state()).tombstones

        await fleet.until(is_forgotten, "no tombstone")
        assert fleet[3].directory == {}
        await fleet.settled()


async def test_a_name_deleted_and_made_again(autojump_clock):
    """RM-12: the old replicas are deleted before the new ones of the same name are made."""
    async with open_fleet() as fleet:
        await fleet.create(replicas=3)
        for _ in range(3):
            deletion = fleet.controller.node.submit(DeleteTopicsRequest(("t",)))
            await fleet.create(partitions=2, replicas=3)
            assert (await deletion.wait()).topics[0].error == 0
            await fleet.settled()
        assert not any(broker.replicas.errors for broker in fleet.running)


async def test_a_full_disk_is_told_and_tried_again(autojump_clock):
    """A leader without room: the topic exists, its partition is offline, later it is made."""
    async with open_fleet(1) as fleet:
        fleet[1].replicas.errors[T0] = ErrorCode.KAFKA_STORAGE_ERROR
        job = fleet[1].node.submit(CreateTopicsRequest((NewTopic("t"),)))
        result = (await job.wait()).topics[0]
        assert result.error == ErrorCode.KAFKA_STORAGE_ERROR
        assert "offline until there is" in result.error_message
        del fleet[1].replicas.errors[T0]
        await fleet.settled()


async def test_unclean_election_may_be_allowed_later(autojump_clock):
    """CTL-04: a partition waits for its ISR until the topic's setting lets another one lead."""
    async with open_fleet() as fleet:
        await fleet.create(replicas=2)
        first, second = (await fleet.record()).replicas
        await fleet.alter_isr(first, first)
        await fleet[first].kill()
        await fleet.settled()
        assert (await fleet.record()).leader == NO_NODE
        change = ConfigChange("unclean.leader.election.enable", "true")
        request = AlterConfigsRequest((TopicConfigChanges("t", (change,)),))
        await fleet.controller.node.submit(request).wait()
        await fleet.settled()
        record = await fleet.record()
        assert (record.leader, record.isr, record.leader_epoch) == (second, (second,), 2)


@pytest.mark.parametrize("is_named", [False, True])
async def test_an_operator_elects_uncleanly(is_named, autojump_clock):
    """The replica with the longest log leads, or the named one; all brokers know, and that logs of
    earlier epochs may be cut; the answer to a second request is that it is not needed."""
    async with open_fleet() as fleet:
        await fleet.create(partitions=1, replicas=3)
        first, second, third = (await fleet.record()).replicas
        fleet[second].tails[T0], fleet[third].tails[T0] = (0, 7), (0, 9)
        await fleet.alter_isr(first, first)
        await fleet[first].kill()
        await fleet.settled()
        leader = second if is_named else third
        wanted = second if is_named else NO_NODE
        assert (await fleet.record()).leader == NO_NODE
        request = ElectLeadersRequest((T0,), election_type=UNCLEAN, leader=wanted)
        answer = await fleet.controller.node.submit(request).wait()
        assert [one.error for one in answer.partitions] == [0]
        record = await fleet.record()
        assert (record.leader, record.isr) == (leader, (leader,))
        assert record.unclean_epoch == record.leader_epoch
        for one in fleet.running:
            assert one.replicas.roles[T0].unclean_epoch == record.leader_epoch
        again = await fleet.controller.node.submit(request).wait()
        assert [one.error for one in again.partitions] == [ErrorCode.ELECTION_NOT_NEEDED]


async def test_a_leader_changes_its_isr_through_another_broker(autojump_clock):
    """ALTER_PARTITION goes to whoever is controller; all brokers hear of the outcome (CTL-09)."""
    async with open_fleet() as fleet:
        await fleet.create(partitions=1, replicas=3)
        leader = (await fleet.record()).leader
        altered = await fleet.alter_isr(leader, leader)
        assert (altered.error, altered.isr, altered.partition_epoch) == (0, (leader,), 1)
        await fleet.settled()


async def test_no_controller_answers_elsewhere(autojump_clock):
    """CTL-12: at any broker but the controller a request is refused with NOT_CONTROLLER."""
    async with open_fleet() as fleet:
        for request in (
            CreateTopicsRequest((NewTopic("t"),)),
            AlterPartitionRequest(2, fleet[2].node.broker_epoch),
            ControlledShutdownRequest(2, fleet[2].node.broker_epoch),
        ):
            job = fleet[2].node.submit(request)
            assert is_refused(job.result, ErrorCode.NOT_CONTROLLER)


async def test_an_old_controller_writes_nothing(autojump_clock):
    """A controller that was cut off and replaced is refused by the store, and by the brokers."""
    async with open_fleet() as fleet:
        await fleet.create(replicas=3)
        old = fleet[1]
        old.store.is_cut = True
        job = old.node.submit(CreateTopicsRequest((NewTopic("u"),)))
        old.is_running = False
        await fleet.settled()
        assert fleet.controller.node.is_controller
        old.store.is_cut = False
        old.is_running = True
        result = await job.wait()
        assert result.topics[0].error == ErrorCode.NOT_CONTROLLER
        await fleet.settled()
        assert "u" not in (await fleet.state()).topics


async def test_a_replaced_controller_refuses_nothing_from_memory(autojump_clock):
    """A controller that was replaced answers no request, not even one that needs no write: the
    topic that it knows may be deleted."""
    async with open_fleet() as fleet:
        await fleet.create(replicas=3)
        await fleet.store.transact([], entries.active_controller_puts(9, 7, NO_LEASE))
        assert fleet[1].node.is_controller
        job = fleet[1].node.submit(CreateTopicsRequest((NewTopic("t"),)))
        (result,) = (await job.wait()).topics
        assert result.error == ErrorCode.NOT_CONTROLLER


async def test_who_lost_the_office_writes_nothing(autojump_clock):
    """Its lease still lives, but the controller key is another's: the transaction is refused, and
    that is the first it hears of it; the request is answered with NOT_CONTROLLER."""
    async with open_fleet() as fleet:
        await fleet.store.transact([], entries.active_controller_puts(9, 7, NO_LEASE))
        before = await fleet.state()
        assert fleet[1].node.is_controller
        job = fleet[1].node.submit(CreateTopicsRequest((NewTopic("u"),)))
        (result,) = (await job.wait()).topics
        assert result.error == ErrorCode.NOT_CONTROLLER
        await trio.sleep(3)
        assert not any(broker.node.is_controller for broker in fleet.running)
        assert await fleet.state() == before


async def test_under_a_controller_that_does_not_fence_nobody_lapses(autojump_clock):
    """One of an earlier version: it probes nobody, so the lease in the store alone counts. Brokers
    whose controller lease had lapsed before register anew: it tells nobody when roles stand."""
    async with open_fleet() as fleet:
        earlier = Put("controller", b'{"node_id": 9}')
        await fleet.store.transact([], [earlier])
        for _ in range(100):
            await trio.sleep(0.1)
            now = trio.current_time()
            assert all(broker.node.may_decide_alone(now) for broker in fleet.running)
        epoch = fleet[2].node.broker_epoch
        fleet[2].node._controller_lease = ControllerLease(2.0)
        assert not fleet[2].node.is_controller_lease_current(trio.current_time())
        await trio.sleep(1)
        assert fleet[2].node.broker_epoch > epoch
        assert fleet[2].node.may_decide_alone(trio.current_time())


async def test_full_state_after_a_new_controller(autojump_clock):
    """MET-01: a new controller sends a full image and all roles, so that ghosts vanish."""
    async with open_fleet() as fleet:
        await fleet.create(partitions=3, replicas=3)
        fleet[3].replicas.requests.clear()
        await fleet[1].kill()
        await fleet.settled()
        metadata, *rest = fleet[3].replicas.requests
        assert (type(metadata), metadata.begins_image) == (UpdateMetadataRequest, True)
        roles = next(one for one in rest if isinstance(one, LeaderAndIsrRequest))
        assert roles.completes_roles
        assert len(roles.partitions) == 3


async def test_a_process_that_lost_its_session_is_told_what_it_missed(autojump_clock):
    """Not the whole cluster again: the process knows what it has acknowledged."""
    async with open_fleet() as fleet:
        await fleet.create(partitions=300, replicas=3)
        await fleet.create("u", partitions=300, replicas=2)
        fleet[3].store.is_cut = True
        fleet[3].is_running = False
        await fleet.settled()
        fleet[3].replicas.requests.clear()
        fleet[3].store.is_cut = False
        fleet[3].is_running = True
        await fleet.settled()
        told = [one.partitions for one in fleet[3].replicas.requests]
        missed = {name for name, one in (await fleet.state()).partitions() if one.partition_epoch}
        named = {TopicPartition(one.topic, one.partition) for some in told for one in some}
        assert named == missed
        assert not any(
            one.begins_image
            for one in fleet[3].replicas.requests
            if isinstance(one, UpdateMetadataRequest)
        )
        assert fleet[3].replicas.requests[-1].completes_roles


async def test_one_loss_is_one_transaction_and_told_once(autojump_clock):
    """A broker's death with 300 partitions: one write, and each broker is told of each partition
    once, in requests that hold none of them up."""
    async with open_fleet() as fleet:
        await fleet.create(partitions=300, replicas=3)
        await fleet.settled()
        before = (await fleet.store.get("")).revision
        for broker in fleet.running:
            broker.replicas.requests.clear()
        await fleet[2].kill()
        await fleet.settled()
        assert (await fleet.store.get("")).revision == before + 2  # the lease's end, the elections
        for node in (1, 3):
            metadata, *roles = fleet[node].replicas.requests
            assert isinstance(metadata, UpdateMetadataRequest)
            assert len(metadata.partitions) == 300
            assert all(isinstance(request, LeaderAndIsrRequest) for request in roles)
            assert [len(request.partitions) for request in roles] == [80, 80, 80, 60]


async def test_nothing_is_told_after_a_refusal(autojump_clock):
    """A request refused as a whole ends its push: one that completes the roles must not follow a
    part that was not taken, or the logs of that part would be strays."""
    async with open_fleet(2) as fleet:
        await fleet.create(partitions=20, replicas=2)
        replicas, orders = fleet[2].replicas, []

        def refuse_once(request, now):
            orders.append(request)
            if len(orders) == 1:
                return LeaderAndIsrResponse(ErrorCode.STALE_BROKER_EPOCH)
            return FakeReplicas.obey_roles(replicas, request, now)

        async def are_roles_complete():
            return bool(orders) and orders[-1].completes_roles

        replicas.obey_roles = refuse_once
        await fleet[1].kill()
        await fleet[1].start()
        await fleet.until(are_roles_complete, "all roles")
        first, *again = orders
        assert not first.completes_roles
        assert [order.completes_roles for order in again] == [False] * (len(again) - 1) + [True]
        assert sum(len(order.partitions) for order in again) == 20
