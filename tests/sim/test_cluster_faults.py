"""Processes, machines, wires and clocks that fail in a cluster of three: rows of docs/faults.md.

Each scenario does one harm, and ends with all replicas in sync and equal, and with all that was
acknowledged in its place. Disks have scenarios of their own, in `test_cluster_disks.py`.
"""

import logging

import pytest
import trio

from minibroker.client import Admin
from minibroker.protocol.constants import ACKS_ALL, ACKS_LEADER, NO_NODE, ApiKey, ErrorCode
from minibroker.protocol.messages.control import LeaderAndIsrRequest, PartitionState
from minibroker.protocol.messages.fetch import FetchRequest, PartitionFetch
from minibroker.protocol.messages.produce import PartitionProduce, ProduceRequest
from minibroker.protocol.records.record import encode_batch
from minibroker.testing.disk import Tail
from tests.sim.trial import LAG_S, NAME, SESSION_S, open_trial, play

HOUR_MS = 3_600_000


# -- requests


def test_a_stranger_copies_nothing_and_holds_nothing_back():
    """PAR-19: a fetch from a broker that is no replica is refused, and moves no high watermark."""

    async def scenario() -> None:
        async with open_trial() as trial:
            await trial.send(3)
            epoch = (await trial.agreed()).leader_epoch
            for told, error in (
                (epoch, ErrorCode.UNKNOWN_LEADER_EPOCH),
                (-1, ErrorCode.NOT_LEADER_OR_FOLLOWER),
            ):
                asked = PartitionFetch("t", 0, 0, leader_epoch=told)
                request = FetchRequest(replica_id=9, wait_ms_max=0, partitions=(asked,))
                answer = await trial.ask(trial.leader, ApiKey.FETCH, request)
                (fetched,) = answer.partitions
                assert (fetched.error, len(fetched.records)) == (error, 0)
            await trial.send(3)
            await trial.settle()

    play(scenario)


def test_orders_of_nobody_change_nothing():
    """RM-01 to RM-03: orders of an old controller, for a former registration, and of an old leader
    epoch are refused by a broker at work, and it works on."""

    async def scenario() -> None:
        async with open_trial() as trial:
            await trial.send(3)
            await trial.leader.stop()
            await trial.cluster.start()
            await trial.settle()
            leader, agreed = trial.leader, await trial.agreed()
            epoch = leader.replicas.broker_epoch
            topic_id = trial.partition(leader).topic_id
            other = PartitionState("t", topic_id, 0, 1, 0, 0, agreed.replicas, agreed.replicas)
            for sender, error in (
                ((9, -1, epoch), ErrorCode.STALE_CONTROLLER_EPOCH),
                ((9, 99, epoch - 1), ErrorCode.STALE_BROKER_EPOCH),
            ):
                request = LeaderAndIsrRequest(*sender, (other,))
                answer = await trial.ask(leader, ApiKey.LEADER_AND_ISR, request)
                assert answer.error == error
            in_office = leader.replicas._controller_epoch
            request = LeaderAndIsrRequest(9, in_office, epoch, (other,))
            answer = await trial.ask(leader, ApiKey.LEADER_AND_ISR, request)
            assert answer.partitions[0].error == ErrorCode.FENCED_LEADER_EPOCH
            assert trial.leader is leader
            await trial.send(3)
            await trial.settle()

    play(scenario)


# -- processes


@pytest.mark.parametrize("who", ["leader", "follower", "controller"])
def test_a_killed_broker_is_replaced_and_catches_up(who: str):
    """Kill of a leader, a follower, the controller: others go on within two sessions."""

    async def scenario() -> None:
        async with open_trial() as trial:
            await trial.send(5)
            controller = trial.cluster.broker(await trial.controller())
            victims = {"leader": trial.leader, "follower": trial.followers[0]}
            victim = victims.get(who, controller)
            await victim.kill()
            await trial.send(5, wait_s=LAG_S + 2 * SESSION_S)
            await victim.start()
            await trial.settle()

    play(scenario)


