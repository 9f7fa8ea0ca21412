"""Brokers that stop cleanly, one or all, and brokers that all come back with something lost."""

import logging

import trio

from minibroker.broker.controller import entries
from minibroker.broker.controller.state import ClosedLog, Departure
from minibroker.protocol.constants import NO_NODE
from tests.unit.controller.fleet import T0, open_fleet


async def test_a_controlled_shutdown_moves_leaders_first(autojump_clock):
    """CTL-11: when `leave` returns, others lead and everybody knows; no lease had to end."""
    async with open_fleet() as fleet:
        await fleet.create(partitions=3, replicas=3)
        began_at = trio.current_time()
        await fleet[1].node.leave()
        assert trio.current_time() - began_at < 0.2
        leaders = [record.leader for _, record in (await fleet.state()).partitions()]
        assert 1 not in leaders
        assert 1 not in fleet[1].leaders().values()
        assert fleet[1].replicas.image.brokers[1].is_shutting_down
        await trio.sleep(0.1)
        assert fleet.controller.node_id != 1
        await fleet[1].kill()
        await fleet[1].node.close()
        await fleet.settled()
        assert trio.current_time() - began_at < 0.5


async def test_who_stops_says_how_far_its_logs_went(autojump_clock):
    """Until it comes back; who is killed says nothing."""

    async def departed():
        return entries.read_departures((await fleet.store.get("")).entries)

    async with open_fleet() as fleet:
        await fleet.create(replicas=3)
        logs = (ClosedLog((await fleet.state()).topics["t"].id, 0, 2, 70),)
        await fleet[1].node.leave()
        epoch = fleet[1].node.broker_epoch
        await fleet[1].kill()
        await fleet[1].node.close(logs)
        await fleet[2].kill()
        assert await departed() == {1: Departure(1, epoch, logs)}
        await fleet[1].start()
        await fleet.settled()
        assert await departed() == {}


async def test_a_stop_while_the_store_is_away_says_nothing(autojump_clock, caplog):
    """The broker stops all the same, and its operator is warned once."""
    async with open_fleet() as fleet:
        await fleet.create(replicas=3)
        await fleet[1].node.leave()
        await fleet[1].kill()
        fleet[1].store.is_cut = True
        await fleet[1].node.close([ClosedLog(b"", 0, 2, 70)])
        assert entries.read_departures((await fleet.store.get("")).entries) == {}
    assert [one.message for one in caplog.records if "could not be withdrawn" in one.message]


async def test_a_last_replica_asks_again(autojump_clock, caplog):
    """CTL-11: while another replica may catch up, the request is repeated after a pause, and an
    operator is warned."""
    async with open_fleet(2) as fleet:
        await fleet.create(replicas=2)
        leader, follower = (await fleet.record()).replicas
        await fleet.alter_isr(leader, leader)
        began_at = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fleet[leader].node.leave)
            await trio.sleep(1)
            assert (await fleet.record()).leader == leader
            assert (await fleet.alter_isr(leader, leader, follower)).error == 0
        assert 5 <= trio.current_time() - began_at < 6
        told = [one for one in caplog.records if "1 partitions are still led" in one.message]
        assert [one.levelname for one in told] == ["WARNING"]
        assert (await fleet.record()).leader == follower


async def test_nobody_to_wait_for(autojump_clock):
    """The pause ends when the last other broker goes: to ask again cannot help any more."""
    async with open_fleet(2) as fleet:
        await fleet.create(replicas=2)
        leader, follower = (await fleet.record()).replicas
        await fleet.alter_isr(leader, leader)
        began_at = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fleet[leader].node.leave)
            await trio.sleep(1)
            await fleet[follower].stop()
        assert trio.current_time() - began_at < 2


async def test_all_stop_at_once(autojump_clock, caplog):
    """Brokers that stop together do not wait for each other to take over, nor is it a warning."""
    caplog.set_level(logging.INFO)
    async with open_fleet() as fleet:
        await fleet.create(partitions=3, replicas=3)
        began_at = trio.current_time()
        async with trio.open_nursery() as nursery:
            for broker in fleet.running:
                nursery.start_soon(broker.stop)
        assert trio.current_time() - began_at < 2
        assert (await fleet.store.get("brokers/")).entries == {}
    told = {one.levelname for one in caplog.records if "are still led here" in one.message}
    assert told == {"INFO"}


async def test_all_lost_their_power(autojump_clock):
    """K2: all come back unsafe, one by one; the one with the most leads once all are there."""
    async with open_fleet() as fleet:
        await fleet.create(replicas=3)
        replicas = (await fleet.record()).replicas
        for broker in fleet.running:
            broker.tails[T0] = (0, {1: 5, 2: 6, 3: 7}[broker.node_id])
            await broker.kill()
        await trio.sleep(1.5)
        for node in (3, 1):
            await fleet[node].start(tail_safe=False)
        await fleet.settled()
        record = await fleet.record()
        assert (record.leader, record.isr) == (NO_NODE, replicas)
        assert sorted(record.unsafe) == [1, 3]
        await fleet[2].start(tail_safe=False)

        async def is_led():
            return (await fleet.record()).leader != NO_NODE

        await fleet.until(is_led, "a leader")
        record = await fleet.record()
        assert (record.leader, record.isr, record.unsafe) == (3, (3,), ())
        await fleet.settled()


async def test_a_log_end_of_a_former_life_does_not_count(autojump_clock):
    """What a broker says of its logs in another registration is not compared."""
    async with open_fleet() as fleet:
        await fleet.create(replicas=3)
        for broker in fleet.running:
            await broker.kill()
        await trio.sleep(1.5)
        for broker in fleet.brokers.values():
            broker.claimed_epoch = 1
            await broker.start(tail_safe=False)
        await trio.sleep(3)
        assert (await fleet.record()).leader == NO_NODE
        for broker in fleet.brokers.values():
            broker.claimed_epoch = None
        await trio.sleep(3)
        assert (await fleet.record()).leader != NO_NODE
