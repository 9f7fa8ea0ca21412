"""Three broker processes under load, killed, stopped and started again: nothing acknowledged goes.

What the clients were told is compared with what is there (`tests/support/evidence.py`). At the end
the cluster stops, and the logs of the brokers are compared with each other. Then the audit judges
the same by its own means: what the brokers left, and the ledgers of the clients.
"""

import random
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trio

from minibroker.client import Admin, BrokerError, ClientTimeout, NewTopic
from tests.support.audited import assert_clean
from tests.support.evidence import PARTITIONS, TOPIC, Evidence, judge, produce, read
from tests.support.processes import ClusterProcesses, running_cluster
from tests.support.witness import History, log_digests

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PRODUCERS = 2
READERS = 2
REPLICAS = 3
NODES = (1, 2, 3)
NODES_WITH_ROOM = (1, 2, 3, 4)  # for a replica that moves
SETTINGS = {"replica.lag.time.max.ms": "3000"}
HEALED_S_MAX = 60.0


async def torment(cluster: ClusterProcesses, history: History, seed: int, rounds: int) -> None:
    """One fault after another; each begins when all replicas are in sync."""
    rng = random.Random(seed)
    faults = [*("kill leader", "pause leader", "kill controller", "restart") * (rounds // 4 + 1)]
    rng.shuffle(faults)
    async with Admin(cluster.addresses) as admin:
        for fault in faults[:rounds]:
            await history.wait_for_isr(REPLICAS)
            await trio.sleep(rng.random())
            victim = history.latest[0].leader
            if fault == "kill controller":
                victim = (await admin.describe_cluster()).controller_id
            print(f"{fault}: broker {victim}")
            if fault == "pause leader":
                cluster.pause(victim)
                await trio.sleep(2.5)
                cluster.resume(victim)
            elif fault == "restart":
                await trio.to_thread.run_sync(cluster.restart, victim)
            else:
                await trio.to_thread.run_sync(cluster.kill, victim)
                await trio.sleep(2 * rng.random())
                await trio.to_thread.run_sync(cluster.start, victim)
        await history.wait_for_isr(REPLICAS)


async def move(address: str, seed: int, stop: trio.Event) -> None:
    """Move partitions at random, and cancel some of the moves, until `stop`; wait for the end of
    the last ones."""
    rng = random.Random(seed)
    accepted = cancelled = 0
    async with Admin(address) as admin:
        while not stop.is_set():
            name = TOPIC, rng.randrange(PARTITIONS)
            target = rng.sample(NODES_WITH_ROOM, REPLICAS)
            try:
                report = await admin.alter_partition_reassignments({name: target})
                accepted += len(report.accepted)
                await trio.sleep(rng.random() / 2)
                if rng.random() < 0.3:
                    report = await admin.alter_partition_reassignments({name: None})
                    cancelled += len(report.accepted)
            except (BrokerError, ClientTimeout) as error:
                print(f"no move: {error}")
        while True:
            if not await admin.list_partition_reassignments():
                break
            await trio.sleep(0.1)
    print(f"{accepted} moves, {cancelled} of them cancelled")
    assert accepted > cancelled > 0


async def stop_in_order(cluster: ClusterProcesses) -> None:
    """Once all replicas are in sync, which is kept for the audit."""
    history = History(TOPIC)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(history.watch, cluster.addresses)
        with trio.fail_after(HEALED_S_MAX):
            await history.wait_for_isr(REPLICAS)
        nursery.cancel_scope.cancel()
    cluster.export()
    for node in cluster.layout.node_ids:
        assert cluster.stop(node) == 0


async def assert_sound(
    cluster: ClusterProcesses, evidence: Evidence, spark: "SparkSession"
) -> None:
    """After all brokers have stopped: nothing is lost, and the replicas hold the same bytes."""
    judge(evidence)
    digests: dict[str, list[str]] = defaultdict(list)
    for node in cluster.layout.node_ids:
        for partition, digest in log_digests(cluster.layout.data_dir(node), TOPIC).items():
            digests[partition].append(digest)
    assert len(digests) == PARTITIONS
    assert {(len(same), len({*same})) for same in digests.values()} == {(REPLICAS, 1)}
    out = evidence.place / "audit"
    await trio.to_thread.run_sync(assert_clean, spark, cluster.layout.root, out, evidence.ledgers)


async def run_rounds(
    root: Path, seed: int, rounds: int, spark: "SparkSession", *, moves: bool = False
) -> None:
    """Load and faults, then healing, then judgement. With `moves` partitions move meanwhile."""
    nodes = NODES_WITH_ROOM if moves else NODES
    with running_cluster(root, len(nodes), SETTINGS) as cluster:
        evidence = await work(cluster, root, seed, rounds, moves=moves)
        await stop_in_order(cluster)
    await assert_sound(cluster, evidence, spark)


async def work(
    cluster: ClusterProcesses, place: Path, seed: int, rounds: int, *, moves: bool
) -> Evidence:
    """Load and faults, until all is healed and has been read."""
    evidence = Evidence(place)
    history = History(TOPIC)
    address = cluster.addresses
    async with Admin(address) as admin:
        await admin.create_topics(NewTopic(TOPIC, PARTITIONS))
    stop, drained = trio.Event(), trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(history.watch, address)
        async with trio.open_nursery() as readers:
            for _ in range(READERS):
                readers.start_soon(read, address, evidence, drained)
            async with trio.open_nursery() as writers:
                for number in range(PRODUCERS):
                    writers.start_soon(produce, address, number, evidence, stop)
                with trio.fail_after(rounds * HEALED_S_MAX):
                    async with trio.open_nursery() as movers:
                        tormented = trio.Event()
                        if moves:
                            movers.start_soon(move, address, seed, tormented)
                        await torment(cluster, history, seed, rounds)
                        tormented.set()
                stop.set()
            drained.set()
        await read(address, evidence, drained)
        nursery.cancel_scope.cancel()
    return evidence


@pytest.mark.parametrize("seed", [1])
async def test_nothing_acknowledged_is_lost_over_two_rounds(spark, tmp_path, seed: int) -> None:
    """Two faults out of kill -9, SIGSTOP, restart and controller loss harm no record."""
    await run_rounds(tmp_path, seed, 2, spark)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(3))
async def test_nothing_acknowledged_is_lost_over_ten_rounds(spark, tmp_path, seed: int) -> None:
    """Ten faults after one another harm no record."""
    await run_rounds(tmp_path, seed, 10, spark)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(2))
async def test_nothing_acknowledged_is_lost_while_partitions_move(
    spark, tmp_path, seed: int
) -> None:
    """Ten faults while partitions move between four brokers harm no record."""
    await run_rounds(tmp_path, seed, 10, spark, moves=True)


async def test_a_cluster_killed_at_once_serves_again(spark, tmp_path) -> None:
    """After kill -9 of all brokers they come up on the same directories with all that was acked."""
    evidence = Evidence(tmp_path)
    drained = trio.Event()
    drained.set()
    with running_cluster(tmp_path, len(NODES), SETTINGS) as cluster:
        async with Admin(cluster.addresses) as admin:
            await admin.create_topics(NewTopic(TOPIC, PARTITIONS))
        async with trio.open_nursery() as nursery:
            stop = trio.Event()
            nursery.start_soon(produce, cluster.addresses, 0, evidence, stop)
            await trio.sleep(1.5)
            await trio.to_thread.run_sync(lambda: cluster.kill(*NODES))
            await trio.to_thread.run_sync(cluster.start)
            await trio.sleep(0.5)
            stop.set()
        await read(cluster.addresses, evidence, drained)
        await stop_in_order(cluster)
    await assert_sound(cluster, evidence, spark)
