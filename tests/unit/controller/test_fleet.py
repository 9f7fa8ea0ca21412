"""Several brokers on one store, on virtual time: elections, returns, pushes, deletions."""

import trio

from minibroker.protocol.types import TopicPartition
from tests.unit.controller.fleet import open_fleet


async def test_one_is_elected_and_all_know(autojump_clock):
    """Of several brokers exactly one is controller; each knows all others, in one epoch."""
    async with open_fleet() as fleet:
        assert fleet.controller.node_id == 1
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
        fleet[2].kill()
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
        fleet[1].kill()
        await fleet.settled()
        image = fleet[2].replicas.image
        assert image.controller_id in (2, 3)
        assert image.controller_epoch == 1
        assert 1 not in fleet[3].leaders().values()