@pytest.mark.parametrize("flush", ["never", "interval", "always"])
def test_all_killed_at_once_come_back(flush: str):
    """Kill of all: what processes wrote is there, and the cluster serves again unaided."""

    async def scenario() -> None:
        async with open_trial(flush=flush) as trial:
            await trial.send(10)
            await trial.cluster.kill()
            await trial.cluster.start()
            await trial.send(5)
            await trial.settle()

    play(scenario)


@pytest.mark.parametrize("who", ["leader", "follower"])
def test_a_process_that_stood_still_finds_itself_replaced(who: str):
    """SIGSTOP past the session: another leads, and who wakes up copies from it."""

    async def scenario() -> None:
        async with open_trial() as trial:
            await trial.send(5)
            victim = trial.leader if who == "leader" else trial.followers[0]
            victim.pause()
            await trial.send(5, wait_s=LAG_S + 3 * SESSION_S)
            victim.resume()
            await trial.send(5)
            await trial.settle()

    play(scenario)


# -- machines


@pytest.mark.parametrize("flush", ["never", "interval", "always"])
@pytest.mark.parametrize("who", ["leader", "follower"])
def test_one_lost_tail_loses_nothing(flush: str, who: str):
    """Power cut of one, whatever `flush`: it may lack its end, so without flush=always it leaves
    the in-sync set, and copies again; it leads nothing before that (K2)."""

    async def scenario() -> None:
        async with open_trial(flush=flush) as trial:
            await trial.send(20)
            victim = trial.leader if who == "leader" else trial.followers[0]
            await trial.power_off(victim, Tail.LOST)
            await victim.start()  # before its lease has ended
            await trial.send(5)
            await trial.settle()

    play(scenario)


def test_all_tails_lost_lose_nothing_with_flush_always():
    """Power cut of all with flush=always: nothing that was acknowledged was in a tail (N1)."""

    async def scenario() -> None:
        async with open_trial(flush="always") as trial:
            await trial.send(20)
            for broker in trial.cluster.brokers:
                await trial.power_off(broker, Tail.LOST)
            await trial.cluster.start()
            await trial.send(5)
            await trial.settle()

    play(scenario)


def test_of_lost_tails_the_longest_log_leads(caplog: pytest.LogCaptureFixture):
    """Power cut of all without flush=always: nobody leads before all are back; then who has the
    most leads, and the log says that something may be lost (K2)."""

    async def scenario() -> None:
        async with open_trial() as trial:
            await trial.send(20)
            for broker in trial.cluster.brokers:
                tail = Tail.KEPT if broker.node_id == 3 else Tail.LOST
                await trial.power_off(broker, tail)
            async with trio.open_nursery() as nursery:
                for node_id in (1, 2):
                    nursery.start_soon(trial.cluster.broker(node_id).start)
            await trio.sleep(5)
            assert (await trial.agreed()).leader == -1
            await trial.cluster.start()
            agreed = await trial.until(lambda agreed: agreed.leader >= 0)
            assert agreed.leader == 3
            await trial.send(5)
            await trial.settle()
            assert len(trial.acked) == 25

    play(scenario)
    assert "replicas on brokers 3" in caplog.text
    assert "may have lost the end of its log" in caplog.text


@pytest.mark.parametrize("is_unclean", [True, False])
def test_who_was_not_in_sync_leads_only_where_that_is_allowed(
    is_unclean: bool, caplog: pytest.LogCaptureFixture
):
    """Both in-sync replicas die. With unclean election the third one leads, and what only those two
    had is cut when they return, all replicas being equal again; without it they are waited for."""

    async def scenario() -> None:
        settings = {"unclean_leader_election_enable": str(is_unclean).lower()}
        async with open_trial(is_watched=False, **settings) as trial:
            await trial.send(5)
            in_sync, behind = [trial.leader, trial.followers[0]], trial.followers[1]
            behind.pause()
            await trial.until(lambda agreed: behind.node_id not in agreed.isr)
            await trial.send(5)
            for broker in in_sync:
                await broker.kill()
            behind.resume()
            await trio.sleep(3 * SESSION_S)
            agreed = await trial.agreed()
            assert agreed.leader == (behind.node_id if is_unclean else -1)
            for broker in in_sync:
                await broker.start()
            if is_unclean:
                trial.forget_from(5)
            await trial.send(5)
            await trial.settle()
            assert len(trial.acked) == (10 if is_unclean else 15)

    play(scenario)
    assert ("unclean election of broker" in caplog.text) == is_unclean
    assert ("cut from 10 to 5, where the log of broker" in caplog.text) == is_unclean


