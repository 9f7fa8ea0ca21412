"""Wires between brokers that break while the store is in reach: whom the controller hears.

The matrix of all wires is in `test_cut_wires.py`.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import trio

from minibroker.broker.metadata.store import Snapshot
from minibroker.protocol.constants import ACKS_ALL, ACKS_LEADER, ApiKey, ErrorCode
from minibroker.protocol.messages.metadata import MetadataRequest
from minibroker.protocol.messages.produce import PartitionProduce, ProduceRequest
from minibroker.protocol.records.record import encode_batch
from minibroker.testing.cluster import SimulatedBroker, simulate
from minibroker.testing.mutants import WIRE_MUTANTS, mutated
from tests.sim.__main__ import causes
from tests.sim.checkers import Violation
from tests.sim.cut_wires import obey_roles
from tests.sim.trial import SESSION_S, Trial, open_trial, play
from tests.sim.wires import WiresScenario
from tests.support.seeds import rest_in_soak

STALL_S_MAX = 5.0
FENCE_S = 2.0  # a session and four heartbeats
FLAPPING_S = 60.0
SUCCESSIONS = 8
SEEDS = range(3)  # the first in each `make test`
PART = 20
SOAK = range(1000, 2000, PART)
SEARCHED = 200


def batch(value: bytes) -> PartitionProduce:
    return PartitionProduce("t", 0, encode_batch([(1, None, value, ())]))


def isolate(trial: Trial, broker: SimulatedBroker) -> None:
    """Cut it off from the other brokers, not from the store."""
    for each in trial.cluster.brokers:
        if each is not broker:
            trial.world.network.cut(broker.name, each.name)


# -- one harm each


def test_a_controller_that_hears_nobody_resigns():
    """It leads, reaches the store and no other broker: another governs, and another leads."""

    async def scenario() -> None:
        async with open_trial() as trial:
            await trial.send(5)
            old = (await obey_roles(trial, is_controller=True)).leader
            isolate(trial, old)
            await trial.send(1, wait_s=STALL_S_MAX)
            assert await trial.controller() != old.node_id
            assert (await trial.agreed()).leader != old.node_id
            await trial.send(5, wait_s=1)
            trial.world.network.heal()
            await trial.settle()

    play(scenario)


def test_a_controller_that_hears_nobody_and_leads_nothing_resigns():
    """The leader and the third broker reach each other: the third one is the next controller, or
    the leader is."""

    async def scenario() -> None:
        async with open_trial() as trial:
            await trial.send(5)
            controller = (await obey_roles(trial, is_controller=False)).other
            before = await trial.agreed()
            isolate(trial, controller)
            await trio.sleep(FENCE_S + 1)
            assert await trial.controller() != controller.node_id
            assert (await trial.agreed()).leader_epoch == before.leader_epoch
            await trial.send(1, wait_s=STALL_S_MAX)
            trial.world.network.heal()
            await trial.settle()

    play(scenario)


def test_a_leader_that_reaches_nobody_is_replaced():
    """It reaches the store: it keeps its session, and is fenced."""

    async def scenario() -> None:
        async with open_trial() as trial:
            await trial.send(5)
            old = (await obey_roles(trial, is_controller=False)).leader
            isolate(trial, old)
            await trial.send(1, wait_s=STALL_S_MAX)
            assert old.node_id not in (await trial.agreed()).isr
            answer = await trial.ask(trial.leader, ApiKey.METADATA, MetadataRequest())
            assert {each.node_id: each.is_fenced for each in answer.brokers} == {
                each.node_id: each is old for each in trial.cluster.brokers
            }
            trial.world.network.heal()
            await trial.settle()
            answer = await trial.ask(trial.leader, ApiKey.METADATA, MetadataRequest())
            assert not any(each.is_fenced for each in answer.brokers)

    play(scenario)


def test_a_leader_that_the_controller_does_not_hear_is_replaced():
    """The wire between the two is cut, and no other; a follower that is not heard stays in sync."""

    async def scenario() -> None:
        async with open_trial() as trial:
            await trial.send(5)
            old, controller, third = await obey_roles(trial, is_controller=False)
            before = await trial.agreed()
            trial.world.network.cut(third.name, controller.name)
            await trio.sleep(2 * FENCE_S)
            await trial.send(5, wait_s=1)
            assert await trial.agreed() == before
            trial.world.network.heal()
            await trial.settle()
            trial.world.network.cut(old.name, controller.name)
            await trial.send(1, wait_s=STALL_S_MAX)
            assert trial.leader is not old
            trial.world.network.heal()
            await trial.settle()

    play(scenario)


def test_who_is_not_heard_promises_nothing_alone():
    """A leader that is cut off refuses acks=1 before another leads, and is not ready; when it is
    heard again it takes it again."""

    async def scenario() -> None:
        async with open_trial() as trial:
            await trial.send(5)
            old = (await obey_roles(trial, is_controller=False)).leader
            isolate(trial, old)
            await trio.sleep(FENCE_S)
            request = ProduceRequest(ACKS_LEADER, 1, (batch(b"x"),))
            answer = await trial.ask(old, ApiKey.PRODUCE, request)
            assert answer.partitions[0].error == ErrorCode.NOT_LEADER_OR_FOLLOWER
            assert old.node is not None
            assert old.node.is_session_current(trio.current_time())
            assert not old.node.may_decide_alone(trio.current_time())
            await trial.until(lambda agreed: agreed.leader != old.node_id)
            trial.world.network.heal()
            await trial.settle()
            await trio.sleep(1)
            assert old.node.may_decide_alone(trio.current_time())

    play(scenario)


def test_no_producer_waits_at_a_leader_that_was_left():
    """One that reaches the leader only is sent away, long before its request times out."""

    async def scenario() -> None:
        async with open_trial() as trial:
            await trial.send(5)
            old = (await obey_roles(trial, is_controller=False)).leader
            isolate(trial, old)
            request = ProduceRequest(ACKS_ALL, 30_000, (batch(b"0:1000"),))
            for wait_s in (STALL_S_MAX, 0.1):
                with trio.fail_after(wait_s):
                    answer = await trial.ask(old, ApiKey.PRODUCE, request)
                assert answer.partitions[0].error == ErrorCode.NOT_LEADER_OR_FOLLOWER
            trial.world.network.heal()
            await trial.settle()

    play(scenario)


@pytest.mark.parametrize("read_s", [0.0, 1.5], ids=["few partitions", "many"])
def test_the_death_of_a_controller_makes_no_leader_refuse(read_s: float):
    """Nobody's controller lease lapses until the next controller confirms it, also where that one
    takes long to read what there is."""

    async def scenario() -> None:
        async with open_trial(is_watched=False) as trial:
            await trial.send(5)
            leader, controller, _ = await obey_roles(trial, is_controller=False)
            with reading_for(trial, read_s):
                await controller.kill()
                assert leader.node is not None
                until = trio.current_time() + 6 * SESSION_S
                while trio.current_time() < until:
                    assert leader.node.may_decide_alone(trio.current_time())
                    await trio.sleep(0.01)
            await controller.start()
            await trial.settle()

    play(scenario)


@contextmanager
def reading_for(trial: Trial, seconds: float) -> Iterator[None]:
    """To read all of the store takes so long, as with many partitions."""
    get = trial.world.store.get

    async def slow_get(prefix: str) -> Snapshot:
        if not prefix:
            await trio.sleep(seconds)
        return await get(prefix)

    trial.world.store.get = slow_get  # type: ignore[method-assign]
    try:
        yield
    finally:
        trial.world.store.get = get  # type: ignore[method-assign]


def test_the_last_two_go_on_without_each_other():
    """One of three is dead, and the others are cut off from each other: of two registered brokers
    the controller governs alone, and replaces the leader only if it may lead itself."""

    async def scenario() -> None:
        async with open_trial(min_insync_replicas="1") as trial:
            await trial.send(5)
            leader, controller, third = await obey_roles(trial, is_controller=False)
            await third.kill()
            await trio.sleep(2 * SESSION_S)
            trial.world.network.cut(leader.name, controller.name)
            await trial.send(1, wait_s=STALL_S_MAX)
            assert trial.leader is controller
            trial.world.network.heal()
            await third.start()
            await trial.settle()

    play(scenario)


# -- rules, and what happens where one of them is broken


async def delay_confirmation() -> None:
    """A probe is under way for 1.5 s, and nothing else gets through: it extends no lease."""
    async with open_trial() as trial:
        await trial.send(5)
        old, controller, _ = await obey_roles(trial, is_controller=False)
        network, there, back = trial.world.network, controller.name, old.name
        network.hold(there, back)
        await trio.sleep(1.5)
        network.hold(back, there)
        network.release(there, back)
        await trio.sleep(0.05)
        network.hold(there, back)
        await trial.until(lambda agreed: agreed.leader != old.node_id)
        await trio.sleep(1)
        network.heal()
        await trial.settle()


async def outlive_session() -> None:
    """A controller without the store reaches the leader, and its successor does not. The leader
    itself may be that successor: so several times."""
    async with open_trial() as trial:
        await trial.send(5)
        for _ in range(SUCCESSIONS):
            old, controller, third = await obey_roles(trial, is_controller=False)
            controller.link.cut()
            trial.world.network.cut(third.name, old.name)
            with trio.move_on_after(2 * FENCE_S):
                await trial.until(lambda agreed, old=old: agreed.leader not in (old.node_id, -1))
            await trio.sleep(1)
            trial.world.network.heal()
            controller.link.heal()
            await trial.settle()


async def meet_successor() -> None:
    """A leader is fenced and not told; the next controller hears it before it tells it anything."""
    async with open_trial() as trial:
        await trial.send(5)
        old, controller, _ = await obey_roles(trial, is_controller=False)
        trial.world.network.cut(controller.name, old.name)
        await trial.until(lambda agreed: agreed.leader != old.node_id)
        with reading_for(trial, 1.0):
            await controller.kill()
            trial.world.network.heal()
            await trio.sleep(4 * SESSION_S)
        await controller.start()
        await trial.settle()


async def silence_follower() -> None:
    """The controller does not hear a follower, which copies on."""
    async with open_trial() as trial:
        await trial.send(5)
        _, controller, third = await obey_roles(trial, is_controller=False)
        trial.world.network.cut(third.name, controller.name)
        await trio.sleep(2 * FENCE_S)
        await trial.send(5, wait_s=1)
        trial.world.network.heal()
        await trial.settle()


async def silence_last_member() -> None:
    """The controller does not hear the only member of the in-sync set, and hears the other one."""
    async with open_trial(replicas=2, min_insync_replicas="1") as trial:
        await trial.send(5)
        replicas = (await trial.agreed()).replicas
        while (governing := await trial.controller()) in replicas:
            await trial.cluster.broker(governing).stop()
            await trial.cluster.start()
            await trial.settle()
        leader, controller = trial.leader, trial.cluster.broker(governing)
        (other,) = [each for each in trial.followers if each is not controller]
        trial.world.network.hold(leader.name, other.name)
        await trial.send(5)
        assert (await trial.agreed()).isr == (leader.node_id,)
        trial.world.network.cut(leader.name, controller.name)
        await trio.sleep(2 * FENCE_S)
        assert (await trial.agreed()).leader == leader.node_id
        await trial.send(5, wait_s=1)
        trial.world.network.heal()
        await trial.settle()


async def resign_beside_slow_stores() -> None:
    """A controller is cut off, and reaches the store before the others do."""
    async with open_trial() as trial:
        await trial.send(5)
        controller = trial.cluster.broker(await trial.controller())
        isolate(trial, controller)
        for broker in trial.cluster.brokers:
            broker.link.delay_s_max = 0.001 if broker is controller else 0.2
        await trio.sleep(2 * FENCE_S)
        assert await trial.controller() != controller.node_id
        trial.world.network.heal()
        await trial.settle()


async def part_all() -> None:
    """No broker hears another: each governs in turn, for a while."""
    async with open_trial() as trial:
        await trial.send(5)
        for broker in trial.cluster.brokers:
            isolate(trial, broker)
        await trio.sleep(15 * FENCE_S)
        assert (await trial.agreed()).leader_epoch == 0
        trial.world.network.heal()
        await trial.settle()


async def wait_for_slow_disk() -> None:
    """A follower whose disk hangs has nothing to ask for, and sends its FETCH requests all the
    same: it is waited for, until the lag time."""
    async with open_trial(replica_lag_time_max_ms="10000", flush="always") as trial:
        await trial.send(5)
        third = (await obey_roles(trial, is_controller=True)).third
        sync_s, third.files.sync_s = third.files.sync_s, 3 * FENCE_S
        await trial.send(1)
        third.files.sync_s = sync_s
        await trial.watcher.look()
        assert len((await trial.agreed()).isr) == 3
        await trial.settle()


async def lack_replicas() -> None:
    """One of three is dead, and the other follower does not reach the leader: acks=all waits for it
    until the lag time, since two must be in sync."""
    async with open_trial(replica_lag_time_max_ms="10000") as trial:
        await trial.send(5)
        leader, other, third = await obey_roles(trial, is_controller=True)
        await third.kill()
        await trio.sleep(2 * SESSION_S)
        trial.world.network.cut(leader.name, other.name)
        with trio.move_on_after(3 * FENCE_S):
            await trial.send(1)
        assert set((await trial.agreed()).isr) == {leader.node_id, other.node_id}
        trial.world.network.heal()
        await third.start()
        await trial.settle()


SCENARIOS = {
    "count-from-receipt": (delay_confirmation, "believes that it leads alone"),
    "confirm-without-a-lease": (outlive_session, "believes that it leads alone"),
    "return-before-roles": (meet_successor, "believes that it leads alone"),
    "remove-fenced-followers": (silence_follower, "nobody asked for it"),
    "elect-out-of-sync": (silence_last_member, "records were committed before"),
    "campaign-at-once": (resign_beside_slow_stores, "was elected again after"),
    "ignore-fetches": (wait_for_slow_disk, "which sent a FETCH"),
    "shrink-below-min-isr": (lack_replicas, "and then 1 of 2 are in sync"),
}


@pytest.mark.parametrize("rule", SCENARIOS)
def test_a_rule_keeps_its_promise(rule: str):
    """Where it is broken the checkers say so; see the next test."""
    play(SCENARIOS[rule][0])


def test_brokers_that_are_all_cut_off_change_nothing():
    """And are a cluster again when they reach each other."""
    play(part_all)


@pytest.mark.parametrize("rule", SCENARIOS)
def test_a_mutant_is_found(rule: str):
    """The checkers see what each broken rule leads to."""
    scenario, complaint = SCENARIOS[rule]
    with mutated(rule), pytest.raises(ExceptionGroup) as raised:
        play(scenario)
    found = [each for each in causes(raised.value) if isinstance(each, Violation)]
    assert any(complaint in str(each) for each in found), found


def test_every_mutant_has_its_scenario():
    """None is forgotten."""
    assert set(SCENARIOS) == set(WIRE_MUTANTS)


@pytest.mark.parametrize("seed", rest_in_soak(SEEDS))
def test_nothing_is_lost_where_wires_break(seed: int):
    """Whatever breaks in a seed, every checker is content and the cluster comes to rest."""
    told = simulate(WiresScenario(seed).run, seed)
    assert told.delivered > 100, f"repeat: python -m tests.sim --scenario wires --seeds {seed}"


@pytest.mark.soak
@pytest.mark.parametrize("first", SOAK)
def test_many_seeds(first: int):
    """A thousand more, in parts."""
    failed = [seed for seed in range(first, first + PART) if finds(seed)]
    assert not failed, [f"python -m tests.sim --scenario wires --seeds {seed}" for seed in failed]


@pytest.mark.soak
@pytest.mark.parametrize("rule", WIRE_MUTANTS)
def test_a_mutant_is_found_by_searching(rule: str):
    """Random seeds find each mutant, without a scenario made for it."""
    with mutated(rule):
        assert any(finds(seed) for seed in range(2000, 2000 + SEARCHED))


def finds(seed: int) -> bool:
    """Whether something is wrong with a seed."""
    try:
        simulate(WiresScenario(seed).run, seed)
    except Exception:
        return True
    return False


# -- up and down


@pytest.mark.parametrize("how", ["cut", "hold"])
@pytest.mark.parametrize("is_controller", [True, False])
def test_a_wire_that_is_up_and_down_causes_few_elections(how: str, is_controller: bool):
    """Every second for a minute, between leader and follower or leader and controller."""

    async def scenario() -> None:
        async with open_trial() as trial:
            await trial.send(5)
            leader, other, _ = await obey_roles(trial, is_controller=is_controller)
            epoch = (await trial.agreed()).leader_epoch
            network = trial.world.network
            with trio.move_on_after(FLAPPING_S):
                while True:
                    if how == "cut":
                        network.cut(leader.name, other.name)
                    else:
                        network.hold(leader.name, other.name)
                    await trio.sleep(1)
                    network.heal()
                    await trio.sleep(1)
            network.heal()
            assert (await trial.agreed()).leader_epoch - epoch <= 3
            await trial.settle()

    play(scenario)