def test_an_operator_elects_who_was_not_in_sync(caplog: pytest.LogCaptureFixture):
    """Both in-sync replicas go. A request elects the third one, though the topic does not allow
    it; what only those two had is cut when they return, below the high watermark that one of them
    knows, all replicas being equal again."""

    async def scenario() -> None:
        async with open_trial(is_watched=False) as trial:
            await trial.send(5)
            in_sync, behind = [trial.leader, trial.followers[0]], trial.followers[1]
            behind.pause()
            await trial.until(lambda agreed: behind.node_id not in agreed.isr)
            await trial.send(5)
            await in_sync[0].kill()
            await trial.until(lambda agreed: agreed.isr == (in_sync[1].node_id,))
            await in_sync[1].stop()  # its high watermark is on the disk
            behind.resume()
            await trial.until(lambda agreed: agreed.leader == NO_NODE)
            async with Admin(behind.address, seams=trial.world.seams("operator")) as admin:
                report = await admin.elect_leaders([NAME], is_unclean=True)
            assert report.elected == (NAME,)
            assert (await trial.agreed()).leader == behind.node_id
            for broker in in_sync:
                await broker.start()
            trial.forget_from(5)
            await trial.send(5)
            await trial.settle()
            assert len(trial.acked) == 10

    play(scenario)
    assert "unclean election of broker" in caplog.text
    assert "cut from 10 to 5, where the log of broker" in caplog.text


# -- wires, the store, clocks


@pytest.mark.parametrize("how", ["cut", "hold"])
def test_a_leader_without_the_store_is_replaced(how: str):
    """A broker cut off from the store loses its lease, and takes no acks=1 after it; what it takes
    with acks=all it cannot commit; and it comes back by itself."""

    async def scenario() -> None:
        async with open_trial() as trial:
            await trial.send(5)
            old = trial.leader
            old.link.cut() if how == "cut" else old.link.hold()
            await trio.sleep(1.5 * SESSION_S)
            batch = PartitionProduce("t", 0, encode_batch([(1, None, b"lonely", ())]))
            request = ProduceRequest(ACKS_LEADER, 1_000, (batch,))
            answer = await trial.ask(old, ApiKey.PRODUCE, request)
            assert answer.partitions[0].error == ErrorCode.NOT_LEADER_OR_FOLLOWER
            await trial.send(5, wait_s=5)
            assert trial.leader is not old
            old.link.heal()
            await trial.settle()

    play(scenario)


def test_all_without_the_store_go_on_where_they_can():
    """While nobody reaches the store leaders go on with acks=all; later all is as before."""

    async def scenario() -> None:
        async with open_trial() as trial:
            await trial.send(5)
            for broker in trial.cluster.brokers:
                broker.link.cut()
            await trio.sleep(3 * SESSION_S)
            await trial.send(5, wait_s=2)
            for broker in trial.cluster.brokers:
                broker.link.heal()
            await trial.send(5)
            await trial.settle()

    play(scenario)


@pytest.mark.parametrize("is_controller", [True, False])
def test_a_leader_cut_off_from_the_others_is_replaced(is_controller: bool):
    """A leader that reaches the store and no other broker keeps its session and acknowledges
    nothing. The others go on: it is not heard, and one that is the controller resigns."""

    async def scenario() -> None:
        async with open_trial() as trial:
            await trial.send(5)
            while (trial.leader.node_id == await trial.controller()) != is_controller:
                await trial.leader.stop()
                await trial.cluster.start()
                await trial.settle()
            old = trial.leader
            for other in trial.followers:
                trial.world.network.cut(old.name, other.name)
            batch = PartitionProduce("t", 0, encode_batch([(1, None, b"lonely", ())]))
            request = ProduceRequest(ACKS_ALL, 1_000, (batch,))
            answer = await trial.ask(old, ApiKey.PRODUCE, request)
            assert answer.partitions[0].error == ErrorCode.REQUEST_TIMED_OUT
            await trial.send(5, wait_s=5)
            assert trial.leader is not old
            trial.world.network.heal()
            await trial.send(5, wait_s=5)
            await trial.settle()

    play(scenario)


def test_two_cut_off_from_each_other_change_nothing_for_the_third():
    """Followers that do not reach each other copy on; no leader changes."""

    async def scenario() -> None:
        async with open_trial() as trial:
            one, other = trial.followers
            trial.world.network.cut(one.name, other.name)
            for _ in range(3):
                await trial.send(1, wait_s=2)
                await trio.sleep(LAG_S)
            assert (await trial.agreed()).leader_epoch == 0
            trial.world.network.heal()
            await trial.settle()

    play(scenario)


@pytest.mark.parametrize("how", ["hold", "throttle"])
def test_a_slow_follower_leaves_and_returns(how: str, caplog: pytest.LogCaptureFixture):
    """A follower behind a held or slow wire leaves the in-sync set by time, and joins again; the
    leader reaches the controller, which has to write it down."""
    caplog.set_level(logging.INFO)

    async def scenario() -> None:
        async with open_trial() as trial:
            await trial.send(5)
            leader, controller = trial.leader, await trial.controller()
            slow = next(each for each in trial.followers if each.node_id != controller)
            if how == "hold":
                trial.world.network.hold(leader.name, slow.name)
            else:
                trial.world.network.throttle(leader.name, slow.name, 5)
            with trio.move_on_after(3 * LAG_S):
                while True:
                    await trial.send(1)
                    await trio.sleep(0.2)
            assert slow.node_id not in (await trial.agreed()).isr
            trial.world.network.heal()
            await trial.until(lambda agreed: len(agreed.isr) == 3)
            assert (await trial.agreed()).leader_epoch == 0
            await trial.settle()

    play(scenario)
    assert "Shrinking ISR from" in caplog.text
    assert "Expanding ISR" in caplog.text


def test_a_follower_that_lags_leaves_at_the_next_look():
    """A4: the leader looks every half lag time. The follower's disk hangs, so it sends FETCH
    requests and lacks a record: it is not silent, and only that look removes it."""

    async def scenario() -> None:
        async with open_trial(flush="always") as trial:
            await trial.send(5)
            controller = await trial.controller()
            slow = next(each for each in trial.followers if each.node_id != controller)
            # The leader has just begun to look. If it looked once in a lag time, it would find the
            # follower at the second look only, after two.
            began_at = trio.current_time()
            assert began_at < LAG_S / 4
            slow.files.sync_s, sync_s = 10 * LAG_S, slow.files.sync_s
            await trial.send(1)
            took_s = trio.current_time() - began_at
            assert LAG_S < took_s < 1.75 * LAG_S, "half a lag time, and the way of the answers"
            assert slow.node_id not in (await trial.agreed()).isr
            slow.files.sync_s = sync_s
            await trial.until(lambda agreed: len(agreed.isr) == 3)
            await trial.settle()

    play(scenario)


@pytest.mark.parametrize("shift_ms", [-HOUR_MS, HOUR_MS])
def test_a_wall_clock_that_jumps_moves_nobody(shift_ms: int):
    """No lease, lag or term is measured with the wall clock: leader and in-sync set stay."""

    async def scenario() -> None:
        async with open_trial() as trial:
            await trial.send(5)
            for broker in trial.cluster.brokers:
                broker.wall_shift_ms = shift_ms
                await trial.send(3, wait_s=2)
                await trio.sleep(2 * SESSION_S)
            agreed = await trial.agreed()
            assert (agreed.leader_epoch, len(agreed.isr)) == (0, 3)
            await trial.settle()

    play(scenario)
